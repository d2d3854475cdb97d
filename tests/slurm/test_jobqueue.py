"""Workers as jobs of a real SLURM, by dask-jobqueue: the result is that of one thread, and jobs that go away come again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import dask
import numpy as np
import pytest
from slurm.sites import SITE, memory_settings, nap, wait_until

import wkwdask
from wkwdask.errors import TaskFailedError

pytestmark = pytest.mark.slurm
ARRAY = np.random.default_rng(0).integers(0, 255, (70, 60, 50)).astype(np.uint8)


@pytest.fixture(autouse=True)
def _output_of_jobs(tmp_path, monkeypatch):
    """SLURM writes it where jobs are submitted."""
    (tmp_path / "submitted-from").mkdir()
    monkeypatch.chdir(tmp_path / "submitted-from")


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    folder.mkdir()
    wkwdask.create_dataset(folder, (8, 8, 8), name="ds")
    wkwdask.to_wkw(ARRAY, folder / "color" / "1", block_len=8, file_len=2, category="color")
    return folder


def mags(folder):
    return {str(mag.mag): wkwdask.read(folder, mag=mag.mag) for mag in wkwdask.info(folder).layers[0].mags}


def assert_as_by_one_thread(folder):
    """Make the coarser mags anew without a cluster, and compare every voxel."""
    found = mags(folder)
    with dask.config.set(scheduler="synchronous"):
        wkwdask.build_pyramid(folder, existing="overwrite")
    expected = mags(folder)
    assert len(found) > 1
    assert list(found) == list(expected)
    for mag, values in expected.items():
        np.testing.assert_array_equal(found[mag], values)


def test_fixed_number_of_jobs(slurm, dataset, capfd):
    """A job of two processes makes a pyramid; then it is cancelled while it computes, and comes again."""
    with wkwdask.cluster("slurm-jobqueue", jobs=1, **SITE | {"cores": 2, "processes": 2, "memory": "2GiB"}) as client:
        assert "1 jobs of 2 workers (1 thread, 1.00 GiB each)" in capfd.readouterr().err
        wkwdask.build_pyramid(dataset)
        client.wait_for_workers(2, timeout=60)
        assert set(map(str, client.run(memory_settings).values())) == {str([False, False, 0.8, 0.95])}
        first = set(slurm.jobs())
        futures = client.map(nap, [0.5] * 12, pure=False)
        client.submit(nap, 0, priority=1, pure=False).result()
        slurm.run("scancel", *first)
        ran_in = set(client.gather(futures))
        assert ran_in - first  # the job that came again
        client.wait_for_workers(2, timeout=60)
        assert len(set(slurm.jobs()) - first) == 1
    wait_until(lambda: not slurm.jobs())
    assert_as_by_one_thread(dataset)


def test_workers_that_reach_their_lifetime(slurm):
    settings = SITE | {"lifetime": "2s", "lifetime_stagger": None, "job_extra_directives": []}
    with wkwdask.cluster("slurm-preemptible", jobs=1, **settings) as client:
        first = client.submit(nap, 0, pure=False).result()
        wait_until(lambda: client.submit(nap, 0.3, pure=False).result() != first)


def test_adaptive(slurm, dataset):
    """Nothing runs before there is work; between two steps the jobs stay; in the end they are given back."""
    adaptive = {"maximum": 2, "interval": "200ms", "wait-count": 10}
    with wkwdask.cluster("slurm-jobqueue-adaptive", adaptive=adaptive, **SITE) as client:
        slurm.wait_until_empty()
        wkwdask.build_pyramid(dataset)
        jobs = slurm.jobs()
        assert jobs
        assert client.submit(nap, 0, pure=False).result() in jobs
        wait_until(lambda: not slurm.jobs())
    assert_as_by_one_thread(dataset)


def test_jobs_that_wait(slurm, capfd):
    """What is cancelled before its worker came is submitted again; at the end, what waits is cancelled."""
    with wkwdask.cluster("slurm-jobqueue", jobs=2, **SITE, job_extra_directives=["--hold"]):
        (first, second) = slurm.jobs()
        slurm.run("scancel", first)
        wait_until(lambda: len(set(slurm.jobs()) - {first, second}) == 1)
        assert second in slurm.jobs()
        assert "in the queue (JobHeldUser)" in capfd.readouterr().err
    slurm.wait_until_empty()


def test_refused_jobs(slurm):
    refused = wkwdask.cluster("slurm-jobqueue", **SITE | {"queue": "no"})
    with pytest.raises(TaskFailedError, match=r"slurm-jobqueue: a job was rejected: .*invalid partition"), refused:
        pass
    slurm.wait_until_empty()


def test_jobs_without_workers(slurm, tmp_path):
    """Jobs that end before their worker comes are an error, not an endless stream of jobs."""
    settings = {**SITE, "python": "/bin/false", "log_directory": str(tmp_path), "dask": {"distributed": {"comm": {"timeouts": {"connect": "1s"}}}}}
    failing = wkwdask.cluster("slurm-jobqueue", jobs=1, **settings)
    with pytest.raises(TaskFailedError, match="3 jobs in a row ended before their worker connected") as caught, failing as client:
        client.submit(nap, 0).result()
    assert str(tmp_path) in str(caught.value)
    assert len(list(tmp_path.glob("*.err"))) == 3


DRIVER = """
import sys, wkwdask
if __name__ == "__main__":
    with wkwdask.cluster("slurm-jobqueue", jobs=1, **{settings!r}) as client:
        if {wait}:
            client.wait_for_workers(1)
        print("there", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_jobs_of_a_driver_that_was_killed(slurm, tmp_path, number):
    """Workers of a killed process end by themselves; one that is asked to end takes its waiting jobs with it."""
    waiting = number == signal.SIGTERM
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(settings=SITE | ({"job_extra_directives": ["--hold"]} if waiting else {}), wait=not waiting))
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ) as driver:
        assert driver.stdout.readline() == "there\n"
        assert len(slurm.jobs()) == 1
        driver.send_signal(number)
        driver.wait(30)
    wait_until(lambda: not slurm.jobs(), 30)
