"""Loops whose items several threads of a pool work on, and queues that put the results of such a
loop back in order.

A task with many bricks offers them to the threads of its pool that have no task. So few tasks keep
many threads busy, and no task must be cut into parts.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

T = TypeVar("T")
V = TypeVar("V")

_AHEAD_PER_THREAD = 2  # items of a loop that a thread may be ahead of the slowest one
_thread = threading.local()


class _Pool:
    """Threads that share the loops of their tasks."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.executor = ThreadPoolExecutor(
            threads, "wkwdask", lambda: setattr(_thread, "pool", self)
        )
        self.changed = threading.Condition()
        self.loops: list[_SharedLoop[Any]] = []  # that have items left, newest last

    def help(self) -> None:
        """Work on the loops of other threads until no items are left."""
        while True:
            with self.changed:
                if not self.loops:
                    return
                loop = self.loops[-1]
            loop.help()


def sharing_pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads that share the loops of their tasks."""
    return _Pool(threads).executor


def num_sharing() -> int:
    """Return the number of threads that can work on a loop of this thread."""
    pool: _Pool | None = getattr(_thread, "pool", None)
    return 1 if pool is None else pool.threads


def share(items: Iterable[T], work: Callable[[T], None]) -> None:
    """Call a function for each item, on this thread and on the threads of its pool that have no
    task; raises the first error."""
    if num_sharing() > 1:
        _SharedLoop(_thread.pool, iter(items), work).run()
        return
    for item in items:
        work(item)


class _SharedLoop(Generic[T]):
    """A loop that several threads run."""

    def __init__(self, pool: _Pool, items: Iterator[T], work: Callable[[T], None]) -> None:
        self._pool = pool
        self._items = items
        self._work = work
        self._outer: _SharedLoop[Any] | None = getattr(_thread, "loop", None)
        self._taking = threading.Lock()
        self._num_threads = 0
        self._is_over = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work on items, and then on the inner loops of threads that still work on theirs."""
        with self._pool.changed:
            self._pool.loops.append(self)
            self._pool.changed.notify_all()
        for _ in range(self._pool.threads - 1):
            # for threads that have no task; the others find nothing to do when it is their turn
            self._pool.executor.submit(self._pool.help)
        self.help()
        while (inner := self._open_inner_loop()) is not None:
            inner.help()
        if self._error is not None:
            raise self._error

    def help(self) -> None:
        """Work on items until none is left."""
        with self._pool.changed:
            self._num_threads += 1
        outer, _thread.loop = getattr(_thread, "loop", None), self
        try:
            while (taken := self._take()) is not None:
                self._work(*taken)
        except BaseException as error:
            self._error = self._error or error
        _thread.loop = outer
        with self._pool.changed:
            self._end()
            self._num_threads -= 1
            self._pool.changed.notify_all()

    def _take(self) -> tuple[T] | None:
        with self._taking:
            if not self._is_over:
                for item in self._items:
                    return (item,)
                with self._pool.changed:
                    self._end()
            return None

    def _end(self) -> None:
        self._is_over = True
        if self in self._pool.loops:
            self._pool.loops.remove(self)

    def _open_inner_loop(self) -> _SharedLoop[Any] | None:
        """Wait for a loop inside an item of this loop, or for the end of all items, and return None
        then."""
        with self._pool.changed:
            while self._num_threads:
                inner = next((loop for loop in self._pool.loops if loop._outer is self), None)
                if inner is not None:
                    return inner
                self._pool.changed.wait()
        return None


class OrderedQueue(Generic[V]):
    """Results that arrive in any order, and are passed on in the expected one, by one thread at a
    time."""

    def __init__(self, put: Callable[[V], None]) -> None:
        self._put = put
        self._most_ahead = _AHEAD_PER_THREAD * num_sharing()
        self._expected: deque[Hashable] = deque()
        self._starts: deque[Hashable] = deque()  # first key that each item in work expects
        self._arrived: dict[Hashable, V] = {}
        self._changed = threading.Condition()
        self._is_putting = False
        self._is_broken = False
        self.is_last = False
        """Whether all items are taken."""

    def expecting(self, items: Iterable[tuple[T, Sequence[Hashable]]]) -> Iterator[T]:
        """Yield items that come with the keys of their results. Wait while too many results before
        theirs are missing."""
        for item, keys in items:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_broken or len(self._starts) < self._most_ahead
                )
                self._expected.extend(keys)
                self._starts.extend(keys[:1])
            yield item
        self.is_last = True

    def add(self, key: Hashable, result: V) -> None:
        """Accept a result, and pass on all that are next."""
        with self._changed:
            self._arrived[key] = result
            if self._is_putting:  # the thread that does so takes this one, too
                return
            self._is_putting = True
        while (following := self._next()) is not None:
            self._put(*following)

    def _next(self) -> tuple[V] | None:
        with self._changed:
            if not self._expected or self._expected[0] not in self._arrived:
                self._is_putting = False
                return None
            key = self._expected.popleft()
            if self._starts and self._starts[0] == key:
                self._starts.popleft()
                self._changed.notify_all()
            return (self._arrived.pop(key),)

    def give_up(self) -> None:
        """Stop waiting for missing results after an error."""
        with self._changed:
            self._is_broken = True
            self._changed.notify_all()
