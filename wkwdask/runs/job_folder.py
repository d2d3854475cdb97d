"""Job folder, in which mags are built, and from which they are published, also after a crash.

A job locks every folder that it will replace, and builds the new ones in a hidden folder beside
them::

    layer/.1.wkwdask-lock              lock of mag 1, names the job
    layer/.wkwdask-job-<job>/          job folder
        owner.json                     process or SLURM job that runs it
        plan.json                      targets, settings, decisions of the first start
        journal-0.jsonl                finished tasks
        1/                             mag being built
        publish.json                   publish record, written when all mags are complete

Writing the publish record is the commit point. A job that is killed before leaves nothing visible:
with a journal, the same job can resume; without one, the next job removes the folder. If a job is
killed after the commit point, the next job in the layer completes the publication.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, DiscardWarning, LockedError, ResumeError
from wkwdask.formats.publication import (
    RECORD_NAME,
    format_publication,
    format_removal,
    read_publication,
)
from wkwdask.formats.record_paths import (
    RecordPaths,
    check_no_links,
    dataset_around,
    job_folders,
    job_root,
)
from wkwdask.formats.replaceable import check_targets, inherit_tree_permissions, replaces
from wkwdask.model.parsing import reason_of
from wkwdask.model.states import FILE_RECORD_NAME
from wkwdask.model.summary import counted, format_nbytes
from wkwdask.runs import job_records
from wkwdask.runs.batch_file import read_batch
from wkwdask.runs.calls import current_call
from wkwdask.runs.job_records import (
    OWNER_NAME,
    PLAN_NAME,
    JobState,
    can_resume,
    check_records,
    holds_locks,
    targets_of,
)
from wkwdask.runs.journal import finished_work
from wkwdask.store import by_path, locks
from wkwdask.store.json_record import format_job_record
from wkwdask.store.locks import (
    ShardBox,
    guarded,
    locks_of,
    read_owner,
    release_lock,
    release_locks_of,
    write_owner,
)
from wkwdask.store.paths import basename, dirname
from wkwdask.store.records import PROVENANCE_NAME, format_provenance, read_provenance
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.store import Store
    from wkwdask.store.locks import Owner
    from wkwdask.store.slurm import SlurmJob


@dataclass(frozen=True, slots=True)
class NewMag:
    """Complete mag to be published."""

    staged: str
    """Name of its folder in the job folder."""
    folder: str
    """Final folder."""
    mag: str | None = None
    """Name of the mag for the provenance."""
    box: tuple[int, ...] | None = None
    """Box of its data for the provenance: topleft and size [voxels of the mag]."""
    file_record: bytes | None = None
    """Record of its files, see ``wkwdask.store.records``."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """Publication of the mags in a job folder."""

    paths: RecordPaths

    @property
    def is_prepared(self) -> bool:
        """Whether the publish record exists; then only :meth:`publish` ends the job."""
        return self._store.exists(RECORD_NAME)

    @property
    def _store(self) -> Store:
        return store_at(self.paths.root)

    @property
    def _record(self) -> str:
        return self._store.path_of(RECORD_NAME)

    def prepare(
        self,
        job: str,
        mags: Sequence[NewMag],
        edit: MetadataEdit | None,
        provenance: dict[str, Any],
    ) -> None:
        """Complete the mags, flush them, and write the publish record."""
        # A repeated publish() skips the mags whose final folders contain this id in their
        # provenance.
        publication_id = secrets.token_hex(8)
        store, folders = self._store, folders_of(self.paths.root)
        records = store.new_files(self.paths.root)
        try:
            for mag in mags:
                stated = {
                    name: value
                    for name, value in (("mag", mag.mag), ("box", mag.box))
                    if value is not None
                }
                own = {"job": job, "publication": publication_id, **provenance, **stated}
                records.write(f"{mag.staged}/{PROVENANCE_NAME}", format_provenance(own))
                if mag.file_record is not None:
                    records.write(f"{mag.staged}/{FILE_RECORD_NAME}", mag.file_record)
            records.publish()
        except BaseException:
            records.discard()
            raise
        for mag in mags:
            inherit_tree_permissions(f"{self.paths.root}/{mag.staged}", mag.folder)
        for mag in mags:
            # the files were flushed when they were written, but not their names, which the record
            # relies on
            for folder in reversed([folder for folder, _, _ in store.walk(mag.staged)]):
                folders.fsync(folder)
        listed = [(mag.staged, mag.folder) for mag in mags]
        store.put(RECORD_NAME, format_publication(self.paths, job, publication_id, listed, edit))

    def publish(self) -> None:
        """Carry out the publish record. Repeating it is harmless."""
        # Each step can be repeated, and after a crash at any point the dataset is readable:
        #
        #   1. move levels out of the folders of new ones       only where levels are numbered
        #      exchange each staged mag with its final folder   the id in the provenance marks those that are done  # noqa: E501
        #   2. edit the metadata                                readers ignore a mag that the metadata does not list yet  # noqa: E501
        #   3. unlink plan.json                                 the folder now contains the replaced mags and must not look resumable  # noqa: E501
        #   4. delete the job folder, publish.json included     until here the next job repeats from 1  # noqa: E501
        folders, publication = folders_of(self.paths.root), read_publication(self.paths)
        if publication is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._record)
        if publication.removed is not None:
            self.hide_removed()
        edit = None if publication.removed is not None else publication.edit
        if edit is not None:
            _apply(edit.make_room, self._record)
        for staged, folder in publication.mags:
            if read_provenance(folder).get("publication") != publication.publication_id:
                by_path.publish_folder(staged, folder)
        for parent in dict.fromkeys(dirname(folder) for _, folder in publication.mags):
            folders.fsync(parent)
        if edit is not None:
            _apply(edit.apply, self._record)
        with contextlib.suppress(FileNotFoundError):
            # another job may be ending this one at the same time
            self._store.delete(PLAN_NAME)
        self.discard()

    def hide_removed(self) -> None:
        """Remove mags from the metadata and move them into the job folder, so that only deleting is
        left."""
        root, publication = self.paths.root, read_publication(self.paths)
        folders = folders_of(root)
        if publication is None or publication.removed is None:
            return
        # The order is opposite to that of publish(), since the metadata must never list a missing
        # mag. The last line empties the record: otherwise, a repeated call could move a mag of the
        # same name that another job has published in the meantime.
        if publication.edit is not None:
            _apply(publication.edit.apply, self._record)
        for number, folder in enumerate(publication.removed):
            with contextlib.suppress(FileNotFoundError):
                # already moved, or listed in the metadata without a folder
                folders.rename(folder, f"{root}/{number}-{basename(folder)}")
                folders.fsync(dirname(folder))
        folders.fsync(root)
        self._store.put(RECORD_NAME, format_removal(self.paths, (), None))

    def discard(self) -> None:
        """Delete the job folder with new or replaced mags."""
        self._store.delete_folder()


def _apply(step: Callable[[], None], source: str) -> None:
    """Make a step of a metadata edit; errors from values of a wrong type are reported as a damaged
    record."""
    try:
        step()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise CorruptError(f"{source}: not readable as record: {reason_of(error)}") from error


class JobFolder:
    """Locks and folder of a running job."""

    def __init__(
        self,
        parent: str,
        owner: Owner,
        targets: Sequence[str],
        region: ShardBox | None = None,
        *,
        is_kept_for_later: bool = True,
        datasets: Sequence[str] = (),
    ) -> None:
        self.parent = parent
        self.owner = owner
        self.root = job_root(parent, owner.job)
        self.targets = tuple(targets)
        self.region = region
        self.is_kept_for_later = is_kept_for_later
        self._datasets = tuple(datasets)
        self._store = store_at(self.root)

    def start(
        self,
        existing: str,
        settings: dict[str, Any],
        plan: dict[str, Any] | None = None,
        resumed_by: str | None = None,
    ) -> dict[str, Any] | None:
        """Lock the targets, complete or remove dead jobs, and create the job folder or take over
        that of an interrupted start.

        Return the provenance of the published mags if completing a dead job has finished this one
        too.
        """
        if existing != "update":
            # an update must not recreate the folder of a layer that was just renamed
            store_at(self.parent).make()
        try:
            with guarded(self.parent):
                done = self._take_over(existing, settings)
                if done is not None and existing not in ("restart", "update"):
                    self.discard()
                    return done
                before = job_records.read_plan(self.root)
                if before is not None:
                    check_records(self._paths(self.root))
                    check_no_links(self.root)
                # A job that began with "overwrite" may still replace its targets when it continues
                # with "resume".
                first_existing = (
                    existing if before is None or replaces(existing) else before["existing"]
                )
                if first_existing != "update":
                    check_targets(self.targets, first_existing)
                self._store.make()
                # The owner comes first, since a folder with a plan but no owner would belong to no
                # job. The plan comes last and makes the job resumable.
                write_owner(f"{self.root}/{OWNER_NAME}", self.owner)
                if before is None:
                    record = {
                        "targets": list(map(self._paths(self.root).format_path, self.targets)),
                        "existing": existing,
                        "settings": settings,
                        "plan": plan,
                        "region": None
                        if self.region is None
                        else [self.region.low, self.region.high],
                        "is_kept_for_later": self.is_kept_for_later,
                        "call": current_call().to_json(),
                        "resumed_by": resumed_by,
                    }
                    self._store.put(PLAN_NAME, format_job_record(record))
        except BaseException:
            self.suspend()
            raise
        return None

    def publish(
        self, mags: Sequence[NewMag], edit: MetadataEdit | None, provenance: dict[str, Any]
    ) -> None:
        """Publish complete mags, then the metadata, and end the job."""
        publication = self._publication(self.root)
        publication.prepare(self.owner.job, mags, edit, provenance)
        try:
            publication.publish()
        except KeyboardInterrupt:  # past the commit point: complete the publication before stopping
            if publication.is_prepared:
                publication.publish()
            else:  # only the deletion of the job folder was left
                publication.discard()
            raise
        finally:
            self._release()

    def remove(self, edit: MetadataEdit | None) -> None:
        """Remove the targets from the metadata and move them into the job folder, which :meth:`end`
        deletes."""
        paths = self._paths(self.root)
        self._store.put(RECORD_NAME, format_removal(paths, self.targets, edit))
        Publisher(paths).hide_removed()

    def end(self) -> None:
        """Delete the job folder after :meth:`remove`."""
        try:
            self._publication(self.root).publish()
        finally:
            self._release()

    def suspend(self) -> bool:
        """End the work of this process. Return whether finished work stays for a later start."""
        try:
            publication = self._publication(self.root)
            is_kept = publication.is_prepared or can_resume(self.root)
            if not is_kept:
                publication.discard()
        finally:
            self._release()
        return is_kept

    def discard(self) -> None:
        """End the job and delete its folder, unless publication has begun: then the next job in the
        layer completes it."""
        try:
            publication = self._publication(self.root)
            if not publication.is_prepared:
                publication.discard()
        finally:
            self._release()

    def seconds(self) -> float:
        """Return the time since this process created or took over the folder, or submitted the job
        array [s]; 0 if the clock was set back meanwhile."""
        batch = read_batch(self.root)
        started = self._store.status(OWNER_NAME).st_mtime if batch is None else batch.rounds[0].time
        return max(0.0, time.time() - started)

    def _paths(self, root: str) -> RecordPaths:
        """Return the paths that records of a job may name: those in datasets that this job may
        change."""
        return RecordPaths(
            root, (*self._datasets, *{dataset_around(dirname(target)) for target in self.targets})
        )

    def _publication(self, root: str) -> Publisher:
        return Publisher(self._paths(root))

    def _take_over(self, existing: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """Lock the targets and end dead jobs; return the provenance of the mags if that completed
        an equal job."""
        # Locks are taken in sorted order: otherwise, two jobs on the same mags could each take one
        # lock and fail at the other. The lock of a dead job is taken over before the job is
        # completed or removed, so that no third job sees the mag unlocked in between.
        finished: set[str] = set()
        for target in sorted(self.targets):
            for before in locks.take_lock(target, self.owner, self.region):
                if before.job != self.owner.job:
                    finished |= self._end_dead_job(dirname(target), before.job, existing)
            dead = {
                lock.owner.job
                for lock in locks_of(target)
                if lock.owner.is_gone() and lock.owner.job != self.owner.job
            }
            for job in dead:
                # these jobs were killed before they created their folder, or after they deleted it
                if not store_at(job_root(dirname(target), job)).exists():
                    release_locks_of(job, [target])
        finished |= self._clean_up(existing)
        done = [read_provenance(target) for target in self.targets]
        if (
            finished
            and done
            and all(
                item.get("job") in finished and item.get("settings") == settings for item in done
            )
        ):
            return done[0]
        return None

    def _end_dead_job(self, parent: str, job: str, existing: str) -> set[str]:
        """Complete or remove a dead job; return it if its mags are published."""
        # A dead job is in one of three states:
        #   publish record         publication began: complete it
        #   journal, no record     resumable: keep it if it writes other mags or shards. Else delete it with existing="restart" or if it resumes only on  # noqa: E501
        #                          request, and raise an error in all other cases
        #   neither                no finished work: delete it
        root = job_root(parent, job)
        check_records(self._paths(root))
        targets = targets_of(root)
        publication = self._publication(root)
        if publication.is_prepared:
            publication.publish()
            release_locks_of(job, targets)
            return {job}
        if can_resume(root):
            if not set(self.targets) & set(targets) or not locks.regions_overlap(
                self.region, job_records.region_of(root)
            ):
                return set()
            if existing != "restart" and job_records.is_kept_for_later(root):
                remedy = (
                    f"wkwdask cancel {parent} --discard removes it"
                    if existing == "update"
                    else 'existing="restart" discards it and starts over'
                )
                raise ResumeError(
                    f"{root}: an interrupted job writes the same mags; the call that started it "
                    f"resumes it, {remedy}"
                )
            owner = job_records.job_owner(root)
            warn_of_discarded(root, root if owner is None else f"{owner.command} ({owner.since})")
        store_at(root).delete_folder()
        release_locks_of(job, targets)
        is_published = any(read_provenance(target).get("job") == job for target in self.targets)
        # true if it was killed while it deleted its folder, or before it released its locks
        return {job} if is_published else set()

    def _clean_up(self, existing: str) -> set[str]:
        """End the other dead jobs in the layer; return those that were completed."""
        finished: set[str] = set()
        for root, job in job_folders(self.parent):
            if job == self.owner.job:
                continue
            owner = read_owner(f"{root}/{OWNER_NAME}")
            if owner is None:
                if job_records.age_seconds(root) > job_records.OWNERLESS_SECONDS:
                    # a task that outlived its discarded job has created the folder again
                    store_at(root).delete_folder()
            elif owner.is_gone() or not holds_locks(root, job):
                with contextlib.suppress(OSError):
                    # a dead job that cannot be completed must not block jobs on other mags of the
                    # layer
                    finished |= self._end_dead_job(self.parent, job, existing)
        return finished

    def _release(self) -> None:
        for target in self.targets:
            release_lock(target, self.owner)


def warn_of_discarded(root: str, what: str) -> None:
    """Warn that the finished work in a job folder is discarded."""
    count, nbytes = finished_work(root)
    work = f"{counted(count, 'task')}, {format_nbytes(nbytes)}"
    warnings.warn(
        f"discards the finished work of an interrupted job: {work} of {what}",
        DiscardWarning,
        stacklevel=2,
    )


def can_be_handed_over(root: str) -> bool:
    """Check whether the folder of a job has the records that another process needs to continue
    it."""
    return store_at(root).exists(PLAN_NAME)


def hand_over(root: str, batch: SlurmJob) -> None:
    """Make a SLURM job the owner of a running job, so that its locks outlive this process."""
    with guarded(dirname(root)):
        owner = read_owner(f"{root}/{OWNER_NAME}")
        if owner is None or owner.pid != os.getpid():
            raise LockedError(
                f"{root}: {'it is gone' if owner is None else f'it belongs to {owner}'}: it cannot "
                "be handed to SLURM"
            )
        new_owner = owner.handed_to(batch)
        for target in targets_of(root):
            locks.hand_over_locks(target, new_owner)
        write_owner(f"{root}/{OWNER_NAME}", new_owner)


# ----------------------------------------------------------------------------- dead jobs


REMOVAL = "rm of "
"""Prefix of the command of a job that removes mags."""
_MAGS = ": mags "


def removal_command(folder: str, mags: Sequence[str] | None) -> str:
    """Return the command of a job that removes mags of an image, None for all."""
    return f"{REMOVAL}{folder}" + ("" if mags is None else f"{_MAGS}{','.join(sorted(mags))}")


@dataclass(frozen=True, slots=True)
class InterruptedRemoval:
    """Removal whose mags are no longer in the metadata."""

    root: str | None
    """Job folder, None if only locks were left."""
    targets: tuple[str, ...]
    """Folders of the mags."""
    command: str

    @property
    def image(self) -> str:
        """Folder of the image."""
        image, named, rest = self.command.removeprefix(REMOVAL).rpartition(_MAGS)
        return image if named else rest

    @property
    def mags(self) -> set[str]:
        """Mags that the call named; empty if it removed all."""
        _, named, mags = self.command.rpartition(_MAGS)
        return set(mags.split(",")) if named else set()


def find_removals(parent: str, datasets: Sequence[str] = ()) -> list[InterruptedRemoval]:
    """Find interrupted removals and hide their mags."""
    found: list[InterruptedRemoval] = []
    if not store_at(parent).is_folder() or (
        job_records.has_no_jobs(parent, ()) and not locks.locked_folders(parent)
    ):
        return found
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
                found.append(InterruptedRemoval(root, tuple(targets_of(root)), owner.command))
                release_locks_of(job, targets_of(root))
        for target, holder in locks.locked_folders(parent):
            if (
                holder.is_gone()
                and holder.command.startswith(REMOVAL)
                and not store_at(target).is_taken()
            ):
                if all(removal.root != job_root(parent, holder.job) for removal in found):
                    store_at(job_root(parent, holder.job)).delete_folder()
                release_locks_of(holder.job, [target])
                found.append(InterruptedRemoval(None, (target,), holder.command))
    return found


def release_dead_locks(parent: str) -> None:
    """Remove the locks of dead jobs that have ended, and what is left of their folders."""
    if not locks.locked_folders(parent):
        return
    with guarded(parent):
        for target, holder in locks.locked_folders(parent):
            root = job_root(parent, holder.job)
            if holder.is_gone() and not can_be_handed_over(root):
                # without a plan, nothing can continue it
                store_at(root).delete_folder()
                release_locks_of(holder.job, [target])


def remove_ownerless_folder(lock: str) -> None:
    """Remove the folder of the dead job that holds a lock if it has no owner record, inside
    :func:`guarded`."""
    # Without the lock, nothing tells that the job has ended: it was killed before it wrote the
    # record, or after it deleted it.
    with contextlib.suppress(LockedError):
        owner = read_owner(lock)
        if owner is not None and owner.is_gone():
            store = store_at(job_root(dirname(lock), owner.job))
            if not store.exists(OWNER_NAME):
                store.delete_folder()


def end_removal(root: str) -> None:
    """Delete a folder returned by :func:`find_removals`."""
    Publisher(RecordPaths(root)).publish()


def discard_dead_jobs(parent: str) -> None:
    """Remove all dead jobs in a layer that is removed, even resumable ones."""
    if next(job_folders(parent), None) is None:
        return
    with guarded(parent):
        for root, job in job_folders(parent):
            owner = read_owner(f"{root}/{OWNER_NAME}")
            if owner is None or owner.is_gone() or not holds_locks(root, job):
                _discard(root, job)


def discard_interrupted(root: str) -> None:
    """Remove an interrupted job."""
    parent = dirname(root)
    with guarded(parent):
        state = dict(job_records.job_states(parent)).get(root)
        if state not in (None, JobState.CAN_GO_ON, JobState.DEAD):
            raise LockedError(f"{root}: {state.value}: only interrupted jobs are removed")
        _discard(root, basename(root).removeprefix(basename(job_root(parent, ""))))


def _discard(root: str, job: str) -> None:
    check_records(RecordPaths(root))
    release_locks_of(job, targets_of(root))
    store_at(root).delete_folder()
