"""The journal of a job: one JSON line for each finished task, in the job's folder.

Each process that drives the job appends to a file of its own; together they are the journal. A line that a dying process cut short is no line.
"""

from __future__ import annotations

import json
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
        self._output = _open_next(folder, number)
        self._flushed = time.monotonic()

    def append(self, entry: dict[str, Any]) -> None:
        """Add one line."""
        data = memoryview(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        while data:
            data = data[self._output.append(data) :]
        now = time.monotonic()
        if now - self._flushed >= _FLUSH_SECONDS:
            self._output.sync()
            self._flushed = now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._output.sync()
        self._output.close()


def _open_next(folder: str, number: int | None) -> files.Output:
    """Make a journal file with the next free number."""
    if number is None:
        number = max((n for n, _ in files.numbered(folder, _PREFIX, _SUFFIX)), default=-1) + 1
    while True:
        try:
            output = files.create(f"{folder}/{_PREFIX}{number}{_SUFFIX}", append=True)
        except FileExistsError:
            number += 1
            continue
        files.fsync(folder)
        return output


def read_journal(folder: str) -> Iterator[bytes]:
    """Go through the lines of all journal files, oldest file first."""
    for _, path in sorted(files.numbered(folder, _PREFIX, _SUFFIX)):
        with files.open_stream(path) as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line


def has_journal(folder: str) -> bool:
    """Tell whether any line was written."""
    return next(read_journal(folder), None) is not None
