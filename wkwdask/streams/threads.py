"""Divide work among threads: codecs and compiled loops release the GIL."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_Item = TypeVar("_Item")

_PARTS_PER_THREAD = 4
_MIN_PART_NBYTES = 1 << 20


def num_parts(threads: int, nbytes: int) -> int:
    """Return the number of parts in which threads decode so many bytes: several for each thread, so
    that all finish at about the same time."""
    return (
        1 if threads == 1 else max(1, min(_PARTS_PER_THREAD * threads, nbytes // _MIN_PART_NBYTES))
    )


def for_each(function: Callable[[_Item], object], items: Sequence[_Item], threads: int) -> None:
    """Call a function for each item on this thread and on ``threads - 1`` others, which end before
    this returns.

    Items are started in order. After an error no more are started, and of several errors that of
    the first item is raised, as in a loop.
    """
    pending, errors = deque(enumerate(items)), {}  # its methods are atomic
    interrupted = -1

    def work() -> None:
        while True:
            try:
                number, item = pending.popleft()
            except IndexError:
                return
            try:
                function(item)
            except BaseException as error:
                errors[number if isinstance(error, Exception) else interrupted] = error
                pending.clear()

    others = [
        threading.Thread(target=work, name="wkwdask-read")
        for _ in range(min(threads, len(items)) - 1)
    ]
    try:
        for thread in others:
            with suppress(RuntimeError):  # the system grants no more threads
                thread.start()
        work()
    except BaseException as error:  # an interrupt between two items
        errors[interrupted] = error
    pending.clear()
    for thread in others:
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt as error:
                # wait all the same: the thread writes into memory of the caller
                errors[interrupted] = error
    if errors:
        try:
            raise errors[min(errors)]
        finally:
            # tracebacks refer to this frame, so they would keep the caller's array alive
            errors.clear()
