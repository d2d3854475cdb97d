"""Size, repetitions and estimated time of every row."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .cases import all_cases, long_cases
from .data import Data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .cases import Case


@dataclass(frozen=True)
class Plan:
    """How a row is measured."""

    size: int
    """Edge of the volumes [voxels]."""
    repeat: int
    """Measurements of each unit, after one that warms it up."""
    seconds: int
    """Estimated wall time of the row on two idle cores, with the files that it needs."""


PLANS = {
    "start": Plan(256, 3, 90),
    "tasks": Plan(256, 3, 30),
    "read/*/whole": Plan(512, 5, 10),
    "read/*/open": Plan(512, 5, 15),
    "read/*": Plan(512, 5, 20),
    "slices/*": Plan(512, 5, 12),
    "many/*": Plan(512, 5, 12),
    "threads/*/whole": Plan(512, 3, 30),
    "threads/*": Plan(1024, 3, 90),
    "pyramid/em/lz4hc/?": Plan(512, 3, 30),
    "pyramid/seg/lz4hc/?": Plan(512, 3, 50),
    "pyramid/em/lz4/?": Plan(512, 3, 25),
    "pyramid/seg/lz4/?": Plan(512, 3, 40),
    "pyramid/*/limit": Plan(512, 5, 25),
    "pyramid/*": Plan(512, 3, 60),
    "rechunk/em/split": Plan(512, 2, 25),
    "rechunk/seg/split": Plan(512, 2, 60),
    "rechunk/disk": Plan(1024, 3, 150),
    # webknossos encodes 40 MB per second
    "rechunk/*": Plan(256, 3, 25),
    "precomputed/boxes/*": Plan(512, 3, 13),
    "precomputed/*/seg/sharded": Plan(512, 2, 40),
    "precomputed/*": Plan(512, 3, 25),
    "zarr/view/*": Plan(512, 3, 15),
    "zarr/export/*": Plan(512, 2, 30),
    "zarr/splice/*": Plan(512, 3, 20),
    "zarr/pyramid/em/*": Plan(512, 2, 55),
    "zarr/pyramid/*": Plan(512, 2, 40),
    "zarr/rechunk/*": Plan(512, 3, 20),
    "n5/write/*": Plan(512, 2, 30),
    "n5/convert/*": Plan(512, 2, 30),
    "n5/read/*/*": Plan(512, 3, 13),
    "n5/*": Plan(512, 3, 18),
    "zarr/read/*": Plan(512, 3, 15),
    # the arrays of zarr_benchmarks have 1024, with which each round trip takes minutes
    "zarr/public/raw/*": Plan(512, 3, 15),
    "zarr/public/*/read": Plan(512, 3, 20),
    "zarr/public/*": Plan(512, 3, 45),
    "region/*": Plan(512, 3, 25),
    "copy/*": Plan(512, 3, 15),
    "labels/*": Plan(512, 2, 50),
    "histogram/*": Plan(512, 5, 15),
    "components/*": Plan(256, 3, 40),
    "remap/*": Plan(256, 3, 40),
    # igneous meshes 7 MB per second
    "meshes/*": Plan(256, 2, 60),
    "remote/wkw/box*": Plan(256, 3, 40),
    "remote/wkw/*": Plan(256, 3, 20),
    "remote/*": Plan(256, 3, 12),
    "bucket/*/precomputed": Plan(256, 3, 30),
    "bucket/*": Plan(256, 3, 20),
    # nginx sends the chunks of 256^3 in two ticks of the clock of CPU time
    "view/*": Plan(512, 3, 40),
    "memory/*": Plan(1024, 1, 120),
    "objects/*": Plan(512, 1, 600),
}
"""The plan of a row is the first whose pattern its name matches."""


def plan_of(name: str) -> Plan:
    """Find the plan of a row."""
    return next(plan for pattern, plan in PLANS.items() if fnmatch.fnmatchcase(name, pattern))


@dataclass(frozen=True)
class PlannedRow:
    """A row and how it is measured."""

    case: Case
    """What measures it, on volumes of the plan's size."""
    plan: Plan
    """Its size and repetitions."""
    is_long: bool
    """Whether it is measured only where it is named."""


def planned_rows(folder: Path, size: int | None, repeat: int | None) -> list[PlannedRow]:
    """List all rows in the order of the table.

    Parameters
    ----------
    folder : Path
        Folder of all volumes.
    size, repeat : int, optional
        Those of all rows, in place of their own.

    Returns
    -------
    list of PlannedRow
    """
    changes = {"size": size, "repeat": repeat}
    changes = {name: value for name, value in changes.items() if value is not None}

    def planned(cases: Callable[[Data], list[Case]], *, is_long: bool) -> list[PlannedRow]:
        plans = [replace(plan_of(case.name), **changes) for case in cases(Data(folder, 512))]
        built = {size: cases(Data(folder, size)) for size in {plan.size for plan in plans}}
        return [
            PlannedRow(built[plan.size][number], plan, is_long) for number, plan in enumerate(plans)
        ]

    return planned(all_cases, is_long=False) + planned(long_cases, is_long=True)
