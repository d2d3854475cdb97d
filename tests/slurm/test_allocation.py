"""Scheduler, workers and command in one allocation of a real SLURM: the result equals a serial run,
and no allocation stays idle when a part ends."""

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
SMALL = ("--partition=debug", "--ntasks-per-node=1", "--mem-per-cpu=1G", "--time=00:05:00")
CONFIGS = Path(__file__).resolve().parent.parent.parent / "cluster-configs"
PYRAMID_SCRIPT = """
import json, os, sys
import dask, wkwdask
with wkwdask.cluster() as client:
    client.wait_for_workers(2)
    def memory():
        return [dask.config.get(f"distributed.worker.memory.{name}") for name in ("target", "spill", "pause", "terminate")]
    workers = client.scheduler_info()["workers"].values()
    facts = {"names": sorted(worker["name"] for worker in workers), "memory": list(client.run(memory).values())}
    with open(sys.argv[1], "w") as file:
        json.dump({**facts, "limits": [worker["memory_limit"] for worker in workers]}, file)
    wkwdask.build_pyramid(sys.argv[2])
"""  # noqa: E501


@pytest.fixture
def submitted(slurm, tmp_path, monkeypatch):
    """Submit a batch script with a command; returns the id of the job."""
    monkeypatch.setenv("WKWDASK_INTERFACE", "lo")
    monkeypatch.chdir(tmp_path)

    def submit(*command, script="slurm-allocation", nodes=1):
        return slurm.run(
            "sbatch",
            "--parsable",
            *SMALL,
            f"--nodes={nodes}",
            "--output",
            str(tmp_path / "job.out"),
            str(CONFIGS / f"{script}.sbatch"),
            *map(str, command),
        )

    return submit


def test_a_pyramid_equals_that_of_a_serial_run(slurm, submitted, tmp_path):
    folder = tmp_path / "ds"
    folder.mkdir()
    wkwdask.create_dataset(folder, (8, 8, 8), name="ds")
    wkwdask.to_wkw(ARRAY, folder / "color" / "1", block_len=8, file_len=2, category="color")
    subprocess.run(["cp", "-r", folder, tmp_path / "serial"], check=True)
    (tmp_path / "pyramid.py").write_text(PYRAMID_SCRIPT)
    job = submitted(
        sys.executable, tmp_path / "pyramid.py", tmp_path / "facts.json", folder, nodes=2
    )
    slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED")
    assert slurm.state(job) == "COMPLETED", (tmp_path / "job.out").read_text()
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts == {
        "names": [f"w-{job}-0", f"w-{job}-1"],
        "memory": [[False, False, 0.8, 0.95]] * 2,
        "limits": [1 << 30] * 2,
    }
    with dask.config.set(scheduler="synchronous"):
        wkwdask.build_pyramid(tmp_path / "serial")
    assert wkwdask.diff(folder, tmp_path / "serial").equal
    assert list(tmp_path.glob(".wkwdask-*")) == []  # the folder with the scheduler file


def test_a_failed_command_ends_the_job_with_its_exit_code(slurm, submitted, tmp_path):
    job = submitted("bash", "-c", "sleep 1; exit 7")
    slurm.wait_for(job, "FAILED", "COMPLETED")
    assert "ExitCode=7:0" in slurm.run("scontrol", "show", "job", job)
    assert list(tmp_path.glob(".wkwdask-*")) == []


@pytest.mark.parametrize("part", ["scheduler", "workers"])
def test_the_job_fails_without_its_scheduler_or_workers(slurm, submitted, tmp_path, part):
    job = submitted("sleep", "300", script="slurm-allocation-preemptible")
    (folder,) = wait_for_folder(tmp_path, job)
    texts = (
        f"--scheduler-file {folder}",
        "dask scheduler" if part == "scheduler" else f"--name w-{job}-",
    )
    wait_until(lambda: processes(*texts))
    for pid in processes(*texts):
        os.kill(pid, 9)
    slurm.wait_for(job, "FAILED", "COMPLETED")
    assert "ended before the command" in (tmp_path / "job.out").read_text()
    wait_until(lambda: not processes(str(folder)))


def wait_for_folder(parent, job):
    wait_until(lambda: [*parent.glob(f".wkwdask-{job}-*/scheduler.json")])
    return [*parent.glob(f".wkwdask-{job}-*")]


def processes(*texts):
    """List the processes whose command line contains all texts; jobs of other clusters may have the
    same number."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            continue
        if entry.isdecimal() and all(text in line for text in texts):
            found.append(int(entry))
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.glob("*.sbatch")))
def test_slurm_accepts_the_shipped_scripts(slurm, name):
    options = [
        "--partition=debug",
        "--time=00:10:00",
        *(["--nodes=2", "--ntasks-per-node=1"] if "allocation" in name else []),
    ]
    done = subprocess.run(
        ["sbatch", "--test-only", *options, CONFIGS / name, "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr
