"""Plans of pyramids: passes, regions and bricks.

A pass reads one mag once and makes the next few coarser mags from it. Its tasks are regions: equal,
aligned boxes of the first coarser mag whose footprints in all mags of the pass are whole chunks. A
task reads its region brick by brick in Morton order, and holds a few bricks in memory::

    mag 1    |  source region of a task      |     read once, in source bricks
    mag 2    |  region                       |     for example 512 voxels, in chunks of 32
    mag 4    |  half as long |                     whole chunks, as in mag 8, 16 and 32
    mag 64                                         less than a chunk: a second pass reads mag 32
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING

from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import BoundingBox, counted_from
from wkwdask.geometry.grid import cell_box, cell_range, clipped_cell
from wkwdask.geometry.vectors import divide, is_multiple, minus, times
from wkwdask.plans.regions import RegionGrid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.plans.cells import CellMap
    from wkwdask.plans.regions import Tiling

_REGION_VX = 512  # edge of a region in the first coarser mag: seconds of work
_SMALLEST_REGION_VX = 128
# smaller tasks are so short that splitting them further helps only idle workers
_SMALL_TASK_NBYTES = 128 << 20
_LARGEST_TASK_NBYTES = 8 << 30  # about a minute of work, which a lost worker costs at most
_BRICK_SOURCE_NBYTES = 32 << 20
_TASKS_PER_WORKER = 3


@dataclass(frozen=True, slots=True)
class Level(RegionGrid):
    """One mag of a pass."""

    factor: Vec3
    """Voxels of the previous mag that one voxel spans, along x, y, z."""
    in_order: bool
    """Whether bricks come in Morton order, the order of chunks in a shard, so that each brick is
    appended to its shard."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Mags that are made from one reading of their source."""

    source_box: BoundingBox
    """Extent of the source [voxels of its mag]."""
    source_brick_shape: Vec3
    """Shape of one read [voxels of the source]: the footprint of a brick of the first level, or a
    part of it."""
    levels: tuple[Level, ...]
    """Mags that are made, finest first."""
    source_shift: Vec3 = (0, 0, 0)
    """Offset added to the source voxels before windows are laid over them, for mags whose chunk
    grids start at different voxels."""

    @property
    def source_region_shape(self) -> Vec3:
        """Footprint of one task in the source [voxels of the source]."""
        return times(self.levels[0].region_shape, self.levels[0].factor)

    @property
    def source_bricks_per_brick(self) -> int:
        """Source bricks that make one brick of the first level."""
        level = self.levels[0]
        return math.prod(times(level.brick_shape, level.factor)) // math.prod(
            self.source_brick_shape
        )

    def source_region(self, region: Vec3) -> BoundingBox:
        """Return the source voxels that a task reads."""
        return clipped_cell(region, self.source_region_shape, self.source_box)

    def regions(self, occupied: CellMap) -> Iterator[Vec3]:
        """Yield the tasks in Morton order, which completes the files of all mags one after
        another."""
        return self.levels[0].regions(occupied)

    def bricks(self, region: Vec3) -> Iterator[Vec3]:
        """Yield the source bricks of a region that touch the source, in the Morton order of the
        bricks of the first level."""
        level = self.levels[0]
        box = cell_box(region, level.region_shape, level.box)
        low = divide(box.topleft, level.brick_shape)
        counts = divide(level.region_shape, level.brick_shape)
        per_brick = divide(times(level.brick_shape, level.factor), self.source_brick_shape)
        inside = cell_range(self.source_box, self.source_brick_shape)
        _, coordinates = morton.ordered_box((0, 0, 0), counts)
        for x, y, z in ((coordinates + low) * per_brick).tolist():
            for dz, dy, dx in product(*(range(n) for n in reversed(per_brick))):
                if x + dx in inside[0] and y + dy in inside[1] and z + dz in inside[2]:
                    yield x + dx, y + dy, z + dz

    def num_parts(self, level: int, index: Vec3) -> int:
        """Count the parts of a brick: the bricks of the finer mag, inside its box, that it
        contains."""
        grid = self.levels[level]
        finer_box, finer_shape = (
            (self.levels[level - 1].box, self.levels[level - 1].brick_shape)
            if level
            else (self.source_box, self.source_brick_shape)
        )
        footprint = clipped_cell(index, times(grid.brick_shape, grid.factor), finer_box)
        x, y, z = cell_range(footprint, finer_shape)
        return len(x) * len(y) * len(z)

    def parent(self, level: int, finer: Vec3) -> Vec3:
        """Return the brick of a level that contains a brick of the finer mag."""
        grid = self.levels[level]
        shape = self.levels[level - 1].brick_shape if level else self.source_brick_shape
        return divide(times(finer, shape), times(grid.brick_shape, grid.factor))

    def completions(self, region: Vec3) -> Iterator[tuple[Vec3, list[tuple[int, Vec3]]]]:
        """Yield the source bricks of a region, each with the level and index of the bricks that it
        completes if they are read in this order."""
        missing: dict[tuple[int, Vec3], int] = {}
        for source_brick in self.bricks(region):
            completed: list[tuple[int, Vec3]] = []
            index = source_brick
            for level in range(len(self.levels)):
                index = self.parent(level, index)
                num_missing = missing.pop((level, index), None) or self.num_parts(level, index)
                if num_missing > 1:
                    missing[level, index] = num_missing - 1
                    break
                completed.append((level, index))
            yield source_brick, completed

    def writes_whole_shards(self, level: int, shard_shape: Vec3) -> bool:
        """Return whether a task writes whole shards of a level, because the region contains all of
        them that is in the box, and their chunks come in order."""
        grid = self.levels[level]
        return (grid.in_order or is_multiple(grid.brick_shape, shard_shape)) and (
            grid.contains_whole_shards(shard_shape) or grid.has_one_region_per_shard(shard_shape)
        )

    def memory_nbytes(self, voxel_nbytes: int) -> int:
        """Return the memory of all bricks of a task [bytes]: one of the source, and for each mag
        one pending and one cut at the border."""
        return voxel_nbytes * (
            math.prod(self.source_brick_shape)
            + 2 * sum(math.prod(level.brick_shape) for level in self.levels)
        )


