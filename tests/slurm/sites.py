"""What a test on the private SLURM sets in a shipped configuration, and what its jobs run."""

from __future__ import annotations

import os
import time

SITE = {
    "queue": "debug", "interface": "lo", "cores": 1, "processes": 1, "memory": "1GiB", "walltime": "00:10:00", "lifetime": "8m", "lifetime_stagger": "1m",
    "lost_after": "1s", "queue_check": "1s",
}  # fmt: skip


def nap(seconds):
    """Take a while, and tell in which job."""
    time.sleep(seconds)
    return os.environ["SLURM_JOB_ID"]


def memory_settings():
    """Tell what a worker does when its memory fills."""
    import dask

    return [dask.config.get(f"distributed.worker.memory.{name}") for name in ("target", "spill", "pause", "terminate")]


def wait_until(condition, seconds=60):
    """Wait for something."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.1)
