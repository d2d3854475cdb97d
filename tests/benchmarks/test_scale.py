"""The scale benchmark on a job of a few tasks: in this process, and as the command on its own
cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.inside import run_serially

from .scale_command import Cluster, Sight, Watch
from .scale_job import PretendedJob


@pytest.mark.parametrize(("files_per_edge", "workers"), [(1, 1), (3, 2), (4, 64)])
def test_a_pretended_job_writes_each_file_once(tmp_path, files_per_edge, workers):
    job = PretendedJob(files_per_edge, workers, str(tmp_path))
    announced = job.num_tasks
    run_serially(job)
    assert job.finish() > 0  # raises where a file was not written, or twice
    assert job.num_received == job.num_given == announced
    assert job.num_voxels == (1024 * files_per_edge) ** 3
    (journal,) = tmp_path.iterdir()
    assert len(journal.read_bytes().splitlines()) == announced


def test_growth_is_a_slope(monkeypatch):
    class Job:
        num_received = 100_000

    watch = Watch(Job(), Cluster("", None, ()), 1.0)
    watch.sights = [Sight(n, 10_000 * n, 1, 10**7 + 30_000 * n, 10**7) for n in range(11)]
    assert watch.growth("client") == pytest.approx(3.0)
    assert watch.growth("scheduler") == pytest.approx(0.0, abs=1e-6)
    watch.sights = watch.sights[-2:]
    assert watch.growth("client") is None


@pytest.mark.long
def test_command_runs_on_a_cluster():
    script = Path(__file__).with_name("scale.py")
    done = subprocess.run(
        [
            sys.executable,
            str(script),
            "--files-per-edge",
            "3",
            "--processes",
            "1",
            "--sample-seconds",
            "0.2",
        ],
        capture_output=True,
        text=True,
        timeout=360,
    )
    assert done.returncode == 0, done.stderr
    assert "pyramid of 27 files" in done.stdout
    assert "in flight    at most" in done.stdout
    assert "1000 workers" in done.stdout
