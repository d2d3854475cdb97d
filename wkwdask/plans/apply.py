"""How a volume is cut up to apply a function to it: regions, one task each, and in them bricks, one call of the function each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry import morton
from wkwdask.geometry.grid import cell_box, cell_range
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


@dataclass(frozen=True, slots=True)
class BrickPlan(RegionGrid):
    """Regions and bricks of one mag."""

    def region_range(self) -> tuple[range, range, range]:
        """Give the indices of the regions that touch the box, along x, y, z."""
        return cell_range(self.box, self.region_shape)

    def holds_whole(self, shard_shape: Vec3) -> bool:
        """Tell whether a region makes whole shards, one after the other, with their chunks in order: for that, bricks have the form of shards."""
        cubes = all(brick * shard_shape[0] == shard * self.brick_shape[0] for brick, shard in zip(self.brick_shape, shard_shape, strict=True))
        return cubes and RegionGrid.holds_whole(self, shard_shape)

    def touched_regions(self, part: BoundingBox) -> CellMap:
        """Tell which regions touch a part of the box, shape (x, y, z)."""
        found = cell_map(self.box, self.region_shape, str(self.box))
        touched = cell_range(part.intersection(self.box), self.region_shape)
        x, y, z = (slice(t.start - r.start, t.stop - r.start) if len(t) else slice(0, 0) for t, r in zip(touched, self.region_range(), strict=True))
        found[x, y, z] = True
        return found

    def bricks(self, region: Vec3) -> Iterator[Vec3]:
        """Go through the bricks of a region that touch the box, in Morton order."""
        x, y, z = (n // m for n, m in zip(self.region_shape, self.brick_shape, strict=True))
        x_range, y_range, z_range = cell_range(self.box, self.brick_shape)
        _, coordinates = morton.ordered_box((0, 0, 0), (x, y, z))
        for i, j, k in (coordinates + np.multiply(region, (x, y, z))).tolist():
            if i in x_range and j in y_range and k in z_range:
                yield i, j, k

    def brick_box(self, brick: Vec3) -> BoundingBox:
        """Give the voxels of a brick that lie in the box."""
        return cell_box(brick, self.brick_shape, self.box).intersection(self.box)


def plan_bricks(box: BoundingBox, tiling: Tiling, workers: int, brick_shape: Vec3 | None = None, region_shape: Vec3 | None = None) -> BrickPlan:
    """Plan how a function is applied.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> from wkwdask.plans.regions import Tiling
    >>> plan = plan_bricks(BoundingBox((0, 0, 0), (4096, 4096, 4096)), Tiling((32,) * 3, (1024,) * 3, 2), 2)
    >>> plan.region_shape, plan.brick_shape
    ((1024, 1024, 1024), (256, 256, 256))
    """
    if brick_shape is None:
        brick_shape = tiling.chunk_shape
        while math.prod(brick_shape) * 8 * tiling.voxel_nbytes <= BRICK_NBYTES:
            brick_shape = (brick_shape[0] * 2, brick_shape[1] * 2, brick_shape[2] * 2)
    elif any(n & (n - 1) or n % m for n, m in zip(brick_shape, tiling.chunk_shape, strict=True)):
        raise ValueError(f"chunks must be powers of two and multiples of the target's blocks of {tiling.chunk_shape} voxels, got {brick_shape}")
    if region_shape is None:
        region_shape = choose_region(box, (1, 1, 1), tiling, workers)
    grown = [max(n, m) for n, m in zip(region_shape, brick_shape, strict=True)]
    return BrickPlan(box, (grown[0], grown[1], grown[2]), brick_shape)
