"""Faults of drivers and schedulers, and of clusters that start their own workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import distributed
from faults.cluster_processes import ClusterProcesses
from faults.drivers import ENVIRONMENT, Driver, num_ended, wait_until
from faults.slurm_workers import SlurmWorkers
from faults.trees import JSON_NAME, contents, differences, leftovers
from faults.works import (
    GREEDY_VARIABLE,
    LOG_VARIABLE,
    SECONDS_VARIABLE,
    error_of,
    num_repeated,
    slow_script,
)
from slurm.array import ids_in

import wkwdask
from wkwdask.errors import LockedError

from .failure_stage import MOMENT, SECONDS, Outcome, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

_JOBS = {
    "kind": "jobqueue",
    "class": "SLURMCluster",
    "jobs": 3,
    "cores": 1,
    "processes": 1,
    "memory": "1200MB",
    "queue": "debug",
    "walltime": "00:05:00",
    "interface": "lo",
    "local-directory": "/tmp",
    "death-timeout": "60s",
    "python": sys.executable,
    "dask": {"distributed.scheduler.allowed-failures": 10},
}


def driver_killed(stage: Stage) -> Outcome:
    """Kill the process that drives worker jobs; another one resumes."""
    work = stage.works["pyramid"]
    with SlurmWorkers(stage.slurm, stage.new("cluster")) as workers:
        for _ in range(3):
            workers.start_worker()
        with workers.connected(3):
            calm = stage.undisturbed(work, SECONDS)
        folder, log = work.start(stage.new("storm")), stage.new("log")
        started = time.monotonic()
        with Driver(
            str(folder), "parts", str(log), workers.address, seconds=SECONDS
        ).start() as process:
            wait_until(lambda: num_ended(log) >= MOMENT)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        with workers.connected(3):
            work.build(folder, log, SECONDS, existing="resume")
        return stage.judged(
            work,
            folder,
            log,
            started,
            calm,
            f"exit code {process.returncode}",
            "resumed from another process",
        )


def driver_job(stage: Stage, fault: Callable[[Any, str], str], *, is_requeued: bool) -> Outcome:
    """Drive worker jobs from another job, which is requeued, or cancelled and submitted again."""
    work = stage.works["pyramid"]
    with SlurmWorkers(stage.slurm, stage.new("cluster")) as workers:
        for _ in range(3):
            workers.start_worker()
        with workers.connected(3):
            calm = stage.undisturbed(work, SECONDS)
        folder, log = work.start(stage.new("storm")), stage.new("log")
        driver = Driver(
            str(folder),
            "parts",
            str(log),
            workers.address,
            seconds=SECONDS,
            options=(("existing", "resume"),),
        )
        started = time.monotonic()
        job = _submit_driver(stage, driver)
        wait_until(lambda: num_ended(log) >= MOMENT)
        proof = fault(stage.slurm, job)
        if not is_requeued:
            job = _submit_driver(stage, driver)
        state = stage.slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", seconds=120)
        if state != "COMPLETED":
            raise RuntimeError(
                f"driver {state}: {(stage.folder / f'driver-{job}.log').read_text()[-500:]}"
            )
        return stage.judged(
            work,
            folder,
            log,
            started,
            calm,
            proof,
            "requeued job resumes" if is_requeued else "submitted again, resumes",
        )


def _submit_driver(stage: Stage, driver: Driver) -> str:
    script = stage.new("driver.sh")
    script.write_text(
        f"#!/bin/bash\nexec {sys.executable} -c 'from faults import drivers; drivers.main()' "
        f"'{json.dumps(asdict(driver))}'\n"
    )
    environment = ",".join(f"{name}={ENVIRONMENT[name]}" for name in ("PYTHONPATH", "PATH"))
    options = (
        "-c",
        "1",
        "--mem",
        "1G",
        "--requeue",
        "--open-mode=append",
        "-o",
        f"{stage.folder}/driver-%j.log",
        f"--export={environment}",
    )
    return stage.slurm.run("sbatch", "--parsable", *options, str(script))


def requeue_driver(slurm: Any, job: str) -> str:
    """Requeue the driver's job."""
    slurm.requeue_now(job)
    return "Restarts=1"


def cancel_driver(slurm: Any, job: str) -> str:
    """Kill the driver's job at once."""
    slurm.run("scancel", "--signal=KILL", "--full", job)
    return f"job {slurm.wait_for(job, 'FAILED', 'CANCELLED')} by SIGKILL"


