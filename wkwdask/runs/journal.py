"""Journal of a job: one JSON line for each finished task, in the job folder.

Each process that drives the job appends to its own file; all files together are the journal. A line
cut short by a crash is ignored. A resumed job skips the tasks in the journal whose output still
exists.
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from wkwdask.errors import CorruptError
from wkwdask.model.parsing import reading
from wkwdask.model.writing.receipts import Receipt
from wkwdask.runs.job import Job, Result
from wkwdask.runs.space import SizeLimit, size_limit
from wkwdask.store.objects.line_objects import LineObjects
from wkwdask.store.store import folders_of, numbered, store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wkwdask.model.store import Output
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.runs.job import Task


_PREFIX = "journal-"
SUFFIX = ".jsonl"
_FLUSH_SECONDS = 2.0
MAX_NUMBER = 1 << 62
"""Limit of plausible numbers."""


class Journal:
    """Append-only file. Each line is written at once, and flushed to disk within seconds while
    lines keep coming."""

    def __init__(self, folder: str, number: int | None = None) -> None:
        self._output = open_next(folder, _PREFIX, number)
        folders = store_at(folder).folders
        if folders is not None:
            # the name of the journal must survive a power failure before any line counts
            folders.fsync(folder)
        self._flushed = time.monotonic()

    def append(self, entry: dict[str, Any]) -> None:
        # A line lost in a crash only means that its task runs again, so not each line is flushed.
        data = memoryview(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        while data:
            data = data[self._output.append(data) :]
        now = time.monotonic()
        if now - self._flushed >= _FLUSH_SECONDS:
            self._output.sync()
            self._flushed = now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._output.sync()
        self._output.close()


def open_next(
    folder: str, prefix: str, number: int | None = None, step: Callable[[], int] = lambda: 1
) -> Output:
    """Create a file of lines with the next free number. After a collision with another process, the
    number increases by ``step``."""
    store = store_at(folder)

    def free_number() -> int:
        return max((n for n, _ in numbered(store, prefix, SUFFIX)), default=-1) + 1

    if store.can.compares:
        return LineObjects(store, lambda n: f"{prefix}{n}{SUFFIX}", number or 0, free_number, step)
    number = free_number() if number is None else number
    while True:
        try:
            return folders_of(folder).create(f"{folder}/{prefix}{number}{SUFFIX}", append=True)
        except FileExistsError:
            number += step()


def read_journal(folder: str) -> Iterator[bytes]:
    """Iterate over the lines of all journal files, oldest file first."""
    store = store_at(folder)
    for _, name in sorted(numbered(store, _PREFIX, SUFFIX)):
        with store.open_stream(name) as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line


def has_journal(folder: str) -> bool:
    try:
        return next(read_journal(folder), None) is not None
    except FileNotFoundError:  # the job has ended meanwhile, and its folder is being removed
        return False


class ResumableJob(Job, Protocol):
    """Job that can check whether the output of an earlier start still exists."""

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Check that the output of a result still exists, or the output that later tasks built from
        it."""


