"""Interface between the repair command and the formats: options, actions, unrepaired faults, and
how a format repairs documents."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from wkwdask.model.faults import NOTE, Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wkwdask.model.faults import Findings

(
    REMOVE,
    FINISH,
    WRITE_HEADER,
    CORRECT_HEADER,
    CORRECT_INDEX,
    CUT,
    REBUILD,
    SALVAGE,
    QUARANTINE,
    EDIT_JSON,
    ACCEPT,
) = (
    "remove",
    "finish",
    "write header.wkw",
    "correct header",
    "correct index",
    "cut off",
    "rebuild",
    "salvage",
    "quarantine",
    "edit JSON",
    "accept",
)


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Repairs that a user allows beyond those that cannot lose data."""

    salvage: bool = False
    """Replace broken blocks of files that cannot be rebuilt by zeros; old files go to the
    quarantine."""
    quarantine: bool = False
    """Move files that cannot be repaired to the quarantine; their voxels then read as zeros."""
    drop_missing: bool = False
    """Remove missing mags from the JSON."""
    grow_box: bool = False
    """Extend bounding boxes in the JSON to all nonzero voxels."""
    rebuild_differing: bool = False
    """Rebuild files of coarser mags that differ from the finer mag; old files go to the
    quarantine."""
    method: str | None = None
    """Downsampling method of coarser mags whose provenance does not state it."""
    voxel_size_nm: tuple[float, float, float] | None = None
    """Voxel size for a new JSON."""
    older_than_seconds: float = 3600.0
    """Minimum age of temporary files of other software that are removed."""
    remove_copies: bool = False
    """Remove half-built mags of other software if the layer has everything that they contain."""
    allow_external: bool = False
    """Also repair files outside the dataset."""
    accept_changes: bool = False
    """Accept files that other software removed or wrote: the record of the files takes them
    over."""


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a repair."""

    verb: str
    """One of ``REMOVE``, ``FINISH``, ..."""
    path: str
    """File or folder that it changes."""
    why: str
    """Faults of that file or folder."""
    how: str = ""
    """Method or consequence, for people."""

    def __str__(self) -> str:
        return f"{self.verb}: {self.path}: {self.why}" + (f" ({self.how})" if self.how else "")

    def to_json(self) -> dict[str, Any]:
        return {"action": self.verb, "path": self.path, "why": self.why, "how": self.how}


@dataclass(frozen=True, slots=True)
class Unrepaired:
    """Fault that a repair does not remove."""

    fault: Fault
    reason: str
    """Reason, and the user's remedy."""

    def __str__(self) -> str:
        return f"not repaired: {self.fault}; {self.reason}"


def without_notes(faults: Iterable[Fault]) -> list[Fault]:
    """Return the faults that are errors or warnings."""
    return [fault for fault in faults if fault.severity != NOTE]


def summarize_faults(faults: Iterable[Fault]) -> str:
    """Format the kinds and places of the first faults of a file."""
    return "; ".join(
        dict.fromkeys(
            f"{fault.kind}{f' ({fault.place})' if fault.place else ''}"
            for fault in islice(faults, 5)
        )
    )


class DocumentRepair:
    """Repair of the documents of a scope; this base class repairs none."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.left: list[Unrepaired] = []

    def plan(self, faults: Sequence[Fault]) -> set[str]:
        """Plan actions for faults of the documents; returns the paths of all faults that were
        handled."""
        del faults
        return set()

    def run(self) -> None:
        """Perform the planned actions."""


def repair_no_documents(
    scope: object, findings: Mapping[str, Findings], options: RepairOptions
) -> DocumentRepair:
    """Return the repair of the documents of a format that repairs none."""
    del scope, findings, options
    return DocumentRepair()
