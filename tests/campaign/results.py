"""What came of the trials of a campaign, and its tables."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


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


@dataclass
class Part:
    """Trials of a part of the campaign, and the CPU time that they took."""

    name: str
    tasks: dict[int, list[Trial]] = field(default_factory=dict)
    """Trials by the number of their task."""
    cpu_seconds: float = 0.0

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order of their tasks."""
        return [trial for _, trials in sorted(self.tasks.items()) for trial in trials]

    @property
    def number(self) -> int:
        """Number of trials."""
        return sum(trial.number for trial in self.trials)

    def __str__(self) -> str:
        return f"{self.name}: {self.number} points, {self.cpu_seconds:.0f} CPU seconds"


class SavedTrials:
    """Trials by part, and the file to which they are saved, so that a run that was stopped goes
    on."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Read what is done; raises ValueError if it is of a run with other options."""
        self._parts: dict[str, Part] = {}
        self._path = options.results
        self._used = _cpu_seconds()
        names = ("size", "seed", "points", "cell", "point")
        self._run = {name: getattr(options, name) for name in names}
        if self._path is None:
            return
        self._run["commit"] = _git("rev-parse", "HEAD")
        if not self._path.exists():
            return
        for line in self._path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if entry["run"] != self._run:
                raise ValueError(f"{self._path}: trials of {entry['run']}, expected {self._run}")
            self._add(entry)

    def part(self, name: str) -> Part:
        """Return the trials of a part."""
        return self._parts.setdefault(name, Part(name))

    def add(self, part: str, number: int, trials: Sequence[Trial]) -> None:
        """Add the trials of a task that has just ended."""
        used, self._used = self._used, _cpu_seconds()
        entry = {
            "run": self._run,
            "part": part,
            "task": number,
            "trials": [asdict(trial) for trial in trials],
            "cpu_seconds": self._used - used,
        }
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        self._add(entry)

    def _add(self, entry: dict[str, Any]) -> None:
        part = self.part(entry["part"])
        part.tasks[entry["task"]] = [
            Trial(**{**trial, "problems": tuple(trial["problems"])}) for trial in entry["trials"]
        ]
        part.cpu_seconds += entry["cpu_seconds"]


def _cpu_seconds() -> float:
    """Return what the children of this process used that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


_HEAD = ("Fault", "Trials", "Faults", "Job failed", "Found", "Lost")
_DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "safety.md"
CONTROLS = "controls"


def format_part(part: Part) -> str:
    """Return a table of faults with trials, faults that were injected, what was found and lost; or
    a table of what noticed that a check was removed."""
    if part.name == CONTROLS:
        noticed = ((trial.place, trial.name) for trial in part.trials)
        return _format_rows([("Removed check", "Noticed by"), *noticed])
    counts: dict[str, Counter[str]] = {}
    for trial in part.trials:
        row = counts.setdefault(trial.fault, Counter())
        row["trials"] += trial.number
        row["hit"] += trial.number * trial.was_hit
        row["failed"] += trial.number * (trial.outcome != "succeeded")
        row["found"] += bool(trial.problems)
        row["lost"] += trial.is_lost
    names = ("trials", "hit", "failed", "found", "lost")
    rows = ((fault, *(f"{row[name]}" for name in names)) for fault, row in sorted(counts.items()))
    return _format_rows([_HEAD, *rows])


def _format_rows(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def document(parts: Sequence[Part], command: str) -> None:
    """Write the tables of these parts to ``docs/safety.md``, with the command, to which the part is
    added, and the commit; those of other parts stay."""
    if changed := _git("status", "--porcelain", "--", ":!docs/safety.md"):
        raise RuntimeError(f"the tables are of one commit, but there are changes:\n{changed}")
    when = f"{time.strftime('%-d %B %Y')}, commit {_git('rev-parse', '--short=8', 'HEAD')}"
    page = _DOCUMENTATION.read_text(encoding="utf-8")
    for part in parts:
        minutes = f"{part.cpu_seconds / 60:.1f} CPU minutes"
        words = f"`{command} --parts {part.name}`"
        text = f"{part.number:,} points in {minutes} ({words}, {when}):\n\n{format_part(part)}"
        before, start, rest = page.partition(f"<!-- {part.name} -->\n")
        _, end, after = rest.partition("<!-- end -->\n")
        if not end:
            raise RuntimeError(f"{_DOCUMENTATION}: has no place for {part.name}")
        page = f"{before}{start}\n{text}\n\n{end}{after}"
    _DOCUMENTATION.write_text(page, encoding="utf-8")


def _git(*words: str) -> str:
    command = ["git", "-C", _DOCUMENTATION.parent, *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
