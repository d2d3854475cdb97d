"""Failing tasks on every runner: transient errors are retried, others are listed at the end, and
all other tasks are done."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.failing_jobs import PairsJob, attempts, fail
from support.local_cluster import local_cluster

import wkwdask
from wkwdask import cli
from wkwdask.errors import CorruptError, MissingError, TaskFailedError, TruncatedError
from wkwdask.formats.webknossos.datasource import FILE_NAME, format_datasource, new_document
from wkwdask.graphs import client_run, local_run, packing, task_queue
from wkwdask.graphs.runners import run_job
from wkwdask.plans import pyramid as plan_module
from wkwdask.runs import retries
from wkwdask.runs.job import FlatJob, Result
from wkwdask.runs.journal import Journal, read_journal
from wkwdask.runs.progress import read_failures, read_progress
from wkwdask.runs.retries import FailurePolicy
from wkwdask.store.records import PROGRESS_NAME

distributed = pytest.importorskip("distributed")

RUNNERS = ("synchronous", "threads", "processes", "cluster")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(retries, "_PAUSES_SECONDS", (0.01, 0.02, 0.04))
    monkeypatch.setattr(client_run, "_POLL_SECONDS", 0.2)


@pytest.fixture(scope="module")
def cluster():
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        local_cluster(silence_logs="CRITICAL") as running,
    ):
        yield running


@pytest.fixture
def on(request):
    """Run jobs on a runner."""

    @contextlib.contextmanager
    def chosen(runner):
        if runner == "cluster":
            with distributed.Client(request.getfixturevalue("cluster")):
                yield
        else:
            with dask.config.set(scheduler=runner, num_workers=2):
                yield

    return chosen


@pytest.fixture
def folders(tmp_path):
    """Folders of the traces of tasks, and of the job."""
    for name in ("trace", "job"):
        (tmp_path / name).mkdir()
    return tmp_path / "trace", tmp_path / "job"


def start(folders, kinds, **options):
    """Start or resume a job, and return it with its error."""
    trace, folder = folders
    job = PairsJob(trace, kinds)
    with Journal(str(folder)) as journal:
        try:
            run_job(job.journaled(journal, str(folder)), "test", **options)
        except Exception as error:
            return job, error
    return job, None


def journaled(folder):
    keys = [json.loads(line)["task"] for line in read_journal(str(folder))]
    assert len(keys) == len(set(keys))
    return set(keys)


@pytest.mark.long
@pytest.mark.parametrize("runner", RUNNERS)
def test_failed_tasks_are_listed_and_others_are_done(folders, on, runner):
    kinds = [
        "fine",
        "stale once",
        "corrupt",
        "fine",
        "stale",
        "own",
        "fine",
        "cut off twice",
        "fine",
    ]
    failed = {"work 2", "work 4", "work 5"}
    done = {f"work {n}" for n in range(9)} - failed | {"pair 0", "pair 3"}
    with on(runner):
        job, error = start(folders, kinds)
        assert isinstance(error, TaskFailedError)
        assert error.exit_code == 3
        lines = str(error).splitlines()
        assert lines[0] == "3 tasks failed; all tasks that do not depend on them are done:"
        stale = (
            f"  work 4: OSError: [Errno {errno.ESTALE}] {os.strerror(errno.ESTALE)}: 'file 4' "
            "(tried 4 times)"
        )
        own = (
            "TaskFailedError: OwnError: own 5"
            if runner in ("processes", "cluster")
            else "OwnError: own 5"
        )
        assert sorted(lines[1:]) == [
            "  work 2: CorruptError: file 2: broken",
            stale,
            f"  work 5: {own}",
        ]
        assert job.done == done == journaled(folders[1])
        tried = attempts(folders[0])
        assert {name for name, times in tried.items() if times > 1} == {
            "work 1",
            "work 4",
            "work 7",
        }
        assert (tried["work 1"], tried["work 4"], tried["work 7"]) == (2, 4, 3)
        failures = {failure.task: failure for failure in read_failures(str(folders[1]))}
        assert set(failures) == failed
        assert failures["work 4"].attempts == 4
        assert all(failure.host and failure.time > 1.7e9 for failure in failures.values())
        (record,) = read_progress(str(folders[1]))
        assert (record["done"], record["failed"], record["known"]) == (len(done), 3, 0)
        # all but one are repaired: only remaining tasks run
        kinds[4] = kinds[5] = "fine"
        job, error = start(folders, kinds)
    assert isinstance(error, CorruptError)
    assert str(error) == "file 2: broken"
    assert "all tasks that do not depend on them are done" in error.__notes__
    assert error.exit_code == 3
    assert {
        name: times - tried.get(name, 0)
        for name, times in attempts(folders[0]).items()
        if times != tried.get(name)
    } == {
        "work 2": 1,
        "work 4": 1,
        "work 5": 1,
        "pair 2": 1,
    }
    assert journaled(folders[1]) == done | {"work 4", "work 5", "pair 2"}
    assert [failure.task for failure in read_failures(str(folders[1]))] == ["work 2"]
    with on("synchronous"):
        kinds[2] = "fine"
        assert start(folders, kinds)[1] is None
    assert journaled(folders[1]) == {f"work {n}" for n in range(9)} | {
        f"pair {n}" for n in range(4)
    }
    assert read_failures(str(folders[1])) == []
    assert sum(record["done"] for record in read_progress(str(folders[1]))) == 13
    assert read_progress(str(folders[1]))[-1]["known"] == 11


@pytest.mark.long
@pytest.mark.parametrize("runner", ["processes", "cluster"])
def test_task_that_kills_its_process_is_identified(folders, on, runner, monkeypatch):
    monkeypatch.setattr(local_run, "_MOST_DEATHS", 2)
    monkeypatch.setattr(client_run, "_MOST_DEATHS", 1)
    kinds = ["fine", "deadly", "fine", "fine", "fine", "fine"]
    with on(runner):
        job, error = start(folders, kinds)
    assert isinstance(error, TaskFailedError)
    what = "processes that ran it died" if runner == "processes" else "the workers that ran it died"
    assert re.search(rf"work 1: given up after .*{what}", str(error))
    (failure,) = read_failures(str(folders[1]))
    assert failure.task == "work 1"
    # beside other tasks, and alone
    assert failure.attempts == (2 if runner == "processes" else 2 + 1)
    assert attempts(folders[0])["work 1"] <= 3
    assert (
        job.done
        == {"work 0", "work 2", "work 3", "work 4", "work 5", "pair 1", "pair 2"}
        == journaled(folders[1])
    )


def test_task_whose_result_is_lost_runs_again(folders, on, monkeypatch):
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    errors = [
        FutureCancelledError("a key", "its worker left"),
        KilledWorker("a key", None, 1),
        ConnectionResetError("reset"),
    ]
    fetch = distributed.Future.result

    def lose(future, timeout=None):
        if errors:
            raise errors.pop()
        return fetch(future, timeout)

    monkeypatch.setattr(distributed.Future, "result", lose)
    monkeypatch.setattr(client_run.ClientRun, "_fetch", lambda self, futures: {})
    monkeypatch.setattr(client_run, "_keep_sent", lambda attempts, event: None)
    with on("cluster"):
        job, error = start(folders, ["fine"] * 4)
    assert error is None
    assert not errors
    assert len(job.done) == 6
    assert sum(attempts(folders[0]).values()) == 6 + 3


@pytest.mark.parametrize(("most_sent", "is_fetched"), [(1 << 13, False), (0, True)])
def test_only_large_results_are_fetched(monkeypatch, most_sent, is_fetched):
    fetched = []
    outcome, fetch = client_run.ClientRun._outcome, client_run.ClientRun._fetch
    monkeypatch.setattr(
        client_run.ClientRun,
        "_outcome",
        lambda self, future, sent: (
            (sent is None and fetched.append(future)) or outcome(self, future, sent)
        ),
    )
    monkeypatch.setattr(
        client_run.ClientRun,
        "_fetch",
        lambda self, futures: fetched.extend(futures) or fetch(self, futures),
    )
    # of the worker too, which is a thread
    monkeypatch.setattr(packing, "_MOST_SENT_NBYTES", most_sent)
    options = {
        "n_workers": 1,
        "threads_per_worker": 2,
        "processes": False,
        "dashboard_address": ":0",
    }
    with distributed.LocalCluster(**options) as cluster, cluster.get_client():
        for _ in range(2):  # one job after another of the same client
            done, error = run_all(20, lambda number: None)
            assert error is None
            assert sorted(done) == list(range(20))
    assert bool(fetched) == is_fetched


@pytest.mark.parametrize("runner", ["synchronous", "threads", "cluster"])
def test_full_disk_ends_the_job_at_once(folders, on, runner):
    with on(runner):
        # one worker may run many while the other starts
        _, error = start(folders, ["full", *["fine"] * 2000])
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOSPC
    assert any("while working on work 0" in note for note in error.__notes__)
    assert len(attempts(folders[0])) < 2000
    assert not hasattr(error, "exit_code")


def test_error_has_the_traceback_of_the_worker(folders, on):
    with on("cluster"):
        _, error = start(folders, ["corrupt"])
    assert "in fail\n" in str(error.__cause__)


# ----------------------------------------------------------------------------- end of a job


class Bare:
    """Task that calls a function."""

    def __init__(self, number, action):
        self.spec = self
        self.name = self.key = str(number)
        self.action = action

    def run(self):
        self.action(int(self.name))
        return Result(())


def run_all(number, action, **options):
    """Run tasks, and return the numbers of those that were done and the error."""
    done = []
    job = FlatJob(
        lambda: (Bare(n, action) for n in range(number)),
        number,
        lambda task, _: done.append(int(task.name)),
    )
    try:
        run_job(job, "test", **options)
    except Exception as error:
        return done, error
    return done, None


@pytest.fixture
def _serial():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.usefixtures("_serial")
def test_missing_source_ends_the_job_after_few_tasks():
    calls = []

    def missing(number):
        calls.append(number)
        raise MissingError("ds/color/1: not found")

    done, error = run_all(1000, missing)
    assert (len(calls), done) == (8, [])
    assert type(error) is MissingError
    assert (
        error.__notes__[-1]
        == "8 tasks failed for this reason; too many failed, so the others were not tried"
    )
    assert not hasattr(error, "exit_code")  # a plain error: nothing was done


@pytest.mark.usefixtures("_serial")
def test_list_of_failures_is_limited():
    def odd(number):
        if number % 2:
            raise CorruptError(f"file {number}: broken")

    done, error = run_all(100, odd)
    assert done == list(range(0, 100, 2))
    lines = str(error).splitlines()
    assert len(lines) == 22
    assert lines[1] == "  1: CorruptError: file 1: broken"
    assert lines[-1] == "  and 30 more"
    done, error = run_all(100, odd, failure_policy=FailurePolicy(most_failures=3))
    assert done == [0, 2, 4, 6]
    assert "4 tasks failed; too many failed, so the others were not tried" in str(error)


@pytest.mark.usefixtures("_serial")
def test_task_that_waits_for_a_retry_blocks_no_others(monkeypatch):
    monkeypatch.setattr(retries, "_PAUSES_SECONDS", (0.1,))
    now, order = [0.0], []
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(task_queue, "time", clock)  # no time passes while tasks run

    def first_fails(number):
        order.append(number)
        if order == [0]:
            raise TimeoutError

    done, error = run_all(5, first_fails)
    assert error is None
    assert order == [0, 1, 2, 3, 4, 0]
    assert done == [1, 2, 3, 4, 0]


@pytest.mark.usefixtures("_serial")
def test_no_new_tasks_while_very_many_wait_for_a_retry(monkeypatch):
    begun = []

    def down(number):
        begun.append(number)
        raise TimeoutError

    _, error = run_all(1000, down)
    assert isinstance(error, TimeoutError)
    assert len(set(begun)) <= 108


KINDS = st.lists(
    st.sampled_from(["fine", "fine", "fine", "corrupt", "stale", "stale once", "cut off twice"]),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("runner", ["synchronous", "threads"])
@given(kinds=KINDS)
def test_done_and_failed_are_exact(runner, kinds):
    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler=runner, num_workers=3):
        patch.setattr(retries, "_PAUSES_SECONDS", (0.0, 0.0, 0.0))
        patch.setattr(retries, "_FAILURES_WITHOUT_SUCCESS", 1000)
        patch.setattr(retries, "_LISTED", 1000)
        tried = [0] * len(kinds)

        def action(number):
            tried[number] += 1
            fail(kinds[number], number, tried[number])

        done, error = run_all(len(kinds), action, failure_policy=FailurePolicy(lists_always=True))
    bad = {n for n, kind in enumerate(kinds) if kind in ("corrupt", "stale")}
    assert sorted(done) == [n for n in range(len(kinds)) if n not in bad]
    listed = (
        set()
        if error is None
        else {int(line.split(":")[0]) for line in str(error).splitlines()[1:]}
    )
    assert listed == bad
    expected = {"fine": 1, "corrupt": 1, "stale": 4, "stale once": 2, "cut off twice": 3}
    assert tried == [expected[kind] for kind in kinds]


# ----------------------------------------------------------------------------- real data


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Dataset with a mag of 64 files; each region of a pyramid is one file of the next mag."""
    monkeypatch.setattr(plan_module, "_REGION_VX", 8)
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / FILE_NAME).write_text(format_datasource(new_document("ds", (4, 4, 4))))
    voxels = np.random.default_rng(3).integers(0, 200, (64, 64, 64), np.uint8)
    wkwdask.to_wkw(
        voxels, tmp_path / "ds" / "color" / "1", block_len=8, file_len=2, compression="lz4"
    )
    return tmp_path / "ds"


