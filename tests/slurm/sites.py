"""Settings for the private SLURM, and functions that its jobs run."""

from __future__ import annotations

import os
import time

SITE = {
    "queue": "debug",
    "interface": "lo",
    "cores": 1,
    "processes": 1,
    "memory": "1GiB",
    "walltime": "00:10:00",
    "lifetime": "8m",
    "lifetime_stagger": "1m",
    "lost_after": "300ms",
    "queue_check": "300ms",
}


def nap(seconds):
    """Sleep, and return the id of the job."""
    time.sleep(seconds)
    return os.environ["SLURM_JOB_ID"]


def memory_settings():
    import dask

    return [
        dask.config.get(f"distributed.worker.memory.{name}")
        for name in ("target", "spill", "pause", "terminate")
    ]


def wait_until(condition, seconds=180):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.2)
