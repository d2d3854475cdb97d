"""Measurement of one unit of work: CPU seconds of the process with its threads and children, and
wall seconds."""

from __future__ import annotations

import contextlib
import gc
import resource
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

MB = 1e6

_VARIABLES = (
    "BLOSC_NTHREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
ONE_THREAD = dict.fromkeys(_VARIABLES, "1")
"""Environment in which libraries start no threads."""


def cpu_seconds() -> float:
    """Return user and system seconds of this process, its threads, and its children, those that
    have ended and those that still run."""
    usages = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(
        map(_seconds_of, psutil.Process().children(recursive=True))
    )


def _seconds_of(process: psutil.Process) -> float:
    """Return the seconds of a running process and its own ended children."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return sum(
        getattr(times, name, 0.0) for name in ("user", "system", "children_user", "children_system")
    )


FILE_PARTS = ("read", "write")
"""Parts that are shown beside the others and not counted with them."""


@dataclass(frozen=True)
class Sample:
    """One measurement."""

    cpu: float
    """User and system seconds."""
    wall: float
    """Wall seconds."""
    written: int = 0
    """Bytes of the files that were written."""
    parts: dict[str, float] = field(default_factory=dict)
    """CPU seconds of named parts, where a work times them itself."""
    peak: int = 0
    """Most resident memory of the process meanwhile [bytes], libraries included; 0 where the system
    does not tell."""
    requests: int = 0
    """Requests to a server, where they are counted."""
    received: int = 0
    """Bytes of all answers to them."""


def _forget_peak() -> None:
    """Let the system measure the peak of memory from now on."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_nbytes() -> int:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def measure(work: Any) -> Sample:
    """Prepare a work (not timed), do it (timed), and count what it wrote (not timed)."""
    work.prepare()
    return timed(work)


def timed(work: Any) -> Sample:
    """Do a work that is prepared."""
    gc.collect()
    _forget_peak()
    cpu, wall = cpu_seconds(), time.perf_counter()
    parts = work.run()
    cpu, wall, peak = cpu_seconds() - cpu, time.perf_counter() - wall, _peak_nbytes()
    if parts is not None:
        # the work timed its parts: the rest was only there to lay out their input
        cpu = wall = sum(seconds for name, seconds in parts.items() if name not in FILE_PARTS)
    return Sample(cpu, wall, work.written(), parts or {}, peak)


@dataclass
class Outcome:
    """All that was measured of one unit."""

    label: str
    """Tool and settings."""
    nbytes: int = 0
    """Decoded source bytes of one measurement."""
    samples: list[Sample] = field(default_factory=list)
    """Measurements, in order."""
    digests: list[str] = field(default_factory=list)
    """Hash of the voxels of each result."""
    problem: str = ""
    """Why there are no samples: ``not installed`` or an error."""
    version: str = ""
    """Version of the tool, empty where it is not shown."""

    @property
    def name(self) -> str:
        """Tool, version and settings."""
        tool, comma, settings = self.label.partition(",")
        return f"{tool} {self.version}".rstrip() + comma + settings

    @property
    def cpu(self) -> float:
        """Median CPU seconds."""
        return statistics.median(sample.cpu for sample in self.samples)

    @property
    def wall(self) -> float:
        """Median wall seconds."""
        return statistics.median(sample.wall for sample in self.samples)

    @property
    def cpu_speed(self) -> float:
        """MB of decoded source per CPU second."""
        return self.nbytes / MB / max(self.cpu, 1e-9)

    @property
    def wall_speed(self) -> float:
        """MB of decoded source per wall second."""
        return self.nbytes / MB / max(self.wall, 1e-9)

    @property
    def written(self) -> int:
        """Bytes written by one measurement."""
        return self.samples[-1].written

    @property
    def requests(self) -> int:
        """Median number of requests to a server."""
        return round(statistics.median(sample.requests for sample in self.samples))

    @property
    def received(self) -> int:
        """Median bytes of the answers to them."""
        return round(statistics.median(sample.received for sample in self.samples))

    @property
    def peak(self) -> int:
        """Most resident memory in any measurement [bytes]."""
        return max(sample.peak for sample in self.samples)

    def parts(self) -> dict[str, float]:
        """Return the median CPU seconds of each named part."""
        return {
            name: statistics.median(sample.parts[name] for sample in self.samples)
            for name in self.samples[0].parts
        }
