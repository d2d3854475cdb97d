"""The tasks of a job that can start, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wkwdask.jobs.job import Job, Task


class TaskQueue:
    """Tasks that can start, follow-ups first.

    Parameters
    ----------
    job : Job
        Gives the tasks to start with.
    """

    def __init__(self, job: Job) -> None:
        self._sources = [iter(job.tasks())]
        self._next: Task | None = None

    def add(self, tasks: Iterable[Task]) -> None:
        """Add tasks that come before all others."""
        self._sources.append(iter(tasks))

    def take(self) -> Task | None:
        """Give the next task, None where there is none."""
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
        """Tell whether there is another task."""
        self._next = self.take()
        return self._next is not None
