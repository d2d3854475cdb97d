"""Workers as jobs of a real SLURM, by dask-jobqueue: the result equals a serial run, and lost jobs
are submitted again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
import yaml
from slurm.sites import SITE, job_everywhere, job_with_gpu, memory_settings, nap, wait_until

import wkwdask
from wkwdask.clusters.config import known_configs
from wkwdask.errors import TaskFailedError

pytestmark = pytest.mark.slurm
ARRAY = np.random.default_rng(0).integers(0, 255, (70, 60, 50)).astype(np.uint8)


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    folder.mkdir()
    wkwdask.create_dataset(folder, (8, 8, 8), name="ds")
    wkwdask.to_wkw(ARRAY, folder / "color" / "1", block_len=8, file_len=2, category="color")
    return folder


def mags(folder):
    return {
        str(mag.mag): wkwdask.read(folder, mag=mag.mag)
        for mag in wkwdask.info(folder).layers[0].mags
    }


def assert_equals_serial_run(folder):
    """Rebuild the coarser mags without a cluster, and compare every voxel."""
    found = mags(folder)
    with dask.config.set(scheduler="synchronous"):
        wkwdask.build_pyramid(folder, existing="overwrite")
    expected = mags(folder)
    assert len(found) > 1
    assert list(found) == list(expected)
    for mag, values in expected.items():
        np.testing.assert_array_equal(found[mag], values)


def test_a_cancelled_job_is_submitted_again(slurm, dataset, capfd):
    with wkwdask.cluster(
        "slurm-jobqueue", jobs=1, **SITE | {"cores": 2, "processes": 2, "memory": "2GiB"}
    ) as client:
        assert "1 job of 2 workers (1 thread, 1.00 GiB each)" in capfd.readouterr().err
        wkwdask.build_pyramid(dataset)
        client.wait_for_workers(2, timeout=240)
        assert set(map(str, client.run(memory_settings).values())) == {
            str([False, False, 0.8, 0.95])
        }
        first = set(slurm.jobs())
        futures = client.map(nap, [0.3] * 8, pure=False)
        client.submit(nap, 0, priority=1, pure=False).result()
        slurm.run("scancel", *first)
        ran_in = set(client.gather(futures))
        assert ran_in - first
        client.wait_for_workers(2, timeout=240)
        assert len(set(slurm.jobs()) - first) == 1
    wait_until(lambda: not slurm.jobs())
    assert_equals_serial_run(dataset)


@pytest.mark.parametrize("request_gpu", ["--gpus=1", "--gres=gpu:1"])
def test_each_job_of_the_gpu_configuration_has_a_gpu(slurm, dataset, request_gpu):
    """The cluster has three GPUs: of four jobs, one waits, and the tasks run in the others."""
    settings = SITE | {"job_cpu": 1, "job_extra_directives": [request_gpu]}
    with wkwdask.cluster("slurm-gpu", jobs=4, **settings) as client:
        client.wait_for_workers(3, timeout=240)
        wait_until(lambda: "Resources" in slurm.run("squeue", "-h", "-t", "PENDING", "-o", "%r"))
        running = slurm.run("squeue", "-h", "-t", "RUNNING", "-o", "%i").split()
        assert len(running) == 3
        nodes = [slurm.run("scontrol", "-d", "show", "node", node) for node in slurm.nodes]
        assert all("GresUsed=gpu:1" in node for node in nodes), nodes
        wkwdask.segment(
            job_everywhere, dataset / "color" / "1", dataset / "cells" / "1", halo=1, chunks=16,
            setup=job_with_gpu, resources={"GPU": 1}, extra=dataset / "jobs" / "1",
        )  # fmt: skip
    assert (wkwdask.read(dataset / "cells" / "1") == 1).all()
    assert set(np.unique(wkwdask.read(dataset / "jobs" / "1"))) <= set(map(int, running))


def test_workers_are_replaced_after_their_lifetime(slurm):
    # The lifetime begins before the worker connects, which takes seconds on a busy machine.
    settings = SITE | {"lifetime": "6s", "lifetime_stagger": None, "job_extra_directives": []}
    with wkwdask.cluster("slurm-preemptible", jobs=1, **settings) as client:
        first = client.submit(nap, 0, pure=False).result()
        wait_until(lambda: client.submit(nap, 0.3, pure=False).result() != first)


def test_adaptive_jobs_run_only_while_there_is_work(slurm, dataset):
    adaptive = {"maximum": 1, "interval": "200ms", "wait-count": 10}
    with wkwdask.cluster("slurm-jobqueue-adaptive", adaptive=adaptive, **SITE) as client:
        slurm.wait_until_empty()
        wkwdask.build_pyramid(dataset)
        jobs = slurm.jobs()
        assert jobs
        assert client.submit(nap, 0, pure=False).result() in jobs
        wait_until(lambda: not slurm.jobs())
    assert_equals_serial_run(dataset)


def test_pending_jobs_are_replaced_and_cancelled_at_the_end(slurm, capfd):
    with wkwdask.cluster("slurm-jobqueue", jobs=2, **SITE, job_extra_directives=["--hold"]):
        (first, second) = slurm.jobs()
        slurm.run("scancel", first)
        wait_until(lambda: len(set(slurm.jobs()) - {first, second}) == 1)
        assert second in slurm.jobs()
        assert "in the queue (JobHeldUser)" in capfd.readouterr().err
    slurm.wait_until_empty()


def test_a_rejected_job_is_an_error(slurm):
    refused = wkwdask.cluster("slurm-jobqueue", **SITE | {"queue": "no"})
    with (
        pytest.raises(
            TaskFailedError, match=r"slurm-jobqueue: a job was rejected: .*invalid partition"
        ),
        refused,
    ):
        pass
    slurm.wait_until_empty()


def test_three_jobs_without_a_worker_are_an_error(slurm, tmp_path):
    settings = {**SITE, "python": "/bin/false", "log_directory": str(tmp_path)}
    failing = wkwdask.cluster("slurm-jobqueue", jobs=1, **settings)
    with (
        pytest.raises(
            TaskFailedError, match="3 jobs in a row ended before their worker connected"
        ) as caught,
        failing as client,
    ):
        client.submit(nap, 0).result()
    assert str(tmp_path) in str(caught.value)
    assert len(list(tmp_path.glob("*.err"))) == 3


def test_a_command_ends_where_workers_cannot_start(slurm, dataset, tmp_path):
    """Nodes have no such interpreter: the command ends soon, although a connection may take a
    minute, and quotes SLURM and the log."""
    values = yaml.safe_load(Path(known_configs()["slurm-jobqueue"]).read_text())
    values |= {name.replace("_", "-"): value for name, value in SITE.items()}
    values |= {"jobs": 1, "python": "/nonexistent/python", "log-directory": str(tmp_path / "logs")}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    command = [
        sys.executable,
        "-m",
        "wkwdask",
        "pyramid",
        dataset,
        "--cluster",
        tmp_path / "mine.yaml",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(
        (
            r"error: mine: .* 3 jobs in a row ended .*; job \d+ ended with exit code 127; .*\.err: "
            r".*/nonexistent/python: No such file"
        ),
        last,
    ), done.stderr


DRIVER = """
import sys, wkwdask
if __name__ == "__main__":
    with wkwdask.cluster("slurm-jobqueue", jobs=1, **{settings!r}) as client:
        if {wait}:
            client.wait_for_workers(1)
        print("ready", flush=True)
        sys.stdin.read()
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_job_outlives_a_killed_driver(slurm, tmp_path, number):
    """Workers of a killed driver stop themselves; a driver that gets SIGTERM cancels its pending
    jobs."""
    waiting = number == signal.SIGTERM
    script = tmp_path / "driver.py"
    script.write_text(
        DRIVER.format(
            settings=SITE | ({"job_extra_directives": ["--hold"]} if waiting else {}),
            wait=not waiting,
        )
    )
    with subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as driver:
        assert driver.stdout.readline() == "ready\n"
        assert len(slurm.jobs()) == 1
        driver.send_signal(number)
        driver.wait(120)
    wait_until(lambda: not slurm.jobs())
