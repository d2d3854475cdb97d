"""Files of a job that is submitted to SLURM: ``batch.json``, and a task file for each round of the
job array.

Each element reads only its own groups of tasks. The tasks of a group are pickled together, so that
shared parts are stored once. Unpickling runs arbitrary code, so a group is loaded only if the
user's own key signed it for this place in this file.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, MissingError
from wkwdask.formats.record_paths import OWNER_NAME
from wkwdask.model.parsing import reading
from wkwdask.plans.batch_size import ArraySize
from wkwdask.store.documents import replace_records
from wkwdask.store.json_record import format_job_record, read_job_record, read_record
from wkwdask.store.leases import fenced_by
from wkwdask.store.paths import is_bucket, split
from wkwdask.store.store import store_at
from wkwdask.store.user_key import is_signed, key_path, signature, user_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.model.json_text import JsonObject

BATCH_NAME = "batch.json"
_JOB_ID = re.compile(r"[0-9]{1,18}")
_TASKS_NAME = re.compile(r"round-[0-9]{1,18}(-[0-9a-f]{8})?\.tasks")


@dataclass(frozen=True, slots=True)
class Round:
    """One job array, and the finish job that runs after it."""

    array: str
    """SLURM id of the array."""
    finish: str
    """SLURM id of the finish job."""
    tasks: int
    elements: int
    journaled: int
    """Number of tasks that the journals contained at submission."""
    time: float
    """Submission time [seconds since the epoch]."""
    file: str
    """Name of the task file."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Submitted command and its arrays."""

    arguments: tuple[str, ...]
    """Command line, without the program name."""
    folder: str
    """Working directory."""
    script: str
    """Text of the batch script, which ends by running its arguments."""
    logs: str
    size: ArraySize = field(default_factory=ArraySize)
    options: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()
    command: tuple[str, ...] = ()
    """Command line that submitted it, without the program name."""

    @property
    def planned_workers(self) -> int | None:
        """Number of concurrent tasks; None if the plan decides."""
        return None if self.size.elements is None else self.size.elements * (self.size.cpus or 1)

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, value: JsonObject) -> Batch:
        rounds = tuple(_round(entry) for entry in value["rounds"])
        lists: JsonObject = {
            name: tuple(value[name])
            for name in ("arguments", "options", "command")
            if name in value
        }
        return cls(**{**value, **lists, "size": ArraySize(**value["size"]), "rounds": rounds})


def _round(value: JsonObject) -> Round:
    parsed = Round(**value)
    if not all(
        isinstance(number, str) and _JOB_ID.fullmatch(number)
        for number in (parsed.array, parsed.finish)
    ):
        raise ValueError(
            f"expected ids of SLURM jobs, found {parsed.array!r} and {parsed.finish!r}"
        )
    if not isinstance(parsed.file, str) or not _TASKS_NAME.fullmatch(parsed.file):
        raise ValueError(f"expected the name of a task file, found {parsed.file!r}")
    if not all(
        isinstance(count, int) for count in (parsed.tasks, parsed.elements, parsed.journaled)
    ) or not math.isfinite(parsed.time):
        raise TypeError(f"expected numbers, found {value}")
    return parsed


def read_batch(root: str) -> Batch | None:
    """Read the batch record of a job; None if nothing was submitted or the job is over."""
    path = f"{root}/{BATCH_NAME}"
    record = read_job_record(path)
    if record is None:
        return None
    with reading(path, "record"):
        batch = Batch.from_json(record)
        if not batch.rounds:
            raise ValueError("expected at least one array")
        return batch


def write_batch(root: str, batch: Batch) -> None:
    """Write the batch record of a job; in a bucket, only while this process holds its lease."""
    data = format_job_record(batch.to_json())
    if is_bucket(root):
        with fenced_by(f"{root}/{OWNER_NAME}"):
            replace_records({f"{root}/{BATCH_NAME}": data})
    else:
        store_at(root).put(BATCH_NAME, data)


class HandedToSlurm(BaseException):
    """Ends this process without an error, because SLURM continues the job."""

    def __init__(self, root: str, batch: Batch, size: ArraySize) -> None:
        super().__init__(root)
        self.root = root
        self.batch = batch
        self.size = size
        self.exit_code = 0
        """Exit code of the command after the submission."""


_INDEX_SUFFIX = ".index"


def write_tasks(path: str, tasks: Iterable[Any], group: int, dumps: Callable[[Any], bytes]) -> int:
    """Write tasks in signed groups, then their index; return the number of tasks."""
    # Task file: pickled groups one after the other. Index: offset, size, number of tasks and
    # signature of each group.
    #
    #   | group 0 | group 1 | group 2 | group 3 | ...
    #       ^                   ^                      element 0 of an array of 2 reads groups 0, 2, ...  # noqa: E501
    #
    # The signature covers path, offset and number of tasks, so a signed group cannot be moved to
    # another place or job. The index is published after the task file, so it never names missing
    # groups.
    folder, name = split(path)
    store, offset, index = store_at(folder), 0, []
    remaining, key = iter(tasks), user_key(create=True)
    with store.new_file(name) as file:
        while members := list(islice(remaining, group)):
            data = dumps(members)
            file.write(data, offset)
            index.append(
                (
                    offset,
                    len(data),
                    len(members),
                    signature(key, f"{path} {offset} {len(members)}", data),
                )
            )
            offset += len(data)
    store.put(name + _INDEX_SUFFIX, json.dumps({"groups": index}).encode())
    return sum(count for _, _, count, _ in index)


class ElementTasks:
    """Tasks of one array element."""

    def __init__(self, path: str, element: int, elements: int) -> None:
        self._path = path
        self._key = user_key()
        index_path = path + _INDEX_SUFFIX
        index = read_record(index_path)
        if index is None:
            raise MissingError(f"{index_path}: not found")
        with reading(index_path, "record"):
            self._groups = [
                (_count(offset), _count(nbytes), _count(count), str(signed))
                for offset, nbytes, count, signed in index["groups"][element::elements]
            ]

    def __len__(self) -> int:
        return sum(count for _, _, count, _ in self._groups)

    def tasks(self) -> Iterator[Any]:
        """Iterate over the tasks, loading one group at a time."""
        for offset, nbytes, count, signed in self._groups:
            data = self._read(offset, nbytes)
            if not is_signed(self._key, f"{self._path} {offset} {count}", data, signed):
                raise CorruptError(
                    f"{self._path}: the {nbytes} bytes at offset {offset} are not signed with the "
                    f"key {key_path()}: they are not run"
                )
            yield from pickle.loads(data)

    def _read(self, offset: int, nbytes: int) -> bytes:
        folder, name = split(self._path)
        found, file = None, store_at(folder).open(name)
        if file is not None:
            with file:
                found = file.read([(offset, offset + nbytes)])
        if found is None:
            raise MissingError(f"{self._path}: not found")
        return found[0]


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a count, found {value!r}")
    return value
