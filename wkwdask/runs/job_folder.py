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
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from wkwdask.errors import (
    CorruptError,
    DiscardWarning,
    IncompleteWriteError,
    LockedError,
    ResumeError,
)
from wkwdask.formats.publication import (
    RECORD_NAME,
    format_publication,
    format_removal,
    has_record,
    read_publication,
    write_record,
)
from wkwdask.formats.record_paths import (
    OWNER_NAME,
    RecordPaths,
    check_no_links,
    dataset_of_job,
    job_folders,
    job_of,
    job_root,
)
from wkwdask.formats.registry import formats
from wkwdask.formats.replaceable import check_targets, inherit_tree_permissions, replaces
from wkwdask.model.parsing import reason_of
from wkwdask.model.placement import placed_name
from wkwdask.model.states import FILE_RECORD_NAME
from wkwdask.model.store import Conflict, Expected
from wkwdask.model.summary import counted, format_nbytes
from wkwdask.runs import job_records
from wkwdask.runs.batch_file import read_batch
from wkwdask.runs.calls import current_call
from wkwdask.runs.garbage import (
    delete_level,
    is_any_listed,
    is_listed,
    leave_garbage,
    remove_garbage,
)
from wkwdask.runs.job_records import (
    PLAN_NAME,
    JobState,
    can_resume,
    check_records,
    holds_locks,
    targets_of,
)
from wkwdask.runs.journal import finished_work
from wkwdask.runs.region_records import record_region
from wkwdask.store import by_path, locks
from wkwdask.store.documents import replace_records
from wkwdask.store.json_record import format_job_record
from wkwdask.store.leases import drop_lease, end_lease, fenced_by, has_single_writer, held
from wkwdask.store.locks import (
    Owner,
    ShardBox,
    guarded,
    locks_of,
    read_owner,
    release_locks,
    release_locks_of,
    write_owner,
)
from wkwdask.store.looks import look_again
from wkwdask.store.objects.remote import RemoteStore
from wkwdask.store.paths import basename, dirname, is_bucket, os_error
from wkwdask.store.records import PROVENANCE_NAME, format_provenance, read_provenance
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from wkwdask.formats.publication import Publication
    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.store import Store
    from wkwdask.store.locks import Lock
    from wkwdask.store.slurm import SlurmJob


