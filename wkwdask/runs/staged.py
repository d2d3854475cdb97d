"""Mags that are built in a job folder and published together: start, resumption and end of a job
that writes them, in any format."""

from __future__ import annotations

import contextlib
import logging
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ExistsError, LockedError, ResumeError, UnsupportedError
from wkwdask.formats.record_paths import OWNER_NAME, job_root
from wkwdask.formats.replaceable import check_targets, is_occupied, replaces
from wkwdask.geometry.bounding_box import moved
from wkwdask.geometry.mag import vec3
from wkwdask.model.parsing import reading
from wkwdask.model.placement import placed_name
from wkwdask.model.summary import counted, format_nbytes
from wkwdask.model.volume import voxel_nbytes
from wkwdask.runs.calls import current_call
from wkwdask.runs.job_folder import JobFolder, NewMag, release_dead_locks
from wkwdask.runs.job_records import (
    JobState,
    call_of,
    find_interrupted,
    find_interrupted_array,
    has_no_jobs,
    job_states,
    targets_of,
)
from wkwdask.runs.journal import Journal, JournaledJob, finished_work, read_journal, receipts_of
from wkwdask.runs.parts import ShardTally, pyramid_records
from wkwdask.runs.progress import keep_progress
from wkwdask.runs.report import Report
from wkwdask.store import by_path
from wkwdask.store.documents import create_objects
from wkwdask.store.leases import held
from wkwdask.store.locks import Owner, lock_holder, locks_of
from wkwdask.store.looks import look_again
from wkwdask.store.paths import basename, is_below, is_bucket, target_path
from wkwdask.store.records import (
    PROVENANCE_NAME,
    format_file_record,
    format_provenance,
    read_provenance,
)
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.model.writing.target_image import NewLevels
    from wkwdask.runs.job_records import InterruptedJob
    from wkwdask.runs.journal import ResumableJob
    from wkwdask.runs.report import MagReport
    from wkwdask.store.locks import ShardBox


