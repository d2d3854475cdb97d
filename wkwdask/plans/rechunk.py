"""How a mag is cut into regions when it is stored anew with other files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wkwdask.geometry.grid import cell_range
from wkwdask.plans.regions import RegionGrid

if TYPE_CHECKING:
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3

_TASKS_PER_WORKER = 3
_LARGEST_REGION_NBYTES = 4 << 30
_SHARDS_PER_REGION = 512


def plan_splicing(
    box: BoundingBox, source_shard_shape: Vec3, shard_shape: Vec3, voxel_nbytes: int, workers: int, region_shape: Vec3 | None = None
) -> RegionGrid:
    """Choose the tasks that make whole shards of the shards of another volume.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> plan_splicing(BoundingBox((0, 0, 0), (4096, 4096, 4096)), (1024,) * 3, (256,) * 3, 1, 2).region_shape
    (1024, 1024, 1024)
    """
    if region_shape is None:
        region_shape = shard_shape
        while True:
            doubled = (region_shape[0] * 2, region_shape[1] * 2, region_shape[2] * 2)
            num_regions = math.prod(len(cells) for cells in cell_range(box, doubled))
            if (
                num_regions < _TASKS_PER_WORKER * workers
                or math.prod(doubled) * voxel_nbytes > _LARGEST_REGION_NBYTES
                or math.prod(doubled) > _SHARDS_PER_REGION * math.prod(shard_shape)
                or max(doubled) > max(*source_shard_shape, 512)
            ):
                break
            region_shape = doubled
    return RegionGrid(box, region_shape, shard_shape)
