"""SIGTERM as an exception, so that clean-up code runs."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wkwdask.verbs.function_calls import Terminated

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise Terminated on SIGTERM inside this block, so that its clean-up runs, for example to
    cancel queued SLURM jobs."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def end(number: int, _frame: Any) -> None:
        raise Terminated(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
