"""Clusters whose workers are jobs of a queueing system, by dask-jobqueue, and what keeps these jobs alive.

That is dask's adaptive scaling, which here also notices jobs that are gone. Without it a job that reached its walltime or lifetime, was preempted or cancelled,
leaves the cluster smaller for ever: dask-jobqueue never submits it again where a job holds several worker processes, or where it was cancelled before its
worker came.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import shlex
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click
from distributed import Client, Status
from distributed.deploy.adaptive import Adaptive

from wkwdask.clusters.config import LOOPBACK, job_keys
from wkwdask.errors import TaskFailedError
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wkwdask.clusters.config import ClusterConfig


_TRIES = 3
_QUEUE_COMMANDS = {"SLURMCluster": ("squeue", "--noheader", "--states=all", "--format=%i %T %r", "--user")}
_WILL_COME = ("PENDING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESIZING", "STOPPED")
_NOT_ITS_FAULT = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "REVOKED")


def job_of(worker: Any) -> str:
    """Name the job of a worker; processes of one job are called JOB-0, JOB-1 and so on."""
    return str(worker.name).rpartition("-")[0]


class ResubmittingAdaptive(Adaptive):
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


_CLOSE_SECONDS = 60
_KEPT_INTERVAL = 1.0


def job_arguments(config: ClusterConfig) -> dict[str, Any]:
    """Turn a configuration into the arguments of the class of dask-jobqueue."""
    values = config.values
    arguments = {name.replace("-", "_"): values[name] for name in job_keys(values["class"]) if values[name] is not None}
    if values["log-directory"] is not None:  # directives of a batch script know no variables
        arguments["log_directory"] = os.path.expanduser(os.path.expandvars(values["log-directory"]))
    lifetime = [] if values["lifetime"] is None else ["--lifetime", f"{values['lifetime']:g}s"]
    stagger = [] if values["lifetime-stagger"] is None else ["--lifetime-stagger", f"{values['lifetime-stagger']:g}s"]
    return {
        **arguments,
        "cores": values["cores"],
        "processes": values["processes"] or values["cores"],
        "memory": str(values["memory"]),
        "death_timeout": f"{values['death-timeout']:g}",
        "worker_extra_args": ["--dashboard-address", LOOPBACK, *lifetime, *stagger, *values["worker-extra-args"]],
        "job_script_prologue": [*exports(config.dask_settings), *values["job-script-prologue"]],
        "scheduler_options": {
            "dashboard_address": values["dashboard-address"],
            **{name.replace("-", "_"): value for name, value in values["scheduler-options"].items()},
        },
    }


def exports(settings: Mapping[str, Any]) -> list[str]:
    """Write settings of dask as lines of a shell script, so that they reach the workers.

    Examples
    --------
    >>> exports({"distributed.worker.memory.spill": False, "distributed.scheduler.worker-ttl": "5 minutes"})
    ['export DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False', "export DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL='5 minutes'"]
    """
    return [f"export DASK_{name.upper().replace('.', '__').replace('-', '_')}={shlex.quote(str(value))}" for name, value in settings.items()]


def _dask_jobqueue(source: str) -> Any:
    """Import dask-jobqueue, and take back what it does to Ctrl-C: a job that is interrupted is not a success with exit code 0."""
    before = signal.getsignal(signal.SIGINT)
    module = import_extra("dask_jobqueue", source, "cluster")
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)
    return module


def make_cluster(config: ClusterConfig) -> Any:
    """Start a scheduler in this process; no job is submitted yet."""
    module = _dask_jobqueue(config.name)
    return getattr(module, config.values["class"])(**job_arguments(config))


def job_script(config: ClusterConfig) -> str:
    """Write the script of one job, without a queueing system and without submitting anything."""
    module = _dask_jobqueue(config.name)
    arguments = job_arguments(config)
    del arguments["scheduler_options"]
    job = getattr(module, config.values["class"]).job_cls("tcp://SCHEDULER:PORT", name="NAME", **arguments)
    return str(job.job_script())


def job_limits(config: ClusterConfig) -> tuple[int, int]:
    """Give the least and the greatest number of jobs."""
    adaptive = config.values["adaptive"]
    return (adaptive["minimum"], adaptive["maximum"]) if adaptive else (config.values["jobs"], config.values["jobs"])


@contextmanager
def jobqueue_client(config: ClusterConfig) -> Iterator[Any]:
    """Submit the jobs of a cluster, keep as many of them as wanted, and cancel all of them at the end."""
    cluster = make_cluster(config)
    try:
        keeper = _submit(cluster, config)
        try:
            with Client(cluster) as client:
                yield client
        except Exception as error:
            if keeper.failure:
                raise TaskFailedError(f"{config.name}: {keeper.failure}") from error
            raise
    finally:
        _close(cluster)


def _submit(cluster: Any, config: ClusterConfig) -> Any:
    """Submit what has to be there from the start, so that a refusal is an error at once, and let a keeper look after it."""
    least, most = job_limits(config)

    async def submit() -> None:
        while len(cluster.worker_spec) < least:
            cluster.worker_spec.update(cluster.new_worker_spec())
        await cluster

    try:
        cluster.sync(submit)
    except RuntimeError as error:
        raise TaskFailedError(f"{config.name}: a job was refused: {refusal(error)}") from error
    values = config.values
    options: dict[str, Any] = {"lost_after": values["lost-after"], "queue_check": values["queue-check"], "logs": values["log-directory"] or ""}
    adaptive = values["adaptive"]
    if adaptive:
        options |= {"interval": adaptive["interval"], "wait_count": adaptive["wait-count"], "target_duration": adaptive["target-duration"]}
    else:
        options["interval"] = _KEPT_INTERVAL
    if (values["processes"] or values["cores"]) > 1:  # a job is given back when all of its processes are idle
        options["worker_key"] = job_of
    return cluster.adapt(Adaptive=ResubmittingAdaptive, minimum_jobs=least, maximum_jobs=most, **options)


def _close(cluster: Any) -> None:
    """Cancel all jobs, those that wait in the queue too, and end the scheduler."""
    for job in list(cluster.workers.values()):
        job.status = Status.closing  # jobs of dask-jobqueue do not say so themselves, and dask insists on it
    with suppress(TimeoutError):
        cluster.close(timeout=_CLOSE_SECONDS)


def render(config: ClusterConfig) -> str:
    """Write what would be submitted for a configuration; nothing is submitted, and no queueing system is needed."""
    if config.text:
        return config.text
    if config.kind == "jobqueue":
        return job_script(config)
    import yaml

    return str(yaml.safe_dump({name: value for name, value in config.values.items() if value not in (None, {}, [])}, sort_keys=False))
