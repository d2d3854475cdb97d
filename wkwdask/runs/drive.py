"""How every job runs, whatever the verb: it starts, its phases are run one after the other, and what it made appears, or it leaves what can go on.

A verb contributes a plan: a generator of phases. It yields tasks that can run together, goes on when they are done, and returns what came of them.
"""

from __future__ import annotations

import contextlib
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from wkwdask.errors import SpaceWarning
from wkwdask.runs.batch_file import HandedOver
from wkwdask.runs.tolerant import Tolerance

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from wkwdask.runs.job import Job
    from wkwdask.runs.report import Report
    from wkwdask.runs.staged import StagedMags
    from wkwdask.runs.tally import ShardTally

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Phase:
    """Tasks that can run together."""

    job: Any
    """The tasks, a Job; a ResumableJob where mags are made."""
    title: str
    """What the progress is called."""
    tolerance: Tolerance = field(default_factory=Tolerance)
    """How many failures are borne."""
    here: bool = False
    """Whether tasks hold arrays, so that they stay in this process."""
    folder: str | None = None
    """The job's folder, which keeps what the phase tells about itself; by default that of its journal."""
    is_journaled: bool = True
    """Whether what a task of a mag gives is kept, so that it is not done again; else the plan keeps it."""
    staged: StagedMags | None = None
    """What is written, where the phases before changed it."""


class Runner(Protocol):
    """Runs the tasks of a job to their end, such as ``wkwdask.graphs.runners.run_job``."""

    def __call__(self, job: Job, title: str, *, here: bool = ..., tolerance: Tolerance | None = ..., folder: str | None = ...) -> None:
        """Run them."""


class Work(ABC, Generic[R]):
    """What a call does by tasks."""

    __slots__ = ()

    def start(self) -> R | None:
        """Take what the work needs; gives its result where nothing is left to do."""
        return None

    @abstractmethod
    def phases(self) -> Generator[Phase, str, R]:
        """Give the phases one by one, each when those before are done, and return the result; what is sent says what of a phase was done before."""

    def leave(self, error: BaseException) -> None:
        """End an attempt that failed."""


def drive(work: Work[R], run: Runner) -> R:
    """Run a work to its end.

    Parameters
    ----------
    work : Work
        What to do.
    run : callable
        Runs the tasks of each phase.

    Returns
    -------
    object
        Its result.

    Raises
    ------
    HandedOver
        The batch system goes on with it.
    """
    done = work.start()
    if done is not None:
        return done
    try:
        with contextlib.closing(work.phases()) as phases:
            phase, result = _advance(phases)
            while phase is not None:
                run(phase.job, phase.title, here=phase.here, tolerance=phase.tolerance, folder=phase.folder)
                phase, result = _advance(phases, "")
            made: R = result
            return made
    except HandedOver:
        raise
    except BaseException as error:
        work.leave(error)
        raise


def _advance(phases: Generator[Phase, str, Any], sent: Any = None) -> tuple[Phase | None, Any]:
    """Give the next phase, or none and what the generator returned."""
    try:
        return phases.send(sent), None
    except StopIteration as end:
        return None, end.value


# ----------------------------------------------------------------------------- mags


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the phases of a plan."""

    tallies: Sequence[ShardTally]
    """What was written to each mag."""
    note: str = ""
    """What a user should know."""


class Plan(ABC):
    """What a verb does to make mags: its own part of a job, the rest is :class:`Making`."""

    __slots__ = ()

    staged: StagedMags
    """What is written, and how it appears."""

    @abstractmethod
    def phases(self) -> Generator[Phase, str, Outcome]:
        """Give the phases; what is sent is a note of the tasks that had been finished before."""

    def nothing_to_do(self) -> Report | None:
        """Give the report of a plan that makes nothing."""
        return None

    def problems(self) -> list[str]:
        """Say what may keep the job from its end, before it begins."""
        return []

    def finished_before(self, report: Report) -> Report:
        """Accept the report of an equal job that was finished before; raises ResumeError where the source is another one now."""
        return report

    def check_unchanged(self) -> None:
        """Make sure, in the end, that the source is still the one that was read; raises IncompleteWriteError."""
        return


class Making(Work["Report"]):
    """Makes mags, or goes on with an interrupted job.

    Parameters
    ----------
    plan : Plan
        What a verb does.
    """

    __slots__ = ("_plan",)

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def start(self) -> Report | None:
        """Take the locks and make the job's folder."""
        report = self._plan.nothing_to_do()
        if report is not None:
            return report
        report = self._plan.staged.start()
        return None if report is None else self._plan.finished_before(report)

    def phases(self) -> Generator[Phase, str, Report]:
        """Keep a journal of each phase, and let the mags appear in the end."""
        for problem in self._plan.problems():
            warnings.warn(problem, SpaceWarning, stacklevel=8)
        staged, note = self._plan.staged, ""
        with contextlib.closing(self._plan.phases()) as phases:
            phase, outcome = _advance(phases)
            while phase is not None:
                staged = phase.staged or staged
                if phase.is_journaled:
                    with staged.journal() as journal:
                        journaled = staged.journaled(phase.job, journal)
                        yield replace(phase, job=journaled)
                    note = f"{journaled.num_known} tasks had been finished before" if journaled.num_known else ""
                else:
                    yield replace(phase, folder=staged.root)
                phase, outcome = _advance(phases, note)
        self._plan.check_unchanged()
        return staged.publish(outcome.tallies, outcome.note)

    def leave(self, error: BaseException) -> None:
        """Leave what was finished for the next attempt."""
        self._plan.staged.leave(error)
