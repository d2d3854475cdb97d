"""Peak anonymous memory of a pyramid in a fresh process, sampled from outside by ``/proc``."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from .client import Worker
from .measure import MB, Outcome, Sample
from .table import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from .data import Data

_INTERVAL_SECONDS = 0.002
_LIMIT_MB = 400
_FLAT = 1.2


class Sampler:
    """Watches the anonymous memory of a process from a thread; use it in a ``with``."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.first = self.peak = self._now()

    def _now(self) -> int:
        """Return RssAnon [bytes]."""
        line = next(
            line for line in self._status.read_text().splitlines() if line.startswith("RssAnon:")
        )
        return int(line.split()[1]) * 1024

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL_SECONDS):
            self.peak = max(self.peak, self._now())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


@dataclass(frozen=True)
class Memory:
    """Pyramids of cubes of several sizes, each one file, each in a separate process."""

    name: str
    """What ``--rows`` selects."""
    data: Data
    """The volumes."""
    threads: int
    """Threads of the pyramid."""
    sizes: tuple[int, ...]
    """Edges of the cubes [voxels], ascending."""

    def run(self, repeat: int, say: Callable[[str], None]) -> list[Row]:
        """Measure every size once; the kernels are in the cache on disk by then.

        Returns
        -------
        list of Row
            One per size; the last says whether memory is flat too.
        """
        if not Path("/proc/self/status").is_file():
            return [Row(self.name, Outcome("wkwdask", problem="needs /proc"))]
        self._measure(self.sizes[0], say)  # fills the cache of kernels
        measured = [self._measure(size, say) for size in self.sizes]
        rows = [self._row(size, *one) for size, one in zip(self.sizes, measured, strict=True)]
        before, after = measured[-2][1], measured[-1][1]
        if before and after:
            rows[-1].target += f", <= {_FLAT:g}x of {self.sizes[-2]}^3"
            rows[-1].met = rows[-1].met and after <= _FLAT * before
            rows[-1].note += f", {after / before:.2f}x of {self.sizes[-2]}^3"
        return rows

    def _measure(self, size: int, say: Callable[[str], None]) -> tuple[Outcome, int, int]:
        """Return the measurement, the peak and the memory before [bytes]."""
        say(f"{self.name}: {size}^3")
        cube = self.data.cube("seg", size)
        cube.make()
        options = {
            "source": cube.dataset,
            "layer": cube.layer,
            "folder": self.data.fresh(f"{self.name}-{size}"),
            "nbytes": cube.nbytes,
            "method": "mode",
            "compression": "lz4",
            "threads": self.threads,
        }
        outcome = Outcome(f"wkwdask, {self.threads} thread{'s' * (self.threads > 1)}")
        with Worker("ours.Pyramid", options) as worker:
            if "error" in worker.setup:
                outcome.problem = "FAILED: " + worker.setup["error"].strip().splitlines()[-1]
                return outcome, 0, 0
            with Sampler(worker.pid) as sampler:
                answer = worker.ask("measure")
        if "error" in answer:
            outcome.problem = "FAILED: " + answer["error"].strip().splitlines()[-1]
            return outcome, 0, 0
        outcome.nbytes = worker.setup["nbytes"]
        outcome.samples.append(Sample(**answer))
        return outcome, sampler.peak, sampler.first

    def _row(self, size: int, outcome: Outcome, peak: int, before: int) -> Row:
        work = f"memory: pyramid of segmentation (uint32), lz4, file of {size}^3"
        if not peak:
            return Row(work, outcome, target=f"< {_LIMIT_MB} MB")
        note = (
            f"peak {peak / MB:.0f} MB anonymous, {peak / self.threads / MB:.0f} MB per worker, "
            f"{before / MB:.0f} MB before; speeds with imports"
        )
        return Row(work, outcome, None, f"< {_LIMIT_MB} MB", peak / MB < _LIMIT_MB, note)
