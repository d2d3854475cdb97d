"""Settings for the private SLURM, and functions that its jobs run."""

from __future__ import annotations

import os
import time

import numpy as np

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


def job_with_gpu():
    """Return the id of the job, which has a GPU."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    return int(os.environ["SLURM_JOB_ID"])


def job_everywhere(job, em):
    """Return one label, and the id of the job as the second array."""
    return np.ones(em.shape, np.int32), np.full(em.shape, job, np.int32)


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
