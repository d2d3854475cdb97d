"""The folder of a job: where new mags are built before they appear, what was done so far, and how the mags are published.

A job takes a lock for every folder that it will replace, builds beside them in a folder whose name begins with a dot, writes a publish record when
all is complete, renames, edits the metadata, and cleans up. Killed before the record, it leaves nothing visible: where it kept a journal, the same job can
go on later, else the next job removes what it left. Killed after the record, the next job finishes the renames.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, LockedError, ResumeError
from wkwdask.formats.publication import RECORD_NAME, format_publication, format_removal, read_publication
from wkwdask.formats.record_paths import RecordPaths, check_no_links, dataset_around, job_folders, job_root
from wkwdask.formats.replaceable import check_targets, inherit_tree_permissions
from wkwdask.model.parsing import reason_of
from wkwdask.runs import job_records
from wkwdask.runs.batch_file import read_batch
from wkwdask.runs.job_records import OWNER_NAME, PLAN_NAME, JobState, can_resume, check_records, holds_locks, targets_of
from wkwdask.store import files, locks
from wkwdask.store.json_record import format_job_record
from wkwdask.store.locks import ShardBox, guarded, locks_of, read_owner, release_lock, release_locks_of, write_owner
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.paths import basename, dirname
from wkwdask.store.records import read_provenance, write_provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.format import MetadataEdit
    from wkwdask.store.locks import Owner
    from wkwdask.store.slurm import SlurmJob


@dataclass(frozen=True, slots=True)
class NewMag:
    """One mag that a job builds."""

    staged: str
    """Name of its folder inside the job's folder."""
    folder: str
    box: tuple[int, ...] | None = None
    """Where it has data, as its provenance keeps it: lowest voxel and size [voxels of the mag]."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """The publication of the mags that are built in a job's folder."""

    paths: RecordPaths
    """The job's folder, and what its records may name."""

    @property
    def is_prepared(self) -> bool:
        """Whether it has begun: then only :meth:`publish` ends it."""
        return files.exists(self._record)

    @property
    def _record(self) -> str:
        return f"{self.paths.root}/{RECORD_NAME}"

    def prepare(self, job: str, mags: Sequence[NewMag], edit: MetadataEdit | None, provenance: dict[str, Any]) -> None:
        """Complete mags, let them last, and write down what :meth:`publish` has to do."""
        mark = secrets.token_hex(8)
        for mag in mags:
            staged = f"{self.paths.root}/{mag.staged}"
            write_provenance(staged, {"job": job, "publication": mark, **provenance, **({} if mag.box is None else {"box": mag.box})})
            inherit_tree_permissions(staged, mag.folder)
            for folder, _, _ in files.walk(staged, topdown=False):
                files.fsync(folder)
        listed = [(mag.staged, mag.folder) for mag in mags]
        publish_bytes(self._record, format_publication(self.paths, job, mark, listed, edit))

    def publish(self) -> None:
        """Do what the record says; doing it again changes nothing."""
        root, publication = self.paths.root, read_publication(self.paths)
        if publication is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._record)
        if publication.removed is not None:
            self.hide_removed()
        for staged, folder in publication.mags:
            if read_provenance(folder).get("publication") != publication.publication_id:
                files.publish_folder(staged, folder)
        if publication.removed is None and publication.edit is not None:
            _apply(publication.edit, self._record)
        with contextlib.suppress(FileNotFoundError):  # another job may be ending this one at the same time
            files.unlink(f"{root}/{PLAN_NAME}")  # before the rest: the folder holds the old mags now, and must not look like a job that can go on
            files.fsync(root)
        self.discard()

    def hide_removed(self) -> None:
        """Let the JSON forget the mags that a record takes away, and move them beside it; from then on it says that nothing but deleting is left."""
        root, publication = self.paths.root, read_publication(self.paths)
        if publication is None or publication.removed is None:
            return
        if publication.edit is not None:
            _apply(publication.edit, self._record)
        for number, folder in enumerate(publication.removed):
            with contextlib.suppress(FileNotFoundError):  # moved before, or listed in the JSON and not there
                files.rename(folder, f"{root}/{number}-{basename(folder)}")
                files.fsync(dirname(folder))
        files.fsync(root)
        publish_bytes(self._record, format_removal(self.paths, (), None))

    def discard(self) -> None:
        """Remove what was built, or what was replaced."""
        files.remove_tree(self.paths.root)


