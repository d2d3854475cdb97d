"""Plans of imports from sources whose chunks are not cubes, for example whole sections. Regions and
readings contain whole source chunks if memory allows.

A reading is the part of the source that a task reads at once. For sections it is a slab, as wide
and high as a section and one block deep, so each section is decoded once::

    z   section 0    ==============================
        ...          ==============================   one reading, 32 sections:
        section 31   ==============================   a layer of blocks
        section 32   ==============================   the next reading
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import cell_range, clipped_cell
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import divide, is_multiple
from wkwdask.plans.pyramid import choose_region
from wkwdask.plans.regions import morton_order
from wkwdask.plans.upsample import UpsamplePlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.regions import Tiling

READING_NBYTES = 512 << 20
_BRICK_NBYTES = 8 << 20
_SMALL_READING_NBYTES = 16 << 20
_LARGEST_REGION_NBYTES = 1 << 30  # the most work that an interruption loses
_TASKS_PER_WORKER = 3
_WIDEST_READING_VX = 2048
_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class SlabPlan(UpsamplePlan):
    """Plan of a mag that is made from a source of the same mag with chunks of any shape."""

    shard_shape: Vec3
    """Shape of a file of the mag [voxels]."""
    in_order: bool
    """Whether bricks come file by file, and in Morton order inside each file."""

    def contains_whole_shards(self, shard_shape: Vec3) -> bool:
        """Return whether a region writes whole files in order. Otherwise it writes parts, even if
        it contains whole files."""
        del shard_shape
        return self.in_order

    def cells_in(self, outer: Vec3, outer_shape: Vec3, shape: Vec3) -> Iterator[Vec3]:
        """Yield the cells of one shape in a cell of a larger one, file by file, and in Morton order
        inside each."""
        ranges = cell_range(clipped_cell(outer, outer_shape, self.box), shape)
        cells = np.stack(
            np.meshgrid(*(np.arange(r.start, r.stop) for r in ranges), indexing="ij"), axis=-1
        ).reshape(-1, 3)
        cells = cells[morton_order(cells)]
        files = cells // np.maximum(1, np.floor_divide(self.shard_shape, shape))
        for index in np.lexsort(files.T):
            x, y, z = cells[index].tolist()
            yield x, y, z


def plan_slabs(
    box: BoundingBox,
    source_chunks: Sequence[Vec3],
    tiling: Tiling,
    workers: int,
    shapes: tuple[Vec3, Vec3] | None = None,
) -> SlabPlan:
    """Plan a mag from a source with chunks of any shape.

    ``source_chunks`` are shapes that the source decodes at once, largest first; the first one that
    fits into memory is kept whole. ``shapes`` are the region and the reading, if they are given.

    Examples
    --------
    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> from wkwdask.plans.regions import Tiling
    >>> plan = plan_slabs(
    ...     BoundingBox((0, 0, 0), (5000, 3000, 200)),
    ...     [(5000, 3000, 1)],
    ...     Tiling((32,) * 3, (1024,) * 3, 1),
    ...     4,
    ... )
    >>> plan.region_shape, plan.reading_shape
    ((8192, 4096, 32), (8192, 4096, 32))
    """
    unit, shard_shape, voxel_nbytes = tiling.unit_shape, tiling.shard_shape, tiling.voxel_nbytes
    if shapes is None:
        fitting = (
            shape
            for chunk in source_chunks
            if _nbytes(box, shape := _enclosing(box, chunk, unit), voxel_nbytes) <= READING_NBYTES
        )
        whole = next(fitting, None) or _enclosing(box, source_chunks[-1], unit)
        shapes = _region(box, whole, tiling, workers), _reading(box, whole, unit, voxel_nbytes)
    region, reading = shapes
    is_cube = len(set(divide(reading, unit))) == 1
    in_order = is_multiple(region, shard_shape) and (is_cube or is_multiple(reading, shard_shape))
    return SlabPlan(
        box, region, _brick(reading, tiling, in_order), reading, box.mag, shard_shape, in_order
    )


def _enclosing(box: BoundingBox, source_chunk: Vec3, unit: Vec3) -> Vec3:
    """Return the smallest shape of units of the target that encloses a source chunk; along an axis
    that the source chunk fills, the whole box."""
    shape = list(unit)
    for axis in range(3):
        fills = source_chunk[axis] >= box.size[axis]
        while (
            len(_cells_along(box, axis, shape[axis])) > 1
            if fills
            else shape[axis] < source_chunk[axis]
        ):
            shape[axis] *= 2
    return vec3(shape)


def _reading(box: BoundingBox, whole: Vec3, unit: Vec3, voxel_nbytes: int) -> Vec3:
    """Choose the shape of a reading: whole source chunks, halved to fit into memory, or doubled if
    they are tiny."""
    reading = list(whole)
    for axis in (1, 0, 2):  # y first: a decoder can skip rows of a section at the least cost
        while _nbytes(box, reading, voxel_nbytes) > READING_NBYTES and reading[axis] > unit[axis]:
            reading[axis] //= 2
    while (
        8 * math.prod(reading) * voxel_nbytes <= _SMALL_READING_NBYTES
        and max(reading) <= _WIDEST_READING_VX
    ):
        reading = [2 * n for n in reading]
    return vec3(reading)


def _region(box: BoundingBox, whole: Vec3, tiling: Tiling, workers: int) -> Vec3:
    """Choose the shape of a task: whole files if that keeps all workers busy, and whole source
    chunks in any case."""
    least = [
        max(a, b)
        for a, b in zip(
            whole, _reading(box, whole, tiling.unit_shape, tiling.voxel_nbytes), strict=True
        )
    ]
    usual = choose_region(box, (1, 1, 1), tiling, workers)
    region = [max(a, b) for a, b in zip(usual, least, strict=True)]
    while True:
        num_regions = math.prod(len(_cells_along(box, axis, region[axis])) for axis in range(3))
        is_busy = num_regions >= _TASKS_PER_WORKER * workers or workers == 1
        larger = [axis for axis in (2, 1, 0) if region[axis] > least[axis]]
        if not larger or (
            is_busy and _nbytes(box, region, tiling.voxel_nbytes) <= _LARGEST_REGION_NBYTES
        ):
            return vec3(region)
        region[max(larger, key=lambda n: region[n] // least[n])] //= 2


def _brick(reading: Vec3, tiling: Tiling, is_cube: bool) -> Vec3:
    """Choose the shape of a brick: a cube of units if whole files are written in order, otherwise
    any box of units inside a file."""
    brick = list(tiling.unit_shape)
    for axes in [(0, 1, 2)] * _DOUBLINGS if is_cube else [(0,), (1,), (2,)] * _DOUBLINGS:
        grown = [2 * n if axis in axes else n for axis, n in enumerate(brick)]
        if math.prod(grown) * tiling.voxel_nbytes <= _BRICK_NBYTES and all(
            a <= min(b, c) for a, b, c in zip(grown, reading, tiling.shard_shape, strict=True)
        ):
            brick = grown
    return vec3(brick)


def _cells_along(box: BoundingBox, axis: int, length: int) -> range:
    """Return the cells of a length that a box touches along an axis."""
    return range(box.topleft[axis] // length, -(-box.bottomright[axis] // length))


def _nbytes(box: BoundingBox, shape: Sequence[int], voxel_nbytes: int) -> int:
    """Return the largest number of bytes of a cell inside a box."""
    return math.prod(min(n, m) for n, m in zip(shape, box.size, strict=True)) * voxel_nbytes
