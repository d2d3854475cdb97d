"""Trials of one job: a child gets a fault, another one makes the same call again."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import wkwdask
from wkwdask.errors import FormatError, ReplacedError, WkwDaskError
from wkwdask.runs import retries

from . import forks, system_calls
from .power import Crashes
from .results import Trial
from .synced import stated_steps, violations
from .system_calls import FAULTS, Fault, faults_of
from .trees import Tree, differences, mixtures, restore, tree_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from .jobs import Job
    from .power import Crash
    from .system_calls import Call

_LIMIT_SECONDS = 120.0
_MAGS = ("1", "2-2-1", "2-2-2", "4-4-2", "8-8-4")
"""Mags that jobs of the matrix write."""
_LARGEST_NBYTES = 1 << 28
_real_sleep = time.sleep


@dataclass(frozen=True)
class Point:
    """Place of a fault."""

    job: int
    call: int
    """Number of the system call, from 1 on."""
    fault: str

    def __str__(self) -> str:
        return f"{self.job}:{self.call}:{self.fault}"

    @classmethod
    def parse(cls, text: str) -> Point:
        job, call, fault = text.split(":")
        return cls(int(job), int(call), fault)


@dataclass(frozen=True)
class Ending:
    """How a job in a child ended."""

    error: str = ""
    """Type and text of its error; empty if there was none."""
    is_ours: bool = True
    """Whether its error is one that a user may see."""
    exists: bool = False
    """Whether it found that there is nothing to do."""
    value: Any = None
    is_killed: bool = False


class JobChild(forks.Child):
    """A forked child that runs a job."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(lambda: _ending_of(function), _LIMIT_SECONDS)

    def poll(self, seconds: float = 0.0) -> Ending | None:
        """Wait for some output; return how the job ended, None while it runs."""
        ending = super().poll(seconds)
        if ending is None or not ending.error:
            return None if ending is None else ending.value
        is_killed = ending.code == -signal.SIGKILL
        return Ending(ending.error, is_ours=is_killed, is_killed=is_killed)


def in_child(function: Callable[[], Any]) -> Ending:
    """Run a function in a forked child and return how it ended."""
    return JobChild(function).ended()


def _ending_of(function: Callable[[], Any]) -> Ending:
    time.sleep = lambda seconds: _real_sleep(min(seconds, 0.001))
    retries._PAUSES_SECONDS = (0.0,) * len(retries._PAUSES_SECONDS)
    try:
        return Ending(value=function())
    except BaseException as error:
        system_calls.disarm()
        is_ours = isinstance(error, (WkwDaskError, OSError))
        return Ending(
            f"{type(error).__name__}: {error}" + ("" if is_ours else trace_of(error)),
            is_ours,
            isinstance(error, (wkwdask.ExistsError, wkwdask.MissingError)),
            value=system_calls.has_hit(),
        )


def trace_of(error: BaseException) -> str:
    return "\n" + "".join(traceback.format_exception(error)[-6:])


