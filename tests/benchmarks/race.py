"""A race: units that take turns in one run, each in a separate process, and conclusions from their
medians."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .client import Worker
from .measure import MB, Outcome, Sample
from .table import VOXELS_DIFFER, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.proxy import Proxy

    from .analysis_cases import Mapping
    from .data import Cube, Scattered, Slab
    from .remote_cases import Served
    from .served_cases import Converted

NOT_INSTALLED = "not installed"
_IDLE_GAIN = 1.5
"""Smallest speed-up of pure compute by two threads on idle cores."""


@dataclass(frozen=True)
class Unit:
    """One tool at one work."""

    label: str
    """Name in the table, without the version."""
    work: str
    """Module and class below ``works``."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the class."""
    show_version: bool = True
    """Whether the table shows the tool's version."""
    rehearsal: dict[str, Any] = field(default_factory=dict)
    """Arguments in place of those, for the run that warms the tool up: a smaller volume. By default
    it does the same work as later."""
    site: str = ""
    """A folder with packages that come before those of the environment."""


class Conclusion(Protocol):
    """Purpose of a race."""

    def rows(self, work: str, outcomes: Sequence[Outcome]) -> list[Row]:
        """Turn outcomes, in the order of the units, into lines of the table."""


@dataclass(frozen=True)
class Race:
    """Units that take turns."""

    name: str
    """What ``--rows`` selects."""
    work: str
    """Name in the table."""
    units: tuple[Unit, ...]
    """Who takes part."""
    conclusions: tuple[Conclusion, ...]
    """Lines of the table."""
    volumes: tuple[Cube | Slab | Scattered | Mapping | Served | Converted, ...] = ()
    """Required volumes."""

    def run(self, repeat: int, say: Callable[[str], None]) -> list[Row]:
        """Measure all units in turns.

        Parameters
        ----------
        repeat : int
            Measurements of each unit, after one that warms it up.
        say : callable
            Called with lines about the progress.

        Returns
        -------
        list of Row
        """
        say(self.name)
        for volume in self.volumes:
            volume.make()
        outcomes = run_units(self.units, repeat)
        return [
            row for conclusion in self.conclusions for row in conclusion.rows(self.work, outcomes)
        ]


def run_units(units: Sequence[Unit], repeat: int, proxy: Proxy | None = None) -> list[Outcome]:
    """Measure units in turns: all once, then all again, beginning with the next one; the first time
    of each is not counted. A proxy counts what passes through it."""
    outcomes = [Outcome(unit.label) for unit in units]
    with ExitStack() as stack:
        workers: list[Worker | None] = []
        for unit, outcome in zip(units, outcomes, strict=True):
            worker = stack.enter_context(
                Worker(unit.work, unit.options | unit.rehearsal, unit.site)
            )
            workers.append(worker if _is_ready(worker, unit, outcome) else None)
        pairs = list(zip(workers, outcomes, strict=True))
        for _ in range(repeat):
            for worker, outcome in pairs:
                if worker is not None and not outcome.problem:
                    _take_sample(worker, outcome, proxy)
            # who comes first may get pages of memory that the machine has to find
            pairs.append(pairs.pop(0))
        for worker, outcome in pairs:
            if worker is not None and outcome.samples:
                answer = worker.ask("digests")
                outcome.digests = answer.get("digests", [])
                outcome.problem = _problem(answer)
    return outcomes


def _is_ready(worker: Worker, unit: Unit, outcome: Outcome) -> bool:
    """Set the outcome up from the worker's first answer, and warm the worker up."""
    setup = worker.setup
    if "missing" in setup:
        outcome.problem = NOT_INSTALLED
        return False
    outcome.problem = _problem(setup) or _problem(worker.ask("measure"))
    if unit.rehearsal and not outcome.problem:
        setup = worker.set_up(unit.work, unit.options)
        outcome.problem = _problem(setup)
    if outcome.problem:
        return False
    outcome.nbytes = setup["nbytes"]
    if unit.show_version:
        outcome.version = setup["version"]
    return True


def _take_sample(worker: Worker, outcome: Outcome, proxy: Proxy | None) -> None:
    if proxy is None:
        answer = worker.ask("measure")
    else:
        answer = worker.ask("prepare")
        proxy.clear()
        answer = answer or worker.ask("timed") | {
            "requests": len(proxy.requests),
            "received": proxy.nbytes(),
        }
    outcome.problem = _problem(answer)
    if not outcome.problem:
        outcome.samples.append(Sample(**answer))


def _problem(answer: dict[str, Any]) -> str:
    """Return the last line of an error."""
    return "FAILED: " + answer["error"].strip().splitlines()[-1] if "error" in answer else ""


@dataclass(frozen=True)
class Faster:
    """The first tool is so many times as fast as the second by CPU seconds."""

    tool: int
    """Place among the units."""
    against: int
    """Place among the units."""
    target: float | None = None
    """The ratio that is asked for, None for information."""
    same: str = "same"
    """Whether both should give the same voxels: ``same``, or why they need not."""
    shows_peak: bool = False
    """Whether the notes say what both take of memory."""

    def rows(self, work: str, outcomes: Sequence[Outcome]) -> list[Row]:
        """Return one line."""
        row = Row(
            work,
            outcomes[self.tool],
            outcomes[self.against],
            "" if self.target is None else f">= {self.target:g}x",
        )
        ratio = row.ratio()
        if ratio is not None:
            row.met = None if self.target is None else ratio >= self.target
            row.voxels = self._voxels(row)
            row.note = peaks(row) if self.shows_peak else ""
        return [row]

    def _voxels(self, row: Row) -> str:
        levels = list(zip(row.tool.digests, row.against.digests, strict=False))
        if not levels:
            return ""
        if all(a == b for a, b in levels):
            return (
                "same voxels"
                if len(row.tool.digests) == len(row.against.digests)
                else f"same voxels in the {len(levels)} mags of both"
            )
        return VOXELS_DIFFER if self.same == "same" else f"voxels differ: {self.same}"