def two_drivers(stage: Stage) -> Outcome:
    """Start a second driver for the same mags, kill the first, then resume; a job of another layer
    is allowed meanwhile."""
    work, other = stage.works["pyramid"], stage.works["to_wkw"]
    folder, log = work.start(stage.new("storm")), stage.new("log")
    calm_folder = stage.new("cluster")
    calm_folder.mkdir()
    with ClusterProcesses(calm_folder) as cluster:
        with distributed.Client(cluster.address) as client:
            client.wait_for_workers(2, timeout=60)
            calm = stage.undisturbed(work, SECONDS)
        started = time.monotonic()
        with (
            Driver(
                str(folder), "parts", str(log), cluster.address, seconds=SECONDS
            ).start() as process,
            distributed.Client(cluster.address),
        ):
            wait_until(lambda: num_ended(log) >= MOMENT)
            try:
                work.build(folder, stage.new("log"), 0.0, existing="resume")
                raise RuntimeError("the second driver was not refused")
            except LockedError as error:
                refused = f"process {process.pid}" in str(error)
            other.build(folder, stage.new("log"), 0.0)  # another layer
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            work.build(folder, log, SECONDS, existing="resume")
        took = time.monotonic() - started
    found = {name: content for name, content in contents(folder).items() if name != JSON_NAME}
    expected = {
        name: content
        for one in (work, other)
        for name, content in one.after.items()
        if name != JSON_NAME
    }
    if found != expected or leftovers(folder):
        raise RuntimeError(f"not identical: {differences(found, expected)}, {leftovers(folder)}")
    layers = [layer["name"] for layer in json.loads((folder / JSON_NAME).read_text())["dataLayers"]]
    proof = (
        f"LockedError names the first: {refused}; exit code {process.returncode}; layers "
        f"{sorted(layers)}"
    )
    result = "second refused, another layer written meanwhile; resumed, tree identical"
    return Outcome(proof, result, took, calm, num_repeated(log), len(work.tasks))


def scheduler_killed(stage: Stage) -> Outcome:
    """Kill the scheduler; the driver ends with an error, and a new cluster resumes."""
    work = stage.works["pyramid"]
    folder, log = work.start(stage.new("storm")), stage.new("log")
    logs = stage.new("cluster")
    logs.mkdir()
    with ClusterProcesses(logs) as cluster:
        with distributed.Client(cluster.address) as client:
            client.wait_for_workers(2, timeout=60)
            calm = stage.undisturbed(work, SECONDS)
        started = time.monotonic()
        with Driver(
            str(folder), "parts", str(log), cluster.address, seconds=SECONDS
        ).start() as process:
            wait_until(lambda: num_ended(log) >= MOMENT)
            cluster.kill(cluster.scheduler)
            output, _ = process.communicate()
        name, message, _ = error_of(output)
        cluster.restore()
        with distributed.Client(cluster.address) as client:
            client.wait_for_workers(2, timeout=60)
            work.build(folder, log, SECONDS, existing="resume")
        return stage.judged(
            work, folder, log, started, calm, "process gone", f"{name}: {message[:80]}; resumed"
        )


def jobqueue(stage: Stage, seconds: float = SECONDS, proof: str = "", **keys: Any) -> Outcome:
    """Run on jobs that end again and again and are replaced."""
    work = stage.works["pyramid"]
    logs = stage.new("jobs")
    keys = {"log-directory": str(logs), **keys}
    with wkwdask.cluster({**_JOBS, "log-directory": str(logs)}) as client:
        client.wait_for_workers(3, timeout=120)
        calm = stage.undisturbed(work, seconds)
    stage.slurm.end_jobs()
    first = int(stage.slurm.run("squeue", "-h", "-t", "all", "-o", "%i").split()[0])
    with wkwdask.cluster({**_JOBS, **keys}) as client:
        client.wait_for_workers(3, timeout=120)
        folder, log = work.start(stage.new("storm")), stage.new("log")
        started = time.monotonic()
        work.build(folder, log, seconds)
        took = time.monotonic()
        ids = {int(job) for job in stage.slurm.run("squeue", "-h", "-t", "all", "-o", "%i").split()}
        num_jobs = len([job for job in ids if job > first])
    return stage.judged(
        work,
        folder,
        log,
        started + time.monotonic() - took,
        calm,
        f"{proof}; {num_jobs} jobs came in all, 3 at a time",
        "completes",
    )


