"""Whether the owner of a lock is gone: seen here, asked of SLURM, or unknown. A command that answers as SLURM does stands in for it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace

import pytest

from wkwdask.store.owner import Owner
from wkwdask.store.slurm import SlurmJob

_ELSEWHERE = {"host": "another-machine", "boot": "another start", "namespace": ""}


@pytest.fixture
def slurm_says(tmp_path, monkeypatch):
    """Let ``scontrol`` answer with a text and a code."""
    for name in ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)

    def say(text, code=0, error=""):
        script = tmp_path / "scontrol"
        script.write_text(
            "#!/bin/sh\n"
            'if [ "$2" = config ]; then echo "ClusterName             = hpc"; exit 0; fi\n'
            f"cat <<'E'\n{text}\nE\ncat >&2 <<'E'\n{error}\nE\nexit {code}\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return say


def _owner(batch):
    return replace(Owner.this_process("a job"), **_ELSEWHERE, batch=batch)


@pytest.mark.parametrize(
    ("batch", "text", "code", "error", "is_gone"),
    [
        ("", "", 0, "", False),  # another machine, no SLURM: nobody knows
        ("slurm:hpc:7:0", "JobId=7 JobState=RUNNING Restarts=0 x=1", 0, "", False),
        ("slurm:hpc:7:0", "JobId=7 JobState=PENDING Restarts=0", 0, "", False),
        ("slurm:hpc:7:0", "JobId=7 JobState=RUNNING Restarts=1", 0, "", True),  # put back into the queue, and started anew
        ("slurm:hpc:7:", "JobId=7 JobState=RUNNING Restarts=1", 0, "", False),  # the job as such
        ("slurm:hpc:7:0", "JobId=7 JobState=TIMEOUT Restarts=0", 0, "", True),
        ("slurm:hpc:7:", "JobId=7 JobState=CANCELLED Restarts=0", 0, "", True),
        ("slurm:hpc:7:0", "", 1, "slurm_load_jobs error: Invalid job id specified", True),  # long over
        ("slurm:other:7:0", "", 1, "slurm_load_jobs error: Invalid job id specified", False),  # of a cluster that cannot be asked
        ("slurm:hpc:7:0", "", 1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", False),
    ],
)
def test_owner_in_a_slurm_job(slurm_says, batch, text, code, error, is_gone):
    slurm_says(text, code, error)
    assert _owner(batch).is_gone() is is_gone
    assert _owner(batch).handed_to(SlurmJob.parse(batch)).is_gone() is is_gone if batch else True


def test_without_slurm_nobody_knows(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not _owner("slurm:hpc:7:0").is_gone()


def test_a_living_process_is_not_gone_whatever_slurm_says(slurm_says):
    slurm_says("JobId=7 JobState=COMPLETED Restarts=0")
    assert not replace(Owner.this_process("a job"), batch="slurm:hpc:7:0").is_gone()


def test_a_job_takes_over_from_itself(slurm_says, monkeypatch):
    """The dependent job owns the locks before it runs, and its processes take them; put back into the queue, it takes them from its first start."""
    slurm_says("JobId=7 JobState=RUNNING Restarts=0")
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "hpc", "SLURMD_NODENAME": "n1"}.items():
        monkeypatch.setenv(name, value)
    assert Owner.this_process("x").batch == "slurm:hpc:7:0"
    assert Owner.this_process("x").handed_to(SlurmJob("hpc", "7")).is_gone()
    assert not _owner("slurm:hpc:7:0").is_gone()  # another process of this start, on another node
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert _owner("slurm:hpc:7:0").is_gone()


def test_the_shell_of_an_allocation_is_no_job(monkeypatch):
    """``salloc`` starts a shell on the login node, which lives on when the allocation ends."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert Owner.this_process("x").batch == ""


def test_what_is_said_of_it():
    owner = replace(Owner.this_process("pyramid of ds"), user="anna", since="noon")
    assert str(replace(owner, pid=5, host="n1", batch="slurm:hpc:7:0")) == "pyramid of ds by anna, process 5 on n1, SLURM job 7, since noon"
    assert str(owner.handed_to(SlurmJob("hpc", "7"))) == "pyramid of ds by anna, SLURM job 7, since noon"
    assert Owner(**json.loads(json.dumps(asdict(owner)))) == owner
