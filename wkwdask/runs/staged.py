"""Mags that are built out of sight and appear together: how a writing job is laid out, starts, goes on and ends, whatever the format of its targets."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ExistsError, LockedError, ResumeError
from wkwdask.formats.record_paths import job_root
from wkwdask.formats.replaceable import check_targets, is_occupied
from wkwdask.geometry.bounding_box import moved
from wkwdask.geometry.mag import vec3
from wkwdask.model.parsing import reading
from wkwdask.runs.job_folder import JobFolder, NewMag
from wkwdask.runs.job_records import JobState, find_interrupted, find_interrupted_array, has_no_jobs, job_states, targets_of
from wkwdask.runs.journal import Journal, JournaledJob, read_journal, receipts_of
from wkwdask.runs.parts import pyramid_records
from wkwdask.runs.progress import keep_progress
from wkwdask.runs.report import Report
from wkwdask.store import files
from wkwdask.store.locks import Owner, lock_holder, locks_of
from wkwdask.store.paths import basename
from wkwdask.store.records import FILE_RECORD_NAME, PROVENANCE_NAME, read_provenance, write_file_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.format import MetadataEdit
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.receipts import Receipt
    from wkwdask.model.target_array import TargetArray
    from wkwdask.runs.job_records import InterruptedJob
    from wkwdask.runs.journal import ResumableJob
    from wkwdask.runs.parts import ShardTally
    from wkwdask.store.locks import ShardBox


_DONE_NOTE = "nothing to do: the mags were finished before with the same settings, and the source has not changed"
_RESUME_NOTE = 'what was finished is kept: the same call goes on from there, existing="overwrite" starts anew'
_KEPT_NOTE = 'what was finished is kept: the same call with the same array resumes, existing="resume" resumes with any array'
_FINISHED_NOTE = "an earlier job with the same settings was interrupted while it published its result; that was finished now"


@dataclass(frozen=True, slots=True)
class StagedMags:
    """One writing job: what it builds, where, and how it ends. Picklable; nothing is made before :meth:`start`."""

    owner: Owner
    parent: str
    """The layer's folder, in which the job's folder is made."""
    targets: tuple[TargetArray, ...]
    """What tasks write, finest first."""
    folders: tuple[str, ...]
    """Where each is to appear."""
    nbytes_in: int
    """Voxel bytes that go in, for the report."""
    edit: MetadataEdit | None
    """What the metadata is to say in the end."""
    settings: dict[str, Any]
    """What the job does, for its provenance."""
    existing: str
    """``"error"``, ``"resume"``, ``"overwrite"``, or ``"update"`` where targets are the living mags."""
    plan: dict[str, Any] | None = None
    """What a later start of the job must not decide anew."""
    is_pyramid: bool = False
    """Whether each mag from the second on is made from the one before it, and not from what the job reads."""
    resumes_automatically: bool = True
    """Whether the same call goes on with an interrupted job; else only ``existing="resume"`` does, and any other job takes its place."""
    voxel_provenance: dict[str, Any] | None = None
    """Provenance of the voxels, where this job only stores them anew."""
    ignored_settings: tuple[str, ...] = ()
    """Settings that may differ where a job goes on."""
    task_nbytes: int = 256 << 20
    """Memory of one task, about."""
    box: BoundingBox | None = None
    """Where the one mag has data, where its files are taken over with what they hold around that box."""

    @property
    def root(self) -> str:
        """The job's folder."""
        return job_root(self.parent, self.owner.job)

    def check_free(self) -> None:
        """Make sure, without taking anything, that the job could start now."""
        for folder in self.folders:
            holder = lock_holder(folder)
            if holder is not None:
                raise LockedError(f"{folder}: another job writes it: {holder}")

        if self.existing != "resume" and find_interrupted(self.parent, self.folders) is None and not self._was_publishing():
            check_targets(self.folders, self.existing)
        self._check_metadata()

    def _was_publishing(self) -> bool:
        """Check whether a job ended while some of the mags appeared: the start of the next one finishes that first."""
        ended = (root for root, state in job_states(self.parent) if state in (JobState.UNPUBLISHED, JobState.REFUSED))
        return any(set(targets_of(root)) & set(self.folders) for root in ended)

    def remove_leftovers(self) -> None:
        """Remove what dead jobs left in the layer, where this one has nothing to do."""
        with contextlib.suppress(OSError):
            if not has_no_jobs(self.parent, ()):
                job_folder = replace(self, folders=())._job_folder()
                job_folder.start("update", {})
                job_folder.discard()

    def _check_metadata(self) -> None:
        """Make sure, before any work, that the metadata can be brought up to date after it."""
        if self.edit is not None:
            self.edit.check_writable()

    def start(self) -> Report | None:
        """Lock the mags and make the job's folder; starting again in another process changes nothing."""
        done = self.done()
        if done is not None:
            return done
        self._check_metadata()
        try:
            finished = self._job_folder().start(self.existing, self.settings, self.plan)
        except ExistsError:
            if self.existing != "resume":
                raise
            return self._finished_before()
        if finished is not None:
            return report_in(finished, _FINISHED_NOTE, self.folders)
        self._check_current()
        for target in self.targets:
            target.prepare()
        return None

    def _check_current(self) -> None:
        """Make sure, now that the mags are locked, that the metadata is still that for which the job was planned; else nothing of it stays."""
        try:
            if self.edit is not None:
                self.edit.check_current()
        except BaseException:
            if not self._job_folder().suspend():
                with contextlib.suppress(OSError):  # it is not empty
                    files.rmdir(self.parent)
            raise

    def done(self) -> Report | None:
        """Give the report of an equal job that was finished before, where that is asked for; else None."""
        if self.existing == "resume" and all(is_occupied(folder) for folder in self.folders) and has_no_jobs(self.parent, self.folders):
            return self._finished_before()
        return None

    def is_finished(self) -> bool:
        """Check whether a job with the same settings made all mags."""
        return all(is_occupied(folder) and read_provenance(folder).get("settings") == self.settings for folder in self.folders)

    def accepting_finished(self) -> StagedMags:
        """Return the job as one that does nothing where an equal one was finished."""
        return replace(self, existing="resume") if self.existing == "error" and self.is_finished() else self

    def _finished_before(self) -> Report:
        """Give the report of the job that made what is there."""
        for folder in self.folders:
            provenance = read_provenance(folder)
            if "settings" not in provenance:
                what = "is there, without a journal of a job that could be resumed" if is_occupied(folder) else "is not there, but other mags of the job are"
                raise ResumeError(f'{folder}: {what}; existing="overwrite" replaces all')
            check_same_settings(folder, self.settings, provenance["settings"], self.ignored_settings)
        return report_in(read_provenance(self.folders[0]), _DONE_NOTE, self.folders)

    def num_done(self) -> int:
        """Count what the journal of an interrupted start tells."""
        return sum(1 for _ in read_journal(self.root))

    def journaled(self, job: ResumableJob, journal: Journal) -> JournaledJob:
        """Let a job go on from where its journal ends."""
        return JournaledJob(
            job, journal.append, read_journal(self.root), self.targets, folder=self.root, nbytes_in=self.nbytes_in, task_nbytes=self.task_nbytes
        )

    def known_shards(self) -> dict[Vec3, Receipt]:
        """List the shards of the one target that the journal tells of and that are there; header, table and size of each are checked."""
        (target,) = self.targets
        receipts = (receipt for _, receipt in receipts_of(read_journal(self.root), self.targets) if receipt.part is None)
        return {receipt.shard: receipt for receipt in receipts if target.holds(receipt)}

    def publish(self, tallies: Sequence[ShardTally], note: str = "") -> Report:
        """Make sure that every file was written, and let the mags appear."""
        for tally in tallies:
            tally.check()
        if self.edit is not None:
            self.edit.check_current()
        rows_of_all = pyramid_records(tallies) if self.is_pyramid else [tally.shards for tally in tallies]
        for tally, rows in zip(tallies, rows_of_all, strict=True):
            for name in (FILE_RECORD_NAME, PROVENANCE_NAME):  # of an attempt that was killed right here
                files.remove_temporaries(tally.target.folder, name)
            write_file_record(tally.target.folder, rows)
        job_folder = self._job_folder()
        keep_progress(job_folder.root, tallies[0].target.folder)
        seconds = time.time() - job_folder.started_at()
        reports = [tally.report(folder) for tally, folder in zip(tallies, self.folders, strict=True)]
        if self.box is not None:
            reports = [replace(one, voxels=self.box.volume) for one in reports]
        report = Report(tuple(reports), self.nbytes_in, seconds, note)
        boxes = [self.box or moved(target.box, target.origin) for target in self.targets]
        new_mags = [
            NewMag(basename(target.folder), folder, (*box.topleft, *box.size)) for target, folder, box in zip(self.targets, self.folders, boxes, strict=True)
        ]
        provenance = {"settings": self.settings, "report": report.to_json(), **({"made": self.voxel_provenance} if self.voxel_provenance else {})}
        job_folder.publish(new_mags, self._edit_with_maxima(report), provenance)
        return report

    def _edit_with_maxima(self, report: Report) -> MetadataEdit | None:
        """Let the metadata state the largest id of a segmentation, now that all values are known."""
        if self.edit is None:
            return None
        maxima = tuple(mag.maximum if isinstance(mag.maximum, int) else None for mag in report.mags)
        return self.edit.with_maxima(maxima, is_new_content=self.voxel_provenance is None and is_occupied(self.folders[0]))

    def discard(self) -> None:
        """End the job without publishing anything."""
        self._job_folder().discard()

    def suspend(self, error: BaseException) -> None:
        """End this attempt; what its journal tells stays for the next one, and the error says so."""
        if self._job_folder().suspend():
            error.add_note(_RESUME_NOTE if self.resumes_automatically else _KEPT_NOTE)

    def _job_folder(self) -> JobFolder:
        datasets = () if self.edit is None else tuple(self.edit.folders().values())
        return JobFolder(self.parent, self.owner, self.folders, is_kept_for_later=self.resumes_automatically, datasets=datasets)


