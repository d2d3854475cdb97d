"""Progress of a job: a bar on a terminal, plain lines in a batch log, nothing for what is over at once."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

PROGRESS_VARIABLE = "WKWDASK_PROGRESS"
_PATIENCE_SECONDS = 1.0
_LINE_SECONDS = 10.0


class Progress:
    """Counts finished tasks and shows them on standard error.

    Parameters
    ----------
    title : str
        What is going on.
    total : int
        How many tasks there will be.
    """

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._last_line = self._started
        self._quiet = os.environ.get(PROGRESS_VARIABLE, "").lower() in ("0", "off", "no")
        self._bar: Any = None
        self._bar_task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def set_total(self, total: int) -> None:
        """Correct how many tasks there will be."""
        self._total = total

    def advance(self) -> None:
        """Count one finished task."""
        self._done += 1
        now = time.monotonic()
        if self._quiet or now - self._started < _PATIENCE_SECONDS:
            return
        if sys.stderr.isatty():
            self._show_bar()
        elif now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            self._print_line(now - self._started)

    def _show_bar(self) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar_task = self._bar.add_task(self._title, total=self._total)
            self._bar.start()
        self._bar.update(self._bar_task, completed=self._done, total=self._total)

    def _print_line(self, seconds: float) -> None:
        left = seconds / self._done * max(0, self._total - self._done)
        sys.stderr.write(f"{self._title}: {self._done}/{self._total} tasks, {seconds:.0f} s, about {left:.0f} s left\n")
        sys.stderr.flush()
