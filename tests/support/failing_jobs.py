"""Jobs and functions of chunks that fail as a test asks; worker processes import this module."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass

from wkwdask.errors import CorruptError
from wkwdask.runs.job import Result
from wkwdask.runs.journal import JournaledJob, read_journal


class OwnError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, first, second):
        super().__init__(first)
        self.second = second


def fail(kind, number, tried):
    """Fail as this kind of task does at an attempt."""
    if kind == "corrupt":
        raise CorruptError(f"file {number}: broken")
    if kind == "own":
        raise OwnError(f"own {number}", 2)
    if kind == "stale" or (kind == "stale once" and tried == 1):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), f"file {number}")
    if kind == "cut off twice" and tried <= 2:
        raise ConnectionResetError(errno.ECONNRESET, "reset")
    if kind == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"file {number}")
    if kind == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Work:
    """One task."""

    folder: str
    """Each attempt leaves a byte in the file of the task."""
    number: int
    """Which task."""
    kind: str
    """How it fails."""
    group: str = "work"
    """``work`` for a first task, ``pair`` for one that follows."""

    @property
    def spec(self):
        return self

    @property
    def name(self):
        return f"{self.group} {self.number}"

    @property
    def key(self):
        return f"{self.group} {self.number}"

    def run(self):
        path = f"{self.folder}/{self.key}"
        with open(path, "ab", buffering=0) as file:
            file.write(b".")
        fail(self.kind, self.number, os.stat(path).st_size)
        return Result((), nbytes_in=1 << 20)


class PairsJob:
    """Tasks, and one more for each two of them after both are done."""

    def __init__(self, folder, kinds):
        self.folder, self.kinds = str(folder), kinds
        self.done = set()
        self.num_tasks = len(kinds) + len(kinds) // 2

    def tasks(self):
        return (Work(self.folder, number, kind) for number, kind in enumerate(self.kinds))

    def receive(self, task, result):
        assert task.key not in self.done
        self.done.add(task.key)
        other = task.number ^ 1
        if task.group == "work" and other < len(self.kinds) and f"work {other}" in self.done:
            return [Work(self.folder, task.number // 2, "fine", "pair")]
        return []

    def holds(self, task, result, known):
        return True

    def journaled(self, journal, folder):
        return JournaledJob(
            self, journal.append, list(read_journal(folder)), (), folder=str(folder)
        )


def attempts(folder):
    """Count the attempts of each task."""
    return {name: os.stat(f"{folder}/{name}").st_size for name in os.listdir(folder)}


def fail_behind(block, limit, block_info=None):
    if limit is not None and block_info[0]["array-location"][2][0] >= limit:
        raise OverflowError("no")
    return block


def fail_first(chunk, folder, fails, block_id=None):
    """Raise for the first chunk, and leave a byte for each other one."""
    if not any(block_id) and fails:
        raise ZeroDivisionError("the first chunk")
    with open(f"{folder}/{block_id}", "ab") as file:
        file.write(b".")
    return chunk
