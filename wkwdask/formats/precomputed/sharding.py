"""Shards of a Neuroglancer precomputed volume: where a chunk is stored, and the tables of a shard file.

A shard file is a shard index, one (start, end) for each minishard, then chunks and minishard indices in any order. All offsets in it count from the end of
the shard index (neuroglancer, ``precomputed/sharded.rst``).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.geometry import compressed_morton

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3

HASHES = ("identity", "murmurhash3_x86_128")
DATA_ENCODINGS = ("raw", "gzip")
INDEX_ENTRY_NBYTES = 16


@dataclass(frozen=True, slots=True)
class Sharding:
    """How chunk identifiers are spread over shards and minishards."""

    preshift_bits: int
    """Lowest bits of an identifier that do not count: chunks that differ in these alone are in one minishard."""
    minishard_bits: int
    """Bits that choose the minishard inside a shard."""
    shard_bits: int
    """Bits that choose the shard."""
    hash: str = "identity"
    """``"identity"`` or ``"murmurhash3_x86_128"``."""
    minishard_index_encoding: str = "raw"
    """``"raw"`` or ``"gzip"``."""
    data_encoding: str = "raw"
    """``"raw"`` or ``"gzip"``."""

    @property
    def index_nbytes(self) -> int:
        """Bytes of the shard index at the start of a shard file."""
        return INDEX_ENTRY_NBYTES << self.minishard_bits

    def shard_name(self, shard: int) -> str:
        """Name the file of a shard."""
        return f"{shard:0{-(-self.shard_bits // 4)}x}.shard"

    def places(self, ids: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Say where chunks are stored.

        Parameters
        ----------
        ids : ndarray of uint64, shape (n,)
            Chunk identifiers.

        Returns
        -------
        shards, minishards : ndarray of uint64, shape (n,)
        """
        hashed = ids >> np.uint64(self.preshift_bits) if self.preshift_bits < 64 else np.zeros_like(ids)
        if self.hash != "identity":
            raise NotImplementedError(self.hash)
        minishards = hashed & np.uint64((1 << self.minishard_bits) - 1)
        shards = (hashed >> np.uint64(self.minishard_bits) if self.minishard_bits < 64 else np.zeros_like(hashed)) & np.uint64((1 << self.shard_bits) - 1)
        return shards, minishards

    def shard_cells(self, grid: Vec3) -> Vec3 | None:
        """Give the box of chunks that one shard holds, None where shards are no boxes.

        Parameters
        ----------
        grid : tuple of 3 int
            Chunks of the volume along x, y, z.

        Returns
        -------
        tuple of 3 int or None
            Chunks along x, y, z, powers of two.
        """
        within = self.preshift_bits + self.minishard_bits
        if self.hash != "identity" or within + self.shard_bits < len(compressed_morton.bit_axes(grid)):
            return None
        return compressed_morton.cells_per_axis(within, grid)


def format_minishard_index(ids: npt.NDArray[np.uint64], starts: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], encoding: str) -> bytes:
    """Write the index of one minishard.

    Parameters
    ----------
    ids : ndarray of uint64, shape (n,)
        Chunk identifiers, ascending.
    starts, sizes : ndarray of uint64, shape (n,)
        First byte of each chunk, counted from the end of the shard index, and its encoded length; chunks lie in the order of their identifiers.
    encoding : str
        ``"raw"`` or ``"gzip"``.

    Returns
    -------
    bytes
    """
    table = np.empty((3, len(ids)), "<u8")
    table[0] = np.diff(ids, prepend=np.uint64(0))
    table[1] = starts
    table[1, 1:] -= starts[:-1] + sizes[:-1]
    table[2] = sizes
    return compress_gzip(table.tobytes()) if encoding == "gzip" else table.tobytes()


def parse_minishard_index(raw: bytes, source: str, offset: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Read the index of one minishard, decoded.

    Parameters
    ----------
    raw : bytes
        The index.
    source : str
        The file, for errors.
    offset : int
        Byte of the file at which it is stored, for errors.

    Returns
    -------
    ids, starts, sizes : ndarray of uint64, shape (n,)
        As for :func:`format_minishard_index`.

    Raises
    ------
    CorruptError
        The length is impossible.
    """
    if len(raw) % 24:
        raise CorruptError(f"{source}: byte {offset}: a minishard index has a multiple of 24 bytes, found {len(raw)}")
    table = np.frombuffer(raw, "<u8").reshape(3, -1).astype(np.uint64)
    ids, sizes = np.cumsum(table[0], dtype=np.uint64), table[2]
    starts = np.cumsum(table[1], dtype=np.uint64)
    starts[1:] += np.cumsum(sizes[:-1], dtype=np.uint64)
    return ids, starts, sizes


def compress_gzip(data: bytes, level: int = 6) -> bytes:
    """Compress to one gzip stream that says nothing of the time."""
    stream = zlib.compressobj(level, zlib.DEFLATED, 31)
    return stream.compress(data) + stream.flush()


def decompress_gzip(data: bytes, largest: int, source: str, offset: int) -> bytes:
    """Decompress one gzip stream.

    Parameters
    ----------
    data : bytes
        The stream.
    largest : int
        How many bytes may come out of it.
    source : str
        The file, for errors.
    offset : int
        Byte of the file at which the stream starts, for errors.

    Returns
    -------
    bytes

    Raises
    ------
    CorruptError
        It is no gzip stream, or gives more bytes.
    TruncatedError
        It ends too early.
    """
    stream = zlib.decompressobj(31)
    try:
        out = stream.decompress(data, largest + 1)
    except zlib.error as error:
        raise CorruptError(f"{source}: byte {offset}: expected a gzip stream of {len(data)} bytes: {error}") from None
    if len(out) > largest:
        raise CorruptError(f"{source}: byte {offset}: a gzip stream of {len(data)} bytes gives more than the {largest} bytes that were expected")
    if not stream.eof:
        raise TruncatedError(f"{source}: byte {offset}: a gzip stream of {len(data)} bytes is cut off")
    return out
