"""A job that goes on when single tasks fail: they are listed in the end."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import LockedError, ResumeError, TaskFailedError
from wkwdask.jobs.job import Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wkwdask.jobs.job import Job, Task

_HOPELESS_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # no other task would do better
_HOPELESS_ERRORS = (LockedError, ResumeError)
_FAILURES_WITHOUT_SUCCESS = 8
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that failed."""

    task: str
    """What it works on."""
    reason: str
    """The error."""


@dataclass(frozen=True, slots=True)
class TolerantTask:
    """A task that gives its failure back in place of raising it."""

    task: Task
    """The task."""

    @property
    def name(self) -> str:
        """What an error calls the task."""
        return self.task.name

    @property
    def key(self) -> str:
        """What a journal calls the task."""
        return self.task.key

    def run(self) -> Result:
        """Run the task.

        Returns
        -------
        Result
            With a :class:`Failure` as its value where the task failed.
        """
        try:
            return self.task.run()
        except Exception as error:
            if isinstance(error, _HOPELESS_ERRORS) or (isinstance(error, OSError) and error.errno in _HOPELESS_CODES):
                raise
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            return Result((), value=Failure(self.task.name, f"{type(error).__name__}: {error}{notes}"))


class TolerantJob:
    """Wraps a job.

    Parameters
    ----------
    job : Job
        The job.
    most_failures : int
        With more failures than these the job ends at once.
    """

    def __init__(self, job: Job, most_failures: int) -> None:
        self._job = job
        self._most_failures = most_failures
        self._succeeded = False
        self.failures: list[Failure] = []

    @property
    def num_tasks(self) -> int:
        """How many tasks there will be, as far as is known."""
        return self._job.num_tasks

    def tasks(self) -> Iterator[Task]:
        """Give the tasks to start with."""
        return self._wrapped(self._job.tasks())

    def _wrapped(self, tasks: Iterable[Task]) -> Iterator[Task]:
        return (TolerantTask(task) for task in tasks)

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take a result, or note a failure.

        Raises
        ------
        TaskFailedError
            There are too many failures.
        """
        if isinstance(result.value, Failure):
            self.failures.append(result.value)
            if len(self.failures) > self._most_failures or (not self._succeeded and len(self.failures) >= _FAILURES_WITHOUT_SUCCESS):
                self.check("too many failed, so the others were not tried")
            return ()
        self._succeeded = True
        return self._wrapped(self._job.receive(task.task if isinstance(task, TolerantTask) else task, result))

    def check(self, note: str) -> None:
        """Make sure that nothing failed.

        Raises
        ------
        TaskFailedError
            Something did; the message lists it.
        """
        if self.failures:
            listed = "".join(f"\n  {failure.task}: {failure.reason}" for failure in self.failures[:_LISTED])
            more = f"\n  and {len(self.failures) - _LISTED} more" if len(self.failures) > _LISTED else ""
            raise TaskFailedError(f"{len(self.failures)} tasks failed; {note}:{listed}{more}")
