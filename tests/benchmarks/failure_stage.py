"""Setting of the failure matrix: a private SLURM, jobs, and the measurement of runs with a
fault."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from faults.works import Meanwhile, num_repeated

from wkwdask.errors import WkwDaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOMENT = 30  # how many tasks have ended when the fault comes
SECONDS = 0.2  # of each task


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job."""

    proof: str
    """Proof that the fault happened."""
    result: str
    """End of the job, and steps to complete it."""
    seconds: float
    """Duration with the completion [s]."""
    undisturbed: float
    """Duration of an undisturbed run on the same cluster [s]."""
    repeated: int
    """Tasks that were begun more than once."""
    tasks: int
    """Tasks of the job."""


@dataclass
class Stage:
    """Shared state of all rows."""

    slurm: Any
    """The private cluster."""
    works: dict[str, Any]
    """Jobs by name."""
    folder: Path
    """Folder of all files."""
    _numbers: int = 0

    def new(self, name: str) -> Path:
        """Return an unused path."""
        self._numbers += 1
        return self.folder / f"{self._numbers}-{name}"

    def undisturbed(self, work: Any, seconds: float) -> float:
        """Time a run without a fault on what is active: the second one, since the first compiles
        and imports in every worker."""
        for n in range(2):
            folder = work.start(self.new("calm"))
            started = time.monotonic()
            work.build(folder, self.new("log"), seconds if n else 0.02)
            took = time.monotonic() - started
            work.check(folder)
        return took

    def disturbed(
        self,
        work: Any,
        act: Callable[[], Callable[[], str]],
        undisturbed: float,
        *,
        seconds: float = SECONDS,
        again: Callable[[], Any] | None = None,
        after: Callable[[], Any] = lambda: None,
    ) -> Outcome:
        """Run a job and inject a fault in the middle.

        Parameters
        ----------
        work
            The job.
        act : callable
            Injects the fault; returns a function that reports the proof at the end.
        undisturbed : float
            Seconds of a run without it.
        seconds : float
            Added duration of each task.
        again : callable, optional
            Prepares another attempt after an error; returns a context.
        after : callable
            Lets those that were stopped or cut off come back when the job is over.
        """
        folder, log = work.start(self.new("storm")), self.new("log")
        started = time.monotonic()
        result = "completes"
        with Meanwhile(log, MOMENT, act) as meanwhile:
            try:
                work.build(folder, log, seconds)
            except WkwDaskError as error:
                result = f"{type(error).__name__}: {str(error)[:120]}; resumed"
        if result != "completes":
            with again() if again is not None else contextlib.nullcontext():
                work.build(folder, log, seconds, existing="resume")
        outcome = self.judged(work, folder, log, started, undisturbed, meanwhile.found(), result)
        after()
        work.check(folder)
        return replace(outcome, repeated=num_repeated(log))

    def judged(
        self,
        work: Any,
        folder: Path,
        log: Path,
        started: float,
        undisturbed: float,
        proof: str,
        result: str,
    ) -> Outcome:
        """Compare a tree with that of an undisturbed run."""
        took = time.monotonic() - started
        work.check(folder)
        return Outcome(
            proof,
            f"{result}, tree identical",
            took,
            undisturbed,
            num_repeated(log),
            len(work.tasks),
        )


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence the messages of dask about lost connections."""
    import logging

    names = (
        "distributed",
        "distributed.client",
        "distributed.core",
        "distributed.comm",
        "distributed.scheduler",
        "tornado.application",
        "asyncio",
    )
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
