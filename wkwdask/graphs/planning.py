"""Calls that are only planned: what they stage is collected, and nothing of it is done."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.runs.parts import ShardTally
from wkwdask.runs.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.runs.drive import Plan
    from wkwdask.verbs.export import Export


@dataclass(slots=True)
class Planned:
    """What a call would do."""

    jobs: list[Any] = field(default_factory=list)
    """Mags that it would make, of the verbs that store voxels anew or import them."""
    exports: list[Export] = field(default_factory=list)
    """What it would export."""
    pyramids: list[str] = field(default_factory=list)
    """Above which mags it would build a pyramid then."""


_planned: ContextVar[Planned | None] = ContextVar("wkwdask_planned", default=None)


@contextlib.contextmanager
def planning() -> Iterator[Planned]:
    """Let conversions that are called in this block be planned only."""
    planned = Planned()
    token = _planned.set(planned)
    try:
        yield planned
    finally:
        _planned.reset(token)


def only_planned(job: Plan) -> Report | None:
    """Collect a job, where calls are only planned, and give a report of nothing; None where it is to be done."""
    planned = _planned.get()
    if planned is None:
        return None
    planned.jobs.append(job)
    return Report(tuple(ShardTally(target, 0).report(folder) for target, folder in zip(job.staged.targets, job.staged.folders, strict=True)), 0, 0.0)


def export_only_planned(export: Export) -> Report | None:
    """Collect an export in the same way."""
    planned = _planned.get()
    if planned is None:
        return None
    planned.exports.append(export)
    return Report((), 0, 0.0)


def pyramid_only_planned(place: str) -> bool:
    """Take note of a pyramid, where calls are only planned: what it is made from is not there yet."""
    planned = _planned.get()
    if planned is not None:
        planned.pyramids.append(place)
    return planned is not None
