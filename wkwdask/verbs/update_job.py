"""The update job: shards of coarser mags that lie above changed files are made anew, mag by mag, and published one by one into the living mags."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.model.states import grouped_digests
from wkwdask.plans.pyramid import plan_pass
from wkwdask.plans.regions import morton_order
from wkwdask.runs.tally import ShardTally
from wkwdask.store.records import RECORD_COLUMNS, write_record
from wkwdask.verbs.pyramid_job import RegionSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.receipts import Receipt
    from wkwdask.model.volume import Target, Volume
    from wkwdask.runs.job import Result, Task

_SAVE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LivingMag:
    """A mag that is there and is to be brought up to date."""

    target: Target
    """How its shards are written, in place."""
    finer: Volume
    """The mag that it is made from."""
    method: str
    """How a window becomes a voxel."""
    ignore_zero: bool
    """Whether zeros do not count in a window."""
    record: npt.NDArray[np.int64] | None
    """What it keeps about its files, see ``wkwdask.store.records``; None where it keeps nothing."""
    old_box: BoundingBox | None
    """Box of the finer mag when the record was made [voxels of the finer mag]."""


def changed_shards(mag: LivingMag) -> set[Vec3]:
    """Find the shards of a mag that are not as its record says, or whose sources have changed since it was made."""
    target, finer = mag.target, mag.finer
    now = grouped_digests(finer.stored_states(), finer.shard_shape, _footprint(finer, target))
    record = np.empty((0, RECORD_COLUMNS), np.int64) if mag.record is None else mag.record
    then = {(x, y, z): sources for x, y, z, _, _, sources in record.tolist()}
    touched = cell_range(target.box, target.shard_shape)
    changed = {index for index in now.keys() | then.keys() if now.get(index, 0) != then.get(index, 0)}
    changed |= _changed_files(target, record)
    if mag.old_box is not None and mag.old_box != finer.box:
        changed |= {index for index in now.keys() | then.keys() if _counted(index, mag, mag.old_box) != _counted(index, mag, finer.box)}
    return {index for index in changed if all(i in r for i, r in zip(index, touched, strict=True))}


def _changed_files(target: Target, record: npt.NDArray[np.int64]) -> set[Vec3]:
    """Find the files of a mag that are not as its record says: gone, replaced, or never made."""
    found = {tuple(row) for row in target.as_volume().stored_states().tolist()}
    known = {tuple(row[:5]) for row in record.tolist() if row[3]}
    return {(row[0], row[1], row[2]) for row in found ^ known}


def _counted(index: Vec3, mag: LivingMag, box: BoundingBox) -> BoundingBox:
    """Give the voxels of the finer mag that count in the windows of a shard: those inside the box."""
    return cell_box(index, _footprint(mag.finer, mag.target), box).intersection(box)


class UpdateJob:
    """Brings coarser mags up to date."""

    def __init__(self, mags: Sequence[LivingMag], *, by_content: bool, box: BoundingBox | None) -> None:
        self.tallies = [ShardTally(mag.target, 0) for mag in mags]
        self.num_tasks = 0
        self.num_changed = [0] * len(mags)
        self.box_was_given = box is not None
        self._known: dict[int, dict[Vec3, tuple[int, int]]] = {}
        self._mags = mags
        self._by_content = by_content
        self._box = box
        self._level = -1
        self._saved = time.monotonic()

    @property
    def voxels_in(self) -> int:
        """Voxels of the finer mags that were read for all shards that were made."""
        return sum(tally.voxels * math.prod(_factor(mag.finer, mag.target)) for tally, mag in zip(self.tallies, self._mags, strict=True))

    def tasks(self) -> Iterator[Task]:
        """Give the shards of the first mag that has any to make."""
        while self._level + 1 < len(self._mags):
            self._level += 1
            shards = self._shards_to_make()
            self.num_tasks += len(shards)
            self.tallies[self._level].expected = len(shards)
            if shards:
                return self._tasks_of(shards)
        return iter(())

    def _shards_to_make(self) -> list[Vec3]:
        """Choose shards of the current mag, in Morton order."""
        mag = self._mags[self._level]
        finer, target = mag.finer, mag.target
        if self._by_content:
            stored = target.as_volume().stored_states()[:, :3].tolist()
            chosen = set(grouped_digests(finer.stored_states(), finer.shard_shape, _footprint(finer, target))) | {(x, y, z) for x, y, z in stored}
        elif self._box is not None:
            chosen = set(cells(self._box.in_mag(target.box.mag).intersection(target.box), target.shard_shape))
        else:
            chosen = changed_shards(mag)
        touched = cell_range(target.box, target.shard_shape)
        ordered = [index for index in chosen if all(i in r for i, r in zip(index, touched, strict=True))]
        if not ordered:
            return []
        return [ordered[n] for n in morton_order(np.array(ordered))]

    def _tasks_of(self, shards: Sequence[Vec3]) -> Iterator[Task]:
        mag = self._mags[self._level]
        finer, target = mag.finer, mag.target
        voxel_nbytes = target.dtype.itemsize * target.num_channels
        plan = plan_pass(finer.box, [target.box.mag], target.chunk_shape, voxel_nbytes, target.shard_shape)
        return (RegionSpec(finer, plan, (target,), mag.method, mag.ignore_zero, shard, self._level).task() for shard in shards)

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take the receipts of a shard; after the last one of a mag, go on with the next mag."""
        for level, receipt in result.receipts:
            self.tallies[level].add(receipt)
            self.num_changed[level] += self._is_other(level, receipt)
        if self.tallies[self._level].is_complete:
            self.save_record(self._level)
            return self.tasks()
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save_record(self._level)
        return ()

    def _is_other(self, level: int, receipt: Receipt) -> bool:
        """Tell whether a shard was really replaced."""
        rows = self._mags[level].record
        if level not in self._known:
            self._known[level] = {} if rows is None else {(x, y, z): (nbytes, mtime) for x, y, z, nbytes, mtime, _ in rows.tolist()}
        return self._known[level].get(receipt.shard) != (receipt.nbytes, receipt.mtime_ns)

    def save_what_is_done(self) -> None:
        """Keep what is known about the files of the mag that is being made, where an update ends early."""
        if self._level >= 0:
            self.save_record(self._level)

    def save_record(self, level: int) -> None:
        """Keep what is known about the files of a mag: then an update that is interrupted goes on from there."""
        mag, fresh = self._mags[level], self.tallies[level].shards
        if mag.record is None and not (self.tallies[level].is_complete and self._by_content):
            return  # a record of some files would say that all others are empty
        old = np.empty((0, RECORD_COLUMNS), np.int64) if mag.record is None else mag.record
        made = {tuple(row) for row in fresh[:, :3].tolist()}
        kept = np.array([row for row in old.tolist() if tuple(row[:3]) not in made], np.int64).reshape(-1, RECORD_COLUMNS)
        write_record(mag.target.folder, np.concatenate([kept, fresh]))
        self._saved = time.monotonic()


def _footprint(finer: Volume, target: Target) -> Vec3:
    """Give the box of one shard of a mag in the voxels of the finer mag."""
    factor, shape = _factor(finer, target), target.shard_shape
    return shape[0] * factor[0], shape[1] * factor[1], shape[2] * factor[2]


def _factor(finer: Volume, target: Target) -> Vec3:
    return finer.box.mag.step_to(target.box.mag)