_logger = logging.getLogger(__name__)
_DONE_NOTE = (
    "nothing to do: the mags were finished before with the same settings, and the source has not "
    "changed"
)
FINISHED_NOTE = (
    "an earlier job with the same settings was interrupted while it published its result; the "
    "publication is now complete"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedJob(ABC):
    """Job whose results are built in its folder and published together. Picklable; nothing is
    created before :meth:`start`."""

    owner: Owner
    parent: str
    """Folder in which the job folder is created."""
    folders: tuple[str, ...]
    """Final path of each result."""
    settings: dict[str, Any]
    """Settings of the job, which a resumed job must have in common."""
    existing: str
    """``"error"``, ``"resume"``, ``"overwrite"``, ``"restart"``, or ``"update"`` if the targets are
    the published mags themselves."""
    nbytes_in: int
    """Voxel bytes read, for the report."""
    targets: tuple[TargetArray, ...] = ()
    """Mags that tasks write, finest first; none of a job that makes something else."""
    task_nbytes: int = 256 << 20
    """Approximate memory of one task."""
    plan: dict[str, Any] | None = None
    """Decisions of the first start that a resumed job keeps."""
    resumes_automatically: bool = True
    """Whether the same call resumes an interrupted job. If not, only ``existing="resume"`` does,
    and any other job replaces it."""
    resumed_by: str | None = None
    """Value of ``existing=`` that resumes the job once it is interrupted; None for that of the
    same call."""
    discarded_by: str = 'existing="restart" starts over'
    """Argument that discards the finished work of the job once it is interrupted."""

    @property
    def root(self) -> str:
        return job_root(self.parent, self.owner.job)

    @abstractmethod
    def planned(self) -> tuple[MagReport, ...]:
        """Return reports of the mags that the job would write."""

    @abstractmethod
    def start(self) -> Report | None:
        """Lock the targets and create the job folder; return a report if nothing is left to do. It
        can be repeated in another process."""

    def journaled(self, job: ResumableJob, journal: Journal) -> JournaledJob:
        """Wrap a job so that it continues after its journal."""
        return JournaledJob(
            job,
            journal.append,
            self.earlier_lines(),
            self.targets,
            folder=self.root,
            nbytes_in=self.nbytes_in,
            task_nbytes=self.task_nbytes,
        )

    def earlier_lines(self) -> Iterator[bytes]:
        """Iterate over the journal of earlier starts."""
        return iter(()) if self._has_begun_in_a_bucket() else read_journal(self.root)

    def _has_begun_in_a_bucket(self) -> bool:
        """Check whether this process has begun the job, in a bucket, and knows all records."""
        lease = held(f"{self.root}/{OWNER_NAME}") if is_bucket(self.root) else None
        return lease is not None and lease.is_first

    @abstractmethod
    def publish(self, tallies: Sequence[ShardTally], note: str = "") -> Report:
        """Check that all was written, then publish the results."""

    @abstractmethod
    def _job_folder(self) -> JobFolder: ...

    def _take_folder(self) -> dict[str, Any] | None:
        """Lock the targets and create the job folder; return the provenance of an equal job that
        was completed meanwhile."""
        new_folders = by_path.missing_folders(self.parent)
        current_call().new_folders += new_folders
        try:
            return self._job_folder().start(
                self.existing, self.settings, self.plan, self.resumed_by
            )
        except BaseException:
            by_path.remove_empty(new_folders)
            raise

    def count_leftovers(self) -> tuple[int, int]:
        """Count files and bytes of interrupted jobs on the same targets, which this job keeps or
        removes."""
        ended = (
            root
            for root, state in job_states(self.parent)
            if state in (JobState.CAN_GO_ON, JobState.DEAD)
            and set(targets_of(root)) & set(self.folders)
        )
        counts = [
            by_path.count_tree(root)
            for root in {*ended, *([self.root] if store_at(self.root).is_folder() else [])}
        ]
        return sum(count for count, _ in counts), sum(nbytes for _, nbytes in counts)

    def check_free(self) -> None:
        """Check that the job could start now, without taking any lock."""
        for folder in self.folders:
            holder = lock_holder(folder)
            if holder is not None:
                raise LockedError(f"{folder}: another job writes it: {holder}")
        if (
            self.existing != "resume"
            and find_interrupted(self.parent, self.folders) is None
            and not self._was_publishing()
        ):
            self._check_targets(self.existing)

    @abstractmethod
    def _check_targets(self, existing: str) -> None:
        """Raise ExistsError unless the policy allows to write what is at the targets."""

    def _was_publishing(self) -> bool:
        """Check whether a job died while it published one of the mags. The next job completes that
        publication when it starts."""
        ended = (
            root
            for root, state in job_states(self.parent)
            if state in (JobState.UNPUBLISHED, JobState.REFUSED)
        )
        return any(set(targets_of(root)) & set(self.folders) for root in ended)

    def num_done(self) -> int:
        """Return the number of tasks that earlier starts finished."""
        return sum(1 for _ in read_journal(self.root))

    def discard(self) -> None:
        self._job_folder().discard()

    def suspend(self, error: BaseException) -> None:
        """End this attempt; the journal stays for the next one, and a note on the error says so."""
        try:
            is_kept = self._end()
        except OSError as another:  # of the same server or disk: the first error says more
            last = "its lease" if is_bucket(self.parent) else "this process"
            error.add_note(f"the job may stay locked until {last} ends: {another}")
            return
        if is_kept:
            add_resume_note(error, self)

    def _end(self) -> bool:
        """End this attempt, without leaving an empty folder; return whether finished work stays for
        a later start."""
        is_kept = self._job_folder().suspend()
        if not is_kept:
            by_path.remove_empty(self._emptied())
        return is_kept

    def _emptied(self) -> list[str]:
        """List folders that go with a job if nothing else is in them."""
        return [each for each in current_call().new_folders if is_below(self.parent, each)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedMags(StagedJob):
    """Job that writes mags: targets, and the change of the metadata."""

    edit: MetadataEdit | None
    """Change of the metadata on publication."""
    is_pyramid: bool = False
    """Whether each mag after the first is downsampled from the one before."""
    voxel_provenance: tuple[dict[str, Any], ...] = ()
    """Provenance of the voxels of each mag, if this job only stores them in another way or updates
    them."""
    ignored_settings: tuple[str, ...] = ()
    """Settings that may differ on resume."""
    box: BoundingBox | None = None
    """Box of the data in the single mag, if files are copied whole together with data around that
    box."""

    def _emptied(self) -> list[str]:
        # with the folder of the layer, which an earlier start may have made
        return [*super(StagedMags, self)._emptied(), self.parent]

    @property
    def listed(self) -> tuple[str, ...]:
        """Folder of each mag as readers find it before this job publishes."""
        return tuple(
            target.listed or folder
            for target, folder in zip(self.targets, self.folders, strict=True)
        )

    @property
    def published(self) -> tuple[str, ...]:
        """Folder of each mag after the publication."""
        if not self._switches_document():
            return self.folders
        return tuple(placed_name(folder, self.owner.job) for folder in self.folders)

    def laid_out_again(self, levels: NewLevels) -> StagedMags:
        """Return the job with levels of other metadata in the same places."""
        targets = tuple(
            replace(new, array=new.array.at(target.array.store), staging=target.staging)
            for new, target in zip(levels.targets, self.targets, strict=True)
        )
        edit = placed_edit(levels.edit, self.parent, self.owner, targets, self.existing)
        return replace(self, targets=targets, edit=edit)

    def planned(self) -> tuple[MagReport, ...]:
        return tuple(
            ShardTally(target, 0).report(folder)
            for target, folder in zip(self.targets, self.folders, strict=True)
        )

    def check_free(self) -> None:
        super(StagedMags, self).check_free()
        self._check_metadata()
        self._check_shards()

    def _check_shards(self) -> None:
        """Raise UnsupportedError if a shard or chunk may be too large for its bucket."""
        for target, folder in zip(self.targets, self.folders, strict=True):
            noun, shape = (
                ("shards", target.shard_shape)
                if target.array.layout.is_sharded
                else ("chunks", target.chunk_shape)
            )
            nbytes = math.prod(map(min, shape, target.box.size)) * voxel_nbytes(target)
            what = f"{noun} of {shape} voxels have up to"
            by_path.check_object_nbytes(folder, nbytes, what, f"choose smaller {noun}")

    def remove_leftovers(self) -> None:
        """Remove leftovers of dead jobs in the layer, when this job has nothing to do."""
        with contextlib.suppress(OSError):
            if not has_no_jobs(self.parent, ()):
                job_folder = replace(self, folders=())._job_folder()
                job_folder.start("update", {})
                job_folder.discard()
            release_dead_locks(self.parent)

    def _check_metadata(self) -> None:
        """Check that the metadata can be written, before any work."""
        if self.edit is not None:
            self.edit.check_writable()

    def start(self) -> Report | None:
        """Lock the mags and create the job folder; return a report if nothing is left to do. It can
        be repeated in another process."""
        done = self.done()
        if done is not None:
            return done
        self._check_metadata()
        self._check_shards()
        try:
            finished = self._take_folder()
        except ExistsError:
            if self.existing != "resume":
                raise
            return self._finished_before()
        if finished is not None:
            return report_in(finished, FINISHED_NOTE, self.published)
        self._prepare()
        call = current_call()
        call.has_written, call.id = True, call_of(self.root) or call.id
        return None

    def _prepare(self) -> None:
        """Check under the locks that the metadata has not changed since the job was planned, and
        create folders and documents; on an error, end the job."""
        try:
            if self.edit is not None:
                self.edit.check_current()
            if is_bucket(self.parent):
                # readers know by the record that a level was not removed
                record = (PROVENANCE_NAME, format_provenance({"job": self.owner.job}))
                create_objects(
                    {
                        target.array.store.path_of(name): data
                        for target in self.targets
                        for name, data in (*target.documents, record)
                    }
                )
            else:
                for target in self.targets:
                    target.prepare()
        except BaseException:
            self._end()
            raise

    def done(self) -> Report | None:
        """Return the report of an equal finished job if ``existing="resume"``; None if there is
        work to do."""
        if (
            self.existing == "resume"
            and all(is_occupied(folder) for folder in self.listed)
            and has_no_jobs(self.parent, self.folders)
        ):
            return self._finished_before()
        return None

    def is_finished(self) -> bool:
        """Check whether a job with the same settings made all mags."""
        return all(
            is_occupied(folder) and read_provenance(folder).get("settings") == self.settings
            for folder in self.listed
        )

    def accepting_finished(self) -> StagedMags:
        """Return a job that does nothing if an equal job has finished before; for one that
        overwrites, if an earlier start of this call has finished it."""
        is_done = (
            self.is_finished()
            if self.existing == "error"
            else self.existing == "overwrite" and self.is_finished_by(current_call().id)
        )
        return replace(self, existing="resume") if is_done else self

    def is_finished_by(self, call: str) -> bool:
        """Check whether a call made all mags with the same settings."""
        return self.is_finished() and all(
            read_provenance(folder).get("call") == call for folder in self.listed
        )

    def _finished_before(self) -> Report:
        """Return the report of the job that made the published mags."""
        for folder in self.listed:
            provenance = read_provenance(folder)
            if "settings" not in provenance:
                what = (
                    "exists, without a journal of a job that could be resumed"
                    if is_occupied(folder)
                    else "is missing, but other mags of the job exist"
                )
                raise ResumeError(f'{folder}: {what}; existing="overwrite" replaces all')
            check_same_settings(
                folder,
                self.settings,
                provenance["settings"],
                self.ignored_settings,
                'existing="overwrite" replaces it',
            )
            call = current_call()
            call.id = str(provenance.get("call") or call.id)
        return report_in(read_provenance(self.listed[0]), _DONE_NOTE, self.listed)

    def held(self) -> tuple[int, int] | None:
        """Count files and bytes of interrupted jobs on the same mags, which this job keeps or
        removes; None if it has finished."""
        if self.existing == "resume" and self.is_finished():
            return None
        with contextlib.suppress(LockedError):  # reported when the locks are taken
            self.check_free()
        if is_bucket(self.parent):  # which is never full
            return 0, 0
        return self.count_leftovers()

    def known_shards(self) -> dict[Vec3, Receipt]:
        """List the shards of the single target that are in the journal and on disk, checking
        header, table and size of each."""
        (target,) = self.targets
        receipts = (
            receipt
            for _, receipt in receipts_of(self.earlier_lines(), self.targets)
            if receipt.part is None
        )
        return {
            receipt.shard: receipt for receipt in receipts if target.files.has_files_of(receipt)
        }

    def publish(self, tallies: Sequence[ShardTally], note: str = "") -> Report:
        """Check that all shards were written, then publish the mags."""
        look_again()
        # All checks come before the publish record, since a job cannot be withdrawn after it.
        for tally in tallies:
            tally.check()
        if self.edit is not None:
            self.edit.check_current()
        rows_of_all = (
            pyramid_records(tallies) if self.is_pyramid else [tally.shards for tally in tallies]
        )
        job_folder = self._job_folder()
        keep_progress(
            job_folder.root, tallies[0].target.folder, is_first=self._has_begun_in_a_bucket()
        )
        seconds = job_folder.seconds()
        reports = [
            tally.report(folder) for tally, folder in zip(tallies, self.published, strict=True)
        ]
        if self.box is not None:
            reports = [replace(report, voxels=self.box.volume) for report in reports]
        report = Report(tuple(reports), self.nbytes_in, seconds, note)
        boxes = [self.box or moved(target.box, target.origin) for target in self.targets]
        listed_now = self._listed_now()
        new_mags = [
            NewMag(
                None
                if is_bucket(self.parent) or target.folder == folder
                else basename(target.folder),
                folder,
                target.mag.name,
                (*box.topleft, *box.size),
                format_file_record(rows),
                None if listed == folder else listed,
                made=made,
                num_files=report.files if is_copied(self.parent, self.edit) else None,
            )
            for target, folder, box, rows, listed, made, report in zip(
                self.targets,
                self.published,
                boxes,
                rows_of_all,
                listed_now,
                self.voxel_provenance or [None] * len(boxes),
                reports,
                strict=True,
            )
        ]
        provenance = {
            "settings": self.settings,
            "report": report.to_json(),
            "call": call_of(self.root),
        }
        job_folder.publish(new_mags, self._edit_with_maxima(report, listed_now), provenance)
        _logger.info("published %s", ", ".join(self.published))
        return report

    def _listed_now(self) -> tuple[str | None, ...]:
        """Return the folders that the document will not name any more, None for none."""
        if self.edit is None or not self._switches_document():
            return (None,) * len(self.targets)
        return self.edit.listed_now()

    def _switches_document(self) -> bool:
        """Check whether the document names new levels beside the old ones."""
        return switches(self.parent, self.targets) and not is_copied(self.parent, self.edit)

    def _edit_with_maxima(
        self, report: Report, listed_now: Sequence[str | None]
    ) -> MetadataEdit | None:
        """Return the metadata edit with the largest segment ids, which are known only now."""
        if self.edit is None:
            return None
        maxima = tuple(mag.maximum if isinstance(mag.maximum, int) else None for mag in report.mags)
        replaces_any = (
            listed_now[0] is not None if self._switches_document() else is_occupied(self.listed[0])
        )
        return self.edit.with_maxima(
            maxima, is_new_content=replaces_any and not self.voxel_provenance
        )

    def _job_folder(self) -> JobFolder:
        datasets = () if self.edit is None else tuple(self.edit.folders().values())
        return JobFolder(
            self.parent,
            self.owner,
            self.folders,
            is_kept_for_later=self.resumes_automatically,
            datasets=datasets,
            check=self._check_targets,
        )

    def _check_targets(self, existing: str) -> None:
        if not any(target.is_in_place for target in self.targets):
            check_created_once(self.parent, self.folders, self.listed, self.edit)
        check_targets(self.listed, existing)


def switches(parent: str, targets: Sequence[TargetArray]) -> bool:
    """Check whether new levels have names that contain their job, to which the document switches:
    in a bucket, and where a level cannot be replaced together with what its document states."""
    return is_bucket(parent) or any(target.listed is not None for target in targets)


def is_copied(parent: str, edit: MetadataEdit | None) -> bool:
    """Check whether new levels are copied to their folders when they are complete: in a bucket, if
    no document can list them under other names."""
    return is_bucket(parent) and (edit is None or not edit.names_places)


def check_created_once(
    parent: str, folders: Sequence[str], listed: Sequence[str], edit: MetadataEdit | None
) -> None:
    """Raise UnsupportedError for levels in a bucket that would replace or move others, although no
    document can switch to them."""
    if not is_copied(parent, edit):
        return
    occupied = [folder for folder in listed if is_occupied(folder)]
    if occupied or (edit is not None and edit.makes_room):
        raise UnsupportedError(
            f"{(occupied or folders)[0]}: {'exists' if occupied else 'would rename other levels'}, "
            "and in a bucket such levels are only created: no document could switch to another "
            "name; choose another place, or an OME-NGFF image, a precomputed volume or a layer of "
            "a WEBKNOSSOS dataset"
        )


def placed_edit(
    edit: MetadataEdit | None,
    parent: str,
    owner: Owner,
    targets: Sequence[TargetArray],
    existing: str,
) -> MetadataEdit | None:
    """Return the edit of new levels as their documents name them."""
    if edit is None or not switches(parent, targets) or is_copied(parent, edit):
        return edit
    listed = tuple(target.listed for target in targets)
    return edit.placed(owner.job, None if replaces(existing) else listed)


def report_in(provenance: dict[str, Any], note: str, folders: Sequence[str]) -> Report:
    """Read the report of a job from the provenance of its first mag."""
    with reading(f"{folders[0]}/{PROVENANCE_NAME}", "record"):
        return Report.from_json(provenance["report"], note, folders)


def is_interrupted_call(jobs: Sequence[StagedMags], *, has_later_steps: bool = False) -> bool:
    """Check whether a call of several jobs was interrupted: some jobs finished with the same
    settings, but perhaps not all of them, or not the later steps."""
    done = [job.is_finished() for job in jobs]
    return any(done) and (
        has_later_steps
        or not all(done)
        or not all(has_no_jobs(job.parent, job.folders) for job in jobs)
    )


def join_interrupted_call(jobs: Sequence[StagedMags]) -> None:
    """Let the current call continue an interrupted one that has finished some of these jobs or
    started one, so that no finished job of it is repeated."""
    for parent in dict.fromkeys(job.parent for job in jobs):
        for root, state in job_states(parent):
            call = None if state in (JobState.RUNNING, JobState.REFUSED) else call_of(root)
            if call is not None and any(
                job.root == root or job.is_finished_by(call) for job in jobs
            ):
                current_call().id = call
                return


def settings_of(command: str, **options: Any) -> dict[str, Any]:
    """Return the settings of a job as JSON values."""
    return {
        "command": command,
        **{
            name: value if isinstance(value, (int, float, type(None))) else str(value)
            for name, value in options.items()
        },
    }


def check_same_settings(
    what: str,
    settings: dict[str, Any],
    before: dict[str, Any],
    ignored: Sequence[str] = (),
    remedy: str = 'existing="restart" starts over',
) -> None:
    """Raise ResumeError if settings differ from those of an interrupted or finished job, except for
    those named in ``ignored``."""
    names = [
        name
        for name in {**settings, **before}
        if settings.get(name) != before.get(name) and name not in ignored
    ]
    if not names:
        return
    source_texts = {
        "input": "the source was replaced",
        "states": "files of the source have changed",
    }
    differences = [
        source_texts.get(
            name, f"{name} was {before.get(name, 'not set')}, is {settings.get(name, 'not set')}"
        )
        for name in names
    ]
    advice = (
        remedy if source_texts.keys() >= set(names) else f"the same settings continue it, {remedy}"
    )
    raise ResumeError(f"{what}: made with other settings: {'; '.join(differences)}; {advice}")


def add_resume_note(error: BaseException, job: StagedJob) -> None:
    """Note on an error how much finished work an interrupted job keeps, and what resumes it."""
    said = [str(error), *getattr(error, "__notes__", ())]
    if isinstance(error, ResumeError) or any("existing=" in text for text in said):
        # it names the only way that is left, or is of a job inside of this one
        return
    count, nbytes = finished_work(job.root)
    # a file that is packed from complete images has no tasks
    amount = f" ({counted(count, 'task')}, {format_nbytes(nbytes)})" if count else ""
    kept = f"finished work is kept{amount}"
    if not job.resumes_automatically:
        same = "" if job.resumed_by else "the same call with the same array resumes, "
        error.add_note(f'{kept}: {same}existing="resume" resumes with any array')
    else:
        same = "the same call"
        if job.resumed_by:
            same += f' with existing="{job.resumed_by}"'
        error.add_note(f"{kept}: {same} resumes, {job.discarded_by}")


def finish_interrupted_publication(
    parent: str, folder: str, command: str, dataset: str | None = None
) -> None:
    """Complete the publication of a job that was killed in it, before the mag is inspected."""
    if has_no_jobs(parent, (folder,)):
        return
    job_folder = JobFolder(
        parent,
        Owner.this_process(f"{command} of {folder}"),
        (folder,),
        datasets=[*filter(None, [dataset])],
    )
    with contextlib.suppress(ResumeError):  # another interrupted job stays untouched
        job_folder.start("update", {})
        job_folder.discard()


@dataclass(frozen=True, slots=True)
class ArrayContent:
    """Shape, type and identity of an array to be written."""

    shape: tuple[int, int, int, int]
    """Channels, and extent along x, y, z."""
    dtype: Any
    fingerprint: str
    """Fingerprint of the array itself."""
    token: str | None = None
    """Identity given by the user, which replaces the fingerprint."""
    in_memory: bool = False
    """Whether the fingerprint covers the voxels; otherwise it covers a dask graph."""
    shards: ShardBox | None = None
    """Shards to be written in a published mag; None for a new mag."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for the journal."""
        return {
            "dtype": str(self.dtype),
            "channels": self.shape[0],
            "token": self.token,
            "input": self.fingerprint,
        }

    @property
    def ignored_settings(self) -> tuple[str, ...]:
        """Settings that may differ on resume. The fingerprint of a graph differs from process to
        process."""
        return () if self.in_memory and self.token is None else ("input",)

    @property
    def trust_note(self) -> str:
        """Note on what shows, on resume, that the array is the same."""
        if self.token is not None:
            return (
                "the array is assumed to be the same, because its place, shape, type and token "
                f"{self.token!r} are"
            )
        if self.in_memory:
            return "the array is the same"
        return (
            "the array is assumed to be the same, because its place, shape and type are; its "
            "voxels were not compared; token= can identify its content"
        )


EXISTING = ("error", "resume", "overwrite", "restart")
_PRESENCE = "presence"


@dataclass(frozen=True, slots=True)
class Draft:
    """Job before its targets are known: owner, folders, settings, and the decisions of an
    interrupted start."""

    owner: Owner
    parent: str
    folders: tuple[str, ...]
    settings: dict[str, Any]
    existing: str
    before: dict[str, Any] | None
    """Decisions of the interrupted start; None for a new job."""
    resumed_by: str | None = None
    """Value of ``existing=`` that resumes the job once it is interrupted; None for that of the
    same call."""

    @property
    def root(self) -> str:
        return job_root(self.parent, self.owner.job)

    def staged(self, name: str) -> str:
        return f"{self.root}/{name}"

    def staged_levels(self, levels: NewLevels) -> tuple[TargetArray, ...]:
        """Return new levels where the job builds them: in its folder, from which they are renamed,
        or in a bucket where they stay."""
        staged = []
        for target, folder in zip(levels.targets, levels.folders, strict=True):
            built = target.built_in(self.staged(target.box.mag.long_name))
            if is_bucket(self.parent):
                store = target.array.store.at(placed_name(folder, self.owner.job))
                built = replace(built, array=target.array.at(store))
            staged.append(built)
        return tuple(staged)

    def shape(self, name: str = "region") -> Vec3 | None:
        """Return a shape chosen by the interrupted start; None for a new job."""
        return None if self.before is None else vec3(self.before[name])

    def shapes(self) -> list[Vec3] | None:
        """Return the shapes chosen by the interrupted start, one per mag or pass; None for a new
        job."""
        return None if self.before is None else [vec3(shape) for shape in self.before["regions"]]

    def mags(
        self,
        targets: Sequence[TargetArray],
        nbytes_in: int,
        edit: MetadataEdit | None,
        plan: dict[str, Any] | None = None,
        **options: Any,
    ) -> StagedMags:
        if (
            self.before is not None
            and plan is not None
            and _PRESENCE in plan
            and plan[_PRESENCE] != self.before.get(_PRESENCE)
        ):
            raise ResumeError(
                f"{self.owner.command}: files were added or removed since the job was interrupted; "
                'existing="restart" starts over'
            )
        # Levels in the folders of new ones are moved on publication, not replaced.
        options.setdefault(
            "existing",
            "overwrite"
            if edit is not None and edit.makes_room and self.existing != "restart"
            else self.existing,
        )
        for target in targets:
            target.array.codec.check_packages(target.folder)
        edit = placed_edit(edit, self.parent, self.owner, targets, self.existing)
        options["resumed_by"] = self.resumed_by
        return StagedMags(
            owner=self.owner,
            parent=self.parent,
            targets=tuple(targets),
            folders=self.folders,
            nbytes_in=nbytes_in,
            edit=edit,
            settings=self.settings,
            plan=plan,
            **options,
        )


def stage(
    command: str,
    parent: str,
    folders: Sequence[str],
    settings: dict[str, Any],
    existing: str,
    *,
    settings_are_complete: bool = True,
) -> Draft:
    """Draft a job, new or resumed. If something outside of the settings determines voxels,
    ``existing="overwrite"`` starts over."""
    check_existing(existing)
    target_path(parent)  # raises an error for a location that is only read
    resumed_by = resuming_policy(existing, settings_are_complete=settings_are_complete)
    existing = existing if settings_are_complete else _restarting(existing)
    interrupted = _find_interrupted(parent, folders, settings, existing)
    owner = Owner.this_process(command, None if interrupted is None else interrupted.job)
    return Draft(
        owner,
        parent,
        tuple(folders),
        settings,
        existing,
        None if interrupted is None else interrupted.plan,
        resumed_by,
    )


def resuming_policy(existing: str, *, settings_are_complete: bool) -> str | None:
    """Return the value of ``existing=`` that resumes the interrupted job of a call; None if the
    call itself does."""
    if not replaces(existing):
        return None
    return ("overwrite" if existing == "restart" else None) if settings_are_complete else "resume"


def _restarting(existing: str) -> str:
    return "restart" if existing == "overwrite" else existing


def stage_array(
    command: str,
    parent: str,
    folder: str,
    settings: dict[str, Any],
    existing: str,
    content: ArrayContent,
) -> Draft:
    """Draft a job that writes an array, new or resumed. The voxels of a resumed job are not
    compared."""
    check_existing(existing)
    settings = {**settings, **content.settings}
    resumed_by = resuming_policy(existing, settings_are_complete=content.token is not None)
    existing = existing if content.token is not None else _restarting(existing)
    is_free = not any(
        lock.conflicts_with(content.shards) and not lock.owner.is_gone()
        for lock in locks_of(folder)
    )
    interrupted = (
        find_interrupted_array(parent, [folder], content.shards)
        if existing != "restart" and is_free
        else None
    )
    if interrupted is not None and existing != "resume" and settings != interrupted.settings:
        interrupted = None  # the new job replaces it
    if interrupted is not None:
        check_same_settings(
            interrupted.root, settings, interrupted.settings, content.ignored_settings
        )
    owner = Owner.this_process(command, None if interrupted is None else interrupted.job)
    return Draft(owner, parent, (folder,), settings, existing, None, resumed_by)


def check_existing(existing: str) -> None:
    if existing not in EXISTING:
        raise ValueError(f"existing must be {' or '.join(map(repr, EXISTING))}, got {existing!r}")


def _find_interrupted(
    parent: str, folders: Sequence[str], settings: dict[str, Any], existing: str
) -> InterruptedJob | None:
    """Find the interrupted job that a new one continues."""
    if existing == "restart" or any(lock_holder(folder) is not None for folder in folders):
        return None  # a running job is reported when the locks are taken
    unfinished = find_interrupted(parent, folders)
    if unfinished is not None:
        check_same_settings(unfinished.root, settings, unfinished.settings)
    return unfinished
