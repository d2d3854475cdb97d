"""What can be done about faults, for people and between the parts of a repair; and how formats mend what is theirs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from wkwdask.model.faults import NOTE, Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wkwdask.geometry.mag import Vec3

REMOVE, FINISH, HEADER, REWRITE, CUT, REBUILD, SALVAGE, QUARANTINE, JSON = (
    "remove", "finish", "write header.wkw", "mend header", "cut off", "rebuild", "salvage", "quarantine", "edit JSON",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """What a user lets a repair do beyond what cannot lose anything."""

    salvage: bool = False
    """Broken blocks of files that cannot be rebuilt become zeros; the old files are set aside."""
    quarantine: bool = False
    """Files that cannot be mended are set aside: their place reads as zeros."""
    drop_missing: bool = False
    """The JSON loses mags that are not there."""
    grow_box: bool = False
    """The JSON's boxes grow around all voxels that are not zero."""
    rebuild_differing: bool = False
    """Files of coarser mags that differ from the finer one are rebuilt; the old ones are set aside."""
    method: str | None = None
    """How coarser mags were made that do not say so."""
    voxel_size_nm: tuple[float, float, float] | None = None
    """For a new JSON."""
    older_than_seconds: float = 3600.0
    """How old temporary files of other software must be before they are removed."""
    remove_copies: bool = False
    """Mags that other software was building are removed, where the layer has all that they hold."""
    allow_external: bool = False
    """What lies outside of the dataset is mended too."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a repair does."""

    verb: str
    """What."""
    path: str
    """With which file or folder."""
    why: str
    """What is wrong with it."""
    how: str = ""
    """What a user should know about it."""

    def __str__(self) -> str:
        return f"{self.verb}: {self.path}: {self.why}" + (f" ({self.how})" if self.how else "")

    def to_json(self) -> dict[str, Any]:
        """Give plain values for ``json.dumps``."""
        return {"action": self.verb, "path": self.path, "why": self.why, "how": self.how}


@dataclass(frozen=True, slots=True)
class Unrepaired:
    """A fault that stays."""

    fault: Fault
    """The fault."""
    reason: str
    """Why, and what can be done."""

    def __str__(self) -> str:
        return f"left as it is: {self.fault}; {self.reason}"


def without_notes(faults: Iterable[Fault]) -> list[Fault]:
    """Leave out notes."""
    return [fault for fault in faults if fault.severity != NOTE]


def summarize_faults(faults: Iterable[Fault]) -> str:
    """Name what is wrong with a file."""
    return "; ".join(dict.fromkeys(f"{fault.kind}{f' ({fault.place})' if fault.place else ''}" for fault in islice(faults, 5)))


class LevelRepair(Protocol):
    """How broken shards of a level are mended with what is sound in them; picklable."""

    @property
    def folder(self) -> str:
        """The level."""

    @property
    def num_chunks(self) -> int:
        """Chunks of a shard."""

    def probe(self, shard: Vec3, kinds: frozenset[str]) -> tuple[Any, int]:
        """Find out what can be saved, given what is wrong: what the shard is to say of itself so that it is whole or None, and how many chunks are sound."""

    def mend(self, shard: Vec3, head: Any, why: str, spare_folder: str | None, *, salvage: bool) -> tuple[int, int]:
        """Write a shard anew from its sound chunks, with the others from the level in another folder; gives its size and time."""


class DocumentRepair:
    """What is to be changed in the documents of what was checked; this is for formats of which none is mended."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.left: list[Unrepaired] = []

    def plan(self, faults: Sequence[Fault]) -> set[str]:
        """Decide what is done about the faults that are the documents'; gives the paths of all that were decided about."""
        del faults
        return set()

    def run(self) -> None:
        """Do what was planned."""
