"""Progress of a job: a bar on a terminal, plain lines in a batch log, nothing for what is over at once; and JSON lines in the job's folder, always.

Counting is a few additions; a thread of its own looks at the numbers now and then and shows them. A job also tells there which of its tasks failed. Each
process that drives the job appends to files of its own. Nothing here ends a job: where a line cannot be written, there is none.
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
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

from wkwdask.runs.journal import SUFFIX, keys_of, open_next, read_journal
from wkwdask.store import files
from wkwdask.store.records import PROGRESS_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wkwdask.runs.job import Job, Result


_PROGRESS = "progress-"
FAILURES = "failures-"
_KEPT_LINES = 10_000
_FAR = 1 << 16


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that failed."""

    task: str
    """What a journal calls it."""
    name: str
    """What it works on."""
    reason: str
    attempts: int
    time: float
    """When it was given up [seconds since the epoch]."""
    host: str


class LineFile:
    """Appends lines to a file, which is made with the first of them, as long as that works."""

    def __init__(self, path: str, prefix: str = "") -> None:
        """Go on with a file; with a prefix, make the next free one in a folder."""
        self._path = path
        self._prefix = prefix
        self._output: files.Output | None = None
        self._is_made = False
        self._is_cut = False

    def _open(self) -> files.Output | None:
        """Make the file; a thousand elements of an array may do that at once, so that the next number to try is a far one."""
        try:
            if self._prefix:
                return open_next(self._path, self._prefix, step=lambda: 1 + secrets.randbelow(_FAR))
            return files.create(self._path, exclusive=False, append=True)
        except OSError:
            return None

    def append(self, record: dict[str, Any]) -> None:
        """Add one line, in one piece."""
        if not self._is_made:
            self._output = self._open()
            self._is_made = True
        if self._output is None:
            return
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        data = b"\n" + line if self._is_cut else line
        with contextlib.suppress(OSError):
            self._is_cut = self._output.append(data) < len(data)  # a full disk: the next line begins anew

    def close(self) -> None:
        if self._output is not None:
            with contextlib.suppress(OSError):
                self._output.close()


def read_progress(folder: str) -> list[dict[str, Any]]:
    """Read how far each driving process of a job came: the last line of each file, in the order in which they began."""
    last = []
    for _, path in sorted(files.numbered(folder, _PROGRESS, SUFFIX)):
        records = list(_records(path))
        if records:
            last.append((records[0].get("time", 0.0), records[-1]))
    return [record for _, record in sorted(last, key=itemgetter(0))]


def read_failures(folder: str) -> list[Failure]:
    """Read which tasks of a job failed, and were not finished later."""
    found: dict[str, Failure] = {}
    for _, path in sorted(files.numbered(folder, FAILURES, SUFFIX)):
        for record in _records(path):
            with contextlib.suppress(TypeError):
                failure = Failure(**record)
                if not isinstance(failure.task, str) or not isinstance(failure.time, (int, float)):
                    continue
                if failure.task not in found or found[failure.task].time <= failure.time:
                    found[failure.task] = failure
    if found:
        for key in keys_of(read_journal(folder)):
            found.pop(key, None)
    return list(found.values())


def keep_progress(folder: str, mag: str) -> None:
    """Copy the progress lines of a job to the first mag that it made; of very many, the last ones."""
    with contextlib.suppress(OSError):
        lines = _last_lines([path for _, path in sorted(files.numbered(folder, _PROGRESS, SUFFIX))])
        if lines:
            with contextlib.closing(files.create(f"{mag}/{PROGRESS_NAME}", exclusive=False)) as file:
                file.set_nbytes(0)
                file.write(memoryview(b"".join(lines)), 0)


def _last_lines(paths: Sequence[str]) -> list[bytes]:
    lines: list[bytes] = []
    for path in reversed(paths):
        with files.open_stream(path) as file:
            lines = [line for line in file if line.endswith(b"\n")][-_KEPT_LINES:] + lines
        if len(lines) >= _KEPT_LINES:
            break
    return lines[-_KEPT_LINES:]


def _records(path: str) -> Iterator[dict[str, Any]]:
    """Go through the records of a file; a line that a dying process or a full disk cut short is none."""
    with contextlib.suppress(FileNotFoundError), files.open_stream(path) as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                if line.endswith(b"\n") and isinstance(record, dict):
                    yield record


def describe(record: dict[str, Any]) -> list[str]:
    """Say how far a job is, and how fast."""
    nbytes_in, nbytes_out, seconds = record["nbytes_in"], record["nbytes_out"], record["seconds"]
    moved = nbytes_in or nbytes_out
    left = seconds_left(record)
    said = [
        f"{_binary(nbytes_in)} in" if nbytes_in else "",
        f"{_binary(nbytes_out)} out" if nbytes_out else "",
        f"{moved / 1e6 / seconds:.0f} MB/s" if moved and seconds else "",
        f"{record['failed']} failed" if record["failed"] else "",
        f"{record['workers']} workers" if record["workers"] != 1 else "1 worker",
        "" if left is None else f"ETA {_clock(left)}" if left else f"after {_clock(seconds)}",
    ]
    return [item for item in said if item]


