"""Parts of the campaign that run the cells of the matrix: faults at system calls, power losses."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import dask
from support import toy_format, warm_imports  # noqa: F401 (loads kernels)

from wkwdask.formats import identity, registry

from .jobs import Cell, all_cells, record_jobs
from .system_calls import FAULTS
from .trials import Point, Undisturbed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from .results import Trial

registry._added = [toy_format.FORMAT]
dask.config.set(scheduler="synchronous")
_LARGEST_SEED = 1 << 31
_POINTS_OF_CELL = {"full": 15, "sample": 12}
_REORDERINGS = {"full": 1000, "sample": 4}
_REORDERINGS_OF_TASK = 100
_CRASHES = {"full": None, "sample": 6}
"""Moments of power losses in each job; None for all."""
_SAMPLED_CELLS = 5
POWER_CELLS = (
    "save_by_url-wkw",
    "save_by_url-precomputed-sharded",
    "save_by_url-n5",
    "save_by_url-ngff-0.5",
    "save-layer-zarr3",
    "write_region-wkw",
    "write_region-n5",
    "pyramid-wkw",
    "rechunk-precomputed",
    "copy-n5",
    "rm-wkw",
    "repair-ngff-0.4",
    "convert_to_wkw-n5-tensorstore",
    "components-precomputed",
    "manifest-wkw",
)
"""Cells whose jobs lose power: one of each kind."""


def chosen_cells(options: argparse.Namespace) -> list[Cell]:
    """List the cells of the matrix, or the one that an option names."""
    return [cell for cell in all_cells() if options.cell in (None, str(cell))]


def system_call_tasks(
    options: argparse.Namespace,
) -> Iterator[tuple[str, Callable[[Path], list[Trial]]]]:
    """Yield cells in an order drawn from the seed, in turns until there are enough points."""
    rng, cells = random.Random(options.seed), chosen_cells(options)
    left, turn = options.points, 0
    while left > 0 and cells:
        for cell in rng.sample(cells, len(cells)):
            number = min(_POINTS_OF_CELL[options.size], left)
            left -= number
            seed = f"{options.seed} {turn} {cell}"
            yield str(cell), faults_at_calls(cell, seed, number, options.point)
            if left <= 0 or options.point:
                return
        turn += 1


def faults_at_calls(
    cell: Cell,
    seed: str,
    number: int,
    only: str | None = None,
    prepare: Callable[[], None] = lambda: None,
    faults: Collection[str] = (),
) -> Callable[[Path], list[Trial]]:
    """Return a function that tries so many points of a cell, or ``only`` one; ``prepare`` changes
    the package after the undisturbed run."""

    def trials(folder: Path) -> list[Trial]:
        rng = random.Random(seed)
        jobs = undisturbed(cell, folder, rng)
        prepare()
        return [trial for known in jobs for trial in trials_of(known, -(-number // len(jobs)), rng)]

    def trials_of(known, number, rng):
        points = known.points(number, faults or FAULTS, rng)
        if only:
            points = [Point.parse(only)] if Point.parse(only).job == known.job.number else []
        return map(known.try_point, points)

    return trials


def power_loss_tasks(
    options: argparse.Namespace,
) -> Iterator[tuple[str, Callable[[Path], list[Trial]]]]:
    """Yield the cells whose jobs lose power, each in some parts."""
    cells = [cell for cell in chosen_cells(options) if str(cell) in POWER_CELLS or options.cell]
    if not options.full:
        cells = random.Random(options.seed).sample(cells, min(_SAMPLED_CELLS, len(cells)))
    most, reorderings = _CRASHES[options.size], _REORDERINGS[options.size]
    for begin in range(0, reorderings, _REORDERINGS_OF_TASK):
        number = min(_REORDERINGS_OF_TASK, reorderings - begin)
        for cell in cells:
            seed = f"{options.seed} {begin} {cell}"
            yield str(cell), power_losses(cell, seed, 0 if begin else most, number, options.point)
        if options.point:
            return


def power_losses(
    cell: Cell,
    seed: str,
    most: int | None,
    reorderings: int,
    only: str | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Callable[[Path], list[Trial]]:
    """Return a function that tries power losses during the jobs of a cell: at each system call or
    ``most`` of them, and so many reorderings of each job, or ``only`` one."""

    def trials(folder: Path) -> list[Trial]:
        _forget_inodes()
        rng = random.Random(seed)
        jobs = undisturbed(cell, folder, rng)
        prepare()
        return [trial for known in jobs for trial in losses_of(known, rng)]

    def losses_of(known, rng):
        if only:
            job, _, name = only.partition(":")
            if int(job) != known.job.number:
                return []
            crashes = known.crashes()
            return [known.try_crash(crashes, crashes.named(name))]
        crashes = known.crashes()
        chosen = list(crashes.prefixes())
        if most is not None and len(chosen) > most:  # and the end, which must survive
            ends = [crash for crash in chosen if crash.is_after_end]
            chosen = rng.sample(chosen, most) + ends
        chosen += [crashes.reordered(rng.randrange(_LARGEST_SEED)) for _ in range(reorderings)]
        tried = [known.try_crash(crashes, crash) for crash in chosen]
        return [known.check_order(crashes), *tried]

    return trials


def _forget_inodes() -> None:
    """Tell arrays of no record by the times and sizes of their documents alone: a disk keeps the
    inodes of what a power failure spares, a folder that is laid out has new ones."""
    read = identity.read_record_state

    def read_state(*arguments):
        state = read(*arguments)
        return state and identity.RecordState((0, *state.record[1:]), 0)

    for module in list(sys.modules.values()):
        if getattr(module, "read_record_state", None) is read:
            module.read_record_state = read_state


def undisturbed(cell: Cell, folder: Path, rng: random.Random) -> list[Undisturbed]:
    """Record the jobs of a cell, and run each without a fault."""
    root, kept = folder / "root", folder / "kept"
    root.mkdir()
    kept.mkdir()
    jobs = record_jobs(cell, root, kept, rng.randrange(_LARGEST_SEED))
    return [Undisturbed(job, root) for job in jobs]
