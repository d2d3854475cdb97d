"""What a job's folder says of the job arrays that do its tasks: the file ``batch.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from wkwdask.plans.batch_size import ArraySize
from wkwdask.storage.local import publish_bytes

BATCH_NAME = "batch.json"


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
        rounds = tuple(Round(**one) for one in value["rounds"])
        lists = {name: tuple(value[name]) for name in ("arguments", "options")}
        return cls(**{**value, **lists, "size": ArraySize(**value["size"]), "rounds": rounds})


def read_batch(root: str) -> Batch | None:
    """Read what was submitted for a job, None where it is over or nothing was."""
    try:
        with open(f"{root}/{BATCH_NAME}", "rb") as file:
            return Batch.from_json(json.load(file))
    except FileNotFoundError:
        return None


def write_batch(root: str, batch: Batch) -> None:
    """Write what was submitted for a job; the file appears whole."""
    publish_bytes(f"{root}/{BATCH_NAME}", json.dumps(batch.to_json()).encode())
