"""A worker whose network is cut while it works: the others do its tasks, and what it writes
meanwhile, a second time, does no harm."""

from __future__ import annotations

import os
import time

import dask
import distributed
import pytest
from faults.cluster_processes import ClusterProcesses
from faults.drivers import runs
from faults.network import Namespace, why_not
from faults.works import Meanwhile, PyramidWork, num_repeated

pytestmark = pytest.mark.faults

PATIENCE = "11s"  # how long dask waits for an answer of the other side; the least that it takes


@pytest.mark.long
def test_network_is_cut(tmp_path):
    reason = why_not()
    if reason:
        pytest.skip(reason)
    known = PyramidWork(tmp_path / "undisturbed")
    folder, log = known.start(tmp_path / "ds"), tmp_path / "log"
    (tmp_path / "cluster").mkdir()
    brief = {
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": PATIENCE,
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": PATIENCE,
    }
    with (
        Namespace(f"wkw{os.getpid() % 100000}") as network,
        ClusterProcesses(tmp_path / "cluster", network.outside, **brief) as cluster,
        dask.config.set(
            {
                "distributed.comm.timeouts.tcp": PATIENCE,
                "distributed.comm.timeouts.connect": PATIENCE,
            }
        ),
    ):
        inner = cluster.start_worker("--no-nanny", "--host", network.address, inside=network.inside)
        with distributed.Client(cluster.address, timeout=60) as client:
            client.wait_for_workers(3, timeout=180)

            def workers():
                # Not client.scheduler_info: the client also asks for a summary without workers
                # every few seconds, and may return that one.
                return client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.workers))

            def cut():
                network.cut()
                until = time.monotonic() + 180
                while (
                    any(network.address in address for address in workers())
                    and time.monotonic() < until
                ):
                    time.sleep(0.1)
                known_workers = workers()
                network.mend()
                return known_workers

            with Meanwhile(log, 20, cut) as meanwhile:
                known.build(folder, log, 0.1)
            assert meanwhile.done
            assert len(meanwhile.found) == 2
            # it was given up
            assert not any(network.address in address for address in meanwhile.found)
            inner.wait(timeout=90)  # it notices, and ends
    known.check(folder)
    assert set(runs(log)) == known.tasks
    assert 1 <= num_repeated(log) <= 9
