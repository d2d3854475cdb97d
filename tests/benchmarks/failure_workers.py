"""Faults of the workers of a dask cluster, each worker a SLURM job or a process."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import distributed
from faults.cluster_processes import ClusterProcesses
from faults.network import Namespace, why_not
from faults.slurm_workers import PLAIN, SlurmWorkers, state_of

from .failure_stage import SECONDS, Outcome, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

NANNY = ("--nanny", "--memory-limit", "700MB")
UNLIMITED = ("--no-nanny", "--memory-limit", "0")


def on_worker_jobs(
    stage: Stage,
    work: str,
    fault: Callable[[Any, Any], Callable[[], str]],
    options: tuple[str, ...] = PLAIN,
) -> Outcome:
    """Run a job on three worker jobs, two of them on one node; the fault affects the third."""
    with SlurmWorkers(stage.slurm, stage.new("cluster")) as workers:
        for _ in range(3):
            workers.start_worker(*options)
        with workers.connected(3) as client:
            calm = stage.undisturbed(stage.works[work], SECONDS)
            outcome = stage.disturbed(stage.works[work], partial(fault, workers, client), calm)
    stage.slurm.make_idle()
    return outcome


def stopped(stage: Stage, worker_ttl: str) -> Outcome:
    """Stop a worker, as a hanging file system does, and continue it after the job."""
    work, folder = stage.works["pyramid"], stage.new("cluster")
    folder.mkdir()
    with ClusterProcesses(folder, DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL=worker_ttl) as cluster:
        cluster.start_worker()
        with distributed.Client(cluster.address) as client:
            client.wait_for_workers(3, timeout=60)
            calm = stage.undisturbed(work, SECONDS)
            pid = cluster.workers[0].pid

            def stop() -> Callable[[], str]:
                os.kill(pid, signal.SIGSTOP)
                return lambda: f"process in state {state_of(pid)} when the job is over"

            return stage.disturbed(work, stop, calm, after=lambda: _wake(pid))


def _wake(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
    time.sleep(3)  # what it had begun it now writes


def cut_off(stage: Stage, cut_seconds: float) -> Outcome:
    """Cut the network of one of three workers while it works; it comes back later."""
    reason = why_not()
    if reason:
        raise RuntimeError(reason)
    work, folder = stage.works["pyramid"], stage.new("cluster")
    folder.mkdir()
    with (
        Namespace(f"wkw{os.getpid() % 100000}") as network,
        ClusterProcesses(folder, network.outside) as cluster,
    ):
        inner = cluster.start_worker("--no-nanny", "--host", network.address, inside=network.inside)
        with distributed.Client(cluster.address) as client:
            client.wait_for_workers(3, timeout=60)
            calm = stage.undisturbed(work, SECONDS)

            def cut() -> Callable[[], str]:
                network.cut()
                time.sleep(cut_seconds)
                before = (
                    f"{len(client.scheduler_info(n_workers=-1).get('workers', []))} (client "
                    f"{client.status})"
                )
                network.mend()
                return lambda: (
                    f"{before} of 3 workers known when the network came back, the worker "
                    f"{'lives' if inner.poll() is None else 'ended'}"
                )

            return stage.disturbed(work, cut, calm, after=lambda: time.sleep(5))
