"""A job on a dask cluster.

A window of futures is in flight, each released as soon as its result is here: the scheduler's memory does not grow with the job, and a lost worker repeats
only what it was working on.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from wkwdask.errors import TaskFailedError
from wkwdask.graphs.task_queue import TaskQueue
from wkwdask.jobs.job import run_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.jobs.job import Job, Task

_WINDOW_PER_WORKER = 3
_WINDOW_SECONDS = 2.0  # how long the number of workers is believed
_RETRIES = 3
_POLL_SECONDS = 5.0
_GONE = "the dask scheduler is gone and did not come back"
_RESULT_SECONDS = 20.0  # how long a receipt of some hundred bytes may take to come
_LATE_SECONDS = 60.0
_LATE_FACTOR = 10.0


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A task that was handed to a cluster."""

    task: Task
    future: Any
    since: float


class ClientRun:
    """Runs a job on a dask cluster.

    Parameters
    ----------
    job : Job
        The job.
    client : Client
        The cluster.
    """

    def __init__(self, job: Job, client: Any) -> None:
        self._job = job
        self._client = client
        self._queue = TaskQueue(job)
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
