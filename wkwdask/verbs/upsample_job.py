"""The upsampling job: regions of finer mags are made from one coarse mag, and joins make files of parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import cell_box
from wkwdask.model.states import States, digest, grouped_digests
from wkwdask.runs.job import Result, Task, voxel_nbytes
from wkwdask.runs.parts import BrickWriter, Gathering, source_changed, states_of_part
from wkwdask.streams.upsample import UpsampleStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.receipts import Receipt
    from wkwdask.model.volume import Target, Volume
    from wkwdask.plans.upsample import Upsampling


@dataclass(frozen=True, slots=True)
class UpsampleSpec:
    """Make one region of a finer mag."""

    source: Volume
    """What is read."""
    plan: Upsampling
    """Box, factor, readings and bricks."""
    target: Target
    """What is written."""
    level: int
    """Index of the finer mag in the job."""
    region: Vec3
    """Which region."""

    def task(self) -> Task:
        """Give the task."""
        return Task(
            f"region {self.region} of mag {self.target.box.mag}, made from {self.source.name}",
            "region {} {},{},{}".format(self.level, *self.region),
            UpsampleSpec.run,
            self,
        )

    def states(self) -> States:
        """Look at the files that are read."""
        return self.source.shard_states(self.plan.source_of(self.plan.region_box(self.region)))

    def run(self) -> Result:
        """Read the region's share of the source and write the region."""
        states = self.states()  # before the reading: a file that changes meanwhile is seen as changed later
        stream = UpsampleStream(self.plan, self.source.dtype, self.source.num_channels)
        part = None if self.plan.holds_whole(self.target.shard_shape) else self.region
        writer = BrickWriter(self.target, self.plan.brick_shape, part, self.plan.region_box(self.region))
        try:
            for reading in self.plan.readings(self.region):
                memory, topleft = stream.source_memory(reading)
                nonzero = self.source.read_into(memory, topleft, fill_zeros=False)
                for brick in stream.bricks(reading, memory if nonzero else None):
                    writer.put(brick.index, brick.voxels)
                del memory  # before there is memory for the next reading
            receipts = writer.close()
        except BaseException:
            writer.discard()
            raise
        made = tuple((self.level, replace(receipt, sources=self._sources_of(receipt, states))) for receipt in receipts)
        return Result(made, digest(states), nbytes_in=voxel_nbytes(self.source, self.plan.source_of(self.plan.region_box(self.region))))

    def _sources_of(self, receipt: Receipt, states: States) -> int:
        """Sum up the files that a shard or part is made from."""
        box = self.plan.box
        shard = cell_box(receipt.shard, self.target.shard_shape, box).intersection(box)
        if receipt.part is not None:
            return digest(states_of_part(states, source_file_shape(self.source, self.plan.factor), shard, self.plan.region_box(self.region)))
        share = self.plan.source_of(shard)
        files = self.source.shard_shape
        low = [t // n for t, n in zip(share.topleft, files, strict=True)]
        high = [-(-t // n) for t, n in zip(share.bottomright, files, strict=True)]
        return digest(states[((states[:, :3] >= low) & (states[:, :3] < high)).all(axis=1)])


class UpsampleJob:
    """Finer mags of one coarse mag, each made from it directly."""

    def __init__(self, sources: Sequence[Volume], targets: Sequence[Target], plans: Sequence[Upsampling]) -> None:
        self._sources = sources
        self._plans = plans
        self._gathering = Gathering(targets)
        self.tallies = self._gathering.tallies
        self._occupied = [plan.occupied(source.occupied(plan.source_cell_shape)) for source, plan in zip(sources, plans, strict=True)]
        for tally, target, plan, occupied in zip(self.tallies, targets, plans, self._occupied, strict=True):
            tally.expected = int(plan.occupied_shards(target.shard_shape, occupied).sum())

    @property
    def num_tasks(self) -> int:
        """Regions that have data, and joins of files that are made in parts."""
        num_joins = sum(tally.expected for tally, plan in zip(self.tallies, self._plans, strict=True) if not plan.holds_whole(tally.target.shard_shape))
        return sum(int(occupied.sum()) for occupied in self._occupied) + num_joins

    def tasks(self) -> Iterator[Task]:
        """Give the regions, mag by mag."""
        for level, (target, plan, occupied) in enumerate(zip(self._gathering.targets, self._plans, self._occupied, strict=True)):
            for region in plan.regions(occupied):
                yield UpsampleSpec(self._sources[level], plan, target, level, region).task()

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take receipts; give the joins whose parts are all there."""
        return self._gathering.take(task, result, self._num_parts)

    def _num_parts(self, level: int, shard: Vec3) -> int:
        """Count the regions with data that make a file."""
        regions = self._plans[level].regions_of(shard, self._gathering.targets[level].shard_shape)
        return int(self._occupied[level][regions].sum())

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Tell whether the result of an earlier start is still good."""
        if isinstance(task.spec, UpsampleSpec):
            states = task.spec.states()
            if digest(states) != result.sources:
                raise source_changed(task, states, task.spec.source)
        return self._gathering.is_there(result, known)


def is_current(source: Volume, target: Target, record: npt.NDArray[np.int64]) -> bool:
    """Tell whether a finished mag is made from the source as it is now."""
    files = source_file_shape(source, target.box.mag.step_to(source.box.mag))
    cell = _vec3(np.maximum(files, target.shard_shape))  # all files of the finer mag in such a cell are made from the same files
    then = {_vec3(index * target.shard_shape // cell): int(sources) for index, sources in zip(record[:, :3], record[:, 5], strict=True) if sources}
    return then == grouped_digests(source.stored_states(), files, cell)


def source_file_shape(source: Volume, factor: Vec3) -> Vec3:
    """Give the box of one source file in voxels of a finer mag."""
    return _vec3(np.multiply(source.shard_shape, factor))


def _vec3(values: npt.NDArray[np.int64]) -> Vec3:
    x, y, z = values.tolist()
    return x, y, z