def allocation(stage: Stage, fault: Callable[[Any, str], str], *, is_requeued: bool) -> Outcome:
    """Run the shipped script of an allocation; a fault affects scheduler, workers and driver
    together."""
    work = stage.works["pyramid"]

    def run(break_it: bool) -> tuple[Path, Path, float, str]:
        folder, log = work.start(stage.new("storm")), stage.new("log")
        started = time.monotonic()
        job = _submit_allocation(stage, folder, log)
        proof = ""
        if break_it:
            wait_until(lambda: num_ended(log) >= MOMENT, seconds=120)
            proof = fault(stage.slurm, job)
            if not is_requeued:
                job = _submit_allocation(stage, folder, log)
        _await_allocation(stage, job)
        return folder, log, started, proof

    _, _, calm_started, _ = run(False)
    calm = time.monotonic() - calm_started
    folder, log, started, proof = run(True)
    return stage.judged(
        work,
        folder,
        log,
        started,
        calm,
        proof,
        "requeued allocation resumes" if is_requeued else "submitted again, resumes",
    )


def allocation_pyramid(stage: Stage, folder: Path) -> None:
    """Build the pyramid in an allocation."""
    _await_allocation(stage, _submit_allocation(stage, folder, stage.new("log"), 0.0))


def _await_allocation(stage: Stage, job: str) -> None:
    state = stage.slurm.wait_for(
        job,
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "OUT_OF_MEMORY",
        "NODE_FAIL",
        seconds=240,
    )
    if state != "COMPLETED":
        raise RuntimeError(
            f"allocation {state}: {(stage.folder / f'allocation-{job}.log').read_text()[-700:]}"
        )


def _submit_allocation(stage: Stage, folder: Path, log: Path, seconds: float = SECONDS) -> str:
    shipped = (
        Path(wkwdask.__file__).resolve().parents[1] / "cluster-configs" / "slurm-allocation.sbatch"
    )
    environment = ",".join(
        f"{name}={value}"
        for name, value in {
            "PYTHONPATH": ENVIRONMENT["PYTHONPATH"],
            "PATH": ENVIRONMENT["PATH"],
            "HOME": os.environ.get("HOME", "/tmp"),
            "WKWDASK_PROGRESS": "off",
            LOG_VARIABLE: str(log),
            SECONDS_VARIABLE: str(seconds),
        }.items()
    )
    options = (
        "-N",
        "2",
        "--ntasks-per-node",
        "2",
        "-c",
        "1",
        "--mem-per-cpu",
        "1200M",
        "--requeue",
        "--open-mode=append",
        "-t",
        "5",
        "--chdir",
        str(stage.folder),
        "-o",
        f"{stage.folder}/allocation-%j.log",
        f"--export={environment}",
    )
    command = (
        sys.executable,
        "-c",
        "from faults.works import slow_command; slow_command()",
        "pyramid",
        str(folder),
        "--layer",
        "seg",
        "--resume",
        "--mags",
    )
    mags = ",".join(stage.works["pyramid"].case.mags)
    return stage.slurm.run("sbatch", "--parsable", *options, str(shipped), *command, mags)


def array(stage: Stage, fault: Callable[[Stage, tuple[str, str]], Callable[[], str]]) -> Outcome:
    """Run a job array of four elements; a fault affects one of them, or the job after them."""
    work = stage.works["pyramid"]
    calm = _array_run(stage, work, None)[3]
    folder, log, proof, _, result, started = _array_run(stage, work, fault)
    return stage.judged(work, folder, log, started, calm, proof, result)


def array_pyramid(stage: Stage, folder: Path) -> None:
    """Build the pyramid by a job array."""
    logs = stage.new("logs")
    ids = _submit_array(stage, folder, stage.new("log"), logs, 0.0)
    printed, state = _end_of(stage, logs, ids)
    if state != "COMPLETED":
        raise RuntimeError(f"{state}: {printed}")


