"""Append-only records in a bucket: lines are collected, and stored as numbered objects."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from wkwdask.model.store import Conflict, Expected
from wkwdask.store.lru import LruCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.model.store import Store

_MOST_LINES = 1000
_MOST_SECONDS = 10.0
_next_numbers: LruCache[int] = LruCache(256)
"""Numbers after the last ones that this process has stored, by the name that it began with."""


class LineObjects:
    """Lines of one process, see :class:`wkwdask.model.store.Output`. Lines that are not stored yet
    are lost with the process: their tasks run again."""

    def __init__(
        self,
        store: Store,
        name_of: Callable[[int], str],
        number: int,
        free_number: Callable[[], int],
        step: Callable[[], int],
    ) -> None:
        """Begin with a number, or after the last one of this process; a ``step`` after those that
        ``free_number`` lists if it is taken."""
        self._store = store
        self._name_of = name_of
        self._first = store.path_of(name_of(number))
        self._number = _next_numbers.get(self._first) or number
        self._free_number = free_number
        self._step = step
        self._lines: list[bytes] = []
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def append(self, data: bytes | memoryview) -> int:
        with self._lock:
            self._lines.append(bytes(data))
            is_due = (
                len(self._lines) >= _MOST_LINES or time.monotonic() - self._since > _MOST_SECONDS
            )
        if is_due:
            self._store_lines()
        return len(data)

    def _store_lines(self) -> None:
        """Store the lines under the next free number, which another process may take first."""
        with self._lock:
            data = b"".join(self._lines)
            while data:
                try:
                    self._store.put(self._name_of(self._number), data, Expected.ABSENT)
                    data = b""
                    self._number += 1
                    _next_numbers.put(self._first, self._number)
                except Conflict:
                    self._number = max(self._number, self._free_number() - 1) + self._step()
            self._lines.clear()
            self._since = time.monotonic()

    def write(self, data: memoryview, offset: int) -> None:
        raise NotImplementedError("lines are only appended")

    def set_nbytes(self, nbytes: int) -> None:
        raise NotImplementedError("lines are only appended")

    def sync(self) -> None:
        """Return: lines are stored by their number and age."""

    def close(self) -> None:
        self._store_lines()
