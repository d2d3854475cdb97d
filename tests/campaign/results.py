"""What came of the trials of a campaign, and its tables."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


@dataclass(frozen=True)
class Part:
    """Trials of a part of the campaign, and what they took."""

    name: str
    trials: list[Trial]
    seconds: float
    cpu_seconds: float

    @property
    def number(self) -> int:
        """Number of trials."""
        return sum(trial.number for trial in self.trials)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.number} points, {self.seconds:.0f} s, "
            f"{self.cpu_seconds:.0f} CPU seconds"
        )


_HEAD = ("Part", "Fault", "Trials", "Faults", "Job failed", "Found", "Lost")
_DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "safety.md"
_PLACE = re.compile(r"(<!-- campaign -->\n).*?(<!-- end of campaign -->\n)", re.DOTALL)
CONTROLS = "controls"


def format_table(parts: Iterable[Part]) -> str:
    """Return a table of faults: trials, faults that were injected, what was found and lost."""
    rows = [_HEAD]
    for part in parts:
        if part.name == CONTROLS:
            continue
        counts: dict[str, Counter[str]] = {}
        for trial in part.trials:
            row = counts.setdefault(trial.fault, Counter())
            row["trials"] += trial.number
            row["hit"] += trial.number * trial.was_hit
            row["failed"] += trial.number * (trial.outcome != "succeeded")
            row["found"] += bool(trial.problems)
            row["lost"] += trial.is_lost
        for fault, row in sorted(counts.items()):
            names = ("trials", "hit", "failed", "found", "lost")
            rows.append((part.name, fault, *(f"{row[name]}" for name in names)))
    return _format_rows(rows)


def format_controls(parts: Iterable[Part]) -> str:
    """Return a table of what noticed that a check was removed."""
    trials = [trial for part in parts if part.name == CONTROLS for trial in part.trials]
    rows = [(trial.place, trial.name) for trial in trials]
    return _format_rows([("Removed check", "Noticed by"), *rows])


def _format_rows(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def document(parts: Sequence[Part], command: str) -> None:
    """Write the tables to ``docs/safety.md``, with the commit."""
    if changed := _git("status", "--porcelain"):
        raise RuntimeError(f"the table is of one commit, but there are changes:\n{changed}")
    minutes = f"{sum(part.cpu_seconds for part in parts) / 60:.0f} CPU minutes"
    when = f"{time.strftime('%d %B %Y')}, commit {_git('rev-parse', '--short=8', 'HEAD')}"
    lines = [
        f"The numbers of one run of {minutes} ({command}, {when}):",
        format_table(parts),
        format_controls(parts),
    ]
    text = "\n\n".join(lines)
    page = _DOCUMENTATION.read_text(encoding="utf-8")
    page = _PLACE.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page)
    _DOCUMENTATION.write_text(page, encoding="utf-8")


def _git(*words: str) -> str:
    command = ["git", "-C", _DOCUMENTATION.parent, *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
