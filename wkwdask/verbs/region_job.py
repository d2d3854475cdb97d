"""Jobs that make mags region by region: from the stored blocks of another mag without decoding them, or as finer mags of a coarse one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.geometry.grid import cell_box, cells
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import times
from wkwdask.model.states import States, digest, grouped_digests
from wkwdask.runs.job import Result, Task, voxel_nbytes
from wkwdask.runs.parts import BrickWriter, JoinSpec, ReceiptCollector, source_changed, states_of_part
from wkwdask.streams.upsample import UpsampleStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.receipts import Receipt
    from wkwdask.model.target_array import TargetArray
    from wkwdask.model.volume import Volume
    from wkwdask.plans.cells import CellMap
    from wkwdask.plans.regions import RegionGrid
    from wkwdask.plans.upsample import UpsamplePlan


class RegionJob:
    """Mags that are made region by region; parts of files are joined. Specs of regions have ``source``, ``states()`` and ``digest()``."""

    def __init__(self, targets: Sequence[TargetArray], plans: Sequence[RegionGrid], occupied: Sequence[CellMap], spec_of: Callable[[int, Vec3], Any]) -> None:
        self._plans, self._occupied, self._spec_of = plans, occupied, spec_of
        self._gathering = ReceiptCollector(targets)
        self.tallies = self._gathering.tallies
        self.num_tasks = 0
        for tally, plan, regions in zip(self.tallies, plans, occupied, strict=True):
            shard_shape = tally.target.shard_shape
            tally.expected = int(plan.occupied_shards(shard_shape, regions).sum())
            self.num_tasks += int(regions.sum()) + (0 if plan.contains_whole_shards(shard_shape) else tally.expected)

    def tasks(self) -> Iterator[Task]:
        """Give the regions that have data, mag by mag."""
        for level, (plan, occupied) in enumerate(zip(self._plans, self._occupied, strict=True)):
            for region in plan.regions(occupied):
                yield self._spec_of(level, region).task()

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take receipts; give the joins whose parts are all there."""
        return self._gathering.take(task, result, self._num_parts)

    def _num_parts(self, level: int, shard: Vec3) -> int:
        """Count the regions with data that make a file."""
        regions = self._plans[level].regions_in_shard(shard, self._gathering.targets[level].shard_shape)
        return int(self._occupied[level][regions].sum())

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Tell whether the result of an earlier start is still good."""
        if not isinstance(task.spec, JoinSpec):
            check_source(task, result)
        return self._gathering.is_there(result, known)


def check_source(task: Task, result: Result) -> None:
    """Make sure that a task would read what it read when it gave a result."""
    if task.spec.digest() != result.sources:
        raise source_changed(task, task.spec.states(), task.spec.source)


class SourceSpec:
    """A task that reads files of a volume, by whose states its result is known again."""

    __slots__ = ()

    def states(self) -> States:
        raise NotImplementedError

    def digest(self) -> int:
        """Sum up their states."""
        return digest(self.states())


# ----------------------------------------------------------------------------- blocks as they are stored


@dataclass(frozen=True, slots=True)
class SpliceSpec(SourceSpec):
    """Make the files of one region."""

    source: Volume
    """What is copied."""
    target: TargetArray
    """What is written."""
    plan: RegionGrid
    """The regions: whole shards of the target."""
    region: Vec3

    def task(self) -> Task:
        return Task(f"region {self.region} of {self.source.name}", "splice {},{},{}".format(*self.region), SpliceSpec.run, self)

    def states(self) -> States:
        return self.source.shard_states(self.plan.region_box(self.region))

    def run(self) -> Result:
        """Copy all files of the region."""
        states = self.states()  # before the reading: a file that changes meanwhile is seen as changed later
        sources = grouped_digests(states, self.source.shard_shape, self.target.shard_shape)
        box = self.plan.region_box(self.region)
        shards = cells(box, self.target.shard_shape)
        receipts = (replace(self.target.splice_shard(self.source, shard), sources=sources.get(shard, 0)) for shard in shards)
        return Result(tuple((0, receipt) for receipt in receipts), digest(states), nbytes_in=voxel_nbytes(self.source, box))


class SpliceJob(RegionJob):
    """One mag made of the stored blocks of another."""

    def __init__(self, source: Volume, target: TargetArray, plan: RegionGrid) -> None:
        super().__init__([target], [plan], [source.occupied(plan.region_shape)], lambda _, region: SpliceSpec(source, target, plan, region))


# ----------------------------------------------------------------------------- finer mags


@dataclass(frozen=True, slots=True)
class UpsampleSpec(SourceSpec):
    """Make one region of a finer mag."""

    source: Volume
    """What is read."""
    plan: UpsamplePlan
    """Box, factor, readings and bricks."""
    target: TargetArray
    """What is written."""
    level: int
    """Index of the finer mag in the job."""
    region: Vec3

    def task(self) -> Task:
        name, key = f"region {self.region} of mag {self.target.box.mag}, made from {self.source.name}", "region {} {},{},{}".format(self.level, *self.region)
        return Task(name, key, type(self).run, self)

    def states(self) -> States:
        return self.source.shard_states(self.plan.source_box_of(self.plan.region_box(self.region)))

    def run(self) -> Result:
        """Read the region's share of the source and write the region."""
        states = self.states()  # before the reading: a file that changes meanwhile is seen as changed later
        stream = UpsampleStream(self.plan, self.source.dtype, self.source.num_channels)
        part = None if self.plan.contains_whole_shards(self.target.shard_shape) else self.region
        writer = BrickWriter(self.target, self.plan.brick_shape, part, self.plan.region_box(self.region))
        try:
            for reading in self.plan.readings(self.region):
                memory, topleft = stream.source_memory(reading)
                nonzero = self.source.read_into(memory, topleft, fill_zeros=False)
                for index, voxels in stream.bricks(reading, memory if nonzero else None):
                    writer.put(index, voxels)
                del memory  # before there is memory for the next reading
            receipts = writer.close()
        except BaseException:
            writer.discard()
            raise
        made = tuple((self.level, replace(receipt, sources=self._sources_of(receipt, states))) for receipt in receipts)
        return Result(made, digest(states), nbytes_in=voxel_nbytes(self.source, self.plan.source_box_of(self.plan.region_box(self.region))))

    def _sources_of(self, receipt: Receipt, states: States) -> int:
        """Sum up the files that a shard or part is made from."""
        box = self.plan.box
        shard = cell_box(receipt.shard, self.target.shard_shape, box).intersection(box)
        if receipt.part is not None:
            return digest(states_of_part(states, source_file_shape(self.source, self.plan.factor), shard, self.plan.region_box(self.region)))
        share = self.plan.source_box_of(shard)
        files = self.source.shard_shape
        low = [t // n for t, n in zip(share.topleft, files, strict=True)]
        high = [-(-t // n) for t, n in zip(share.bottomright, files, strict=True)]
        return digest(states[((states[:, :3] >= low) & (states[:, :3] < high)).all(axis=1)])


class UpsampleJob(RegionJob):
    """Finer mags of one coarse mag, each made from it directly."""

    def __init__(self, sources: Sequence[Volume], targets: Sequence[TargetArray], plans: Sequence[UpsamplePlan]) -> None:
        occupied = [plan.occupied(source.occupied(plan.source_cell_shape)) for source, plan in zip(sources, plans, strict=True)]
        super().__init__(targets, plans, occupied, lambda level, region: UpsampleSpec(sources[level], plans[level], targets[level], level, region))


def is_current(source: Volume, target: TargetArray, record: npt.NDArray[np.int64]) -> bool:
    """Tell whether a finished mag is made from the source as it is now."""
    files = source_file_shape(source, target.box.mag.step_to(source.box.mag))
    cell = vec3(np.maximum(files, target.shard_shape).tolist())  # all files of the finer mag in such a cell are made from the same files
    then = {vec3((index * target.shard_shape // cell).tolist()): int(sources) for index, sources in zip(record[:, :3], record[:, 5], strict=True) if sources}
    return then == grouped_digests(source.stored_states(), files, cell)


def source_file_shape(source: Volume, factor: Vec3) -> Vec3:
    """Give the box of one source file in voxels of a finer mag."""
    return times(source.shard_shape, factor)