def report_in(provenance: dict[str, Any], note: str, folders: Sequence[str]) -> Report:
    """Read the report of a job out of the provenance of the first of its mags."""
    with reading(f"{folders[0]}/{PROVENANCE_NAME}", "record"):
        return Report.from_json(provenance["report"], note, folders)


def is_interrupted_call(jobs: Sequence[StagedMags], *, goes_on: bool = False) -> bool:
    """Tell whether some jobs of a call were finished by one with the same settings, and others, or what comes after them, perhaps not: it goes on."""
    done = [job.is_finished() for job in jobs]
    return any(done) and (goes_on or not all(done) or not all(has_no_jobs(job.parent, job.folders) for job in jobs))


def settings_of(command: str, **options: Any) -> dict[str, Any]:
    """Write down what a job is to do, in values that JSON keeps."""
    return {"command": command, **{name: value if isinstance(value, (int, float, type(None))) else str(value) for name, value in options.items()}}


def check_same_settings(what: str, settings: dict[str, Any], before: dict[str, Any], but: Sequence[str] = ()) -> None:
    """Compare a job with one that was interrupted or finished before, but for some settings."""
    names = [name for name in {**settings, **before} if settings.get(name) != before.get(name) and name not in but]
    if not names:
        return
    of_source = {"input": "the source was replaced", "states": "files of the source have changed"}
    differences = [of_source.get(name, f"{name} was {before.get(name, 'not set')}, is {settings.get(name, 'not set')}") for name in names]
    raise ResumeError(f'{what}: made with other settings: {"; ".join(differences)}. Give the same settings, or existing="overwrite" to start anew')