def call(capsys, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["wkwdask", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_two_broken_files_are_named_and_finished_work_is_kept(dataset, capsys, monkeypatch):
    first, second = (
        dataset / "color" / "1" / "z0" / "y0" / "x1.wkw",
        dataset / "color" / "1" / "z3" / "y2" / "x0.wkw",
    )
    whole = {path: path.read_bytes() for path in (first, second)}
    first.write_bytes(whole[first][:-3])
    raw = bytearray(whole[second])
    at = int.from_bytes(raw[8:16], "little")
    raw[at : at + 12] = b"\xff" * 12
    second.write_bytes(raw)
    command = ("pyramid", dataset, "--layer", "color", "--mags", "2,4")
    code, _, err = call(capsys, monkeypatch, *command)
    assert code == 3, err
    assert re.search(rf"region .*: TruncatedError: {first}: .*\d", err)
    assert re.search(rf"region .*: CorruptError: {second}: block 0 at byte {at}", err)
    assert err.startswith("error: 2 tasks failed; all tasks that do not depend on them are done:")
    assert "finished work is kept" in err
    assert [name for name in os.listdir(dataset / "color") if not name.startswith(".")] == ["1"]
    (root,) = (dataset / "color").glob(".wkwdask-job-*")
    assert len(read_failures(str(root))) == 2
    first.write_bytes(whole[first])
    with pytest.raises(CorruptError, match=f"{second}: block 0") as caught:
        wkwdask.build_pyramid(dataset, layer="color", mags=[2, 4])
    assert any(
        "all tasks that do not depend on them are done" in note for note in caught.value.__notes__
    )
    second.write_bytes(whole[second])
    report = wkwdask.build_pyramid(dataset, layer="color", mags=[2, 4])
    assert "tasks had been finished before" in report.note
    assert wkwdask.verify(dataset, pyramid=True).is_sound
    records = [
        json.loads(line)
        for line in (dataset / "color" / "2" / PROGRESS_NAME).read_text().splitlines()
    ]
    # a slow run writes more records than one per phase
    assert max(record["failed"] for record in records) == 2
    ends = [record for record in records if record["done"] + record["known"] + record["failed"] > 0]
    assert ends[-1]["done"] + ends[-1]["known"] == ends[-1]["total"]
    assert ends[-1]["failed"] == 0
    assert records[-1]["nbytes_out"] > 0
    assert not (dataset / "color" / "4" / PROGRESS_NAME).exists()


def test_one_broken_file_keeps_its_error(dataset, capsys, monkeypatch):
    path = dataset / "color" / "1" / "z0" / "y0" / "x1.wkw"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(TruncatedError, match=str(path)):
        wkwdask.rechunk(dataset / "color" / "1", dataset / "other" / "1", file_len=1)
    code, _, err = call(
        capsys,
        monkeypatch,
        "rechunk",
        dataset / "color" / "1",
        dataset / "other" / "1",
        "--file-len",
        1,
    )
    assert code == 3
    assert err.count("\n") == 1
    assert str(path) in err
