"""The job arrays that do the tasks of a job: ``batch.json``, and the tasks of one round in one file.

An element reads its own groups alone. Tasks of a group are pickled together, so that what they have in common is stored once. Reading a pickle runs
what it says: a group is only read where it is signed by the user that reads it, for just this place in this round of this job.
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
from wkwdask.model.parsing import reading
from wkwdask.plans.batch_size import ArraySize
from wkwdask.store import files
from wkwdask.store.json_record import format_job_record, read_job_record, read_record
from wkwdask.store.new_files import NewFile, publish_bytes
from wkwdask.store.user_key import is_signed, key_path, signature, user_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BATCH_NAME = "batch.json"
_JOB_ID = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Round:
    """One array and the job that comes after it."""

    array: str
    finish: str
    """Id of the dependent job."""
    tasks: int
    """Tasks that were handed out."""
    elements: int
    """Elements of the array."""
    journaled: int
    """Tasks that the journals told of before."""
    time: float
    """When it was submitted [seconds since the epoch]."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is submitted, and how."""

    arguments: tuple[str, ...]
    """The command, without the name of the program."""
    folder: str
    """Where it was given."""
    script: str
    """Text of the batch script, which ends by running its arguments."""
    logs: str
    """Folder of what the jobs print."""
    size: ArraySize = field(default_factory=ArraySize)
    """What the user asked for."""
    options: tuple[str, ...] = ()
    """Further options of ``sbatch``."""
    rounds: tuple[Round, ...] = ()

    @property
    def planned_workers(self) -> int | None:
        """Tasks that will run at once, None where the plan decides."""
        return None if self.size.elements is None else self.size.elements * (self.size.cpus or 1)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Batch:
        rounds = tuple(_round(one) for one in value["rounds"])
        lists = {name: tuple(value[name]) for name in ("arguments", "options")}
        return cls(**{**value, **lists, "size": ArraySize(**value["size"]), "rounds": rounds})


def _round(value: dict[str, Any]) -> Round:
    one = Round(**value)
    if not all(isinstance(number, str) and _JOB_ID.fullmatch(number) for number in (one.array, one.finish)):
        raise ValueError(f"expected ids of SLURM jobs, found {one.array!r} and {one.finish!r}")
    if not all(isinstance(count, int) for count in (one.tasks, one.elements, one.journaled)) or not math.isfinite(one.time):
        raise TypeError(f"expected numbers, found {value}")
    return one


def read_batch(root: str) -> Batch | None:
    """Read what was submitted for a job, None where it is over or nothing was."""
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
    """Write what was submitted for a job; the file appears whole."""
    publish_bytes(f"{root}/{BATCH_NAME}", format_job_record(batch.to_json()))


class HandedToSlurm(BaseException):
    """Not an error: the batch system goes on with the job, and nothing is left to do for this process."""

    def __init__(self, root: str, batch: Batch, size: ArraySize) -> None:
        super().__init__(root)
        self.root = root
        self.batch = batch
        self.size = size


_INDEX_SUFFIX = ".index"


def write_tasks(path: str, tasks: Iterable[Any], group: int, dumps: Callable[[Any], bytes]) -> int:
    """Write tasks down; the file appears whole, and its index after it."""
    offset, index = 0, []
    waiting, key = iter(tasks), user_key(make=True)
    with NewFile(path) as file:
        while members := list(islice(waiting, group)):
            data = dumps(members)
            file.write(data, offset)
            index.append((offset, len(data), len(members), signature(key, f"{path} {offset} {len(members)}", data)))
            offset += len(data)
    publish_bytes(path + _INDEX_SUFFIX, json.dumps({"groups": index}).encode())
    return sum(count for _, _, count, _ in index)


class ElementTasks:
    """What one element of an array is to do."""

    def __init__(self, path: str, element: int, elements: int) -> None:
        self._path = path
        self._key = user_key()
        index_path = path + _INDEX_SUFFIX
        index = read_record(index_path)
        if index is None:
            raise MissingError(f"{index_path}: not found")
        with reading(index_path, "record"):
            self._groups = [
                (_count(offset), _count(nbytes), _count(count), str(signed)) for offset, nbytes, count, signed in index["groups"][element::elements]
            ]

    def __len__(self) -> int:
        return sum(count for _, _, count, _ in self._groups)

    def tasks(self) -> Iterator[Any]:
        """Go through the tasks, a group at a time."""
        for offset, nbytes, count, signed in self._groups:
            with files.open_stream(self._path) as file:
                file.seek(offset)
                data = file.read(nbytes)
            if len(data) != nbytes:
                raise CorruptError(f"{self._path}: {len(data)} bytes at offset {offset}, expected {nbytes}")
            if not is_signed(self._key, f"{self._path} {offset} {count}", data, signed):
                raise CorruptError(f"{self._path}: the {nbytes} bytes at offset {offset} are not signed with the key {key_path()}: they are not run")
            yield from pickle.loads(data)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a count, found {value!r}")
    return value
