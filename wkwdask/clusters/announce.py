"""What is told of a cluster when it is there: its size, and how its dashboard is reached."""

from __future__ import annotations

import getpass
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from dask.utils import format_bytes, parse_bytes

from wkwdask.graphs.runners import EXPECTED_MEMORY, EXPECTED_WORKERS
from wkwdask.runs.report import counted

if TYPE_CHECKING:
    from wkwdask.clusters.config import ClusterConfig


def expected_size(config: ClusterConfig) -> dict[str, Any]:
    """Tell how large a cluster of jobs will be, for the plans that are made before its workers are there."""
    if config.kind != "jobqueue":
        return {}
    values = config.values
    jobs = values["adaptive"]["maximum"] if values["adaptive"] else values["jobs"]
    return {
        EXPECTED_WORKERS: jobs * values["cores"],
        EXPECTED_MEMORY: parse_bytes(values["memory"]) // values["cores"],
        "distributed.deploy.lost-worker-timeout": "24h",  # the keeper looks after lost jobs
    }


def link_settings(config: ClusterConfig) -> dict[str, str]:
    """Return dask's template of dashboard links with the host on which the dashboard of a cluster listens, where the configuration names one."""
    import dask.config
    import distributed.config  # noqa: F401 - has the default template

    host = config.values.get("dashboard-address", "").rpartition(":")[0]
    return {"distributed.dashboard.link": dask.config.get("distributed.dashboard.link").replace("{host}", host)} if host else {}


def announce(config: ClusterConfig, client: Any) -> None:
    """Tell on standard error what was started or found."""
    click.echo(f"dask cluster {config.name}: {_size(config, client)} at {client.scheduler.address}{_dashboard(client)}", err=True)


def _size(config: ClusterConfig, client: Any) -> str:
    workers = list(client.scheduler_info(n_workers=-1)["workers"].values())
    if config.kind == "jobqueue":
        values = config.values
        processes = values["processes"] or values["cores"]
        adaptive = values["adaptive"]
        jobs = f"{adaptive['minimum']} to {adaptive['maximum']}" if adaptive else str(values["jobs"])
        each = format_bytes(parse_bytes(values["memory"]) // processes)
        threads = counted(values["cores"] // processes, "thread")
        return f"{jobs} jobs of {counted(processes, 'worker')} ({threads}, {each} each), {len(workers)} connected"
    threads = counted(sum(worker["nthreads"] for worker in workers), "thread")
    memory = format_bytes(sum(int(worker["memory_limit"] or 0) for worker in workers))
    return f"{counted(len(workers), 'worker')}, {threads}, {memory}"


def _dashboard(client: Any) -> str:
    """Tell where the dashboard is, and how it is reached from outside the network of the cluster."""
    link = client.dashboard_link if find_spec("bokeh") is not None else None
    if not link:
        return ""
    port = urlsplit(link).port
    if port is None:  # behind a proxy
        return f"\ndashboard {link}"
    host = socket.gethostname()
    return f"\ndashboard {link}; from outside: ssh -L {port}:{urlsplit(link).hostname}:{port} {getpass.getuser()}@{host}, then http://localhost:{port}/status"