def step_factors(finest: Mag, mags: Sequence[Mag]) -> list[Vec3]:
    """Return the factor of each step of a ladder of mags."""
    return [before.step_to(mag) for before, mag in pairwise([finest, *mags])]


def plan_passes(
    source_box: BoundingBox,
    mags: Sequence[Mag],
    tilings: Sequence[Tiling],
    workers: int,
    region_shapes: Sequence[Vec3] | None = None,
) -> list[Pass]:
    """Split a ladder into passes. A pass makes all mags in which its regions are whole chunks; the
    next pass reads the last of these mags."""
    passes: list[Pass] = []
    done = 0
    while done < len(mags):
        factors = step_factors(source_box.mag, mags[done:])
        first_box = source_box.in_mag(mags[done])
        tiling = tilings[done]
        region_shape = (
            choose_region(first_box, factors[0], tiling, workers)
            if region_shapes is None
            else region_shapes[len(passes)]
        )
        passes.append(
            plan_pass(source_box, mags[done:], tiling.unit_shape, tiling.voxel_nbytes, region_shape)
        )
        done += len(passes[-1].levels)
        source_box = passes[-1].levels[-1].box
    return passes


def plan_offset_passes(
    source_box: BoundingBox,
    mags: Sequence[Mag],
    origins: Sequence[Vec3],
    tilings: Sequence[Tiling],
    workers: int,
    region_shapes: Sequence[Vec3] | None = None,
) -> list[Pass]:
    """Split a ladder into passes if the chunk grid of each mag starts at an ``origin`` in its own
    voxels; the first origin is that of the source.

    A pass ends before a mag whose origin is not exactly that of the mag before it: their chunk
    grids do not nest.
    """
    # Along one axis, with factor 2. The first two grids nest: one region is whole chunks in both.
    # The third does not, and starts a new pass.
    #
    #   mag 2, origin 4     4 5 6 7|8 9 ...
    #   mag 4, origin 2      2   3  |  4 ...      4 = 2 * 2
    #   mag 8, origin 0   0    |   1     ...      2 != 0 * 2
    passes: list[Pass] = []
    first = 0
    while first < len(mags):
        finer = source_box.mag if first == 0 else mags[first - 1]
        last = first + 1
        while last < len(mags) and origins[last] == times(
            origins[last + 1], mags[last - 1].step_to(mags[last])
        ):
            last += 1
        frame = times(origins[first + 1], finer.step_to(mags[first]))
        box = counted_from(source_box.in_mag(finer), frame)
        shapes = None if region_shapes is None else region_shapes[len(passes) :]
        group = plan_passes(box, mags[first:last], tilings[first:last], workers, shapes)
        passes += [replace(group[0], source_shift=minus(origins[first], frame)), *group[1:]]
        first = last
    return passes


