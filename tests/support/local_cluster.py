"""A dask cluster of processes on this machine whose end is bounded.

Closing a LocalCluster can wait for ever for a worker that never got the word (seen with distributed 2025.7.0 on a busy machine). Then the workers are
killed, each by its process id.

Some seconds after a worker died, a LocalCluster looks whether the next one of its name is there, and else stops it for good. Where workers are killed again
and again, or start slowly, that looks like one more death, maybe of the last worker: here there is no such look.
"""

from __future__ import annotations

import contextlib
import os
import signal

import dask
import distributed

_CLOSE_SECONDS = 30
_NEVER = {"distributed.deploy.lost-worker-timeout": "1 day"}


@contextlib.contextmanager
def local_cluster(**options):
    """Start two worker processes of one thread, and stop them in any case."""
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", **options)
    try:
        with dask.config.set(_NEVER):
            yield cluster
    finally:
        try:
            cluster.close(timeout=_CLOSE_SECONDS)
        except TimeoutError:
            for nanny in list(cluster.workers.values()):
                with contextlib.suppress(ProcessLookupError, TypeError):
                    os.kill(nanny.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                cluster.close(timeout=_CLOSE_SECONDS)
