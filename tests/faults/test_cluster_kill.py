"""Pyramids on a dask cluster whose client, scheduler and workers are killed, stopped and started
again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

import dask
import distributed
import numpy as np
import pytest
from faults.cluster_processes import ClusterProcesses
from faults.drivers import (
    KILLS,
    RESUME_NOTE,
    Driver,
    Undisturbed,
    job_folders,
    journaled,
    late_after,
    logged,
    look_often,
    num_ended,
    pool_processes,
    runs,
    wait_until,
)
from faults.works import Meanwhile, num_repeated

from wkwdask.errors import TaskFailedError

pytestmark = pytest.mark.faults

SECONDS = 0.01  # of each task, so that there is time to be killed
IN_FLIGHT = 6  # three for each worker of one thread
LATE_SECONDS = 5  # more than a worker that is not stopped waits for a core


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return Undisturbed("parts", tmp_path_factory.mktemp("undisturbed") / "parts")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Nobody waits long for what is gone."""
    look_often(monkeypatch)
    with dask.config.set(
        {"distributed.comm.timeouts.connect": "2s", "distributed.scheduler.allowed-failures": 20}
    ):
        yield


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with ClusterProcesses(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def cluster(processes):
    """The cluster, with a scheduler and two workers again."""
    processes.restore()
    return processes


@pytest.fixture(params=range(max(1, KILLS // 5)))
def moment(request):
    """After how many tasks something happens: other ones in a long run."""
    return 40 if request.param == 0 else int(np.random.default_rng(request.param).integers(1, 100))


@contextlib.contextmanager
def connected(cluster, workers=2, timeout=60):
    """A client of the cluster, active and logging tasks."""
    with distributed.Client(cluster.address, timeout=timeout) as client:
        client.wait_for_workers(workers, timeout=180)
        yield client


def build(known, folder, log, **options):
    """Build with the active client."""
    with logged(log, SECONDS):
        known.case.build(folder, **options)


@pytest.mark.long
def test_client_killed_again_and_again(tmp_path, known, cluster):
    """The cluster stays, and a client of another process resumes."""
    folder = known.start(tmp_path / "ds")
    random = np.random.default_rng(40)
    log = str(tmp_path / "log")
    for n in range(KILLS or 1):
        done, before = journaled(folder), runs(log)
        driver = Driver(
            str(folder),
            "parts",
            log,
            cluster.address,
            seconds=SECONDS,
            kill_at=int(random.integers(5, 50)),
            kill_after=random.uniform(0, 0.1),
        )
        with driver.start() as process:
            output, errors = process.communicate()
        if process.returncode == 0:
            known.check(folder)
            folder = known.start(tmp_path / f"ds{n}")
            os.unlink(log)
            continue
        assert process.returncode == -signal.SIGKILL, output + errors
        assert not done & set(runs(log) - before)
        known.check_unseen(folder)
    done, before = journaled(folder), runs(log)
    with connected(cluster):
        build(known, folder, log, existing="resume")
    assert not done & set(runs(log) - before)
    known.check(folder)
    print(f"client killed {KILLS or 1} times: {num_repeated(log)} tasks ran twice")
    assert num_repeated(log) <= 2 * IN_FLIGHT * (KILLS or 1)


@pytest.mark.long
def test_scheduler_killed(tmp_path, known, cluster, moment):
    """The client waits for a while and raises an error; a job on a new cluster resumes."""
    folder = known.start(tmp_path / "ds")
    driver = Driver(str(folder), "parts", str(tmp_path / "log"), cluster.address, seconds=SECONDS)
    with driver.start() as process:
        wait_until(lambda: num_ended(driver.log) >= moment)
        cluster.kill(cluster.scheduler)
        output, errors = process.communicate()
    assert process.returncode == 1, errors
    name, message, notes = json.loads(output.splitlines()[-1])
    assert name == "TaskFailedError"
    assert "scheduler is gone" in message
    assert any(RESUME_NOTE in note for note in notes)
    done, before = journaled(folder), runs(driver.log)
    assert len(done) >= moment - IN_FLIGHT
    known.check_unseen(folder)
    cluster.restore()
    with connected(cluster):
        build(known, folder, driver.log)
    assert not done & set(runs(driver.log) - before)
    known.check(folder)
    assert num_repeated(driver.log) <= IN_FLIGHT


@pytest.mark.long
def test_client_with_its_cluster_killed(tmp_path, known, moment):
    """As a batch job that holds all of them; the next one is on threads."""
    folder = known.start(tmp_path / "ds")
    driver = Driver(str(folder), "parts", str(tmp_path / "log"), "local", seconds=SECONDS)
    with driver.start() as process:
        wait_until(lambda: num_ended(driver.log) >= moment)
        for pid in (process.pid, *pool_processes(driver)):
            os.kill(pid, signal.SIGKILL)
    done, before = journaled(folder), runs(driver.log)
    assert len(done) >= moment - IN_FLIGHT
    with dask.config.set(scheduler="threads", num_workers=3):
        build(known, folder, driver.log)
    assert not done & set(runs(driver.log) - before)
    known.check(folder)
    assert num_repeated(driver.log) <= IN_FLIGHT


@pytest.mark.long
def test_each_worker_killed(tmp_path, known, cluster, moment):
    """One after the other, while others come: only what they had is repeated."""
    folder = known.start(tmp_path / "ds")
    log = str(tmp_path / "log")

    def replace(worker):
        cluster.start_worker()
        cluster.kill(worker)

    first, second = list(cluster.workers)
    with (
        connected(cluster),
        Meanwhile(log, moment // 2, lambda: replace(first)) as one,
        Meanwhile(log, moment, lambda: replace(second)) as two,
    ):
        build(known, folder, log)
    assert one.done
    assert two.done
    known.check(folder)
    known.check_records(folder)
    assert set(runs(log)) == known.tasks
    # what the first had may run on the second when that is killed
    assert num_repeated(log) <= 2 * IN_FLIGHT


@pytest.mark.long
def test_all_workers_killed(tmp_path, known, cluster, moment):
    """The job waits for others."""
    folder = known.start(tmp_path / "ds")
    log = str(tmp_path / "log")

    def replace_all():
        for worker in list(cluster.workers):
            cluster.kill(worker)
        time.sleep(1)
        cluster.start_worker()

    with connected(cluster), Meanwhile(log, moment, replace_all) as meanwhile:
        build(known, folder, log)
    assert meanwhile.done
    known.check(folder)
    # what the first had may run on the second before that is killed
    assert num_repeated(log) <= 2 * IN_FLIGHT


@pytest.mark.long
def test_worker_killed_during_an_update(tmp_path, known, cluster):
    """Files are published one by one into the living mags; some are made twice, with the same
    bytes."""
    folder = known.start(tmp_path / "ds")
    log = str(tmp_path / "log")
    with dask.config.set(scheduler="synchronous"):
        known.case.build(folder)
    for path in (folder / "seg" / "1").rglob("x*.wkw"):
        os.utime(path)
    for path in list((folder / "seg").glob("[248]-*/z*/y*/x1.wkw")):
        path.unlink()
    first = cluster.workers[0]

    def replace():
        cluster.start_worker()
        cluster.kill(first)

    with connected(cluster), logged(log, 0.1), Meanwhile(log, 4, replace) as meanwhile:
        known.case.build(folder, update=True)
    assert meanwhile.done
    known.check(folder)
    known.check_records(folder)
    assert num_repeated(log) <= IN_FLIGHT // 2


@pytest.mark.long
def test_worker_stopped_for_the_rest_of_the_job(tmp_path, known, cluster, moment, monkeypatch):
    """Its task runs somewhere else; when it comes back to life the job is over, and it changes
    nothing."""
    late_after(LATE_SECONDS, monkeypatch)
    folder = known.start(tmp_path / "ds")
    log = str(tmp_path / "log")
    victim = cluster.workers[0]
    with (
        connected(cluster),
        Meanwhile(log, moment, lambda: os.kill(victim.pid, signal.SIGSTOP)) as meanwhile,
    ):
        build(known, folder, log)
        assert meanwhile.done
        known.check(folder)
        os.kill(victim.pid, signal.SIGCONT)
        time.sleep(1)
    known.check(folder)
    assert set(runs(log)) == known.tasks
    assert num_repeated(log) <= 2 * IN_FLIGHT


@pytest.mark.long
def test_stopped_worker_gets_no_more_tasks(tmp_path, known, cluster, monkeypatch):
    """Tasks that follow from one that was late are not late on the same worker again, one after the
    other."""
    submitted = late_after(LATE_SECONDS, monkeypatch)
    folder, log = known.start(tmp_path / "ds"), str(tmp_path / "log")
    with connected(cluster) as client:
        pids = client.run(os.getpid)
        address, pid = next(iter(pids.items()))
        with Meanwhile(log, 20, lambda: os.kill(pid, signal.SIGSTOP)) as meanwhile:
            build(known, folder, log)
        assert meanwhile.done
        os.kill(pid, signal.SIGCONT)
    copied = next(n for n, where in enumerate(submitted) if where is not None)
    assert all(where is not None and address not in where for where in submitted[copied:])
    assert len(submitted) > copied + 1
    known.check(folder)


@pytest.mark.long
def test_scheduler_started_again(tmp_path, known, cluster, moment):
    """At the same address, with new workers: the client finds it, and tasks that were lost start
    again."""
    folder = known.start(tmp_path / "ds")
    log = str(tmp_path / "log")

    def restart():
        cluster.kill(cluster.scheduler)
        cluster.restore()

    with connected(cluster), Meanwhile(log, moment, restart) as meanwhile:
        build(known, folder, log)
        assert meanwhile.done
        known.check(folder)
    known.check_records(folder)
    assert set(runs(log)) == known.tasks
    print(f"scheduler started again: {num_repeated(log)} tasks ran twice")
    assert num_repeated(log) <= 2 * IN_FLIGHT


@pytest.mark.long
def test_no_scheduler_comes_back(tmp_path, known, cluster, moment):
    """An error in this process too, and the folder stays."""
    folder = known.start(tmp_path / "ds")
    log = str(tmp_path / "log")
    gone = pytest.raises(TaskFailedError, match="scheduler is gone")
    with (
        connected(cluster, timeout=5),
        Meanwhile(log, moment, lambda: cluster.kill(cluster.scheduler)),
        gone as raised,
    ):
        build(known, folder, log)
    assert any(RESUME_NOTE in note for note in raised.value.__notes__)
    done, before = journaled(folder), runs(log)
    assert len(done) >= moment - IN_FLIGHT
    assert len(job_folders(folder)) == 1
    with dask.config.set(scheduler="synchronous"):
        build(known, folder, log)
    assert not done & set(runs(log) - before)
    known.check(folder)
