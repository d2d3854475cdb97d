"""Tasks of a job that can start, in order: due retries, then tasks that follow from results, then
the tasks of the job."""

from __future__ import annotations

import heapq
import time
from itertools import count
from typing import TYPE_CHECKING

from wkwdask.runs.retries import FailedAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wkwdask.runs.job import Result, Task
    from wkwdask.runs.retries import RetryingJob

# while this many tasks wait for a retry, no new ones start: a resource that all of them need is
# probably down
_MOST_RETRIES = 100


class TaskQueue:
    """Tasks that can start now or later."""

    def __init__(self, job: RetryingJob) -> None:
        self._job = job
        # A stack of iterators. The tasks that follow from a result are put on top, so each join
        # runs soon after its parts, and few parts are on disk at a time.
        self._sources = [iter(job.tasks())]
        self._next: Task | None = None  # taken from the sources by ``has_more``
        # heap of (time, number, task); the number keeps tasks from being compared
        self._retries: list[tuple[float, int, Task]] = []
        self._number = count()

    def add(self, tasks: Iterable[Task]) -> None:
        """Add tasks before all others."""
        self._sources.append(iter(tasks))

    def pop(self) -> Task | None:
        """Return the next task; None if none can start now."""
        if self._retries and self._retries[0][0] <= time.monotonic():
            return heapq.heappop(self._retries)[2]
        if len(self._retries) >= _MOST_RETRIES:
            return None
        if self._next is not None:
            upcoming, self._next = self._next, None
            return upcoming
        while self._sources:
            source = self._sources[-1]
            task = next(source, None)
            if task is not None:
                return task
            self._sources.pop()
        return None

    def pop_or_wait(self) -> Task | None:
        """Return the next task, waiting for a retry if no other task is left; None at the end."""
        while True:
            task = self.pop()
            if task is not None or not self._retries:
                return task
            time.sleep(self.retry_delay() or 0.0)

    def has_more(self) -> bool:
        """Return whether a task can start now or later."""
        if self._retries:
            return True
        self._next = self.pop()
        return self._next is not None

    def retry_delay(self) -> float | None:
        """Return the seconds until the next retry; None if no task waits for one."""
        return max(0.0, self._retries[0][0] - time.monotonic()) if self._retries else None

    def finish(self, task: Task, outcome: Result | FailedAttempt) -> bool:
        """Pass the outcome of a task to the job, and return whether the task will be retried."""
        if not isinstance(outcome, FailedAttempt):
            self.add(self._job.receive(task, outcome))
            return False
        delay = self._job.fail(task, outcome)
        if delay is not None:
            heapq.heappush(self._retries, (time.monotonic() + delay, next(self._number), task))
        return delay is not None
