"""Functions in forks of this process, which has imported everything and has one thread."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Ending:
    """How a child ended."""

    value: Any = None
    """What its function returned."""
    error: str = ""
    """Its error with the last frames, or how it was killed; empty if there was none."""
    code: int = 0
    """Exit code, negative for a signal."""


class Child:
    """A fork that runs a function.

    Parameters
    ----------
    function : callable
        Returns what can be pickled.
    limit_seconds : float
        After this time it is killed.
    """

    def __init__(self, function: Callable[[], Any], limit_seconds: float) -> None:
        self._reader, writer = os.pipe()
        self._limit_seconds, self._end = limit_seconds, time.monotonic() + limit_seconds
        gc.freeze()  # a collection in the child would copy the memory of this process
        if (pid := os.fork()) == 0:
            os.close(self._reader)
            with contextlib.suppress(BaseException):
                _write(writer, pickle.dumps(_ending_of(function)))
            os._exit(0)
        os.close(writer)
        self._pid, self._data = pid, b""
        self._ending: Ending | None = None

    def fileno(self) -> int:
        """Return the end of the pipe that the child writes to."""
        return self._reader

    def kill(self) -> None:
        """Kill the child."""
        os.kill(self._pid, signal.SIGKILL)

    def wake(self) -> None:
        """Let the child go on that was stopped."""
        os.kill(self._pid, signal.SIGCONT)

    def is_stopped(self) -> bool:
        """Check whether a signal has stopped the child since the last time."""
        options = os.WSTOPPED | os.WNOHANG
        try:
            return os.waitid(os.P_PID, self._pid, options) is not None
        except ChildProcessError:  # it has ended just now
            return False

    def poll(self, seconds: float = 0.0) -> Any:
        """Wait for some output; return how the child ended, None while it runs."""
        if self._ending is None:
            late = time.monotonic() > self._end
            if late:
                self.kill()
            elif not select.select([self], [], [], seconds)[0]:
                return None
            elif piece := os.read(self._reader, 1 << 20):
                self._data += piece
                return None
            self._ending = self._reaped(late=late)
        return self._ending

    def _reaped(self, *, late: bool) -> Ending:
        os.close(self._reader)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if late:
            return Ending(error=f"did not end within {self._limit_seconds:.0f} s")
        if self._data and code == 0:
            return pickle.loads(self._data)
        return Ending(error=f"exit code {code}", code=code)

    def ended(self) -> Any:
        """Wait for the end; return what :meth:`poll` does."""
        while (ending := self.poll(1.0)) is None:
            pass
        return ending


def _ending_of(function: Callable[[], Any]) -> Ending:
    try:
        return Ending(function())
    except BaseException as error:
        return Ending(error="".join(traceback.format_exception(error)[-6:]))


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
