"""Jobs that compare two volumes voxel by voxel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import FormatError, IncompleteWriteError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cells, clipped_cell
from wkwdask.model.states import digest
from wkwdask.model.volume import read_voxels, voxel_nbytes
from wkwdask.plans.cells import union_cells
from wkwdask.runs.job import FlatJob, Result, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume
    from wkwdask.plans.regions import RegionGrid

_BRICK_NBYTES = 16 << 20
_MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class Difference:
    """Voxel of one channel that differs."""

    voxel: Vec3
    """Absolute voxel of the mag along x, y, z."""
    channel: int
    first: float | int
    """Value in the first volume."""
    second: float | int
    """Value in the second volume."""
    bits: tuple[str, str] = ("", "")
    """Bits of both values (hexadecimal) if the values print alike, as two NaN do."""

    def __str__(self) -> str:
        bits = " (bits {} and {})".format(*self.bits) if self.bits[0] else ""
        return "voxel ({}, {}, {}) of channel {}: {} and {}{}".format(
            *self.voxel, self.channel, self.first, self.second, bits
        )


@dataclass(frozen=True, slots=True)
class Differences:
    """Result of a comparison; results of two parts of a volume can be added."""

    compared: int = 0
    """Number of compared voxels."""
    different: int = 0
    """Number of voxels with a differing channel."""
    listed: tuple[Difference, ...] = ()
    """First differences, ordered by z, y, x and channel."""
    box: BoundingBox | None = None
    """Smallest box around all differences [voxels of the mag]."""

    def __add__(self, other: Differences) -> Differences:
        listed = sorted(
            (*self.listed, *other.listed),
            key=lambda difference: (*reversed(difference.voxel), difference.channel),
        )
        box = (
            self.box
            if other.box is None
            else other.box
            if self.box is None
            else self.box.union(other.box)
        )
        return Differences(
            self.compared + other.compared,
            self.different + other.different,
            tuple(listed[:_MAX_LISTED]),
            box,
        )


def find_differences(first: AnyArray, second: AnyArray, box: BoundingBox) -> Differences:
    """Compare two arrays bit by bit, so that NaN equals itself."""
    unsigned = f"u{first.dtype.itemsize}"  # as floats, -0.0 would equal 0.0, and NaN nothing
    differs = first.view(unsigned) != second.view(unsigned)
    if not differs.any():
        return Differences(box.volume)
    voxels = differs.any(axis=0)
    low, high = [], []
    for axis, corner in enumerate(box.topleft):
        indices = np.flatnonzero(voxels.any(axis=tuple(n for n in range(3) if n != axis)))
        low.append(int(indices[0]) + corner)
        high.append(int(indices[-1]) + 1 + corner)
    listed = []
    for flat_index in np.flatnonzero(differs.ravel(order="F"))[:_MAX_LISTED]:
        channel, *index = (int(n) for n in np.unravel_index(flat_index, differs.shape, order="F"))
        x, y, z = (n + corner for n, corner in zip(index, box.topleft, strict=True))
        values = [array[(channel, *index)] for array in (first, second)]
        listed.append(
            Difference((x, y, z), channel, values[0].item(), values[1].item(), _bits(*values))
        )
    return Differences(
        box.volume, int(voxels.sum()), tuple(listed), BoundingBox.from_corners(low, high, box.mag)
    )


def _bits(first: np.generic, second: np.generic) -> tuple[str, str]:
    """Format the bits of two values in hexadecimal if they print alike; otherwise return two empty
    strings."""
    if str(first.item()) != str(second.item()):
        return "", ""
    width = 2 * first.dtype.itemsize
    numbers = [int(value.view(f"u{value.dtype.itemsize}")) for value in (first, second)]
    return f"0x{numbers[0]:0{width}x}", f"0x{numbers[1]:0{width}x}"


@dataclass(frozen=True, slots=True)
class CompareSpec:
    """Task that compares one region."""

    first: Volume
    second: Volume
    plan: RegionGrid
    region: Vec3

    def task(self) -> Task:
        return Task(
            f"comparison of region {self.region}",
            "compare {},{},{}".format(*self.region),
            type(self).run,
            self,
        )

    def run(self) -> Result:
        """Read both volumes brick by brick; the value of the result is the :class:`Differences`."""
        region, edge = self.plan.region_box(self.region), max(self.first.chunk_shape)
        while 8 * edge**3 * voxel_nbytes(self.first) <= _BRICK_NBYTES:
            edge *= 2
        parts = (
            find_differences(read_voxels(self.first, box), read_voxels(self.second, box), box)
            for box in _bricks(region, edge)
        )
        return Result(
            (), value=sum(parts, Differences()), nbytes_in=voxel_nbytes(self.first, region)
        )


def _bricks(region: BoundingBox, edge: int) -> Iterator[BoundingBox]:
    return (clipped_cell(index, (edge,) * 3, region) for index in cells(region, (edge,) * 3))


@dataclass(frozen=True, slots=True)
class CopyCheckSpec:
    """Task that checks, in one region, whether a volume contains all nonzero voxels of a copy."""

    volume: Volume
    copy: Volume
    plan: RegionGrid
    region: Vec3

    def task(self) -> Task:
        return Task(
            f"comparison of region {self.region} of {self.copy.name}",
            "holds {} {},{},{}".format(self.copy.name, *self.region),
            CopyCheckSpec.run,
            self,
        )

    def run(self) -> Result:
        """Compare brick by brick. The value is also False if a chunk cannot be read, since it may
        differ."""
        bricks = _bricks(
            self.plan.region_box(self.region), max(*self.volume.chunk_shape, *self.copy.chunk_shape)
        )
        try:
            return Result((), value=all(map(self._holds, bricks)))
        except (FormatError, OSError):
            return Result((), value=False)

    def _holds(self, box: BoundingBox) -> bool:
        stored, copied = (
            voxels.view(f"u{voxels.dtype.itemsize}")
            for voxels in (read_voxels(self.volume, box), read_voxels(self.copy, box))
        )
        return not ((copied != 0) & (copied != stored)).any()


class EqualSpec(CompareSpec):
    """Task that raises an error if one region differs. Its result has no value, so it fits into a
    journal."""

    __slots__ = ()

    def run(self) -> Result:
        """Compare the region; the result has the digest of the copy's files."""
        sources = self.digest()
        result = CompareSpec.run(self)
        check_equal(self.first, self.second, result.value)
        return replace(result, value=None, sources=sources)

    def digest(self) -> int:
        return digest(self.second.files.shard_states(self.plan.region_box(self.region)))


