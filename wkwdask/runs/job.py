"""Jobs and tasks as runners see them. A task may run anywhere and more than once, and its result
may lead to further tasks."""

from __future__ import annotations

import importlib
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wkwdask.model.writing.receipts import Receipt

_PACKAGE = str(Path(__file__).parents[1])
_IMPORTLIB = str(Path(importlib.__file__).parent)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a task."""

    receipts: tuple[tuple[int, Receipt], ...]
    """Index of the target and receipt of each shard or part that was written."""
    sources: int = 0
    """Digest of the states of all files read, see ``wkwdask.model.states``."""
    value: Any = None
    """Further result; small and picklable."""
    nbytes_in: int = 0
    """Decoded voxel bytes read, for the progress; 0 if not counted."""
    seconds: float = 0.0
    """Duration; 0 if not measured."""


@dataclass(frozen=True, slots=True)
class Task:
    """Unit of work: picklable, and safe to run twice or in two places at once."""

    name: str
    key: str
    """Name in the journal, unique in its job."""
    function: Callable[[Any], Result]
    """Module-level function that does the work."""
    spec: Any
    """Argument of the function; small to pickle."""

    def run(self) -> Result:
        return self.function(self.spec)


class Job(Protocol):
    """Lazy list of tasks that grows with their results."""

    @property
    def num_tasks(self) -> int:
        """Expected number of tasks, if known so far."""

    def tasks(self) -> Iterator[Task]:
        """Return the initial tasks."""

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Accept the result of a task and return the tasks that can start now."""


class FlatJob:
    """Job whose tasks are all known at the start; results go to a callback."""

    def __init__(
        self,
        tasks: Callable[[], Iterator[Task]],
        num_tasks: int,
        on_result: Callable[[Any, Result], None],
    ) -> None:
        self._tasks = tasks
        self._on_result = on_result
        self.num_tasks = num_tasks

    def tasks(self) -> Iterator[Task]:
        return self._tasks()

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        self._on_result(task.spec, result)
        return ()


@dataclass(frozen=True, slots=True)
class LazyTasks:
    """Tasks that are made when they are needed: a job may have a million."""

    count: int
    tasks: Callable[[], Iterator[Task]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Task]:
        return self.tasks()


class ScratchJob(FlatJob):
    """Job whose tasks write scratch files and have no follow-up tasks."""

    def __init__(
        self, tasks: LazyTasks | Sequence[Task], is_written: Callable[[Task, Result], bool]
    ) -> None:
        super().__init__(lambda: iter(tasks), len(tasks), lambda *_: None)
        self._is_written = is_written

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Return whether the scratch file of a journaled result is still valid."""
        return self._is_written(task, result)


def run_task(task: Task) -> Result:
    try:
        return task.run()
    except Exception as error:
        error.add_note(f"while working on {task.name}")
        raise


def mark_final(error: Exception) -> None:
    """Mark an error whose task must not be retried, because it already was, and keep the user's
    part of the traceback."""
    error._wkwdask_is_given_up = True  # type: ignore[attr-defined]
    error._wkwdask_trace = format_user_trace(error)  # type: ignore[attr-defined]


def mark_fatal(error: Exception) -> None:
    """Mark an error like :func:`mark_final`; it also ends the job, since other tasks would fail in
    the same way."""
    mark_final(error)
    error._wkwdask_is_fatal = True  # type: ignore[attr-defined]


def is_fatal(error: Exception) -> bool:
    """Check whether an error was marked by :func:`mark_fatal`."""
    return getattr(error, "_wkwdask_is_fatal", False)


def copy_marks(error: Exception, other: Exception) -> Exception:
    """Copy the notes and the marks of :func:`mark_final` from one error to another."""
    error.__dict__.update(vars(other))
    return error


def user_trace(error: Exception) -> str:
    """Return the traceback kept by :func:`mark_final`; empty without one."""
    trace: str = getattr(error, "_wkwdask_trace", "")
    return trace


def format_user_trace(error: BaseException) -> str:
    """Format a traceback from the first frame outside this package; empty if there is none."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(
        (_PACKAGE, _IMPORTLIB, "<frozen importlib")
    ):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):  # a SyntaxError names its own line
        return ""
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def is_final(error: Exception) -> bool:
    """Check whether an error was marked by :func:`mark_final`."""
    return getattr(error, "_wkwdask_is_given_up", False)
