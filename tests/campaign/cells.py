"""Cells of the matrix: each runs in a fork of the warm process, and its trials in forks of that."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import dask
from support import toy_format, warm_imports  # noqa: F401 (loads kernels)

from wkwdask.formats import registry

from .jobs import Cell, record_jobs
from .trials import Point, Trial, Undisturbed, in_child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

registry._added = [toy_format.FORMAT]
dask.config.set(scheduler="synchronous")
_LARGEST_SEED = 1 << 31
_LIMIT_SECONDS = 1800.0


def run_cell(
    cell: Cell,
    folder: Path,
    seed: str,
    number: int,
    only: str | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> list[Trial] | str:
    """Return the trials of a cell at so many points, or an error of the cell itself; ``prepare``
    changes the package after the undisturbed run."""

    def trials_of():
        rng = random.Random(seed)
        jobs = _undisturbed(cell, folder, rng)
        prepare()
        return [trial for known in jobs for trial in _trials_of(known, len(jobs), rng)]

    def _trials_of(known, num_jobs, rng):
        points = known.points(-(-number // num_jobs), rng)
        if only:
            points = [Point.parse(only)] if Point.parse(only).job == known.job.number else []
        return map(known.try_point, points)

    return _in_folder(folder, trials_of)


def _in_folder(folder: Path, function: Callable[[], list[Trial]]) -> list[Trial] | str:
    ending = in_child(function, _LIMIT_SECONDS)
    for below in folder.iterdir():
        shutil.rmtree(below)
    return ending.error or ending.value


def _undisturbed(cell: Cell, folder: Path, rng: random.Random) -> list[Undisturbed]:
    """Record the jobs of a cell, and run each without a fault."""
    root, kept = folder / "root", folder / "kept"
    root.mkdir()
    kept.mkdir()
    jobs = record_jobs(cell, root, kept, rng.randrange(_LARGEST_SEED))
    return [Undisturbed(job, root) for job in jobs]


def lose_power(
    cell: Cell,
    folder: Path,
    seed: str,
    most: int | None,
    reorderings: int,
    prepare: Callable[[], None] = lambda: None,
) -> list[Trial] | str:
    """Return the trials of power losses during the jobs of a cell: at each system call or ``most``
    of them, and so many reorderings."""

    def trials_of():
        rng = random.Random(seed)
        jobs = _undisturbed(cell, folder, rng)
        prepare()
        return [trial for known in jobs for trial in _losses_of(known, len(jobs), rng)]

    def _losses_of(known, num_jobs, rng):
        crashes = known.crashes()
        chosen = list(crashes.prefixes())
        if most is not None and len(chosen) > most:  # and the end, which must survive
            ends = [crash for crash in chosen if crash.is_after_end]
            chosen = rng.sample(chosen, most) + ends
        chosen += [crashes.reordered(rng) for _ in range(-(-reorderings // num_jobs))]
        tried = [known.try_crash(crashes, crash) for crash in chosen]
        return [known.check_order(crashes), *tried]

    return _in_folder(folder, trials_of)
