"""Pyramids whose workers and drivers SLURM takes away: the tree is that of an undisturbed run, and only what was lost is done again."""

from __future__ import annotations

import os
import re
import signal

import pytest
from faults import worker_faults
from faults.drivers import Driver, job_folders, journaled, num_ended, runs, wait_until, without_flushing
from faults.slurm_workers import SlurmWorkers, is_running
from faults.works import Meanwhile, PyramidWork, num_repeated

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

SECONDS = 0.02  # of each task
IN_FLIGHT = 9  # three for each worker of one thread
MOMENT = 20


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    with without_flushing():
        return PyramidWork(tmp_path_factory.mktemp("undisturbed") / "pyramid")


@pytest.fixture(scope="module")
def cluster(slurm_cluster, tmp_path_factory):
    with SlurmWorkers(slurm_cluster, tmp_path_factory.mktemp("cluster") / "jobs") as workers:
        yield workers
    slurm_cluster.make_idle()


@pytest.mark.parametrize(
    ("fault", "proof"),
    [
        pytest.param(worker_faults.cancelled, "job CANCELLED", id="scancel"),
        pytest.param(worker_faults.requeued, "Restarts=1", id="requeue"),
        pytest.param(worker_faults.node_down, "restarted since then: True", id="node down"),
        pytest.param(worker_faults.over_memory, "process gone, job (FAILED|OUT_OF_MEMORY|CANCELLED), log tells of memory: True", id="memory"),
    ],
)
def test_a_worker_is_taken_away(tmp_path, known, cluster, fault, proof):
    cluster.restore(3)
    folder, log = known.start(tmp_path / "ds"), tmp_path / "log"
    with cluster.connected(3) as client, Meanwhile(log, MOMENT, lambda: fault(cluster, client)) as meanwhile:
        known.build(folder, log, SECONDS)
    assert meanwhile.done
    wait_until(lambda: re.search(proof, meanwhile.found()), 180, meanwhile.found)  # SLURM takes its time for nodes that are down
    known.check(folder)
    assert set(runs(log)) == known.tasks
    assert num_repeated(log) <= IN_FLIGHT


def test_the_driver_is_killed(tmp_path, known, cluster):
    """The workers stay, and another process goes on with them."""
    cluster.restore(2)
    folder, log = known.start(tmp_path / "ds"), tmp_path / "log"
    with Driver(str(folder), "parts", str(log), cluster.address, seconds=SECONDS).start() as process:
        wait_until(lambda: num_ended(log) >= MOMENT)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert not is_running(process.pid)
    known.check_unseen(folder)
    assert len(job_folders(folder)) == 1
    done, before = journaled(folder), runs(log)
    assert done
    with cluster.connected(2):
        known.build(folder, log, SECONDS, existing="resume")
    assert not done & set(runs(log) - before)
    known.check(folder)
    assert num_repeated(log) <= 2 * IN_FLIGHT
