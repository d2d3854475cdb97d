"""Every runner writes the same files, and dask's own settings choose the runner."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from support.inside import run_serially
from support.memory_volume import (
    CHUNK_SHAPE,
    SHARD_SHAPE,
    MemoryTarget,
    make_volume,
    read_whole,
    store_of,
)

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.errors import CorruptError
from wkwdask.formats.webknossos.datasource import format_datasource, new_document
from wkwdask.geometry.grid import cells
from wkwdask.graphs import runners, write
from wkwdask.graphs.read import open_array
from wkwdask.graphs.write import build_write_graph, compute_receipts
from wkwdask.model.states import FILE_RECORD_NAME
from wkwdask.plans.pyramid import plan_passes
from wkwdask.plans.regions import Tiling
from wkwdask.runs.job import Result
from wkwdask.store import cores
from wkwdask.store.records import PROGRESS_NAME, PROVENANCE_NAME
from wkwdask.verbs.pyramid import PyramidJob
from wkwdask.verbs.write import WriteJob

distributed = pytest.importorskip("distributed")

OFFSET = (13, 40, 7)
SHAPE = (2, 90, 61, 50)
MAGS = (Mag(2, 2, 1), Mag(4, 4, 2), Mag(8, 8, 4), Mag(8, 16, 8))
LAYER_BOX = BoundingBox(OFFSET, SHAPE[1:])
OPTIONS = {"block_len": 8, "file_len": 4, "compression": "lz4"}


@pytest.fixture(scope="module")
def array():
    random = np.random.default_rng(5)
    values = random.integers(0, 200, SHAPE, dtype=np.uint8)
    values[:, 20:, :, 25:] = 0
    values[1] //= 2
    return values


@pytest.fixture(scope="module")
def cluster():
    """Two workers in this process, which start fast and share its memory; tests/faults and
    tests/api run jobs on worker processes."""
    options = {
        "n_workers": 2,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": ":0",
    }
    with distributed.LocalCluster(**options, silence_logs="ERROR") as running:
        yield running


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as connected:
        yield connected


def coarser(array, box, factor, reduce):
    low = [t // f for t, f in zip(box.topleft, factor, strict=True)]
    high = [-(-t // f) for t, f in zip(box.bottomright, factor, strict=True)]
    padded = np.full(
        (array.shape[0], *((b - a) * f for a, b, f in zip(low, high, factor, strict=True))), np.nan
    )
    inside = tuple(
        slice(t - a * f, t - a * f + n)
        for t, a, f, n in zip(box.topleft, low, factor, box.size, strict=True)
    )
    padded[(slice(None), *inside)] = array
    windows = padded.reshape(
        array.shape[0], *(n for a, b, f in zip(low, high, factor, strict=True) for n in (b - a, f))
    )
    return reduce(windows, axis=(2, 4, 6)).astype(array.dtype)


def expected_pyramid(array, reduce):
    mags, box, before = [], LAYER_BOX, Mag(1, 1, 1)
    for mag in MAGS:
        array = coarser(array, box, before.step_to(mag), reduce)
        box, before = LAYER_BOX.in_mag(mag), mag
        mags.append(array)
    return mags


def targets_of(folder, array, **options):
    return [
        MemoryTarget(
            f"{folder}{mag.long_name}",
            array.dtype.name,
            array.shape[0],
            LAYER_BOX.in_mag(mag),
            **options,
        )
        for mag in MAGS
    ]


def pyramid_job(folder, array, method="max", workers=4, **options):
    for target in targets_of(folder, array):
        getattr(store_of(target.folder), "arrays", {}).clear()
        target.prepare()
    passes = plan_passes(
        LAYER_BOX,
        MAGS,
        [Tiling(CHUNK_SHAPE, SHARD_SHAPE, array.shape[0] * array.itemsize)] * len(MAGS),
        workers,
    )
    return PyramidJob(
        make_volume(f"{folder}source", array, OFFSET),
        targets_of(folder, array, **options),
        passes,
        method,
    )


def check_pyramid(job, array, reduce=np.nanmax):
    """Compare voxels with numpy; expect one receipt for each shard that may have voxels, and no
    leftover part."""
    for target, tally, voxels in zip(
        job.targets, job.tallies, expected_pyramid(array, reduce), strict=True
    ):
        np.testing.assert_array_equal(read_whole(target.as_volume()), voxels)
        tally.check()
        shards = [tuple(row) for row in tally.shards[:, :3].tolist()]
        assert len(set(shards)) == len(shards)
        touched = list(cells(target.box, target.shard_shape))
        assert set(shards) <= set(touched)
        stored = {index for index in touched if target.as_volume().shard_exists(index)}
        assert {tuple(row[:3]) for row in tally.shards.tolist() if row[3]} == stored
        report = tally.report(target.folder)
        assert (report.voxels, report.maximum, report.files) == (
            target.box.volume,
            voxels.max(),
            len(stored),
        )
        assert [name for name in store_of(target.folder).names() if name.startswith("part")] == []


# ----------------------------------------------------------------------------- a format of memory


@pytest.mark.parametrize(
    ("method", "reduce", "workers"),
    [("max", np.nanmax, 1), ("min", np.nanmin, 2), ("max", np.nanmax, 50)],
)
def test_serial_pyramid_equals_numpy(array, method, reduce, workers):
    job = pyramid_job(f"serial{workers}", array, method, workers)
    at_most, done = job.num_tasks, 0
    receive = job.receive

    def counted(task, result):
        nonlocal done
        done += 1
        return receive(task, result)

    job.receive = counted
    run_serially(job)
    assert done == job.num_tasks <= at_most
    check_pyramid(job, array, reduce)


@pytest.mark.parametrize(
    "options",
    [{"scheduler": "synchronous"}, {"scheduler": "threads", "num_workers": 3}, {}],
    ids=str,
)
def test_local_runners_equal_numpy(array, options):
    job = pyramid_job("local", array)
    with dask.config.set(**options):
        runners.run_job(job, "test")
    check_pyramid(job, array)


def test_client_equals_numpy(tmp_path, array, client):
    job = pyramid_job(f"{tmp_path}/", array)
    assert runners.active_client() is client
    runners.run_job(job, "test")
    check_pyramid(job, array)


@pytest.mark.long
def test_client_of_threads_shares_memory(array, client):
    job = pyramid_job("inprocess", array)
    runners.run_job(job, "test")
    check_pyramid(job, array)
    target = MemoryTarget("inprocess-write", "uint8", 2, LAYER_BOX)
    target.prepare()
    source = open_array(
        job.source, chunks="file", box=LAYER_BOX, extent=LAYER_BOX, axes=None, channel=None
    )
    receipts = []
    compute_receipts([build_write_graph(source.rechunk(29), target)], "test", receipts.append)
    assert len(receipts) == sum(1 for _ in cells(LAYER_BOX, target.shard_shape))
    np.testing.assert_array_equal(read_whole(target.as_volume()), array)


def test_write_graph_on_a_client(tmp_path, array, client, monkeypatch):
    array = array[:, :40, :30, :25]
    target = MemoryTarget(f"{tmp_path}/target", "uint8", 2, BoundingBox(OFFSET, array.shape[1:]))
    target.prepare()
    monkeypatch.setattr(write, "PART_NBYTES", 1 << 14)
    receipts = []
    compute_receipts(
        [build_write_graph(da.from_array(array, chunks=30), target)], "test", receipts.append
    )
    assert sorted(receipt.shard for receipt in receipts) == sorted(
        cells(target.box, target.shard_shape)
    )
    np.testing.assert_array_equal(read_whole(target.as_volume()), array)


def test_tasks_may_run_twice(tmp_path, array):

    class Twice:
        def __init__(self, job):
            self.job = job

        def tasks(self):
            return self.job.tasks()

        def receive(self, task, result):
            assert self.lasting(result) == self.lasting(task.run())
            return self.job.receive(task, result)

        @staticmethod
        def lasting(result):
            """All but the time of writing."""
            return sorted(
                str((level, replace(receipt, mtime_ns=0))) for level, receipt in result.receipts
            ), result.sources

    for job in (pyramid_job("twice", array), pyramid_job(f"{tmp_path}/", array)):
        run_serially(Twice(job))
        check_pyramid(job, array)


def test_tasks_are_small_to_pickle(array):
    job = pyramid_job("pickle", array)
    for task in job.tasks():
        assert len(pickle.dumps(task)) < 4000
        assert pickle.loads(pickle.dumps(task)) == task
        assert task.name


# ----------------------------------------------------------------------------- files of WKW


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*.wkw"))
    }


def leftovers(folder):
    return [
        path.name
        for path in Path(folder).rglob(".*")
        if path.name not in (PROVENANCE_NAME, FILE_RECORD_NAME, PROGRESS_NAME)
    ]


def make_dataset(folder, array):
    folder.mkdir()
    (folder / "datasource-properties.json").write_text(
        format_datasource(new_document("ds", (11, 11, 28)))
    )
    wkwdask.to_wkw(array, folder / "color" / "1", offset=OFFSET, **OPTIONS)
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory, array):
    with dask.config.set(scheduler="synchronous"):
        folder = make_dataset(tmp_path_factory.mktemp("reference") / "ds", array)
        wkwdask.build_pyramid(folder, coarsest="8-8-4")
    return folder


def check_same(folder, reference):
    assert contents(folder) == contents(reference)
    for mag in ("1", "2-2-1", "4-4-2", "8-8-4"):
        np.testing.assert_array_equal(
            wkwdask.read(folder, mag=mag), wkwdask.read(reference, mag=mag)
        )
    assert leftovers(folder) == []


@pytest.mark.parametrize(("scheduler", "workers"), [("threads", 7), ("processes", 2)])
def test_local_runners_write_the_same_files(tmp_path, array, reference, scheduler, workers):
    with dask.config.set(scheduler=scheduler, num_workers=workers):
        folder = make_dataset(tmp_path / "ds", array)
        report = wkwdask.build_pyramid(folder, coarsest="8-8-4")
    check_same(folder, reference)
    assert report.files == len(contents(folder)) - len(contents(folder / "color" / "1")) - 3
    assert report.voxels == sum(LAYER_BOX.in_mag(mag).volume for mag in MAGS[:3])


def test_cluster_writes_the_same_files(tmp_path, array, reference, client):
    folder = tmp_path / "ds"
    folder.mkdir()
    (folder / "datasource-properties.json").write_text(
        format_datasource(new_document("ds", (11, 11, 28)))
    )
    wkwdask.to_wkw(
        da.from_array(array, chunks=(2, 40, 33, 20)),
        folder / "color" / "1",
        offset=OFFSET,
        **OPTIONS,
    )
    wkwdask.build_pyramid(folder, coarsest="8-8-4")
    check_same(folder, reference)


def test_delayed_write_on_a_cluster(tmp_path, array, reference, client):
    delayed = wkwdask.to_wkw(
        da.from_array(array, chunks=40),
        tmp_path / "color" / "1",
        offset=OFFSET,
        compute=False,
        **OPTIONS,
    )
    report = delayed.compute()
    assert report.files == len(contents(tmp_path)) - 1
    assert contents(tmp_path / "color" / "1") == contents(reference / "color" / "1")
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_read_on_a_cluster(array, reference, client):
    opened = wkwdask.open(reference, mag=1, chunks="block")
    np.testing.assert_array_equal(opened.compute(), array)
    np.testing.assert_array_equal(opened[1, ::-3, 5, 1:3].compute(), array[1, ::-3, 5, 1:3])


def test_numpy_array_is_not_sent_to_a_cluster(tmp_path, array, client):
    before = worker_events(client)
    wkwdask.to_wkw(array, tmp_path / "1", offset=OFFSET, **OPTIONS)
    assert worker_events(client) == before


def worker_events(client):
    return sum(client.run(lambda dask_worker: len(dask_worker.state.log)).values())


# ----------------------------------------------------------------------------- errors


def damage(folder):
    """Damage a block of the finest mag, and return its file."""
    path = folder / "color" / "1" / "z0" / "y2" / "x1.wkw"
    raw = bytearray(path.read_bytes())
    first = int.from_bytes(raw[8:16], "little")
    raw[first : first + 12] = b"\xff" * 12
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("scheduler", ["synchronous", "cluster"])
def test_failed_pyramid_resumes_from_a_repaired_source(
    tmp_path, array, reference, scheduler, request
):
    folder = make_dataset(tmp_path / "ds", array)
    whole = (folder / "color" / "1" / "z0" / "y2" / "x1.wkw").read_bytes()
    path = damage(folder)
    if scheduler == "cluster":
        request.getfixturevalue("client")
        options = {}
    else:
        options = {"scheduler": scheduler}
    with dask.config.set(options), pytest.raises(CorruptError) as caught:
        wkwdask.build_pyramid(folder, coarsest="8-8-4")
    assert str(path) in str(caught.value)
    assert "block 0 at byte" in str(caught.value)
    notes = getattr(caught.value, "__notes__", [])
    if scheduler == "synchronous":
        assert any(note.startswith("while working on region") for note in notes)
    # no lock either
    assert [
        name for name in os.listdir(folder / "color") if not name.startswith(".wkwdask-job-")
    ] == ["1"]
    kept = any(
        note.startswith("finished work is kept (") and "the same call resumes" in note
        for note in notes
    )
    assert sum(name.startswith(".wkwdask-job-") for name in os.listdir(folder / "color")) == kept
    path.write_bytes(whole)
    with dask.config.set(options):
        wkwdask.build_pyramid(folder, coarsest="8-8-4")
    check_same(folder, reference)


def test_job_without_tasks():
    class Nothing:
        num_tasks = 0

        def tasks(self):
            return iter(())

        def receive(self, task, result):
            raise AssertionError

    for scheduler in ("synchronous", "threads"):
        with dask.config.set(scheduler=scheduler):
            runners.run_job(Nothing(), "nothing")


def test_follow_up_tasks_run_before_new_ones():
    order = []

    class Task:
        def __init__(self, name):
            self.name = self.key = name

        def run(self):
            order.append(self.name)
            return Result(())

    class Job:
        num_tasks = 6

        def tasks(self):
            return iter([Task("a"), Task("b"), Task("c")])

        def receive(self, task, result):
            return [Task(f"after {task.name}")] if len(task.name) == 1 else []

    with dask.config.set(scheduler="synchronous"):
        runners.run_job(Job(), "order")
    assert order == ["a", "after a", "b", "after b", "c", "after c"]
    order.clear()
    with dask.config.set(scheduler="threads", num_workers=1):
        runners.run_job(Job(), "order")
    assert sorted(order) == ["a", "after a", "after b", "after c", "b", "c"]
    assert all(order.index(name) < order.index(f"after {name}") for name in "abc")


# ----------------------------------------------------------------------------- choice of the runner


def test_active_client_follows_dask(client):
    assert runners.active_client() is client
    for scheduler in ("threads", "synchronous", "processes"):
        with dask.config.set(scheduler=scheduler):
            assert runners.active_client() is None
    with dask.config.set(scheduler=client):
        assert runners.active_client() is client


def test_num_workers(monkeypatch, client):
    assert runners.num_workers() == 2
    with dask.config.set(scheduler="synchronous"):
        assert runners.num_workers() == 1
    with dask.config.set(scheduler="threads", num_workers=5):
        assert runners.num_workers() == 5
    monkeypatch.setattr(cores, "_cgroup_cores", lambda: 64)
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: range(64))
    with dask.config.set(scheduler="threads"):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
        assert runners.num_workers() == 3
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", "many")
        assert runners.num_workers() == 64
        monkeypatch.delenv("SLURM_CPUS_PER_TASK")
        assert runners.num_workers() == 64


def test_in_process_job_ignores_the_client(array, client):
    target = MemoryTarget("here", "uint8", 2, LAYER_BOX)
    target.prepare()
    receipts, before = [], worker_events(client)
    runners.run_job(WriteJob(target, array, receipts.append), "test", in_process=True)
    assert worker_events(client) == before
    assert len(receipts) == sum(1 for _ in cells(LAYER_BOX, target.shard_shape))
    np.testing.assert_array_equal(read_whole(target.as_volume()), array)
