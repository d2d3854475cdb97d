"""What came of the trials of a campaign, and its tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Trial:
    """What came of a point."""

    place: str
    """Place of the fault, from which it replays."""
    fault: str
    """Row of the table."""
    name: str
    """What the fault met, such as a function and a system call."""
    was_hit: bool
    """Whether the fault was injected."""
    outcome: str
    """How the job with the fault ended, such as ``succeeded``."""
    problems: tuple[str, ...] = ()
    is_lost: bool = False
    """Whether voxels were lost or falsified."""
    number: int = 1
    """Trials that this one stands for, none of which found anything if it is more than one."""


def format_table(trials: Iterable[Trial]) -> str:
    """Return a table of faults: points, faults that were injected, what was found and lost."""
    rows: dict[str, Counter[str]] = {}
    for trial in trials:
        for name in (trial.fault, "all"):
            counts = rows.setdefault(name, Counter())
            counts["points"] += trial.number
            counts["injected"] += trial.number * trial.was_hit
            counts["failed"] += trial.number * (trial.outcome != "succeeded")
            counts["found"] += bool(trial.problems)
            counts["lost"] += trial.is_lost
    rows["all"] = rows.pop("all", Counter())
    lines = [f"{'fault':28}{'points':>10}{'injected':>10}{'job failed':>12}{'found':>7}{'lost':>6}"]
    for name, counts in rows.items():
        lines.append(
            f"{name:28}{counts['points']:10}{counts['injected']:10}{counts['failed']:12}"
            f"{counts['found']:7}{counts['lost']:6}"
        )
    return "\n".join(lines)
