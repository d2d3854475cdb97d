"""Progress of a job: a bar on a terminal or lines in a batch log, neither for a job that ends at
once, and always JSON lines in the job folder.

Counting costs a few additions; a separate thread displays the numbers at intervals. Failed tasks
are recorded in the job folder too. Each process that drives the job appends to its own files. An
error while writing a line never ends the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

from wkwdask.model.store import Conflict, Expected
from wkwdask.model.summary import format_nbytes
from wkwdask.runs.journal import SUFFIX, keys_of, open_next, read_journal
from wkwdask.store.lru import LruCache
from wkwdask.store.paths import is_bucket
from wkwdask.store.records import PROGRESS_NAME
from wkwdask.store.store import folders_of, numbered, store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wkwdask.model.store import Output, Store
    from wkwdask.runs.job import Job, Result


_PROGRESS = "progress-"
FAILURES = "failures-"
_KEPT_LINES = 10_000
_MAX_STEP = 1 << 16
_written: LruCache[deque[bytes]] = LruCache(64)
"""Last progress lines that this process has written in folders of buckets."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed task."""

    task: str
    """Key of the task in the journal."""
    name: str
    """Name of the task in messages."""
    reason: str
    attempts: int
    time: float
    """Time of the last attempt [seconds since the epoch]."""
    host: str


class LineFile:
    """Append-only file of JSON lines, created with the first line. Errors are ignored."""

    def __init__(self, path: str, prefix: str = "") -> None:
        """Append to a file; with a prefix, create the next free one in a folder."""
        self._path = path
        self._prefix = prefix
        self._output: Output | None = None
        self._written: deque[bytes] | None = None
        self._is_opened = False
        self._is_cut = False

    def _open(self) -> Output | None:
        try:
            if self._prefix:
                return open_next(
                    self._path, self._prefix, step=lambda: 1 + secrets.randbelow(_MAX_STEP)
                )
            return folders_of(self._path).create(self._path, exclusive=False, append=True)
        except OSError:
            return None

    def append(self, record: dict[str, Any]) -> None:
        """Append one line in a single write."""
        if not self._is_opened:
            self._output = self._open()
            self._is_opened = True
            if self._output is not None and is_bucket(self._path) and self._prefix == _PROGRESS:
                self._written = _written.get(self._path) or deque(maxlen=_KEPT_LINES)
                _written.put(self._path, self._written)
        if self._output is None:
            return
        # A single write to a file opened for appending is not mixed with lines of other processes.
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        data = b"\n" + line if self._is_cut else line
        if self._written is not None:
            self._written.append(line)
        with contextlib.suppress(OSError):
            # on a full disk, end the cut line before the next one
            self._is_cut = self._output.append(data) < len(data)

    def close(self) -> None:
        if self._output is not None:
            with contextlib.suppress(OSError):
                self._output.close()


def read_progress(folder: str) -> list[dict[str, Any]]:
    """Read the last progress line of each process that drove a job, in the order of their
    starts."""
    store, last = store_at(folder), []
    for _, name in sorted(numbered(store, _PROGRESS, SUFFIX)):
        records = list(_records(store, name))
        if records:
            last.append((records[0].get("time", 0.0), records[-1]))
    return [record for _, record in sorted(last, key=itemgetter(0))]


def read_failures(folder: str) -> list[Failure]:
    """Read the failed tasks of a job that no later attempt finished."""
    store = store_at(folder)
    failures: dict[str, Failure] = {}
    for _, name in sorted(numbered(store, FAILURES, SUFFIX)):
        for record in _records(store, name):
            with contextlib.suppress(TypeError):
                failure = Failure(**record)
                if not isinstance(failure.task, str) or not isinstance(failure.time, (int, float)):
                    continue
                if failure.task not in failures or failures[failure.task].time <= failure.time:
                    failures[failure.task] = failure
    if failures:
        for key in keys_of(read_journal(folder)):
            failures.pop(key, None)
    return list(failures.values())


def keep_progress(folder: str, mag: str, *, is_first: bool = False) -> None:
    """Copy the last progress lines of a job to its first mag. A job that ``is_first`` has those of
    this process only."""
    with contextlib.suppress(OSError, Conflict):
        written = _written.get(folder) if is_first else None
        lines = _last_lines(store_at(folder)) if written is None else list(written)
        folders, data = store_at(mag).folders, b"".join(lines)
        if lines and folders is None:
            store_at(mag).put(PROGRESS_NAME, data, Expected.ABSENT)
        elif lines and folders is not None:
            output = folders.create(f"{mag}/{PROGRESS_NAME}", exclusive=False)
            with contextlib.closing(output) as file:
                file.set_nbytes(0)
                file.write(memoryview(data), 0)


