"""Run a job as a SLURM job array, without a dask scheduler.

::

    wkwdask ... --submit      plans the job, writes the tasks to a file, submits both jobs, hands its lock to the finish job, and exits
        |
        +-- array job         element n runs its share of the tasks and appends receipts to its own journal
        |     (afterany)
        +-- finish job        runs the same command again, which resumes the job: it reads the journals, checks the receipts, runs missing tasks and those
                              that follow from results (joins), and publishes. If many tasks are left (the next pass of a pyramid), it submits an array.

The finish job also starts when elements fail (``afterany``): it then runs their tasks itself, or
submits them again.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import sys
import tempfile
import time
from contextvars import ContextVar
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from wkwdask.errors import TaskFailedError, UnsupportedError
from wkwdask.graphs.signals import sigterm_raises
from wkwdask.plans.batch_size import (
    Workload,
    finish_job_size,
    finish_job_tasks,
    format_walltime,
    group_size,
    propose_size,
)
from wkwdask.runs.batch_file import (
    BATCH_NAME,
    Batch,
    ElementTasks,
    HandedToSlurm,
    Round,
    read_batch,
    write_batch,
    write_tasks,
)
from wkwdask.runs.job_folder import can_be_handed_over, hand_over
from wkwdask.runs.job_records import job_owner
from wkwdask.runs.journal import Journal, JournaledJob, entry_of, keys_of, read_journal
from wkwdask.store.paths import is_bucket
from wkwdask.store.slurm import (
    SlurmJob,
    cancel_jobs,
    cluster_name,
    max_array_size,
    options_in,
    release_job,
    submit_job,
)
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wkwdask.plans.batch_size import ArraySize
    from wkwdask.runs.job import Job, Result, Task

_JOURNALS_PER_ROUND = 1_000_000  # the journals of round n have the numbers from (n + 1) million on
_OBJECTS_PER_JOURNAL = 1_000_000  # of an element, in a bucket
_ASKED_EVERY_SECONDS = 30.0


_current: ContextVar[Batch | None] = ContextVar("wkwdask_batch", default=None)


@contextlib.contextmanager
def submitting_to(batch: Batch) -> Iterator[None]:
    """Submit the jobs that start in this block to the batch system."""
    token = _current.set(batch)
    try:
        yield
    finally:
        _current.reset(token)


def current_batch() -> Batch | None:
    """Return the batch that jobs of this thread are submitted to; None if they run in this
    process."""
    return _current.get()


def check_restartable(num_jobs: int, *, overwrites: bool) -> None:
    """Reject several jobs that overwrite data: the finish job runs the same command again, and
    cannot tell which of them are already done."""
    if current_batch() is not None and num_jobs > 1 and overwrites:
        raise UnsupportedError(
            f"a job array overwrites one layer or one mag at a time, got {num_jobs}; submit one "
            "command for each, or all in one with --cluster slurm-allocation"
        )


def submit_tasks(job: Job, batch: Batch) -> Job:
    """Submit the tasks of a job as an array and raise :class:`HandedToSlurm`; if few tasks are
    left, return a job of them to run in this process."""
    if (
        not isinstance(job, JournaledJob)
        or job.folder is None
        or not can_be_handed_over(job.folder)
    ):
        raise UnsupportedError(
            f"wkwdask {batch.arguments[0]} keeps no journal that elements of an array could share; "
            "submit it with --cluster slurm-allocation"
        )
    before = read_batch(job.folder)
    # otherwise a user submits the job, for the first time or after a cancellation
    is_finish_job = before is not None and before.rounds == batch.rounds
    batch = replace(batch, rounds=() if before is None else before.rounds)
    requested = _requested_size(batch)
    total = job.num_tasks + job.num_known
    max_tasks_here = finish_job_tasks(Workload(total, job.nbytes_in, job.task_nbytes), requested)
    tasks = iter(job.tasks())
    first = list(islice(tasks, max_tasks_here + 1))
    if not first or (is_finish_job and len(first) <= max_tasks_here):
        return _RemainingJob(job, first)
    journaled = len(set(keys_of(read_journal(job.folder))))
    if is_finish_job and journaled <= batch.rounds[-1].journaled:
        # another array would fail in the same way
        raise TaskFailedError(
            f"array {batch.rounds[-1].array} finished no task: see wkwdask status, and the logs of "
            f"its elements in {batch.logs}"
        )
    num_left = max(total - journaled, len(first))
    work = Workload(num_left, job.nbytes_in * num_left // max(total, num_left), job.task_nbytes)
    size = propose_size(work, requested, max_array_size())
    file = _tasks_name(job.folder, len(batch.rounds))
    num_tasks = _write(
        f"{job.folder}/{file}",
        chain(first, tasks),
        group_size(work.num_tasks, size.elements or 1),
    )
    size = replace(size, elements=min(size.elements or 1, num_tasks))
    finish_size = (
        size if requested.seconds is not None else finish_job_size(max_tasks_here, work, size)
    )
    sizes = size, finish_size
    raise HandedToSlurm(
        job.folder, _submit(job.folder, batch, sizes, (num_tasks, journaled), file), size
    )


def _write(path: str, tasks: Iterable[Task], group: int) -> int:
    # pickles functions that no module defines by value
    from distributed.protocol.pickle import dumps

    return write_tasks(path, tasks, group, dumps)


def _submit(
    root: str,
    batch: Batch,
    sizes: tuple[ArraySize, ArraySize],
    counts: tuple[int, int],
    file: str,
) -> Batch:
    """Submit an array and its finish job, of these sizes, and hand the lock over to the finish
    job. ``counts`` are the tasks in the file and those that the journals contain."""
    # The array is submitted on hold, and released only when the finish job depends on it, the
    # record names both, and the lock is handed over. So if this process dies in between, no array
    # runs whose results no job would publish.
    number = len(batch.rounds)
    store_at(batch.logs).make()
    if not os.access(batch.logs, os.W_OK | os.X_OK):  # SLURM would end the jobs without a message
        raise PermissionError(
            errno.EACCES,
            "the folder for the logs of the jobs is not writable; name another one with --logs",
            batch.logs,
        )
    logs = batch.logs.replace("%", "%%")
    program, verb = (sys.executable, "-m", "wkwdask"), batch.arguments[0]
    command = json.dumps(replace(batch, rounds=()).to_json())
    elements = sizes[0].elements or 1
    at_once = "" if sizes[0].at_once is None else f"%{sizes[0].at_once}"
    # the last of equal options wins
    array, finish = (
        [f"--job-name=wkwdask-{verb}", *_size_options(batch, size), *batch.options]
        for size in sizes
    )
    submitted: list[str] = []
    with _cancelled_together(submitted), tempfile.NamedTemporaryFile() as script:
        script.write(batch.script.encode())  # SLURM keeps a copy
        script.flush()
        array += [
            f"--array=0-{elements - 1}{at_once}",
            "--hold",
            f"--output={logs}/{verb}-%A-%a.log",
        ]
        submitted.append(
            submit_job(
                script.name,
                [*program, "batch-element", root, str(number)],
                array,
                batch.folder,
            )
        )
        finish += [f"--dependency=afterany:{submitted[0]}", f"--output={logs}/{verb}-%j-finish.log"]
        submitted.append(
            submit_job(script.name, [*program, "batch-finish", root, command], finish, batch.folder)
        )
        new_round = Round(
            submitted[0],
            submitted[1],
            counts[0],
            elements,
            counts[1],
            round(time.time(), 1),
            file,
        )
        batch = replace(batch, rounds=(*batch.rounds, new_round))
        write_batch(root, batch)
        hand_over(root, SlurmJob(cluster_name(), new_round.finish))
        release_job(new_round.array)
    return batch


@contextlib.contextmanager
def _cancelled_together(submitted: Sequence[str]) -> Iterator[None]:
    """Cancel the jobs submitted so far if submitting the others fails or is interrupted."""
    with sigterm_raises():
        try:
            yield
        except BaseException:
            cancel_jobs(reversed(submitted))
            raise


def _sbatch_options(batch: Batch) -> dict[str, str]:
    """Return the options of sbatch in the script and from the user."""
    return {**options_in(batch.script), **options_in("#SBATCH " + " ".join(batch.options))}


def _requested_size(batch: Batch) -> ArraySize:
    """Return the resources that the user requested, and the cores that the script sets, on which
    the proposed memory depends."""
    cores = _sbatch_options(batch).get("cpus-per-task", "")
    return (
        replace(batch.size, cpus=int(cores))
        if batch.size.cpus is None and cores.isdecimal()
        else batch.size
    )


def _size_options(batch: Batch, size: ArraySize) -> list[str]:
    """Return the proposed resources as options of sbatch, except those that the script or the user
    sets."""
    named = _sbatch_options(batch).keys()
    options = (
        []
        if "cpus-per-task" in named and batch.size.cpus is None
        else [f"--cpus-per-task={size.cpus}"]
    )
    if batch.size.seconds is not None or "time" not in named:
        options.append(f"--time={format_walltime(size.seconds or 0)}")
    if batch.size.memory_nbytes is not None or not named & {"mem", "mem-per-cpu"}:
        options.append(f"--mem={(size.memory_nbytes or 0) >> 20}M")
    return options


class _RemainingJob:
    """The rest of a job whose first tasks were already taken from its iterator."""

    def __init__(self, job: JournaledJob, first: list[Task]) -> None:
        self.folder = job.folder
        self._job = job
        self._first = first

    @property
    def num_tasks(self) -> int:
        return self._job.num_tasks

    @property
    def num_known(self) -> int:
        return self._job.num_known

    def tasks(self) -> Iterator[Task]:
        return iter(self._first)

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        return self._job.receive(task, result)


class ElementJob:
    """Tasks of one element of an array, with a separate journal for their results."""

    def __init__(
        self, root: str, number: int, element: int, batch: Batch, journal: Journal, known: set[str]
    ) -> None:
        self.folder = root
        self._round = batch.rounds[number]
        self._share = ElementTasks(f"{root}/{self._round.file}", element, self._round.elements)
        self._journal = journal
        self._known = known
        self._num_known = 0
        self._asked = -math.inf

    @property
    def num_tasks(self) -> int:
        """Number of tasks that are not finished."""
        return len(self._share) - self._num_known

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks. Stop when the job was cancelled or has ended."""
        for task in self._share.tasks():
            if not self._goes_on():
                return
            if task.key in self._known:
                self._num_known += 1
            else:
                yield task

    def _goes_on(self) -> bool:
        """Check whether the record of the job is there; in a bucket, every half minute, whether its
        lease still belongs to the finish job."""
        if not is_bucket(self.folder):
            return store_at(self.folder).exists(BATCH_NAME)
        now = time.monotonic()
        if now - self._asked < _ASKED_EVERY_SECONDS:
            return True
        self._asked = now
        owner = job_owner(self.folder)
        batch = None if owner is None or owner.pid else SlurmJob.parse(owner.batch)
        return batch is not None and batch.number == self._round.finish

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Record a result in the journal. The finish job runs the tasks that follow from it."""
        self._journal.append(entry_of(task.key, result))
        return ()


@contextlib.contextmanager
def element_job(
    root: str, number: int, element: int, *, has_started_before: bool
) -> Iterator[ElementJob | None]:
    """Open the tasks of one element; None if the job is over."""
    batch = read_batch(root)
    if batch is None:
        yield None
        return
    known = set(keys_of(read_journal(root))) if has_started_before else set()
    first = (number + 1) * _JOURNALS_PER_ROUND + element
    if is_bucket(root):  # where each flush of a journal is an object with the next number
        first *= _OBJECTS_PER_JOURNAL
    with Journal(root, first) as journal:
        yield ElementJob(root, number, element, batch, journal, known)


def _tasks_name(root: str, number: int) -> str:
    """Return the name of the task file of a new round. In a bucket nobody else has it: a process
    that was paused while it submitted a round may write its tasks after another one has taken the
    job over and submitted that round."""
    return f"round-{number}{f'-{secrets.token_hex(4)}' if is_bucket(root) else ''}.tasks"
