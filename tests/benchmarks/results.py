"""Results as JSON lines, one for each row, saved as soon as the row is measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .measure import Outcome, Sample
from .table import Row

if TYPE_CHECKING:
    from .plan import Plan


@dataclass(frozen=True)
class Result:
    """A measured row."""

    row: str
    """Its name."""
    size: int
    """Edge of the volumes [voxels]."""
    repeat: int
    """Measurements of each unit."""
    seconds: float
    """Wall time of all of it."""
    date: str
    """Day and time of its end."""
    cpu: str
    """The processor."""
    cores: int
    """Number of processors."""
    load: float
    """Load average of the last minute, at its end."""
    commit: str
    """The code."""
    comparisons: list[Row]
    """What was measured."""

    @property
    def has_failed(self) -> bool:
        """Whether something failed to run."""
        return any("FAILED" in cell for row in self.comparisons for cell in row.cells())


def result_of(row: str, plan: Plan, seconds: float, comparisons: list[Row]) -> Result:
    """Describe a row that was measured just now by this code on this machine."""
    return Result(
        row,
        plan.size,
        plan.repeat,
        round(seconds, 1),
        time.strftime("%Y-%m-%d %H:%M"),
        processor(),
        os.cpu_count() or 1,
        round(os.getloadavg()[0], 2),
        _commit(),
        comparisons,
    )


class Results:
    """The results in a file.

    Parameters
    ----------
    file : Path, optional
        The file; without one, nothing is saved.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file and file.exists() else []
        self.by_row = {result.row: result for result in map(_parse, lines)}

    def has(self, row: str, plan: Plan) -> bool:
        """Return whether a row was measured as planned."""
        found = self.by_row.get(row)
        return (
            found is not None
            and (found.size, found.repeat) == (plan.size, plan.repeat)
            and not found.has_failed
        )

    def add(self, result: Result) -> None:
        """Replace the result of a row, and write the file."""
        self.by_row[result.row] = result
        if self._file is not None:
            new = self._file.with_name(f"{self._file.name}.new")
            new.write_text("".join(f"{_format(result)}\n" for result in self.by_row.values()))
            new.replace(self._file)


def _format(result: Result) -> str:
    """Format a line. Speeds are in it for other readers; hashes of voxels are not."""
    record = asdict(result)
    for row, written in zip(result.comparisons, record["comparisons"], strict=True):
        for side in ("tool", "against"):
            outcome = getattr(row, side)
            if outcome is not None:
                del written[side]["digests"]
                if outcome.samples:
                    written[side]["mb_per_cpu_second"] = round(outcome.cpu_speed, 3)
    return json.dumps(record)


def _parse(line: str) -> Result:
    record = json.loads(line)
    rows = [
        Row(**row | {"tool": _outcome(row["tool"]), "against": _outcome(row["against"])})
        for row in record["comparisons"]
    ]
    return Result(**record | {"comparisons": rows})


def _outcome(record: dict[str, Any] | None) -> Outcome | None:
    if record is None:
        return None
    record.pop("mb_per_cpu_second", None)
    return Outcome(**record | {"samples": [Sample(**sample) for sample in record["samples"]]})


def processor() -> str:
    """Name the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _commit() -> str:
    """Name the commit that is checked out, empty outside a clone."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
