"""The command: choose points by a seed, run them in forks of a warm process, and print tables."""

from __future__ import annotations

import argparse
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from . import system_calls
from .forks import Child
from .results import Part, SavedTrials, document, format_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .results import Trial

PARTS = (
    ("calls", "cells:system_call_tasks"),
    ("power", "cells:power_loss_tasks"),
    ("requests", "bucket_requests:request_tasks"),
    ("places", "places:place_tasks"),
    ("model", "model:model_tasks"),
    ("inputs", "inputs:input_tasks"),
    ("chains", "chains:chain_tasks"),
    ("controls", "controls:control_tasks"),
)
"""Parts of the campaign: name and function.

The function takes the parsed options. It yields tasks: a name, and a function that takes a folder
and returns trials. Tasks run in forks of this process, which has one thread: the functions of parts
start none.
"""
_MEMORY = Path("/dev/shm")
_POINTS = {"full": 15_000, "sample": 400}
"""Points to draw; verbs that change no files have none of theirs."""
_LIMIT_SECONDS = 3600.0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    names = [name for name, _ in PARTS]
    parser = argparse.ArgumentParser(prog="python tests/campaign/run.py", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same points")
    parser.add_argument(
        "--points", type=int, help="number of faults at system calls (default 400, or 15,000)"
    )
    parser.add_argument(
        "--full", action="store_true", help="all points in place of a sample of some minutes"
    )
    parser.add_argument("--cell", metavar="NAME", help="only one task, such as rechunk-wkw")
    parser.add_argument(
        "--point", metavar="PLACE", help="with --cell: only one point, as it was printed"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=names, default=names, help="parts (default: all)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="begin nothing in a part after this time",
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="tasks that run at the same time (default 1)"
    )
    parser.add_argument("--list", action="store_true", help="print the names of tasks and end")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="save what is done; the same call goes on"
    )
    parser.add_argument(
        "--document", action="store_true", help="write the tables of these parts to docs/safety.md"
    )
    options = parser.parse_args(arguments)
    options.size = "full" if options.full else "sample"
    if options.points is None:
        options.points = _POINTS[options.size]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return 1 if it found something."""
    options = parse_arguments(arguments)
    if system_calls.is_loaded():
        return _run(options)
    with tempfile.TemporaryDirectory() as folder:
        library = system_calls.compile_library(Path(folder))
        if library is None:
            print("skipped: the campaign needs Linux and a C compiler named cc")
            return 0
        given = sys.argv[1:] if arguments is None else arguments
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process ends
        return subprocess.run(
            [sys.executable, Path(__file__).with_name("run.py"), *given],
            env=os.environ | {"LD_PRELOAD": str(library), "WKWDASK_PROGRESS": "off"},
            check=False,
        ).returncode


def _run(options: argparse.Namespace) -> int:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, lambda *_: setattr(options, "minutes", 0.0))
    os.environ.pop("LD_PRELOAD")  # what this process starts is not of the campaign
    parts: list[Part] = []
    failed = 0
    saved = SavedTrials(options)
    for part, function in PARTS:
        if part not in options.parts:
            continue
        tasks = pkgutil.resolve_name(f"{__package__}.{function}")(options)
        if options.list:
            print(part, *sorted({f"    {name}" for name, _ in tasks}), sep="\n")
            continue
        done = saved.part(part)
        left = (task for task in enumerate(tasks) if task[0] not in done.tasks)
        for number, name, found in _in_forks(left, options):
            if isinstance(found, str):
                failed += 1
                print(f"{part}: {name} could not be run: {found}", flush=True)
                continue
            saved.add(part, number, found)
            for trial in found:
                if trial.problems or options.point:
                    print(f"--parts {part} --cell '{name}' --point '{trial.place}'")
                    print(f"    {trial.name}, {trial.outcome}")
                    print(*(f"    {problem}" for problem in trial.problems), sep="\n", flush=True)
        parts.append(done)
        print(done, flush=True)
    if options.list:
        return 0
    print(*(f"{part}\n\n{format_part(part)}\n" for part in parts), sep="\n")
    print(f"seed {options.seed}; {failed} tasks could not be run")
    if options.document:
        chosen = ["--full"] * options.full + [f"--seed {options.seed}"] * (options.seed != 0)
        document(parts, " ".join(["python tests/campaign/run.py", *chosen]))
    found = any(trial.problems for part in parts for trial in part.trials)
    return 1 if failed or found else 0


def _in_forks(
    tasks: Iterator[tuple[int, tuple[str, Callable[[Path], list[Trial]]]]],
    options: argparse.Namespace,
) -> Iterator[tuple[int, str, list[Trial] | str]]:
    """Run tasks, some at the same time; yield their numbers and names with trials or an error."""
    started = time.monotonic()
    running: dict[Child, tuple[int, str, tempfile.TemporaryDirectory[str]]] = {}
    try:
        while True:
            while (
                len(running) < options.processes
                and time.monotonic() - started < 60 * options.minutes
            ):
                if (task := next(tasks, None)) is None:
                    break
                number, (name, function) = task
                memory = tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None)
                child = Child(lambda f=function, m=memory: f(Path(m.name)), _LIMIT_SECONDS)
                running[child] = number, name, memory
            if not running:
                return
            select.select(list(running), [], [], 1.0)
            for child in list(running):
                if (ending := child.poll()) is not None:
                    number, name, memory = running.pop(child)
                    memory.cleanup()
                    yield number, name, ending.error or ending.value
    finally:
        for child, (_, _, memory) in running.items():
            child.kill()
            memory.cleanup()