@dataclass(slots=True)
class JournaledJob:
    """Job wrapper that writes the journal and skips finished tasks."""

    job: ResumableJob
    append: Callable[[dict[str, Any]], None]
    lines: InitVar[Iterable[bytes]]
    """Journal of earlier starts."""
    targets: Sequence[TargetArray]
    folder: str | None = None
    nbytes_in: int = 0
    """Voxel bytes to be read."""
    task_nbytes: int = 0
    """Memory of one task [bytes]."""
    num_known: int = field(default=0, init=False)
    """Number of tasks that an earlier start finished."""
    _limit: SizeLimit | None = field(default_factory=size_limit, init=False)
    _lines: dict[str, bytes] = field(init=False)

    def __post_init__(self, lines: Iterable[bytes]) -> None:
        # compressed to a third, since a job may have a million tasks
        self._lines = {key: zlib.compress(line, 1) for key, _, line in _keyed(lines)}

    @property
    def num_tasks(self) -> int:
        return self.job.num_tasks - self.num_known

    def tasks(self) -> Iterator[Task]:
        return self._unknown(self.job.tasks())

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        self.append(entry_of(task.key, result))
        return self._unknown(self._passed_on(task, result))

    def _unknown(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield the tasks that remain, feeding known results to the job."""
        for task in tasks:
            result = self._known(task.key)
            if result is None or not self.job.holds(task, result, self._known):
                yield task
            else:
                self.num_known += 1
                yield from self._unknown(self._passed_on(task, result))

    def _passed_on(self, task: Task, result: Result) -> Iterable[Task]:
        if self._limit is not None:
            receipts = (receipt for _, receipt in result.receipts if receipt.part is None)
            self._limit.add(sum(receipt.nbytes for receipt in receipts))
        return self.job.receive(task, result)

    def _known(self, key: str) -> Result | None:
        line = self._lines.get(key)
        return None if line is None else _result_of(zlib.decompress(line), self.targets)


def entry_of(key: str, result: Result) -> dict[str, Any]:
    """Return the journal entry of a result, with its time, duration and bytes read."""
    entry: dict[str, Any] = {
        "task": key,
        "sources": result.sources,
        "receipts": [(n, receipt.to_json()) for n, receipt in result.receipts],
    }
    entry["time"] = round(time.time(), 1)
    if result.seconds:
        entry["seconds"] = round(result.seconds, 3)
    if result.nbytes_in:
        entry["nbytes_in"] = result.nbytes_in
    return entry


def keys_of(lines: Iterable[bytes]) -> Iterator[str]:
    return (key for key, _, _ in _keyed(lines))


def receipts_of(
    lines: Iterable[bytes], targets: Sequence[TargetArray]
) -> Iterator[tuple[int, Receipt]]:
    """Iterate over all receipts in a journal, with the index of their target."""
    for _, _, line in _keyed(lines):
        result = _result_of(line, targets)
        yield from () if result is None else result.receipts


def _result_of(line: bytes, targets: Sequence[TargetArray]) -> Result | None:
    """Parse the result in a line. None if it is not valid; the task then runs again."""
    try:
        with reading("a journal", "record"):
            entry = json.loads(line)
            if not isinstance(entry["sources"], int):
                raise TypeError("sources")
            return Result(
                tuple((n, _receipt(targets[n], values)) for n, values in entry["receipts"]),
                entry["sources"],
            )
    except CorruptError:
        return None


def _receipt(target: TargetArray, values: dict[str, Any]) -> Receipt:
    receipt = Receipt.from_json(values, target.box.mag)
    return replace(receipt, path=target.files.path_of(receipt)) if receipt.nbytes else receipt


def entries_of(lines: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    """Return the last entry of each task."""
    return {key: entry for key, entry, _ in _keyed(lines)}


def finished_work(folder: str) -> tuple[int, int]:
    """Return the number of finished tasks of a job, and the bytes that they stored."""
    entries = entries_of(read_journal(folder))
    return len(entries), sum(map(stored_nbytes, entries.values()))


def stored_nbytes(entry: dict[str, Any]) -> int:
    """Return the bytes of the whole shards in an entry; 0 if it is not plausible."""
    try:
        sizes = [
            receipt.get("nbytes")
            for _, receipt in entry.get("receipts", ())
            if receipt.get("part") is None
        ]
    except (AttributeError, TypeError, ValueError):
        return 0
    return sum(
        int(size) for size in sizes if isinstance(size, (int, float)) and abs(size) < MAX_NUMBER
    )


def _keyed(lines: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """Parse lines into (task key, entry, line), skipping lines damaged by a crash."""
    for line in lines:
        try:
            entry = json.loads(line)
            key = entry["task"]
        except (ValueError, TypeError, LookupError, RecursionError):
            continue
        if isinstance(key, str):
            yield key, entry, line
