"""One array of an OME-NGFF pyramid that is being built in a job's folder, in coordinates that count from its element 0."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.chunked_target import ShardableTarget
from wkwdask.formats.pictures.array_file import ArrayRef, ArrayVolume
from wkwdask.formats.pictures.slices import file_stamp
from wkwdask.formats.zarr.chunks import CHECKSUM_NBYTES, checksum, index_nbytes
from wkwdask.formats.zarr.documents import FILE_NAME, format_document
from wkwdask.formats.zarr.shard_writer import ZarrShardOutput
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.store import files
from wkwdask.store.new_files import NewFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.formats.zarr.chunks import ChunkEncoding
    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class ZarrTarget(ShardableTarget):
    """One array that is being built; small to pickle."""

    size: Vec3
    """Its voxels along x, y, z."""
    origin: Vec3
    """Absolute voxel of the mag that is element 0."""
    encoding: ChunkEncoding
    """How chunks are stored."""
    shard_cells: Vec3
    """Chunks of a shard, or of a group of chunks that one task writes, along x, y, z: powers of two."""
    is_sharded: bool
    """Whether these are one file."""
    zarr_format: int = 3
    """Version of Zarr, 3 or 2."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""
        return self.encoding.dtype

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.encoding.num_channels

    @property
    def box(self) -> BoundingBox:
        """Where data goes [voxels of the mag, counted from ``origin``]."""
        return BoundingBox((0, 0, 0), self.size, self.mag)

    @property
    def chunk_shape(self) -> Vec3:
        """A chunk along x, y, z [voxels]."""
        return self.encoding.chunk_shape

    @property
    def shard_shape(self) -> Vec3:
        """A shard, or a group of chunks, along x, y, z [voxels]."""
        x, y, z = (n * edge for n, edge in zip(self.shard_cells, self.chunk_shape, strict=True))
        return x, y, z

    @property
    def index_nbytes(self) -> int | None:
        """Bytes of the index of a shard; None where chunks are files of their own."""
        return index_nbytes(math.prod(self.shard_cells)) if self.is_sharded else None

    @property
    def documents(self) -> dict[str, bytes]:
        """The files that describe the array, by their names."""
        attributes = {"mag": list(self.mag.factors), "offset_vx": list(self.origin)}
        if self.zarr_format == 2:
            return {".zarray": format_document(self.encoding.document_v2(self.size)), ".zattrs": format_document(attributes)}
        return {FILE_NAME: format_document(self.encoding.document(self.size, self.shard_shape if self.is_sharded else None, attributes))}

    def as_volume(self) -> ArrayVolume:
        """Read what has been published so far, through zarr."""
        record = f"{self.folder}/{next(iter(self.documents))}"
        axes = "".join(self.encoding.axes)
        lengths = dict(zip("cxyz", (self.num_channels, *self.size), strict=True))
        chunks = dict(zip("cxyz", (self.num_channels, *self.chunk_shape), strict=True))
        ref = ArrayRef(
            "zarr", self.folder, "", tuple(lengths[n] for n in axes), self.dtype.newbyteorder("<").str, tuple(chunks[n] for n in axes), 0, file_stamp(record)
        )
        return ArrayVolume(ref, axes, (0, 0, 0), self.box)

    def codes(self, places: Sequence[Vec3]) -> npt.NDArray[np.uint64]:
        """Give the compressed Morton codes of chunks in their shard."""
        return compressed_morton.encode(np.array(places) % np.array(self.shard_cells), self.shard_cells)

    def encode_chunk(self, voxels: npt.NDArray[Any], cell: Vec3) -> bytes:
        """Encode one chunk (c, x, y, z)."""
        del cell
        return self.encoding.encode(voxels)

    def chunk_path(self, cell: Vec3) -> str:
        """Name what has a key: a chunk, or a shard."""
        first = "c/" if self.zarr_format == 3 else ""
        channel = "0/" if self.num_channels > 1 else ""
        return f"{self.folder}/{first}{channel}{cell[2]}/{cell[1]}/{cell[0]}"

    def shard_file(self, shard: Vec3) -> str:
        """Name a shard."""
        return self.chunk_path(shard)

    def open_shard(self, shard: Vec3) -> ZarrShardOutput:
        """Start a shard."""
        return ZarrShardOutput(self.shard_cells, lambda: self._new_file(self.shard_path(shard)))

    def _new_file(self, path: str) -> NewFile:
        files.make_folders_below(self.folder, os.path.dirname(path))
        return NewFile(path, self.parts_folder)

    def is_whole_shard(self, path: str, nbytes: int) -> bool:
        """Tell whether a shard is there, has its size, and an index that is not damaged."""
        tail = self.index_nbytes or 0
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size != nbytes or nbytes < tail:
                    return False
                file.seek(nbytes - tail)
                index = file.read(tail)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return len(index) == tail and checksum(index[:-CHECKSUM_NBYTES]) == index[-CHECKSUM_NBYTES:]
