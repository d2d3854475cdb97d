"""Clusters whose workers are jobs of a queueing system, through dask-jobqueue, and the replacement
of lost jobs.

Dask's adaptive scaling, extended here, detects and replaces lost jobs. Without it, each job that
reached its walltime or lifetime, or was preempted or cancelled, would shrink the cluster for good:
dask-jobqueue resubmits neither jobs of several worker processes, nor jobs cancelled before a worker
connected.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from distributed import Client, Status
from distributed.deploy.adaptive import Adaptive
from distributed.diagnostics.plugin import SchedulerPlugin

from wkwdask.clusters.config import LOOPBACK, job_keys
from wkwdask.errors import TaskFailedError
from wkwdask.model.extras import import_extra
from wkwdask.store.slurm import exit_code, why_never_started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from wkwdask.clusters.config import ClusterConfig


_TRIES = 3
_QUOTED_LINES = 3  # of the log of a failed job
_ANSWER_SECONDS = 60.0  # timeout of a query of the queue
_QUEUE_COMMANDS = {
    "SLURMCluster": ("squeue", "--noheader", "--states=all", "--format=%i %T %r", "--user")
}
_STARTING_STATES = (
    "PENDING",
    "CONFIGURING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESIZING",
    "STOPPED",
)
_EXTERNAL_ENDS = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "REVOKED")


def job_of(worker: Any) -> str:
    """Return the job of a worker. The processes of a job are called JOB-0, JOB-1 and so on."""
    return str(worker.name).rpartition("-")[0]


class _Arrivals(SchedulerPlugin):
    """Report each worker that connects, even if it disconnects before the next look at the
    cluster."""

    name = "wkwdask-arrivals"

    def __init__(self, arrived: Callable[[str], None]) -> None:
        self._arrived = arrived

    def add_worker(self, scheduler: Any, worker: str) -> None:
        self._arrived(str(scheduler.workers[worker].name))


class ResubmittingAdaptive(Adaptive):
    """Adaptive scaling of a cluster of jobs that also replaces lost jobs."""

    def __init__(
        self,
        cluster: Any,
        *,
        lost_after: float = 15.0,
        queue_check: float = 15.0,
        logs: str = "",
        **options: Any,
    ) -> None:
        self.failure = ""
        self.client: Client | None = None
        """Client that waits for workers; it is closed when no job brings one."""
        self._jobs = cluster
        self._lost_after = lost_after
        self._queue_check = queue_check
        self._logs = logs
        self._next_check = 0.0
        self._absent_since: dict[str, float] = {}
        self._seen: set[str] = set()
        self._num_failed: Counter[str] = Counter()
        self._num_rejected = 0
        self._reported_reasons: set[str] = set()
        cluster.scheduler.add_plugin(_Arrivals(self._note_arrival), idempotent=True)
        super().__init__(cluster, **options)

    async def adapt(self) -> None:
        """Replace lost jobs, then scale as dask does."""
        if self.failure or self._adapting:
            return
        try:
            await self._drop_lost_jobs()
            await super().adapt()
            self._num_rejected = 0
        except RuntimeError as error:
            # dask-jobqueue raises it when the queueing system rejects a job
            self._num_rejected += 1
            if self._num_rejected >= _TRIES and not self._connected_workers():
                await self._give_up(f"jobs cannot be submitted: {rejection_message(error)}")

    def _connected_workers(self) -> set[str]:
        return {str(worker.name) for worker in self._jobs.scheduler.workers.values()}

    def _members(self, job: str) -> set[str]:
        """Return the names of the workers of a job."""
        suffixes = self._jobs.worker_spec.get(job, {}).get("group", ("",))
        return {f"{job}{suffix}" for suffix in suffixes}

    async def _drop_lost_jobs(self) -> None:
        """Forget jobs without a worker that have left the queue; dask then submits new ones."""
        now = time.monotonic()
        if now < self._next_check or not self._late_jobs():
            return
        self._next_check = now + self._queue_check
        states = await self._states()
        if states is None and type(self._jobs).__name__ in _QUEUE_COMMANDS:
            # the queue is busy: decide next time
            return
        self._report_waiting(states or {})
        if reason := await self._why_none_starts(states or {}):
            await self._give_up(reason)
            return
        lost = [name for name in self._late_jobs() if self._is_lost(name, states)]
        # A job that is in ``worker_spec`` but not in ``workers`` is submitted again at the next
        # scaling of the cluster.
        numbers = {name: self._jobs.workers[name].job_id for name in lost}
        for name in lost:
            job = self._jobs.workers.pop(name)
            self._absent_since.pop(name, None)
            self._seen.discard(name)
            await job.close()
            job.status = Status.closed
        worst = max(lost, key=lambda name: self._num_failed[name], default=None)
        if (
            worst is not None
            and self._num_failed[worst] >= _TRIES
            and not self._connected_workers()
        ):
            quoted = await asyncio.to_thread(self._last_words, numbers[worst])
            await self._give_up(
                f"{self._num_failed[worst]} jobs in a row ended before their worker "
                f"connected{quoted}"
            )

    def _note_arrival(self, worker: str) -> None:
        for name in self._jobs.workers:
            if worker in self._members(name):
                self._note_job(name)

    def _note_job(self, name: str) -> None:
        """Note that a job has brought a worker."""
        self._seen.add(name)
        self._absent_since.pop(name, None)
        self._num_failed.pop(name, None)

    def _late_jobs(self) -> list[str]:
        """List the jobs that have been without a worker for too long."""
        connected, now = self._connected_workers(), time.monotonic()
        for name in list(self._jobs.workers):
            if self._members(name) & connected:
                self._note_job(name)
            else:
                self._absent_since.setdefault(name, now)
        return [
            name
            for name in self._jobs.workers
            if now - self._absent_since.get(name, now) >= self._lost_after
        ]

    def _is_lost(self, name: str, states: Mapping[str, tuple[str, str]] | None) -> bool:
        """Decide about a job without a worker; ``states`` is None if the queue cannot be
        queried."""
        number = self._jobs.workers[name].job_id
        if number is None:  # its submission was rejected
            return True
        if states is None:
            return name in self._seen
        state = states.get(number, ("", ""))[0]
        if state in _STARTING_STATES:
            # also after a requeue: the job waits for its first worker again
            self._seen.discard(name)
            return False
        if state == "RUNNING":
            return name in self._seen
        if name not in self._seen and state not in _EXTERNAL_ENDS:
            # it ended by itself before a worker connected, probably because of a faulty script
            self._num_failed[name] += 1
        return True

    def _report_waiting(self, states: Mapping[str, tuple[str, str]]) -> None:
        """Print why no worker has connected. A job that requests more than its partition offers
        waits forever."""
        numbers = {job.job_id for job in self._jobs.workers.values()}
        waiting = Counter(
            reason
            for number, (state, reason) in states.items()
            if number in numbers and state == "PENDING"
        )
        if waiting and not self._connected_workers() and set(waiting) != self._reported_reasons:
            self._reported_reasons = set(waiting)
            click.echo(
                (
                    f"dask cluster: {waiting.total()} "
                    f"{'job waits' if waiting.total() == 1 else 'jobs wait'} in the queue "
                    f"({', '.join(sorted(waiting))})"
                ),
                err=True,
            )

    async def _why_none_starts(self, states: Mapping[str, tuple[str, str]]) -> str:
        """Say why SLURM will start none of the jobs, empty if it may start one."""
        if self._connected_workers() or type(self._jobs).__name__ != "SLURMCluster":
            return ""
        waiting = [
            number
            for job in self._jobs.workers.values()
            if states.get(number := job.job_id or "", ("",))[0] == "PENDING"
        ]
        if not waiting or len(waiting) < len(self._jobs.workers):
            return ""
        return await asyncio.to_thread(why_never_started, waiting[0])  # all ask for the same

    async def _states(self) -> dict[str, tuple[str, str]] | None:
        """Query the queue for state and reason of this user's jobs, by job id; None if it cannot be
        queried or does not answer in time."""
        command = _QUEUE_COMMANDS.get(type(self._jobs).__name__)
        if command is None:
            return None
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                getpass.getuser(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            return None
        try:
            output, _ = await asyncio.wait_for(process.communicate(), _ANSWER_SECONDS)
        except TimeoutError:
            process.kill()
            await process.communicate()
            return None
        if process.returncode:
            return None
        lines = (line.split(maxsplit=2) for line in output.decode().splitlines())
        return {line[0]: (line[1], line[2]) for line in lines if len(line) == 3}

    def _last_words(self, number: str | None) -> str:
        """Quote the exit code of a job and the end of its log."""
        if number is None:
            return ""
        code = exit_code(number) if type(self._jobs).__name__ == "SLURMCluster" else ""
        said = [f"; job {number} ended with exit code {code}"] if code else []
        for path in sorted(Path(self._logs or ".").glob(f"*-{number}.*")):
            lines = path.read_text("utf-8", "replace").split("\n")[-_QUOTED_LINES - 1 :]
            said += (
                [f"; {path}: {' / '.join(line.strip() for line in lines if line.strip())}"]
                if any(map(str.strip, lines))
                else []
            )
        return "".join(said)

    async def _give_up(self, reason: str) -> None:
        """End the computation, which would wait forever with jobs that never bring a worker."""
        logs = (
            f"; their output is in {self._logs}"
            if self._logs
            else (
                "; their output is in the folder where the command was started, or in log-directory"
            )
        )
        self.failure = f"the cluster was closed: {reason}{logs}"
        click.echo(f"dask cluster: {self.failure}", err=True)
        # Without its client, the computation ends at once. A client that lost its scheduler would
        # try to connect again for a minute.
        await (
            self._jobs.scheduler.close(reason="wkwdask-gave-up")
            if self.client is None
            else self.client.close()
        )


def rejection_message(error: BaseException) -> str:
    """Extract the message of the queueing system from an error of dask-jobqueue."""
    text = str(error)
    message = text.partition("stderr:\n")[2].strip() or text
    return " ".join(message.split())


_CLOSE_SECONDS = 60
_KEPT_INTERVAL = 1.0


def job_arguments(config: ClusterConfig) -> dict[str, Any]:
    """Return the arguments of the dask-jobqueue class for a configuration."""
    values = config.values
    arguments = {
        name.replace("-", "_"): values[name]
        for name in job_keys(values["class"])
        if values[name] is not None
    }
    if values["log-directory"] is not None:  # directives of a batch script expand no variables
        arguments["log_directory"] = os.path.expanduser(os.path.expandvars(values["log-directory"]))
    lifetime = [] if values["lifetime"] is None else ["--lifetime", f"{values['lifetime']:g}s"]
    stagger = (
        []
        if values["lifetime-stagger"] is None
        else ["--lifetime-stagger", f"{values['lifetime-stagger']:g}s"]
    )
    return {
        **arguments,
        "cores": values["cores"],
        "processes": values["processes"] or values["cores"],
        "memory": str(values["memory"]),
        "death_timeout": f"{values['death-timeout']:g}",
        "worker_extra_args": [
            "--dashboard-address",
            LOOPBACK,
            *lifetime,
            *stagger,
            *values["worker-extra-args"],
        ],
        "job_script_prologue": [*exports(config.dask_settings), *values["job-script-prologue"]],
        "scheduler_options": {
            "dashboard_address": values["dashboard-address"],
            **{
                name.replace("-", "_"): value for name, value in values["scheduler-options"].items()
            },
        },
    }


def exports(settings: Mapping[str, Any]) -> list[str]:
    """Write dask settings as lines of a shell script, so that they reach the workers.

    Examples
    --------
    >>> exports(
    ...     {
    ...         "distributed.worker.memory.spill": False,
    ...         "distributed.scheduler.worker-ttl": "5 minutes",
    ...     }
    ... )
    ['export DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False', "export DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL='5 minutes'"]
    """  # noqa: E501
    return [
        f"export DASK_{name.upper().replace('.', '__').replace('-', '_')}={shlex.quote(str(value))}"
        for name, value in settings.items()
    ]


def _dask_jobqueue(source: str) -> Any:
    """Import dask-jobqueue without its handler for Ctrl-C."""
    # On import, dask-jobqueue installs a handler that exits with code 0 on Ctrl-C. An interrupted
    # command must not look like a success.
    before = signal.getsignal(signal.SIGINT)
    module = import_extra("dask_jobqueue", source, "cluster")
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)
    return module


def make_cluster(config: ClusterConfig) -> Any:
    """Start a scheduler in this process, without submitting jobs."""
    module = _dask_jobqueue(config.name)
    return getattr(module, config.values["class"])(**job_arguments(config))


def job_script(config: ClusterConfig) -> str:
    """Return the script of one job, without a queueing system."""
    module = _dask_jobqueue(config.name)
    arguments = job_arguments(config)
    del arguments["scheduler_options"]
    job = getattr(module, config.values["class"]).job_cls(
        "tcp://SCHEDULER:PORT", name="NAME", **arguments
    )
    return str(job.job_script())


def job_limits(config: ClusterConfig) -> tuple[int, int]:
    """Return the smallest and largest number of jobs."""
    adaptive = config.values["adaptive"]
    return (
        (adaptive["minimum"], adaptive["maximum"])
        if adaptive
        else (config.values["jobs"], config.values["jobs"])
    )


@contextmanager
def jobqueue_client(config: ClusterConfig) -> Iterator[Any]:
    """Submit the jobs of a cluster, keep their number, and cancel all of them at the end."""
    cluster = make_cluster(config)
    try:
        keeper = _submit(cluster, config)
        try:
            with Client(cluster) as client:
                keeper.client = client
                yield client
        except Exception as error:
            if keeper.failure:
                raise TaskFailedError(f"{config.name}: {keeper.failure}") from error
            raise
    finally:
        _close(cluster)


def _submit(cluster: Any, config: ClusterConfig) -> Any:
    """Submit the minimum number of jobs, so that a rejection raises an error at once, and start
    adaptive scaling."""
    minimum, maximum = job_limits(config)

    async def submit() -> None:
        while len(cluster.worker_spec) < minimum:
            cluster.worker_spec.update(cluster.new_worker_spec())
        await cluster

    try:
        cluster.sync(submit)
    except RuntimeError as error:
        raise TaskFailedError(
            f"{config.name}: a job was rejected: {rejection_message(error)}"
        ) from error
    values = config.values
    options: dict[str, Any] = {
        "lost_after": values["lost-after"],
        "queue_check": values["queue-check"],
        "logs": values["log-directory"] or "",
    }
    adaptive = values["adaptive"]
    if adaptive:
        options |= {
            "interval": adaptive["interval"],
            "wait_count": adaptive["wait-count"],
            "target_duration": adaptive["target-duration"],
        }
    else:
        options["interval"] = _KEPT_INTERVAL
    if (values["processes"] or values["cores"]) > 1:
        # release a job only when all of its processes are idle
        options["worker_key"] = job_of
    return cluster.adapt(
        Adaptive=ResubmittingAdaptive, minimum_jobs=minimum, maximum_jobs=maximum, **options
    )


def _close(cluster: Any) -> None:
    """Cancel all jobs, queued ones included, and stop the scheduler."""
    for job in list(cluster.workers.values()):
        job.status = Status.closing  # dask requires this status, and dask-jobqueue does not set it
    with suppress(TimeoutError):
        cluster.close(timeout=_CLOSE_SECONDS)


def render(config: ClusterConfig) -> str:
    """Return what would be submitted for a configuration, without submitting it or needing a
    queueing system."""
    if config.text:
        return config.text
    if config.kind == "jobqueue":
        return job_script(config)
    import yaml

    return str(
        yaml.safe_dump(
            {name: value for name, value in config.values.items() if value not in (None, {}, [])},
            sort_keys=False,
        )
    )
