"""One N5 dataset that is being built in a job's folder, in coordinates that count from its first voxel.

Blocks at the upper ends are cut off, as the specification has it, and those that are all zero are not stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.formats.block_files import Files
from wkwdask.formats.chunked_target import ChunkedTarget
from wkwdask.formats.n5.attribute_edits import format_attributes
from wkwdask.formats.n5.attributes import FILE_NAME
from wkwdask.formats.n5.block import encode_block
from wkwdask.formats.n5.volume import NAMING, N5Volume
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.plans.chunks import group_of_chunks
from wkwdask.store.store import FolderStore

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wkwdask.formats.n5.attributes import N5Dataset
    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class N5Target(ChunkedTarget):
    """One dataset that is being built; small to pickle."""

    dataset: N5Dataset
    """What is made, with all that its ``attributes.json`` is to say."""
    origin: Vec3
    """Absolute voxel of the mag at which its coordinates start; may be negative."""

    @property
    def axes(self) -> str:
        """A letter for each axis, x first."""
        return "xyzc"[: len(self.dataset.dimensions)]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""
        return self.dataset.dtype

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.dataset.dimensions[3] if len(self.dataset.dimensions) == 4 else 1

    @property
    def box(self) -> BoundingBox:
        """Where data goes [voxels of the mag, counted from ``origin``]."""
        return BoundingBox((0, 0, 0), self.dataset.dimensions[:3], self.mag)  # type: ignore[arg-type]

    @property
    def chunk_shape(self) -> Vec3:
        """A block along x, y, z [voxels]."""
        x, y, z = self.dataset.block_size[:3]
        return x, y, z

    @property
    def shard_shape(self) -> Vec3:
        """A group of blocks along x, y, z [voxels]."""
        grid = self.dataset.grid
        group = group_of_chunks((grid[0], grid[1], grid[2]), math.prod(self.chunk_shape) * self.voxel_nbytes)
        x, y, z = (n * edge for n, edge in zip(group, self.chunk_shape, strict=True))
        return x, y, z

    @property
    def documents(self) -> dict[str, bytes]:
        """``attributes.json``."""
        return {FILE_NAME: format_attributes(self.dataset.document).encode()}

    def as_volume(self) -> N5Volume:
        """Read what has been published so far."""
        return N5Volume(FolderStore(self.folder), "", self.dataset, self.axes, self.mag)

    def encode_chunk(self, voxels: npt.NDArray[Any], cell: Vec3) -> bytes:
        """Encode one block (c, x, y, z)."""
        values = voxels[0] if len(self.axes) == 3 else voxels.transpose(1, 2, 3, 0)
        return encode_block(values, self.dataset.compression, self.chunk_path(cell))

    def chunk_path(self, cell: Vec3) -> str:
        """Name the file of a block."""
        return f"{self.folder}/{Files('', (), self.axes, NAMING).name(cell)}"
