"""The tasks of a pyramid: regions stream a source mag into all coarser mags of a pass, joins make files of parts, and the next pass goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import cell_box, cell_range
from wkwdask.geometry.vectors import times
from wkwdask.model.states import States, digest, grouped_digests
from wkwdask.model.stored_array import StoredArray
from wkwdask.runs.job import Result, Task, voxel_nbytes
from wkwdask.runs.parts import BrickWriter, Gathering, source_changed, states_of_part
from wkwdask.store.records import RECORD_COLUMNS
from wkwdask.streams.pyramid import PyramidStream
from wkwdask.verbs.region_job import SourceSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.placement import Placement
    from wkwdask.model.volume import Volume
    from wkwdask.plans.cells import CellMap
    from wkwdask.plans.pyramid import Pass
    from wkwdask.streams.pyramid import Brick


@dataclass(frozen=True, slots=True)
class RegionSpec(SourceSpec):
    """Stream one region of a pass."""

    source: Volume
    """What is read."""
    plan: Pass
    """Mags, boxes and bricks."""
    targets: tuple[Placement, ...]
    """What is written, one per mag of the pass."""
    method: str
    """How a window becomes a voxel."""
    ignore_zero: bool
    """Whether zeros do not count in a window."""
    region: Vec3
    """Which region."""
    first_level: int = 0
    """Index in the whole pyramid of the first mag of the pass."""

    def task(self) -> Task:
        """Give the task."""
        return Task(f"region {self.region} of {self.source.name}", "region {} {},{},{}".format(self.first_level, *self.region), RegionSpec.run, self)

    def states(self) -> States:
        """Look at the files that are read."""
        return self.source.shard_states(self.plan.source_region(self.region))

    def run(self) -> Result:
        """Read the region and write its share of every mag."""
        states = self.states()  # before the reading: a file that changes meanwhile is seen as changed later
        stream = PyramidStream(self.plan, self.method, self.source.dtype, self.source.num_channels, ignore_zero=self.ignore_zero)
        writers = [self._writer(level) for level in range(len(self.targets))]
        try:
            push = self._chunk_pusher(stream) or self._brick_pusher(stream)
            for brick in self.plan.bricks(self.region):
                for done in push(brick):
                    writers[done.level].put(done.index, done.voxels)
            receipts = [(self.first_level + level, receipt) for level, writer in enumerate(writers) for receipt in writer.close()]
        except BaseException:
            for writer in writers:
                writer.discard()
            raise
        finally:
            stream.close()
        sources = self._sources_of_shards(states)
        return Result(
            tuple((n, replace(receipt, sources=sources.get(receipt.shard, 0)) if n == self.first_level else receipt) for n, receipt in receipts),
            digest(states),
            nbytes_in=voxel_nbytes(self.source, self.plan.source_region(self.region)),
        )

    def _brick_pusher(self, stream: PyramidStream) -> Callable[[Vec3], Iterator[Brick]]:
        """Read a brick at once."""

        def push(brick: Vec3) -> Iterator[Brick]:
            nonzero = self.source.read_into(stream.source_view(brick), stream.source_box(brick).topleft, fill_zeros=False)
            return stream.push(brick, nonzero == 0)

        return push

    def _chunk_pusher(self, stream: PyramidStream) -> Callable[[Vec3], Iterator[Brick]] | None:
        """Read a brick chunk by chunk, where the source can and its chunks are whole windows and lie in one brick each; None elsewhere."""
        source = self.source
        if not isinstance(source, StoredArray) or not source.decodes_chunks:
            return None
        shape = source.chunk_shape
        axes = zip(shape, self.plan.levels[0].factor, self.plan.source_brick_shape, self.source.origin, strict=True)
        if any(edge % step or brick % edge or shift % edge for edge, step, brick, shift in axes):
            return None
        memory = stream.chunk_memory(shape)

        def push(brick: Vec3) -> Iterator[Brick]:
            return stream.push_chunks(brick, source.decoded_chunks(stream.source_box(brick), memory), shape)

        return push

    def _writer(self, level: int) -> BrickWriter:
        target = self.targets[level]
        part = None if self.plan.writes_whole(level, target.shard_shape) else self.region
        return BrickWriter(target, self.plan.levels[level].brick_shape, part)

    def _sources_of_shards(self, states: States) -> dict[Vec3, int]:
        """Sum up the files that each shard of the first mag is made from; those that several parts of a shard read count in one part alone."""
        level, target = self.plan.levels[0], self.targets[0]
        footprint = times(target.shard_shape, level.factor)
        if all(n % m == 0 for n, m in zip(level.region_shape, target.shard_shape, strict=True)):
            return grouped_digests(states, self.source.shard_shape, footprint)
        region = self.plan.source_region(self.region)
        shard = cell_box(self.region, level.region_shape, level.box).topleft
        index = (shard[0] // target.shard_shape[0], shard[1] // target.shard_shape[1], shard[2] // target.shard_shape[2])
        whole = cell_box(index, footprint, region).intersection(self.plan.source_box)
        return {index: digest(states_of_part(states, self.source.shard_shape, whole, region))}


class PyramidJob:
    """All coarser mags of one mag."""

    def __init__(self, source: Volume, targets: Sequence[Placement], passes: Sequence[Pass], method: str, *, ignore_zero: bool = False) -> None:
        self.source = source
        self.targets = tuple(targets)
        self._gathering = Gathering(targets)
        self.tallies = self._gathering.tallies
        self._method = method
        self._ignore_zero = ignore_zero
        self._passes = list(passes)
        self._firsts = [sum(len(earlier.levels) for earlier in passes[:n]) for n in range(len(passes))]
        self._occupied: list[CellMap] = []  # of the passes that have started
        self._num_started = 0

    @property
    def num_tasks(self) -> int:
        """Tasks in all; passes that have not started count as if all their regions had data."""
        later = range(len(self._occupied), len(self._passes))
        return self._num_started + sum(
            math.prod(len(r) for r in cell_range(plan.levels[0].box, plan.levels[0].region_shape))
            + sum(math.prod(len(r) for r in cell_range(plan.levels[n].box, self._target(p, n).shard_shape)) for n in self._joined_levels(p))
            for p, plan in ((p, self._passes[p]) for p in later)
        )

    def _target(self, p: int, level: int) -> Placement:
        return self.targets[self._firsts[p] + level]

    def _joined_levels(self, p: int) -> list[int]:
        plan = self._passes[p]
        return [n for n in range(len(plan.levels)) if not plan.writes_whole(n, self._target(p, n).shard_shape)]

    def tasks(self) -> Iterator[Task]:
        """Give the regions of the first pass."""
        return self._start_passes()

    def _start_passes(self) -> Iterator[Task]:
        """Start the next pass, and those after it that have nothing to wait for."""
        tasks: Iterator[Task] = iter(())
        while len(self._occupied) < len(self._passes):
            p = len(self._occupied)
            if p and not self.tallies[self._firsts[p] - 1].is_complete:
                break
            tasks = chain(tasks, self._start_pass(p))
        return tasks

    def _start_pass(self, p: int) -> Iterator[Task]:
        plan, first = self._passes[p], self._firsts[p]
        source = (self.source if p == 0 else self.targets[first - 1].as_volume()).moved(plan.source_shift)
        occupied = source.occupied(plan.source_region_shape)
        self._occupied.append(occupied)
        self._num_started += int(occupied.sum())
        for level in range(len(plan.levels)):
            self.tallies[first + level].expected = int(plan.levels[level].occupied_shards(self._target(p, level).shard_shape, occupied).sum())
        self._num_started += sum(self.tallies[first + level].expected for level in self._joined_levels(p))
        targets = self.targets[first : first + len(plan.levels)]
        return (RegionSpec(source, plan, targets, self._method, self._ignore_zero, region, first).task() for region in plan.regions(occupied))

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take receipts; give the joins whose parts are all there, and the next pass as soon as the mag that it reads is complete."""
        joins = self._gathering.take(task, result, self._num_parts)  # the coarsest first: the next pass waits for it
        return chain(self._start_passes(), joins)

    def _num_parts(self, level: int, shard: Vec3) -> int:
        """Count the regions with data that make a file."""
        p = max(n for n, first in enumerate(self._firsts) if first <= level)
        regions = self._passes[p].levels[level - self._firsts[p]].regions_of(shard, self.targets[level].shard_shape)
        return int(self._occupied[p][regions].sum())

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Tell whether the result of an earlier start is still good."""
        if isinstance(task.spec, RegionSpec) and task.spec.digest() != result.sources:
            if task.spec.first_level:
                return False
            raise source_changed(task, task.spec.states(), self.source)
        return self._gathering.is_there(result, known)


@dataclass(frozen=True, slots=True)
class LivingMag:
    """A mag that is there and is to be brought up to date."""

    target: Placement
    """How its shards are written, in place."""
    finer: Volume
    """The mag that it is made from, in coordinates that count from the first voxel of the target."""
    method: str
    """How a window becomes a voxel."""
    ignore_zero: bool
    """Whether zeros do not count in a window."""
    record: npt.NDArray[np.int64] | None
    """What it keeps about its files, see ``wkwdask.store.records``; None where it keeps nothing."""
    old_box: BoundingBox | None
    """Box of the finer mag when the record was made [voxels of the finer mag, counted as there]."""


def changed_shards(mag: LivingMag) -> set[Vec3]:
    """Find the shards of a mag that are not as its record says, or whose sources have changed since it was made."""
    target, finer = mag.target, mag.finer
    now = grouped_digests(finer.stored_states(), finer.shard_shape, footprint(finer, target))
    record = np.empty((0, RECORD_COLUMNS), np.int64) if mag.record is None else mag.record
    then = {(x, y, z): sources for x, y, z, _, _, sources in record.tolist()}
    touched = cell_range(target.box, target.shard_shape)
    changed = {index for index in now.keys() | then.keys() if now.get(index, 0) != then.get(index, 0)}
    changed |= _changed_files(target, record)
    if mag.old_box is not None and mag.old_box != finer.box:
        changed |= {index for index in now.keys() | then.keys() if _counted(index, mag, mag.old_box) != _counted(index, mag, finer.box)}
    return {index for index in changed if all(i in r for i, r in zip(index, touched, strict=True))}


def _changed_files(target: Placement, record: npt.NDArray[np.int64]) -> set[Vec3]:
    """Find the files of a mag that are not as its record says: gone, replaced, or never made."""
    found = {tuple(row) for row in target.as_volume().stored_states().tolist()}
    known = {tuple(row[:5]) for row in record.tolist() if row[3]}
    return {(row[0], row[1], row[2]) for row in found ^ known}


def _counted(index: Vec3, mag: LivingMag, box: BoundingBox) -> BoundingBox:
    """Give the voxels of the finer mag that count in the windows of a shard: those inside the box."""
    return cell_box(index, footprint(mag.finer, mag.target), box).intersection(box)


def footprint(finer: Volume, target: Placement) -> Vec3:
    """Give the box of one shard of a mag in the voxels of the finer mag."""
    factor, shape = factor_of(finer, target), target.shard_shape
    return shape[0] * factor[0], shape[1] * factor[1], shape[2] * factor[2]


def factor_of(finer: Volume, target: Placement) -> Vec3:
    return finer.box.mag.step_to(target.box.mag)