_LISTING_PAUSES_SECONDS = (0.0, 0.1, 0.5, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class NewMag:
    """Complete mag, or another file or folder, to be published."""

    staged: str | None
    """Name of its folder in the job folder, None if it was written in its final folder."""
    folder: str
    """Final folder."""
    mag: str | None = None
    """Name of the mag for the provenance."""
    box: tuple[int, ...] | None = None
    """Box of its data for the provenance: topleft and size [voxels of the mag]."""
    file_record: bytes | None = None
    """Record of its files, see ``wkwdask.store.records``."""
    replaces: str | None = None
    """Folder of the level that the metadata do not name any more, if it is another one."""
    is_level: bool = True
    """Whether it keeps its records; other folders have them only until they are published."""
    made: dict[str, Any] | None = None
    """Provenance of its voxels, if the job has not made all of them."""
    num_files: int | None = None
    """Number of files, in a bucket where they are copied to the final folder; None elsewhere."""

    def written_in(self, job: str) -> str:
        """Return the folder in which a job in a bucket has written it."""
        return self.folder if self.num_files is None else placed_name(self.folder, job)

    def records(self, provenance: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
        """Yield names and contents of the records that stay in the mag."""
        stated = {"mag": self.mag, "box": self.box, "made": self.made}
        own: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
        yield PROVENANCE_NAME, format_provenance({**provenance, **own})
        if self.file_record is not None:
            yield FILE_RECORD_NAME, self.file_record


@dataclass(frozen=True, slots=True)
class Publisher:
    """Publication of the mags in a job folder."""

    paths: RecordPaths

    @property
    def is_prepared(self) -> bool:
        """Whether the publish record exists; then only :meth:`publish` ends the job."""
        return has_record(self.paths.root)

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
        own = {"job": job, "publication": publication_id, **provenance}
        if self._store.folders is None:
            with fenced_by(self._store.path_of(OWNER_NAME)):
                records = {
                    f"{mag.written_in(job)}/{name}": data
                    for mag in mags
                    for name, data in mag.records(own)
                }
                replace_records(records, new=FILE_RECORD_NAME)
        else:
            self._prepare_folders(mags, own)
        listed = [(mag.staged, mag.folder, mag.num_files) for mag in mags]
        replaced = [mag.replaces for mag in mags if mag.replaces is not None]
        plain = [mag.folder for mag in mags if not mag.is_level]
        write_record(
            self.paths.root,
            format_publication(self.paths, job, publication_id, listed, edit, replaced, plain),
        )

    def _prepare_folders(self, mags: Sequence[NewMag], own: dict[str, Any]) -> None:
        """Write the records of staged mags, copy permissions, and flush."""
        store, folders = self._store, folders_of(self.paths.root)
        records = store.new_files(self.paths.root)
        try:
            for mag in mags:
                if store.is_folder(str(mag.staged)):  # a single file has no records
                    for name, data in mag.records(own):
                        records.write(f"{mag.staged}/{name}", data)
            records.publish()
        except BaseException:
            records.discard()
            raise
        for mag in mags:
            old = mag.replaces or mag.folder
            inherit_tree_permissions(f"{self.paths.root}/{mag.staged}", old)
        for mag in mags:
            # the files were flushed when they were written, but not their names, which the record
            # relies on
            for folder in reversed([folder for folder, _, _ in store.walk(str(mag.staged))]):
                folders.fsync(folder)

    def publish(self) -> None:
        """Carry out the publish record. Repeating it is harmless."""
        # Each step can be repeated, and after a crash at any point the dataset is readable:
        #
        #   1. move levels out of the folders of new ones       only where levels are numbered
        #      exchange each staged mag with its final folder   the id in the provenance marks those that are done  # noqa: E501
        #   2. edit the metadata                                readers ignore a mag that the metadata does not list yet  # noqa: E501
        #   3. unlink plan.json                                 the folder now contains the replaced mags and must not look resumable  # noqa: E501
        #   4. delete the job folder, publish.json included     until here the next job repeats from 1  # noqa: E501
        #
        # In a bucket nothing moves: step 2 switches to the new mags, and each change of a document
        # depends on the lease, so that a process that was paused does not undo what others did.
        publication = read_publication(self.paths)
        if publication is None:
            raise os_error(errno.ENOENT, self._record)
        if publication.removed is not None:
            self.hide_removed()
        edit = None if publication.removed is not None else publication.edit
        with fenced_by(self._store.path_of(OWNER_NAME)):
            if edit is not None:
                _apply(edit.make_room, self._record)
            self._move(publication)
            for folder, num_files in publication.copied:
                self._copy(publication, folder, num_files)
            # before the document switches: what it names is no garbage yet
            leave_garbage(self.paths, publication.publication_id, publication.replaced)
            if edit is not None:
                _apply(edit.apply, self._record)
        for folder, _ in publication.copied:
            # a process that was paused while it copied finds nothing to copy when it wakes up
            delete_level(placed_name(folder, job_of(self.paths.root)))
        if self._store.folders is not None:  # a bucket keeps the record until all else is deleted
            with contextlib.suppress(FileNotFoundError):
                # another job may be ending this one at the same time
                self._store.delete(PLAN_NAME)
        self.discard()

    def _move(self, publication: Publication) -> None:
        """Move staged mags to their final folders."""
        moved = [(staged, folder) for staged, folder in publication.mags if staged is not None]
        for staged, folder in moved:
            if folder in publication.plain:
                self._move_plain(publication, staged, folder)
            elif not publication.is_of(folder):
                by_path.publish_folder(staged, folder)
        for parent in dict.fromkeys(dirname(folder) for _, folder in moved):
            folders_of(parent).fsync(parent)

    def _copy(self, publication: Publication, folder: str, num_files: int) -> None:
        """Copy a level of a bucket to its final folder, its document last."""
        placed = placed_name(folder, job_of(self.paths.root))
        documents = [
            basename(path)
            for fmt in formats()
            if (path := fmt.level_folders.record_of(placed)) is not None
        ]
        if publication.is_of(folder) and all(map(store_at(folder).is_file, documents)):
            return
        others = _listed_whole(placed, {*documents, PROVENANCE_NAME}, num_files)
        for names in (others, [PROVENANCE_NAME], documents):
            by_path.copy_objects(placed, folder, names)

    def _move_plain(self, publication: Publication, staged: str, folder: str) -> None:
        """Move a file or a folder that keeps no records."""
        if publication.is_of(staged):  # else it is what the folder has replaced
            by_path.publish_folder(staged, folder)
        elif store_at(staged).is_file() or not store_at(folder).exists():
            folders_of(folder).rename(staged, folder)
        if publication.is_of(folder):
            store_at(folder).delete(PROVENANCE_NAME)

    def hide_removed(self) -> None:
        """Remove mags from the metadata and move them into the job folder, so that only deleting is
        left."""
        root, publication = self.paths.root, read_publication(self.paths)
        if publication is None or publication.removed is None:
            return
        # The order is opposite to that of publish(), since the metadata must never list a missing
        # mag. The last line empties the record: otherwise, a repeated call could move a mag of the
        # same name that another job has published in the meantime.
        if is_bucket(root):
            leave_garbage(self.paths, job_of(root), publication.removed)
        if publication.edit is not None:
            with fenced_by(self._store.path_of(OWNER_NAME)):
                _apply(publication.edit.apply, self._record)
        if not is_bucket(root):
            self._move_away(publication.removed)
        write_record(root, format_removal(self.paths, (), None))

    def _move_away(self, removed: Sequence[str]) -> None:
        """Move removed mags into the job folder."""
        root, folders = self.paths.root, folders_of(self.paths.root)
        for number, folder in enumerate(removed):
            with contextlib.suppress(FileNotFoundError):
                # already moved, or listed in the metadata without a folder
                folders.rename(folder, f"{root}/{number}-{basename(folder)}")
                folders.fsync(dirname(folder))
        folders.fsync(root)

    def discard(self) -> None:
        """Delete the job folder with new or replaced mags."""
        _delete_records(self.paths.root)


def _listed_whole(folder: str, left_out: Collection[str], num_files: int) -> list[str]:
    """List the objects of a level; raises IncompleteWriteError if files are missing after some
    time, since a listing may lag behind."""
    store = store_at(folder)
    assert isinstance(store, RemoteStore)
    for pause in _LISTING_PAUSES_SECONDS:
        time.sleep(pause)
        names = [name for name in store.all_names() if name not in left_out]
        count = sum(not basename(name).startswith(".") for name in names)
        if count >= num_files:
            return names
    raise IncompleteWriteError(
        f"{folder}: the server lists {count} of {num_files} files; the same call completes the job"
    )


def _delete_records(root: str) -> None:
    """Delete the folder of a job, its owner last: a folder without an owner may be of a job that
    begins."""
    store = store_at(root)
    if isinstance(store, RemoteStore):
        store.delete(*(name for name in store.all_names() if name != OWNER_NAME))
        drop_lease(store.path_of(OWNER_NAME))
        store.delete(OWNER_NAME)
    else:
        for entry in list(store.entries()):
            if entry.is_dir(follow_symlinks=False):
                store.delete_folder(entry.name)
            elif entry.name != OWNER_NAME:
                store.delete(entry.name)
        store.delete_folder()


def _give_up(root: str, job: str) -> None:
    """Delete the folder of a dead job that was not published, inside :func:`guarded`."""
    if (region := job_records.region_of(root)) is not None:
        for target in targets_of(root):
            record_region(target, region)
    _delete_job(root, job)


def _delete_job(root: str, job: str, places: Sequence[str] | None = None) -> None:
    """Delete the folder of a job that was not published, and what it wrote elsewhere: in the
    ``places`` of its plan."""
    # A process that was paused may have written records of its job after another one had published
    # it. Whoever holds the lease knows that no document changes to these places any more.
    if places is None:
        places = job_records.places_of(root, job)
    for place in () if has_single_writer(root) else places:
        if store_at(place).names() and not is_listed(dirname(root), place):
            delete_level(place)
    _delete_records(root)


@contextlib.contextmanager
def _taken_over(root: str, job: str, owner: Owner) -> Iterator[None]:
    """Hold the lease of a dead job in a bucket; others may end the same job at this time, and one
    of them gets the lease."""
    lease = f"{root}/{OWNER_NAME}"
    if not is_bucket(root) or lease == owner.lease:
        yield
        return
    write_owner(lease, replace(owner, job=job, lease=lease))
    try:
        yield
    finally:
        end_lease(lease)


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
        check: Callable[[str], None] | None = None,
    ) -> None:
        """``check`` raises ExistsError unless ``existing`` allows to write what is there now; by
        default, targets are levels."""
        self.parent = parent
        self.root = job_root(parent, owner.job)
        lease = f"{self.root}/{OWNER_NAME}"
        self.owner = replace(owner, lease=lease) if is_bucket(parent) else owner
        self.targets = tuple(targets)
        self.region = region
        self.is_kept_for_later = is_kept_for_later
        self._datasets = tuple(datasets)
        self._check = check or partial(check_targets, self.targets)
        self._store = store_at(self.root)
        self._ended: dict[str, dict[str, Any]] = {}

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
        if self.owner.lease:
            write_owner(self.owner.lease, self.owner)
        try:
            with guarded(self.parent):
                done = self._take_over(existing, settings)
                if done is not None and existing not in ("restart", "update"):
                    self.discard()
                    return done
                lease = held(self.owner.lease)
                is_new = lease is not None and lease.is_first  # so nothing was planned before
                before = None if is_new else job_records.read_plan(self.root)
                if before is not None:
                    check_records(self._paths)
                    check_no_links(self.root)
                # A job that began with "overwrite" may still replace its targets when it continues
                # with "resume".
                first_existing = (
                    existing if before is None or replaces(existing) else before["existing"]
                )
                if first_existing != "update":
                    self._check(first_existing)
                self._store.make()
                # The owner comes first, since a folder with a plan but no owner would belong to no
                # job. The plan comes last and makes the job resumable.
                if not self.owner.lease:
                    write_owner(f"{self.root}/{OWNER_NAME}", self.owner)
                if before is None:
                    call = current_call().to_json()
                    record = {
                        "targets": list(map(self._paths.format_path, self.targets)),
                        "existing": existing,
                        "settings": settings,
                        "plan": plan,
                        "region": None
                        if self.region is None
                        else [self.region.low, self.region.high],
                        "is_kept_for_later": self.is_kept_for_later,
                        "call": call,
                        "resumed_by": resumed_by,
                    }
                    expect = Expected.ABSENT if self.owner.lease else Expected.ANY
                    try:
                        self._store.put(PLAN_NAME, format_job_record(record), expect)
                    except Conflict:
                        raise LockedError(
                            f"{self.root}: another process has taken this job over; this one ends"
                        ) from None
                    job_records.remember_call(self.root, call["id"])
        except BaseException:
            self.suspend()
            raise
        return None

    def publish(
        self,
        mags: Sequence[NewMag],
        edit: MetadataEdit | None,
        provenance: dict[str, Any],
    ) -> None:
        """Publish complete mags, then the metadata, and end the job."""
        publication = self._publication
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
        paths = self._paths
        write_record(self.root, format_removal(paths, self.targets, edit))
        Publisher(paths).hide_removed()

    def end(self) -> None:
        """Delete the job folder after :meth:`remove`."""
        try:
            self._publication.publish()
        finally:
            self._release()

    def suspend(self) -> bool:
        """End the work of this process. Return whether finished work stays for a later start."""
        try:
            if self._is_lost():
                return True
            is_kept = has_record(self.root) or can_resume(self.root)
            if not is_kept:
                _delete_job(self.root, self.owner.job, self._places)
        finally:
            self._release()
        return is_kept

    def _is_lost(self) -> bool:
        """Check whether another process has taken over the lease of this job."""
        return bool(self.owner.lease) and held(self.owner.lease) is None

    def discard(self) -> None:
        """End the job and delete its folder, unless publication has begun: then the next job in the
        layer completes it."""
        try:
            if not self._is_lost() and not has_record(self.root):
                _delete_job(self.root, self.owner.job, self._places)
        finally:
            self._release()

    @property
    def _places(self) -> Sequence[str]:
        """Folders in which the job has written its targets, where these are not renamed."""
        if not is_bucket(self.root):
            return ()
        return [placed_name(target, self.owner.job) for target in self.targets]

    def seconds(self) -> float:
        """Return the time since this process created or took over the folder, or submitted the job
        array [s]; 0 if the clock was set back meanwhile."""
        lease = held(self.owner.lease)
        # who has begun a job in a bucket knows when, without asking for a job array
        batch = None if lease is not None and lease.is_first else read_batch(self.root)
        started = (
            batch.rounds[0].time
            if batch is not None
            else self._store.status(OWNER_NAME).st_mtime
            if lease is None
            else lease.taken
        )
        return max(0.0, time.time() - started)

    @cached_property
    def _paths(self) -> RecordPaths:
        """Paths that records of this job may name: those in datasets that it may change."""
        folders = dict.fromkeys(map(dirname, self.targets))
        around = {dataset_of_job(self.root, folder) for folder in folders}
        return RecordPaths(self.root, (*self._datasets, *around))

    @property
    def _publication(self) -> Publisher:
        return Publisher(self._paths)

    def _take_over(self, existing: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """Lock the targets and end dead jobs; return the provenance of the mags if that completed
        an equal job."""
        # Locks are taken in sorted order: otherwise, two jobs on the same mags could each take one
        # lock and fail at the other. The lock of a dead job is taken over before the job is
        # completed or removed, so that no third job sees the mag unlocked in between.
        finished: set[str] = set()
        targets = sorted(self.targets)
        for target in targets:
            found = locks_of(target)
            if self.owner.lease:  # a holder that comes back keeps its lease, and its locks
                dead = self._dead_jobs(found)
                for job in dead:
                    finished |= self._end_dead_job(dirname(target), job, existing)
                found = locks_of(target) if dead else found
            for before in locks.take_lock(target, self.owner, self.region, found):
                if before.job != self.owner.job:
                    finished |= self._end_dead_job(dirname(target), before.job, existing)
        look_again()  # at the locks that others have taken meanwhile
        for target in targets:
            for job in self._dead_jobs(locks.check_alone(target, self.owner, self.region)):
                # these jobs were killed before they created their folder, or after they deleted it
                if not store_at(job_root(dirname(target), job)).exists():
                    release_locks_of(job, [target])
        finished |= self._clean_up(existing)
        with contextlib.suppress(CorruptError, OSError):  # wkwdask clean reports it
            remove_garbage(self._paths)
        done = [self._provenance_of(target, finished) for target in self.targets]
        if (
            finished
            and done
            and all(
                item.get("job") in finished and item.get("settings") == settings for item in done
            )
        ):
            return done[0]
        return None

    def _dead_jobs(self, found: Iterable[Lock]) -> dict[str, None]:
        """List the other jobs whose locks were found, and that are dead."""
        jobs = (lock.owner for lock in found if lock.owner.job != self.owner.job)
        return dict.fromkeys(owner.job for owner in jobs if owner.is_gone())

    def _end_dead_job(self, parent: str, job: str, existing: str) -> set[str]:
        """Complete or remove a dead job; return it if its mags are published."""
        # A dead job is in one of three states:
        #   publish record         publication began: complete it
        #   journal, no record     resumable: keep it if it writes other mags or shards. Else delete it with existing="restart" or if it resumes only on  # noqa: E501
        #                          request, and raise an error in all other cases
        #   neither                no finished work: delete it
        root = job_root(parent, job)
        paths = replace(self._paths, root=root)
        check_records(paths)
        targets = targets_of(root)
        is_resumable = can_resume(root) and not has_record(root)
        if is_resumable:
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
        with _taken_over(root, job, self.owner):
            publication = Publisher(paths)
            is_prepared = publication.is_prepared
            if is_prepared:
                settings = (job_records.read_plan(root) or {}).get("settings")
                self._ended[job] = {"job": job, "settings": settings, "targets": targets}
                publication.publish()
            else:
                _give_up(root, job)
        release_locks_of(job, targets)
        # true of an unprepared job if it was killed while it deleted its folder, or before it
        # released its locks
        is_published = is_prepared or any(
            self._provenance_of(target, {job}).get("job") == job for target in self.targets
        )
        return {job} if is_published else set()

    def _provenance_of(self, target: str, jobs: set[str]) -> dict[str, Any]:
        """Read the provenance of a mag that one of some jobs may have published; of another result
        what is known of its job."""
        if not jobs:
            return {}
        places = [target, *(placed_name(target, job) for job in jobs)]
        found = map(read_provenance, places)
        known = (self._ended.get(job, {}) for job in jobs)
        ended = (each for each in known if target in each.get("targets", ()))
        return next((each for each in (*found, *ended) if each.get("job") in jobs), {})

    def _clean_up(self, existing: str) -> set[str]:
        """End the other dead jobs in the layer; return those that were completed."""
        finished: set[str] = set()
        remove_empty_folders(self.parent)
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
        try:
            release_locks(self.targets, self.owner, self.region)
        finally:
            end_lease(self.owner.lease)


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
    """Make a SLURM job the owner of a running job, so that its locks, and its lease in a bucket,
    outlive this process."""
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
        drop_lease(f"{root}/{OWNER_NAME}")


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
                with _taken_over(root, job, Owner.this_process(owner.command)):
                    Publisher(paths).hide_removed()
                found.append(InterruptedRemoval(root, tuple(targets_of(root)), owner.command))
                release_locks_of(job, targets_of(root))
        for target, holder in locks.locked_folders(parent):
            if holder.is_gone() and holder.command.startswith(REMOVAL) and not _is_in_place(target):
                if all(removal.root != job_root(parent, holder.job) for removal in found):
                    store_at(job_root(parent, holder.job)).delete_folder()
                release_locks_of(holder.job, [target])
                found.append(InterruptedRemoval(None, (target,), holder.command))
    return found


def _is_in_place(target: str) -> bool:
    """Check whether a level that a dead job was to remove is still there. In a bucket its folder
    contains the job that wrote it, and the document decides."""
    if is_bucket(target):
        return is_any_listed(dirname(target), target)
    return store_at(target).is_taken()


def release_dead_locks(parent: str) -> None:
    """Remove the locks of dead jobs that have ended, what is left of their folders, and the guard
    of a dead process."""
    has_guard = not is_bucket(parent) and store_at(parent).exists(locks.GUARD_NAME)
    if not (has_guard or locks.locked_folders(parent) or locks.locked_regions(parent)):
        return
    with guarded(parent):
        for target, holder in (*locks.locked_folders(parent), *locks.locked_regions(parent)):
            root = job_root(parent, holder.job)
            if holder.is_gone() and not can_be_handed_over(root):
                # without a plan, nothing can continue it
                store_at(root).delete_folder()
                release_locks_of(holder.job, [target])


def remove_empty_folders(parent: str) -> None:
    """Remove the folders of jobs that were killed just before they began or after they ended,
    inside :func:`guarded`, under which no other job begins."""
    for root, _ in () if is_bucket(parent) else job_folders(parent):
        with contextlib.suppress(OSError):  # it is not empty
            folders_of(root).rmdir(root)


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
    with _taken_over(root, job_of(root), Owner.this_process(f"end of {root}")):
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
        _discard(root, job_of(root))


def _discard(root: str, job: str) -> None:
    check_records(RecordPaths(root))
    with _taken_over(root, job, Owner.this_process(f"removal of {root}")):
        targets, publisher = targets_of(root), Publisher(RecordPaths(root))
        if publisher.is_prepared:  # it was committed before its lease could be taken
            publisher.publish()
        else:
            _give_up(root, job)
        release_locks_of(job, targets)
