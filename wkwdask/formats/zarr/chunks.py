"""How the chunks of a new Zarr array are stored: plain numbers in C order, compressed. Opens nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from wkwdask.formats.zarr.array import zarr_array
from wkwdask.formats.zarr.documents import FILE_NAME, array_document, axis_names, format_document, outer_shape, raw_codecs
from wkwdask.model.extras import need
from wkwdask.model.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.store import Store


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
    shard_cells: Vec3 = (1, 1, 1)
    """Chunks of a shard, or of a group of chunks that one task writes, along x, y, z: powers of two."""
    is_sharded: bool = False
    """Whether these are one file."""
    version: int = 3
    """Version of Zarr, 3 or 2."""

    @property
    def shard_shape(self) -> Vec3:
        """A shard, or a group of chunks, along x, y, z [voxels]."""
        x, y, z = (n * edge for n, edge in zip(self.shard_cells, self.chunk_shape, strict=True))
        return x, y, z

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


def zarr_placement(store: Store, parts: Store, encoding: ChunkEncoding, size: Vec3, origin: Vec3, mag: Mag) -> Placement:
    """Describe an array that is written, whose element 0 is at an absolute voxel of the mag."""
    attributes = {"mag": list(mag.factors), "offset_vx": list(origin)}
    if encoding.version == 2:
        name, document = ".zarray", encoding.document_v2(size)
        documents: tuple[tuple[str, bytes], ...] = ((name, format_document(document)), (".zattrs", format_document(attributes)))
    else:
        name, document = FILE_NAME, encoding.document(size, encoding.shard_shape if encoding.is_sharded else None, attributes)
        documents = ((name, format_document(document)),)
    array = zarr_array(store, name, document, "".join(encoding.axes), is_new=True)
    array = replace(array, mag=mag, grid=replace(array.grid, unit=encoding.shard_shape, origin=origin))
    return Placement(array, parts, documents)