def _last_lines(store: Store) -> list[bytes]:
    lines: list[bytes] = []
    for _, name in sorted(numbered(store, _PROGRESS, SUFFIX), reverse=True):
        with store.open_stream(name) as file:
            lines = [line for line in file if line.endswith(b"\n")][-_KEPT_LINES:] + lines
        if len(lines) >= _KEPT_LINES:
            break
    return lines[-_KEPT_LINES:]


def _records(store: Store, name: str) -> Iterator[dict[str, Any]]:
    """Iterate over the records of a file, skipping lines that a crash or a full disk cut short."""
    with contextlib.suppress(FileNotFoundError), store.open_stream(name) as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                if line.endswith(b"\n") and isinstance(record, dict):
                    yield record


def describe(record: dict[str, Any]) -> list[str]:
    """Format the amount of data, speed, failures, workers and remaining time."""
    nbytes_in, nbytes_out, seconds = record["nbytes_in"], record["nbytes_out"], record["seconds"]
    moved = nbytes_in or nbytes_out
    left = seconds_left(record)
    details = [
        f"{format_nbytes(nbytes_in)} in" if nbytes_in else "",
        f"{format_nbytes(nbytes_out)} out" if nbytes_out else "",
        f"{moved / 1e6 / seconds:.0f} MB/s" if moved and seconds else "",
        f"{record['failed']} failed" if record["failed"] else "",
        f"{record['workers']} workers" if record["workers"] != 1 else "1 worker",
        "" if left is None else f"ETA {_clock(left)}" if left else f"after {_clock(seconds)}",
    ]
    return [item for item in details if item]


def format_line(record: dict[str, Any]) -> str:
    """Format progress as one line of a log.

    Examples
    --------
    >>> record = {
    ...     "title": "pyramid of ds/color",
    ...     "done": 110,
    ...     "known": 10,
    ...     "total": 800,
    ...     "failed": 2,
    ...     "nbytes_in": 14_000_000_000,
    ...     "nbytes_out": 3_000_000_000,
    ... }
    >>> format_line(record | {"seconds": 30, "workers": 8})
    'pyramid of ds/color: 120/800 tasks, 14.0 GB in, 3.0 GB out, 467 MB/s, 2 failed, 8 workers, ETA 00:03:02'
    """  # noqa: E501
    return ", ".join([f"{record['title']}: {describe_count(record)}", *describe(record)])


def describe_count(record: dict[str, Any]) -> str:
    return f"{record['done'] + record['known']}/{record['total']} tasks"


def seconds_left(record: dict[str, Any]) -> float | None:
    """Estimate the remaining time from the speed so far, without the first task of each worker,
    which loads and compiles; None before the next one ends."""
    ended = record["done"] + record["failed"]
    rest = max(0, record["total"] - record["known"] - ended)
    if not rest:
        return 0.0 if record["done"] else None
    first = record.get("first", (0, 0.0))
    if not record["done"] or first is None or ended <= first[0]:
        return None
    left: float = rest * (record["seconds"] - first[1]) / (ended - first[0])
    return left


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}"


