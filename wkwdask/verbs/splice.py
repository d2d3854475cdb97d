"""The job that makes the files of a mag from those of another without decoding them: regions of whole files, none waits for another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.geometry.grid import cells
from wkwdask.model.states import States, digest, grouped_digests
from wkwdask.runs.job import Result, Task, voxel_nbytes
from wkwdask.runs.parts import Gathering, source_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Target, Volume
    from wkwdask.plans.regions import RegionGrid


@dataclass(frozen=True, slots=True)
class SpliceSpec:
    """Make the files of one region."""

    source: Volume
    """What is copied."""
    target: Target
    """What is written."""
    plan: RegionGrid
    """The regions: whole shards of the target."""
    region: Vec3
    """Which region."""

    def task(self) -> Task:
        """Give the task."""
        return Task(f"region {self.region} of {self.source.name}", "splice {},{},{}".format(*self.region), SpliceSpec.run, self)

    def states(self) -> States:
        """Look at the files that are read."""
        return self.source.shard_states(self.plan.region_box(self.region))

    def run(self) -> Result:
        """Copy all files of the region."""
        states = self.states()  # before the reading: a file that changes meanwhile is seen as changed later
        sources = grouped_digests(states, self.source.shard_shape, self.target.shard_shape)
        receipts = [
            replace(self.target.splice_shard(self.source, shard), sources=sources.get(shard, 0))
            for shard in cells(self.plan.region_box(self.region), self.target.shard_shape)
        ]
        nbytes_in = voxel_nbytes(self.source, self.plan.region_box(self.region))
        return Result(tuple((0, receipt) for receipt in receipts), digest(states), nbytes_in=nbytes_in)


class SpliceJob:
    """One mag made of the stored blocks of another."""

    def __init__(self, source: Volume, target: Target, plan: RegionGrid) -> None:
        self._source, self._target, self._plan = source, target, plan
        self._gathering = Gathering([target])
        self.tallies = self._gathering.tallies
        self._occupied = source.occupied(plan.region_shape)
        self.num_tasks = int(self._occupied.sum())
        (tally,) = self.tallies
        tally.expected = int(plan.occupied_shards(target.shard_shape, self._occupied).sum())

    def tasks(self) -> Iterator[Task]:
        """Give the regions that touch a stored file."""
        return (SpliceSpec(self._source, self._target, self._plan, region).task() for region in self._plan.regions(self._occupied))

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take receipts."""
        return self._gathering.take(task, result, _no_parts)

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Tell whether the files of an earlier start are still there."""
        if isinstance(task.spec, SpliceSpec):
            states = task.spec.states()
            if digest(states) != result.sources:
                raise source_changed(task, states, self._source)
        return self._gathering.is_there(result, known)


def _no_parts(level: int, shard: Vec3) -> int:
    raise AssertionError("files are spliced whole")
