"""A job that goes on when single tasks fail: errors that may pass are tried again, the others are listed in the end."""

from __future__ import annotations

import errno
import pickle
import socket
import time
import traceback
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from wkwdask.errors import LockedError, ResumeError, TaskFailedError, WkwDaskError
from wkwdask.runs import job as jobs
from wkwdask.runs.job import copy_marks, is_final, user_trace
from wkwdask.runs.progress import FAILURES, Failure, LineFile
from wkwdask.runs.report import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.runs.job import Job, Result, Task
    from wkwdask.runs.progress import Progress

EXIT_CODE = 3
"""What a command exits with where some tasks failed and all others were done."""
NO_RESULT = "there is no result without them"
"""What a job says in the end that makes one thing of all its tasks."""
_HOPELESS_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # no other task would do better
_HOPELESS_ERRORS = (LockedError, ResumeError)
_PASSING_CODES = (
    errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENOLCK, errno.ENOTCONN, errno.ESHUTDOWN,
    errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE,
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET,
)  # fmt: skip
_PASSING_ERRORS = (TimeoutError, ConnectionError)
_PAUSES_SECONDS = (0.5, 2.0, 8.0)  # before each further attempt
_FAILURES_WITHOUT_SUCCESS = 8
_LISTED = 20


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What a job bears, and what it says in the end."""

    most_failures: int = 1000
    """With more failures than these it ends at once."""
    lists_always: bool = False
    """Whether a single failure comes as a list too; else it comes as its own error."""
    ending: str = "all tasks that do not depend on them are done"
    """What became of the other tasks."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """What an attempt gives in place of a result."""

    error: Exception
    host: str
    trace: str = ""
    """Where it was raised, if that was in another process."""
    attempts: int = 1
    """How often the task was tried by then."""


def attempt(run: Callable[[Task], Result], task: Task) -> Result | FailedAttempt:
    """Run a task in this process, and give its result or its error."""
    begin = time.perf_counter()
    try:
        return replace(run(task), seconds=time.perf_counter() - begin)
    except Exception as error:
        _let_go(error)
        return FailedAttempt(error, socket.gethostname())


def attempt_remotely(run: Callable[[Task], Result], task: Task) -> Result | FailedAttempt:
    """Run a task for another process: an error that would not get there becomes one that does."""
    outcome = attempt(run, task)
    if not isinstance(outcome, FailedAttempt):
        return outcome
    error = outcome.error
    trace = "".join(traceback.format_exception(error))
    try:
        same = type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        same = False
    if not same:
        error = copy_marks(TaskFailedError(f"{type(error).__name__}: {error}"), error)
    return replace(outcome, error=error, trace=trace)


def _let_go(error: BaseException) -> None:
    """Let go of the arrays that the functions held in which an error was raised."""
    seen: set[int] = set()
    chain: BaseException | None = error
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        traceback.clear_frames(chain.__traceback__)
        chain = chain.__cause__ or chain.__context__


class _RaisedElsewhereError(WkwDaskError):
    """Where an error was raised in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class RetryingJob:
    """Wraps a job."""

    def __init__(self, job: Job, progress: Progress, failure_policy: FailurePolicy, folder: str | None = None) -> None:
        self.progress = progress
        self._job = job
        self._tolerance = failure_policy
        self._folder = folder
        self._lines: LineFile | None = None
        self._has_succeeded = False
        self._tried: dict[str, int] = {}
        self._first: FailedAttempt | None = None
        self._errors: set[str] = set()  # two are enough to tell that they differ
        self._kinds: set[type] = set()
        self._listed: list[Failure] = []
        self._num_failed = 0

    @property
    def num_tasks(self) -> int:
        """How many tasks there will be, as far as is known."""
        return self._job.num_tasks

    def tasks(self) -> Iterator[Task]:
        """Give the tasks to start with."""
        return self._job.tasks()

    def attempt(self, task: Task) -> Result | FailedAttempt:
        """Run a task in this thread."""
        return attempt(jobs.run_task, task)

    @property
    def attempt_remotely(self) -> Callable[[Task], Result | FailedAttempt]:
        """What runs a task in another process."""
        return partial(attempt_remotely, jobs.run_task)

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take a result."""
        self._has_succeeded = True
        follow = self._job.receive(task, result)
        self.progress.count(self._job, result)
        return follow

    def fail(self, task: Task, failed: FailedAttempt) -> float | None:
        """Take a failure."""
        error = failed.error
        if isinstance(error, _HOPELESS_ERRORS) or (isinstance(error, OSError) and error.errno in _HOPELESS_CODES):
            raise _as_raised(failed)
        tried = self._tried.get(task.key, 0) + failed.attempts
        if _may_pass(error) and tried <= len(_PAUSES_SECONDS):
            self._tried[task.key] = tried
            return _PAUSES_SECONDS[tried - 1]
        self._note(task, failed, tried)
        if self._num_failed > self._tolerance.most_failures or (not self._has_succeeded and self._num_failed >= _FAILURES_WITHOUT_SUCCESS):
            raise self._error("too many failed, so the others were not tried")
        return None

    def _note(self, task: Task, failed: FailedAttempt, tried: int) -> None:
        error = failed.error
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()) if note != f"while working on {task.name}")
        failure = Failure(task.key, task.name, f"{type(error).__name__}: {error}{notes}", tried, round(time.time(), 1), failed.host)
        self._num_failed += 1
        self._first = self._first or failed
        self._kinds.add(type(error))
        if len(self._errors) < 2:
            self._errors.add(f"{type(error).__name__}: {error}")
        if len(self._listed) < _LISTED:
            self._listed.append(failure)
        if self._folder is not None:
            self._lines = self._lines or LineFile(self._folder, FAILURES)
            self._lines.append(asdict(failure))
        self.progress.count_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.update_total(self._job)
        if self._lines is not None:
            self._lines.close()

    def check(self) -> None:
        """Make sure that nothing failed."""
        if self._num_failed:
            error: Any = self._error(self._tolerance.ending)
            error.exit_code = EXIT_CODE
            raise error

    def _error(self, ending: str) -> Exception:
        """Tell what failed."""
        is_one_reason = len(self._errors) == 1 or (not self._has_succeeded and len(self._kinds) == 1)  # what fails everywhere has one cause
        if self._first is not None and is_one_reason and not self._tolerance.lists_always:
            error = _as_raised(self._first)
            if self._num_failed > 1:
                error.add_note(f"{counted(self._num_failed, 'task')} failed {'for this reason' if len(self._errors) == 1 else 'in this way'}; {ending}")
            elif self._has_succeeded:
                error.add_note(ending)
            return error
        listed = "".join(f"\n  {_describe(failure)}" for failure in self._listed)
        where = f"; all are listed in {self._folder}/failures-*.jsonl" if self._folder is not None and self._has_succeeded else ""
        more = f"\n  and {self._num_failed - _LISTED} more{where}" if self._num_failed > _LISTED else ""
        trace = "" if self._first is None else user_trace(self._first.error)
        failed = TaskFailedError(f"{counted(self._num_failed, 'task')} failed; {ending}:{listed}{more}" + (f"\nof the first one:\n{trace}" if trace else ""))
        failed.__cause__ = None if self._first is None else _as_raised(self._first)
        return failed


def _may_pass(error: Exception) -> bool:
    """Tell whether an error may be gone at the next attempt; what is wrong in the data stays wrong."""
    if is_final(error):
        return False
    return isinstance(error, _PASSING_ERRORS) or (isinstance(error, OSError) and error.errno in _PASSING_CODES)


def _as_raised(failed: FailedAttempt) -> Exception:
    """Give an error so that its traceback shows where it was raised in another process."""
    if failed.trace:
        failed.error.__cause__ = _RaisedElsewhereError(failed.trace)
    return failed.error


def _describe(failure: Failure) -> str:
    tried = f" (tried {failure.attempts} times)" if failure.attempts > 1 else ""
    return f"{failure.name}: {failure.reason}{tried}"