def choose_region(box: BoundingBox, factor: Vec3, tiling: Tiling, workers: int) -> Vec3:
    """Choose the region of a pass: a shard of the first mag, or less if workers would be idle."""
    # The region is halved until there are enough tasks for all workers, or the smallest useful size
    # is reached, and until no task takes too long.
    unit = tiling.unit_shape
    usual = max(2, _REGION_VX // max(unit), *divide(tiling.shard_shape, unit))
    # bricks are powers of two of units, and regions hold whole bricks
    edge = 1 << usual.bit_length() - 1
    while edge > 2:
        shape = _cube(edge, unit)
        num_regions = math.prod(len(cells) for cells in cell_range(box, shape))
        nbytes = math.prod(shape) * math.prod(factor) * tiling.voxel_nbytes
        is_smallest = edge * max(unit) <= _SMALLEST_REGION_VX
        is_busy = (
            is_smallest
            or workers == 1
            or num_regions >= _TASKS_PER_WORKER * workers
            or (num_regions >= workers and nbytes <= _SMALL_TASK_NBYTES)
        )
        if is_busy and nbytes <= _LARGEST_TASK_NBYTES:
            break
        edge //= 2
    return _cube(edge, unit)


def plan_pass(
    source_box: BoundingBox,
    mags: Sequence[Mag],
    unit: Vec3,
    voxel_nbytes: int,
    region_shape: Vec3,
) -> Pass:
    """Plan one pass: the mags that a region makes, and their bricks; ``unit`` is that of
    :class:`wkwdask.plans.regions.Tiling`, or a chunk."""
    factors = step_factors(source_box.mag, mags)
    steps = [(factors[0], region_shape)]
    for factor in factors[1:]:  # until a region would not be whole units
        if not is_multiple(steps[-1][1], times(factor, unit)):
            break
        steps.append((factor, divide(steps[-1][1], factor)))
    smallest_brick = _largest_factor([factor for factor, _ in steps[1:]])
    brick = _brick_shape(unit, factors[0], voxel_nbytes, region_shape, smallest_brick)
    levels: list[Level] = []
    box = source_box
    for mag, (factor, shape) in zip(mags, steps, strict=False):
        box = box.in_mag(mag)
        # With factors 2-2-2, 8 bricks in Morton order make the next coarser brick, so coarser
        # bricks come in order too. Other factors break the order for this and all coarser mags.
        in_order = not levels or (levels[-1].in_order and factor == (2, 2, 2))
        levels.append(Level(box, shape, _common(brick, shape), factor, in_order))
    return Pass(source_box, _source_brick_shape(levels[0], voxel_nbytes), tuple(levels))


def _brick_shape(
    unit: Vec3, factor: Vec3, voxel_nbytes: int, region_shape: Vec3, smallest: Vec3
) -> Vec3:
    """Choose a brick of the first level: whole units, and whole windows of all coarser mags."""
    edge = 1
    while not is_multiple(_cube(edge, unit), smallest):
        edge *= 2
    while (
        math.prod(_cube(edge * 2, unit)) * math.prod(factor) * voxel_nbytes <= _BRICK_SOURCE_NBYTES
    ):
        edge *= 2
    return _common(_cube(edge, unit), region_shape)


def _source_brick_shape(level: Level, voxel_nbytes: int) -> Vec3:
    """Choose the shape of one read: the footprint of a brick, halved along its longest axis until
    it is small enough or odd along all axes."""
    shape = list(level.brick_shape)
    while math.prod(shape) * math.prod(
        level.factor
    ) * voxel_nbytes > _BRICK_SOURCE_NBYTES and not all(n % 2 for n in shape):
        longest = max(
            (axis for axis in range(3) if shape[axis] % 2 == 0),
            key=lambda axis: shape[axis] * level.factor[axis],
        )
        shape[longest] //= 2
    return times((shape[0], shape[1], shape[2]), level.factor)


def _largest_factor(factors: Sequence[Vec3]) -> Vec3:
    x, y, z = (max((factor[axis] for factor in factors), default=1) for axis in range(3))
    return x, y, z


def _cube(edge: int, unit: Vec3) -> Vec3:
    return edge * unit[0], edge * unit[1], edge * unit[2]


def _common(a: Vec3, b: Vec3) -> Vec3:
    """Return the largest shape that divides both: the smaller one if it divides the other."""
    return math.gcd(a[0], b[0]), math.gcd(a[1], b[1]), math.gcd(a[2], b[2])
