"""The failure matrix: its rows, and the table of what became of them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from faults import worker_faults
from faults.drivers import without_flushing
from faults.works import ArrayWork, PyramidWork
from support.private_slurm import private_slurm

from . import failure_drivers as drivers
from . import failure_workers as workers
from .failure_stage import Outcome, Stage, quiet_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HEAD = (
    "| fault | runner, job | how it is known | result | time lost | tasks repeated |\n"
    "|---|---|---|---|---|---|"
)


def rows() -> dict[tuple[str, str], Callable[[Stage], Outcome]]:
    """Name every fault and every runner, and how they come together."""
    on = workers.on_worker_jobs
    found: dict[tuple[str, str], Callable[[Stage], Outcome]] = {}
    for job in ("pyramid", "to_wkw"):
        name = f"worker jobs, {job}"
        found |= {
            ("worker killed", name): partial(on, work=job, fault=worker_faults.lost),
            ("scancel", name): partial(on, work=job, fault=worker_faults.cancelled),
            ("requeue", name): partial(on, work=job, fault=worker_faults.requeued),
            ("preempted", name): partial(on, work=job, fault=worker_faults.preempted),
            ("node down", name): partial(on, work=job, fault=worker_faults.node_down),
            ("memory, nanny", name): partial(
                on, work=job, fault=worker_faults.over_memory, options=workers.NANNY
            ),
            ("memory, slurm", name): partial(
                on, work=job, fault=worker_faults.over_memory, options=workers.UNLIMITED
            ),
        }
    found |= {
        ("stopped, worker-ttl 5 s", "processes, pyramid"): partial(
            workers.stopped, worker_ttl="5s"
        ),
        ("stopped, worker-ttl 5 min", "processes, pyramid"): partial(
            workers.stopped, worker_ttl="5m"
        ),
        ("network cut 30 s", "processes, pyramid"): partial(workers.cut_off, cut_seconds=30),
        ("network cut 5 s", "processes, pyramid"): partial(workers.cut_off, cut_seconds=5),
    }
    requeued = {"fault": drivers.requeue_driver, "is_requeued": True}
    found |= {
        ("driver killed", "worker jobs, pyramid"): drivers.driver_killed,
        ("driver job requeued", "worker jobs, pyramid"): partial(drivers.driver_job, **requeued),
        ("driver job killed", "worker jobs, pyramid"): partial(
            drivers.driver_job, fault=drivers.cancel_driver, is_requeued=False
        ),
        ("two drivers", "processes, pyramid"): drivers.two_drivers,
        ("scheduler killed", "processes, pyramid"): drivers.scheduler_killed,
        ("lifetime of all", "jobqueue, pyramid"): partial(
            drivers.jobqueue, proof="lifetime 8 s", lifetime="8s"
        ),
        ("walltime", "jobqueue, pyramid"): partial(
            drivers.jobqueue, proof="walltime 1 min", seconds=2.0, walltime="00:01:00"
        ),
        ("requeue", "allocation, pyramid"): partial(drivers.allocation, **requeued),
        ("scancel", "allocation, pyramid"): partial(
            drivers.allocation, fault=drivers.cancel_all, is_requeued=False
        ),
        ("walltime", "allocation, pyramid"): partial(
            drivers.allocation, fault=drivers.shorten, is_requeued=False
        ),
        ("scancel", "array, pyramid"): partial(drivers.array, fault=drivers.element_cancelled),
        ("requeue", "array, pyramid"): partial(drivers.array, fault=drivers.element_requeued),
        ("node down", "array, pyramid"): partial(drivers.array, fault=drivers.element_node_down),
        ("memory, slurm", "array, pyramid"): partial(drivers.array, fault=drivers.element_greedy),
        ("last job killed", "array, pyramid"): partial(drivers.array, fault=drivers.last_cancelled),
    }
    return found


def main(words: Sequence[str]) -> int:
    """Run rows and print the table; returns the number of failed rows."""
    chosen = {
        names: row
        for names, row in rows().items()
        if not words or any(word in " ".join(names) for word in words)
    }
    folder = Path(tempfile.mkdtemp(prefix="wkwdask-faults-", dir="/tmp"))
    failed = 0
    print(_HEAD, flush=True)
    try:
        with without_flushing(), quiet_logs(), private_slurm(folder, urgent=True) as slurm:
            os.environ.update(slurm.environment)
            work_folder = folder / "works"
            work_folder.mkdir()
            stage = Stage(
                slurm,
                {
                    "pyramid": PyramidWork(work_folder / "pyramid"),
                    "to_wkw": ArrayWork(work_folder / "array"),
                },
                work_folder,
            )
            for (fault, runner), row in chosen.items():
                failed += not _print_row(fault, runner, row, stage)
                slurm.end_jobs()
                slurm.make_idle()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return failed


def _print_row(fault: str, runner: str, row: Callable[[Stage], Outcome], stage: Stage) -> bool:
    started = time.monotonic()
    try:
        found = row(stage)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        print(
            (
                f"| {fault} | {runner} | | **{type(error).__name__}: {str(error)[:200]}** after "
                f"{time.monotonic() - started:.0f} s | | |"
            ),
            flush=True,
        )
        return False
    lost = found.seconds - found.undisturbed
    print(
        (
            f"| {fault} | {runner} | {found.proof} | {found.result} | {lost:+.1f} s of "
            f"{found.undisturbed:.1f} s | {found.repeated} of {found.tasks} |"
        ),
        flush=True,
    )
    return True
