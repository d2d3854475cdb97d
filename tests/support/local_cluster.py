"""Dask cluster of processes on this machine that always ends.

Closing a LocalCluster can wait forever for a worker that does not answer (seen with distributed
2025.7.0 on a busy machine). The workers are then killed, each by its process id.

Some seconds after a worker died, a LocalCluster removes it for good unless its successor has
connected. Successors start slowly on a busy machine, so this check is disabled.
"""

from __future__ import annotations

import contextlib
import os
import signal

import dask
import distributed
from support.warm_processes import warm_context

_CLOSE_SECONDS = 30
_NEVER = {"distributed.deploy.lost-worker-timeout": "1 day"}


@contextlib.contextmanager
def local_cluster(**options):
    """Start worker processes of one thread, two by default, and stop them at the end."""
    warm_context()  # its server forks the workers
    options = {
        "n_workers": 2,
        "threads_per_worker": 1,
        "processes": True,
        "dashboard_address": ":0",
        "env": dict(os.environ),
        **options,
    }
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        cluster = distributed.LocalCluster(**options)
        try:
            with dask.config.set(_NEVER):
                yield cluster
        finally:
            _close(cluster)


def _close(cluster):
    try:
        cluster.close(timeout=_CLOSE_SECONDS)
    except TimeoutError:
        for nanny in list(cluster.workers.values()):
            with contextlib.suppress(ProcessLookupError, TypeError):
                os.kill(nanny.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            cluster.close(timeout=_CLOSE_SECONDS)
