"""Pyramids whose workers SLURM stops: the tree equals that of an undisturbed run, and only lost
tasks run again."""

from __future__ import annotations

import re

import pytest
from faults import worker_faults
from faults.drivers import runs, without_flushing
from faults.slurm_workers import SlurmWorkers
from faults.works import Meanwhile, PyramidWork, num_repeated
from slurm.sites import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

SECONDS = 0.04  # of each task: of shorter ones, more are in flight
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "proof"),
    [
        pytest.param(worker_faults.cancelled, "job CANCELLED", id="scancel"),
        pytest.param(worker_faults.requeued, "Restarts=1", id="requeue"),
        pytest.param(worker_faults.node_down, "restarted since then: True", id="node down"),
        pytest.param(
            worker_faults.over_memory,
            "process gone, job (FAILED|OUT_OF_MEMORY|CANCELLED), log tells of memory: True",
            id="memory",
        ),
    ],
)
def test_only_tasks_of_a_stopped_worker_run_again(tmp_path, known, cluster, fault, proof):
    cluster.restore(3)
    folder, log = known.start(tmp_path / "ds"), tmp_path / "log"
    with (
        cluster.connected(3) as client,
        Meanwhile(log, MOMENT, lambda: fault(cluster, client)) as meanwhile,
    ):
        known.build(folder, log, SECONDS)
    assert meanwhile.done
    # SLURM detects a node that is down late
    wait_until(lambda: re.search(proof, meanwhile.found()), 180)
    known.check(folder)
    assert set(runs(log)) == known.tasks
    assert num_repeated(log) <= IN_FLIGHT
