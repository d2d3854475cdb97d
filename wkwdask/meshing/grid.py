"""Cells of a volume, whose surfaces are made one by one.

::

    voxel       -1   0   1   2   3   4   5   6        -1 and 6 pad the labels with zeros
                 o   o   o   o | o   o   o   o
    cell of 4    |_______0_______|_____1_____|        planes pass through the centres of voxels
    lod 1        |_____________0_____________|        joins eight cells to one

Neighbouring cells share the layer of voxels at the plane between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.formats.precomputed.meshes import LARGEST
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.vectors import ceil_divide, minus, plus
from wkwdask.meshing.surface import UNIT

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.meshing.surface import Bounds, Surface
    from wkwdask.model.levels import Lengths

_MOST_VOXELS = (1 << 31) // UNIT - 1
"""Longest edge of a volume whose vertices have 32 bits."""


@dataclass(frozen=True, slots=True)
class CellGrid:
    """Cells of a box of labels. Positions count from the centre of the voxel before its first."""

    box: BoundingBox
    """Labels that get surfaces, in absolute voxels."""
    edge: int
    """Edge of a cell [voxels]."""
    lengths_nm: Lengths
    """Edge lengths of a voxel [nm]."""
    is_closed: bool
    """Whether surfaces are closed at the border of the box."""

    def __post_init__(self) -> None:
        if max(self.box.size) > _MOST_VOXELS:
            raise ValueError(f"meshes of at most {_MOST_VOXELS} voxels per axis, got {self.box}")

    @property
    def origin(self) -> Vec3:
        """Absolute voxel whose centre is the origin."""
        return minus(self.box.topleft, (1, 1, 1))

    @property
    def origin_nm(self) -> tuple[float, ...]:
        """Position of the origin [nm]."""
        pairs = zip(self.origin, self.lengths_nm, strict=True)
        return tuple((n + 0.5) * length for n, length in pairs)

    @property
    def counts(self) -> Vec3:
        """Cells along x, y, z."""
        return ceil_divide(plus(self.box.size, (int(self.is_closed),) * 3), (self.edge,) * 3)

    @property
    def num_levels(self) -> int:
        """Number of levels of detail until all cells are one."""
        return (max(self.counts) - 1).bit_length() + 1

    def voxels(self, cell: Vec3) -> BoundingBox:
        """Return the voxels of a cell with the layer that it shares with the next one, and with
        those that pad the labels."""
        low = plus(self.origin, self._corner(cell))
        pad = (int(self.is_closed),) * 3
        reach = BoundingBox.from_corners(
            minus(self.box.topleft, pad), plus(self.box.bottomright, pad), self.box.mag
        )
        return BoundingBox(low, (self.edge + 1,) * 3, self.box.mag).intersection(reach)

    def own_voxels(self, cell: Vec3) -> BoundingBox:
        """Return the labels of a cell that no other cell has."""
        low = plus(self.origin, plus(self._corner(cell), (self._skipped,) * 3))
        return BoundingBox(low, (self.edge,) * 3, self.box.mag).intersection(self.box)

    def own_volumes(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of these labels of cells, shape (n, 3)."""
        ends = [
            np.clip((cells + n) * self.edge + self._skipped, 1, np.array(self.box.size) + 1)
            for n in (0, 1)
        ]
        return np.asarray(np.prod(ends[1] - ends[0], axis=1))

    @property
    def _skipped(self) -> int:
        """Layers at the lower planes of a cell that belong to the cell before. An open grid may end
        at the last labels, which then belong to the cell below this plane."""
        return int(not self.is_closed)

    def _corner(self, cell: Vec3) -> Vec3:
        x, y, z = (n * self.edge for n in cell)
        return x, y, z

    def quantised(self, surface: Surface, cell: Vec3, lod: int) -> npt.NDArray[np.uint32]:
        """Return the positions of vertices in their cell, from 0 to ``LARGEST``."""
        # The decoder of Neuroglancer cuts a cell at exactly half of the range, which a plane
        # between two cells of the level below must become: 32767.5 is rounded up.
        extent = self.edge * UNIT << lod
        positions = (surface.vertices / extent - np.array(cell)) * LARGEST
        return np.asarray(np.floor(positions + 0.5).clip(0, LARGEST), np.uint32)

    def bounds(self, cell: Vec3, lod: int) -> Bounds:
        """Return the lowest and the highest position of a vertex inside a cell, not on its
        planes."""
        low = np.array(cell, np.int64) * (self.edge * UNIT << lod)
        high = low + (self.edge * UNIT << lod) - 1
        return (low + 1).astype(np.int32), high.clip(max=np.iinfo(np.int32).max).astype(np.int32)
