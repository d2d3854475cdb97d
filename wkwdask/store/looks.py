"""Looks: spans of one call in which the documents and listings of buckets are asked for once.

A call needs the same document or listing in many places, and each request to a bucket is a round
trip. What it has decided by a look is decided again under its locks and before its commit: there a
new look begins. Outside of calls nothing is known but what one opening has read a moment ago.
"""

from __future__ import annotations

import contextlib
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_began: ContextVar[float | None] = ContextVar("wkwdask_look", default=None)


def look_began() -> float | None:
    """Return when the look of this call began, by the monotonic clock [s]; None outside of
    calls."""
    return _began.get()


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """Begin the look of a call, unless this is a part of another one."""
    token = _began.set(time.monotonic() if _began.get() is None else _began.get())
    try:
        yield
    finally:
        _began.reset(token)


def look_again() -> None:
    """Begin a new look: what was answered before counts no more."""
    if _began.get() is not None:
        _began.set(time.monotonic())
