"""What a job is to a runner: tasks that can run anywhere and more than once, and what follows from their results."""

from __future__ import annotations

import importlib
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.receipts import Receipt
    from wkwdask.model.target_array import TargetArray
    from wkwdask.model.volume import Volume

_PACKAGE = str(Path(__file__).parents[1])
_IMPORTLIB = str(Path(importlib.__file__).parent)


@dataclass(frozen=True, slots=True)
class Result:
    """What a task gives back."""

    receipts: tuple[tuple[int, Receipt], ...]
    """Index of the target and the receipt, for each shard or part that was written."""
    sources: int = 0
    """Digest of the states of all files that were read, see ``wkwdask.model.states``."""
    value: Any = None
    """What a task found out; small, and picklable."""
    nbytes_in: int = 0
    """Voxel bytes that were read (decoded), for the progress; 0 where nobody counts."""
    seconds: float = 0.0
    """How long it took; 0 where nobody measured."""


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work: picklable, and safe to run twice or in two places at once."""

    name: str
    key: str
    """What a journal calls it; unique in its job."""
    function: Callable[[Any], Result]
    """What does the work; a function of a module."""
    spec: Any
    """What it is called with; small to pickle."""

    def run(self) -> Result:
        """Do the work and give a small result."""
        return self.function(self.spec)


class Job(Protocol):
    """A lazy list of tasks that grows with their results."""

    @property
    def num_tasks(self) -> int:
        """How many tasks there will be in all, as far as is known."""

    def tasks(self) -> Iterator[Task]:
        """Give the tasks to start with."""

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take the result of a task and give the tasks that can start now."""


class FlatJob:
    """A job whose tasks are all known and lead to no others; what they find out is handed on."""

    def __init__(self, tasks: Callable[[], Iterator[Task]], num_tasks: int, take: Callable[[Any, Result], None]) -> None:
        self._tasks = tasks
        self._take = take
        self.num_tasks = num_tasks

    def tasks(self) -> Iterator[Task]:
        return self._tasks()

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        self._take(task.spec, result)
        return ()


def voxel_nbytes(volume: Volume | TargetArray, box: BoundingBox) -> int:
    """Count the bytes of the voxels of a box, decoded."""
    return box.volume * volume.num_channels * volume.dtype.itemsize


def run_task(task: Task) -> Result:
    """Run a task anywhere; its errors say which one it was."""
    try:
        return task.run()
    except Exception as error:
        error.add_note(f"while working on {task.name}")
        raise


def mark_final(error: Exception) -> None:
    """Mark an error that its task has tried to get around often enough: it is not tried again. The user's part of its traceback is kept."""
    error._wkwdask_is_given_up = True  # type: ignore[attr-defined]
    error._wkwdask_trace = format_user_trace(error)  # type: ignore[attr-defined]


def copy_marks(error: Exception, other: Exception) -> Exception:
    """Give an error that stands for another one its notes and what :func:`mark_final` marked."""
    error.__dict__.update(vars(other))
    return error


def user_trace(error: Exception) -> str:
    """Return the traceback that :func:`mark_final` kept, empty without one."""
    trace: str = getattr(error, "_wkwdask_trace", "")
    return trace


def format_user_trace(error: BaseException) -> str:
    """Format the part of a traceback that begins where this package called code of others; empty where there is none."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((_PACKAGE, _IMPORTLIB, "<frozen importlib")):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):  # which names its line itself
        return ""
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def is_final(error: Exception) -> bool:
    """Tell whether an error was marked by :func:`mark_final`."""
    return getattr(error, "_wkwdask_is_given_up", False)