class Bar:
    """Progress bar on a terminal."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[details]}"),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(title, total=None, details="")
        self._bar.start()

    def update(self, record: dict[str, Any]) -> None:
        self._bar.update(
            self._task,
            completed=record["done"] + record["known"],
            total=record["total"],
            details=", ".join(describe(record)),
        )

    def stop(self) -> None:
        self._bar.stop()


PROGRESS_VARIABLE = "WKWDASK_PROGRESS"
SECONDS_VARIABLE = "WKWDASK_PROGRESS_SECONDS"
FILE_VARIABLE = "WKWDASK_PROGRESS_FILE"
_FIRST_BAR_SECONDS = 1.0
_BAR_SECONDS = 0.5
_LINE_SECONDS = 10.0
_LONGEST_LINE_SECONDS = 60.0
_LINES_PER_ELAPSED_TIME = 10  # the next line comes after a tenth of the elapsed time
_TOTAL_INTERVAL_SECONDS = 0.25


class Progress:
    """Counter of finished tasks, displayed on standard error."""

    def __init__(self, title: str, total: int, folder: str | None = None, workers: int = 1) -> None:
        self.workers = workers
        self._title = title
        self._total = total
        self._total_due = 0.0
        self._known = 0
        self._done = 0
        self._failed = 0
        self._nbytes_in = 0
        self._nbytes_out = 0
        self._started = time.monotonic()
        self._first: tuple[int, float] | None = None
        self._is_quiet = os.environ.get(PROGRESS_VARIABLE, "").lower() in ("0", "off", "no")
        self._interval = _chosen_seconds()
        self._files = [] if folder is None else [LineFile(folder, _PROGRESS)]
        if os.environ.get(FILE_VARIABLE):
            self._files.append(LineFile(os.environ[FILE_VARIABLE]))
        self._has_printed = False
        self._bar: Bar | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._write()
        if self._files or not self._is_quiet:
            self._thread = threading.Thread(
                target=self._display_loop, name="wkwdask-progress", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._bar is not None:
            self._draw()
            self._bar.stop()
        if self._has_printed:
            self._print()
        self._write()
        for file in self._files:
            file.close()

    def count(self, job: Job, result: Result) -> None:
        self.advance()
        self._nbytes_in += result.nbytes_in
        for _, receipt in result.receipts:
            if receipt.part is None:  # parts are counted when their shard is joined
                self._nbytes_out += receipt.nbytes
        now = time.monotonic()
        if now >= self._total_due or self._done >= self._total:
            self._total_due = now + _TOTAL_INTERVAL_SECONDS
            self.update_total(job)

    def update_total(self, job: Job) -> None:
        """Read the expected number of tasks from a job."""
        self.set_total(job.num_tasks, getattr(job, "num_known", 0))

    def count_failure(self) -> None:
        self._failed += 1

    def set_total(self, total: int, known: int = 0) -> None:
        """Set the expected number of tasks of this start, and the number that earlier starts
        finished."""
        self._total, self._known = total, known

    def advance(self) -> None:
        self._done += 1
        if self._first is None and self._done >= self.workers:
            self._first = self._done, round(time.monotonic() - self._started, 1)

    def record(self) -> dict[str, Any]:
        return {
            "time": round(time.time(), 1),
            "title": self._title,
            "done": self._done,
            "known": self._known,
            "total": self._total + self._known,
            "failed": self._failed,
            "nbytes_in": self._nbytes_in,
            "nbytes_out": self._nbytes_out,
            "seconds": round(time.monotonic() - self._started, 1),
            "workers": self.workers,
            "first": self._first,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }

    def _display_loop(self) -> None:
        """Display the numbers at intervals, in the progress thread."""
        displays = (
            []
            if self._is_quiet
            else [
                _Periodic(self._draw, _BAR_SECONDS, _FIRST_BAR_SECONDS)
                if _is_terminal()
                else self._periodic(self._print)
            ]
        )
        displays += [self._periodic(self._write)] if self._files else []
        while True:
            due = min(display.due for display in displays)
            if self._stop.wait(max(0.0, self._started + due - time.monotonic())):
                return
            for display in displays:
                display.run_if_due(time.monotonic() - self._started)

    def _periodic(self, action: Callable[[], None]) -> _Periodic:
        return (
            _Periodic(action, self._interval)
            if self._interval
            else _Periodic(action, _LINE_SECONDS, longest=_LONGEST_LINE_SECONDS)
        )

    def _draw(self) -> None:
        if self._bar is None:
            self._bar = Bar(self._title)
        self._bar.update(self.record())

    def _print(self) -> None:
        if self._is_quiet:
            return
        self._has_printed = True
        try:
            sys.stderr.write(f"{format_line(self.record())}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # standard error was closed
            self._is_quiet = True

    def _write(self) -> None:
        if self._files:
            record = self.record()
            for file in self._files:
                file.append(record)


class _Periodic:
    def __init__(
        self,
        action: Callable[[], None],
        seconds: float,
        first: float | None = None,
        longest: float | None = None,
    ) -> None:
        self.due = seconds if first is None else first
        self._action = action
        self._seconds = seconds
        self._longest = longest

    def run_if_due(self, now: float) -> None:
        """Run the action if it is due; ``now`` is the time since the start [seconds]."""
        if now >= self.due:
            self._action()
            self.due = now + (
                self._seconds
                if self._longest is None
                else min(self._longest, max(self._seconds, now / _LINES_PER_ELAPSED_TIME))
            )


def _chosen_seconds() -> float | None:
    """Return the interval set by the user; None if unset."""
    try:
        return max(0.01, float(os.environ[SECONDS_VARIABLE]))
    except (KeyError, ValueError):
        return None


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
