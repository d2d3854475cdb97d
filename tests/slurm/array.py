"""Submitted commands and their jobs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from faults.drivers import rechunks_of, regions_of
from support.commands import COMMAND


def submit(capsys, *arguments, config="slurm-array", elements=2):
    """Submit a command; returns the ids of the array and of the job after it, None if it submitted
    none."""
    capsys.readouterr()
    with regions_of(32), rechunks_of(32):
        COMMAND.main(
            [
                "submit",
                *map(str, arguments),
                "--cluster",
                config,
                "--elements",
                str(elements),
                "--memory",
                "1G",
            ],
            standalone_mode=False,
        )
    return ids_in(capsys.readouterr().out)


def ids_in(printed):
    """Find the ids of an array and of the job after it in the output."""
    found = re.search(r"^array (\d+), then job (\d+)", printed, re.MULTILINE)
    return None if found is None else (found[1], found[2])


def finished(slurm, jobs, logs="wkwdask-logs"):
    """Wait for the job after an array, and for those after further arrays; returns the last state
    and all output."""
    state = ""
    printed = ""
    while jobs is not None:
        last = jobs[1]
        state = slurm.wait_for(last, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY")
        (log,) = Path(logs).glob(f"*-{last}-finish.log")
        printed += log.read_text()
        jobs = ids_in(log.read_text())
    return state, printed


def element_states(slurm, array):
    """Count the elements of an array by state."""
    return Counter(slurm.run("squeue", "-h", "-r", "-t", "all", "-o", "%T", "-j", array).split())
