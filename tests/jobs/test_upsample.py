"""The upsampling job on a format that is no WKW: brute force, what is read, what is known about sources."""

from __future__ import annotations

import pickle

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_volume import MemoryTarget, MemoryVolume, make_volume, read_whole, store_of
from strategies import vectors, voxel_array

from wkwdask import BoundingBox, Mag
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.graphs import runners
from wkwdask.model.states import digest
from wkwdask.plans import upsample as plans
from wkwdask.plans.upsample import plan_upsampling
from wkwdask.runs.job import run_serially
from wkwdask.verbs.upsample import UpsampleJob, UpsampleSpec, is_current

SOURCE = Mag(4, 4, 2)
MAGS = (Mag(1, 1, 1), Mag(2, 1, 2))
BOX = BoundingBox((53, 160, 14), (98, 71, 53))  # no multiple of mag 4-4-2


def enlarged(array, source_box, box):
    """Every voxel by its definition."""
    factor = box.mag.step_to(source_box.mag)
    x, y, z = (np.arange(a, b) // f - t for a, b, f, t in zip(box.topleft, box.bottomright, factor, source_box.topleft, strict=True))
    return array[(slice(None), *np.ix_(x, y, z))]


def make_source(name, array, box=BOX, mag=SOURCE, **options):
    box = box.in_mag(mag)
    made = make_volume(name, array, box.topleft, **options)
    return MemoryVolume(name, made.dtype_name, made.num_channels, box, made.chunk_shape, made.shard_shape)


def make_job(name, source, mags=MAGS, workers=4, box=BOX, regions=None, **options):
    targets = [MemoryTarget(f"{name}{mag.long_name}", source.dtype_name, source.num_channels, box.in_mag(mag), **options) for mag in mags]
    for target in targets:
        getattr(store_of(target.folder), "clear", lambda: None)()
        target.prepare()
    voxel_nbytes = source.dtype.itemsize * source.num_channels
    made = [plan_upsampling(t.box, source.box.mag, t.chunk_shape, t.shard_shape, voxel_nbytes, workers, regions) for t in targets]
    return UpsampleJob(source, targets, made)


def check(job, array, source):
    """Voxels by definition, one receipt for each shard that can have voxels, no part left."""
    for tally in job.tallies:
        target = tally.target
        expected = enlarged(array, source.box, target.box)
        np.testing.assert_array_equal(read_whole(target.as_volume()).view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))
        tally.check()
        stored = {index for index in cells(target.box, target.shard_shape) if target.as_volume().shard_exists(index)}
        assert {tuple(row[:3]) for row in tally.shards.tolist() if row[3]} == stored
        report = tally.report(target.folder)
        assert (report.voxels, report.minimum, report.maximum, report.files) == (target.box.volume, expected.min(), expected.max(), len(stored))
        assert [name for name in store_of(target.folder).names() if name.startswith("part")] == []


@pytest.fixture(scope="module")
def array():
    random = np.random.default_rng(5)
    values = random.integers(1, 200, (2, *BOX.in_mag(SOURCE).size), dtype=np.uint8)
    values[:, 11:, :, 13:] = 0
    values[1] //= 2
    return values


# Regions that hold several shards of 32 x 32 x 16, one shard each, parts of shards along all axes; in chunks of 8 x 8 x 4.
@pytest.mark.parametrize("region", [None, (64, 64, 32), (32, 32, 16), (16, 16, 8), (8, 8, 4)])
def test_any_region(array, region):
    source = make_source("any-source", array)
    job = make_job("any", source, regions=region)
    done, receive = 0, job.receive

    def counted(task, result):
        nonlocal done
        done += 1
        return receive(task, result)

    job.receive = counted
    run_serially(job)
    assert done == job.num_tasks
    check(job, array, source)


@st.composite
def layers(draw):
    """Boxes that lie anywhere in the voxels of the coarse mag, factors up to 16 along each axis; shards that are larger or smaller than a voxel."""
    mag = Mag(*draw(st.tuples(*[st.sampled_from([1, 2])] * 3)))
    source = Mag(*(n * f for n, f in zip(mag.factors, draw(st.tuples(*[st.sampled_from([1, 2, 4, 8, 16])] * 3)), strict=True)))
    size = draw(vectors(1, 30))
    return BoundingBox(draw(vectors(0, 200)), size), mag, source


@given(
    layers(),
    st.sampled_from(["uint8", "int16", "uint32", "float64"]),
    st.integers(1, 3),
    st.sampled_from(["few", "noise", "extremes", "zeros"]),
    st.sampled_from([(8, 8, 4), (4, 4, 4), (4, 8, 2)]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 8]),
    st.integers(0, 9),
)
def test_brute_force(layer, dtype, channels, kind, chunk, times, region, seed):
    box, mag, source_mag = layer
    voxels = voxel_array(dtype, (channels, *box.in_mag(source_mag).size), seed, kind)
    store_of("brute-source").clear()
    source = make_source("brute-source", voxels, box, source_mag, chunk_shape=(2, 4, 4), shard_shape=(4, 4, 8))
    shard = tuple(n * times for n in chunk)
    job = make_job("brute", source, (mag,), 4, box, tuple(n * region for n in chunk), chunk_shape=chunk, shard_shape=shard)
    run_serially(job)
    (tally,) = job.tallies
    np.testing.assert_array_equal(read_whole(tally.target.as_volume()), enlarged(voxels, source.box, tally.target.box))
    tally.check()


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_runners(tmp_path, array, scheduler):
    source = make_source(f"{tmp_path}/source", array)
    job = make_job(f"{tmp_path}/", source, (MAGS[1],), regions=(16, 16, 8))
    with dask.config.set(scheduler=scheduler, num_workers=2):
        runners.run_job(job, "test")
    check(job, array, source)