def _apply(edit: MetadataEdit, source: str) -> None:
    """Change the metadata as a record says; values of a wrong kind are faults of the record, other errors are those of the change."""
    try:
        edit.apply()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise CorruptError(f"{source}: not readable as record: {reason_of(error)}") from error


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
                before = job_records.read_plan(self.root)
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
            self.suspend()
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
        paths = self._paths(self.root)
        publish_bytes(f"{self.root}/{RECORD_NAME}", format_removal(paths, self.targets, edit))
        Publisher(paths).hide_removed()

    def end(self) -> None:
        """Delete the job's folder after :meth:`remove`, as far as it is still there."""
        try:
            self._publication(self.root).publish()
        finally:
            self._release()

    def suspend(self) -> bool:
        """End this process's work; what a later start of the same job can build on stays."""
        try:
            publication = self._publication(self.root)
            stays = publication.is_prepared or can_resume(self.root)
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

    def _publication(self, root: str) -> Publisher:
        return Publisher(self._paths(root))

    def _take_over(self, existing: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """Lock the targets and end dead jobs; gives the provenance of the mags where that finished an equal job."""
        finished: set[str] = set()
        for target in sorted(self.targets):
            for before in locks.take_lock(target, self.owner, self.region):
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
        if can_resume(root):
            if not set(self.targets) & set(targets) or not locks.regions_overlap(self.region, job_records.region_of(root)):
                return set()
            if existing != "overwrite" and job_records.is_kept_for_later(root):
                raise ResumeError(
                    f'{root}: an interrupted job writes the same mags; existing="resume" with the same settings continues it, "overwrite" starts again'
                )
        files.remove_tree(root)
        release_locks_of(job, targets)
        made = any(read_provenance(target).get("job") == job for target in self.targets)
        return {job} if made else set()  # it was killed after its mags appeared and before its locks went

    def _clean_up(self, existing: str) -> set[str]:
        """End the jobs of dead processes whose locks are gone already; gives those that were finished."""
        finished: set[str] = set()
        for root, job in job_folders(self.parent):
            if job == self.owner.job:
                continue
            owner = read_owner(f"{root}/{OWNER_NAME}")
            if owner is None:
                if job_records.age_seconds(root) > job_records.OWNERLESS_SECONDS:
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
            locks.hand_over_locks(target, new)
        write_owner(f"{root}/{OWNER_NAME}", new)


# ----------------------------------------------------------------------------- jobs that died


REMOVAL = "rm of "
"""How the command of a job begins that takes mags away."""


def find_removals(parent: str, datasets: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Find what dead jobs left that were taking mags away; what was not out of sight is now."""
    roots: list[str] = []
    targets: list[str] = []
    if not files.isdir(parent) or (job_records.has_no_jobs(parent, ()) and not locks.locked_folders(parent)):
        return roots, targets
    with guarded(parent):
        for root, job in job_folders(parent):
            owner = read_owner(f"{root}/{OWNER_NAME}")
            if owner is None or not (owner.is_gone() or not holds_locks(root, job)):
                continue
            paths = RecordPaths(root, tuple(datasets))
            publication = read_publication(paths)
            if publication is not None and publication.removed is not None:
                check_records(paths)
                Publisher(paths).hide_removed()
                roots.append(root)
                targets += targets_of(root)
                release_locks_of(job, targets_of(root))
        for target, holder in locks.locked_folders(parent):
            if holder.is_gone() and holder.command.startswith(REMOVAL) and not files.lexists(target):
                if job_root(parent, holder.job) not in roots:
                    files.remove_tree(job_root(parent, holder.job))
                release_locks_of(holder.job, [target])
                targets.append(target)
    return roots, targets


def end_removal(root: str) -> None:
    """Remove what is left of a folder that :func:`find_removals` found."""
    Publisher(RecordPaths(root)).publish()


def discard_dead_jobs(parent: str) -> None:
    """Remove what dead jobs left in a layer that is removed, even if they could go on."""
    if next(job_folders(parent), None) is None:
        return
    with guarded(parent):
        for root, job in job_folders(parent):
            owner = read_owner(f"{root}/{OWNER_NAME}")
            if owner is None or owner.is_gone() or not holds_locks(root, job):
                _discard(root, job)


def discard_interrupted(root: str) -> None:
    """Remove what an interrupted job left."""
    parent = dirname(root)
    with guarded(parent):
        state = dict(job_records.job_states(parent)).get(root)
        if state not in (None, JobState.CAN_GO_ON, JobState.DEAD):
            raise LockedError(f"{root}: {state.value}: only jobs that were interrupted are removed")
        _discard(root, basename(root).removeprefix(basename(job_root(parent, ""))))


def _discard(root: str, job: str) -> None:
    check_records(RecordPaths(root))
    release_locks_of(job, targets_of(root))
    files.remove_tree(root)
