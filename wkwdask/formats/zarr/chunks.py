"""Chunks of a Zarr array as they are stored: plain numbers in C order, compressed; and the index at the end of a shard. Opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.zarr.documents import array_document, axis_names, outer_shape, raw_codecs
from wkwdask.model.extras import need

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3

INDEX_ENTRY_NBYTES = 16
CHECKSUM_NBYTES = 4
ABSENT = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


@dataclass(frozen=True, slots=True)
class ChunkEncoding:
    """How the chunks of an array are stored."""

    dtype: np.dtype[Any]
    """Type of one channel."""
    num_channels: int
    """Values per voxel; all channels are in one chunk."""
    chunk_shape: Vec3
    """A chunk along x, y, z [voxels]."""
    compression: str
    """One of those of :class:`ZarrOptions`."""
    level: int
    """Its level."""

    def encode(self, voxels: npt.NDArray[Any]) -> bytes:
        """Encode a chunk."""
        whole = np.zeros((self.num_channels, *reversed(self.chunk_shape)), self.dtype.newbyteorder("<"))
        inside = whole[:, : voxels.shape[3], : voxels.shape[2], : voxels.shape[1]]
        np.copyto(inside, voxels.transpose(0, 3, 2, 1), casting="no" if voxels.dtype.isnative else "equiv")
        compressor = _compressor(self.compression, self.level)
        return whole.tobytes() if compressor is None else bytes(compressor.encode(whole.reshape(-1)))

    @property
    def codecs(self) -> list[dict[str, Any]]:
        """Write it as version 3 does."""
        plain = raw_codecs(self.dtype)
        if self.compression == "blosc":
            options = {"typesize": self.dtype.itemsize, "cname": "zstd", "clevel": self.level, "shuffle": "shuffle", "blocksize": 0}
            return [*plain, {"name": "blosc", "configuration": options}]
        if self.compression == "zstd":
            return [*plain, {"name": "zstd", "configuration": {"level": self.level, "checksum": False}}]
        return [*plain, {"name": "gzip", "configuration": {"level": self.level}}] if self.compression == "gzip" else plain

    def document(self, shape: Sequence[int], shard_shape: Vec3 | None, attributes: dict[str, Any]) -> dict[str, Any]:
        """Write the ``zarr.json`` of an array; without ``shard_shape`` each chunk is a file."""
        codecs, outer = self.codecs, self.chunk_shape
        if shard_shape is not None:
            index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
            inner = {"chunk_shape": outer_shape(self.num_channels, outer), "codecs": codecs, "index_codecs": index, "index_location": "end"}
            codecs, outer = [{"name": "sharding_indexed", "configuration": inner}], shard_shape
        return array_document(shape, self.num_channels, self.dtype, outer, codecs, attributes)

    def document_v2(self, shape: Sequence[int]) -> dict[str, Any]:
        """Write the ``.zarray`` of an array of version 2."""
        compressor = _compressor(self.compression, self.level)
        config = None if compressor is None else {name: value for name, value in compressor.get_config().items() if name != "checksum"}  # for tensorstore
        return {
            "zarr_format": 2, "shape": outer_shape(self.num_channels, shape), "chunks": outer_shape(self.num_channels, self.chunk_shape),
            "dtype": self.dtype.newbyteorder("<").str, "compressor": config,
            "fill_value": 0.0 if self.dtype.kind == "f" else 0, "order": "C", "filters": None, "dimension_separator": "/",
        }  # fmt: skip

    @property
    def axes(self) -> list[str]:
        """The axes of the array."""
        return axis_names(self.num_channels)


@lru_cache(maxsize=16)
def _compressor(compression: str, level: int) -> Any:
    """Give the compressor, None for raw numbers."""
    if compression == "raw":
        return None
    codecs = need("numcodecs", f"compression {compression!r} of Zarr chunks", "zarr")
    if compression == "blosc":
        return codecs.Blosc("zstd", level, codecs.Blosc.SHUFFLE)
    return codecs.Zstd(level) if compression == "zstd" else codecs.GZip(level)


def index_nbytes(num_chunks: int) -> int:
    """Give the length of the index of a shard, with its checksum."""
    return num_chunks * INDEX_ENTRY_NBYTES + CHECKSUM_NBYTES


def format_index(places: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], num_chunks: int) -> bytes:
    """Write the index of a shard."""
    table = np.full((num_chunks, 2), ABSENT, "<u8")
    table[places, 0], table[places, 1] = offsets, sizes
    data = table.tobytes()
    return data + checksum(data)


def checksum(data: bytes) -> bytes:
    """Give the CRC-32C of some bytes, as the codec ``crc32c`` writes it."""
    return int(_crc32c()(data)).to_bytes(CHECKSUM_NBYTES, "little")


@cache
def _crc32c() -> Any:
    """Find a library; which one comes with zarr depends on its version."""
    try:
        return need("google_crc32c", "the index of a Zarr shard", "zarr").value
    except ModuleNotFoundError:
        return need("crc32c", "the index of a Zarr shard", "zarr").crc32c