def test_what_is_empty_costs_nothing(array):
    """Where no shard of the source is stored there is no task, and every task reads its own share."""
    array = array.copy()
    array[:, 6:] = 0
    store_of("empty-source").clear()
    source = make_source("empty-source", array, shard_shape=(8, 8, 8), chunk_shape=(4, 4, 4))
    job = make_job("empty", source, (MAGS[0],), regions=(32, 32, 16))
    tasks = list(job.tasks())
    shares = [task.spec.plan.source_of(task.spec.plan.region_box(task.spec.region)) for task in tasks]
    all_shares = [task.source_of(task.region_box(region)) for task in [tasks[0].spec.plan] for region in cells(task.box, task.region_shape)]
    assert set(shares) == {share for share in all_shares if any(source.shard_exists(index) for index in cells(share, source.shard_shape))}
    assert 0 < len(shares) <= len(all_shares) / 2
    run_serially(job)
    read = [box for box, _, _ in store_of("empty-source").reads]
    assert sorted(map(str, read)) == sorted(map(str, shares))
    check(job, array, source)


def test_readings_are_small(array, monkeypatch):
    """With a budget, a task reads its share in pieces, each once."""
    monkeypatch.setattr(plans, "_BRICK_NBYTES", 1024)
    monkeypatch.setattr(plans, "_READING_NBYTES", 128)
    store_of("small-source").clear()
    array = array | 1
    source = make_source("small-source", array)
    job = make_job("small", source, (MAGS[0],), regions=(64, 64, 32))
    run_serially(job)
    read = [box for box, _, _ in store_of("small-source").reads]
    assert max(box.volume for box in read) * 2 <= 128
    assert sum(box.volume for box in read) == source.box.volume
    check(job, array, source)


def test_tasks_may_run_twice(array):
    """Dask delivers at least once."""
    source = make_source("twice-source", array)
    job = make_job("twice", source, regions=(16, 16, 8))
    receive = job.receive

    def again(task, result):
        repeated = task.run()
        assert [(n, receipt.nonzero, receipt.sources) for n, receipt in repeated.receipts] == [(n, r.nonzero, r.sources) for n, r in result.receipts]
        return receive(task, result)

    job.receive = again
    run_serially(job)
    check(job, array, source)


def test_tasks_are_small_to_pickle(array):
    for task in make_job("pickle", make_source("pickle-source", array)).tasks():
        assert len(pickle.dumps(task)) < 4000
        assert pickle.loads(pickle.dumps(task)) == task
        assert task.name


# ----------------------------------------------------------------------------- sources


@pytest.mark.parametrize("source_shard", [(2, 2, 2), (8, 4, 4), (64, 64, 64)])
@pytest.mark.parametrize("region", [(64, 64, 32), (32, 32, 16), (8, 8, 4)])
def test_each_shard_knows_the_files_that_it_is_made_from(array, region, source_shard):
    """However its parts were cut: once each, and no others."""
    store_of("known-source").clear()
    source = make_source("known-source", array, shard_shape=source_shard, chunk_shape=(2, 2, 2))
    job = make_job("known", source, regions=region)
    run_serially(job)
    for tally in job.tallies:
        target = tally.target
        sources = {tuple(row[:3]): row[5] for row in tally.shards.tolist()}
        for shard in cells(target.box, target.shard_shape):
            share = cell_box(shard, target.shard_shape, target.box).intersection(target.box).in_mag(source.box.mag)
            assert sources.get(shard, 0) == digest(source.shard_states(share))
        assert is_current(source, target, tally.shards)


@pytest.mark.parametrize("source_shard", [(2, 2, 2), (64, 64, 64)])
def test_a_source_that_has_changed_is_seen(array, source_shard):
    store_of("changed-source").clear()
    array = array.copy()
    array[:, :, :8] = 0
    source = make_source("changed-source", array, shard_shape=source_shard, chunk_shape=(2, 2, 2))
    job = make_job("changed", source)
    run_serially(job)
    states = [(tally.target, tally.shards) for tally in job.tallies]
    store = store_of("changed-source")
    index = next(index for index in cells(source.box, source_shard) if source.shard_exists(index))
    name = "shard-{}-{}-{}".format(*index)
    kept = store.get(name)
    for target, rows in states:
        assert is_current(source, target, rows)
        assert not is_current(source, target, rows[:0])
    store.put(name, kept)  # the same, but later
    assert not any(is_current(source, target, rows) for target, rows in states)
    store.pop(name)
    assert not any(is_current(source, target, rows) for target, rows in states)
    missing = [index for index in cells(source.box, source_shard) if not source.shard_exists(index)]
    store.put("shard-{}-{}-{}".format(*missing[-1]), kept)
    assert not any(is_current(source, target, rows) for target, rows in states)


def test_a_task_says_what_it_works_on(array):
    (task, *_) = make_job("named", make_source("named-source", array)).tasks()
    assert isinstance(task.spec, UpsampleSpec)
    assert task.name.startswith("region (")
    assert "of mag 1, made from memory:named-source" in task.name
