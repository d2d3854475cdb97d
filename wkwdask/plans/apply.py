"""Plans that apply a function to a volume: one task per region, one call of the function per
brick."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.geometry.grid import cell_range, clipped_cell
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import divide, doubled, is_multiple, times
from wkwdask.plans.cells import cell_map
from wkwdask.plans.pyramid import choose_region
from wkwdask.plans.regions import RegionGrid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.cells import CellMap
    from wkwdask.plans.regions import Tiling


BRICK_NBYTES = 32 << 20
_LABEL_NBYTES = 4  # of one voxel


@dataclass(frozen=True, slots=True)
class BrickPlan(RegionGrid):
    """Regions and bricks of one mag."""

    in_order: bool = False
    """Whether bricks in Morton order have their chunks in the Morton order of a shard."""

    def region_range(self) -> tuple[range, range, range]:
        """Return the indices of the regions that touch the box, along x, y, z."""
        return cell_range(self.box, self.region_shape)

    def contains_whole_shards(self, shard_shape: Vec3) -> bool:
        """Return whether a region writes whole shards one after another, each with its chunks in
        Morton order."""
        return self.in_order and RegionGrid.contains_whole_shards(self, shard_shape)

    def touched_regions(self, part: BoundingBox) -> CellMap:
        """Mark the regions that touch a part of the box, shape (x, y, z)."""
        marks = cell_map(self.box, self.region_shape, str(self.box))
        touched = cell_range(part.intersection(self.box), self.region_shape)
        x, y, z = (
            slice(t.start - r.start, t.stop - r.start) if len(t) else slice(0, 0)
            for t, r in zip(touched, self.region_range(), strict=True)
        )
        marks[x, y, z] = True
        return marks

    def bricks(self, region: Vec3) -> Iterator[Vec3]:
        """Yield the bricks of a region that touch the box, in Morton order."""
        return self.cells_in(region, self.region_shape, self.brick_shape)

    def code_of(self, brick: Vec3) -> int:
        """Return the number of a brick, ascending with z, then y, then x."""
        x, y, z = cell_range(self.box, self.brick_shape)
        return ((brick[2] - z.start) * len(y) + brick[1] - y.start) * len(x) + brick[0] - x.start

    def brick_box(self, brick: Vec3) -> BoundingBox:
        """Return the voxels of a brick inside the box."""
        return clipped_cell(brick, self.brick_shape, self.box)


def plan_bricks(
    box: BoundingBox,
    tiling: Tiling,
    workers: int,
    brick_shape: Vec3 | None = None,
    region_shape: Vec3 | None = None,
) -> BrickPlan:
    """Plan the regions and bricks of a function; ``brick_shape`` is the box of one call if the user
    requests it.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> from wkwdask.plans.regions import Tiling
    >>> plan = plan_bricks(
    ...     BoundingBox((0, 0, 0), (4096, 4096, 4096)), Tiling((32,) * 3, (1024,) * 3, 2), 2
    ... )
    >>> plan.region_shape, plan.brick_shape
    ((1024, 1024, 1024), (256, 256, 256))
    """
    unit = tiling.unit_shape
    if brick_shape is None:
        brick_shape = _usual_brick(tiling)
    elif not is_multiple(brick_shape, tiling.chunk_shape):
        raise ValueError(
            f"chunks must be whole blocks of the target, multiples of {tiling.chunk_shape} voxels, "
            f"got {brick_shape}"
        )
    if region_shape is None:
        region_shape = choose_region(box, (1, 1, 1), tiling, workers)
        counts = vec3([max(1, n) for n in divide(region_shape, brick_shape)])
        region_shape = times(brick_shape, counts)
    edge = brick_shape[0] // unit[0]
    is_cube = edge > 0 and edge & (edge - 1) == 0 and brick_shape == times(unit, (edge,) * 3)
    in_order = is_cube or is_multiple(brick_shape, tiling.shard_shape)
    return BrickPlan(box, region_shape, brick_shape, in_order)


def plan_components(
    box: BoundingBox, tiling: Tiling, workers: int, region_shape: Vec3 | None = None
) -> BrickPlan:
    """Plan the labelling of connected components, which needs memory for labels beside the voxels.

    Bricks do not depend on the number of workers, because the ids of components depend on bricks.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> from wkwdask.plans.regions import Tiling
    >>> plan_components(
    ...     BoundingBox((0, 0, 0), (4096, 4096, 4096)), Tiling((32,) * 3, (1024,) * 3, 4), 2
    ... ).brick_shape
    (128, 128, 128)
    """
    tiling = replace(tiling, voxel_nbytes=tiling.voxel_nbytes + _LABEL_NBYTES)
    return plan_bricks(box, tiling, workers, None, region_shape)


def _usual_brick(tiling: Tiling) -> Vec3:
    shape = tiling.unit_shape
    while math.prod(shape) * 8 * tiling.voxel_nbytes <= BRICK_NBYTES:
        shape = doubled(shape)
    return shape
