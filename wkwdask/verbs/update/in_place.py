"""Update of mags in folders: shards whose source files have changed are rebuilt, mag by mag, and
each replaces its file in place."""

from __future__ import annotations

import errno
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import LockedError
from wkwdask.geometry.grid import cell_range, is_inside
from wkwdask.geometry.mag import vec3
from wkwdask.model.states import FILE_RECORD_COLUMNS, FILE_RECORD_NAME, grouped_digests
from wkwdask.model.summary import counted
from wkwdask.plans.regions import morton_order
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.parts import ShardTally
from wkwdask.runs.report import Report
from wkwdask.store import by_path
from wkwdask.store.records import (
    PROVENANCE_NAME,
    read_provenance,
    write_file_record,
    write_provenance,
)
from wkwdask.store.store import store_at
from wkwdask.verbs.pyramid import ExistingMag, changed_shards, factor_of, footprint, shards_in
from wkwdask.verbs.update.provenance import with_source

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.runs.job import Result, Task
    from wkwdask.runs.job_folder import JobFolder


_SAVE_SECONDS = 30.0


class UpdateJob:
    """Job that brings coarser mags up to date, finest first."""

    def __init__(
        self, mags: Sequence[ExistingMag], *, by_content: bool, box: BoundingBox | None
    ) -> None:
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
        """Voxels of finer mags that were read for all rebuilt shards."""
        return sum(
            tally.voxels * math.prod(factor_of(mag.finer, mag.target))
            for tally, mag in zip(self.tallies, self._mags, strict=True)
        )

    def tasks(self) -> Iterator[Task]:
        """Return the tasks of the next mag with shards to rebuild."""
        while self._level + 1 < len(self._mags):
            self._level += 1
            shards = self._shards_to_rebuild()
            self.num_tasks += len(shards)
            self.tallies[self._level].expected = len(shards)
            if shards:
                return self._mags[self._level].rebuilding(shards, self._level)
        return iter(())

    def _shards_to_rebuild(self) -> list[Vec3]:
        """Return the shards of the current mag to rebuild, in Morton order."""
        mag = self._mags[self._level]
        finer, target = mag.finer, mag.target
        if self._by_content:
            sources = finer.files.stored_states()
            made = grouped_digests(sources, finer.shard_shape, footprint(finer, target))
            stored = map(vec3, mag.stored_states()[:, :3].tolist())
            ranges = cell_range(target.box, target.shard_shape)
            shards = [shard for shard in {*made, *stored} if is_inside(shard, ranges)]
        elif self._box is not None:
            shards = list(shards_in(target, self._box))
        else:
            shards = list(changed_shards(mag, finer.files.stored_states(), mag.stored_states()))
        return [shards[n] for n in morton_order(np.array(shards, np.int64))]

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Record the receipts of a shard; after the last shard of a mag, continue with the next
        mag."""
        for level, receipt in result.receipts:
            self.tallies[level].add(receipt)
            self.num_changed[level] += self._was_replaced(level, receipt)
        if self.tallies[self._level].is_complete:
            self.save_record()
            return self.tasks()
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save_record()
        return ()

    def _was_replaced(self, level: int, receipt: Receipt) -> bool:
        """Return whether a shard was replaced by a different file."""
        rows = self._mags[level].record
        if level not in self._known:
            self._known[level] = (
                {}
                if rows is None
                else {(x, y, z): (nbytes, mtime) for x, y, z, nbytes, mtime, _ in rows.tolist()}
            )
        return self._known[level].get(receipt.shard) != (receipt.nbytes, receipt.mtime_ns)

    def save_record(self) -> None:
        """Record the states of the rebuilt files, so that an interrupted update does not rebuild
        them again."""
        level = self._level
        if level < 0:
            return
        mag, rebuilt = self._mags[level], self.tallies[level].shards
        if mag.record is None and not (self.tallies[level].is_complete and self._by_content):
            # shards that a record does not list count as empty: a record of some files would be
            # wrong
            return
        old = np.empty((0, FILE_RECORD_COLUMNS), np.int64) if mag.record is None else mag.record
        # Rows of rebuilt shards replace the old rows; all others stay.
        replaced = {tuple(row) for row in rebuilt[:, :3].tolist()}
        kept = np.array(
            [row for row in old.tolist() if tuple(row[:3]) not in replaced], np.int64
        ).reshape(-1, FILE_RECORD_COLUMNS)
        write_file_record(mag.target.folder, np.concatenate([kept, rebuilt]))
        self._saved = time.monotonic()


@dataclass(slots=True)
class Update(Work[Report]):
    """Update of coarser mags, file by file in place."""

    source: Volume
    folder: JobFolder
    """Job folder, which holds the locks of the mags."""
    mags: tuple[ExistingMag, ...]
    """Mags to update, finest first."""
    job: UpdateJob
    plan_again: Callable[[], Update]
    """Function that plans the same update again, from the files that are stored now."""

    def start(self) -> None:
        """Lock the mags, create the folder for temporary parts, and plan again under the locks."""
        for mag in self.mags:
            store = store_at(mag.target.folder)
            if store.is_folder() and not store.is_writable():
                raise PermissionError(errno.EACCES, "the mag cannot be written", mag.target.folder)
        # Lock first, then plan again: the second plan sees changes that another job made before the
        # lock, and no job makes any after it.
        self.folder.start("update", {"command": "update"})
        try:
            locked = self.plan_again()
            if locked.folder.targets != self.folder.targets:
                raise LockedError(
                    f"{self.folder.parent}: another job changed the mags just now; start again"
                )
            for mag in locked.mags:
                for name in (FILE_RECORD_NAME, PROVENANCE_NAME):
                    # left by an update that was killed
                    by_path.remove_temporaries(mag.target.folder, name)
                mag.target.prepare()
        except BaseException:
            self.folder.discard()
            raise
        self.source, self.mags, self.job = locked.source, locked.mags, locked.job

    def phases(self) -> Generator[Phase, str, Report]:
        """Rebuild files, end the job and report."""
        yield Phase(self.job, f"update of {self.folder.parent}", folder=self.folder.root)
        if not self.job.box_was_given:
            for mag in self.mags:
                folder = mag.target.folder
                before = read_provenance(folder)
                current = with_source(before, mag.target, self.source)
                if current != before:
                    write_provenance(folder, current)
        seconds = self.folder.seconds()
        self.folder.discard()
        tallies = self.job.tallies
        rebuilt = sum(tally.expected for tally in tallies)
        note = (
            f"{counted(rebuilt, 'file')} rebuilt, {sum(self.job.num_changed)} of them changed"
            if rebuilt
            else "nothing to do: no finer file has changed"
        )
        mags = tuple(
            tally.report(tally.target.folder, whole=False) for tally in tallies if tally.expected
        )
        return Report(
            mags,
            self.job.voxels_in * self.source.dtype.itemsize * self.source.num_channels,
            seconds,
            note,
        )

    def suspend(self, error: BaseException) -> None:
        """Record the files that were rebuilt before an error."""
        self.job.save_record()
        self.folder.discard()
