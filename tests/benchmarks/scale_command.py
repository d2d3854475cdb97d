"""Cost of scheduler and client per task: time and memory of a job of very many empty tasks, and a
forecast for a job of 10^15 voxels."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import dask
import numpy as np
import psutil

from .measure import MB, ONE_THREAD

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .scale_job import PretendedJob

_PETAVOXEL = 1e15
_WORKERS = (100, 1000)
_GROWTH_FROM = 0.2  # of the tasks: by then all modules are loaded and buffers are there
_FEWEST_SIGHTS, _FEWEST_TASKS = 5, 10_000  # for a slope that says something
_ROWS = 10
_START_SECONDS = 180
_END_SECONDS = 20


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/scale.py", description=__doc__)
    parser.add_argument(
        "--files-per-edge",
        type=int,
        default=100,
        metavar="N",
        help="the volume is N^3 files of 1024^3 voxels (default 100; try 10)",
    )
    parser.add_argument(
        "--processes", type=int, default=2, metavar="N", help="worker processes (default 2)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="threads of each worker: more tasks in flight (default 1)",
    )
    parser.add_argument(
        "--mb-per-second",
        type=float,
        default=400,
        metavar="MB",
        help="measured speed of one core, for the forecast (default 400)",
    )
    parser.add_argument(
        "--sample-seconds",
        type=float,
        default=5,
        metavar="S",
        help="how often memory is looked at (default 5)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cluster ends too
    os.environ.setdefault("WKWDASK_PROGRESS", "off")
    from distributed import Client

    from .scale_job import PretendedJob, num_workers, run_job

    with (
        tempfile.TemporaryDirectory(prefix="wkwdask-scale-") as folder,
        _cluster(Path(folder), options.processes, options.threads) as cluster,
        Client(scheduler_file=cluster.scheduler_file, set_as_default=True) as client,
    ):
        client.wait_for_workers(options.processes, timeout=_START_SECONDS)
        client.run(importlib.import_module, PretendedJob.__module__)
        job = PretendedJob(options.files_per_edge, num_workers(), folder)
        expected = job.num_tasks
        with Watch(job, cluster, options.sample_seconds) as watch:
            run_job(job, "pretended pyramid")
            num_files = job.finish()
    print(_report(options, job, watch, num_files, expected))
    return 0


@dataclass(frozen=True)
class Cluster:
    """A dask cluster of other processes."""

    scheduler_file: str
    """Scheduler file."""
    scheduler: psutil.Process
    """Its process."""
    workers: tuple[psutil.Process, ...]
    """Theirs."""


@contextmanager
def _cluster(folder: Path, processes: int, threads: int) -> Iterator[Cluster]:
    """Start a scheduler and workers, and end them in any case."""
    file = folder / "scheduler.json"
    here = str(Path(__file__).resolve().parents[1])
    environment = (
        os.environ
        | ONE_THREAD
        | {"PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])}
    )
    with ExitStack() as stack:

        def start(what: str, *arguments: str) -> psutil.Process:
            command = [
                sys.executable,
                "-m",
                f"distributed.cli.dask_{what}",
                "--scheduler-file",
                str(file),
                "--no-dashboard",
                *arguments,
            ]
            log = stack.enter_context(open(folder / f"{what}.log", "ab"))
            process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
            stack.callback(_end, process)
            return psutil.Process(process.pid)

        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0")
        workers = tuple(
            start("worker", "--no-nanny", "--nworkers", "1", "--nthreads", str(threads))
            for _ in range(processes)
        )
        deadline = time.monotonic() + _START_SECONDS
        while not file.is_file():
            if time.monotonic() > deadline or not scheduler.is_running():
                raise TimeoutError(
                    f"the scheduler did not start: {(folder / 'scheduler.log').read_text()[-2000:]}"
                )
            time.sleep(0.05)
        yield Cluster(str(file), scheduler, workers)


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Sight:
    """Measurement at one moment."""

    seconds: float
    """Since the start."""
    tasks: int
    """Tasks that had ended."""
    in_flight: int
    """Tasks that were handed out and had not."""
    client: int
    """Resident memory of the client [bytes]."""
    scheduler: int
    """Resident memory of the scheduler [bytes]."""


class Watch:
    """Looks at a job and its processes from a thread; use it in a ``with``.

    Parameters
    ----------
    job : PretendedJob
        The job.
    cluster : Cluster
        Where it runs.
    interval : float
        How often [s].
    """

    def __init__(self, job: PretendedJob, cluster: Cluster, interval: float) -> None:
        self._job, self._cluster, self._interval = job, cluster, interval
        self._client = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on)
        self.sights: list[Sight] = []
        self.cpu: dict[str, float] = {}

    def _cpu_now(self) -> dict[str, float]:
        processes = {
            "client": (self._client,),
            "scheduler": (self._cluster.scheduler,),
            "workers": self._cluster.workers,
        }
        return {
            name: sum(sum(process.cpu_times()[:2]) for process in some)
            for name, some in processes.items()
        }

    def _look(self) -> None:
        seen = self._job.num_received
        memory = (process.memory_info().rss for process in (self._client, self._cluster.scheduler))
        self.sights.append(
            Sight(
                time.perf_counter() - self._started,
                seen,
                max(0, self._job.num_given - seen),
                *memory,
            )
        )

    def _look_on(self) -> None:
        while not self._stop.wait(self._interval):
            self._look()
            last = self.sights[-1]
            sys.stderr.write(f"{last.tasks}/{self._job.num_tasks} tasks, {last.seconds:.0f} s\n")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        self._cpu_before, self._started = self._cpu_now(), time.perf_counter()
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        self.cpu = {
            name: seconds - self._cpu_before[name] for name, seconds in self._cpu_now().items()
        }

    def growth(self, name: str) -> float | None:
        """Return by how much a process grew per task [bytes], None where there were too few
        looks."""
        late = [
            sight for sight in self.sights if sight.tasks >= _GROWTH_FROM * self._job.num_received
        ]
        if len(late) < _FEWEST_SIGHTS or self._job.num_received < _FEWEST_TASKS:
            return None
        return float(
            np.polyfit(
                [sight.tasks for sight in late], [getattr(sight, name) for sight in late], 1
            )[0]
        )


def _report(
    options: argparse.Namespace, job: PretendedJob, watch: Watch, num_files: int, expected: int
) -> str:
    """Say what was measured, and what follows."""
    tasks, seconds = job.num_received, watch.sights[-1].seconds
    cpu = ", ".join(f"{name} {1e3 * value / tasks:.3f} ms" for name, value in watch.cpu.items())
    peaks = ", ".join(
        f"{name} {max(getattr(sight, name) for sight in watch.sights) / MB:.0f} MB"
        for name in ("client", "scheduler")
    )
    growth = ", ".join(f"{name} {_growth(watch.growth(name))}" for name in ("client", "scheduler"))
    source_files = options.files_per_edge**3
    lines = [
        (
            f"pyramid of {source_files:,} files of 1024^3 voxels without data: {options.processes} "
            f"processes of {options.threads} threads, dask {dask.__version__}"
        ),
        (
            f"tasks        {tasks:,} ({expected:,} were announced), {num_files:,} files pretended "
            f"to be written; {job.num_voxels / tasks:.3g} voxels per task"
        ),
        (
            f"time         {seconds:.1f} s, {1e3 * seconds / tasks:.3f} ms per task; all processes "
            f"share {os.cpu_count()} cores"
        ),
        f"CPU per task {cpu}",
        f"in flight    at most {job.most_in_flight} futures",
        f"peak RSS     {peaks}",
        f"growth       {growth}, from {100 * _GROWTH_FROM:.0f} % of the tasks on",
        "",
        *_timeline(watch.sights),
        "",
        *_forecast(options, job, watch),
    ]
    return "\n".join(lines)


def _growth(nbytes_per_task: float | None) -> str:
    return (
        "unknown (too short)"
        if nbytes_per_task is None
        else f"{nbytes_per_task * 1e5 / MB:+.1f} MB per 100,000 tasks"
    )


def _timeline(sights: Sequence[Sight]) -> list[str]:
    """Show some of the looks, evenly."""
    chosen = sorted({round(n) for n in np.linspace(0, len(sights) - 1, _ROWS + 1)})
    rows = [
        f"{s.seconds:9.1f} {s.tasks:10,} {s.in_flight:9} {s.client / MB:9.0f} "
        f"{s.scheduler / MB:12.0f}"
        for s in (sights[n] for n in chosen)
    ]
    return [
        f"{'seconds':>9} {'tasks':>10} {'in flight':>9} {'client MB':>9} {'scheduler MB':>12}",
        *rows,
    ]


def _forecast(options: argparse.Namespace, job: PretendedJob, watch: Watch) -> list[str]:
    """Compare what workers can do with what client and scheduler can hand out."""
    tasks = job.num_received
    per_task = job.num_voxels / tasks  # voxels, and bytes of uint8
    here = watch.sights[-1].seconds / tasks
    alone = max(watch.cpu["client"], watch.cpu["scheduler"]) / tasks
    lines = [
        (
            f"10^15 voxels of uint8 are {_PETAVOXEL / 1024**3:,.0f} files and "
            f"{_PETAVOXEL / per_task:,.0f} such tasks; at {options.mb_per_second:g} MB/s per core:"
        ),
        f"scheduler-bound {_rate(per_task / here)} by the time per task here,",
        (
            f"                {_rate(per_task / alone)} by CPU alone, where client and scheduler "
            "each have their own core"
        ),
    ]
    for workers in _WORKERS:
        bound = workers * options.mb_per_second * MB
        slower, by = min((bound, "workers"), (per_task / here, "client and scheduler"))
        share = 100 * bound * here / per_task
        lines.append(
            f"{workers:4} workers    {_rate(bound)} worker-bound, {share:.1f} % of "
            f"scheduler-bound; decided by {by}: {_rate(slower)}"
        )
    return lines


def _rate(nbytes_per_second: float) -> str:
    """Format a speed, and how long the job takes."""
    hours = _PETAVOXEL / nbytes_per_second / 3600
    return f"{nbytes_per_second / 1e9:,.1f} GB/s ({hours:.2g} h)"
