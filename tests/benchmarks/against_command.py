"""This tree beside another commit: the same works by both, in turns, in one run."""

from __future__ import annotations

import argparse
import fnmatch
import math
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cases import all_cases
from .command import heading, is_chosen, run_case
from .data import Data, check_size, prepare, real_volumes
from .race import Faster, Race
from .table import format_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .table import Row

ROWS = {
    "read/em/whole": 0,
    "read/em/box32": 0,
    "read/em/open": 1,
    "pyramid/em/lz4/1": 0,
    "pyramid/seg/lz4hc/1": 0,
    "rechunk/seg/split": 0,
    "precomputed/read/seg/sharded": 0,
    "precomputed/write/em/files": 0,
    "precomputed/pyramid/seg/sharded": 0,
    "zarr/export/em": 0,
    "n5/read/em": 0,
    "n5/write/em": 0,
    "n5/pyramid/seg": 0,
    "n5/convert/em": 0,
    "region/wkw": 0,
    "region/zarr": 0,
    "region/n5": 0,
    "region/precomputed": 0,
    "copy/wkw": 0,
    "copy/zarr": 0,
    "components/seg": 0,
    "labels/seg": 0,
}
"""Patterns of names of races, the first of which is run, and the index of our unit."""

GEOMETRIC_MEAN, LEAST = 0.97, 0.92
"""Smallest ratio to the speed of the other commit, over all rows and of each row."""

_REPOSITORY = Path(__file__).resolve().parents[2]


def install(commit: str, folder: Path) -> str:
    """Install the package of a commit, without its dependencies, into a folder, and give the
    folder."""
    source, site = folder / "source", folder / "site"
    source.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(_REPOSITORY), "archive", commit], check=True, stdout=subprocess.PIPE
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], check=True, input=archive)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(site),
            str(source),
        ],
        check=True,
    )
    return str(site)


def beside(race: Race, number: int, commit: str, site: str) -> Race:
    """Let one unit of a race run against itself, as the other commit does it."""
    ours = replace(race.units[number], label="this tree", show_version=False)
    other = replace(
        ours,
        label=commit[:12],
        options=_elsewhere(ours.options),
        rehearsal=_elsewhere(ours.rehearsal),
        site=site,
    )
    return replace(race, units=(ours, other), conclusions=(Faster(0, 1, LEAST, shows_peak=True),))


def races(data: Data, commit: str, site: str) -> list[Race]:
    """List all rows."""
    cases = [case for case in all_cases(data) if isinstance(case, Race)]
    return [
        beside(
            next(case for case in cases if fnmatch.fnmatchcase(case.name, pattern)),
            number,
            commit,
            site,
        )
        for pattern, number in ROWS.items()
    ]


def _elsewhere(options: dict[str, Any]) -> dict[str, Any]:
    """Return the second of two units a separate folder."""
    return options | {"folder": f"{options['folder']}-before"} if "folder" in options else options


def summary(rows: Sequence[Row]) -> str:
    """Compare the tree with the other commit over all rows."""
    ratios = [ratio for row in rows if (ratio := row.ratio()) is not None]
    if not ratios:
        return "nothing was measured"
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    verdict = "met" if mean >= GEOMETRIC_MEAN and min(ratios) >= LEAST else "NOT MET"
    return (
        f"geometric mean {mean:.3f}x (>= {GEOMETRIC_MEAN}x), least {min(ratios):.3f}x (>= "
        f"{LEAST}x) of {len(ratios)} rows: {verdict}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns
    -------
    int
        0, or 1 where something failed to run; a target that is missed is no failure.
    """
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/against.py", description=__doc__)
    parser.add_argument("commit", help="the other commit, as git names it")
    parser.add_argument(
        "--rows", metavar="PATTERN", default="*", help=f"some of the rows: {', '.join(ROWS)}"
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
        default=512,
        help="edge of the volumes in voxels, 64 to 1024, a power of two (default 512)",
    )
    options = parser.parse_args(arguments)
    check_size(options.size)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the folder is removed
    with tempfile.TemporaryDirectory(prefix="wkwdask-benchmarks-") as folder:
        site = install(options.commit, Path(folder))
        data = prepare(
            Path(folder) / "data",
            options.size,
            real_volumes(Data(Path(folder), options.size).real_size),
        )
        chosen = [
            race for race in races(data, options.commit, site) if is_chosen(race.name, options.rows)
        ]
        rows = [row for race in chosen for row in run_case(race, options.repeat, data.work)[0]]
    print(heading())
    print(format_table(rows))
    print(f"\n{summary(rows)}")
    return int(any("FAILED" in cell for row in rows for cell in row.cells()))
