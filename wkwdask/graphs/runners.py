"""Who runs the tasks of a job: this thread, local threads or processes, or a dask cluster. The choice follows dask's own rule.

On a cluster a window of futures is in flight, each released as soon as its result is here: the scheduler's memory does not grow with the job, and a
lost worker repeats only what it was working on.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
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
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wkwdask.jobs.job import Job, Result, Task

EXPECTED_WORKERS = "wkwdask.expected-workers"
"""Setting of dask: how many tasks will run at once on a cluster whose workers are still to come."""
EXPECTED_MEMORY = "wkwdask.expected-memory"
"""Setting of dask: memory of each of them [bytes]."""

_WINDOW_PER_WORKER = 3
_WINDOW_SECONDS = 2.0  # how long the number of workers is believed
_WORKERS_TO_COME = 100  # what is planned for where a cluster has none yet
_MEMORY_NBYTES = 2 << 30  # what a task is given where nobody tells
_RETRIES = 3
_POLL_SECONDS = 5.0
_GONE = "the dask scheduler is gone and did not come back"
_RESULT_SECONDS = 20.0  # how long a receipt of some hundred bytes may take to come
_LATE_SECONDS = 60.0
_LATE_FACTOR = 10.0


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
        return max(int(sum(client.nthreads().values())), int(dask.config.get(EXPECTED_WORKERS, 0))) or _WORKERS_TO_COME
    if dask.base.get_scheduler() is dask.local.get_sync:
        return 1
    configured: Any = dask.config.get("num_workers", None)
    return int(configured) if configured else available_cores()


def memory_per_task() -> int:
    """Tell how much memory there is for each task that runs at once [bytes]."""
    client = active_client()
    if client is not None:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        expected = int(dask.config.get(EXPECTED_MEMORY, _MEMORY_NBYTES))
        return min((int(worker["memory_limit"] or _MEMORY_NBYTES) // worker["nthreads"] for worker in workers), default=expected)
    return available_memory() // num_workers()


def available_memory() -> int:
    """Tell how much memory machine, cgroup, resource limit and SLURM leave to this process [bytes]."""
    from distributed.system import MEMORY_LIMIT

    per_node, per_cpu = (os.environ.get(name, "") for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"))
    slurm = int(per_node) if per_node.isdecimal() else int(per_cpu) * available_cores() if per_cpu.isdecimal() else 0
    return min(int(MEMORY_LIMIT), slurm << 20) if slurm else int(MEMORY_LIMIT)


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
            _ClientRun(counted, client).to_end()
        elif scheduler is dask.local.get_sync:
            run_serially(counted)
        elif scheduler is dask.multiprocessing.get and not here:
            _run_on_executor(counted, lambda: _process_pool(num_workers()), num_workers())
        else:
            cores = num_workers() if client is None else available_cores()
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


class _Queue:
    """Tasks that can start, follow-ups first."""

    def __init__(self, job: Job) -> None:
        self._sources = [iter(job.tasks())]
        self._next: Task | None = None

    def add(self, tasks: Iterable[Task]) -> None:
        self._sources.append(iter(tasks))

    def take(self) -> Task | None:
        if self._next is not None:
            held, self._next = self._next, None
            return held
        while self._sources:
            source = self._sources[-1]
            task = next(source, None)
            if task is not None:
                return task
            self._sources.pop()
        return None

    def has_more(self) -> bool:
        self._next = self.take()
        return self._next is not None


def _run_on_executor(job: Job, make_executor: Callable[[], Executor], workers: int) -> None:
    """Keep the workers of this machine busy; where a process was killed, start new ones and do again what was in flight."""
    queue = _Queue(job)
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


def _fill_and_take(job: Job, queue: _Queue, executor: Executor, workers: int, running: dict[Future[Result], Task]) -> None:
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


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A task that was handed to a cluster."""

    task: Task
    future: Any
    since: float


