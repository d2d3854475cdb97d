"""Plans that apply a function to a volume: one task per region, one call of the function per
brick."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.geometry.grid import cell_box, cell_range
from wkwdask.geometry.vectors import doubled
from wkwdask.plans.cells import cell_map
from wkwdask.plans.chunks import holds_power_of_two
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

    def region_range(self) -> tuple[range, range, range]:
        """Return the indices of the regions that touch the box, along x, y, z."""
        return cell_range(self.box, self.region_shape)

    def contains_whole_shards(self, shard_shape: Vec3) -> bool:
        """Return whether a region writes whole shards one after another, each with its chunks in
        Morton order."""
        # Bricks in Morton order have their chunks in the Morton order of a shard only if they have
        # the proportions of the shard.
        is_similar = all(
            brick * shard_shape[0] == shard * self.brick_shape[0]
            for brick, shard in zip(self.brick_shape, shard_shape, strict=True)
        )
        return is_similar and RegionGrid.contains_whole_shards(self, shard_shape)

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

    def brick_box(self, brick: Vec3) -> BoundingBox:
        """Return the voxels of a brick inside the box."""
        return cell_box(brick, self.brick_shape, self.box).intersection(self.box)


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
    if brick_shape is None:
        brick_shape = _usual_brick(tiling)
    elif not holds_power_of_two(brick_shape, tiling.chunk_shape):
        raise ValueError(
            f"chunks must be the target's blocks of {tiling.chunk_shape} voxels times powers of "
            f"two, got {brick_shape}"
        )
    if region_shape is None:
        region_shape = choose_region(box, (1, 1, 1), tiling, workers)
    grown = [max(n, m) for n, m in zip(region_shape, brick_shape, strict=True)]
    return BrickPlan(box, (grown[0], grown[1], grown[2]), brick_shape)


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
    shape = tiling.chunk_shape
    while math.prod(shape) * 8 * tiling.voxel_nbytes <= BRICK_NBYTES:
        shape = doubled(shape)
    return shape