def finish_interrupted_publication(parent: str, folder: str, command: str, dataset: str | None = None) -> None:
    """Finish the publishing of an earlier start that was killed there, before what is there is looked at."""
    if has_no_jobs(parent, (folder,)):
        return
    job_folder = JobFolder(parent, Owner.this_process(f"{command} of {folder}"), (folder,), datasets=[*filter(None, [dataset])])
    with contextlib.suppress(ResumeError):  # of another job, which is left alone
        job_folder.start("update", {})
        job_folder.discard()


@dataclass(frozen=True, slots=True)
class ArrayContent:
    """What is written, and by what it is known again."""

    shape: tuple[int, int, int, int]
    """Channels, and extent along x, y, z."""
    dtype: Any
    fingerprint: str
    """Of the array itself."""
    token: str | None = None
    """What the user says that the array is, in place of its fingerprint."""
    in_memory: bool = False
    """Whether the fingerprint is that of the voxels, and not that of a graph."""
    shards: ShardBox | None = None
    """Shards of a living mag that are written, None where it is a new one."""

    @property
    def settings(self) -> dict[str, Any]:
        """What a journal keeps about it."""
        return {"dtype": str(self.dtype), "channels": self.shape[0], "token": self.token, "input": self.fingerprint}

    @property
    def ignored_settings(self) -> tuple[str, ...]:
        """Settings that may differ where a job goes on: an arbitrary graph is another one in each process."""
        return () if self.in_memory and self.token is None else ("input",)

    @property
    def trust_note(self) -> str:
        """Say what is trusted where a job goes on."""
        if self.token is not None:
            return f"the array is believed to be the same, since its place, shape, type and token {self.token!r} are"
        if self.in_memory:
            return "the array is the same"
        return "the array is believed to be the same, since its place, shape and type are; its voxels were not compared, and token= can name its content"