def format_line(record: dict[str, Any]) -> str:
    """Write progress as one line of a log.

    Examples
    --------
    >>> record = {"title": "pyramid of ds/color", "done": 110, "known": 10, "total": 800, "failed": 2, "nbytes_in": 14 << 30, "nbytes_out": 3 << 30}
    >>> format_line(record | {"seconds": 30, "workers": 8})
    'pyramid of ds/color: 120/800 tasks, 14.0 GiB in, 3.0 GiB out, 501 MB/s, 2 failed, 8 workers, ETA 00:03:02'
    """
    return ", ".join([f"{record['title']}: {describe_count(record)}", *describe(record)])


def describe_count(record: dict[str, Any]) -> str:
    """Say how many tasks are done."""
    return f"{record['done'] + record['known']}/{record['total']} tasks"


def seconds_left(record: dict[str, Any]) -> float | None:
    """Tell how long the rest will take at the pace so far; None where nothing is finished."""
    ended = record["done"] + record["failed"]
    if not record["done"]:
        return None
    left: float = max(0, record["total"] - record["known"] - ended) * record["seconds"] / ended
    return left


def _binary(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.1f} MiB"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}"


class Bar:
    """A bar on the terminal, which goes in the end."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(title, total=None, said="")
        self._bar.start()

    def update(self, record: dict[str, Any]) -> None:
        self._bar.update(self._task, completed=record["done"] + record["known"], total=record["total"], said=", ".join(describe(record)))

    def stop(self) -> None:
        self._bar.stop()


PROGRESS_VARIABLE = "WKWDASK_PROGRESS"
SECONDS_VARIABLE = "WKWDASK_PROGRESS_SECONDS"
FILE_VARIABLE = "WKWDASK_PROGRESS_FILE"
_PATIENCE_SECONDS = 1.0
_BAR_SECONDS = 0.5
_LINE_SECONDS = 10.0
_LONGEST_LINE_SECONDS = 60.0
_LINES_SO_FAR = 10  # the time that has gone by so many lines gives the time to the next one
_TOTAL_SECONDS = 0.25


class Progress:
    """Counts finished tasks, and shows them on standard error."""

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
            self._thread = threading.Thread(target=self._look, name="wkwdask-progress", daemon=True)
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
        """Count a finished task of a job."""
        self._done += 1
        self._nbytes_in += result.nbytes_in
        for _, receipt in result.receipts:
            if receipt.part is None:  # parts are stored once more, in their shards
                self._nbytes_out += receipt.nbytes
        now = time.monotonic()
        if now >= self._total_due or self._done >= self._total:
            self._total_due = now + _TOTAL_SECONDS
            self.update_total(job)

    def update_total(self, job: Job) -> None:
        """See how many tasks there will be."""
        self.set_total(job.num_tasks, getattr(job, "num_known", 0))

    def count_failure(self) -> None:
        self._failed += 1

    def set_total(self, total: int, known: int = 0) -> None:
        """Correct how many tasks there will be in this start, and how many an earlier one finished."""
        self._total, self._known = total, known

    def advance(self) -> None:
        """Count one finished task of which nothing else is known."""
        self._done += 1

    def record(self) -> dict[str, Any]:
        """Say how far the job is."""
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
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }

    def _look(self) -> None:
        """Show the numbers now and then."""
        shows = [] if self._is_quiet else [_Repeated(self._draw, _BAR_SECONDS, _PATIENCE_SECONDS) if _is_terminal() else self._repeated(self._print)]
        shows += [self._repeated(self._write)] if self._files else []
        while True:
            due = min(show.due for show in shows)
            if self._stop.wait(max(0.0, self._started + due - time.monotonic())):
                return
            for show in shows:
                show.look(time.monotonic() - self._started)

    def _repeated(self, action: Callable[[], None]) -> _Repeated:
        return _Repeated(action, self._interval) if self._interval else _Repeated(action, _LINE_SECONDS, longest=_LONGEST_LINE_SECONDS)

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
        except (OSError, ValueError):  # nobody reads it any more
            self._is_quiet = True

    def _write(self) -> None:
        if self._files:
            record = self.record()
            for file in self._files:
                file.append(record)


class _Repeated:
    """Something that is done now and then."""

    def __init__(self, action: Callable[[], None], seconds: float, first: float | None = None, longest: float | None = None) -> None:
        self.due = seconds if first is None else first
        self._action = action
        self._seconds = seconds
        self._longest = longest

    def look(self, now: float) -> None:
        """Do it if it is due, so many seconds after the start."""
        if now >= self.due:
            self._action()
            self.due = now + (self._seconds if self._longest is None else min(self._longest, max(self._seconds, now / _LINES_SO_FAR)))


def _chosen_seconds() -> float | None:
    """Give the time between lines that the user chose."""
    try:
        return max(0.01, float(os.environ[SECONDS_VARIABLE]))
    except (KeyError, ValueError):
        return None


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
