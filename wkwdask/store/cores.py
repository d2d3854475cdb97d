"""Cores that this process may use, and the threads that one read may start."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_CGROUP_V1 = "/sys/fs/cgroup/cpu"
_CGROUP_V2 = "/sys/fs/cgroup"
_SINGLE_THREADED = ("sync", "synchronous", "single-threaded")
_is_forked = False


def available_cores() -> int:
    """Return the number of cores that affinity, cgroup and SLURM leave to this process."""
    affinity = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    slurm = slurm_cores(os.environ)
    return max(1, min(affinity, _cgroup_cores(), affinity if slurm is None else slurm))


def slurm_cores(variables: Mapping[str, str]) -> int | None:
    """Return the cores that SLURM grants this task, None outside of SLURM.

    Without ``--cpus-per-task``, the tasks of a step share the cores of their node. A batch script
    has all of them.

    Examples
    --------
    >>> slurm_cores(
    ...     {
    ...         "SLURM_JOB_CPUS_PER_NODE": "16(x2),8",
    ...         "SLURM_NODEID": "2",
    ...         "SLURM_STEP_ID": "0",
    ...         "SLURM_STEP_TASKS_PER_NODE": "1,1,4",
    ...     }
    ... )
    2
    """
    per_task = variables.get("SLURM_CPUS_PER_TASK", "")
    if per_task.isdecimal():
        return int(per_task)
    node = variables.get("SLURM_NODEID", "0")
    cores = _of_node(variables.get("SLURM_JOB_CPUS_PER_NODE", ""), node)
    tasks = (
        _of_node(variables.get("SLURM_STEP_TASKS_PER_NODE", ""), node)
        if "SLURM_STEP_ID" in variables
        else 1
    )
    return None if cores is None else max(1, cores // (tasks or 1))


def _of_node(counts: str, node: str) -> int | None:
    """Return the count of one node in a list such as ``16(x2),8``; None for other text."""
    parts = [re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", part) for part in counts.split(",")]
    last = 0
    for part in parts:
        if part is None or not node.isdecimal():
            return None
        last += int(part[2] or 1)
        if int(node) < last:
            return int(part[1])
    return None


def reading_threads() -> int:
    """Return the number of threads for a large read: one where other workers use the other cores,
    else one for each core."""
    if (
        _is_forked
        or multiprocessing.parent_process() is not None
        or threading.current_thread() is not threading.main_thread()
    ):
        return 1
    dask: Any = sys.modules.get("dask.config")
    return (
        1
        if dask is not None and dask.get("scheduler", None) in _SINGLE_THREADED
        else available_cores()
    )


@cache
def _cgroup_cores() -> int:
    """Return the smallest CPU quota of the process's control group and its parents, rounded up; the
    number of cores if there is none."""
    quotas: list[float] = [os.cpu_count() or 1]
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, folder = line.split(":", 2)
        parts = folder.strip("/").split("/")
        for depth in range(len(parts) + 1):
            below = "/".join(parts[:depth])
            if not controllers:
                words = _read(f"{_CGROUP_V2}/{below}/cpu.max").split()
            elif "cpu" in controllers.split(","):
                words = [
                    *_read(f"{_CGROUP_V1}/{below}/cpu.cfs_quota_us").split(),
                    *_read(f"{_CGROUP_V1}/{below}/cpu.cfs_period_us").split(),
                ]
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