class _ClientRun:
    """Runs a job on a dask cluster."""

    def __init__(self, job: Job, client: Any) -> None:
        self._job = job
        self._client = client
        self._queue = _Queue(job)
        self._attempts: dict[str, _Attempt] = {}
        self._ended: SimpleQueue[Any] = SimpleQueue()
        self._window = 0
        self._window_until = 0.0
        self._seconds_per_task = 0.0

    def to_end(self) -> None:
        """Keep a window of tasks in flight until nothing is left."""
        try:
            self._fill()
            while self._attempts or self._queue.has_more():
                try:
                    self._take(self._ended.get(timeout=_POLL_SECONDS))
                    while not self._ended.empty():
                        self._take(self._ended.get())
                except Empty:
                    self._look_after()
                self._fill()
        except BaseException as error:
            if self._is_gone() and isinstance(error, Exception) and not isinstance(error, TaskFailedError):
                raise TaskFailedError(_GONE) from error
            if not self._is_gone():
                self._client.cancel([attempt.future for attempt in self._attempts.values()], force=True)
            raise

    def _is_gone(self) -> bool:
        return self._client.status in ("closed", "closing")

    def _fill(self) -> None:
        if self._client.status != "running":  # the scheduler is gone; the client looks for it for a while
            return
        now = time.monotonic()
        if now >= self._window_until:
            self._window = _WINDOW_PER_WORKER * max(1, sum(self._client.nthreads().values()))
            self._window_until = now + _WINDOW_SECONDS
        tasks: list[Task] = []
        while len(self._attempts) + len(tasks) < self._window and (task := self._queue.take()) is not None:
            tasks.append(task)
        self._submit(tasks)

    def _submit(self, tasks: Sequence[Task], **where: Any) -> None:
        futures = self._client.map(run_task, tasks, pure=False, retries=_RETRIES, **where)
        for task, future in zip(tasks, futures, strict=True):
            self._attempts[future.key] = _Attempt(task, future, time.monotonic())
            future.add_done_callback(self._ended.put)

    def _take(self, future: Any) -> None:
        """Take the end of an attempt: hand on its result, or start the task again where the scheduler lost it."""
        attempt = self._attempts.pop(future.key, None)
        if attempt is None:  # a copy of it was faster
            return
        copies = [key for key, other in self._attempts.items() if other.task is attempt.task]
        if future.status in ("cancelled", "lost"):
            if not copies:
                self._queue.add([attempt.task])
            return
        try:
            result = _result_of(future, attempt.task)
        except OSError:  # time-outs and broken connections are such
            if future.status == "error":  # it is the task's own
                raise
            self._start_elsewhere(attempt.task, future)
            return
        if copies:
            self._client.cancel([self._attempts.pop(key).future for key in copies], force=True)
        future.release()
        seconds = time.monotonic() - attempt.since
        self._seconds_per_task = seconds if not self._seconds_per_task else 0.9 * self._seconds_per_task + 0.1 * seconds
        self._queue.add(self._job.receive(attempt.task, result))

    def _start_elsewhere(self, task: Task, future: Any) -> None:
        """Run a task once more whose result cannot be fetched: the worker that holds it, or the scheduler, is gone, stopped or cut off."""
        if self._client.status != "running":
            self._queue.add([task])
            return
        try:
            holders = {worker for workers in self._client.who_has([future]).values() for worker in workers}
            others = sorted(set(self._client.nthreads()) - holders)
        except OSError:
            self._queue.add([task])
            return
        future.release()
        self._submit([task], **({"workers": others} if others else {}))

    def _look_after(self) -> None:
        """See whether the cluster is still there, and start a copy of a task that takes far longer than others did: its worker may be stopped or cut off."""
        if self._is_gone():
            raise TaskFailedError(_GONE)
        if self._client.status != "running" or self._queue.has_more():
            return
        late = time.monotonic() - max(_LATE_SECONDS, _LATE_FACTOR * self._seconds_per_task)
        copied = Counter(id(attempt.task) for attempt in self._attempts.values())
        slow = {key: attempt.task for key, attempt in self._attempts.items() if attempt.since < late and copied[id(attempt.task)] == 1}
        if not slow:
            return
        runs_on = {key: worker for worker, keys in self._client.processing().items() for key in keys}
        workers = set(self._client.nthreads())
        for key, task in slow.items():
            others = sorted(workers - {runs_on.get(key)})
            if key in runs_on and others:
                self._submit([task], workers=others)


def _result_of(future: Any, task: Task) -> Any:
    from distributed.scheduler import KilledWorker

    try:
        return future.result(timeout=min(_RESULT_SECONDS, _LATE_SECONDS))
    except KilledWorker as error:
        raise TaskFailedError(f"{task.name}: given up after the workers that ran it died ({error})") from error
