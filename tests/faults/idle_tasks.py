"""Tasks that do nothing: what they take is the overhead of the runner."""

from __future__ import annotations

from dataclasses import dataclass

from wkwdask.runs.job import FlatJob, Result


@dataclass(frozen=True, slots=True)
class IdleTask:
    """Does nothing."""

    number: int

    @property
    def spec(self):
        """What it is called with."""
        return self

    @property
    def name(self):
        """What an error calls it."""
        return f"idle task {self.number}"

    @property
    def key(self):
        """What a journal calls it."""
        return f"idle {self.number}"

    def run(self):
        """Give its number back."""
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
