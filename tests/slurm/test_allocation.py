"""Scheduler, workers and command in one allocation of a real SLURM: the result is that of one thread, and nothing stays idle when a part of it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
from slurm.sites import wait_until

import wkwdask

pytestmark = pytest.mark.slurm
ARRAY = np.random.default_rng(0).integers(0, 255, (70, 60, 50)).astype(np.uint8)
SMALL = ("--partition=debug", "--nodes=2", "--ntasks-per-node=1", "--mem-per-cpu=1G", "--time=00:05:00")

CONFIGS = Path(__file__).resolve().parent.parent.parent / "cluster-configs"
TELL = """
import json, os, sys
import dask, wkwdask
with wkwdask.cluster() as client:
    client.wait_for_workers(2)
    def memory():
        return [dask.config.get(f"distributed.worker.memory.{name}") for name in ("target", "spill", "pause", "terminate")]
    workers = client.scheduler_info()["workers"].values()
    told = {"names": sorted(worker["name"] for worker in workers), "memory": list(client.run(memory).values())}
    with open(sys.argv[1], "w") as file:
        json.dump({**told, "limits": [worker["memory_limit"] for worker in workers]}, file)
    wkwdask.build_pyramid(sys.argv[2])
"""


@pytest.fixture
def submitted(slurm, tmp_path, monkeypatch):
    """Submit the script with a command, and give the number of the job."""
    monkeypatch.setenv("WKWDASK_INTERFACE", "lo")
    monkeypatch.chdir(tmp_path)

    def submit(*command, script="slurm-allocation"):
        return slurm.run("sbatch", "--parsable", *SMALL, "--output", str(tmp_path / "job.out"), str(CONFIGS / f"{script}.sbatch"), *map(str, command))

    return submit


def test_pyramid(slurm, submitted, tmp_path):
    folder = tmp_path / "ds"
    folder.mkdir()
    wkwdask.create_dataset(folder, (8, 8, 8), name="ds")
    wkwdask.to_wkw(ARRAY, folder / "color" / "1", block_len=8, file_len=2, category="color")
    subprocess.run(["cp", "-r", folder, tmp_path / "serial"], check=True)
    (tmp_path / "tell.py").write_text(TELL)
    job = submitted(sys.executable, tmp_path / "tell.py", tmp_path / "told.json", folder)
    slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED")
    assert slurm.state(job) == "COMPLETED", (tmp_path / "job.out").read_text()
    told = json.loads((tmp_path / "told.json").read_text())
    assert told == {"names": [f"w-{job}-0", f"w-{job}-1"], "memory": [[False, False, 0.8, 0.95]] * 2, "limits": [1 << 30] * 2}
    with dask.config.set(scheduler="synchronous"):
        wkwdask.build_pyramid(tmp_path / "serial")
    assert wkwdask.diff(folder, tmp_path / "serial").equal
    assert list(tmp_path.glob(".wkwdask-*")) == []  # the folder with the scheduler file


def test_the_command_fails(slurm, submitted, tmp_path):
    """Its exit code is that of the job, and the allocation ends with it."""
    job = submitted("bash", "-c", "sleep 1; exit 7")
    slurm.wait_for(job, "FAILED", "COMPLETED")
    assert "ExitCode=7:0" in slurm.run("scontrol", "show", "job", job)
    assert list(tmp_path.glob(".wkwdask-*")) == []


@pytest.mark.parametrize("part", ["scheduler", "workers"])
def test_a_part_ends(slurm, submitted, tmp_path, part):
    """Where the scheduler or all workers are gone, the command is stopped and the job fails."""
    job = submitted("sleep", "300", script="slurm-allocation-preemptible")
    (folder,) = wait_for_folder(tmp_path, job)
    pattern = f"dask scheduler --scheduler-file {folder}" if part == "scheduler" else f"--name w-{job}-"
    wait_until(lambda: processes(pattern))
    for pid in processes(pattern):
        os.kill(pid, 9)
    slurm.wait_for(job, "FAILED", "COMPLETED")
    assert "ended before the command" in (tmp_path / "job.out").read_text()
    wait_until(lambda: not processes(f"w-{job}-") and not processes(str(folder)))


def wait_for_folder(parent, job):
    wait_until(lambda: [*parent.glob(f".wkwdask-{job}-*/scheduler.json")])
    return [*parent.glob(f".wkwdask-{job}-*")]


def processes(text):
    """List the processes that run and have a text in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            continue
        if entry.isdecimal() and text in line:
            found.append(int(entry))
    return found
