"""Overheads and memory of the runners, and whether they give the same."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import dask
import distributed
import psutil
from faults.cluster_processes import ClusterProcesses
from faults.drivers import CASES, ENVIRONMENT, Undisturbed, without_flushing
from faults.idle_tasks import num_journaled, run_idle, write_round
from faults.slurm_workers import SlurmWorkers
from faults.trees import contents
from support.private_slurm import private_slurm

import wkwdask

from .failure_drivers import allocation_pyramid, array_pyramid
from .failure_stage import Stage, quiet_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ELEMENTS = 4


class Memory(threading.Thread):
    """Samples the resident memory of processes every second.

    Parameters
    ----------
    processes : callable
        Returns processes by name; new ones may appear.
    """

    def __init__(self, processes: Callable[[], dict[str, list[int]]]) -> None:
        super().__init__(daemon=True)
        self._processes = processes
        self._end = threading.Event()
        self.samples: dict[str, list[float]] = {}

    def run(self) -> None:
        """Sample until the end."""
        while not self._end.wait(1.0):
            for name, pids in self._processes().items():
                found = [_rss(pid) for pid in pids]
                if any(found):
                    self.samples.setdefault(name, []).append(max(found))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()

    def rows(self) -> Iterator[str]:
        """Return start, middle, end and peak of each."""
        for name, values in self.samples.items():
            n = len(values)
            start, middle, end = values[n // 10], values[n // 2], values[-max(1, n // 20)]
            yield f"| {name} | {n} | {start:.0f} | {middle:.0f} | {end:.0f} | {max(values):.0f} |"


def _rss(pid: int) -> float:
    try:
        return psutil.Process(pid).memory_info().rss / 1e6
    except psutil.NoSuchProcess:
        return 0.0


def main(tasks: int = 2000, many: int = 100_000) -> int:
    """Print all tables."""
    folder = Path(tempfile.mkdtemp(prefix="wkwdask-runners-", dir="/tmp"))
    try:
        with without_flushing(), quiet_logs(), private_slurm(folder) as slurm:
            os.environ.update(slurm.environment)
            here = folder / "here"
            here.mkdir()
            print(
                (
                    "| runner | workers | tasks | seconds | us per task | peak RSS of driver, "
                    "scheduler [MB] |\n|---|---|---|---|---|---|"
                ),
                flush=True,
            )
            _local(tasks)
            with ClusterProcesses(here) as cluster, distributed.Client(cluster.address) as client:
                client.wait_for_workers(2, timeout=60)
                _row("Client, processes", 2, tasks, lambda: _run(tasks), cluster.scheduler.pid)
                _many_on_client(many, cluster)
            with SlurmWorkers(slurm, here / "jobs") as workers:
                for _ in range(2):
                    workers.start_worker()
                with workers.connected(2):
                    _row(
                        "Client, worker jobs",
                        2,
                        tasks,
                        lambda: _run(tasks),
                        workers.processes.scheduler.pid,
                    )
            _on_array(slurm, here, tasks)
            _on_array(slurm, here, many)
            _same_everywhere(slurm, here)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _run(tasks: int) -> None:
    run_idle(tasks)


def _row(
    name: str, workers: int, tasks: int, work: Callable[[], None], scheduler: int | None = None
) -> None:
    work()  # processes start and import
    pids = {"driver": [os.getpid()], **({"scheduler": [scheduler]} if scheduler else {})}
    started = time.perf_counter()
    with Memory(lambda: pids) as memory:
        work()
    took = time.perf_counter() - started
    peaks = ", ".join(
        f"{max(memory.samples.get(pid, [_rss(numbers[0])])):.0f}" for pid, numbers in pids.items()
    )
    print(
        f"| {name} | {workers} | {tasks:,} | {took:.2f} | {took / tasks * 1e6:.0f} | {peaks} |",
        flush=True,
    )


def _local(tasks: int) -> None:
    for name, options, workers in (
        ("serial", {"scheduler": "sync"}, 1),
        ("threads", {"scheduler": "threads", "num_workers": 2}, 2),
    ):
        with dask.config.set(**options):
            _row(name, workers, tasks, lambda: _run(tasks))
    with dask.config.set(scheduler="processes", num_workers=2):
        _row("processes (with their start)", 2, tasks, lambda: _run(tasks))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        cluster.get_client(),
    ):
        _row("Client, LocalCluster", 2, tasks, lambda: _run(tasks))


def _many_on_client(many: int, cluster: ClusterProcesses) -> None:
    pids = {
        "driver": [os.getpid()],
        "scheduler": [cluster.scheduler.pid],
        "workers": [worker.pid for worker in cluster.workers],
    }
    started = time.perf_counter()
    with Memory(lambda: pids) as memory:
        _run(many)
    _print_memory("Client", many, time.perf_counter() - started, memory)


def _print_memory(runner: str, many: int, took: float, memory: Memory) -> None:
    print(
        f"\n{runner}: {many:,} tasks in {took:.1f} s, {took / many * 1e3:.2f} ms per task; memory "
        "[MB]:"
    )
    print("| process | samples | start | middle | end | peak |\n|---|---|---|---|---|---|")
    print("\n".join(memory.rows()), flush=True)


def _on_array(slurm: Any, here: Path, tasks: int) -> None:
    """Let the elements of an array run tasks, as a submitted job does; the joins and checks of the
    job after it are that of the job, not the runner's."""
    root = here / f"array-{tasks}"
    root.mkdir()
    started = time.perf_counter()
    write_round(str(root), tasks, _ELEMENTS)
    written = time.perf_counter() - started
    script = root / "element.sh"
    script.write_text(f"#!/bin/bash\nexec {sys.executable} -m wkwdask batch-element {root} 0\n")
    environment = ",".join(f"{name}={ENVIRONMENT[name]}" for name in ("PYTHONPATH", "PATH"))
    options = (
        f"--array=0-{_ELEMENTS - 1}",
        "-c",
        "1",
        "--mem",
        "1G",
        "-o",
        f"{root}/%a.log",
        f"--export={environment}",
    )
    job = slurm.run("sbatch", "--parsable", *options, str(script))

    def elements() -> dict[str, list[int]]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.NoSuchProcess):
                if (
                    process.info["cmdline"]
                    and "batch-element" in process.info["cmdline"]
                    and str(root) in process.info["cmdline"]
                ):
                    found.append(process.pid)
        return {"elements": found}

    with Memory(elements) as memory:
        while slurm.jobs():
            time.sleep(0.1)
    took = time.perf_counter() - started
    lines = num_journaled(str(root))
    if lines != tasks:
        raise RuntimeError(
            f"array {job}: {lines} of {tasks} tasks: {(root / '0.log').read_text()[-500:]}"
        )
    _print_memory(
        (
            f"array of {_ELEMENTS} elements ({written:.1f} s to write the shares; with the start "
            "of Python)"
        ),
        tasks,
        took,
        memory,
    )


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _same_everywhere(slurm: Any, here: Path) -> None:
    """Build one pyramid by every runner and compare all files, and all voxels."""
    print("\n| runner | files, bytes | voxels of all mags |\n|---|---|---|")
    known = Undisturbed("parts", here / "undisturbed")
    case = CASES["parts"]
    stage = Stage(slurm, {"pyramid": known}, here)

    def compare(name: str, build: Callable[[Path], None]) -> None:
        folder = known.start(here / name.replace(" ", "-").replace(",", ""))
        build(folder)
        same = {
            path: content == known.after.get(path) for path, content in contents(folder).items()
        }
        voxels = all(
            (
                wkwdask.read(folder / "seg" / mag)
                == wkwdask.read(here / "undisturbed" / "seg" / mag)
            ).all()
            for mag in ("1", *case.mags)
        )
        identical = all(same.values()) and set(same) == set(known.after)
        print(
            (
                f"| {name} | {len(same)} {'identical' if identical else 'DIFFERENT'} | "
                f"{'equal' if voxels else 'DIFFERENT'} |"
            ),
            flush=True,
        )

    for scheduler in ("sync", "threads", "processes"):
        with dask.config.set(scheduler=scheduler, num_workers=2):
            compare(scheduler, case.build)
    with (
        ClusterProcesses(_made(stage.new("same"))) as cluster,
        distributed.Client(cluster.address) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        compare("Client, processes", case.build)
    with SlurmWorkers(slurm, stage.new("same")) as workers:
        workers.start_worker()
        with workers.connected(1):
            compare("Client, worker jobs", case.build)
    compare("allocation", lambda folder: allocation_pyramid(stage, folder))
    compare("array", lambda folder: array_pyramid(stage, folder))
