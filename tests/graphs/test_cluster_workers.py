"""Workers of a cluster: choice of the worker for a task, and an error if all are paused."""

from __future__ import annotations

from types import SimpleNamespace

import dask.array as da
import distributed
import numpy as np
import pytest
from faults.drivers import wait_until
from faults.trees import make_dataset

import wkwdask
from wkwdask.errors import TaskFailedError
from wkwdask.graphs import client_run, write
from wkwdask.graphs.client_run import PauseWatch, Workers, prefer_workers


class Cluster:
    """Client with simulated workers."""

    def __init__(self):
        self.workers = {}
        self.scheduler = self

    def sync(self, function, **options):
        return function(**options)

    def identity(self, n_workers):
        assert n_workers == -1
        return {"workers": self.workers}

    def add(self, name, status, executing=0):
        self.workers[name] = {
            "name": name,
            "status": status,
            "memory_limit": 300 << 20,
            "metrics": {"memory": 290 << 20, "task_counts": {"executing": executing}},
        }


def test_error_only_if_all_workers_are_paused(monkeypatch):
    monkeypatch.setattr(client_run, "_PAUSED_SECONDS", 0.0)
    cluster = Cluster()
    watch = PauseWatch(cluster)
    watch.check()  # no workers yet
    cluster.add("a", "paused")
    cluster.add("b", "running")
    watch.check()
    watch.check()
    cluster.add("b", "paused", executing=1)  # its end frees memory
    watch.check()
    watch.check()
    cluster.add("b", "paused")
    watch.check()
    with pytest.raises(
        TaskFailedError, match=r"all 2 workers are paused.*290 MiB of 300 MiB.*--memory-limit"
    ):
        watch.check()


def test_pause_is_timed_from_the_last_paused_worker(monkeypatch):
    monkeypatch.setattr(client_run, "_PAUSED_SECONDS", 3600.0)
    cluster = Cluster()
    cluster.add("a", "paused")
    watch = PauseWatch(cluster)
    watch.check()
    watch.check()


def test_lost_connection_is_no_pause():
    class Lost:
        scheduler = SimpleNamespace(identity=None)

        def sync(self, function, **options):
            raise OSError("no answer")

    PauseWatch(Lost()).check()


def test_workers_without_memory_fail_jobs_and_graphs(tmp_path, monkeypatch):
    monkeypatch.setattr(client_run, "_PAUSED_SECONDS", 0.5)
    monkeypatch.setattr(client_run, "_POLL_SECONDS", 0.2)
    monkeypatch.setattr(write, "_POLL_SECONDS", 0.2)
    array = np.ones((64, 64, 64), np.uint8)
    make_dataset(tmp_path / "ds", (1, 1, 1))
    wkwdask.to_wkw(array, tmp_path / "ds" / "color" / "1", block_len=8, file_len=4)
    options = {
        "n_workers": 1,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": ":0",
        "memory_limit": "60MB",
    }
    with distributed.LocalCluster(**options) as cluster, cluster.get_client() as client:
        wait_until(
            lambda: (
                [
                    worker["status"]
                    for worker in client.scheduler_info(n_workers=-1)["workers"].values()
                ]
                == ["paused"]
            )
        )
        with pytest.raises(TaskFailedError, match="the only worker is paused"):
            wkwdask.build_pyramid(tmp_path / "ds", "color")
        with pytest.raises(TaskFailedError, match="the only worker is paused"):
            wkwdask.to_wkw(
                da.from_array(array, chunks=32),
                tmp_path / "ds" / "other" / "1",
                block_len=8,
                file_len=4,
            )


# ----------------------------------------------------------------------------- choice of workers


class ThreeWorkers:
    """Client of three workers, whose scheduler may not answer."""

    status = "running"

    def __init__(self):
        self.answers = True

    def nthreads(self):
        return self._answer(dict.fromkeys("abc", 2))

    def processing(self):
        return self._answer({"a": ("one", "two"), "b": ()})

    def who_has(self, futures):
        return self._answer(dict.fromkeys(futures, ("b", "c")))

    def _answer(self, value):
        if not self.answers:
            raise ConnectionResetError
        return value


def test_workers_to_avoid():
    workers = Workers(ThreeWorkers())
    assert workers.avoiding() == {}
    assert workers.avoiding("a") == {"workers": ["b", "c"], "allow_other_workers": True}
    workers.avoid("b")
    assert workers.avoiding() == prefer_workers(["a", "c"])
    assert workers.avoiding("a") == prefer_workers(["c"])
    # an avoided worker is better than one where the task failed
    assert workers.avoiding("ac") == prefer_workers(["b"])
    assert workers.avoiding("abc") == {}
    workers.avoid("ac")
    assert workers.preferred() == ["a", "b", "c"]


def test_last_known_workers_without_answer_of_the_scheduler():
    cluster = ThreeWorkers()
    workers = Workers(cluster)
    cluster.answers = False
    assert workers.num_threads() == {}
    cluster.answers = True
    known = workers.num_threads(), workers.running(), workers.holders("future")
    assert known == ({"a": 2, "b": 2, "c": 2}, {"one": "a", "two": "a"}, {"b", "c"})
    cluster.answers = False
    assert (workers.num_threads(), workers.running(), workers.holders("future")) == (
        known[0],
        {},
        set(),
    )
