"""Context manager ``wkwdask.cluster``: start a cluster from its configuration or connect to one,
and stop what was started."""

from __future__ import annotations

import getpass
import logging
import os
import socket
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from dask.utils import format_bytes, parse_bytes

from wkwdask.clusters.config import CLUSTER_VARIABLE, SCRIPT_KINDS, ClusterConfig, load_config
from wkwdask.errors import TaskFailedError, UnsupportedError
from wkwdask.graphs.client_run import workers_of
from wkwdask.graphs.runners import EXPECTED_MEMORY, EXPECTED_WORKERS
from wkwdask.graphs.signals import sigterm_raises
from wkwdask.model.summary import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager


_logger = logging.getLogger(__name__)


def expected_size(config: ClusterConfig) -> dict[str, Any]:
    """Return the final size of a cluster of jobs as dask settings, for plans made before its
    workers arrive."""
    if config.kind != "jobqueue":
        return {}
    values = config.values
    jobs = values["adaptive"]["maximum"] if values["adaptive"] else values["jobs"]
    return {
        EXPECTED_WORKERS: jobs * values["cores"],
        EXPECTED_MEMORY: parse_bytes(values["memory"]) // values["cores"],
        "distributed.deploy.lost-worker-timeout": "24h",  # ResubmittingAdaptive handles lost jobs
    }


def link_settings(config: ClusterConfig) -> dict[str, str]:
    """Return dask's dashboard link template with the host of the configuration, if it names one."""
    import dask.config
    import distributed.config  # noqa: F401 - has the default template

    host = config.values.get("dashboard-address", "").rpartition(":")[0]
    return (
        {
            "distributed.dashboard.link": dask.config.get("distributed.dashboard.link").replace(
                "{host}", host
            )
        }
        if host
        else {}
    )


def announce(config: ClusterConfig, client: Any) -> None:
    """Print what was started or found on standard error, unless the level of the logger is above
    warnings."""
    if _logger.isEnabledFor(logging.WARNING):
        click.echo(
            (
                f"dask cluster {config.name}: {_size(config, client)} at "
                f"{client.scheduler.address}{_dashboard(client)}"
            ),
            err=True,
        )


