"""Status of running, interrupted, failed and finished jobs, read from their folders."""

from __future__ import annotations

import json
from pathlib import Path

import dask
import pytest
from faults.drivers import CASES, regions_of, stopping
from support.commands import run_here
from support.inside import before_task

import wkwdask

CASE = CASES["files"]


def _status(*arguments):
    return run_here("status", *arguments)


def _jobs(folder):
    """Return the status of all jobs that have not finished."""
    return [
        job for job in json.loads(_status(folder, "--json").stdout) if job["state"] != "finished"
    ]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A pyramid that was stopped after seven tasks."""
    folder = tmp_path_factory.mktemp("status") / "ds"
    CASE.make_source(folder)
    log = tmp_path_factory.mktemp("log") / "log"
    with (
        dask.config.set(scheduler="sync"),
        stopping(log, 7, KeyboardInterrupt()),
        pytest.raises(KeyboardInterrupt),
    ):
        CASE.build(folder)
    return folder


def test_an_interrupted_job(interrupted):
    (job,) = _jobs(interrupted)
    assert (job["done"] + job["known"], job["failures"], job["slurm"]) == (7, [], {})
    assert job["total"] > 7
    assert job["state"] == "can_go_on"
    shown = _status(interrupted)
    assert shown.returncode == 3
    assert "the same call resumes it" in shown.output
    assert f"removed by: wkwdask cancel {interrupted}/seg --discard" in shown.output
    assert f"7/{job['total']} tasks" in shown.output
    assert "ETA" not in shown.output
    assert "to_wkw: finished" in shown.output  # the job that wrote mag 1


@pytest.mark.parametrize("part", ["", "seg", "seg/2", "seg/16"])
def test_it_is_found_from_dataset_layer_and_mag(interrupted, part):
    assert len(_jobs(interrupted / part)) == 1


def test_other_folders_have_no_job(interrupted):
    assert not _jobs(interrupted / "seg" / "1")
    for missing in ("other", "no/such"):
        shown = _status(interrupted / missing)
        assert shown.returncode == 1
        assert f"{interrupted / missing}: no such dataset, layer or mag" in shown.stderr


def test_json(interrupted):
    (job, _) = json.loads(_status(interrupted, "--json").output)
    assert (job["state"], job["done"], job["failures"]) == ("can_go_on", 7, [])
    assert job["owner"]["command"].startswith("build_pyramid of ")
    assert [target.rpartition("/")[2] for target in job["targets"]] == list(CASE.mags)


def test_a_running_job_reports_its_progress(tmp_path):
    folder = tmp_path / "ds"
    CASE.make_source(folder)
    seen, texts = [], []

    def look():
        seen.extend(_jobs(folder))
        texts.append(_status(folder).stdout)

    with dask.config.set(scheduler="sync"), regions_of(CASE.region_vx), before_task(None, look):
        wkwdask.build_pyramid(folder, "seg", mags=CASE.mags)
    assert [job["done"] for job in seen] == list(range(len(texts)))
    assert all(job["state"] == "running" and job["total"] >= len(seen) // 2 for job in seen[1:])
    assert "running" in texts[-1]
    assert "ETA" in texts[-1] or "after" in texts[-1]
    assert "build_pyramid: finished" in _status(folder / "seg" / "2").stdout
    assert _status(folder).returncode == 0


def test_failures_are_listed(interrupted):
    (job,) = _jobs(interrupted)
    failure = {"reason": "OSError: gone", "attempts": 3, "time": 0.0, "host": "n1"}
    lines = [
        json.dumps({**failure, "task": f"region {n}", "name": f"region {n} of ds"})
        for n in range(25)
    ]
    Path(job["folder"], "failures-0.jsonl").write_text("\n".join([*lines, lines[0], '{"cut sho']))
    assert len(_jobs(interrupted)[0]["failures"]) == 25
    text = _status(interrupted).stdout
    assert "failed: region 3 of ds: OSError: gone (tried 3 times)" in text
    assert "and 5 more" in text


def test_a_folder_without_jobs(tmp_path):
    shown = _status(tmp_path)
    assert (shown.returncode, shown.output) == (
        0,
        f"{tmp_path}: no running job, and no record of an earlier one\n",
    )


def test_cancel_needs_a_slurm_job(interrupted):
    result = run_here("cancel", interrupted)
    assert result.returncode == 1
    assert "no running job" in result.output


@pytest.mark.filterwarnings("default::wkwdask.errors.DiscardWarning")
def test_after_ctrl_c_the_command_says_what_is_kept_and_what_resumes(tmp_path):
    folder = tmp_path / "ds"
    CASE.make_source(folder)
    command = ("pyramid", folder, "--layer", "seg", "--coarsest", "16")
    with dask.config.set(scheduler="sync"), regions_of(CASE.region_vx):
        for options, resuming in (
            ((), "the same command"),
            (("--restart",), "the same command with --overwrite"),
        ):
            with stopping(tmp_path / "log", 7, KeyboardInterrupt()):
                stopped = run_here(*command, *options)
            assert stopped.returncode == 130
            last = stopped.stderr.splitlines()[-1]
            assert last.startswith("interrupted; finished work is kept (7 tasks, ")
            assert last.endswith(f"): {resuming} resumes, --restart starts over")
