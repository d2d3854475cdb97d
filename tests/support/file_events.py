"""Actions between two steps of a job. Steps are file operations, counted by audit events of the
interpreter."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

_EVENTS = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.symlink",
    "os.link",
    "os.remove",
    "os.rmdir",
    "os.scandir",
    "os.listdir",
}
_active = []


def _hook(event, arguments):
    if _active and event in _EVENTS:
        _active[-1].take(event, arguments)


# it stays for the life of the process, and costs nothing outside of `counting`
sys.addaudithook(_hook)


class Counter:
    """Counts the events of one thread that name a path in a folder, and acts before one of them."""

    def __init__(self, folder, number, action, events):
        self.folder, self.number, self.action, self.events = (
            os.fspath(folder),
            number,
            action,
            events,
        )
        self.thread = threading.get_ident()
        self.count = 0

    def take(self, event, arguments):
        named = any(
            isinstance(one, (str, bytes)) and os.fsdecode(one).startswith(self.folder)
            for one in arguments
        )
        if event in self.events and named and threading.get_ident() == self.thread:
            self.count += 1
            if self.count == self.number:
                self.action()


@contextlib.contextmanager
def counting(folder, number=0, action=None, events=_EVENTS):
    """Act before the event of that number, from 1 on, in this thread; returns the counter."""
    counter = Counter(folder, number, action, events)
    _active.append(counter)
    try:
        yield counter
    finally:
        _active.remove(counter)


class Meanwhile:
    """Run a function in another thread until it ends or waits for a lock that this one holds."""

    def __init__(self, function, seconds=0.2):
        self.function, self.seconds = function, seconds
        self.result = self.error = None
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.result = self.function()
        except BaseException as error:
            self.error = error

    def __call__(self):
        self.thread.start()
        self.thread.join(self.seconds)

    def end(self):
        """Wait for the end, where it has begun."""
        if self.thread.ident is not None:
            self.thread.join(60)
            assert not self.thread.is_alive(), "the two wait for each other"
