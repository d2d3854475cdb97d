"""The private cluster itself: jobs run on three nodes, memory limits hold, and nothing stays."""

from __future__ import annotations

import pytest

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
