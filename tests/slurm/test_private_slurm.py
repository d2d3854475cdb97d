"""The private cluster itself: jobs run on three nodes, and no daemon outlives the process that
started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from faults.drivers import wait_until
from support.private_slurm import _is_running

pytestmark = pytest.mark.slurm


def test_jobs_run_on_every_node(slurm):
    found = slurm.run("srun", "-N3", "-n3", "sh", "-c", "echo $SLURMD_NODENAME")
    assert sorted(found.split()) == ["n0", "n1", "n2"]


def test_states_of_a_job(slurm, tmp_path):
    job = slurm.run("sbatch", "--parsable", "-o", str(tmp_path / "%j.out"), "--wrap", "sleep 60")
    assert slurm.wait_for(job, "RUNNING") == "RUNNING"
    slurm.run("scancel", job)
    assert slurm.wait_for(job, "CANCELLED") == "CANCELLED"
    assert slurm.state("999999") == ""


def test_no_daemon_outlives_a_killed_process(slurm_cluster):
    """``slurm_cluster`` only skips where SLURM is absent; the test starts another cluster."""
    with tempfile.TemporaryDirectory(prefix="wkwdask-slurm-", dir="/tmp") as folder:
        imports = "import os, pathlib\nfrom support import private_slurm as p"
        command = (
            f"{imports}\nwith p.private_slurm(pathlib.Path(os.environ['FOLDER']), num_nodes=1): "
            "os.kill(os.getpid(), 9)"
        )
        tests = str(Path(__file__).resolve().parent.parent)
        done = subprocess.run(
            [sys.executable, "-c", command],
            env={**os.environ, "FOLDER": folder, "PYTHONPATH": tests},
            timeout=240,
        )
        assert done.returncode == -signal.SIGKILL
        names = {
            path.name.partition(".")[0]: int(path.read_text())
            for path in Path(folder, "run").glob("*.pid")
        }
        assert {"munged", "slurmctld"} <= set(names)
        wait_until(lambda: not any(_is_running(pid, name) for name, pid in names.items()))
