"""Clusters whose workers are jobs of a queueing system, by dask-jobqueue."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from wkwdask.clusters.keys import LOOPBACK, job_keys
from wkwdask.errors import TaskFailedError
from wkwdask.model.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wkwdask.clusters.config import ClusterConfig

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
    module = need("dask_jobqueue", source, "cluster")
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
    from distributed import Client

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
    from wkwdask.clusters.keeper import job_of, refusal, start_keeper

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
    return start_keeper(cluster, (least, most), **options)


def _close(cluster: Any) -> None:
    """Cancel all jobs, those that wait in the queue too, and end the scheduler."""
    from distributed import Status

    for job in list(cluster.workers.values()):
        job.status = Status.closing  # jobs of dask-jobqueue do not say so themselves, and dask insists on it
    with suppress(TimeoutError):
        cluster.close(timeout=_CLOSE_SECONDS)


def render(config: ClusterConfig) -> str:
    """Write what would be submitted for a configuration; nothing is submitted, and no queueing system is needed."""
    if config.text:
        return config.text
    if config.kind == "jobqueue":
        from wkwdask.clusters.jobqueue import job_script

        return job_script(config)
    import yaml

    return str(yaml.safe_dump({name: value for name, value in config.values.items() if value not in (None, {}, [])}, sort_keys=False))
