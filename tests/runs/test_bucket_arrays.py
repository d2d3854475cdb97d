"""Job arrays that write into a bucket: the lease belongs to the job after the array until that one
takes it over, or SLURM says that it has ended."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from unittest import mock

import dask
import pytest
from cli.test_submit import in_slurm, sbatch_calls  # noqa: F401 (a fixture)
from faults.drivers import regions_of
from runs.test_bucket_jobs import IMAGE, is_equal, levels, records, save
from support.bucket_faults import faulty_bucket
from support.commands import run_here
from support.inside import last_jobs_of, shared_memory, submitted_to

import wkwdask
from wkwdask.errors import DiscardWarning, ExistsError, LockedError
from wkwdask.formats.record_paths import OWNER_NAME
from wkwdask.graphs import job_array
from wkwdask.runs.journal import keys_of, read_journal
from wkwdask.store import leases
from wkwdask.store.locks import Owner, read_owner, write_owner
from wkwdask.store.paths import dirname

KINDS = ["precomputed", "wkw", pytest.param("ngff", marks=pytest.mark.needs("zarr"))]
ARRAY = ("--cluster", "slurm-array", "--elements", "2")
STEP = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 5
"""Requests between two at which a submission is killed."""
_NOBODY = """#!/bin/sh
[ "$1" = release ] && exit
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
"""


@pytest.fixture
def bucket():
    with faulty_bucket() as bucket:
        yield bucket


@pytest.fixture
def commands(sbatch_calls, bucket):  # noqa: F811
    """Commands of the submitted jobs, which write into a bucket in memory."""
    found = []
    with (
        dask.config.set(scheduler="synchronous"),
        submitted_to(found),
        shared_memory(),
        regions_of(16),
    ):
        yield found


@pytest.fixture
def slurm_forgets(tmp_path):
    """Let SLURM know none of the jobs from now on."""
    return lambda: (tmp_path / "programs" / "scontrol").write_text(_NOBODY)


def submit(kind):
    result = run_here("submit", "pyramid", IMAGE[kind], *ARRAY)
    assert result.returncode == 0, result.output


def run_elements(monkeypatch, command, numbers=(0, 1)):
    for number in numbers:
        result = in_slurm(monkeypatch, 1, 0, command, number)
        assert result.returncode == 0, result.output


@pytest.mark.parametrize("kind", KINDS)
def test_elements_write_what_one_process_writes(commands, monkeypatch, kind):
    """While the jobs wait, nobody renews the lease, and yet nobody takes it over."""
    save(kind)
    submit(kind)
    assert not leases._held
    with pytest.raises(LockedError, match="SLURM job 2"):
        wkwdask.build_pyramid(IMAGE[kind])
    element, finish = commands
    run_elements(monkeypatch, element, [0])
    first = len(set(keys_of(read_journal(element[-2]))))
    run_elements(monkeypatch, element, [1])
    assert 0 < first < len(set(keys_of(read_journal(element[-2]))))
    result = in_slurm(monkeypatch, 2, 0, finish)
    assert result.returncode == 0, result.output
    found = levels(kind)
    assert len(found) > 1
    assert not records()
    wkwdask.build_pyramid(IMAGE[kind], existing="overwrite")
    assert is_equal(levels(kind), found)


def test_arrays_follow_until_all_tasks_are_done(commands, monkeypatch):
    """The second element of each array is lost, and the job after it has time for one task."""
    save("precomputed")
    with last_jobs_of(1):
        submit("precomputed")
        for number in range(0, 20, 2):
            run_elements(monkeypatch, commands[number], [0])
            last = in_slurm(monkeypatch, number + 2, 0, commands[number + 1])
            assert last.returncode == 0, last.output
            if len(commands) == number + 2:
                break
    assert len(commands) > 2
    assert len(levels("precomputed")) > 1
    assert not records()


@pytest.mark.parametrize("kind", KINDS)
def test_another_call_resumes_when_slurm_has_ended_the_jobs(
    commands, monkeypatch, slurm_forgets, kind
):
    save(kind)
    submit(kind)
    run_elements(monkeypatch, commands[0], [0])
    slurm_forgets()
    report = wkwdask.build_pyramid(IMAGE[kind])
    assert "had been finished before" in str(report)
    assert len(levels(kind)) > 1
    assert not records()


def test_an_element_stops_when_its_job_was_taken_over(commands, monkeypatch, slurm_forgets):
    save("precomputed")
    submit("precomputed")
    root = commands[0][-2]
    slurm_forgets()
    lease = f"{root}/{OWNER_NAME}"
    write_owner(lease, replace(Owner.this_process("another", read_owner(lease).job), lease=lease))
    run_elements(monkeypatch, commands[0])
    assert not list(read_journal(root))


def test_a_submission_that_failed_leaves_no_tasks_for_the_next_one(commands, monkeypatch):
    """Objects of tasks are written once, and the second submission has other ones."""
    save("precomputed")
    no_answer = mock.patch.object(job_array, "write_batch", side_effect=OSError("no answer"))
    with no_answer, regions_of(32):
        assert run_here("submit", "pyramid", IMAGE["precomputed"], *ARRAY).returncode
    commands.clear()
    submit("precomputed")
    run_elements(monkeypatch, commands[0])
    assert in_slurm(monkeypatch, 2, 0, commands[1]).returncode == 0
    assert len(levels("precomputed")) > 1
    assert not records()


def test_killed_before_the_last_job_gets_the_lease(commands, bucket):
    """SLURM knows that job, and its locks name it, but it never runs: another call starts over."""
    save("precomputed")
    before = bucket.snapshot()
    bucket.requests = []
    submit("precomputed")
    last = max(
        n
        for n, (name, url) in enumerate(bucket.requests)
        if name == "put_once" and url.endswith(OWNER_NAME)
    )
    bucket.restore(before)
    with bucket.killed_at(last, after=False):
        submit("precomputed")
    (root,) = {dirname(name) for name in records() if name.endswith(OWNER_NAME)}
    lock = f"{dirname(root)}/.8_8_8.wkwdask-lock"
    assert read_owner(lock).pid == 0
    assert read_owner(f"{root}/{OWNER_NAME}").pid == os.getpid()
    with pytest.warns(DiscardWarning):
        wkwdask.build_pyramid(IMAGE["precomputed"], existing="restart", method="nearest")
    assert len(levels("precomputed")) > 1
    assert not records()


def test_a_submission_that_was_paused_leaves_the_next_one_alone(
    commands, bucket, monkeypatch, slurm_forgets
):
    """Both submit the second round of a job, in whose first round an element was lost."""
    save("precomputed")
    submit("precomputed")
    run_elements(monkeypatch, commands[0], [0])
    slurm_forgets()
    before = bucket.snapshot()
    bucket.requests = []
    submit("precomputed")
    requests = bucket.requests
    first = next(n for n, (_, url) in enumerate(requests) if str(url).endswith(".tasks"))
    for n in range(first, len(requests), min(STEP, 3)):
        bucket.restore(before)
        with bucket.paused_at(n, lambda: submit("precomputed")):
            submit("precomputed")
            last, (element, finish) = len(commands), commands[-2:]
        known = set(keys_of(read_journal(element[-2])))
        run_elements(monkeypatch, element)
        assert known < set(keys_of(read_journal(element[-2]))), n
        result = in_slurm(monkeypatch, last, 0, finish)
        assert result.returncode == 0, result.output
        assert len(levels("precomputed")) > 1
        assert not records()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("killed", ["submission", "element", "finish job"])
def test_killed_at_a_request(commands, bucket, monkeypatch, slurm_forgets, killed, after):
    """The old image or the new one is visible, and the same call completes it when SLURM has ended
    the jobs."""
    save("precomputed")
    seen = levels("precomputed")
    steps = {
        "submission": lambda: run_here("submit", "pyramid", IMAGE["precomputed"], *ARRAY),
        "element": lambda: in_slurm(monkeypatch, 1, 0, commands[0]),
        "finish job": lambda: in_slurm(monkeypatch, 2, 0, commands[1]),
    }
    for name, step in steps.items():
        if name == killed:
            break
        step()
    before = bucket.snapshot()
    bucket.requests = []
    step()
    num_requests = len(bucket.requests)
    after_all = levels("precomputed")
    slurm_forgets()
    for number in range(0, num_requests, STEP):
        bucket.restore(before)
        with bucket.killed_at(number, after=after):
            step()
        found = levels("precomputed")
        assert is_equal(found, seen) or is_equal(found, after_all), number
        with contextlib.suppress(ExistsError):  # it had published all
            wkwdask.build_pyramid(IMAGE["precomputed"])
        assert len(levels("precomputed")) > 1, number
        # clean removes what asked the bucket for its time
        assert not [name for name in records() if "-clock-" not in name], number
    assert num_requests > 2
