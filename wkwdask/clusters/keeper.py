"""Keeps the jobs of a dask-jobqueue cluster alive: dask's adaptive scaling, which here also notices jobs that are gone.

Without it a job that reached its walltime or lifetime, was preempted or cancelled, leaves the cluster smaller for ever: dask-jobqueue never submits it again
where a job holds several worker processes, or where it was cancelled before its worker came.
"""

from __future__ import annotations

import asyncio
import getpass
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click
from distributed import Status
from distributed.deploy.adaptive import Adaptive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TRIES = 3
_QUEUE_COMMANDS = {"SLURMCluster": ("squeue", "--noheader", "--states=all", "--format=%i %T %r", "--user")}
_WILL_COME = ("PENDING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESIZING", "STOPPED")
_NOT_ITS_FAULT = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "REVOKED")


def job_of(worker: Any) -> str:
    """Name the job of a worker; processes of one job are called JOB-0, JOB-1 and so on."""
    return str(worker.name).rpartition("-")[0]


class Keeper(Adaptive):
    """Scales a cluster of jobs, and submits jobs again that are gone."""

    def __init__(self, cluster: Any, *, lost_after: float = 15.0, queue_check: float = 15.0, logs: str = "", **options: Any) -> None:
        self.failure = ""
        self._jobs = cluster
        self._lost_after = lost_after
        self._queue_check = queue_check
        self._logs = logs
        self._next_check = 0.0
        self._absent_since: dict[str, float] = {}
        self._seen: set[str] = set()
        self._failed: Counter[str] = Counter()
        self._refused = 0
        self._told: set[str] = set()
        super().__init__(cluster, **options)

    async def adapt(self) -> None:
        """Submit jobs again that are gone, then scale as dask does."""
        if self.failure or self._adapting:
            return
        try:
            await self._drop_lost_jobs()
            await super().adapt()
            self._refused = 0
        except RuntimeError as error:  # a job was refused
            self._refused += 1
            if self._refused >= _TRIES and not self._workers_here():
                await self._give_up(f"jobs cannot be submitted: {refusal(error)}")

    def _workers_here(self) -> set[str]:
        return {str(worker.name) for worker in self._jobs.scheduler.workers.values()}

    def _members(self, job: str) -> set[str]:
        suffixes = self._jobs.worker_spec.get(job, {}).get("group", ("",))
        return {f"{job}{suffix}" for suffix in suffixes}

    async def _drop_lost_jobs(self) -> None:
        """Forget jobs that have no worker and are gone from the queue; what is forgotten is submitted again."""
        now = time.monotonic()
        if now < self._next_check or not self._late_jobs():
            return
        self._next_check = now + self._queue_check
        states = await self._states()
        if states is None and type(self._jobs).__name__ in _QUEUE_COMMANDS:  # the queue is busy
            return
        self._tell_of_waiting(states or {})
        lost = [name for name in self._late_jobs() if self._is_lost(name, states)]
        for name in lost:
            job = self._jobs.workers.pop(name)
            self._absent_since.pop(name, None)
            self._seen.discard(name)
            await job.close()
            job.status = Status.closed
        worst = max(lost, key=lambda name: self._failed[name], default=None)
        if worst is not None and self._failed[worst] >= _TRIES and not self._workers_here():
            await self._give_up(f"{self._failed[worst]} jobs in a row ended before their worker came")

    def _late_jobs(self) -> list[str]:
        """List the jobs that have been without a worker for long."""
        here, now = self._workers_here(), time.monotonic()
        for name in list(self._jobs.workers):
            if self._members(name) & here:
                self._seen.add(name)
                self._absent_since.pop(name, None)
                self._failed.pop(name, None)
            else:
                self._absent_since.setdefault(name, now)
        return [name for name in self._jobs.workers if now - self._absent_since.get(name, now) >= self._lost_after]

    def _is_lost(self, name: str, states: Mapping[str, tuple[str, str]] | None) -> bool:
        """Decide about a job without a worker; the states are None where the queue was not asked."""
        number = self._jobs.workers[name].job_id
        if number is None:  # it was refused
            return True
        if states is None:
            return name in self._seen
        state = states.get(number, ("", ""))[0]
        if state in _WILL_COME:  # a requeued one too; the worker that comes will be its first again
            self._seen.discard(name)
            return False
        if state == "RUNNING":
            return name in self._seen
        if name not in self._seen and state not in _NOT_ITS_FAULT:
            self._failed[name] += 1
        return True

    def _tell_of_waiting(self, states: Mapping[str, tuple[str, str]]) -> None:
        """Tell why nothing happens: a job that asks for more than its partition gives waits for ever."""
        numbers = {job.job_id for job in self._jobs.workers.values()}
        waiting = Counter(reason for number, (state, reason) in states.items() if number in numbers and state == "PENDING")
        if waiting and not self._workers_here() and set(waiting) != self._told:
            self._told = set(waiting)
            click.echo(
                f"dask cluster: {waiting.total()} {'job waits' if waiting.total() == 1 else 'jobs wait'} in the queue ({', '.join(sorted(waiting))})", err=True
            )

    async def _states(self) -> dict[str, tuple[str, str]] | None:
        """Ask the queue for the states of this user's jobs and the reasons for them; None where it cannot be asked or does not answer."""
        command = _QUEUE_COMMANDS.get(type(self._jobs).__name__)
        if command is None:
            return None
        process = await asyncio.create_subprocess_exec(*command, getpass.getuser(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL)
        output, _ = await process.communicate()
        if process.returncode:
            return None
        lines = (line.split(maxsplit=2) for line in output.decode().splitlines())
        return {line[0]: (line[1], line[2]) for line in lines if len(line) == 3}

    async def _give_up(self, reason: str) -> None:
        """End the cluster: jobs that never bring a worker would let the computation wait for ever."""
        logs = f"; their output is in {self._logs}" if self._logs else "; their output is where the command was started, unless log-directory says otherwise"
        self.failure = f"the cluster was given up: {reason}{logs}"
        click.echo(f"dask cluster: {self.failure}", err=True)
        await self._jobs.scheduler.close(reason="wkwdask-gave-up")


def refusal(error: BaseException) -> str:
    """Take from an error of dask-jobqueue what the queueing system said."""
    text = str(error)
    said = text.partition("stderr:\n")[2].strip() or text
    return " ".join(said.split())


def start_keeper(cluster: Any, limits: Sequence[int], **options: Any) -> Keeper:
    """Let a keeper look after a cluster of at least and at most so many jobs."""
    keeper = cluster.adapt(Adaptive=Keeper, minimum_jobs=limits[0], maximum_jobs=limits[1], **options)
    assert isinstance(keeper, Keeper)
    return keeper
