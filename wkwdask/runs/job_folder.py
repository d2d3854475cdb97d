"""The folder of a job: where new mags are built before they appear, what was done so far, and how the mags are published.

A job takes a lock for every folder that it will replace, builds beside them in a folder whose name begins with a dot, writes a publish record when
all is complete, renames, edits the metadata, and cleans up. Killed before the record, it leaves nothing visible: where it kept a journal, the same job can
go on later, else the next job removes what it left. Killed after the record, the next job finishes the renames.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from wkwdask.errors import LockedError, ResumeError
from wkwdask.formats.record_paths import RecordPaths, check_no_links, dataset_around, job_folders, job_root
from wkwdask.formats.replaceable import check_targets
from wkwdask.runs.batch_file import read_batch
from wkwdask.runs.job_records import (
    OWNER_NAME,
    OWNERLESS_SECONDS,
    PLAN_NAME,
    age_seconds,
    can_go_on,
    check_records,
    holds_locks,
    is_kept_for_later,
    read_plan,
    region_of,
    targets_of,
)
from wkwdask.runs.publishing import NewMag, Publication
from wkwdask.store import files
from wkwdask.store.json_record import format_job_record
from wkwdask.store.locks import ShardBox, guarded, hand_over_locks, locks_of, read_owner, release_lock, release_locks_of, take_lock, write_owner
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.paths import dirname
from wkwdask.store.provenance import read_provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.format import MetadataEdit
    from wkwdask.store.owner import Owner
    from wkwdask.store.slurm import SlurmJob


class JobFolder:
    """A running job's hold on the mags that it writes."""

    def __init__(
        self, parent: str, owner: Owner, targets: Sequence[str], region: ShardBox | None = None, *, is_kept_for_later: bool = True,
        datasets: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.parent = parent
        self.owner = owner
        self.root = job_root(parent, owner.job)
        self.targets = tuple(targets)
        self.region = region
        self.is_kept_for_later = is_kept_for_later
        self._datasets = tuple(datasets)

    def start(self, existing: str, settings: dict[str, Any], plan: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Lock the targets, finish or remove what dead jobs left, and make the folder, or take over that of the same job."""
        if existing != "update":  # else it would be made again where the layer was renamed
            files.makedirs(self.parent)
        try:
            with guarded(self.parent):
                done = self._take_over(existing, settings)
                if done is not None and existing in ("error", "resume"):
                    self.discard()
                    return done
                before = read_plan(self.root)
                if before is not None:
                    check_records(self._paths(self.root))
                    check_no_links(self.root)
                first_existing = existing if before is None else before["existing"]
                if first_existing != "update":
                    check_targets(self.targets, first_existing)
                files.makedirs(self.root)
                write_owner(f"{self.root}/{OWNER_NAME}", self.owner)
                if before is None:
                    record = {
                        "targets": list(map(self._paths(self.root).written, self.targets)),
                        "existing": existing,
                        "settings": settings,
                        "plan": plan,
                        "region": None if self.region is None else [self.region.low, self.region.high],
                        "is_kept_for_later": self.is_kept_for_later,
                    }
                    publish_bytes(f"{self.root}/{PLAN_NAME}", format_job_record(record))
        except BaseException:
            self.leave()
            raise
        return None

    def publish(self, mags: Sequence[NewMag], edit: MetadataEdit | None, provenance: dict[str, Any]) -> None:
        """Let complete mags appear, then the JSON say so, and end the job."""
        publication = self._publication(self.root)
        publication.prepare(self.owner.job, mags, edit, provenance)
        try:
            publication.publish()
        except KeyboardInterrupt:
            if publication.is_prepared:
                publication.publish()
            else:  # it was being removed, after all else was done
                publication.discard()
            raise
        finally:
            self._release()

    def remove(self, edit: MetadataEdit | None) -> None:
        """Take the targets away: the JSON forgets them, and they are moved into the job's folder, which :meth:`end` deletes."""
        self._publication(self.root).prepare_removal(self.targets, edit)

    def end(self) -> None:
        """Delete the job's folder after :meth:`remove`, as far as it is still there."""
        try:
            self._publication(self.root).publish()
        finally:
            self._release()

    def leave(self) -> bool:
        """End this process's work; what a later start of the same job can build on stays."""
        try:
            publication = self._publication(self.root)
            stays = publication.is_prepared or can_go_on(self.root)
            if not stays:
                publication.discard()
        finally:
            self._release()
        return stays

    def discard(self) -> None:
        """End the job without publishing anything; where publishing has begun, the next job into the layer finishes it."""
        try:
            publication = self._publication(self.root)
            if not publication.is_prepared:
                publication.discard()
        finally:
            self._release()

    def started_at(self) -> float:
        """Give the time at which this process made or took over the job's folder, or an array was handed in [seconds since the epoch]."""
        batch = read_batch(self.root)
        if batch is not None:
            return batch.rounds[0].time
        return files.stat(f"{self.root}/{OWNER_NAME}").st_mtime

    def _paths(self, root: str) -> RecordPaths:
        """Let the records of a job name what this one itself may change."""
        return RecordPaths(root, (*self._datasets, *{dataset_around(dirname(target)) for target in self.targets}))

    def _publication(self, root: str) -> Publication:
        return Publication(self._paths(root))

    def _take_over(self, existing: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """Lock the targets and end dead jobs; gives the provenance of the mags where that finished an equal job."""
        finished: set[str] = set()
        for target in sorted(self.targets):
            for before in take_lock(target, self.owner, self.region):
                if before.job != self.owner.job:
                    finished |= self._end_dead_job(dirname(target), before.job, existing)
            gone = {lock.owner.job for lock in locks_of(target) if lock.owner.is_gone() and lock.owner.job != self.owner.job}
            for job in gone:  # killed before they made a folder, or after they removed it
                if not files.exists(job_root(dirname(target), job)):
                    release_locks_of(job, [target])
        finished |= self._clean_up(existing)
        done = [read_provenance(target) for target in self.targets]
        if finished and done and all(item.get("job") in finished and item.get("settings") == settings for item in done):
            return done[0]
        return None

    def _end_dead_job(self, parent: str, job: str, existing: str) -> set[str]:
        """Finish the publishing of a dead job, or remove what it left; gives the job if it was finished."""
        root = job_root(parent, job)
        check_records(self._paths(root))
        targets = targets_of(root)
        publication = self._publication(root)
        if publication.is_prepared:
            publication.publish()
            release_locks_of(job, targets)
            return {job}
        if can_go_on(root):
            if not set(self.targets) & set(targets) or not self._is_about_same_shards(root):
                return set()
            if existing != "overwrite" and is_kept_for_later(root):
                raise ResumeError(
                    f'{root}: an interrupted job writes the same mags; existing="resume" with the same settings continues it, "overwrite" starts again'
                )
        files.remove_tree(root)
        release_locks_of(job, targets)
        made = any(read_provenance(target).get("job") == job for target in self.targets)
        return {job} if made else set()  # it was killed after its mags appeared and before its locks went

    def _is_about_same_shards(self, root: str) -> bool:
        other = region_of(root)
        return self.region is None or other is None or self.region.overlaps(other)

    def _clean_up(self, existing: str) -> set[str]:
        """End the jobs of dead processes whose locks are gone already; gives those that were finished."""
        finished: set[str] = set()
        for root, job in job_folders(self.parent):
            if job == self.owner.job:
                continue
            owner = read_owner(f"{root}/{OWNER_NAME}")
            if owner is None:
                if age_seconds(root) > OWNERLESS_SECONDS:
                    files.remove_tree(root)  # a task that outlived its discarded job made the folder anew
            elif owner.is_gone() or not holds_locks(root, job):
                with contextlib.suppress(OSError):  # what cannot be finished now must not keep other mags of the layer from being written
                    finished |= self._end_dead_job(self.parent, job, existing)
        return finished

    def _release(self) -> None:
        for target in self.targets:
            release_lock(target, self.owner)


def can_be_handed_over(root: str) -> bool:
    """Tell whether a job says in its folder what another process must know to go on."""
    return files.exists(f"{root}/{PLAN_NAME}")


def hand_over(root: str, batch: SlurmJob) -> None:
    """Let a SLURM job own a running job from now on, in place of this process: its locks stay when this process ends."""
    with guarded(dirname(root)):
        owner = read_owner(f"{root}/{OWNER_NAME}")
        if owner is None or owner.pid != os.getpid():
            raise LockedError(f"{root}: {'it is gone' if owner is None else f'it belongs to {owner}'}: it cannot be handed over")
        new = owner.handed_to(batch)
        for target in targets_of(root):
            hand_over_locks(target, new)
        write_owner(f"{root}/{OWNER_NAME}", new)
