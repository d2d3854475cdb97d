"""The command: choose rows, measure them in one run, print one table."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import secrets
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .cases import all_cases, long_cases
from .data import Data, check_size, prepare, real_volumes
from .table import format_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .memory import Memory
    from .numbering import Numbering, SparseVolume
    from .race import Race
    from .start import Start
    from .table import Row
    from .tasks import Tasks


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/run.py", description=__doc__)
    parser.add_argument(
        "--rows",
        metavar="PATTERN",
        default="*",
        help="names of rows with wildcards, such as 'pyramid/em*' or 'threads' (all of that kind)",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=5,
        metavar="N",
        help="measurements of each unit; medians are shown (default 5)",
    )
    parser.add_argument(
        "--size",
        type=int,
        default=1024,
        help=(
            "edge of the pyramids' volumes in voxels, 64 to 1024, a power of two; targets are for "
            "1024 (default)"
        ),
    )
    parser.add_argument("--list", action="store_true", help="print the names of the rows and end")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write every single measurement to a file"
    )
    return parser.parse_args(arguments)


def is_chosen(name: str, pattern: str) -> bool:
    """Match the name of a row, or a prefix of it."""
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(
        name, f"{pattern.rstrip('/')}/*"
    )


def run_cases(
    cases: Sequence[Race | Memory | Start | Tasks | Numbering | SparseVolume],
    data: Data,
    repeat: int,
) -> list[Row]:
    """Measure cases one after the other, put away what each has written, and say on standard error
    how far it is."""
    rows = []
    for case in cases:
        started = time.perf_counter()
        rows += case.run(repeat, _say)
        put_away(data.work)
        _say(f"{case.name}: {time.perf_counter() - started:.0f} s")
    return rows


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
    check_size(options.size)
    with tempfile.TemporaryDirectory(prefix="wkwdask-benchmarks-") as folder:
        if options.list:
            data = Data(Path(folder), options.size)
            print("\n".join(case.name for case in [*all_cases(data), *long_cases(data)]))
            return 0
        data = Data(Path(folder), options.size)
        cases = [case for case in all_cases(data) if is_chosen(case.name, options.rows)]
        if options.rows != "*":
            cases += [case for case in long_cases(data) if is_chosen(case.name, options.rows)]
        if not cases:
            _say(f"no row matches {options.rows!r}; --list shows their names")
            return 1
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the folder is removed
        _say("preparing the real data")
        prepare(data.folder, data.size, real_volumes(data.real_size))
        rows = run_cases(cases, data, options.repeat)
    print(heading(options))
    print(format_table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any("FAILED" in cell for row in rows for cell in row.cells()))


def heading(options: argparse.Namespace) -> str:
    """Say what the numbers are."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"wkwdask benchmarks: size {options.size}, median of {options.repeat}, MB of decoded "
        "source, one worker where a row does not say otherwise\n"
        f"{_processor()}, {os.cpu_count()} cores, load {load}, Python {platform.python_version()}; "
        "ratio = tool / against, targets are for CPU seconds\n"
    )


def _processor() -> str:
    """Name the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
