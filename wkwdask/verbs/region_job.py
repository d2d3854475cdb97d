"""Jobs that make mags region by region: by splicing, which copies stored chunks without decoding
them, or by upsampling a coarse mag."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.geometry.grid import cell_range, cells, clipped_cell, is_inside
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import ceil_divide, divide, times
from wkwdask.model.states import States, digest, grouped_digests
from wkwdask.model.volume import voxel_nbytes
from wkwdask.runs.job import Result, Task
from wkwdask.runs.parts import (
    BrickWriter,
    JoinSpec,
    ReceiptCollector,
    source_changed,
    states_of_part,
)
from wkwdask.streams.upsample import UpsampleStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wkwdask.array_types import IntArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.plans.cells import CellMap
    from wkwdask.plans.regions import RegionGrid
    from wkwdask.plans.upsample import UpsamplePlan


class RegionJob:
    """Job that makes mags region by region. A shard that several regions share is written as parts,
    then joined.

    The spec of a region is a :class:`SourceSpec` with a ``source``.
    """

    def __init__(
        self,
        targets: Sequence[TargetArray],
        plans: Sequence[RegionGrid],
        occupied: Sequence[CellMap],
        spec_of: Callable[[int, Vec3], Any],
    ) -> None:
        self._plans, self._occupied, self._spec_of = plans, occupied, spec_of
        self._collector = ReceiptCollector(targets)
        self.tallies = self._collector.tallies
        self.num_tasks = 0
        for tally, plan, regions in zip(self.tallies, plans, occupied, strict=True):
            shard_shape = tally.target.shard_shape
            # Regions are whole shards, or parts of one; in the latter case a join per shard follows
            # its parts.
            tally.expected = int(plan.occupied_shards(shard_shape, regions).sum())
            self.num_tasks += int(regions.sum()) + (
                0 if plan.contains_whole_shards(shard_shape) else tally.expected
            )

    def levels(self) -> Iterator[tuple[TargetArray, RegionGrid, CellMap, int]]:
        """Yield each mag with its plan, the map of its regions with data, and the number of shards
        that they touch."""
        for tally, plan, occupied in zip(self.tallies, self._plans, self._occupied, strict=True):
            yield tally.target, plan, occupied, tally.expected

    def tasks(self) -> Iterator[Task]:
        """Yield the regions that have data, mag by mag."""
        for level, (plan, occupied) in enumerate(zip(self._plans, self._occupied, strict=True)):
            for region in plan.regions(occupied):
                yield self._spec_of(level, region).task()

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Record receipts; return the joins whose parts are complete."""
        return self._collector.add(task, result, self._num_parts)

    def _num_parts(self, level: int, shard: Vec3) -> int:
        """Count the regions with data that contribute to a shard."""
        regions = self._plans[level].regions_in_shard(
            shard, self._collector.targets[level].shard_shape
        )
        return int(self._occupied[level][regions].sum())

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Return whether the shards or parts of a journaled result still exist; a changed source is
        an error."""
        if not isinstance(task.spec, JoinSpec):
            check_source(task, result)
        return self._collector.still_exists(result, known)


def check_source(task: Task, result: Result) -> None:
    """Raise an error if a task would read other files than those that its result was made from."""
    if task.spec.digest() != result.sources:
        raise source_changed(task, task.spec.states(), task.spec.source)


class SourceSpec:
    """Base of tasks that read a volume; the states of its files decide whether a journaled result
    is still valid."""

    __slots__ = ()

    def states(self) -> States:
        """Return the states of the files that the task reads."""
        raise NotImplementedError

    def digest(self) -> int:
        return digest(self.states())


# ----------------------------------------------------------------------------- splicing of stored
# chunks


@dataclass(frozen=True, slots=True)
class SpliceSpec(SourceSpec):
    """Task that copies the stored chunks of one region into shards of the target."""

    source: Volume
    target: TargetArray
    plan: RegionGrid
    """Regions of whole shards of the target."""
    region: Vec3

    def task(self) -> Task:
        return Task(
            f"region {self.region} of {self.source.name}",
            "splice {},{},{}".format(*self.region),
            SpliceSpec.run,
            self,
        )

    def states(self) -> States:
        return self.source.files.shard_states(self.plan.region_box(self.region))

    def run(self) -> Result:
        # before reading: a file that changes during the read then fails the check on resume
        states = self.states()
        sources = grouped_digests(states, self.source.shard_shape, self.target.shard_shape)
        box = self.plan.region_box(self.region)
        shards = cells(box, self.target.shard_shape)
        receipts = (
            replace(self.target.splice_shard(self.source, shard), sources=sources.get(shard, 0))
            for shard in shards
        )
        return Result(
            tuple((0, receipt) for receipt in receipts),
            digest(states),
            nbytes_in=voxel_nbytes(self.source, box),
        )


class SpliceJob(RegionJob):
    """Job that makes one mag from the stored chunks of another."""

    def __init__(self, source: Volume, target: TargetArray, plan: RegionGrid) -> None:
        super().__init__(
            [target],
            [plan],
            [source.files.occupied(plan.region_shape)],
            lambda _, region: SpliceSpec(source, target, plan, region),
        )


# ----------------------------------------------------------------------------- finer mags


@dataclass(frozen=True, slots=True)
class UpsampleSpec(SourceSpec):
    """Task that makes one region of a finer mag."""

    source: Volume
    plan: UpsamplePlan
    target: TargetArray
    level: int
    """Index of the finer mag in the job."""
    region: Vec3

    def task(self) -> Task:
        name, key = (
            f"region {self.region} of mag {self.target.box.mag}, made from {self.source.name}",
            "region {} {},{},{}".format(self.level, *self.region),
        )
        return Task(name, key, type(self).run, self)

    def states(self) -> States:
        return self.source.files.shard_states(
            self.plan.source_box_of(self.plan.region_box(self.region))
        )

    def run(self) -> Result:
        """Read the footprint of the region in the source, reading by reading, and write the
        region."""
        # before reading: a file that changes during the read then fails the check on resume
        states = self.states()
        stream = UpsampleStream(self.plan, self.source.dtype, self.source.num_channels)
        part = None if self.plan.contains_whole_shards(self.target.shard_shape) else self.region
        with BrickWriter(
            self.target, self.plan.brick_shape, part, self.plan.region_box(self.region)
        ) as writer:
            for reading in self.plan.readings(self.region):
                memory, topleft = stream.source_memory(reading)
                nonzero = self.source.read_into(memory, topleft, fill_zeros=False)
                for index, voxels in stream.bricks(reading, memory if nonzero else None):
                    writer.put(index, voxels)
                del memory  # freed before the next reading is allocated
            receipts = writer.close()
        levels_and_receipts = tuple(
            (self.level, replace(receipt, sources=self._sources_of(receipt, states)))
            for receipt in receipts
        )
        source_box = self.plan.source_box_of(self.plan.region_box(self.region))
        return Result(
            levels_and_receipts, digest(states), nbytes_in=voxel_nbytes(self.source, source_box)
        )

    def _sources_of(self, receipt: Receipt, states: States) -> int:
        """Return the digest of the files that a shard or part is made from."""
        box = self.plan.box
        shard = clipped_cell(receipt.shard, self.target.shard_shape, box)
        # A source file that two parts of a shard share counts in one of them alone, so that the sum
        # over the parts is the digest of the whole shard.
        if receipt.part is not None:
            return digest(
                states_of_part(
                    states,
                    source_file_shape(self.source, self.plan.factor),
                    shard,
                    self.plan.region_box(self.region),
                )
            )
        source_box = self.plan.source_box_of(shard)
        low = divide(source_box.topleft, self.source.shard_shape)
        high = ceil_divide(source_box.bottomright, self.source.shard_shape)
        return digest(states[((states[:, :3] >= low) & (states[:, :3] < high)).all(axis=1)])


class UpsampleJob(RegionJob):
    """Job that makes finer mags of one coarse mag, each directly from it."""

    def __init__(
        self,
        sources: Sequence[Volume],
        targets: Sequence[TargetArray],
        plans: Sequence[UpsamplePlan],
    ) -> None:
        occupied = [
            plan.occupied(source.files.occupied(plan.source_cell_shape))
            for source, plan in zip(sources, plans, strict=True)
        ]
        super().__init__(
            targets,
            plans,
            occupied,
            lambda level, region: UpsampleSpec(
                sources[level], plans[level], targets[level], level, region
            ),
        )


def is_current(source: Volume, target: TargetArray, record: IntArray) -> bool:
    """Return whether a finished mag was made from the files that the source has now."""
    # A source file may reach beyond the shards of the box.
    file_shape = source_file_shape(source, target.box.mag.step_to(source.box.mag))
    ranges = cell_range(target.box, target.shard_shape)
    current = grouped_digests(source.files.stored_states(), file_shape, target.shard_shape)
    inside = {shard: sources for shard, sources in current.items() if is_inside(shard, ranges)}
    return inside == {vec3(row[:3]): row[5] for row in record.tolist() if row[5]}


def source_file_shape(source: Volume, factor: Vec3) -> Vec3:
    """Return the box of one source shard in voxels of a finer mag."""
    return times(source.shard_shape, factor)
