"""What a job tells about itself beside its journal: how far it is, and which tasks failed. One JSON line each, in the job's folder.

Each process that drives the job appends to files of its own. Nothing here ends a job: where a line cannot be written, there is none.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from wkwdask.runs.journal import read_journal
from wkwdask.store import files
from wkwdask.store.provenance import PROGRESS_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PROGRESS = "progress-"
_FAILURES = "failures-"
_SUFFIX = ".jsonl"
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
    """The error."""
    attempts: int
    """How often it was tried."""
    time: float
    """When it was given up [seconds since the epoch]."""
    host: str
    """The machine on which it failed."""


class Lines:
    """Appends lines to a file, which is made with the first of them, as long as that works."""

    def __init__(self, make: Callable[[], files.Output | None]) -> None:
        self._make = make
        self._output: files.Output | None = None
        self._is_made = False
        self._is_cut = False

    def append(self, record: dict[str, Any]) -> None:
        """Add one line, in one piece."""
        if not self._is_made:
            self._output, self._is_made = self._make(), True
        if self._output is None:
            return
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        data = b"\n" + line if self._is_cut else line
        with contextlib.suppress(OSError):
            self._is_cut = self._output.append(data) < len(data)  # a full disk: the next line begins anew

    def close(self) -> None:
        """Close the file."""
        if self._output is not None:
            with contextlib.suppress(OSError):
                self._output.close()


def progress_lines(folder: str) -> Lines:
    """Give the next file of progress lines in a job's folder."""
    return Lines(lambda: _open_next(folder, _PROGRESS))


def failure_lines(folder: str) -> Lines:
    """Give the next file of failed tasks in a job's folder."""
    return Lines(lambda: _open_next(folder, _FAILURES))


def named_lines(path: str) -> Lines:
    """Go on with a file of lines that a user named."""
    return Lines(lambda: _open(path, exclusive=False))


def _open_next(folder: str, prefix: str) -> files.Output | None:
    """Make a file with the next free number, or with a far one where others are making theirs: a thousand elements of an array may start at once."""
    try:
        number = max((n for n, _ in files.numbered(folder, prefix, _SUFFIX)), default=-1) + 1
    except OSError:
        return None
    while True:
        path = f"{folder}/{prefix}{number}{_SUFFIX}"
        output = _open(path, exclusive=True)
        if output is not None or not files.lexists(path):
            return output
        number += 1 + secrets.randbelow(_FAR)


def _open(path: str, *, exclusive: bool) -> files.Output | None:
    try:
        return files.create(path, exclusive=exclusive, append=True)
    except OSError:
        return None


def read_progress(folder: str) -> list[dict[str, Any]]:
    """Read how far each driving process of a job came: the last line of each file, in the order in which they began."""
    last = []
    for _, path in sorted(files.numbered(folder, _PROGRESS, _SUFFIX)):
        records = list(_records(path))
        if records:
            last.append((records[0].get("time", 0.0), records[-1]))
    return [record for _, record in sorted(last, key=itemgetter(0))]


def read_failures(folder: str) -> list[Failure]:
    """Read which tasks of a job failed, and were not finished later."""
    found: dict[str, Failure] = {}
    for _, path in sorted(files.numbered(folder, _FAILURES, _SUFFIX)):
        for record in _records(path):
            with contextlib.suppress(TypeError):
                failure = _failure(record)
                if failure.task not in found or found[failure.task].time <= failure.time:
                    found[failure.task] = failure
    if found:
        for line in read_journal(folder):
            with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
                found.pop(json.loads(line)["task"], None)
    return list(found.values())


def _failure(record: dict[str, Any]) -> Failure:
    failure = Failure(**record)
    if not isinstance(failure.task, str) or not isinstance(failure.time, (int, float)):
        raise TypeError("expected a task and a time")
    return failure


def failure_record(failure: Failure) -> dict[str, Any]:
    """Write down a failed task."""
    return asdict(failure)


def keep_progress(folder: str, mag: str) -> None:
    """Copy the progress lines of a job to the first mag that it made; of very many, the last ones."""
    with contextlib.suppress(OSError):
        lines = _last_lines([path for _, path in sorted(files.numbered(folder, _PROGRESS, _SUFFIX))])
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
