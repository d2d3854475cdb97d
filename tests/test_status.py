"""How far jobs are, told from their folders: running, interrupted, failed and finished ones."""

from __future__ import annotations

import json
from dataclasses import asdict

import dask
import pytest
from faults.drivers import CASES, regions_of, stopping
from support.commands import run_here

import wkwdask
from wkwdask.errors import MissingError
from wkwdask.runs.job_lines import Failure
from wkwdask.runs.status import finished_in, jobs_of, status_of

CASE = CASES["files"]


def _status(*arguments):
    return run_here("status", *map(str, arguments))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A pyramid that was stopped after seven tasks."""
    folder = tmp_path_factory.mktemp("status") / "ds"
    CASE.make_source(folder)
    log = tmp_path_factory.mktemp("log") / "log"
    with dask.config.set(scheduler="sync"), stopping(log, 7, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        CASE.build(folder)
    return folder


def test_an_interrupted_job(interrupted):
    (job,) = jobs_of(interrupted)
    status = status_of(job)
    assert (status.done + status.known, status.failures, status.slurm) == (7, (), {})
    assert status.total > 7
    assert not job.is_running
    shown = _status(interrupted)
    assert shown.returncode == 3
    assert "the same command goes on with it" in shown.output
    assert f"7/{status.total} tasks" in shown.output
    assert "ETA" not in shown.output
    assert "to_wkw: finished" in shown.output  # what mag 1 was made by


@pytest.mark.parametrize("part", ["", "seg", "seg/2", "seg/16"])
def test_it_is_found_from_dataset_layer_and_mag(interrupted, part):
    assert len(jobs_of(interrupted / part)) == 1


def test_what_is_not_its_target(interrupted):
    assert not jobs_of(interrupted / "seg" / "1")
    assert not jobs_of(interrupted / "other")
    with pytest.raises(MissingError, match="no such dataset"):
        jobs_of(interrupted / "no" / "such")


def test_json(interrupted):
    (job, _) = json.loads(_status(interrupted, "--json").output)
    assert (job["state"], job["done"], job["failures"]) == ("can_go_on", 7, [])
    assert job["owner"]["command"].startswith("build_pyramid of ")
    assert [target.rpartition("/")[2] for target in job["targets"]] == list(CASE.mags)


def test_a_running_job_tells_what_failed(interrupted, tmp_path):
    """Another job of the same folder, whose owner is this living process, has a failed task that was not done since, and one that was."""
    folder = tmp_path / "ds"
    CASE.make_source(folder)
    seen = []

    def look(task):
        (job,) = jobs_of(folder)
        seen.append(status_of(job))
        return task.run()

    with dask.config.set(scheduler="sync"), regions_of(CASE.region_vx), pytest.MonkeyPatch.context() as patch:
        patch.setattr("wkwdask.runs.job.run_task", look)
        wkwdask.build_pyramid(folder, "seg", mags=CASE.mags)
    assert [status.done for status in seen] == list(range(len(seen)))
    assert all(status.job.is_running and status.total >= len(seen) // 2 for status in seen[1:])
    text = str(seen[-1])
    assert "running" in text
    assert "ETA" in text or "after" in text
    assert finished_in(folder / "seg" / "2")[0].command == "build_pyramid"
    assert _status(folder).returncode == 0


def test_failures_are_listed(interrupted):
    (job,) = jobs_of(interrupted)
    failures = [Failure(f"region {n}", f"region {n} of ds", "OSError: gone", 3, 0.0, "n1") for n in range(25)]
    lines = [json.dumps(asdict(failure)) for failure in failures]
    path = f"{job.root}/failures-0.jsonl"
    with open(path, "w") as file:
        file.write("\n".join([*lines, lines[0], '{"cut sho']))
    status = status_of(job)
    assert len(status.failures) == 25
    assert "failed: region 3 of ds: OSError: gone (tried 3 times)" in str(status)
    assert "and 5 more" in str(status)


def test_nothing_writes_here(tmp_path):
    shown = _status(tmp_path)
    assert (shown.returncode, shown.output) == (0, f"{tmp_path}: no job writes here, and none has left a record\n")


def test_cancel_of_what_is_no_slurm_job(interrupted):
    result = run_here("cancel", interrupted)
    assert result.returncode == 1
    assert "no job runs here" in result.output