@dataclass(frozen=True)
class FasterByWall:
    """The first tool is so many times as fast as the second by wall time."""

    tool: int
    """Place among the units."""
    against: int
    """Place among the units."""
    target: float
    """The ratio that is asked for."""

    def rows(self, work: str, outcomes: Sequence[Outcome]) -> list[Row]:
        """Return one line."""
        ours, other = outcomes[self.tool], outcomes[self.against]
        row = Row(work, ours, other, f">= {self.target:g}x of wall")
        if row.ratio() is not None:
            ratio = ours.wall_speed / other.wall_speed
            row.met = ratio >= self.target
            row.note = f"wall {ratio:.2f}x"
        return [row]


@dataclass(frozen=True)
class OfLimit:
    """Speed of a pyramid as a fraction of the sum of its parts, each timed alone."""

    tool: int
    """Place among the units."""
    limit: int
    """Place of the parts among the units."""
    target: float | None = None
    """The part that is asked for, None for information."""
    counts_files: bool = False
    """Whether reading and writing files count as parts."""

    def rows(self, work: str, outcomes: Sequence[Outcome]) -> list[Row]:
        """Return one line."""
        row = Row(
            work,
            outcomes[self.tool],
            outcomes[self.limit],
            "" if self.target is None else f">= {self.target:g}x",
        )
        ratio = row.ratio()
        if ratio is not None:
            seconds = row.against.parts()
            parts = ", ".join(f"{name} {value:.3f}" for name, value in seconds.items())
            with_files = ratio * sum(seconds.values()) / row.against.cpu
            judged = with_files if self.counts_files else ratio
            row.met = None if self.target is None else judged >= self.target
            row.note = (
                f"{100 * ratio:.0f} % of the limit, {100 * with_files:.0f} % of it with reading "
                f"and writing files ({parts} CPU s)"
            )
        return [row]


@dataclass(frozen=True)
class Within:
    """The first work takes at most so many times the CPU seconds, wall seconds and bytes of the
    second, which has the same data."""

    tool: int
    """Place among the units."""
    against: int
    """Place among the units."""
    times: float
    """Largest allowed ratio."""

    def rows(self, work: str, outcomes: Sequence[Outcome]) -> list[Row]:
        """Return one line."""
        ours, other = outcomes[self.tool], outcomes[self.against]
        row = Row(work, ours, other, f"within {self.times:g}x")
        if row.ratio() is not None:
            more = {
                "CPU": ours.cpu / other.cpu,
                "wall": ours.wall / other.wall,
                "bytes": ours.written / other.written,
            }
            row.met = max(more.values()) <= self.times
            row.note = (
                ", ".join(f"{name} {value:.2f}x" for name, value in more.items())
                + f" ({ours.wall:.2f} s wall beside {other.wall:.2f} s)"
            )
        return [row]


@dataclass(frozen=True)
class OfCopy:
    """Wall speed as a fraction of that of copying the files."""

    tool: int
    """Place among the units."""
    copy: int
    """Place of the copy among the units."""
    target: float
    """The part that is asked for."""

    def rows(self, work: str, outcomes: Sequence[Outcome]) -> list[Row]:
        """Return one line."""
        ours, copy = outcomes[self.tool], outcomes[self.copy]
        row = Row(work, ours, copy, f">= {self.target:g} of wall")
        if row.ratio() is not None:
            part = copy.wall / ours.wall
            row.met = part >= self.target
            row.note = (
                f"{100 * part:.0f} % of the wall speed of copying ({ours.wall:.2f} s beside "
                f"{copy.wall:.2f} s); {peaks(row)}"
            )
        return [row]


def peaks(row: Row) -> str:
    """Say what both sides of a row took of memory at most."""
    return f"peak {row.tool.peak / MB:.0f} MB" + (
        f" beside {row.against.peak / MB:.0f} MB" if row.against is not None else ""
    )


@dataclass(frozen=True)
class Scaling:
    """Two threads against one, beside what two threads give pure compute in the same run; the first
    four units are one, two, compute one, compute two."""

    target: float
    """The part of the speed-up of pure compute that is asked for."""

    def rows(self, work: str, outcomes: Sequence[Outcome]) -> list[Row]:
        """Return one line."""
        one, two, compute_one, compute_two = outcomes[:4]
        row = Row(work, two, one, f">= {self.target:g} of compute")
        if all(outcome.samples for outcome in outcomes):
            gain, machine = one.wall / two.wall, compute_one.wall / compute_two.wall
            row.met = gain / machine >= self.target if machine >= _IDLE_GAIN else None
            row.note = (
                f"{gain / machine:.2f} of pure compute: wall {gain:.2f}x, pure compute "
                f"{machine:.2f}x"
            )
            row.note += "" if machine >= _IDLE_GAIN else "; MACHINE BUSY: not judged"
        return [row]