class CompareJob(FlatJob):
    """Job that compares two volumes in all regions where either has files."""

    spec: type[CompareSpec] = CompareSpec

    def __init__(self, first: Volume, second: Volume, plan: RegionGrid) -> None:
        occupied = union_cells(
            first.files.occupied(plan.region_shape), second.files.occupied(plan.region_shape)
        )
        self.found = Differences()

        def tasks() -> Iterator[Task]:
            return (
                self.spec(first, second, plan, region).task() for region in plan.regions(occupied)
            )

        super().__init__(tasks, int(occupied.sum()), self._add)

    def _add(self, spec: CompareSpec, result: Result) -> None:
        if result.value is not None:
            self.found += result.value


class EqualJob(CompareJob):
    """Job that checks a copy against its source; a journal records the compared regions."""

    spec = EqualSpec

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        return bool(task.spec.digest() == result.sources)


def check_equal(first: Volume, second: Volume, differences: Differences) -> None:
    """Raise IncompleteWriteError if two volumes differ."""
    if differences.listed:
        voxel = differences.listed[0]
        raise IncompleteWriteError(
            f"{second.name}: voxel {voxel.voxel} of channel {voxel.channel} is {voxel.second}, but "
            f"{voxel.first} in {first.name}; nothing was replaced"
        )