def _submit_array(
    stage: Stage, folder: Path, log: Path, logs: Path, seconds: float, *extra: str
) -> tuple[str, str]:
    environment = {**os.environ, **ENVIRONMENT, **stage.slurm.environment}
    environment |= {
        LOG_VARIABLE: str(log),
        SECONDS_VARIABLE: str(seconds),
        GREEDY_VARIABLE: str(stage.folder / "greedy"),
    }
    mags = ",".join(stage.works["pyramid"].case.mags)
    words = (
        "submit",
        "pyramid",
        str(folder),
        "--layer",
        "seg",
        "--mags",
        mags,
        "--cluster",
        str(slow_script(stage.folder)),
        *extra,
    )
    more = ("--elements", "4", "--memory", "1G", "--logs", str(logs))
    command = [
        sys.executable,
        "-c",
        "from faults.works import slow_command; slow_command()",
        *words,
        *more,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    ids = ids_in(done.stdout)
    if ids is None:
        raise RuntimeError(done.stdout[-300:] + done.stderr[-500:])
    return ids


def _array_run(stage: Stage, work: Any, fault: Any) -> tuple[Path, Path, str, float, str, float]:
    folder, log = work.start(stage.new("storm")), stage.new("log")
    (stage.folder / "greedy").unlink(missing_ok=True)
    logs = stage.new("logs")
    started = time.monotonic()
    result = "completes"
    ids = _submit_array(stage, folder, log, logs, SECONDS)
    proof = ""
    if fault is not None:
        wait_until(lambda: num_ended(log) >= MOMENT, seconds=120)
        found = fault(stage, ids)
    last, state = _end_of(stage, logs, ids)
    if state != "COMPLETED":
        result = f"the last job is {state}; submitted again, resumes"
        last, state = _end_of(
            stage, logs, _submit_array(stage, folder, log, logs, SECONDS, "--resume")
        )
        if state != "COMPLETED":
            raise RuntimeError(f"{state}: {last}")
    if fault is not None:
        proof = found()
    return folder, log, proof, time.monotonic() - started, result, started


def _end_of(stage: Stage, logs: Path, ids: tuple[str, str] | None) -> tuple[str, str]:
    state = printed = ""
    while ids is not None:
        state = stage.slurm.wait_for(
            ids[1], "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", seconds=240
        )
        found = list(logs.glob(f"*-{ids[1]}-finish.log"))
        printed = found[0].read_text() if found else ""
        ids = ids_in(printed) if state == "COMPLETED" else None
    return printed[-600:], state


def element_cancelled(stage: Stage, ids: tuple[str, str]) -> Callable[[], str]:
    """Cancel one element."""
    stage.slurm.run("scancel", f"{ids[0]}_1")
    return lambda: f"element {stage.slurm.state(ids[0] + '_1')}"


def element_requeued(stage: Stage, ids: tuple[str, str]) -> Callable[[], str]:
    """Requeue one element."""
    stage.slurm.requeue_now(f"{ids[0]}_1")
    return lambda: f"Restarts={stage.slurm.field(ids[0] + '_1', 'Restarts')}"


def element_node_down(stage: Stage, ids: tuple[str, str]) -> Callable[[], str]:
    """Set the node of an element down."""
    node = stage.slurm.field(f"{ids[0]}_3", "NodeList")
    stage.slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    lost = [n for n in range(4) if stage.slurm.state(f"{ids[0]}_{n}") == "PENDING"]
    for n in lost:
        stage.slurm.start_now(f"{ids[0]}_{n}")
    return lambda: (
        f"{node} {stage.slurm.run('sinfo', '-h', '-N', '-p', 'debug', '-n', node, '-o', '%T')}, "
        f"elements {lost} requeued"
    )


def element_greedy(stage: Stage, ids: tuple[str, str]) -> Callable[[], str]:
    """Exceed the memory limit of an element."""
    (stage.folder / "greedy").write_text("1")
    state = stage.slurm.wait_for(f"{ids[0]}_1", "OUT_OF_MEMORY", "FAILED", "CANCELLED", "COMPLETED")
    return lambda: f"element {state}"


def last_cancelled(stage: Stage, ids: tuple[str, str]) -> Callable[[], str]:
    """Kill the job after the array while it works."""
    stage.slurm.wait_for(ids[1], "RUNNING", seconds=120)
    time.sleep(3)
    stage.slurm.run("scancel", "--signal=KILL", "--full", ids[1])
    return lambda: f"job {stage.slurm.state(ids[1])}"


def cancel_all(slurm: Any, job: str) -> str:
    """Cancel an allocation."""
    slurm.run("scancel", job)
    return f"job {slurm.wait_for(job, 'CANCELLED', 'FAILED')}"


def shorten(slurm: Any, job: str) -> str:
    """Shorten the walltime of an allocation."""
    slurm.run("scontrol", "update", f"jobid={job}", "TimeLimit=1")
    return f"job {slurm.wait_for(job, 'TIMEOUT', 'COMPLETED', 'FAILED', seconds=150)}"
