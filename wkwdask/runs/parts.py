"""Shards that are written whole by one task, or in parts by several: how bricks reach them, and what is joined when."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import ResumeError
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.model.states import describe
from wkwdask.runs.job import Result, Task
from wkwdask.runs.tally import ShardTally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.placement import Placement, Writer
    from wkwdask.model.receipts import Receipt
    from wkwdask.model.states import States
    from wkwdask.model.volume import Volume


_GATHERED_NBYTES = 32 << 20  # of all shards that are open at once


class BrickWriter:
    """Hands the bricks of one mag to the writers of their files or parts."""

    def __init__(self, target: Placement, brick_shape: Vec3, part: Vec3 | None, region: BoundingBox | None = None) -> None:
        self._target = target
        self._brick_shape = brick_shape
        self._part = part
        self._region = region
        self._come: Counter[Vec3] = Counter()
        self._open: dict[Vec3, Writer] = {}
        self._receipts: list[Receipt] = []

    def put(self, index: Vec3, voxels: npt.NDArray[Any] | None) -> None:
        """Write a brick: its voxels inside the target's box, shape (c, x, y, z), None where all are zero."""
        box = self._target.box
        brick = cell_box(index, self._brick_shape, box).intersection(box)
        for shard in cells(brick, self._target.shard_shape):
            inside = cell_box(shard, self._target.shard_shape, brick).intersection(brick)
            writer = self._writer(shard)
            if voxels is None:
                writer.skip(inside)
            else:
                corner = tuple(slice(a - t, b - t) for a, b, t in zip(inside.topleft, inside.bottomright, brick.topleft, strict=True))
                writer.append(voxels[(slice(None), *corner)], inside.topleft)
            self._close_if_whole(shard, inside)
        if len(self._open) > 1 and sum(writer.gathered_nbytes for writer in self._open.values()) > _GATHERED_NBYTES:
            for writer in self._open.values():
                writer.flush()

    def _close_if_whole(self, shard: Vec3, inside: BoundingBox) -> None:
        if self._region is None:
            return
        self._come[shard] += inside.volume
        if self._come[shard] == cell_box(shard, self._target.shard_shape, self._region).intersection(self._region).volume:
            self._receipts.append(self._open[shard].close())
            del self._open[shard]

    def _writer(self, shard: Vec3) -> Writer:
        writer = self._open.get(shard)
        if writer is None:
            if self._part is None:  # whole files come one after the other
                self._finish()
            writer = self._open[shard] = self._target.open_part(shard, self._part)
        return writer

    def _finish(self) -> None:
        for shard in list(self._open):
            self._receipts.append(self._open[shard].close())
            del self._open[shard]

    def close(self) -> list[Receipt]:
        """Publish what is open, and give all receipts."""
        self._finish()
        return self._receipts

    def discard(self) -> None:
        """Remove what is open."""
        for writer in self._open.values():
            writer.discard()


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """Join the parts of one file."""

    target: Placement
    """The mag."""
    level: int
    """Index of the mag in the job."""
    shard: Vec3
    """Which file."""
    parts: tuple[Receipt, ...]
    """All its parts."""

    def task(self) -> Task:
        """Give the task."""
        return Task(f"file {self.shard} of mag {self.target.box.mag}", join_key(self.level, self.shard), JoinSpec.run, self)

    def run(self) -> Result:
        """Join, and give the receipt of the file."""
        return Result(((self.level, self.target.join_shard(self.shard, self.parts)),))


def join_key(level: int, shard: Vec3) -> str:
    """Say what a journal calls the join of a file."""
    return "join {} {},{},{}".format(level, *shard)


class Gathering:
    """What has come back so far: receipts of whole shards are added up, those of parts wait until all of their shard are there."""

    def __init__(self, targets: Sequence[Placement]) -> None:
        self.targets = tuple(targets)
        self.tallies = [ShardTally(target, 0) for target in targets]
        self._parts: dict[tuple[int, Vec3], list[Receipt]] = {}

    def take(self, task: Task, result: Result, num_parts: Callable[[int, Vec3], int]) -> list[Task]:
        """Take the result of a task."""
        if isinstance(task.spec, JoinSpec):
            task.spec.target.remove_parts(task.spec.shard)
        joins: list[Task] = []
        for level, receipt in result.receipts:
            if receipt.part is None:
                self.tallies[level].add(receipt)
                continue
            parts = self._parts.setdefault((level, receipt.shard), [])
            parts.append(receipt)
            if len(parts) == num_parts(level, receipt.shard):
                joins.insert(0, JoinSpec(self.targets[level], level, receipt.shard, tuple(self._parts.pop((level, receipt.shard)))).task())
        return joins

    def is_there(self, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Tell whether all that an earlier start wrote is there, or the shards that it was joined into are."""
        return all(self._holds(level, receipt, known) for level, receipt in result.receipts)

    def _holds(self, level: int, receipt: Receipt, known: Callable[[str], Result | None]) -> bool:
        target = self.targets[level]
        if receipt.part is not None:
            joined = known(join_key(level, receipt.shard))
            if joined is not None and all(target.holds(whole) for _, whole in joined.receipts):
                return True
        return target.holds(receipt)


def states_of_part(states: States, file_shape: Vec3, shard: BoundingBox, region: BoundingBox) -> States:
    """Choose the source files that count for one part of a shard: of the files that several parts read, each counts in one part alone."""
    corners = np.maximum(states[:, :3] * file_shape, shard.topleft)
    mine: States = states[((corners >= region.topleft) & (corners < region.bottomright)).all(axis=1)]
    return mine


def source_changed(task: Task, states: States, source: Volume) -> ResumeError:
    """Say that a job cannot go on because a task would read something else now than it did."""
    return ResumeError(
        f'{task.name}: the source has changed since the job was interrupted ({describe(states, source.shard_path)}); existing="overwrite" starts anew'
    )
