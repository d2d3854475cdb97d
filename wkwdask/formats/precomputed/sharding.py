"""Sharding of a Neuroglancer precomputed volume: map chunks to shards, choose shardings, parse and
format the tables of a shard file.

Source: neuroglancer, ``precomputed/sharded.rst``. A chunk identifier is the compressed Morton code
of the chunk's grid position. With hash identity::

    identifier:  | shard_bits | minishard_bits | preshift_bits |    (highest bit first)
                   which file   part of the file  chunk of the minishard

A shard file holds the shard index, then chunks and minishard indices in any order. All offsets
count from the end of the shard index. Tables are checked when they are parsed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.compressed_streams import compress_gzip
from wkwdask.formats.precomputed import images
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import ceil_divide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import UintArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.json_text import JsonObject, Problems

    Column = UintArray

TYPE = "neuroglancer_uint64_sharded_v1"
HASHES = ("identity", "murmurhash3_x86_128")
DATA_ENCODINGS = ("raw", "gzip")
INDEX_ENTRY_NBYTES = 16
MINISHARD_ENTRY_NBYTES = 24
MAX_MINISHARD_BITS = 32  # the limit of tensorstore: a shard index of 64 GiB
_MAX_OFFSET = 1 << 62  # [bytes] beyond any file
TARGET_SHARD_NBYTES = 1 << 30
# a viewer reads a whole minishard index for its first chunk: 512 entries have 12 KiB
_MINISHARD_BITS = 9
_INDEX_BITS = 10  # other readers read a shard index whole: at most 16 KiB


@dataclass(frozen=True, slots=True)
class Sharding:
    """Distribution of chunk identifiers over shards and minishards."""

    preshift_bits: int
    """Number of lowest bits of an identifier that are ignored: chunks that differ only in these
    share a minishard."""
    minishard_bits: int
    """Number of bits that select the minishard within a shard."""
    shard_bits: int
    """Number of bits that select the shard."""
    hash: str = "identity"
    """``"identity"`` or ``"murmurhash3_x86_128"``."""
    minishard_index_encoding: str = "raw"
    """``"raw"`` or ``"gzip"``."""
    data_encoding: str = "raw"
    """``"raw"`` or ``"gzip"``."""

    @property
    def index_nbytes(self) -> int:
        """Size of the shard index in bytes."""
        return INDEX_ENTRY_NBYTES << self.minishard_bits

    @property
    def within_bits(self) -> int:
        """Number of bits of an identifier that number the chunks of a shard, if identifiers are not
        hashed."""
        return self.preshift_bits + self.minishard_bits

    def shard_name(self, shard: int) -> str:
        return f"{self._stem(shard)}.shard"

    def split_names(self, shard: int) -> tuple[str, str]:
        """Return the two file names of a shard in the obsolete layout: the shard index, and
        everything that follows it."""
        return f"{self._stem(shard)}.index", f"{self._stem(shard)}.data"

    def _stem(self, shard: int) -> str:
        return f"{shard:0{-(-self.shard_bits // 4)}x}"

    def locate(self, ids: Column) -> tuple[Column, Column]:
        """Return shard and minishard of each chunk.

        Parameters
        ----------
        ids : ndarray of uint64, shape (n,)
            Chunk identifiers.

        Returns
        -------
        shards, minishards : ndarray of uint64, shape (n,)
        """
        hashed = _shifted(ids, self.preshift_bits)
        if self.hash != "identity":
            hashed = murmurhash3(hashed)
        minishards = hashed & np.uint64((1 << self.minishard_bits) - 1)
        return _shifted(hashed, self.minishard_bits) & np.uint64(
            (1 << self.shard_bits) - 1
        ), minishards

    def shard_cells(self, grid: Vec3) -> Vec3 | None:
        """Return the box of chunks that one shard holds, or None if shards are not boxes.

        Parameters
        ----------
        grid : tuple of 3 int
            Chunks of the volume along x, y, z.

        Returns
        -------
        tuple of 3 int or None
            Chunks along x, y, z, powers of two.
        """
        within = self.within_bits
        if self.hash != "identity" or within + self.shard_bits < len(
            compressed_morton.bit_axes(grid)
        ):
            return None
        return compressed_morton.cells_per_axis(within, grid)

    def fitted(self, grid: Vec3) -> Sharding:
        """Return the same sharding for a volume of another size: as many chunks per shard, and bits
        that exactly cover all identifiers.

        Parameters
        ----------
        grid : tuple of 3 int
            Chunks of the volume along x, y, z.

        Returns
        -------
        Sharding

        Examples
        --------
        >>> Sharding(9, 3, 6).fitted((64, 64, 16)) == Sharding(9, 3, 4)
        True
        """
        total = len(compressed_morton.bit_axes(grid))
        preshift = min(self.preshift_bits, total)
        minishard = min(self.minishard_bits, total - preshift)
        return replace(
            self,
            preshift_bits=preshift,
            minishard_bits=minishard,
            shard_bits=total - preshift - minishard,
        )

    def minishard_chunks(self, grid: Vec3) -> int:
        """Return the largest number of chunks that a minishard can hold."""
        cells = grid[0] * grid[1] * grid[2]
        if self.hash != "identity":
            return cells
        counted = self.preshift_bits + self.minishard_bits + self.shard_bits
        beyond = max(0, len(compressed_morton.bit_axes(grid)) - counted)
        return min(cells, 1 << self.preshift_bits + beyond)


def locate_one(sharding: Sharding, code: int) -> tuple[int, int]:
    """Return shard and minishard of one chunk, as :meth:`Sharding.locate` does for many."""
    if sharding.hash != "identity":
        shards, minishards = sharding.locate(np.array([code], np.uint64))
        return int(shards[0]), int(minishards[0])
    code >>= sharding.preshift_bits
    shard = code >> sharding.minishard_bits & (1 << sharding.shard_bits) - 1
    return shard, code & (1 << sharding.minishard_bits) - 1


def choose_sharding(
    size: Sequence[int],
    chunk_size: Sequence[int],
    dtype: Any = "uint8",
    *,
    num_channels: int = 1,
    encoding: str = "raw",
    target_shard_nbytes: int = TARGET_SHARD_NBYTES,
) -> Sharding:
    """Choose the sharding of a Neuroglancer precomputed volume of any size.

    Each shard is a box of voxels, so that one task can write it: chunk identifiers are not hashed,
    and the bits exactly cover all of them. A shard holds as many chunks as fit the target size
    before compression, and at least one. A minishard holds at most 512 chunks, unless the shard
    index would then have more than 1024 minishards.

    Parameters
    ----------
    size : sequence of 3 int
        Voxels of the scale along x, y, z.
    chunk_size : sequence of 3 int
        Voxels of a chunk along x, y, z.
    dtype : dtype_like
        Type of one channel.
    num_channels : int
        Values per voxel.
    encoding : str
        Encoding of the chunks. Image encodings (jpeg, png, jxl) are not compressed again, all
        others are stored as gzip streams.
    target_shard_nbytes : int
        Largest size of a shard [bytes, before compression].

    Returns
    -------
    Sharding
        :meth:`Sharding.shard_cells` returns the number of chunks along x, y, z in one shard file.

    Raises
    ------
    ValueError
        A size is not positive, or the chunk identifiers of the volume need more than 64 bits.

    Examples
    --------
    >>> choose_sharding((34432, 39552, 51508), (64, 64, 64))
    Sharding(preshift_bits=9, minishard_bits=3, shard_bits=18, hash='identity', minishard_index_encoding='gzip', data_encoding='gzip')
    >>> sharding = choose_sharding(
    ...     (2000, 2000, 100), (64, 64, 64), "uint64", encoding="compressed_segmentation"
    ... )
    >>> sharding.shard_cells((32, 32, 2))
    (16, 16, 2)
    """  # noqa: E501
    shape, chunk = vec3(size, "size"), vec3(chunk_size, "chunk_size")
    if min(shape) < 1 or min(chunk) < 1 or num_channels < 1 or target_shard_nbytes < 1:
        raise ValueError(
            "size, chunk_size, num_channels and target_shard_nbytes must be positive, got "
            f"{shape}, {chunk}, {num_channels}, {target_shard_nbytes}"
        )
    chunk_nbytes = chunk[0] * chunk[1] * chunk[2] * num_channels * np.dtype(dtype).itemsize
    return sharding_of_bits(
        ceil_divide(shape, chunk),
        max(1, target_shard_nbytes // chunk_nbytes).bit_length() - 1,
        encoding,
    )


def sharding_of_bits(grid: Vec3, bits: int, encoding: str) -> Sharding:
    """Return a sharding whose shards hold ``2 ** bits`` chunks."""
    total = len(compressed_morton.bit_axes(grid))
    within = min(total, bits)
    preshift = max(min(within, _MINISHARD_BITS), within - _INDEX_BITS)
    # gzip cannot compress images further
    data_encoding = "raw" if encoding in images.ENCODINGS else "gzip"
    return Sharding(
        preshift,
        within - preshift,
        total - within,
        minishard_index_encoding="gzip",
        data_encoding=data_encoding,
    )


def _shifted(values: Column, bits: int) -> Column:
    return values >> np.uint64(bits) if bits < 64 else np.zeros_like(values)


_MULTIPLIER_1, _MULTIPLIER_2, _MULTIPLIER_3 = 0x239B961B, 0xAB0E9789, 0x38B34AE5
_BITS_32 = np.uint64(0xFFFFFFFF)


def murmurhash3(keys: Column) -> Column:
    """Hash the eight little-endian bytes of each key with MurmurHash3_x86_128, seed 0, and keep the
    first 64 bits.

    Notes
    -----
    Austin Appleby's MurmurHash3 (public domain) for a message of eight bytes: it has no full block
    of 16 bytes, only a tail in the first two lanes.

    Examples
    --------
    >>> hex(int(murmurhash3(np.array([12345], np.uint64))[0]))
    '0x1d31307e3a65e510'
    """
    low, high = keys & _BITS_32, keys >> np.uint64(32)
    h2 = _times(_rotated(_times(high, _MULTIPLIER_2), 16), _MULTIPLIER_3)
    h1 = _times(_rotated(_times(low, _MULTIPLIER_1), 15), _MULTIPLIER_2)
    eight = np.uint64(8)  # length of the message, mixed into all four lanes
    h1, h2, others = h1 ^ eight, h2 ^ eight, eight
    h1 = (h1 + h2 + others + others) & _BITS_32
    h2, h3 = (h2 + h1) & _BITS_32, (others + h1) & _BITS_32
    h1, h2, h3 = _mixed(h1), _mixed(h2), _mixed(h3)
    h1 = (h1 + h2 + h3 + h3) & _BITS_32
    return h1 | ((h2 + h1) & _BITS_32) << np.uint64(32)


def _times(values: Column, factor: int) -> Column:
    return values * np.uint64(factor) & _BITS_32


def _rotated(values: Column, bits: int) -> Column:
    return (values << np.uint64(bits) | values >> np.uint64(32 - bits)) & _BITS_32


def _mixed(values: Column) -> Column:
    values = _times(values ^ values >> np.uint64(16), 0x85EBCA6B)
    values = _times(values ^ values >> np.uint64(13), 0xC2B2AE35)
    return values ^ values >> np.uint64(16)


def parse_sharding(value: Any, path: str, problems: Problems) -> Sharding | None:
    before = len(problems.messages)
    if not isinstance(value, dict):
        problems.add(path, "an object", value)
        return None
    if value.get("@type", TYPE) != TYPE:
        problems.add(f"{path}.@type", f'"{TYPE}"', value["@type"])
    preshift = _bits(value, "preshift_bits", 64, path, problems)
    minishard = _bits(value, "minishard_bits", MAX_MINISHARD_BITS, path, problems)
    shard = _bits(value, "shard_bits", 64 - minishard, path, problems)
    function = _choice(value.get("hash"), HASHES, f"{path}.hash", problems)
    index, data = (
        _choice(
            "raw" if value.get(name) is None else value[name],
            DATA_ENCODINGS,
            f"{path}.{name}",
            problems,
        )
        for name in ("minishard_index_encoding", "data_encoding")
    )
    return (
        None
        if len(problems.messages) > before
        else Sharding(preshift, minishard, shard, function, index, data)
    )


def _bits(entry: JsonObject, name: str, limit: int, path: str, problems: Problems) -> int:
    value = entry.get(name)
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value <= limit
        and value == int(value)
    ):
        return int(value)
    problems.add(f"{path}.{name}", f"a whole number from 0 to {limit}", value)
    return 0


def _choice(value: Any, known: tuple[str, ...], path: str, problems: Problems) -> str:
    if isinstance(value, str) and value.lower() in known:
        return value.lower()
    problems.add(path, " or ".join(f'"{name}"' for name in known), value)
    return ""


def format_sharding(sharding: Sharding) -> JsonObject:
    """Return the ``sharding`` object of a scale, with every field that any reader requires."""
    return {
        "@type": TYPE,
        "preshift_bits": sharding.preshift_bits,
        "hash": sharding.hash,
        "minishard_bits": sharding.minishard_bits,
        "shard_bits": sharding.shard_bits,
        "minishard_index_encoding": sharding.minishard_index_encoding,
        "data_encoding": sharding.data_encoding,
    }


def format_shard_index(starts: Column, ends: Column) -> bytes:
    return np.stack([starts, ends], axis=1).astype("<u8").tobytes()


def format_minishard_index(ids: Column, starts: Column, sizes: Column, encoding: str) -> bytes:
    # sharded.rst, "minishard index format": rows of identifiers, start offsets and sizes.
    # Identifiers and starts are deltas: an identifier from the previous one, a start from the end
    # of the previous chunk.
    table = np.empty((3, len(ids)), "<u8")
    table[0] = np.diff(ids, prepend=np.uint64(0))
    table[1] = starts
    table[1, 1:] -= starts[:-1] + sizes[:-1]
    table[2] = sizes
    return compress_gzip(table.tobytes()) if encoding == "gzip" else table.tobytes()


def parse_minishard_index(
    raw: bytes, source: str, offset: int, data_nbytes: int | None = None
) -> tuple[Column, Column, Column]:
    if len(raw) % MINISHARD_ENTRY_NBYTES:
        raise CorruptError(
            f"{source}: byte {offset}: a minishard index has a multiple of "
            f"{MINISHARD_ENTRY_NBYTES} bytes, found {len(raw)}"
        )
    table = np.frombuffer(raw, "<u8").reshape(3, -1).astype(np.uint64)
    ids, sizes = np.cumsum(table[0], dtype=np.uint64), table[2]
    # Unsigned sums wrap around at 2^64: a sum that does is smaller than the previous one, and the
    # comparison finds it.
    wrong = np.flatnonzero(ids[1:] <= ids[:-1])
    if wrong.size:
        n = int(wrong[0])
        raise CorruptError(
            f"{source}: byte {offset}: expected ascending chunk identifiers in a minishard index, "
            f"found {ids[n + 1]} after {ids[n]}"
        )
    bounds = np.cumsum(table[1:].T.ravel(), dtype=np.uint64)  # start 0, end 0, start 1, end 1, ...
    limit = np.uint64(_MAX_OFFSET if data_nbytes is None else max(0, data_nbytes))
    wrong = np.flatnonzero((bounds > limit) | (bounds < np.concatenate([bounds[:1], bounds[:-1]])))
    if wrong.size:
        n = int(wrong[0]) // 2
        where = (
            "outside the "
            f"{'file' if data_nbytes is None else f'{data_nbytes} bytes behind the shard index'}"
        )
        raise CorruptError(
            f"{source}: byte {offset}: chunk {ids[n]} of a minishard index, {sizes[n]} bytes, lies "
            f"{where}"
        )
    return ids, bounds[::2], sizes
