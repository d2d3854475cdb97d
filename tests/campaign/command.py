"""The command: choose cells and points by a seed, run them, and print one table."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from . import system_calls
from .system_calls import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .controls import Control
    from .jobs import Cell
    from .trials import Trial

_MEMORY = Path("/dev/shm")
_POINTS_OF_CONTROL = 60
_PARTS = ("calls", "power", "controls")
_POWER_CELLS = (
    "save_by_url-wkw",
    "save_by_url-precomputed-sharded",
    "save_by_url-n5",
    "save_by_url-ngff-0.5",
    "save-layer-zarr3",
    "write_region-wkw",
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
_POINTS = {"full": 10_000, "sample": 300}
_REORDERINGS = {"full": 1000, "sample": 4}
_POINTS_OF_CELL = {"full": 6, "sample": 12}
_CRASHES = {"full": None, "sample": 6}
"""Moments of power losses in each job; None for all."""
_SAMPLED_CELLS = 5


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python tests/campaign/run.py", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same points")
    parser.add_argument(
        "--points", type=int, help="number of faults at system calls (default 300, or 10,000)"
    )
    parser.add_argument(
        "--full", action="store_true", help="all points in place of a sample of some minutes"
    )
    parser.add_argument(
        "--cell", metavar="VERB-FORM", help="only one cell of the matrix, such as rechunk-wkw"
    )
    parser.add_argument(
        "--point", metavar="JOB:CALL:FAULT", help="with --cell: only one point, as it was printed"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=_PARTS,
        default=_PARTS,
        help="parts of the campaign (default: all)",
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no further cell after this time"
    )
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    chosen = parser.parse_args(arguments)
    chosen.size = "full" if chosen.full else "sample"
    if chosen.points is None:
        chosen.points = _POINTS[chosen.size]
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return 1 if it found something."""
    chosen = parse_arguments(arguments)
    if system_calls.is_loaded():
        return _run(chosen)
    with tempfile.TemporaryDirectory() as folder:
        library = system_calls.compile_library(Path(folder))
        if library is None:
            print("skipped: the campaign needs Linux and a C compiler named cc")
            return 0
        given = sys.argv[1:] if arguments is None else arguments
        return subprocess.run(
            [sys.executable, Path(__file__).with_name("run.py"), *given],
            env=os.environ | {"LD_PRELOAD": str(library), "WKWDASK_PROGRESS": "off"},
            check=False,
        ).returncode


def _run(chosen: argparse.Namespace) -> int:
    warnings.simplefilter("ignore")
    os.environ.pop("LD_PRELOAD")  # what this process starts is not of the campaign
    started, trials, failed = time.monotonic(), [], []
    from .jobs import all_cells  # takes seconds

    cells = all_cells()
    if chosen.list:
        print(*cells, sep="\n")
        return 0
    if chosen.cell:
        cells = [cell for cell in cells if str(cell) == chosen.cell]
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        for cell, found in _all_parts(cells, Path(folder), chosen):
            if isinstance(found, str):
                failed.append(f"{cell}: {found}")
                print(failed[-1], flush=True)
                continue
            trials += found
            for trial in found:
                if trial.problems or chosen.point:
                    print(f"{cell} {trial.place} ({trial.name}, {trial.outcome})")
                    print(*(f"    {problem}" for problem in trial.problems), sep="\n", flush=True)
        missed = _controls(cells, Path(folder)) if "controls" in chosen.parts else 0
    print(format_table(trials))
    print(
        f"seed {chosen.seed}: {len(trials)} points, {time.monotonic() - started:.0f} s; "
        f"{len(failed)} cells could not be run, {missed} controls were not caught"
    )
    return 1 if failed or missed or any(trial.problems for trial in trials) else 0


def _all_parts(
    cells: list[Cell], folder: Path, chosen: argparse.Namespace
) -> Iterator[tuple[Cell, list[Trial] | str]]:
    """Yield cells with their trials or an error."""
    if "calls" in chosen.parts:
        yield from _cells_in_turn(cells, folder, chosen)
    if "power" in chosen.parts and not chosen.point:
        from .cells import lose_power

        losing = [cell for cell in cells if str(cell) in _POWER_CELLS or chosen.cell]
        if not chosen.full:
            count = min(_SAMPLED_CELLS, len(losing))
            losing = random.Random(chosen.seed).sample(losing, count)
        most, reorderings = _CRASHES[chosen.size], _REORDERINGS[chosen.size]
        for cell in losing:
            yield cell, lose_power(cell, folder, f"{chosen.seed} {cell}", most, reorderings)


def _controls(cells: list[Cell], folder: Path) -> int:
    """Remove checks one by one, and print what catches that; return how many nothing catches."""
    from .controls import CONTROLS

    missed = 0
    for control in CONTROLS:
        found = control.run_test() if control.is_test else _caught(control, cells, folder)
        missed += not found
        print(f"without {control.name}: {found or 'nothing found'} [{control.caught_by}]")
    return missed


def _caught(control: Control, cells: list[Cell], folder: Path) -> str:
    """Run a cell without a check; return the first problem."""
    from .cells import lose_power, run_cell

    part, _, name = control.caught_by.partition(": ")
    (cell,) = (cell for cell in cells if str(cell) == name)
    if part == "power loss":
        most = _CRASHES["sample"]
        found = lose_power(cell, folder, "control", most, 0, prepare=control.remove)
    else:
        number = _POINTS_OF_CONTROL
        found = run_cell(cell, folder, "control", number, prepare=control.remove)
    if isinstance(found, str):
        raise RuntimeError(f"{control.name}: {found}")  # noqa: TRY004 (an error of the cell)
    bad = [trial for trial in found if trial.problems]
    return f"{len(bad)} of {len(found)} points, such as: {bad[0].problems[0]}" if bad else ""


def _cells_in_turn(
    cells: list[Cell], folder: Path, chosen: argparse.Namespace
) -> Iterator[tuple[Cell, list[Trial] | str]]:
    """Yield cells in an order drawn from the seed, with their trials or an error."""
    from .cells import run_cell

    rng, done, turn = random.Random(chosen.seed), 0, 0
    end = time.monotonic() + 60 * chosen.minutes
    while done < chosen.points and cells:
        before = done
        for cell in rng.sample(cells, len(cells)):
            number = min(_POINTS_OF_CELL[chosen.size], chosen.points - done)
            found = run_cell(cell, folder, f"{chosen.seed} {turn} {cell}", number, chosen.point)
            yield cell, found
            done += 0 if isinstance(found, str) else len(found)
            if done >= chosen.points or chosen.point or time.monotonic() > end:
                return
        turn += 1
        if done == before:
            return


def format_table(trials: list[Trial]) -> str:
    """Return a table of faults: points, faults that were injected, what was found and lost."""
    lines = [
        f"{'fault':24}{'points':>8}{'injected':>10}{'job failed':>12}{'found':>7}{'lost':>6}",
    ]
    for name in (*FAULTS, "power loss", "all"):
        rows = [trial for trial in trials if name in ("all", trial.fault)]
        counts = Counter()
        for trial in rows:
            counts["injected"] += trial.was_hit
            counts["failed"] += trial.outcome != "succeeded"
            counts["found"] += bool(trial.problems)
            counts["lost"] += trial.is_lost
        lines.append(
            f"{name:24}{len(rows):8}{counts['injected']:10}{counts['failed']:12}"
            f"{counts['found']:7}{counts['lost']:6}"
        )
    return "\n".join(lines)
