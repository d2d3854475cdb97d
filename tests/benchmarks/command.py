"""The command: choose rows, measure them in one run, save each, print one table."""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .data import LARGEST_REAL, check_size, prepare, real_volumes
from .measure import Outcome
from .pages import documented_rows, write_pages
from .plan import planned_rows
from .results import Results, processor, result_of
from .table import Row, format_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cases import Case
    from .plan import PlannedRow


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/run.py", description=__doc__)
    parser.add_argument(
        "--rows",
        metavar="PATTERN",
        help=(
            "names of rows with wildcards, such as 'pyramid/em*' or 'threads' (all of that kind); "
            "by default those of the tables of the documentation, '*' for all"
        ),
    )
    parser.add_argument(
        "--repeat",
        type=int,
        metavar="N",
        help="measurements of each unit; medians are shown (by default those of --list)",
    )
    parser.add_argument(
        "--size",
        type=int,
        metavar="N",
        help="edge of all volumes in voxels, 64 to 1024, a power of two (default: see --list)",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="print the names of the rows, their sizes, repetitions and estimated times, and end",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="save each row as a line of JSON when it is done; rows that are in the file already "
        "are not measured again",
    )
    parser.add_argument(
        "--tables",
        type=Path,
        metavar="FILE",
        help="write the tables of the documentation from such a file, and end",
    )
    return parser.parse_args(arguments)


def is_chosen(name: str, pattern: str) -> bool:
    """Match the name of a row, or a prefix of it."""
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(
        name, f"{pattern.rstrip('/')}/*"
    )


def _chosen(folder: Path, options: argparse.Namespace) -> list[PlannedRow]:
    """List the rows that the options name."""
    rows = planned_rows(folder, options.size, options.repeat)
    if options.rows is None:
        documented = documented_rows()
        return [row for row in rows if row.case.name in documented]
    return [
        row
        for row in rows
        if is_chosen(row.case.name, options.rows) and not (row.is_long and options.rows == "*")
    ]


def run_case(case: Case, repeat: int, work: Path) -> tuple[list[Row], float]:
    """Measure a row, and put away what it has written.

    Parameters
    ----------
    case : Race or other case
        The row.
    repeat : int
        Measurements of each unit.
    work : Path
        Folder of all units' own folders.

    Returns
    -------
    list of Row
        Its comparisons.
    seconds : float
        Wall time of all of it.
    """
    started = time.perf_counter()
    try:
        rows = case.run(repeat, _say)
    except Exception as error:  # the other rows are measured nevertheless
        problem = f"FAILED: {type(error).__name__}: {error}"
        rows = [Row(case.name, Outcome("wkwdask", problem=problem))]
    put_away(work)
    seconds = time.perf_counter() - started
    _say(f"{case.name}: {seconds:.0f} s")
    return rows, seconds


def put_away(folder: Path) -> None:
    """Free the space of a folder, and move it aside, until all is measured.

    For minutes after many files were removed, ext4 makes new ones at a tenth of its speed, for
    whichever tool comes next. Files with a second name, which other rows may read, are left alone.
    """
    if not folder.is_dir():
        return
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
            os.truncate(path, 0)
    aside = folder.with_name("done")
    aside.mkdir(exist_ok=True)
    folder.rename(aside / secrets.token_hex(8))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns
    -------
    int
        0, or 1 where something failed to run; a target that is missed is no failure.
    """
    options = parse_arguments(arguments)
    if options.size is not None:
        check_size(options.size)
    if options.tables:
        for row in write_pages(Results(options.tables)):
            _say(f"{row}: not measured")
        return 0
    with tempfile.TemporaryDirectory(prefix="wkwdask-benchmarks-") as name:
        folder = Path(name)
        chosen = _chosen(folder, options)
        if not chosen:
            _say(f"no row matches {options.rows!r}; --list --rows '*' shows their names")
            return 1
        if options.list:
            print(_format_plans(chosen))
            return 0
        results = Results(options.results)
        missing = [row for row in chosen if not results.has(row.case.name, row.plan)]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the folder is removed
        measured = _measure(missing, folder, results)
    print(heading())
    print(format_table(measured))
    return int(any("FAILED" in cell for row in measured for cell in row.cells()))


def _measure(rows: Sequence[PlannedRow], folder: Path, results: Results) -> list[Row]:
    """Measure rows one after the other, and save each."""
    _say("preparing the real data")
    sizes = {min(row.plan.size, LARGEST_REAL) for row in rows}
    volumes = real_volumes(max(sizes, default=0)) if rows else {}
    for size in sizes:
        prepare(folder, size, volumes)
    del volumes
    measured = []
    for number, row in enumerate(rows):
        left = sum(later.plan.seconds for later in rows[number:])
        _say(f"row {number + 1} of {len(rows)}, about {left / 60:.0f} minutes left")
        comparisons, seconds = run_case(row.case, row.plan.repeat, folder / "work")
        results.add(result_of(row.case.name, row.plan, seconds, comparisons))
        measured += comparisons
    return measured


def _format_plans(rows: Sequence[PlannedRow]) -> str:
    """Format names, sizes, repetitions and estimated times."""
    lines = [
        f"{row.case.name:42}{row.plan.size:5}^3  {row.plan.repeat} times  ~{row.plan.seconds} s"
        for row in rows
    ]
    total = sum(row.plan.seconds for row in rows)
    return "\n".join([*lines, f"{len(rows)} rows, about {total / 60:.0f} minutes"])


def heading() -> str:
    """Say what the numbers are."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        "wkwdask benchmarks: medians, MB of decoded source, one worker where a row does not say "
        "otherwise\n"
        f"{processor()}, {os.cpu_count()} cores, load {load}, Python {platform.python_version()}; "
        "ratio = tool / against, targets are for CPU seconds\n"
    )


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
