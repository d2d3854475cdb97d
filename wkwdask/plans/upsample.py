"""Plans that make a finer mag from a coarse one, or, with a factor of 1, store a mag again in other
chunks or files.

A task makes one region of the finer mag. A reading is the part of the source that it reads at once;
each reading makes several bricks::

    finer mag   | region                                        |
                | reading               | reading               |     all in Morton order; in memory:
                | brick | brick | brick | brick | brick | brick |     one reading and one brick
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import cell_range, clipped_cell
from wkwdask.geometry.vectors import ceil_divide, doubled, times
from wkwdask.plans.cells import SparseCells, needs_sparse, project_cells
from wkwdask.plans.pyramid import choose_region
from wkwdask.plans.regions import RegionGrid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.plans.cells import CellMap
    from wkwdask.plans.regions import Tiling

_BRICK_NBYTES = 8 << 20
_READING_NBYTES = 8 << 20
_LARGEST_READING_NBYTES = 128 << 20  # of a source with large chunks


@dataclass(frozen=True, slots=True)
class UpsamplePlan(RegionGrid):
    """Plan of a finer mag that is made from a coarse one."""

    reading_shape: Vec3
    """Shape of one reading, whole bricks [voxels of the finer mag]."""
    source_mag: Mag

    @property
    def factor(self) -> Vec3:
        """Voxels of the finer mag that one voxel of the source spans, along x, y, z."""
        return self.box.mag.step_to(self.source_mag)

    @property
    def source_cell_shape(self) -> Vec3:
        """Footprint of one region in the source [voxels of the source]; several regions may share
        one voxel."""
        return ceil_divide(self.region_shape, self.factor)

    def source_box_of(self, box: BoundingBox) -> BoundingBox:
        """Return the source voxels from which a part of the box is made."""
        return box.in_mag(self.source_mag)

    def occupied(self, source_cells: CellMap) -> CellMap:
        """Mark the regions over cells of the source with data."""
        if isinstance(source_cells, SparseCells) or needs_sparse(self.box, self.region_shape):
            cell = times(self.source_cell_shape, self.factor)
            return project_cells(
                source_cells,
                [cells.start for cells in cell_range(self.box, cell)],
                cell,
                self.box,
                self.region_shape,
            )
        for axis, regions in enumerate(cell_range(self.box, self.region_shape)):
            per_cell = self.source_cell_shape[axis] * self.factor[axis] // self.region_shape[axis]
            source_cells = np.take(
                source_cells,
                [region // per_cell - regions.start // per_cell for region in regions],
                axis=axis,
            )
        return source_cells

    def readings(self, region: Vec3) -> Iterator[Vec3]:
        """Yield the readings of a region that touch the box, in Morton order."""
        return self.cells_in(region, self.region_shape, self.reading_shape)

    def reading_box(self, reading: Vec3) -> BoundingBox:
        """Return the voxels that are made from a reading."""
        return clipped_cell(reading, self.reading_shape, self.box)

    def bricks(self, reading: Vec3) -> Iterator[Vec3]:
        """Yield the bricks of a reading that touch the box, in Morton order."""
        return self.cells_in(reading, self.reading_shape, self.brick_shape)

    def memory_nbytes(self, voxel_nbytes: int) -> int:
        """Return the memory of a task [bytes]: one reading of the source and one brick."""
        return voxel_nbytes * (
            math.prod(ceil_divide(self.reading_shape, self.factor)) + math.prod(self.brick_shape)
        )


def plan_upsampling(
    box: BoundingBox,
    source_mag: Mag,
    tiling: Tiling,
    workers: int,
    region_shape: Vec3 | None = None,
    source_chunk: Vec3 = (1, 1, 1),
) -> UpsamplePlan:
    """Plan a finer mag."""
    factor = box.mag.step_to(source_mag)
    if region_shape is None:
        region_shape = choose_region(box, (1, 1, 1), tiling, workers)
    brick = _grown(
        tiling.unit_shape,
        region_shape,
        lambda shape: math.prod(shape) * tiling.voxel_nbytes <= _BRICK_NBYTES,
    )

    def fits(shape: Vec3) -> bool:
        read = ceil_divide(shape, factor)
        # half a reading would not contain a source chunk
        is_small = any(edge < 2 * n for edge, n in zip(read, source_chunk, strict=True))
        return math.prod(read) * tiling.voxel_nbytes <= (
            _LARGEST_READING_NBYTES if is_small else _READING_NBYTES
        )

    reading = _grown(brick, region_shape, fits)
    return UpsamplePlan(box, region_shape, brick, reading, source_mag)


def _grown(shape: Vec3, limit: Vec3, fits: Callable[[Vec3], bool]) -> Vec3:
    """Double a shape along all axes while it fits, up to a limit, which is the shape times a power
    of two."""
    while shape != limit:
        if not fits(doubled(shape)):
            break
        shape = doubled(shape)
    return shape
