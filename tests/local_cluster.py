"""A dask cluster of processes on this machine whose end is bounded.

Closing a LocalCluster can wait for ever for a worker that never got the word (seen with distributed 2025.7.0 on a busy machine). Then the workers are
killed, each by its process id.
"""

from __future__ import annotations

import contextlib
import os
import signal

import distributed

_CLOSE_SECONDS = 30


@contextlib.contextmanager
def local_cluster(**options):
    """Start two worker processes of one thread, and stop them in any case."""
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", **options)
    try:
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
