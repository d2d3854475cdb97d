"""What happens to the last of some workers that are SLURM jobs; each function gives another that
tells in the end how it is known that it happened."""

from __future__ import annotations

import contextlib
import os
import signal

from faults.slurm_workers import allocate, is_running, pid_of


def lost(workers, client):
    """Kill a worker."""
    pid = pid_of(client, f"job-{workers.jobs[-1]}")
    os.kill(pid, signal.SIGKILL)
    return lambda: (
        f"process {'runs' if is_running(pid) else 'gone'}, job "
        f"{workers.slurm.state(workers.jobs[-1])}"
    )


def cancelled(workers, client):
    """Cancel a worker's job."""
    workers.slurm.run("scancel", workers.jobs[-1])
    return lambda: f"job {workers.slurm.state(workers.jobs[-1])}"


def requeued(workers, client):
    """Requeue a worker's job."""
    workers.slurm.requeue_now(workers.jobs[-1])
    return lambda: f"Restarts={workers.slurm.field(workers.jobs[-1], 'Restarts')}"


def preempted(workers, client):
    """Let a job of a partition with a higher priority take the node."""
    node = workers.slurm.field(workers.jobs[-1], "NodeList")
    other = workers.slurm.run(
        "sbatch",
        "--parsable",
        "-p",
        "urgent",
        "-w",
        node,
        "-c",
        "4",
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 3",
    )
    workers.slurm.start_now(workers.jobs[-1])
    return lambda: (
        f"Restarts={workers.slurm.field(workers.jobs[-1], 'Restarts')}, the other job "
        f"{workers.slurm.state(other)}"
    )


def node_down(workers, client):
    """Take a worker's node down; SLURM may take it back into service at once."""
    node, before = (
        workers.slurm.field(workers.jobs[-1], name) for name in ("NodeList", "Restarts")
    )
    workers.slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    workers.slurm.start_now(workers.jobs[-1])

    def proof():
        state = workers.slurm.run("sinfo", "-h", "-N", "-p", "debug", "-n", node, "-o", "%T")
        restarts, now = (
            workers.slurm.field(workers.jobs[-1], name) for name in ("Restarts", "NodeList")
        )
        return f"{node} {state}, restarted since then: {int(restarts or 0) > int(before)}, on {now}"

    return proof


def over_memory(workers, client):
    """Let a worker take more memory than its nanny, or than SLURM, allows."""
    name = f"job-{workers.jobs[-1]}"
    pid = pid_of(client, name)
    address = next(
        address
        for address, worker in client.scheduler_info(n_workers=-1)["workers"].items()
        if worker["name"] == name
    )
    with contextlib.suppress(OSError):  # it may be gone before it answers
        client.run(allocate, 1_500_000_000, workers=[address])

    def proof():
        told = "exceeded memory limit" in (
            workers.folder / f"{workers.jobs[-1]}.log"
        ).read_text().lower().replace("exceeded job memory", "exceeded memory")
        told = (
            told
            or "exceeded 95% memory budget"
            in (workers.folder / f"{workers.jobs[-1]}.log").read_text().lower()
        )
        return (
            f"process {'runs' if is_running(pid) else 'gone'}, job "
            f"{workers.slurm.state(workers.jobs[-1])}, log tells of memory: {told}"
        )

    return proof
