"""Threads that do not keep an interrupted process alive."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.model.store import Item, Result


class DaemonThreads:
    """Daemon threads that make calls: those of an executor would keep an interrupted process alive
    until each server has answered."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most, self._num, self._lock = name, most, 0, threading.Lock()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, function: Callable[[Item], Result], item: Item) -> Future[Result]:
        future: Future[Result] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = function(item)
                except BaseException as error:  # raised where the result is asked for
                    future.set_exception(error)
                else:
                    future.set_result(result)

        self._calls.put(call)
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if self._num < self._most:
                    self._num += 1
                    threading.Thread(
                        target=self._run, name=f"{self._name}_{self._num}", daemon=True
                    ).start()
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # else an idle thread keeps what it read
            self._idle.release()
        self.close()  # for the other threads

    def close(self) -> None:
        """End the threads after the calls that wait. Takes no lock, so that a finalizer may call
        it."""
        self._calls.put(None)
