"""The table: one line per comparison, plain text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .measure import MB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .measure import Outcome

_HEAD = (
    ("", "", "", "MB/s per CPU s", "", "", "MB/s per wall s", "", "", "MB written", "", "", "", ""),
    (
        "work",
        "tool",
        "against",
        "tool",
        "against",
        "ratio",
        "tool",
        "against",
        "ratio",
        "tool",
        "against",
        "target",
        "met",
        "notes",
    ),
)
_LEFT = {0, 1, 2, 11, 12, 13}
VOXELS_DIFFER = "VOXELS DIFFER"
"""Note of a comparison whose sides should have had the same voxels."""


@dataclass
class Row:
    """One comparison, or one measurement for information."""

    work: str
    """What was done."""
    tool: Outcome
    """What is judged."""
    against: Outcome | None = None
    """The compared tool."""
    target: str = ""
    """Target."""
    met: bool | None = None
    """Whether the target is met; None where there is none or it could not be measured."""
    note: str = ""
    """Further notes."""
    voxels: str = ""
    """Whether both sides have the same voxels, where that is compared."""

    def ratio(self) -> float | None:
        """Return how many times the speed by CPU seconds is that of the other tool, None where one
        of them was not measured."""
        if self.against is None or not self.tool.samples or not self.against.samples:
            return None
        return self.tool.cpu_speed / self.against.cpu_speed

    def cells(self) -> tuple[str, ...]:
        """Format all columns."""
        ours, peer = self.tool, self.against
        cpu, wall, written = zip(_speeds(ours), _speeds(peer), strict=True)
        cpu_ratio = self.ratio()
        wall_ratio = None if cpu_ratio is None else ours.wall_speed / peer.wall_speed
        met = {True: "yes", False: "NO", None: "-"}[self.met]
        notes = "; ".join(
            text
            for text in (
                *(outcome.problem for outcome in (ours, peer) if outcome is not None),
                self.voxels,
                self.note,
            )
            if text
        )
        return (
            self.work,
            ours.name,
            "" if peer is None else peer.name,
            *cpu,
            _ratio(cpu_ratio),
            *wall,
            _ratio(wall_ratio),
            *written,
            self.target,
            met,
            notes,
        )


def _speeds(outcome: Outcome | None) -> tuple[str, str, str]:
    """Format CPU speed, wall speed and bytes written."""
    if outcome is None:
        return "", "", ""
    if not outcome.samples:
        return "-", "-", "-"
    return (
        f"{outcome.cpu_speed:.0f}",
        f"{outcome.wall_speed:.0f}",
        f"{outcome.written / MB:.2f}" if outcome.written else "0",
    )


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def format_table(rows: Sequence[Row]) -> str:
    """Align all rows below the head.

    Parameters
    ----------
    rows : sequence of Row
        In the order in which they are shown.

    Returns
    -------
    str
        Without a line break at the end.
    """
    cells = [*_HEAD, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            _align(cell, width, n) for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    return "\n".join([*lines[:2], "-" * max(map(len, lines)), *lines[2:]])


def _align(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column in _LEFT else cell.rjust(width)
