"""How a volume is cut up to label it: a worker holds a brick several times, as voxels, labels, runs and ids."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wkwdask.plans.apply import BrickPlan, plan_bricks

if TYPE_CHECKING:
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3

BRICK_NBYTES = 32 << 20
_LABEL_NBYTES = 4


def plan_components(box: BoundingBox, chunk_shape: Vec3, shard_shape: Vec3, voxel_nbytes: int, workers: int, region_shape: Vec3 | None = None) -> BrickPlan:
    """Plan how a volume is labelled. Bricks, and so ids, do not depend on the number of workers.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> plan_components(BoundingBox((0, 0, 0), (4096, 4096, 4096)), (32,) * 3, (1024,) * 3, 4, 2).brick_shape
    (128, 128, 128)
    """
    brick = chunk_shape
    while math.prod(brick) * 8 * (voxel_nbytes + _LABEL_NBYTES) <= BRICK_NBYTES:
        brick = (brick[0] * 2, brick[1] * 2, brick[2] * 2)
    return plan_bricks(box, chunk_shape, shard_shape, voxel_nbytes + _LABEL_NBYTES, workers, brick, region_shape)
