"""What a job's folder says of the job arrays that do its tasks: the file ``batch.json``."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from wkwdask.model.parsing import reading
from wkwdask.plans.batch_size import ArraySize
from wkwdask.store.json_record import format_job_record, read_job_record
from wkwdask.store.new_files import publish_bytes

BATCH_NAME = "batch.json"
_JOB_ID = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Round:
    """One array and the job that comes after it."""

    array: str
    """Id of the array."""
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
    """What was submitted so far."""

    @property
    def planned_workers(self) -> int | None:
        """Tasks that will run at once, None where the plan decides."""
        return None if self.size.elements is None else self.size.elements * (self.size.cpus or 1)

    def to_json(self) -> dict[str, Any]:
        """Give plain values for ``json.dumps``."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Batch:
        """Read what :meth:`to_json` gave."""
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


class HandedOver(BaseException):
    """Not an error: the batch system goes on with the job, and nothing is left to do for this process."""

    def __init__(self, root: str, batch: Batch, size: ArraySize) -> None:
        super().__init__(root)
        self.root = root
        self.batch = batch
        self.size = size
