"""Run a job on threads or processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import suppress
from socket import gethostname
from typing import TYPE_CHECKING, Any

from wkwdask.errors import TaskFailedError
from wkwdask.graphs.task_queue import TaskQueue
from wkwdask.runs.retries import FailedAttempt
from wkwdask.runs.shared_loop import sharing_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.runs.job import Result, Task
    from wkwdask.runs.retries import RetryingJob

_MOST_DEATHS = 3  # processes that may die while they run the same task and nothing else


def run_on_threads(job: RetryingJob, workers: int) -> None:
    """Run a job on threads of this process."""
    _LocalRun(job, lambda: sharing_pool(workers), workers, job.attempt).run()


def run_on_processes(job: RetryingJob, workers: int) -> None:
    """Run a job on processes of this machine. If one is killed, new ones start and the tasks in
    flight run again."""
    _LocalRun(job, lambda: _process_pool(workers), workers, job.attempt_remotely).run()


def _process_pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_driver
    )


def _end_with_driver() -> None:
    """Exit this pool process when the process that started it is killed; otherwise it would wait
    for tasks forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent,), name="wkwdask-end-with-driver", daemon=True
        ).start()


def _end_after(process: Any) -> None:
    process.join()
    os._exit(1)


class _LocalRun:
    """Run of a job on an executor.

    When a process dies, its whole pool breaks, and the task at fault is unknown. All tasks in
    flight become suspects: they run again one at a time in a new pool, so that the next death
    identifies its task.
    """

    def __init__(
        self,
        job: RetryingJob,
        make_executor: Callable[[], Executor],
        workers: int,
        attempt: Callable[[Task], Result | FailedAttempt],
    ) -> None:
        self._job = job
        self._make_executor = make_executor
        self._workers = workers
        self._attempt = attempt
        self._queue = TaskQueue(job)
        self._running: dict[Future[Result | FailedAttempt], Task] = {}
        self._suspects: list[Task] = []
        self._deaths: Counter[str] = Counter()

    def run(self) -> None:
        """Run all tasks."""
        while self._suspects or self._queue.has_more():
            with self._make_executor() as executor:
                try:
                    self._clear_suspects(executor)
                    self._run_queue(executor)
                except BrokenExecutor as error:
                    self._recover(error)
                except BaseException:
                    self._drain()
                    raise

    def _clear_suspects(self, executor: Executor) -> None:
        while self._suspects:
            self._submit(executor, self._suspects.pop())
            wait(self._running)
            self._collect_done()

    def _run_queue(self, executor: Executor) -> None:
        while True:
            while (
                len(self._running) < 2 * self._workers and (task := self._queue.pop()) is not None
            ):
                self._submit(executor, task)
            delay = self._queue.retry_delay()
            if self._running:
                wait(self._running, delay, FIRST_COMPLETED)
                self._collect_done()
            elif delay is not None:
                time.sleep(delay)
            else:
                return

    def _submit(self, executor: Executor, task: Task) -> None:
        try:
            self._running[executor.submit(self._attempt, task)] = task
        except BrokenExecutor:
            self._queue.add([task])
            raise

    def _collect_done(self) -> None:
        for future in [future for future in self._running if future.done()]:
            # if it raises, the task is still in ``_running``, where _recover finds it
            outcome = future.result()
            self._queue.finish(self._running.pop(future), outcome)

    def _recover(self, error: BrokenExecutor) -> None:
        """Record the results that arrived before the pool broke; all other tasks become
        suspects."""
        lost = []
        for future, task in self._running.items():
            failure = future.exception()
            if failure is None:
                self._queue.finish(task, future.result())
            elif isinstance(failure, BrokenExecutor):
                lost.append(task)
            else:
                raise failure
        self._running.clear()
        if len(lost) == 1:
            (task,) = lost
            self._deaths[task.key] += 1
            if self._deaths[task.key] >= _MOST_DEATHS:
                given_up = TaskFailedError(
                    f"{task.name}: given up after {_MOST_DEATHS} processes that ran it died"
                )
                given_up.__cause__ = error
                self._queue.finish(
                    task, FailedAttempt(given_up, gethostname(), attempts=_MOST_DEATHS)
                )
                return
        self._suspects += lost

    def _drain(self) -> None:
        """Wait for running tasks and record their results, so that a resumed job does not repeat
        them."""
        for future in self._running:
            future.cancel()
        wait(self._running)
        for future, task in self._running.items():
            if not future.cancelled() and future.exception() is None:
                outcome = future.result()
                if not isinstance(outcome, FailedAttempt):
                    with suppress(Exception):  # the error that stopped the job is the one to report
                        self._job.receive(task, outcome)
