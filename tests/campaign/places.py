"""Part of the campaign: clocks that jump, processes that stop and wake up, and records of other
machines, other starts of this machine and processes whose numbers were given again."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import random
import re
import time
from typing import TYPE_CHECKING

import wkwdask
from wkwdask.store import locks

from .cells import chosen_cells, undisturbed
from .results import Trial
from .system_calls import CLOCK_AHEAD, CLOCK_BACK, FAULTS, STOP, shifted_clock
from .trials import JobChild, Point, Undisturbed, in_child

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from .jobs import Cell
    from .system_calls import Fault
    from .trials import Ending

_POINTS = {"full": 2000, "sample": 40}
_POINTS_OF_CELL = 10
_MONTH = 30 * 86_400
_WAIT_SECONDS = 2.0
"""For a process that waits for a stopped one."""
_LOCK = re.compile(r"\.wkwdask(-region)?-lock$")
_KILLED = FAULTS["killed before"]


def place_tasks(
    options: argparse.Namespace,
) -> Iterator[tuple[str, Callable[[Path], list[Trial]]]]:
    """Yield cells in an order drawn from the seed."""
    rng, cells = random.Random(options.seed), chosen_cells(options)
    number = min(len(cells), _POINTS[options.size] // _POINTS_OF_CELL)
    for cell in rng.sample(cells, number):
        seed = f"{options.seed} {cell}"
        yield str(cell), changes_of_place(cell, seed, _POINTS_OF_CELL, options.point)


def changes_of_place(
    cell: Cell,
    seed: str,
    number: int,
    only: str | None = None,
    prepare: Callable[[], None] = lambda: None,
    kinds: Collection[str] = (),
) -> Callable[[Path], list[Trial]]:
    """Return a function that tries so many points of a cell, or ``only`` one; ``prepare`` changes
    the package after the undisturbed run."""

    def trials(folder: Path) -> list[Trial]:
        inspect.unwrap(locks.locked_file).__kwdefaults__["timeout_seconds"] = 0.5
        rng = random.Random(seed)
        jobs = undisturbed(cell, folder, rng)
        prepare()
        points = [
            _draw(rng.choice(jobs), kinds or _KINDS, rng) for _ in range(number if jobs else 0)
        ]
        points = [Point.parse(only)] if only else points
        return [_KINDS[point.fault](jobs[point.job], point) for point in points]

    return trials


def _draw(known: Undisturbed, kinds: Collection[str], rng: random.Random) -> Point:
    return Point(known.job.number, known.draw_call(rng), rng.choice(list(kinds)))


def _trial(known: Undisturbed, point: Point, first: Ending, problems: list[str], **how) -> Trial:
    """Return the trial of a job that has ended, after the same call was made again."""
    if not first.is_ours:
        problems.append(f"the job ended badly: {first.error}")
    found, is_lost = known.compare(problems, **how)
    name = f"{known.job.name}, {known.calls[point.call - 1]}"
    outcome = "killed" if first.is_killed else first.error or "succeeded"
    return Trial(str(point), point.fault, name, True, outcome, found, is_lost)


def _jump(fault: Fault) -> Callable[[Undisturbed, Point], Trial]:
    """The clock jumps at a system call."""

    def trial(known, point):
        first = known.run_with_fault(point.call, fault)
        problems = [f"the job did not bear the jump: {first.error}"] if first.error else []
        return _trial(known, point, first, problems, is_complete=not first.error)

    return trial


def _killed(seconds: int) -> Callable[[Undisturbed, Point], Trial]:
    """The job is killed, and another clock shows when the same call is made again."""

    def trial(known, point):
        first = known.run_with_fault(point.call, _KILLED)
        with shifted_clock(seconds):
            return _trial(known, point, first, [], is_complete=False)

    return trial


def _of_dead(**changes: object) -> Callable[[Undisturbed, Point], Trial]:
    """The job is killed, and its records name a process that has ended for another reason."""

    def trial(known, point):
        first = known.run_with_fault(point.call, _KILLED)
        _edit_owners(known.root, changes)
        return _trial(known, point, first, [], is_complete=False)

    return trial


def _elsewhere(known: Undisturbed, point: Point) -> Trial:
    """The job is killed, and its records name another machine: nobody takes its locks over."""
    first = known.run_with_fault(point.call, _KILLED)
    before = _edit_owners(known.root, {"host": "elsewhere", "boot": "elsewhere"})
    held = {path: path.read_bytes() for path in before if _LOCK.search(path.name)}
    second, problems = in_child(known.run), []
    if not second.is_ours:
        problems.append(f"the same call ended badly: {second.error}")
    for path, data in held.items():
        if not path.exists() or path.read_bytes() != data:
            problems.append(f"a lock of another machine was taken over: {path.name}")
    for path, data in before.items():
        if path.exists():
            path.write_bytes(data)
    return _trial(known, point, first, problems, is_complete=False)


def _edit_owners(root: Path, changes: dict[str, object]) -> dict[Path, bytes]:
    """Change records of owners; return those that were there before."""
    before = {}
    for path in filter(_is_record, root.rglob("*")):
        data = path.read_bytes()
        with contextlib.suppress(ValueError):
            record = json.loads(data)
            if isinstance(record, dict) and {"boot", "pid"} <= record.keys():
                before[path] = data
                path.write_text(json.dumps(record | changes))
    return before


def _is_record(path: Path) -> bool:
    return path.is_file() and (_LOCK.search(path.name) is not None or path.name == "owner.json")


def _stopped(other_of: Callable[[Undisturbed], object]) -> Callable[[Undisturbed, Point], Trial]:
    """The job stops; another process, whose clock shows a later time, does something; then the job
    goes on."""

    def trial(known, point):
        first = known.start_with_fault(point.call, STOP)
        while first.poll(0.001) is None and not first.is_stopped():
            pass
        with shifted_clock(_MONTH):
            other = JobChild(lambda: other_of(known))
        end = time.monotonic() + _WAIT_SECONDS
        while other.poll(0.1) is None and time.monotonic() < end:
            pass
        if first.poll() is None:
            first.wake()
        early, second = first.ended(), other.ended()
        problems = []
        if not second.is_ours:
            problems.append(f"the other process ended badly: {second.error}")
        is_same = other_of is Undisturbed.run
        if not is_same and early.error:
            problems.append(f"the job did not survive: {early.error}")
        is_complete = not early.error or (is_same and not second.error)
        return _trial(known, point, early, problems, is_complete=is_complete)

    return trial


def _clean(known: Undisturbed) -> None:
    for url in known.images():
        with contextlib.suppress(wkwdask.MissingError):
            wkwdask.clean(url)


_KINDS = {
    CLOCK_AHEAD.name: _jump(CLOCK_AHEAD),
    CLOCK_BACK.name: _jump(CLOCK_BACK),
    "killed, clock a month ahead": _killed(_MONTH),
    "killed, clock a day back": _killed(-86_400),
    "killed, another start": _of_dead(boot="another"),
    "killed, number given again": _of_dead(pid=os.getpid()),
    "killed, another machine": _elsewhere,
    "stopped, repeated, woken": _stopped(Undisturbed.run),
    "stopped, cleaned, woken": _stopped(_clean),
}
