"""Calls of a user's function in one process: set-up, and calls at the same time.

The result of a set-up, such as a network on a GPU, stays in the process that made it. It is never
pickled, and a forked process sets up again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.runs.job import mark_fatal

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Terminated(SystemExit):
    """SIGTERM as an exception. It ends the process, also inside of a function."""


def call_function(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a function of the user. Raise RuntimeError if it exits, which would end the job without
    a message, as if it had succeeded."""
    try:
        return function(*arguments, **keywords)
    except Terminated:
        raise
    except SystemExit as stop:
        code = "" if stop.code is None else repr(stop.code)
        error = RuntimeError(f"called sys.exit({code}); raise an error instead")
        raise error.with_traceback(stop.__traceback__) from None


class _Process:
    """Set-up of one function in this process."""

    def __init__(self, concurrency: int | None) -> None:
        self.lock = threading.Lock()
        self.arguments: tuple[Any, ...] | None = None
        self.calls = threading.Semaphore(concurrency or 1)


_processes: dict[str, _Process] = {}
_lock = threading.Lock()


def _forget_all() -> None:
    """Forget the set-ups of the process that was forked."""
    global _lock
    _processes.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_all)


@dataclass(frozen=True, slots=True)
class FunctionCalls:
    """Rules for the calls of a function. Picklable: tasks carry it."""

    setup: Callable[[], Any] | None = None
    """Called once in each process; its result is the first argument of the function."""
    concurrency: int | None = None
    """Calls at the same time in one process; None for any number."""
    key: str = field(default_factory=lambda: secrets.token_hex(8))
    """Name of this job's set-up in every process."""

    def _process(self) -> _Process:
        with _lock:
            return _processes.setdefault(self.key, _Process(self.concurrency))

    def prepare(self) -> tuple[Any, ...]:
        """Set up once in this process; return the first arguments of the function."""
        if self.setup is None:
            return ()
        process = self._process()
        with process.lock:
            if process.arguments is None:
                try:
                    process.arguments = (call_function(self.setup),)
                except Exception as error:
                    mark_fatal(error)
                    error.add_note(f"in the set-up on {socket.gethostname()}")
                    raise
            return process.arguments

    def one_of_few(self) -> AbstractContextManager[Any]:
        """Return a context that waits until a further call is allowed."""
        return contextlib.nullcontext() if self.concurrency is None else self._process().calls

    @property
    def is_held(self) -> bool:
        """Whether processes keep something of the job."""
        return self.setup is not None or self.concurrency is not None


def release(key: str) -> None:
    """Drop the set-up of a job in this process, and with it the memory of a device."""
    with _lock:
        _processes.pop(key, None)
