"""Bounded cache, safe for threads and forks."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

_Value = TypeVar("_Value")
_caches: weakref.WeakSet[LruCache] = weakref.WeakSet()  # type: ignore[type-arg]
_open_files: weakref.WeakSet[OpenFiles] = weakref.WeakSet()  # type: ignore[type-arg]


class LruCache(Generic[_Value]):
    """Cache that keeps the most recently used values."""

    def __init__(self, capacity: int, weight_of: Callable[[_Value], int] = lambda _: 1) -> None:
        self._capacity = capacity
        self._weight_of = weight_of
        self._weight = 0
        self._values: OrderedDict[Hashable, _Value] = OrderedDict()
        self._unlock()
        _caches.add(self)

    def get(self, key: Hashable) -> _Value | None:
        """Return a cached value; None if absent."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Hashable, value: _Value) -> None:
        """Store a value, evicting the least recently used ones."""
        with self._lock:
            self._forget(key)
            self._values[key] = value
            self._weight += self._weight_of(value)
            while self._weight > self._capacity:
                self._forget(next(iter(self._values)))

    def get_or_make(
        self, keys: Sequence[Hashable], make: Callable[[list[Any]], Iterable[_Value]]
    ) -> list[_Value]:
        """Return the values of keys; ``make`` makes those that are not cached. Threads that need
        the same value at the same time make it once."""
        if len(keys) == 1 and (value := self.get(keys[0])) is not None:
            return [value]
        found = {key: known for key in keys if (known := self.get(key)) is not None}
        missing = [key for key in keys if key not in found]
        with self._lock:
            locks = {self._making.setdefault(key, threading.Lock()) for key in missing}
        with ExitStack() as held:
            for lock in sorted(locks, key=id):
                # in one order for all threads, so that none waits for a thread that waits for it
                held.enter_context(lock)
            # made by another thread in the meantime
            found |= {key: known for key in missing if (known := self.get(key)) is not None}
            missing = [key for key in missing if key not in found]
            for key, made in zip(missing, make(missing) if missing else (), strict=True):
                found[key] = made
                self.put(key, made)
        return [found[key] for key in keys]

    def discard(self, key: Hashable) -> None:
        with self._lock:
            self._forget(key)

    def clear(self) -> None:
        with self._lock:
            for key in list(self._values):
                self._forget(key)

    def _forget(self, key: Hashable) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._weight -= self._weight_of(value)

    def _unlock(self) -> None:
        self._lock = threading.Lock()
        self._making: weakref.WeakValueDictionary[Hashable, threading.Lock] = (
            weakref.WeakValueDictionary()
        )
        """Locks of the values that are being made."""


class OpenFiles(LruCache[_Value]):
    """Cache of open files by path."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        _open_files.add(self)

    def discard_below(self, path: str) -> None:
        """Forget the file at a path, or those below it."""
        with self._lock:
            for key in [key for key in self._values if f"{key}/".startswith(f"{path}/")]:
                self._forget(key)


def forget_open(path: str) -> None:
    """Forget open files at and below a path that is renamed, replaced or removed: NFS keeps files
    that are removed while they are open, and with them their folder."""
    for cache in list(_open_files):
        cache.discard_below(path)


def _unlock_all() -> None:
    # A forked child needs new locks: another thread of the parent may have held one.
    for cache in _caches:
        cache._unlock()


os.register_at_fork(after_in_child=_unlock_all)
