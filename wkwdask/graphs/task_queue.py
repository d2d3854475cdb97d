"""The tasks of a job that can start, in their order: what results set free comes first, what failed comes again after a pause."""

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

_MOST_WAITING = 100  # with so many tasks that wait for another attempt no new ones are begun: what they need may be down


class TaskQueue:
    """Tasks that can start."""

    def __init__(self, job: RetryingJob) -> None:
        self._job = job
        self._sources = [iter(job.tasks())]
        self._next: Task | None = None
        self._later: list[tuple[float, int, Task]] = []
        self._number = count()

    def add(self, tasks: Iterable[Task]) -> None:
        """Add tasks that come before all others."""
        self._sources.append(iter(tasks))

    def take(self) -> Task | None:
        """Give the next task, None where none can start now."""
        if self._later and self._later[0][0] <= time.monotonic():
            return heapq.heappop(self._later)[2]
        if len(self._later) >= _MOST_WAITING:
            return None
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

    def wait(self) -> Task | None:
        """Give the next task, where need be after the pause of one that failed; None where there is no other."""
        while True:
            task = self.take()
            if task is not None or not self._later:
                return task
            time.sleep(self.pause() or 0.0)

    def has_more(self) -> bool:
        """Tell whether there is another task, now or later."""
        if self._later:
            return True
        self._next = self.take()
        return self._next is not None

    def pause(self) -> float | None:
        """Tell in how many seconds a task that failed is to be tried again, None where there is none."""
        return max(0.0, self._later[0][0] - time.monotonic()) if self._later else None

    def end(self, task: Task, outcome: Result | FailedAttempt) -> bool:
        """Hand on what became of a task."""
        if not isinstance(outcome, FailedAttempt):
            self.add(self._job.receive(task, outcome))
            return False
        pause = self._job.fail(task, outcome)
        if pause is not None:
            heapq.heappush(self._later, (time.monotonic() + pause, next(self._number), task))
        return pause is not None