def _size(config: ClusterConfig, client: Any) -> str:
    workers = workers_of(client)
    if config.kind == "jobqueue":
        values = config.values
        processes = values["processes"] or values["cores"]
        adaptive = values["adaptive"]
        jobs = (
            f"{adaptive['minimum']} to {adaptive['maximum']} jobs"
            if adaptive
            else counted(values["jobs"], "job")
        )
        each = format_bytes(parse_bytes(values["memory"]) // processes)
        threads = counted(values["cores"] // processes, "thread")
        return (
            f"{jobs} of {counted(processes, 'worker')} ({threads}, {each} each), {len(workers)} "
            "connected"
        )
    threads = counted(sum(worker["nthreads"] for worker in workers), "thread")
    memory = format_bytes(sum(int(worker["memory_limit"] or 0) for worker in workers))
    return f"{counted(len(workers), 'worker')}, {threads}, {memory}"


def _dashboard(client: Any) -> str:
    """Return the dashboard link, and the SSH command to reach it from outside the cluster
    network."""
    link = client.dashboard_link if find_spec("bokeh") is not None else None
    if not link:
        return ""
    port = urlsplit(link).port
    if port is None:  # behind a proxy
        return f"\ndashboard {link}"
    host = socket.gethostname()
    return (
        f"\ndashboard {link}; from outside: ssh -L {port}:{urlsplit(link).hostname}:{port} "
        f"{getpass.getuser()}@{host}, then http://localhost:{port}/status"
    )


_CLOSE_SECONDS = 30
_ADDRESS_SECONDS = 8.0
_FILE_SECONDS = 60.0  # the batch script that writes the file may still be starting the scheduler


@contextmanager
def cluster(
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    report: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Iterator[Any]:
    """Run the enclosed code on a dask cluster: start or connect to one, and stop what was started.

    Inside, all functions of this package and all computations of dask use the cluster. A line on
    standard error says what was started, with the link to the dashboard if there is one.

    Parameters
    ----------
    config : str, path or mapping, optional
        Name such as ``"local"`` or ``"slurm-jobqueue"``, path of a configuration, address of a dask
        scheduler (``"tcp://host:8786"``), scheduler file (``.json``), or mapping of keys to values.
        Names are searched in the folders of ``$WKWDASK_CLUSTERS``, in
        ``~/.config/wkwdask/clusters``, then among the shipped ones. Default: ``$WKWDASK_CLUSTER``,
        which a batch script sets; without it, threads on the cores of this machine.
    report : str or path, optional
        HTML file for dask's performance report; needs bokeh.
    **overrides : object
        Keys of the configuration with other values, such as ``jobs=4, queue="short",
        interface="ib0", dask={...}``; ``_`` stands for ``-``.

    Returns
    -------
    context manager
        Its value is the ``distributed.Client``, or None if threads of this machine do the work.

    Raises
    ------
    MissingError
        The configuration does not exist; the message lists the known ones.
    FormatError
        The configuration has problems; the message lists all of them with their keys.
    UnsupportedError
        The configuration is a batch script or a set of manifests, which cannot run inside this
        process.
    ModuleNotFoundError
        A package is not installed: dask-jobqueue comes with ``pip install 'wkwdask[cluster]'``; a
        report needs bokeh.
    TaskFailedError
        The queueing system rejects the jobs, no job brings a worker, or no scheduler answers at the
        address.

    Examples
    --------
    >>> import wkwdask
    >>> with wkwdask.cluster() as client:  # no cluster: threads of this machine
    ...     print(client)
    None
    """
    source = config if config is not None else os.environ.get(CLUSTER_VARIABLE) or None
    if source is None:
        _reject_options(report, overrides)
        yield None
        return
    loaded = load_config(source, overrides)
    if report is not None:
        _need_bokeh(report)
    with ExitStack() as stack:
        yield _enter(stack, loaded, report)


def _reject_options(report: Any, overrides: Mapping[str, Any]) -> None:
    if report is not None:
        raise ValueError(
            f"{os.fspath(report)}: a performance report needs a dask cluster: name one, such as "
            "'local'"
        )
    if overrides:
        raise TypeError(
            f"{', '.join(overrides)}: overrides need a configuration: name one, such as 'local'"
        )


def _need_bokeh(report: Any) -> None:
    if find_spec("bokeh") is None:
        raise ModuleNotFoundError(
            (
                f"{os.fspath(report)}: a report needs the package bokeh, which comes with pip "
                "install 'wkwdask[cluster]'"
            ),
            name="bokeh",
        )


def _enter(stack: ExitStack, config: ClusterConfig, report: Any) -> Any:
    """Enter all contexts of a cluster; they end in the reverse order."""
    import dask

    # The handler of SIGTERM comes first, so that the signal stops the cluster too. The settings
    # come before the cluster, which reads them when it starts. The report comes last, since it is
    # written while the client still exists.
    starter = _STARTERS.get(config.kind, _reject_kind)
    stack.enter_context(sigterm_raises())
    stack.enter_context(
        dask.config.set({**link_settings(config), **config.dask_settings, **expected_size(config)})
    )
    client = stack.enter_context(starter(config))
    announce(config, client)
    if report is not None:
        from distributed import performance_report

        stack.enter_context(performance_report(filename=os.fspath(report)))
    return client


def _reject_kind(config: ClusterConfig) -> AbstractContextManager[Any]:
    if config.kind in SCRIPT_KINDS:
        raise UnsupportedError(
            f"{config.name}: a batch script runs a whole command: wkwdask submit VERB ... "
            f"--cluster {config.name}"
        )
    raise UnsupportedError(
        f"{config.name}: manifests are for kubectl: wkwdask cluster render {config.name} | kubectl "
        "apply -f -"
    )


@contextmanager
def local_client(config: ClusterConfig) -> Iterator[Any]:
    """Start worker processes on this machine, and stop them at the end."""
    import dask
    from distributed import Client, LocalCluster

    # By default, dask makes malloc return freed memory at once. The next array of 128 kB or more
    # then faults in all its pages again, which doubles the time of functions that compute with
    # small NumPy arrays.
    with dask.config.set({"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}):
        cluster = LocalCluster(**local_arguments(config.values))
    try:
        with Client(cluster) as client:
            yield client
    finally:
        with suppress(TimeoutError):  # a worker that does not answer ends with this process
            cluster.close(timeout=_CLOSE_SECONDS)


def local_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a LocalCluster, within the limits of CPU affinity, cgroup and
    SLURM."""
    from wkwdask.graphs.runners import available_memory
    from wkwdask.store.cores import available_cores

    threads = values["threads-per-worker"]
    workers = values["workers"] or max(1, available_cores() // threads)
    scratch = values["local-directory"]
    arguments = {
        "n_workers": workers,
        "threads_per_worker": threads,
        "processes": True,
        "memory_limit": values["memory-limit"] or available_memory() // workers,
        "dashboard_address": values["dashboard-address"],
        "interface": values["interface"],
        "local_directory": None
        if scratch is None
        else os.path.expanduser(os.path.expandvars(scratch)),
    }
    return {name: value for name, value in arguments.items() if value is not None}


@contextmanager
def _scheduler_client(config: ClusterConfig) -> Iterator[Any]:
    from distributed import Client

    values = config.values
    file = os.path.expandvars(values["scheduler-file"] or "")
    location = {"scheduler_file": file} if file else {"address": values["address"]}
    seconds = values["timeout"] or (_FILE_SECONDS if file else _ADDRESS_SECONDS)
    try:
        client = Client(**location, timeout=seconds)
    except (OSError, ValueError) as error:
        name = file or values["address"]
        raise TaskFailedError(
            f"{name}: no dask scheduler answered within {seconds:g} s; check that it runs, and its "
            f"address ({error})"
        ) from error
    with client:
        yield client


def _jobqueue_client(config: ClusterConfig) -> AbstractContextManager[Any]:
    from wkwdask.clusters.jobqueue import jobqueue_client

    return jobqueue_client(config)


_STARTERS = {"local": local_client, "scheduler": _scheduler_client, "jobqueue": _jobqueue_client}
