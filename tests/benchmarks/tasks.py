"""Tasks that do nothing on a dask cluster: those of a job beside futures of plain dask."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from .measure import MB, Outcome, Sample
from .table import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from .data import Data

_IN_FLIGHT = 64  # those of a job on two workers, if its tasks are short
_WALL = 1.3


def _nothing(number: int) -> int:
    return number


def run_futures(client: Any, num_tasks: int) -> None:
    """Run empty tasks by ``as_completed``: each that ends is replaced by another."""
    from distributed import as_completed

    numbers = iter(range(num_tasks))
    first = list(islice(numbers, _IN_FLIGHT))
    ended = as_completed(client.map(_nothing, first, pure=False), with_results=True)
    total = 0
    for _, result in ended:
        total += result
        number = next(numbers, None)
        if number is not None:
            ended.add(client.submit(_nothing, number, pure=False))
    assert total == sum(range(num_tasks)), total


@dataclass(frozen=True)
class Tasks:
    """Overhead of the tasks of a job on a cluster of two worker processes."""

    name: str
    """What ``--rows`` selects."""
    data: Data
    """The folder for scratch files."""
    num_tasks: int = 2000
    """Tasks of one measurement."""

    def run(self, repeat: int, say: Callable[[str], None]) -> list[Row]:
        """Run both in turns; the first time of each is not counted.

        Returns
        -------
        list of Row
            One.
        """
        from distributed import Client
        from faults.cluster_processes import ClusterProcesses
        from faults.idle_tasks import run_idle

        ours, futures = Outcome("wkwdask"), Outcome("distributed, as_completed")
        works = {
            "wkwdask": (ours, lambda client: run_idle(self.num_tasks)),
            "futures": (futures, lambda client: run_futures(client, self.num_tasks)),
        }
        folder = Path(self.data.fresh(self.name))
        folder.mkdir(parents=True)
        with ClusterProcesses(folder) as cluster, Client(cluster.address) as client:
            client.wait_for_workers(2, timeout=120)
            for number in range(repeat + 1):
                say(f"{self.name}: {number}/{repeat}")
                for outcome, work in works.values():
                    sample = _measured(lambda work=work: work(client), cluster.scheduler.pid)
                    outcome.samples += [sample] if number else []
        for outcome in (ours, futures):
            outcome.nbytes = int(self.num_tasks * MB)
        ratios = {
            "wall": ours.wall / futures.wall,
            **{part: ours.parts()[part] / futures.parts()[part] for part in ours.parts()},
        }
        met = ratios["wall"] <= _WALL and max(ratios["client"], ratios["scheduler"]) <= 1
        note = "tasks in place of MB; " + ", ".join(
            f"{part} {ratio:.2f}x of futures" for part, ratio in ratios.items()
        )
        work = f"{self.num_tasks:,} empty tasks on a dask cluster"
        target = f"wall <= {_WALL:g}x, client and scheduler <= 1x"
        return [Row(work, ours, futures, target, met, note)]


def _measured(work: Callable[[], None], scheduler: int) -> Sample:
    """Return the CPU seconds of client and scheduler, and wall seconds."""
    process = psutil.Process(scheduler)

    def seconds() -> tuple[float, float, float]:
        return sum(os.times()[:2]), sum(process.cpu_times()[:2]), time.perf_counter()

    before = seconds()
    work()
    client, of_scheduler, wall = (b - a for a, b in zip(before, seconds(), strict=True))
    return Sample(client + of_scheduler, wall, parts={"client": client, "scheduler": of_scheduler})
