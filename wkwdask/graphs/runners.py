"""Who runs the tasks of a job: this thread, local threads or processes, or a dask cluster. The choice follows dask's own rule."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import dask
import dask.base
import dask.local
import dask.multiprocessing
import dask.system
import dask.threaded

from wkwdask.errors import TaskFailedError
from wkwdask.graphs.batch import current_batch, hand_out
from wkwdask.graphs.client_run import ClientRun
from wkwdask.graphs.task_queue import TaskQueue
from wkwdask.jobs.job import run_serially, run_task
from wkwdask.jobs.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.jobs.job import Job, Result, Task

_WORKERS_TO_COME = 100  # what is planned for where a cluster has none yet
_MEMORY_NBYTES = 2 << 30  # what a task is given where nobody tells
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
    batch = current_batch()
    if batch is not None:
        return batch.planned_workers or _WORKERS_TO_COME
    client = active_client()
    if client is not None:
        return int(sum(client.nthreads().values())) or _WORKERS_TO_COME
    if dask.base.get_scheduler() is dask.local.get_sync:
        return 1
    configured: Any = dask.config.get("num_workers", None)
    return int(configured) if configured else available_cores()


def memory_per_task() -> int:
    """Tell how much memory there is for each task that runs at once [bytes]."""
    batch, client = current_batch(), active_client()
    if batch is not None:
        return batch.size.memory_nbytes or _MEMORY_NBYTES
    if client is not None:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return min((int(worker["memory_limit"] or _MEMORY_NBYTES) // worker["nthreads"] for worker in workers), default=_MEMORY_NBYTES)
    from distributed.system import MEMORY_LIMIT  # what the machine, the cgroup or the resource limit leaves

    return int(MEMORY_LIMIT) // num_workers()


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
    HandedOver
        The batch system goes on with it, see :mod:`wkwdask.graphs.batch`.
    TaskFailedError
        A cluster gave a task up. An error that a task raised itself comes through as it is, with a note that names the task.
    """
    batch, client = current_batch(), active_client()
    if batch is not None:
        job = hand_out(job, batch)
    scheduler = dask.base.get_scheduler()
    with Progress(title, job.num_tasks) as progress:
        counted = _Counted(job, progress)
        if client is not None and not here:
            ClientRun(counted, client).to_end()
        elif scheduler is dask.local.get_sync:
            run_serially(counted)
        elif scheduler is dask.multiprocessing.get and not here:
            _run_on_executor(counted, lambda: _process_pool(num_workers()), num_workers())
        else:
            cores = num_workers() if client is None and batch is None else available_cores()
            _run_on_executor(counted, lambda: ThreadPoolExecutor(cores, thread_name_prefix="wkwdask"), cores)


def _process_pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_driver)


def _end_with_driver() -> None:
    """Let this process of a pool end when the one that started it is killed; by itself it would wait for tasks forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), name="wkwdask-end-with-driver", daemon=True).start()


def _end_after(process: Any) -> None:
    process.join()
    os._exit(1)


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
        follow = self._job.receive(task, result)
        self._progress.set_total(self._job.num_tasks)
        self._progress.advance()
        return follow


def _run_on_executor(job: Job, make_executor: Callable[[], Executor], workers: int) -> None:
    """Keep the workers of this machine busy; where a process was killed, start new ones and do again what was in flight."""
    queue = TaskQueue(job)
    lost: Counter[str] = Counter()
    while queue.has_more():
        with make_executor() as executor:
            running: dict[Future[Result], Task] = {}
            try:
                _fill_and_take(job, queue, executor, workers, running)
            except BrokenExecutor as error:
                lost.update(task.key for task in running.values())
                worst = next((task for task in running.values() if lost[task.key] > _RETRIES), None)
                if worst is not None:
                    raise TaskFailedError(f"{worst.name}: given up after {lost[worst.key]} processes that ran it or ran beside it died") from error
                queue.add(list(running.values()))
            except BaseException:
                _keep_what_ends(job, running)
                raise


def _keep_what_ends(job: Job, running: dict[Future[Result], Task]) -> None:
    """Let tasks that run come to their end, and take their results: a job that keeps a journal then does not do them again."""
    for future in running:
        future.cancel()
    wait(running)
    for future, task in running.items():
        if not future.cancelled() and future.exception() is None:
            with suppress(Exception):  # the error that stopped the job is the one to tell
                job.receive(task, future.result())


def _fill_and_take(job: Job, queue: TaskQueue, executor: Executor, workers: int, running: dict[Future[Result], Task]) -> None:
    while True:
        while len(running) < 2 * workers and (task := queue.take()) is not None:
            try:
                running[executor.submit(run_task, task)] = task
            except BrokenExecutor:
                queue.add([task])
                raise
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            result = future.result()
            queue.add(job.receive(running.pop(future), result))
