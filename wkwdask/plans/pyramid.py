"""How a pyramid is cut into passes, regions and bricks.

A pass reads one mag once and makes the next few coarser mags from it. Its tasks are regions: equal, aligned boxes of the first coarser mag,
whose footprints in all mags of the pass are whole chunks. A task walks its region brick by brick in Morton order; a brick is what
is held in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from wkwdask.errors import UnsupportedError
from wkwdask.geometry import morton
from wkwdask.geometry.grid import cell_box, cell_range, cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3

_REGION_VX = 512  # edge of a region in the first coarser mag: seconds of work
_SMALLEST_REGION_VX = 128
_BRICK_SOURCE_NBYTES = 32 << 20
_TASKS_PER_WORKER = 3


@dataclass(frozen=True, slots=True)
class Level:
    """One mag of a pass."""

    box: BoundingBox
    """Where the mag has data [voxels of the mag]."""
    factor: Vec3
    """Voxels of the mag before it that one voxel spans, along x, y, z."""
    region_shape: Vec3
    """Footprint of one task [voxels of the mag]."""
    brick_shape: Vec3
    """What is handled at once [voxels of the mag]."""
    in_order: bool
    """Whether bricks come in Morton order, so that a file can be written straight away."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of a mag."""

    source_box: BoundingBox
    """Where the source has data [voxels of its mag]."""
    levels: tuple[Level, ...]
    """The mags that are made, finest first."""

    def regions(self) -> Iterator[Vec3]:
        """Go through the tasks."""
        return cells(self.levels[0].box, self.levels[0].region_shape)

    @property
    def num_regions(self) -> int:
        """Number of tasks."""
        x, y, z = cell_range(self.levels[0].box, self.levels[0].region_shape)
        return len(x) * len(y) * len(z)

    def bricks(self, region: Vec3) -> Iterator[Vec3]:
        """Go through the bricks of a region of the first level that hold data, in Morton order."""
        level = self.levels[0]
        box = cell_box(region, level.region_shape, level.box)
        low = [t // n for t, n in zip(box.topleft, level.brick_shape, strict=True)]
        counts = [n // m for n, m in zip(level.region_shape, level.brick_shape, strict=True)]
        _, coordinates = morton.ordered_box((0, 0, 0), (counts[0], counts[1], counts[2]))
        for x, y, z in (coordinates + low).tolist():
            if not cell_box((x, y, z), level.brick_shape, level.box).intersection(level.box).is_empty:
                yield x, y, z

    def num_parts(self, level: int, shard: Vec3, shard_shape: Vec3) -> int:
        """Count the regions that make parts of a shard of one level."""
        here = self.levels[level]
        box = cell_box(shard, shard_shape, here.box).intersection(here.box)
        x, y, z = cell_range(box, here.region_shape)
        return len(x) * len(y) * len(z)

    def writes_whole(self, level: int, shard_shape: Vec3) -> bool:
        """Tell whether a region holds every shard of a level that it touches, in an order in which the shard can be written at once."""
        here = self.levels[level]
        return here.in_order and all(n % m == 0 for n, m in zip(here.region_shape, shard_shape, strict=True))


def check_steps(finest: Mag, mags: Sequence[Mag]) -> list[Vec3]:
    """Give the factor of each step of a ladder.

    Raises
    ------
    UnsupportedError
        A step is not 1 or 2 on some axis.
    """
    factors = [before.step_to(mag) for before, mag in pairwise([finest, *mags])]
    for mag, factor in zip(mags, factors, strict=True):
        if any(f not in (1, 2) for f in factor):
            raise UnsupportedError(f"the step to mag {mag} has the factors {factor}; only 1 and 2 are supported on each axis")
    return factors


def plan_pass(
    source_box: BoundingBox, mags: Sequence[Mag], layer_box: BoundingBox, chunk_shape: Vec3, shard_shape: Vec3, voxel_nbytes: int, workers: int
) -> Pass:
    """Plan one pass: choose the region and how many mags it can make.

    Parameters
    ----------
    source_box : BoundingBox
        Where the source has data [voxels of its mag].
    mags : sequence of Mag
        All mags that are still to be made, finest first; at least one.
    layer_box : BoundingBox
        Where the layer has data [any mag].
    chunk_shape, shard_shape : tuple of 3 int
        Chunk and shard of all mags [voxels]; powers of two.
    voxel_nbytes : int
        Bytes of one voxel with all channels.
    workers : int
        How many tasks run at once.

    Returns
    -------
    Pass
        Its levels are the first of ``mags``: those whose share of a region is at least one whole chunk.
    """
    factors = check_steps(source_box.mag, mags)
    boxes = [layer_box.in_mag(mag) for mag in mags]
    region = _region_chunks(boxes[0], chunk_shape, shard_shape, workers)
    brick = _brick_chunks(chunk_shape, factors[0], voxel_nbytes, region)
    levels = []
    shape = (region * chunk_shape[0], region * chunk_shape[1], region * chunk_shape[2])
    in_order = True
    for index, (factor, box) in enumerate(zip(factors, boxes, strict=True)):
        if index:
            if any(n // f < chunk for n, f, chunk in zip(shape, factor, chunk_shape, strict=True)):
                break
            shape = (shape[0] // factor[0], shape[1] // factor[1], shape[2] // factor[2])
            in_order = in_order and factor == (2, 2, 2)
        brick_shape = _smaller((brick * chunk_shape[0], brick * chunk_shape[1], brick * chunk_shape[2]), shape)
        levels.append(Level(box, factor, shape, brick_shape, in_order))
    return Pass(source_box, tuple(levels))


def _region_chunks(box: BoundingBox, chunk_shape: Vec3, shard_shape: Vec3, workers: int) -> int:
    """Choose the edge of a region of the first coarser mag [chunks]: a file, or less where there would be fewer tasks than workers need."""
    edge = max(max(n // c for n, c in zip(shard_shape, chunk_shape, strict=True)), max(2, _REGION_VX // max(chunk_shape)))
    while edge > 2 and edge * max(chunk_shape) > _SMALLEST_REGION_VX and workers > 1:
        x, y, z = cell_range(box, [edge * c for c in chunk_shape])
        if len(x) * len(y) * len(z) >= _TASKS_PER_WORKER * workers:
            break
        edge //= 2
    return edge


def _brick_chunks(chunk_shape: Vec3, factor: Vec3, voxel_nbytes: int, region: int) -> int:
    """Choose the edge of a brick [chunks]: at least two, so that every window of the next mag lies in one brick."""
    chunk_source_nbytes = voxel_nbytes
    for c, f in zip(chunk_shape, factor, strict=True):
        chunk_source_nbytes *= c * f
    edge = 2
    while edge * 2 <= region and (edge * 2) ** 3 * chunk_source_nbytes <= _BRICK_SOURCE_NBYTES:
        edge *= 2
    return min(edge, region)


def _smaller(a: Vec3, b: Vec3) -> Vec3:
    return min(a[0], b[0]), min(a[1], b[1]), min(a[2], b[2])
