"""The journal of a job: one JSON line for each finished task, in the job's folder.

Each process that drives the job appends to a file of its own; together they are the journal. A line that a dying process cut short is no line.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Self

from wkwdask.store import files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_PREFIX = "journal-"
_SUFFIX = ".jsonl"
_FLUSH_SECONDS = 2.0


class Journal:
    """Appends lines; each is out of this process at once, and on disk within seconds."""

    def __init__(self, folder: str, number: int | None = None) -> None:
        self._fd = _open_next(folder, number)
        self._flushed = time.monotonic()

    def append(self, entry: dict[str, Any]) -> None:
        """Add one line."""
        data = memoryview(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        while data:
            data = data[os.write(self._fd, data) :]
        now = time.monotonic()
        if now - self._flushed >= _FLUSH_SECONDS:
            os.fsync(self._fd)
            self._flushed = now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.fsync(self._fd)
        os.close(self._fd)


def _open_next(folder: str, number: int | None) -> int:
    """Make a journal file with the next free number."""
    if number is None:
        number = max((n for n, _ in files.numbered(folder, _PREFIX, _SUFFIX)), default=-1) + 1
    while True:
        try:
            fd = os.open(f"{folder}/{_PREFIX}{number}{_SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            number += 1
            continue
        files.fsync_folder(folder)
        return fd


def read_journal(folder: str) -> Iterator[bytes]:
    """Go through the lines of all journal files, oldest file first."""
    for _, path in sorted(files.numbered(folder, _PREFIX, _SUFFIX)):
        with open(path, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line


def has_journal(folder: str) -> bool:
    """Tell whether any line was written."""
    return next(read_journal(folder), None) is not None
