"""Status of the jobs of a dataset, layer or mag, read from their folders on any machine."""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import BatchError, CorruptError, MissingError
from wkwdask.formats.record_paths import is_job_folder
from wkwdask.formats.registry import location_of
from wkwdask.model.parsing import reading
from wkwdask.model.summary import format_nbytes
from wkwdask.runs.batch_file import read_batch
from wkwdask.runs.calls import command_of
from wkwdask.runs.job_records import (
    JobState,
    job_owner,
    job_states,
    problem_of,
    read_plan,
    targets_of,
)
from wkwdask.runs.journal import MAX_NUMBER, entries_of, read_journal, stored_nbytes
from wkwdask.runs.progress import describe, describe_count, read_failures, read_progress
from wkwdask.runs.report import Report
from wkwdask.store.paths import abspath, basename, dirname, is_below, target_path
from wkwdask.store.records import read_provenance
from wkwdask.store.slurm import SlurmJob, count_states, describe_states, is_in_queue, wait_for_end
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from wkwdask.runs.batch_file import Batch
    from wkwdask.runs.calls import Command
    from wkwdask.runs.progress import Failure
    from wkwdask.store.locks import Owner

_LISTED = 20
_STATE_TEXTS = {
    JobState.RUNNING: "running",
    JobState.UNPUBLISHED: "ended during publication; the next job in the layer completes it",
    JobState.CAN_GO_ON: "not running",
    JobState.REFUSED: "its records are rejected; wkwdask repair removes it, or remove its folder",
    JobState.DEAD: "ended before any task finished",
}


