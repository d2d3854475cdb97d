"""Bounded cache, safe for threads and forks."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_Value = TypeVar("_Value")
_caches: weakref.WeakSet[LruCache] = weakref.WeakSet()  # type: ignore[type-arg]


class LruCache(Generic[_Value]):
    """Cache that keeps the most recently used values."""

    def __init__(self, capacity: int, weight_of: Callable[[_Value], int] = lambda _: 1) -> None:
        self._capacity = capacity
        self._weight_of = weight_of
        self._weight = 0
        self._values: OrderedDict[Hashable, _Value] = OrderedDict()
        self._lock = threading.Lock()
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

    def discard(self, key: Hashable) -> None:
        with self._lock:
            self._forget(key)

    def _forget(self, key: Hashable) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._weight -= self._weight_of(value)

    def _unlock(self) -> None:
        self._lock = threading.Lock()


def _unlock_all() -> None:
    # A forked child needs new locks: another thread of the parent may have held one.
    for cache in _caches:
        cache._unlock()


os.register_at_fork(after_in_child=_unlock_all)
