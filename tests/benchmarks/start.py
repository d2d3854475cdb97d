"""Start of processes: CPU seconds and peak resident memory of commands, first calls and workers,
and the kernels of a new installation."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .measure import MB, Outcome, Sample
from .table import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from .data import Data

_COMMAND = "import sys; from wkwdask.cli import main; sys.argv = ['wkwdask', {words}]; main()"
_BOX = "((0, 0, 0), (64, 64, 64))"
_IMPORT = "import dask.array"
# At its end, a process writes its most resident memory [kB]. What the system reports to its parent
# counts the parent's memory too.
_PROLOGUE = """
import atexit
def write_peak(file=__file__ + ".peak"):
    with open("/proc/self/status") as status, open(file, "w") as peak:
        peak.write(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
if __name__ == "__main__":
    atexit.register(write_peak)
"""
_WORKER = """
from wkwdask.clusters.config import load_config
from wkwdask.clusters.connect import local_client
if __name__ == "__main__":
    with local_client(load_config({"kind": "local", "workers": 1})) as client:
        atexit.unregister(write_peak)
        client.run(write_peak, __file__ + ".peak")
"""
_KERNELS = """
from wkwdask.cli.warmup import compile_for_demo
if __name__ == "__main__":
    compile_for_demo()
"""


@dataclass(frozen=True)
class _Process:
    """A process that is started, and what it may take."""

    code: str
    """Its Python program, in a file, since it may start other processes."""
    cpu: float | None = None
    """Most CPU seconds."""
    wall: float | None = None
    """Most wall seconds."""
    peak_mb: float | None = None
    """Most resident memory [MB]."""
    more_than: str = ""
    """Another process, whose CPU seconds are added to ``cpu``."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables."""
    is_new: bool = False
    """Whether each run starts without machine code of kernels."""

    def target(self) -> str:
        """Format what it may take."""
        limits = ((self.cpu, " s CPU"), (self.wall, " s wall"), (self.peak_mb, " MB"))
        more = f" more than {self.more_than}" if self.more_than else ""
        return (
            ", ".join(f"<= {limit:g}{unit}" for limit, unit in limits if limit is not None) + more
        )

    def is_within(self, outcome: Outcome, base: float) -> bool | None:
        """Return whether its medians are within the limits; None if it has none."""
        limits = [
            (self.cpu, outcome.cpu - base),
            (self.wall, outcome.wall),
            (self.peak_mb, outcome.peak / MB),
        ]
        met = [value <= limit for limit, value in limits if limit is not None]
        return all(met) if met else None


@dataclass(frozen=True)
class Start:
    """Processes that start in turns."""

    name: str
    """What ``--rows`` selects."""
    data: Data
    """The volumes."""

    def processes(self) -> dict[str, _Process]:
        """Return the processes by their names in the table."""
        cube = self.data.cube("em", self.data.real_size)
        cube.make()
        completion = (
            ("_WKWDASK_COMPLETE", "bash_complete"),
            ("COMP_WORDS", "wkwdask py"),
            ("COMP_CWORD", "1"),
        )
        return {
            "--help": _Process(_COMMAND.format(words="'--help'"), cpu=0.15),
            "completion": _Process(_COMMAND.format(words=""), cpu=0.15, environment=completion),
            "info": _Process(_COMMAND.format(words=f"'info', {str(cube.dataset)!r}"), cpu=0.35),
            "first read": _Process(
                f"import wkwdask; wkwdask.read({str(cube.mag)!r}, {_BOX})", cpu=0.8
            ),
            _IMPORT: _Process(_IMPORT),
            "open": _Process(
                f"import wkwdask; wkwdask.open({str(cube.mag)!r})", cpu=0.3, more_than=_IMPORT
            ),
            "view, ready": _Process(
                f"import wkwdask; wkwdask.view({str(cube.dataset)!r}).close()", cpu=0.5
            ),
            "open(...)[...].compute()": _Process(
                f"import wkwdask; wkwdask.open({str(cube.mag)!r})[:, :64, :64, :64].compute()"
            ),
            "dask worker before its first task": _Process(_WORKER, peak_mb=200),
            "kernels of the demo, 2 processes": _Process(_KERNELS, wall=10, is_new=True),
        }

    def run(self, repeat: int, say: Callable[[str], None]) -> list[Row]:
        """Start all processes in turns; the first time of each is not counted.

        Returns
        -------
        list of Row
        """
        if not Path("/proc/self/status").is_file():
            return [Row(self.name, Outcome("wkwdask", problem="needs /proc"))]
        processes = self.processes()
        outcomes = {name: Outcome("wkwdask") for name in processes}
        for number in range(repeat + 1):
            say(f"{self.name}: {number}/{repeat}")
            for name, process in processes.items():
                folder = Path(
                    self.data.fresh(f"{self.name}-{number}-{list(processes).index(name)}")
                )
                _add_sample(process, folder, outcomes[name])
        for outcome in outcomes.values():
            del outcome.samples[:1]
        return [_row(name, processes[name], outcomes) for name in processes]


def _add_sample(process: _Process, folder: Path, outcome: Outcome) -> None:
    """Start a process and wait for its end, unless it failed before."""
    if outcome.problem:
        return
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "program.py"
    program.write_text(_PROLOGUE + process.code)
    # Installed packages have bytecode: it is made by the run that is not counted.
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    } | dict(process.environment)
    environment["PYTHONPYCACHEPREFIX"] = str(folder.parent / "bytecode")
    if process.is_new:
        environment["WKWDASK_CACHE_DIR"] = str(folder / "kernels")
    with (folder / "errors").open("w+") as errors:
        started = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, program], stdout=subprocess.DEVNULL, stderr=errors, env=environment
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        if child.returncode:
            outcome.problem = (
                "FAILED: " + (errors.read().strip().splitlines() or ["no message"])[-1]
            )
            return
    outcome.samples.append(
        Sample(
            usage.ru_utime + usage.ru_stime,
            wall,
            peak=int((folder / "program.py.peak").read_text()) * 1024,
        )
    )


def _row(name: str, process: _Process, outcomes: dict[str, Outcome]) -> Row:
    outcome = outcomes[name]
    base = (
        outcomes[process.more_than].cpu
        if process.more_than and outcomes[process.more_than].samples
        else 0.0
    )
    if not outcome.samples:
        return Row(f"start: {name}", outcome, target=process.target())
    note = f"{outcome.cpu:.2f} s CPU, {outcome.wall:.2f} s wall, peak {outcome.peak / MB:.0f} MB"
    return Row(
        f"start: {name}", outcome, None, process.target(), process.is_within(outcome, base), note
    )
