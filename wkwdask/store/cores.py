"""Cores that this process may use, and the threads that one read may start."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import threading
from functools import cache
from typing import Any

_CGROUP_V1 = "/sys/fs/cgroup/cpu"
_CGROUP_V2 = "/sys/fs/cgroup"
_SINGLE_THREADED = ("sync", "synchronous", "single-threaded")
_is_forked = False


def available_cores() -> int:
    """Return the number of cores that affinity, cgroup and SLURM leave to this process."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return max(1, min(affinity, _cgroup_cores(), int(slurm) if slurm.isdecimal() else affinity))


def reading_threads() -> int:
    """Return the number of threads for a large read: one where other workers use the other cores, else one for each core."""
    if _is_forked or multiprocessing.parent_process() is not None or threading.current_thread() is not threading.main_thread():
        return 1
    dask: Any = sys.modules.get("dask.config")
    return 1 if dask is not None and dask.get("scheduler", None) in _SINGLE_THREADED else available_cores()


@cache
def _cgroup_cores() -> int:
    """Return the smallest CPU quota of the process's control group and its parents, rounded up; the number of cores if there is none."""
    quotas: list[float] = [os.cpu_count() or 1]
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, folder = line.split(":", 2)
        parts = folder.strip("/").split("/")
        for depth in range(len(parts) + 1):
            below = "/".join(parts[:depth])
            if not controllers:
                words = _read(f"{_CGROUP_V2}/{below}/cpu.max").split()
            elif "cpu" in controllers.split(","):
                words = [*_read(f"{_CGROUP_V1}/{below}/cpu.cfs_quota_us").split(), *_read(f"{_CGROUP_V1}/{below}/cpu.cfs_period_us").split()]
            else:
                continue
            if len(words) == 2 and words[0].isdecimal() and int(words[0]):  # "max" or -1: no quota
                quotas.append(math.ceil(int(words[0]) / int(words[1])))
    return int(min(quotas))


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def _mark_forked() -> None:
    global _is_forked
    _is_forked = True
    _cgroup_cores.cache_clear()


os.register_at_fork(after_in_child=_mark_forked)
