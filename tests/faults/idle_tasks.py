"""Tasks that do nothing: what they take is the overhead of the runner."""

from __future__ import annotations

import time
from dataclasses import dataclass

from wkwdask.graphs.runners import run_job
from wkwdask.plans.batch_size import ArraySize
from wkwdask.runs.batch_file import Batch, Round, write_batch, write_tasks
from wkwdask.runs.job import FlatJob, Result
from wkwdask.runs.journal import read_journal


@dataclass(frozen=True, slots=True)
class IdleTask:
    """Does nothing."""

    number: int

    @property
    def spec(self):
        """Arguments."""
        return self

    @property
    def name(self):
        """Name in errors."""
        return f"idle task {self.number}"

    @property
    def key(self):
        """Name in the journal."""
        return f"idle {self.number}"

    def run(self):
        """Return its number."""
        return Result((), value=self.number)


class IdleJob(FlatJob):
    """So many tasks; ``sum`` tells in the end that each was taken once."""

    def __init__(self, num_tasks):
        self.sum = 0
        super().__init__(lambda: (IdleTask(n) for n in range(num_tasks)), num_tasks, self._add)

    def _add(self, task, result):
        assert task.number == result.value
        self.sum += 1 + result.value

    def check(self):
        """Make sure that every task came back once."""
        assert self.sum == self.num_tasks * (self.num_tasks + 1) // 2, self.sum


def run_idle(num_tasks):
    """Run so many tasks on the configured scheduler of dask."""
    job = IdleJob(num_tasks)
    run_job(job, "idle")
    job.check()


def write_round(root, num_tasks, elements):
    """Write what the elements of an array read, in the folder of a job."""
    from distributed.protocol.pickle import dumps

    write_tasks(
        f"{root}/round-0.tasks",
        IdleJob(num_tasks).tasks(),
        max(1, min(1000, num_tasks // elements)),
        dumps,
    )
    write_batch(
        root,
        Batch(
            ("idle",),
            root,
            "",
            root,
            ArraySize(elements),
            (),
            (Round("0", "0", num_tasks, elements, 0, time.time(), "round-0.tasks"),),
        ),
    )


def num_journaled(root):
    """Count the tasks that journals say are finished."""
    return sum(1 for _ in read_journal(root))