class Undisturbed:
    """A job that nothing disturbs: the folder before and after it, and its system calls."""

    def __init__(self, job: Job, root: Path) -> None:
        self.job, self.root = job, root
        self.calls: list[str] = []
        trees = []
        for function in (self.run, self._count):
            restore(job.before, root)
            self.old = tree_of(root)
            ending = in_child(function)
            if ending.error:
                raise RuntimeError(f"call {job.number}, {job.name}, fails: {ending.error}")
            trees.append(tree_of(root))
        self.calls, self.sound, self.voxels = ending.value
        self.new = trees[0]
        changing = set(differences(*trees))
        self.exempt = frozenset(changing)
        """Files whose bytes differ between two runs."""

    def run(self) -> None:
        """Run the job in this process."""
        self.job.run()

    def _count(self) -> tuple[list[str], list[str], list[dict]]:
        """Run the job; return its system calls, the URLs that are sound after it, and the voxels
        before and after it."""
        before = self._digests()
        system_calls.arm(str(self.root))
        self.job.run()
        calls = system_calls.counted_calls()
        system_calls.disarm()
        after = self._digests()
        # a level is visible once the documents of its image list it
        images = {url for url, mag in before if before[url, mag] != after[url, mag]}
        keys = [key for key in before if _parent(key[0]) not in images]
        voxels = [{key: digests[key] for key in keys} for digests in (before, after)]
        return calls, [url for url in self._urls() if _faults_of(url) == []], voxels

    def images(self) -> list[str]:
        """List the URLs that the call names, and of those that may contain them."""
        urls = {url for url in self._urls() if str(self.root) != _parent(url)}
        return sorted(urls | {_parent(url) for url in urls})

    def _digests(self) -> dict[tuple[str, str], str | None]:
        return {key: _digest(*key) for key in itertools.product(self.images(), _MAGS)}

    def _urls(self) -> Iterator[str]:
        """Yield the arguments of the call that are URLs in the folder."""
        for value in (*self.job.arguments, *self.job.options.values()):
            if str(self.root) in (text := str(value)) and "\n" not in text:
                yield text

    def draw_call(self, rng: random.Random, among: Collection[str] | None = None) -> int:
        """Draw a system call: each kind is as probable as any other."""
        kind = rng.choice(sorted(set(self.calls) if among is None else among))
        return rng.choice([n for n, name in enumerate(self.calls, 1) if name == kind])

    def points(self, number: int, faults: Collection[str], rng: random.Random) -> list[Point]:
        """Draw system calls and faults."""
        possible = {
            kind: names
            for kind in set(self.calls)
            if (names := [fault.name for fault in faults_of(kind) if fault.name in faults])
        }
        calls = [self.draw_call(rng, possible) for _ in range(number if possible else 0)]
        return [
            Point(self.job.number, call, rng.choice(possible[self.calls[call - 1]]))
            for call in calls
        ]

    def try_point(self, point: Point) -> Trial:
        """Run the job with a fault, look at what is visible, and make the same call again."""
        fault = FAULTS[point.fault]
        first = self.run_with_fault(point.call, fault)
        problems = []
        if not first.is_ours:
            problems.append(f"the job ended badly: {first.error}")
        if first.error.startswith("LockedError"):
            problems.append(f"the job did not see that a lock is its own: {first.error}")
        if fault.is_harmless and first.error:
            problems.append(f"the job did not bear the fault: {first.error}")
        return Trial(
            str(point),
            fault.name,
            f"{self.job.name}, {self.calls[point.call - 1]}",
            first.is_killed or bool(first.value),
            "killed" if first.is_killed else first.error or "succeeded",
            *self.compare(problems, is_complete=not first.error, needs_clean=fault.is_outage),
        )

    def start_with_fault(self, call: int, fault: Fault) -> JobChild:
        """Start the job, which gets a fault at a system call."""
        restore(self.job.before, self.root)
        return JobChild(lambda: self._with_fault(call, fault))

    def run_with_fault(self, call: int, fault: Fault) -> Ending:
        """Run the job with a fault at a system call."""
        return self.start_with_fault(call, fault).ended()

    def compare(
        self, problems: list[str], *, is_complete: bool, needs_clean: bool = False
    ) -> tuple[tuple[str, ...], bool]:
        """Compare what is visible with the old and the new state, and make the same call again,
        with ``needs_clean`` and a call of ``clean``; return what is wrong, and whether voxels are
        lost."""
        seen = tree_of(self.root)
        mixed = mixtures(seen, self.old, self.new, self.exempt, by_file=self.job.is_by_file)
        if is_complete and differences(seen, self.new, self.exempt):
            mixed.append(f"the job succeeded, but {self._unlike_new(seen)}")
        is_done = not differences(seen, self.new, self.exempt) and not (
            seen.leftovers - self.new.leftovers
        )
        repeated = self._repeated(is_done=is_done, is_complete=is_complete, needs_clean=needs_clean)
        problems += [*mixed, *repeated]
        is_lost = any("after it" in text or "are lost" in text for text in problems)
        return tuple(problems), is_lost or bool(mixed)

    def crashes(self) -> Crashes:
        """Record the job with its data, for power losses."""
        restore(self.job.before, self.root)
        inodes = {
            path.stat(follow_symlinks=False).st_ino: str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if path.is_symlink() or path.is_file()
        }
        ending = in_child(self._record)
        if ending.error:
            raise RuntimeError(f"{self.job.name} fails: {ending.error}")
        return Crashes(self.job.before, str(self.root), inodes, ending.value)

    def _record(self) -> list[Call]:
        system_calls.arm(str(self.root), keeps_data=True)
        self.job.run()
        system_calls.disarm()
        return system_calls.recorded_calls()

    def check_order(self, crashes: Crashes) -> Trial:
        """Check that the job syncs what the documentation states."""
        problems = tuple(violations(crashes.calls, stated_steps()))
        place = f"{self.job.number}:order"
        return Trial(place, "power loss", self.job.name, True, "succeeded", problems)

    def try_crash(self, crashes: Crashes, crash: Crash) -> Trial:
        """Lay out what a power loss leaves, look at it, and make the same call again."""
        crashes.lay_out(crash.kept, self.root)
        place = f"{self.job.number}:{crash.name}"
        problems, is_lost = self.compare([], is_complete=crash.is_after_end, needs_clean=True)
        return Trial(place, "power loss", self.job.name, True, "killed", problems, is_lost)

    def _with_fault(self, call: int, fault: Fault) -> bool:
        system_calls.arm(str(self.root), call, fault)
        self.job.run()
        system_calls.disarm()
        return system_calls.has_hit()

    def _repeated(self, **how: bool) -> list[str]:
        """Make the same call again unless all is done, and compare with the undisturbed job."""
        again = in_child(lambda: self._read_run_and_verify(**how))
        problems = list(again.value or ())
        if not self.root.is_dir():
            self.root.mkdir()
            problems.append("the folder around the image is gone")
        found = tree_of(self.root)
        if again.error and not (again.exists and not differences(found, self.new, self.exempt)):
            problems.append(f"the same call failed: {again.error}")
        elif differences(found, self.new, self.exempt):
            problems.append(f"the same call succeeded, but after it {self._unlike_new(found)}")
        if left := sorted(found.leftovers - self.new.leftovers):
            problems.append(f"left over: {', '.join(left)}")
        return problems

    def _read_run_and_verify(
        self, *, is_done: bool, is_complete: bool, needs_clean: bool
    ) -> list[str]:
        problems = [] if self.job.is_by_file else self._mixed_voxels()
        # a job that ended with an error may have written all, and have recorded less
        is_sound = is_done and not any(_faults_of(url) for url in self.sound)
        # what a job had removed before a power loss may be back, and look interrupted
        if (needs_clean or not is_complete) and not is_sound:
            # a job that is complete says so
            with contextlib.suppress(wkwdask.ExistsError, wkwdask.MissingError):
                self.job.run()
        if needs_clean:
            self._clean()
        faults = [fault for url in self.sound for fault in _faults_of(url)]
        return problems + [f"verify found: {fault}" for fault in faults]

    def _clean(self) -> None:
        """Remove what a power loss has brought back: removals are not synced."""
        for path in self.root.rglob(".wkwdask-job-*"):
            os.utime(path, (0, 0))  # a job may be about to write its first record for an hour
        for url in {*self._urls(), *self.images(), *map(_parent, self.images())}:
            with contextlib.suppress(wkwdask.MissingError):
                wkwdask.clean(url)

    def _mixed_voxels(self) -> list[str]:
        """Describe mags that read neither as before the job nor as after it."""
        old, new = self.voxels
        problems = []
        for (url, mag), known in old.items():
            if known is new[url, mag] is None:
                continue
            found = _digest(url, mag)
            if found not in (known, new[url, mag], ReplacedError.__name__):
                problems.append(f"voxels of {url} in mag {mag} are lost: {found}")
        return problems

    def _unlike_new(self, found: Tree) -> str:
        names = differences(found, self.new, self.exempt)
        return f"{len(names)} files are not as without a fault: {', '.join(names[:3])}"


def _parent(url: str) -> str:
    return url.rpartition("/")[0]


def _digest(url: str, mag: str) -> str | None:
    """Return a digest of the voxels of a mag; None if there is none, and the name of another
    error."""
    try:
        array = wkwdask.open(url, mag=mag)
        if array.nbytes > _LARGEST_NBYTES:
            return f"an array of shape {array.shape}"
        return hashlib.sha256(array.compute().tobytes()).hexdigest()
    except (wkwdask.MissingError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}" if isinstance(error, FormatError) else None
    except ReplacedError:
        return ReplacedError.__name__


def _faults_of(url: str) -> list[str]:
    """Return what ``verify`` finds; one entry if it cannot check the URL."""
    try:
        return [str(fault) for fault in wkwdask.verify(url).faults]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
