"""The reference for every runner."""

from __future__ import annotations

from wkwdask.runs.job import run_task


def run_serially(job):
    """Run a job in this thread, in order."""
    waiting = [iter(job.tasks())]
    while waiting:
        task = next(waiting[-1], None)
        if task is None:
            waiting.pop()
        else:
            waiting.append(iter(job.receive(task, run_task(task))))
