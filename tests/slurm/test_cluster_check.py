"""``wkwdask cluster check`` on a real SLURM: a worker looks around, and nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from slurm.sites import SITE

CONFIGS = Path(__file__).resolve().parent.parent.parent / "cluster-configs"

pytestmark = pytest.mark.slurm


@pytest.fixture(autouse=True)
def _output_of_jobs(tmp_path, monkeypatch):
    """SLURM writes it where jobs are submitted."""
    (tmp_path / "submitted-from").mkdir()
    monkeypatch.chdir(tmp_path / "submitted-from")


def check(config, folder):
    command = [sys.executable, "-m", "wkwdask", "cluster", "check", str(config), "--folder", str(folder), "--timeout", "60"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_jobqueue(slurm, tmp_path):
    values = yaml.safe_load((CONFIGS / "slurm-jobqueue.yaml").read_text()) | {name.replace("_", "-"): value for name, value in SITE.items()}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(values | {"jobs": 7}))
    (tmp_path / "shared").mkdir()
    done = check(tmp_path / "site.yaml", tmp_path / "shared")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fine   shared folder, from there  seen here" in done.stdout
    assert "fine   memory of a worker         1.00 GiB" in done.stdout
    assert "1 jobs of 1 worker" in done.stderr  # one is enough
    slurm.wait_until_empty()
    assert os.listdir(tmp_path / "shared") == []


def test_allocation(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("WKWDASK_INTERFACE", "lo")
    monkeypatch.setenv("WKWDASK_SHARED", str(tmp_path))
    script = tmp_path / "site.sbatch"
    text = (CONFIGS / "slurm-allocation.sbatch").read_text().replace("--partition=normal", "--partition=debug")
    script.write_text(text.replace("--mem-per-cpu=4G", "--mem-per-cpu=512M"))
    done = check(script, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    (wrong,) = (line for line in done.stdout.splitlines() if line.startswith("WRONG"))
    assert wrong.startswith("WRONG  memory of a worker         512.00 MiB")
    assert wrong.endswith("less than 1 GiB: raise memory")
    assert [path.name for path in tmp_path.iterdir() if path != script] == ["submitted-from"]


def test_a_job_without_an_answer(slurm, tmp_path):
    script = tmp_path / "broken.sbatch"
    script.write_text("#!/usr/bin/env bash\n# kind: allocation\n#SBATCH --partition=debug --mem=100M\necho no such module\nexit 3\n")
    done = check(script, tmp_path)
    assert done.returncode == 1
    assert "is FAILED and gave no answer; its output ends with\nno such module" in done.stderr
