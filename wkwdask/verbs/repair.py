"""What a repair does and says."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from wkwdask.model.faults import NOTE, Fault
from wkwdask.runs.report import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

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
class Left:
    """A fault that stays."""

    fault: Fault
    """The fault."""
    reason: str
    """Why, and what can be done."""

    def __str__(self) -> str:
        return f"left as it is: {self.fault}; {self.reason}"


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did, or would do."""

    path: str
    """What was repaired."""
    is_dry_run: bool
    """Whether nothing was changed."""
    actions: tuple[Action, ...]
    """What was done, in this order."""
    left: tuple[Left, ...]
    """Errors and warnings that remain."""

    @property
    def is_sound(self) -> bool:
        """Whether no error remains."""
        return not any(left.fault.severity == "error" for left in self.left)

    def __str__(self) -> str:
        would = "would " if self.is_dry_run else ""
        lines = [f"{would}{action}" for action in self.actions] + [str(left) for left in self.left]
        done = "nothing was changed (dry run)" if self.is_dry_run else counted(len(self.actions), "action") if self.actions else "nothing to do"
        errors = sum(left.fault.severity == "error" for left in self.left)
        state = f"{counted(errors, 'error')} and {counted(len(self.left) - errors, 'warning')} remain" if self.left else "no errors or warnings remain"
        return "\n".join([*lines, f"{done}; {state}"])

    def to_json(self) -> dict[str, Any]:
        """Give plain values for ``json.dumps``."""
        return {
            "path": self.path, "dry_run": self.is_dry_run, "sound": self.is_sound, "actions": [action.to_json() for action in self.actions],
            "left": [{**left.fault.to_json(), "reason": left.reason} for left in self.left],
        }  # fmt: skip


def matter(faults: Iterable[Fault]) -> list[Fault]:
    """Leave out notes."""
    return [fault for fault in faults if fault.severity != NOTE]


def why(faults: Iterable[Fault]) -> str:
    """Name what is wrong with a file."""
    return "; ".join(dict.fromkeys(f"{fault.kind}{f' ({fault.place})' if fault.place else ''}" for fault in islice(faults, 5)))
