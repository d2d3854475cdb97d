"""Life of a job: start, phases, and publication, or a state that a later call can resume.

A verb contributes a plan, which generates phases. It yields tasks that can run together, continues
when they are done, and returns their totals.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wkwdask.errors import ResumeError
from wkwdask.model.summary import counted
from wkwdask.runs.batch_file import HandedToSlurm
from wkwdask.runs.journal import Journal
from wkwdask.runs.retries import FailurePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from wkwdask.runs.parts import ShardTally
    from wkwdask.runs.report import Report
    from wkwdask.runs.space import Need
    from wkwdask.runs.staged import StagedJob

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Phase:
    """Tasks that can run together."""

    job: Any
    """Job with the tasks. In a plan, a ResumableJob."""
    title: str
    failure_policy: FailurePolicy = field(default_factory=FailurePolicy)
    """Limit on failed tasks, and how they are reported."""
    in_process: bool = False
    """Whether tasks hold arrays and must stay in this process."""
    folder: str | None = None
    """Folder for the progress and failures of the phase; by default that of the journal."""
    is_journaled: bool = True
    """False where the plan writes its own journal."""
    staged: StagedJob | None = None
    resources: Mapping[str, float] | None = None
    """Resources that a worker of a dask cluster needs for a task; others run none of them."""


class Work(ABC, Generic[R]):
    """Work of a call that runs tasks and returns a result."""

    __slots__ = ()

    def start(self) -> R | None:
        """Take locks and folders. Return the result if nothing is left to do."""
        return None

    @abstractmethod
    def phases(self) -> Generator[Phase, str, R]:
        """Yield each phase when the one before it is done, and return the result."""

    def suspend(self, error: BaseException) -> None:
        """End a failed attempt, keeping finished work that a later one can use."""


def drive(work: Work[R], run: Callable[..., None]) -> R:
    """Run all phases of some work and return its result; ``run`` is
    ``wkwdask.graphs.runners.run_job``."""
    done = work.start()
    if done is not None:
        return done
    try:
        with contextlib.closing(work.phases()) as phases:
            phase, result = _advance(phases)
            while phase is not None:
                run(
                    phase.job,
                    phase.title,
                    in_process=phase.in_process,
                    failure_policy=phase.failure_policy,
                    folder=phase.folder,
                    resources=phase.resources,
                )
                phase, result = _advance(phases, "")
            final: R = result
            return final
    except HandedToSlurm:
        raise
    except BaseException as error:
        work.suspend(error)
        raise


def _advance(phases: Generator[Phase, str, Any], sent: Any = None) -> tuple[Phase | None, Any]:
    """Return the next phase, or None and the return value of the generator."""
    try:
        return phases.send(sent), None
    except StopIteration as end:
        return None, end.value


# ----------------------------------------------------------------------------- mags


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the phases of a plan."""

    tallies: Sequence[ShardTally]
    note: str = ""


class Plan(ABC):
    """Work of one verb in a job that makes something; :class:`RunPlan` does everything that verbs
    share."""

    __slots__ = ()

    staged: StagedJob

    @abstractmethod
    def phases(self) -> Generator[Phase, str, Outcome]:
        """Yield the phases. Each yield returns a note about tasks that an earlier start finished,
        or an empty text."""

    def nothing_to_do(self) -> Report | None:
        """Return the report of a plan without targets; None if there are targets."""
        return None

    def need(self) -> Need | None:
        """Return the space that the job needs on its disk; None if that is next to nothing."""
        return None

    def finished_before(self, report: Report) -> Report:
        """Accept the report of an equal finished job; raises ResumeError if the source has changed
        since."""
        return report

    def check_unchanged(self) -> None:
        """Check after the last phase that the source was not replaced; raises
        IncompleteWriteError."""
        return


class RunPlan(Work["Report"]):
    """Job of a plan, new or resumed."""

    __slots__ = ("_plan",)

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def start(self) -> Report | None:
        """Take the locks and create the job folder."""
        report = self._plan.nothing_to_do()
        if report is not None:
            return report
        staged = self._plan.staged
        report = staged.start()
        try:
            return None if report is None else self._plan.finished_before(report)
        except ResumeError:
            if staged.existing != "overwrite":
                raise
            # the source has changed since the interrupted job, whose publication is complete now
            return staged.start()

    def phases(self) -> Generator[Phase, str, Report]:
        """Run the phases of the plan with a journal, then publish what they made."""
        staged, note = self._plan.staged, ""
        with contextlib.closing(self._plan.phases()) as phases:
            phase, outcome = _advance(phases)
            while phase is not None:
                staged = phase.staged or staged
                if phase.is_journaled:
                    with Journal(staged.root) as journal:
                        journaled = staged.journaled(phase.job, journal)
                        yield replace(phase, job=journaled)
                    note = (
                        f"{counted(journaled.num_known, 'task')} had been finished before"
                        if journaled.num_known
                        else ""
                    )
                else:
                    yield replace(phase, folder=staged.root)
                phase, outcome = _advance(phases, note)
        self._plan.check_unchanged()
        return staged.publish(outcome.tallies, outcome.note)

    def suspend(self, error: BaseException) -> None:
        """Keep finished tasks for the next attempt."""
        self._plan.staged.suspend(error)
