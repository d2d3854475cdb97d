"""Part of the campaign that gives any bytes to each parser and decoder, guided by coverage."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .doors import DOORS
from .results import Trial

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

_RUNS = {
    "document": 640_000,
    "file": 50_000,
    "library": 50_000,
    "job": 10_000,
    "decoder": 100_000,
    "machine code": 100_000,
}
"""Inputs of each door by its kind; 10 million for headers and documents."""
_PART_OF_SAMPLE = 500
_DOORS_OF_TASK = {"full": 8, "sample": len(DOORS)}
"""A process takes seconds to begin."""
_AS_PYTHON = {"NUMBA_DISABLE_JIT": "1", "WKWDASK_LZ4": "python"}
_MOST_SECONDS = 3000
"""Time of one door, when nothing else limits it."""
_DONE = re.compile(rb"#(\d+)\s+DONE")


def input_tasks(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[Path], list[Trial]]]]:
    """Yield tasks of some doors each."""
    if find_spec("atheris") is None:
        print("inputs: skipped: atheris is not installed")
        return
    parts = {"full": 1, "sample": _PART_OF_SAMPLE}
    for title, is_machine_code in (("parsers", False), ("machine-code", True)):
        runs = {
            name: _RUNS[door.kind] // parts[options.size]
            for name, door in DOORS.items()
            if (door.kind == "machine code") == is_machine_code and all(map(find_spec, door.needs))
        }
        for number, names in enumerate(_batches(list(runs), _DOORS_OF_TASK[options.size])):
            name = f"{title}-{number}"
            chosen = {each: runs[each] for each in names if options.point in (None, each)}
            if options.cell in (None, name) and chosen:
                seconds = math.ceil(min(60 * options.minutes / len(chosen), _MOST_SECONDS))
                code = {} if is_machine_code else _AS_PYTHON
                yield name, functools.partial(_fuzz, chosen, seconds, options.seed, code)


def _batches(names: list[str], size: int) -> list[list[str]]:
    return [names[first : first + size] for first in range(0, len(names), size)]


def _fuzz(
    runs: dict[str, int], seconds: int, seed: int, environment: dict[str, str], folder: Path
) -> list[Trial]:
    """Fuzz doors in a process of their own."""
    tests = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    # libFuzzer draws a seed in place of 0
    given = map(str, (folder, json.dumps(runs), seconds, seed + 1))
    done = subprocess.run(
        [sys.executable, "-m", "campaign.fuzz", *given],
        env=os.environ | environment | {"PYTHONPATH": path, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    codes = dict(map(json.loads, done.stdout.splitlines()))
    return [_trial(name, codes[name], folder / name.replace(" ", "-")) for name in runs]


def _trial(name: str, code: int, folder: Path) -> Trial:
    """Read what a process left of a door."""
    log = (folder / "log").read_bytes()
    ends = _DONE.findall(log)
    problems = []
    if code or not ends:
        data = b"".join(path.read_bytes() for path in folder.glob("ended-*"))[:300]
        problems.append(f"ended with exit code {code} at {data!r}: {log[-600:].decode()}")
    if (folder / "log.found").exists():
        for line in (folder / "log.found").read_text().splitlines():
            found = json.loads(line)
            problems.append(f"{found['error']} ({' '.join(found['frames'])}): {found['data']}")
    return Trial(
        name,
        f"any bytes, {DOORS[name].kind}",
        name,
        True,
        "failed" if problems else "succeeded",
        tuple(problems),
        number=int(ends[-1]) if ends else 1,
    )
