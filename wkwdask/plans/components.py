"""How a volume is cut up to label it: a worker holds a brick several times, as voxels, labels, runs and ids."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from wkwdask.plans.apply import BrickPlan, plan_bricks

if TYPE_CHECKING:
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.regions import Tiling

BRICK_NBYTES = 32 << 20
_LABEL_NBYTES = 4


def plan_components(box: BoundingBox, tiling: Tiling, workers: int, region_shape: Vec3 | None = None) -> BrickPlan:
    """Plan how a volume is labelled. Bricks, and so ids, do not depend on the number of workers.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> from wkwdask.plans.regions import Tiling
    >>> plan_components(BoundingBox((0, 0, 0), (4096, 4096, 4096)), Tiling((32,) * 3, (1024,) * 3, 4), 2).brick_shape
    (128, 128, 128)
    """
    tiling = replace(tiling, voxel_nbytes=tiling.voxel_nbytes + _LABEL_NBYTES)
    brick = tiling.chunk_shape
    while math.prod(brick) * 8 * tiling.voxel_nbytes <= BRICK_NBYTES:
        brick = (brick[0] * 2, brick[1] * 2, brick[2] * 2)
    return plan_bricks(box, tiling, workers, brick, region_shape)
