"""``wkwdask cluster check`` on a real SLURM: a worker probes its node and leaves nothing behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from slurm.sites import SITE
from support.commands import run_here

CONFIGS = Path(__file__).resolve().parent.parent.parent / "cluster-configs"

pytestmark = pytest.mark.slurm


def check(config, folder):
    return run_here("cluster", "check", config, "--folder", folder, "--timeout", "240")


def test_one_job_of_dask_jobqueue_is_enough(slurm, tmp_path):
    values = yaml.safe_load((CONFIGS / "slurm-jobqueue.yaml").read_text()) | {
        name.replace("_", "-"): value for name, value in SITE.items()
    }
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(values | {"jobs": 7}))
    (tmp_path / "shared").mkdir()
    done = check(tmp_path / "site.yaml", tmp_path / "shared")
    assert done.returncode == 0, done.output
    assert "fine   shared folder, from node  visible" in done.stdout
    assert "fine   memory of a worker        1.00 GiB" in done.stdout
    assert "1 job of 1 worker" in done.stderr
    slurm.wait_until_empty()
    assert os.listdir(tmp_path / "shared") == []


def test_an_allocation_with_little_memory_is_reported(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("WKWDASK_INTERFACE", "lo")
    monkeypatch.setenv("WKWDASK_SHARED", str(tmp_path))
    script = tmp_path / "site.sbatch"
    text = (
        (CONFIGS / "slurm-allocation.sbatch")
        .read_text()
        .replace("--partition=normal", "--partition=debug")
    )
    script.write_text(text.replace("--mem-per-cpu=4G", "--mem-per-cpu=512M"))
    done = check(script, tmp_path)
    assert done.returncode == 1, done.output
    (wrong,) = (line for line in done.stdout.splitlines() if line.startswith("WRONG"))
    assert wrong.startswith("WRONG  memory of a worker        512.00 MiB")
    assert wrong.endswith("less than 1 GiB: raise memory")
    assert [path.name for path in tmp_path.iterdir() if path != script] == ["submitted-from"]


def test_the_output_of_a_failed_job_is_shown(slurm, tmp_path):
    script = tmp_path / "broken.sbatch"
    script.write_text(
        "#!/usr/bin/env bash\n# kind: allocation\n#SBATCH --partition=debug --mem=100M\necho no "
        "such module\nexit 3\n"
    )
    done = check(script, tmp_path)
    assert done.returncode == 2
    assert "is FAILED and gave no answer; its output ends with\nno such module" in done.stderr


def test_jobs_that_would_wait_forever_are_not_waited_for(slurm, tmp_path):
    """A walltime above the partition's limit: SLURM takes the job, and never starts it."""
    values = yaml.safe_load((CONFIGS / "slurm-jobqueue.yaml").read_text()) | {
        name.replace("_", "-"): value for name, value in SITE.items()
    }
    (tmp_path / "site.yaml").write_text(
        yaml.safe_dump(values | {"walltime": "3-00:00:00", "lost-after": 1, "queue-check": 1})
    )
    done = check(tmp_path / "site.yaml", tmp_path)
    assert done.returncode == 2, done.output
    assert re.search(
        (
            r"job \d+ asks for a walltime of 3-00:00:00, partition debug has MaxTime=2-00:00:00: "
            r"it would wait forever"
        ),
        done.stderr,
    )
    slurm.wait_until_empty()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".wkwdask")] == []


def test_the_walltime_of_a_script_is_compared_with_the_limit_of_its_partition(slurm, tmp_path):
    script = tmp_path / "site.sbatch"
    script.write_text(
        "#!/usr/bin/env bash\n# kind: allocation\n#SBATCH --partition=debug --time=50:00:00\nsleep "
        "60\n"
    )
    done = check(script, tmp_path)
    assert done.returncode == 2
    assert (
        "the script asks for a walltime of 50:00:00, partition debug has MaxTime=2-00:00:00"
        in done.stderr
    )
    slurm.wait_until_empty()
