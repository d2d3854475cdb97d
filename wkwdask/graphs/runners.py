"""Who runs the tasks of a job: this thread, local threads or processes, or a dask cluster. The choice follows dask's own rule.

On a cluster a window of futures is in flight, each released as soon as its result is here: the scheduler's memory does not grow with the job, and a
lost worker repeats only what it was working on.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import dask
import dask.base
import dask.local
import dask.multiprocessing
import dask.system
import dask.threaded

from wkwdask.errors import TaskFailedError
from wkwdask.jobs.job import run_serially, run_task
from wkwdask.jobs.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wkwdask.jobs.job import Job, Task

_WINDOW_PER_WORKER = 3
_RETRIES = 3


def active_client() -> Any:
    """Give the dask Client that dask itself would use now, None where it would use none."""
    get = dask.base.get_scheduler()
    owner = getattr(get, "__self__", None)
    distributed = sys.modules.get("distributed")
    return owner if distributed is not None and isinstance(owner, distributed.Client) else None


def available_cores() -> int:
    """Count the cores that affinity, cgroup and SLURM leave to this process."""
    cores = dask.system.cpu_count()
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return max(1, min(cores, int(slurm)) if slurm.isdecimal() else cores)


def num_workers() -> int:
    """Count the tasks that will run at once."""
    client = active_client()
    if client is not None:
        return max(1, int(sum(client.nthreads().values())))
    if dask.base.get_scheduler() is dask.local.get_sync:
        return 1
    configured: Any = dask.config.get("num_workers", None)
    return int(configured) if configured else available_cores()


def run_job(job: Job, title: str, *, here: bool = False) -> None:
    """Run a job to its end and show its progress.

    Parameters
    ----------
    job : Job
        The job.
    title : str
        What the progress is called.
    here : bool
        Stay in this process even if a Client is active: for tasks that hold arrays.

    Raises
    ------
    TaskFailedError
        A cluster gave a task up. An error that a task raised itself comes through as it is, with a note that names the task.
    """
    client = active_client()
    scheduler = dask.base.get_scheduler()
    with Progress(title, job.num_tasks) as progress:
        counted = _Counted(job, progress)
        if client is not None and not here:
            _run_on_client(counted, client)
        elif scheduler is dask.local.get_sync:
            run_serially(counted)
        elif scheduler is dask.multiprocessing.get and not here:
            with ProcessPoolExecutor(num_workers(), mp_context=multiprocessing.get_context("spawn")) as processes:
                _run_on_executor(counted, processes, num_workers())
        else:
            cores = num_workers() if client is None else available_cores()
            with ThreadPoolExecutor(cores, thread_name_prefix="wkwdask") as threads:
                _run_on_executor(counted, threads, cores)


class _Counted:
    """A job whose results are counted."""

    def __init__(self, job: Job, progress: Progress) -> None:
        self._job = job
        self._progress = progress

    @property
    def num_tasks(self) -> int:
        return self._job.num_tasks

    def tasks(self) -> Iterator[Task]:
        return self._job.tasks()

    def receive(self, task: Task, result: Any) -> Iterable[Task]:
        self._progress.advance()
        return self._job.receive(task, result)


class _Queue:
    """Tasks that can start, follow-ups first."""

    def __init__(self, job: Job) -> None:
        self._sources = [iter(job.tasks())]

    def add(self, tasks: Iterable[Task]) -> None:
        self._sources.append(iter(tasks))

    def take(self) -> Task | None:
        while self._sources:
            task = next(self._sources[-1], None)
            if task is not None:
                return task
            self._sources.pop()
        return None


def _run_on_executor(job: Job, executor: Executor, workers: int) -> None:
    queue = _Queue(job)
    running: dict[Any, Task] = {}
    try:
        while True:
            while len(running) < 2 * workers and (task := queue.take()) is not None:
                running[executor.submit(run_task, task)] = task
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                queue.add(job.receive(task, future.result()))
    except BaseException:
        for future in running:
            future.cancel()
        raise


def _run_on_client(job: Job, client: Any) -> None:
    from distributed import as_completed

    queue = _Queue(job)
    running: dict[Any, Task] = {}
    completed = as_completed(loop=client.loop)

    def fill() -> None:
        window = _WINDOW_PER_WORKER * max(1, sum(client.nthreads().values()))
        while len(running) < window and (task := queue.take()) is not None:
            future = client.submit(run_task, task, pure=False, retries=_RETRIES)
            running[future] = task
            completed.add(future)

    try:
        fill()
        while running:
            future = next(completed)
            task = running.pop(future)
            result = _result_of(future, task)
            future.release()
            queue.add(job.receive(task, result))
            fill()
    except BaseException:
        client.cancel(list(running), force=True)
        raise


def _result_of(future: Any, task: Task) -> Any:
    from distributed.scheduler import KilledWorker

    try:
        return future.result()
    except KilledWorker as error:
        raise TaskFailedError(f"{task.name}: given up after the workers that ran it died ({error})") from error