@dataclass(frozen=True, slots=True)
class FoundJob:
    """Job that has a folder."""

    root: str
    state: JobState
    owner: Owner | None
    """Current or last owner."""
    targets: tuple[str, ...]
    batch: Batch | None
    """Job arrays that run its tasks; None without any."""
    problem: str = ""
    """Reason why its records are rejected."""
    command: Command | None = None
    """Command that started it; None for a function."""
    resumed_by: str | None = None
    """Value of ``existing=`` that resumes it; None for that of its call."""
    needs_array: bool = False
    """Whether it writes an array, which its call passes."""

    @property
    def is_running(self) -> bool:
        """Whether its process or SLURM job may be alive."""
        return self.state is JobState.RUNNING

    def slurm_jobs(self) -> list[str]:
        """Return the ids of its SLURM jobs: the last array, then the owner."""
        owner = SlurmJob.parse(self.owner.batch) if self.owner is not None else None
        arrays = [self.batch.rounds[-1].array] if self.batch is not None else []
        return [*arrays, *([owner.number] if owner is not None else [])]

    def orphaned_arrays(self) -> list[str]:
        """Return the id of its last array, if that is still queued although the job is dead."""
        if self.is_running or self.batch is None:
            return []
        array = self.batch.rounds[-1].array
        return [array] if is_in_queue(array) else []


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Progress of a job."""

    job: FoundJob
    done: int
    """Tasks finished by the current or last start."""
    known: int
    """Tasks finished by earlier starts."""
    total: int
    """Number of tasks known so far; tasks that follow from results may be added."""
    nbytes_in: int
    """Decoded voxel bytes read by the current start."""
    nbytes_out: int
    """Bytes stored by the current start."""
    seconds: float
    """Working time, without waiting in a queue."""
    workers: int
    """Concurrent tasks of all processes that report them."""
    failures: tuple[Failure, ...]
    """Failed tasks that were not finished since."""
    slurm: dict[str, dict[str, int]]
    """Number of elements by state, for each SLURM job."""
    resume: Command | None = None
    """Command that resumes the job; None for a function."""

    def _what_resumes(self) -> str:
        if self.resume is not None:
            return (
                f"resumed by: cd {shlex.quote(self.resume.folder)} && "
                f"{shlex.join(['wkwdask', *self.resume.arguments])}"
            )
        existing = self.job.resumed_by
        if existing is not None:
            return f'the same call resumes it if existing is "{existing}"' + (
                ", then with any array" if self.job.needs_array and existing == "resume" else ""
            )
        if self.job.needs_array:
            return (
                "the same call with the same array resumes it, and with any array if existing is "
                '"resume"'
            )
        return "the same call resumes it"

    def __str__(self) -> str:
        name = str(self.job.owner) if self.job.owner is not None else self.job.root
        record = {"title": "  ", "failed": len(self.failures), **self._numbers()}
        lines = [
            f"{name}: {_STATE_TEXTS[self.job.state]}",
            f"  writes {', '.join(self.job.targets)}",
        ]
        if self.job.problem:
            return "\n".join([lines[0], f"  {self.job.problem}"])
        lines.append(
            f"  {describe_count(record)}"
            if not self.job.is_running
            else f"  {', '.join([describe_count(record), *describe(record)])}"
        )
        lines += [
            f"  SLURM job {number}: {describe_states(states)}"
            for number, states in self.slurm.items()
        ]
        if self.job.state is JobState.CAN_GO_ON:
            lines += [
                f"  {self._what_resumes()}",
                f"  removed by: wkwdask cancel {shlex.quote(dirname(self.job.root))} --discard",
            ]
        lines += [
            f"  failed: {failure.name}: {failure.reason} (tried {failure.attempts} times)"
            for failure in self.failures[:_LISTED]
        ]
        more = len(self.failures) - _LISTED
        return "\n".join([*lines, f"  and {more} more"] if more > 0 else lines)

    def to_json(self) -> dict[str, Any]:
        owner = None if self.job.owner is None else asdict(self.job.owner)
        facts = {
            "folder": self.job.root,
            "state": self.job.state.name.lower(),
            "owner": owner,
            "targets": self.job.targets,
            "problem": self.job.problem,
        }
        failures = [asdict(failure) for failure in self.failures]
        return {
            **facts,
            "resume": None if self.resume is None else asdict(self.resume),
            **self._numbers(),
            "slurm": self.slurm,
            "failures": failures,
        }

    def _numbers(self) -> dict[str, Any]:
        return {
            name: getattr(self, name)
            for name in ("done", "known", "total", "nbytes_in", "nbytes_out", "seconds", "workers")
        }


def jobs_of(url: str | os.PathLike[str]) -> list[FoundJob]:
    """Find the jobs that write a dataset, layer or mag, which need not exist yet."""
    path = abspath(target_path(location_of(url)))
    exists = store_at(path).is_folder()
    folders = folders_with_jobs(path) if exists or store_at(dirname(path)).is_folder() else ()
    jobs = [job for folder in folders for job in _jobs_in(folder) if _concerns(job, path)]
    if not jobs and not exists:
        raise MissingError(f"{path}: no such dataset, layer or mag, and no job that writes it")
    return jobs


def folders_with_jobs(path: str) -> Iterator[str]:
    """Iterate over the folders that may hold jobs of a path: its parent, itself, and its
    subfolders."""
    parent = dirname(path)
    try:
        store_at(parent).names()
    except PermissionError:  # a policy of a bucket may allow the image alone
        pass
    else:
        yield parent
    store = store_at(path)
    if store.is_folder():
        yield path
        yield from sorted(
            entry.path
            for entry in store.entries()
            if entry.is_dir() and not is_job_folder(entry.name)
        )


def _jobs_in(folder: str) -> Iterator[FoundJob]:
    for root, state in job_states(folder):
        try:
            problem = problem_of(root) if state is JobState.REFUSED else ""
            plan = read_plan(root) or {}
            found = FoundJob(
                root, state, job_owner(root), tuple(targets_of(root)), read_batch(root), problem
            )
            command, needs_array = (
                command_of(plan.get("call")),
                plan.get("is_kept_for_later") is False,
            )
            yield replace(
                found, command=command, resumed_by=plan.get("resumed_by"), needs_array=needs_array
            )
        except CorruptError as error:
            yield FoundJob(root, JobState.REFUSED, job_owner(root), (), None, str(error))


def _concerns(job: FoundJob, path: str) -> bool:
    """Check whether a job writes a path or something in it. A job with unreadable records may."""
    return any(is_below(target, path) for target in job.targets) or (
        job.state is JobState.REFUSED and is_below(job.root, dirname(path))
    )


def status_of(job: FoundJob) -> JobStatus:
    entries = list(entries_of(read_journal(job.root)).values())
    begin = _start_time(job, entries)
    current = [entry for entry in entries if _number(entry, "time") >= begin]
    records = read_progress(job.root)
    total = int(_number(records[-1], "total")) if records and job.batch is None else 0
    if job.batch is not None:
        total = job.batch.rounds[-1].journaled + job.batch.rounds[-1].tasks
    now = (
        time.time()
        if job.is_running
        else max((_number(entry, "time") for entry in current), default=begin)
    )
    return JobStatus(
        job,
        done=len(current),
        known=len(entries) - len(current),
        total=max(total, len(entries)),
        nbytes_in=sum(int(_number(entry, "nbytes_in")) for entry in current),
        nbytes_out=sum(stored_nbytes(entry) for entry in current),
        seconds=round(max(now - begin, 0.0), 1),
        workers=sum(
            int(_number(record, "workers"))
            for record in records
            if _number(record, "time") >= begin
        ),
        failures=tuple(read_failures(job.root)),
        slurm=_slurm_states(job),
    )


def _slurm_states(job: FoundJob) -> dict[str, dict[str, int]]:
    """Return the states of the SLURM jobs of a job; empty on a machine without SLURM."""
    try:
        return {number: count_states(number) for number in job.slurm_jobs()}
    except BatchError:
        return {}


def wait_for_batch(root: str, batch: Batch, report: Callable[[str], None]) -> bool:
    """Wait for the last SLURM job of a submitted command; return whether the command succeeded.
    ``report`` gets what happens meanwhile."""
    # A finish job may submit another round, and a command may run several jobs one after the other.
    # So after each end, look for a running job of the same command and wait for its last round.
    dataset = dirname(dirname(root))
    ended, last = "", batch.rounds[-1].finish
    while last != ended:
        ended, state = last, wait_for_end(last, report)
        same = [
            job
            for job in jobs_of(dataset)
            if job.batch is not None and job.batch.arguments == batch.arguments
        ]
        last = next(
            (
                job.batch.rounds[-1].finish
                for job in same
                if job.batch is not None and job.is_running
            ),
            ended,
        )
    # SLURM may have forgotten a job that published its result
    return state in ("COMPLETED", "") and not same


def _start_time(job: FoundJob, entries: list[dict[str, Any]]) -> float:
    """Return the time at which the first task of the current start began, after any waiting in a
    queue."""
    since = job.batch.rounds[-1].time if job.batch is not None else _owner_time(job.owner)
    return min(
        (
            _number(entry, "time") - _number(entry, "seconds")
            for entry in entries
            if _number(entry, "time") >= since
        ),
        default=time.time(),
    )


def _owner_time(owner: Owner | None) -> float:
    try:
        return (
            0.0 if owner is None else time.mktime(time.strptime(owner.since, "%Y-%m-%d %H:%M:%S"))
        )
    except (ValueError, OverflowError):  # the field is free text for people
        return 0.0


def _number(entry: dict[str, Any], name: str) -> float:
    """Return a number in an entry, 0 if absent or not plausible."""
    value = entry.get(name)
    return value if isinstance(value, (int, float)) and abs(value) < MAX_NUMBER else 0.0


@dataclass(frozen=True, slots=True)
class FinishedJob:
    command: str
    report: Report

    def __str__(self) -> str:
        mags = ", ".join(mag.path for mag in self.report.mags)
        numbers = (
            f"{self.report.files} files, {format_nbytes(self.report.nbytes_out)}, "
            f"{self.report.seconds:.1f} s, {self.report.mb_per_second:,.0f} MB/s"
        )
        return f"{self.command}: finished: {mags}: {numbers}"

    def to_json(self) -> dict[str, Any]:
        return {"state": "finished", "command": self.command, "report": self.report}


def finished_jobs(url: str | os.PathLike[str]) -> list[FinishedJob]:
    """List the finished jobs that wrote the mags of a dataset, layer or mag."""
    path = abspath(target_path(location_of(url)))
    finished: dict[str, FinishedJob] = {}
    for folder in _mag_folders(path):
        provenance = read_provenance(folder)
        if "report" in provenance and "settings" in provenance:
            command = str(provenance["settings"].get("command", "a job"))
            with contextlib.suppress(CorruptError), reading(folder, "record"):
                names = [basename(mag["path"]) for mag in provenance["report"]["mags"]]
                report = Report.from_json(
                    provenance["report"], "", [f"{dirname(folder)}/{name}" for name in names]
                )
                finished.setdefault(
                    str(provenance.get("job", folder)), FinishedJob(command, report)
                )
    return list(finished.values())


def _mag_folders(path: str) -> Iterator[str]:
    """Iterate over a folder and two levels below: a mag, the mags of a layer, or those of a
    dataset."""
    yield path
    below = _folders_in(path)
    yield from below
    for folder in below:
        yield from _folders_in(folder)


def _folders_in(path: str) -> list[str]:
    try:
        return sorted(
            entry.path
            for entry in store_at(path).entries()
            if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError:
        return []
