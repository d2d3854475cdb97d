"""Run jobs on this thread, local threads, local processes or a dask cluster, chosen as dask itself
would; in a dry run, only collect them."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import dask
import dask.base
import dask.local
import dask.multiprocessing
import dask.threaded

from wkwdask.errors import SpaceWarning
from wkwdask.formats.replaceable import replaces
from wkwdask.graphs.client_run import ClientRun, workers_of
from wkwdask.graphs.job_array import check_restartable, current_batch, submit_tasks
from wkwdask.graphs.local_run import run_on_processes, run_on_threads
from wkwdask.graphs.task_queue import TaskQueue
from wkwdask.runs.calls import same_call
from wkwdask.runs.drive import RunPlan, drive
from wkwdask.runs.job import FlatJob
from wkwdask.runs.progress import Progress
from wkwdask.runs.report import Report, merge_reports
from wkwdask.runs.retries import FailurePolicy, RetryingJob
from wkwdask.runs.space import check_space
from wkwdask.runs.staged import is_interrupted_call, join_interrupted_call
from wkwdask.store.cores import available_cores
from wkwdask.store.paths import need_file_system
from wkwdask.verbs.function_calls import release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wkwdask.runs.drive import Plan, Work
    from wkwdask.runs.job import Job, Task
    from wkwdask.verbs.function_calls import FunctionCalls
    from wkwdask.verbs.image_import import Import
    from wkwdask.verbs.rechunk import Rechunk

    R = TypeVar("R")
    P = TypeVar("P", Rechunk, Import)


@dataclass(slots=True)
class DryRun:
    """Work that a call would do."""

    jobs: list[Any] = field(default_factory=list)
    """Plans of mags to store again with other files, to import or to export."""
    pyramids: list[str] = field(default_factory=list)
    """Mags from which a pyramid would be built afterwards."""


_logger = logging.getLogger(__name__)
_dry_run: ContextVar[DryRun | None] = ContextVar("wkwdask_planned", default=None)


@contextlib.contextmanager
def dry_run() -> Iterator[DryRun]:
    """Collect the work of conversions that are called in this block, instead of doing it."""
    collected = DryRun()
    token = _dry_run.set(collected)
    try:
        yield collected
    finally:
        _dry_run.reset(token)


def is_dry_run() -> bool:
    return _dry_run.get() is not None


def planned_report(job: Plan) -> Report | None:
    """In a dry run, collect a plan and return an empty report; otherwise return None."""
    collected = _dry_run.get()
    if collected is None:
        return None
    collected.jobs.append(job)
    return Report(job.staged.planned(), 0, 0.0)


def is_pyramid_planned(mag: str) -> bool:
    """In a dry run, collect the pyramid of a mag and return True. It cannot be planned, since its
    source does not exist yet."""
    collected = _dry_run.get()
    if collected is not None:
        collected.pyramids.append(mag)
    return collected is not None


EXPECTED_WORKERS = "wkwdask.expected-workers"
"""Dask setting: number of tasks that will run at once on a cluster whose workers have not started
yet."""
EXPECTED_MEMORY = "wkwdask.expected-memory"
"""Dask setting: memory of each of these tasks [bytes]."""

_EXPECTED_WORKERS = 100  # for a cluster without workers or setting
_MEMORY_NBYTES = 2 << 30  # of a task, if no worker or setting says otherwise


def active_client() -> Any:
    """Return the dask Client that ``dask.compute`` would use now; None for a local scheduler."""
    get = dask.base.get_scheduler()
    owner = getattr(get, "__self__", None)
    distributed = sys.modules.get("distributed")
    return owner if distributed is not None and isinstance(owner, distributed.Client) else None


def num_workers() -> int:
    """Return the number of tasks that run at once."""
    batch = current_batch()
    if batch is not None:
        return batch.planned_workers or _EXPECTED_WORKERS
    client = active_client()
    if client is not None:
        return (
            max(int(sum(client.nthreads().values())), int(dask.config.get(EXPECTED_WORKERS, 0)))
            or _EXPECTED_WORKERS
        )
    if dask.base.get_scheduler() is dask.local.get_sync:
        return 1
    configured: Any = dask.config.get("num_workers", None)
    return int(configured) if configured else available_cores()


def num_sharing_workers() -> int:
    """Return the number of tasks to plan for where threads share the work of a task: 1 if all of
    them are threads of this process."""
    is_here = (
        current_batch() is None
        and active_client() is None
        and dask.base.get_scheduler() is not dask.multiprocessing.get
    )
    return 1 if is_here else num_workers()


def memory_per_task() -> int:
    """Return the memory for each task that runs at once [bytes]."""
    batch, client = current_batch(), active_client()
    if batch is not None:
        return batch.size.memory_nbytes or _MEMORY_NBYTES
    if client is not None:
        expected = int(dask.config.get(EXPECTED_MEMORY, _MEMORY_NBYTES))
        return min(
            (
                int(worker["memory_limit"] or _MEMORY_NBYTES) // worker["nthreads"]
                for worker in workers_of(client)
            ),
            default=expected,
        )
    return available_memory() // num_workers()


def available_memory() -> int:
    """Return the memory that machine, cgroup, resource limit and SLURM leave to this process
    [bytes]."""
    from distributed.system import MEMORY_LIMIT

    per_node, per_cpu = (
        os.environ.get(name, "") for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU")
    )
    slurm = (
        int(per_node)
        if per_node.isdecimal()
        else int(per_cpu) * available_cores()
        if per_cpu.isdecimal()
        else 0
    )
    return min(int(MEMORY_LIMIT), slurm << 20) if slurm else int(MEMORY_LIMIT)


def check_reachable(folder: str, *, in_process: bool = False) -> None:
    """Raise an error if a folder is in the memory of this process, but other processes would run
    the job."""
    if current_batch() is not None or (
        not in_process
        and (active_client() is not None or dask.base.get_scheduler() is dask.multiprocessing.get)
    ):
        need_file_system(folder, "a job that other processes run")


def run_job(
    job: Job,
    title: str,
    *,
    in_process: bool = False,
    failure_policy: FailurePolicy | None = None,
    folder: str | None = None,
    resources: Mapping[str, float] | None = None,
) -> None:
    """Run a job and show its progress. A failed task does not stop the others;
    :class:`TaskFailedError` lists the failures at the end. ``resources`` are those that a worker of
    a dask cluster needs for a task."""
    folder = folder or getattr(job, "folder", None)
    if folder is not None:
        check_reachable(folder, in_process=in_process)
    batch = current_batch()
    if batch is not None:
        job = submit_tasks(job, batch)
    runner, workers = _choose_runner(in_process, resources)
    with (
        Progress(title, job.num_tasks, folder, workers) as progress,
        RetryingJob(job, progress, failure_policy or FailurePolicy(), folder) as retrying,
    ):
        _logger.info("%s: %d tasks, %d at once", title, job.num_tasks, workers)
        runner(retrying)
        retrying.check()
        _logger.info("%s: done", title)


def _choose_runner(
    in_process: bool, resources: Mapping[str, float] | None
) -> tuple[Callable[[RetryingJob], None], int]:
    """Return the function that runs a job, and the number of tasks that it runs at once."""
    client = active_client()
    scheduler = dask.base.get_scheduler()
    if client is not None and not in_process:
        return lambda job: ClientRun(job, client, resources).run(), num_workers()
    if scheduler is dask.local.get_sync:
        return _run_in_this_thread, 1
    if scheduler is dask.multiprocessing.get and not in_process:
        return lambda job: run_on_processes(job, num_workers()), num_workers()
    cores = num_workers() if client is None and current_batch() is None else available_cores()
    return lambda job: run_on_threads(job, cores), cores


def _run_in_this_thread(job: RetryingJob) -> None:
    queue = TaskQueue(job)
    while (task := queue.pop_or_wait()) is not None:
        queue.finish(task, job.attempt(task))


def run_work(work: Work[R]) -> R:
    """Run the phases of some work with :func:`run_job`, and return its result."""
    return drive(work, run_job)


@contextlib.contextmanager
def set_up_for(calls: FunctionCalls) -> Iterator[None]:
    """Drop the set-up of a function in all processes at the end of a block."""
    try:
        yield
    finally:
        release(calls.key)
        client = active_client()
        if calls.is_held and client is not None:
            # nobody waits: a worker that hangs would not answer
            client.loop.add_callback(
                client.run, release, calls.key, on_error="ignore", asynchronous=True
            )


def run_plan(plan: Plan, *, force_space: bool) -> Report:
    """Run a plan, new or resumed, if its result fits on the disk. In a dry run, only collect it."""
    planned = planned_report(plan)
    if planned is not None:
        return planned
    check_space_of([plan], force_space=force_space)
    return run_work(RunPlan(plan))


def check_space_of(plans: Sequence[Plan], *, force_space: bool) -> None:
    """Raise SpaceError if the results of some plans very probably do not fit on their disks; warn
    if they may not."""
    needs = [need for need in (plan.need() for plan in plans) if need is not None]
    for problem in check_space(needs, _values_of, force=force_space):
        warnings.warn(problem, SpaceWarning, stacklevel=_level_of_user())


def _values_of(tasks: Sequence[Task]) -> list[Any]:
    """Run some tasks where those of a job run, and return their values; none in a batch job, whose
    workers are not there yet."""
    values: list[Any] = []
    if current_batch() is None:
        run_job(
            FlatJob(lambda: iter(tasks), len(tasks), lambda _, result: values.append(result.value)),
            "estimating the size",
        )
    return values


def _level_of_user() -> int:
    """Return the stack level, for a warning of the caller, of the first line outside of this
    package."""
    frame, level = sys._getframe(1), 1
    # functions of this package are decorated by context managers
    inside = ("wkwdask", "contextlib")
    while (
        frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inside
    ):
        frame, level = frame.f_back, level + 1
    return level


def run_plans(
    stages: Sequence[Callable[[str], Rechunk]],
    existing: str,
    *,
    force_space: bool,
    has_later_steps: bool = False,
) -> Report:
    """Write the mags of one call in order, after checking all of them. A call that was interrupted
    between two mags is resumed."""
    check_restartable(len(stages), overwrites=replaces(existing))
    reports = []
    with same_call():
        existing = resolve_existing(
            stages, existing, force_space=force_space, has_later_steps=has_later_steps
        )
        for stage in stages:
            staged = accepting_own(stage(existing), existing)
            for note in staged.notes:
                warnings.warn(note, stacklevel=5)
            reports.append(run_plan(staged, force_space=force_space))
    return merge_reports(reports)


def accepting_own(plan: P, existing: str) -> P:
    """Return a plan that does nothing if it overwrites data that an earlier start of the same call
    has written."""
    return (
        replace(plan, staged=plan.staged.accepting_finished()) if existing == "overwrite" else plan
    )


def resolve_existing(
    stages: Sequence[Callable[[str], Rechunk | None]],
    existing: str,
    *,
    force_space: bool,
    has_later_steps: bool = False,
) -> str:
    """Check all mags of a call before the first is written. Return the ``existing=`` policy:
    ``"resume"`` for a call interrupted between two mags."""
    if len(stages) < 2 and not has_later_steps:
        return existing
    plans = [plan for plan in (stage(existing) for stage in stages) if plan is not None]
    jobs = [plan.staged for plan in plans]
    if existing == "overwrite":
        join_interrupted_call(jobs)
    if existing == "error" and is_interrupted_call(jobs, has_later_steps=has_later_steps):
        return "resume"
    if existing == "error":
        for job in jobs:
            job.check_free()
    if len(plans) > 1 and not is_dry_run():
        check_space_of([accepting_own(plan, existing) for plan in plans], force_space=force_space)
    return existing
