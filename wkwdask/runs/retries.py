"""Retries and failures. Transient errors are retried; after other errors the job continues, and
lists its failed tasks at the end."""

from __future__ import annotations

import errno
import logging
import pickle
import socket
import time
import traceback
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from wkwdask.errors import LockedError, ResumeError, TaskFailedError, WkwDaskError
from wkwdask.model.summary import counted
from wkwdask.runs import job as jobs
from wkwdask.runs.job import copy_marks, is_fatal, is_final, user_trace
from wkwdask.runs.progress import FAILURES, Failure, LineFile
from wkwdask.store.paths import TRANSIENT_CODES
from wkwdask.streams.block_cache import without_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.runs.job import Job, Result, Task
    from wkwdask.runs.progress import Progress

_logger = logging.getLogger(__name__)

EXIT_CODE = 3
"""Exit code of a command in which some tasks failed and all others finished."""
NO_RESULT = "there is no result without them"
"""End of the error of a job whose result needs all tasks."""
# every other task would fail in the same way
_FATAL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_FATAL_ERRORS = (LockedError, ResumeError)
_TRANSIENT_ERRORS = (TimeoutError, ConnectionError)
_PAUSES_SECONDS = (0.5, 2.0, 8.0)  # before the second, third and fourth attempt
# if the first tasks all fail, the settings are probably wrong, not the data: give up early
_FAILURES_WITHOUT_SUCCESS = 8
_LISTED = 20


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Limit on failed tasks, and how failures are reported."""

    most_failures: int = 1000
    """The job ends at once when more tasks than this have failed."""
    lists_always: bool = False
    """Whether a single failure is reported as a list; otherwise its own error is raised."""
    ending: str = "all tasks that do not depend on them are done"
    """Statement in the error about the other tasks."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """Outcome of a task that raised an error."""

    error: Exception
    host: str
    trace: str = ""
    """Traceback of another process; empty if raised here."""
    attempts: int = 1
    """Number of attempts so far."""


def attempt(run: Callable[[Task], Result], task: Task) -> Result | FailedAttempt:
    """Run a task in this process and return its result or its error."""
    start = time.perf_counter()
    try:
        with without_cache():
            return replace(run(task), seconds=time.perf_counter() - start)
    except Exception as error:
        _clear_frames(error)
        return FailedAttempt(error, socket.gethostname())


def attempt_remotely(run: Callable[[Task], Result], task: Task) -> Result | FailedAttempt:
    """Run a task for another process, replacing an error that cannot be pickled."""
    outcome = attempt(run, task)
    if not isinstance(outcome, FailedAttempt):
        return outcome
    error = outcome.error
    # Pickling drops the traceback, so it is sent as text. An error that cannot be pickled, or is
    # unpickled as another type, is replaced.
    trace = "".join(traceback.format_exception(error))
    try:
        survives = type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        survives = False
    if not survives:
        error = copy_marks(TaskFailedError(f"{type(error).__name__}: {error}"), error)
    return replace(outcome, error=error, trace=trace)


def _clear_frames(error: BaseException) -> None:
    """Clear the frames of a traceback, which keep arrays of the failed task alive."""
    seen: set[int] = set()
    chain: BaseException | None = error
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        traceback.clear_frames(chain.__traceback__)
        chain = chain.__cause__ or chain.__context__


class _RaisedElsewhereError(WkwDaskError):
    """Traceback of another process, shown as the cause of an error."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class RetryingJob:
    """Job wrapper that counts attempts and failures."""

    def __init__(
        self, job: Job, progress: Progress, failure_policy: FailurePolicy, folder: str | None = None
    ) -> None:
        self.progress = progress
        self._job = job
        self._policy = failure_policy
        self._folder = folder
        self._failure_file: LineFile | None = None
        self._has_succeeded = False
        self._attempts: dict[str, int] = {}
        self._first: FailedAttempt | None = None
        self._errors: set[str] = set()  # at most two: enough to see that they differ
        self._kinds: set[type] = set()
        self._listed: list[Failure] = []
        self._num_failed = 0

    @property
    def num_tasks(self) -> int:
        """Number of tasks known so far."""
        return self._job.num_tasks

    def tasks(self) -> Iterator[Task]:
        return self._job.tasks()

    def attempt(self, task: Task) -> Result | FailedAttempt:
        """Run a task in this thread."""
        return attempt(jobs.run_task, task)

    @property
    def attempt_remotely(self) -> Callable[[Task], Result | FailedAttempt]:
        """Function that runs a task in another process."""
        return partial(attempt_remotely, jobs.run_task)

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Accept a result and return the tasks that can start now."""
        self._has_succeeded = True
        _logger.debug(
            "%s: done in %.3f s, %d bytes read", task.name, result.seconds, result.nbytes_in
        )
        next_tasks = self._job.receive(task, result)
        self.progress.count(self._job, result)
        return next_tasks

    def fail(self, task: Task, failed: FailedAttempt) -> float | None:
        """Accept a failure; return the pause before the next attempt [seconds], or None if there is
        none."""
        error = failed.error
        if isinstance(error, _FATAL_ERRORS) or (
            isinstance(error, OSError) and error.errno in _FATAL_CODES
        ):
            raise _as_raised(failed)
        tried = self._attempts.get(task.key, 0) + failed.attempts
        if _is_transient(error) and tried <= len(_PAUSES_SECONDS):
            self._attempts[task.key] = tried
            _logger.info(
                "%s: failed, next attempt in %g s: %s: %s",
                task.name,
                _PAUSES_SECONDS[tried - 1],
                type(error).__name__,
                error,
            )
            return _PAUSES_SECONDS[tried - 1]
        self._note(task, failed, tried)
        if is_fatal(error):
            raise self._error("the others would fail in the same way, so they were not tried")
        if self._num_failed > self._policy.most_failures or (
            not self._has_succeeded and self._num_failed >= _FAILURES_WITHOUT_SUCCESS
        ):
            raise self._error("too many failed, so the others were not tried")
        return None

    def _note(self, task: Task, failed: FailedAttempt, tried: int) -> None:
        error = failed.error
        notes = "".join(
            f" ({note})"
            for note in getattr(error, "__notes__", ())
            if note != f"while working on {task.name}"
        )
        failure = Failure(
            task.key,
            task.name,
            f"{type(error).__name__}: {error}{notes}",
            tried,
            round(time.time(), 1),
            failed.host,
        )
        _logger.info("%s: failed: %s", task.name, failure.reason)
        self._num_failed += 1
        self._first = self._first or failed
        self._kinds.add(type(error))
        if len(self._errors) < 2:
            self._errors.add(f"{type(error).__name__}: {error}")
        if len(self._listed) < _LISTED:
            self._listed.append(failure)
        if self._folder is not None:
            self._failure_file = self._failure_file or LineFile(self._folder, FAILURES)
            self._failure_file.append(asdict(failure))
        self.progress.count_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.update_total(self._job)
        if self._failure_file is not None:
            self._failure_file.close()

    def check(self) -> None:
        """Raise an error if any task failed."""
        if self._num_failed:
            error: Any = self._error(self._policy.ending)
            error.exit_code = EXIT_CODE
            raise error

    def _error(self, ending: str) -> Exception:
        # If all failures have one cause, raise that error itself: its type and traceback help more
        # than a list. Equal messages are one cause, and also equal types if no task succeeded.
        is_one_reason = len(self._errors) == 1 or (
            not self._has_succeeded and len(self._kinds) == 1
        )
        if self._first is not None and is_one_reason and not self._policy.lists_always:
            error = _as_raised(self._first)
            if self._num_failed > 1:
                error.add_note(
                    f"{counted(self._num_failed, 'task')} failed "
                    f"{'for this reason' if len(self._errors) == 1 else 'in this way'}; {ending}"
                )
            elif self._has_succeeded:
                error.add_note(ending)
            return error
        listed = "".join(f"\n  {_describe(failure)}" for failure in self._listed)
        log = (
            f"; all are listed in {self._folder}/failures-*.jsonl"
            if self._folder is not None and self._has_succeeded
            else ""
        )
        more = (
            f"\n  and {self._num_failed - _LISTED} more{log}" if self._num_failed > _LISTED else ""
        )
        trace = "" if self._first is None else user_trace(self._first.error)
        failed = TaskFailedError(
            f"{counted(self._num_failed, 'task')} failed; {ending}:{listed}{more}"
            + (f"\nof the first one:\n{trace}" if trace else "")
        )
        failed.__cause__ = None if self._first is None else _as_raised(self._first)
        return failed


def _is_transient(error: Exception) -> bool:
    """Check whether the next attempt may succeed. Errors in the data are permanent."""
    if is_final(error):
        return False
    return isinstance(error, _TRANSIENT_ERRORS) or (
        isinstance(error, OSError) and error.errno in TRANSIENT_CODES
    )


def _as_raised(failed: FailedAttempt) -> Exception:
    """Return an error whose cause shows the traceback of the other process."""
    if failed.trace:
        failed.error.__cause__ = _RaisedElsewhereError(failed.trace)
    return failed.error


def _describe(failure: Failure) -> str:
    tried = f" (tried {failure.attempts} times)" if failure.attempts > 1 else ""
    return f"{failure.name}: {failure.reason}{tried}"