EXISTING = ("error", "resume", "overwrite")
_PRESENCE = "presence"


@dataclass(frozen=True, slots=True)
class Draft:
    """A job before its targets are known: owner, place, settings, and the decisions of an interrupted start."""

    owner: Owner
    parent: str
    folders: tuple[str, ...]
    """Final folder of each mag."""
    settings: dict[str, Any]
    existing: str
    before: dict[str, Any] | None
    """Decisions of the interrupted start, None for a new job."""

    @property
    def root(self) -> str:
        """Folder of the job."""
        return job_root(self.parent, self.owner.job)

    def staged(self, name: str) -> str:
        """Return the folder in which a mag is built."""
        return f"{self.root}/{name}"

    def shape(self, name: str = "region") -> Vec3 | None:
        """Return a shape that the interrupted start chose, None for a new job."""
        return None if self.before is None else vec3(self.before[name])

    def shapes(self) -> list[Vec3] | None:
        """Return the shapes that the interrupted start chose, one per mag or pass; None for a new job."""
        return None if self.before is None else [vec3(shape) for shape in self.before["regions"]]

    def mags(self, targets: Sequence[TargetArray], nbytes_in: int, edit: MetadataEdit | None, plan: dict[str, Any] | None = None, **options: Any) -> StagedMags:
        """Stage the mags."""
        if self.before is not None and plan is not None and _PRESENCE in plan and plan[_PRESENCE] != self.before.get(_PRESENCE):
            raise ResumeError(f'{self.owner.command}: files were added or removed since the job was interrupted; existing="overwrite" starts anew')
        options.setdefault("existing", self.existing)
        return StagedMags(self.owner, self.parent, tuple(targets), self.folders, nbytes_in, edit, self.settings, plan=plan, **options)


def stage(command: str, parent: str, folders: Sequence[str], settings: dict[str, Any], existing: str) -> Draft:
    """Begin the layout of a job, new or resumed."""
    check_existing(existing)
    interrupted = _find_interrupted(parent, folders, settings, existing)
    owner = Owner.this_process(command, None if interrupted is None else interrupted.job)
    return Draft(owner, parent, tuple(folders), settings, existing, None if interrupted is None else interrupted.plan)


def stage_array(command: str, parent: str, folder: str, settings: dict[str, Any], existing: str, content: ArrayContent) -> Draft:
    """Begin the layout of a job that writes an array. A resumed job need not prove that the voxels are the same."""
    check_existing(existing)
    settings = {**settings, **content.settings}
    is_free = not any(lock.conflicts_with(content.shards) and not lock.owner.is_gone() for lock in locks_of(folder))
    left = find_interrupted_array(parent, [folder], content.shards) if existing != "overwrite" and is_free else None
    if left is not None and existing == "error" and settings != left.settings:
        left = None  # the new job takes its place
    if left is not None:
        check_same_settings(left.root, settings, left.settings, content.ignored_settings)
    return Draft(Owner.this_process(command, None if left is None else left.job), parent, (folder,), settings, existing, None)


def check_existing(existing: str) -> None:
    """Make sure that the option is one that there is."""
    if existing not in EXISTING:
        raise ValueError(f"existing must be {' or '.join(map(repr, EXISTING))}, got {existing!r}")


def _find_interrupted(parent: str, folders: Sequence[str], settings: dict[str, Any], existing: str) -> InterruptedJob | None:
    """Find the interrupted job that a new one is to go on with."""
    if existing == "overwrite" or any(lock_holder(folder) is not None for folder in folders):
        return None  # a job that is running is told apart when the locks are taken
    unfinished = find_interrupted(parent, folders)
    if unfinished is not None:
        check_same_settings(unfinished.root, settings, unfinished.settings)
    return unfinished
