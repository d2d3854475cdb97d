"""Arrays that one read computes equal those that dask computes chunk by chunk, and behave as plain
arrays in all else."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback
from hypothesis import given
from hypothesis import strategies as st
from support.memory_volume import make_volume

from wkwdask import BoundingBox
from wkwdask.graphs import read, volume_array
from wkwdask.graphs.read import BoxReader, open_array
from wkwdask.graphs.volume_array import VolumeArray
from wkwdask.streams import reading, threads

TOPLEFT = (21, 3, 9)
SHAPE = (2, 50, 37, 23)
LOCAL = ("synchronous", "threads")


@pytest.fixture(scope="module")
def array():
    return np.random.default_rng(1).integers(1, 1000, SHAPE, dtype=np.uint16)


@pytest.fixture(scope="module")
def volume(array):
    return make_volume("volume-array", array, TOPLEFT)


def opened(volume, **options):
    return open_array(
        volume,
        **{
            "chunks": (16, 8, 8),
            "box": volume.box,
            "extent": volume.box,
            "axes": None,
            "channel": None,
            **options,
        },
    )


def _reads(compute):
    """Return a result and the number of arrays that were read for it."""
    with mock.patch.object(BoxReader, "_read", autospec=True, side_effect=BoxReader._read) as read:
        return compute(), read.call_count


@pytest.mark.parametrize("scheduler", LOCAL)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"axes": "czyx"},
        {"axes": "zcyx"},
        {"channel": 1},
        {"channel": 0, "axes": "yzx"},
        {"extent": BoundingBox((16, 0, 0), (55, 40, 32))},
    ],
)
def test_one_read_into_one_array(volume, options, scheduler):
    lazy = opened(volume, **options)
    result, count = _reads(lambda: lazy.compute(scheduler=scheduler))
    expected, many = _reads(lambda: dask.compute(lazy, scheduler=scheduler)[0])
    assert (count, many) == (1, lazy.npartitions)
    np.testing.assert_array_equal(result, expected)
    assert (result.dtype, result.flags.c_contiguous, result.flags.writeable) == (
        expected.dtype,
        True,
        True,
    )


_axis = st.one_of(
    st.integers(-60, 59),
    st.slices(60),
    st.builds(slice, st.integers(-60, 60), st.integers(-60, 60)),
)
_index = (
    st.lists(st.one_of(_axis, st.just(Ellipsis)), max_size=3)
    .filter(lambda parts: parts.count(Ellipsis) < 2)
    .map(tuple)
)


@given(indices=st.lists(_index, min_size=1, max_size=3), axes=st.sampled_from(["xyz", "zyx"]))
def test_any_chain_of_indices(indices, axes):
    array = np.arange(60 * 7 * 60, dtype=np.uint32).reshape(1, 60, 7, 60) + 1
    volume = make_volume("chains", array, (5, 6, 7))
    lazy = opened(volume, axes=axes, channel=0)
    expected = array[0] if axes == "xyz" else array[0].T
    for index in indices:
        try:
            expected, lazy = expected[index], lazy[index]
        except IndexError:
            with pytest.raises(IndexError):
                lazy[index]
            return
    result = lazy.compute(scheduler="synchronous")
    assert type(result) is type(dask.compute(lazy, scheduler="synchronous")[0])
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)


def test_slices_without_steps_are_one_read_and_other_indices_are_not(volume, array):
    lazy = opened(volume)
    for index in (
        (slice(None), slice(3, 40), slice(0, 20), slice(4, 20)),
        (1, Ellipsis, 5),
        (slice(None), slice(None), np.int64(4)),
        (0, slice(2, -3)),
    ):
        result, count = _reads(lambda index=index: lazy[index].compute(scheduler="synchronous"))
        assert count == 1
        np.testing.assert_array_equal(result, array[index])
    for index in (
        (slice(None), slice(None, None, 8)),
        (slice(None), [1, 20, 40]),
        (None, 1),
        (0, 1, 2, 3),
    ):
        assert type(lazy[index]) is da.Array
        np.testing.assert_array_equal(lazy[index].compute(scheduler="synchronous"), array[index])


def test_assigned_values_are_kept(volume, array):
    lazy = opened(volume)
    part = lazy[:, 3:9]
    lazy[:, 3:5] = 7
    part[:, :, 2] = 9
    expected = array.copy()
    expected[:, 3:5] = 7
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(lazy.compute(), expected)
        np.testing.assert_array_equal(lazy[:, 2:4, 1].compute(), expected[:, 2:4, 1])
        expected = array[:, 3:9].copy()
        expected[:, :, 2] = 9
        np.testing.assert_array_equal(part.compute(), expected)


@pytest.mark.long
def test_everything_else_is_a_plain_array(volume, array):
    lazy = opened(volume)
    plain = da.from_array(array, chunks=(2, 10, 10, 10))
    with dask.config.set(scheduler="synchronous"):
        for made, expected in (
            (lazy + 1, array + 1),
            (lazy + plain, array * 2),
            (plain + lazy, array * 2),
            (np.add(plain, lazy), array * 2),
            (np.concatenate([plain, lazy]), np.concatenate([array, array])),
            (da.where(lazy > 500, lazy, 0), np.where(array > 500, array, 0)),
            (lazy.T, array.T),
            (lazy.rechunk((2, 7, 7, 7)), array),
            (lazy.persist(), array),
            (dask.optimize(lazy)[0], array),
            (pickle.loads(pickle.dumps(lazy)), array),
            (pickle.loads(pickle.dumps(lazy[0, 1:5])), array[0, 1:5]),
            (lazy.copy(), array),
            (lazy.map_blocks(np.negative), np.negative(array)),
        ):
            assert type(made) is da.Array
            np.testing.assert_array_equal(made.compute(), expected)
        np.testing.assert_array_equal(np.asarray(lazy), array)
        assert dask.base.tokenize(lazy) == dask.base.tokenize(opened(volume))
        assert int(lazy.sum().compute()) == int(array.sum())


def test_other_schedulers_and_observers_get_tasks(volume, array):
    lazy = opened(volume)
    seen = []
    with Callback(pretask=lambda key, *_: seen.append(key)):
        assert (lazy.compute(scheduler="synchronous") == array).all()
    assert len(seen) >= lazy.npartitions
    with ThreadPoolExecutor(2) as pool, dask.config.set(pool=pool):
        assert _reads(lazy.compute)[1] == lazy.npartitions
    assert _reads(lambda: lazy.compute(scheduler=dask.get))[1] == 1  # the same as "synchronous"
    with ThreadPoolExecutor(2) as pool:
        assert _reads(lambda: lazy.compute(scheduler=pool))[1] == lazy.npartitions
    assert (
        _reads(lambda: lazy.compute(scheduler="threads", optimize_graph=False))[1]
        == lazy.npartitions
    )


def test_a_cluster_computes_tasks(volume, array):
    distributed = pytest.importorskip("distributed")
    lazy = opened(volume)
    with distributed.Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0"
    ) as client:
        assert _reads(lazy.compute)[1] == lazy.npartitions
        assert (client.compute(lazy).result() == array).all()
        assert (
            client.submit(lambda part: part.compute(scheduler="threads"), lazy[0]).result()
            == array[0]
        ).all()


def test_threads_are_those_of_the_scheduler(volume, monkeypatch):
    monkeypatch.setattr(read, "MIN_NBYTES", 2000)
    monkeypatch.setattr(volume_array, "available_cores", lambda: 5)
    monkeypatch.setattr(threads, "_MIN_PART_NBYTES", 100)
    lazy = opened(volume)
    with mock.patch.object(reading, "for_each", side_effect=threads.for_each) as each:
        for options, expected in (({"num_workers": 3}, 3), ({}, 5)):
            whole = lazy.compute(scheduler="threads", **options)
            assert each.call_args.args[2] == expected
        with dask.config.set(num_workers=2, scheduler="threads"):
            assert (lazy.compute() == whole).all()
            assert each.call_args.args[2] == 2
        each.reset_mock()
        assert (lazy.compute(scheduler="synchronous") == whole).all()
        assert not each.called
        assert (lazy[:, :2, :2, :2].compute(scheduler="threads") == whole[:, :2, :2, :2]).all()
        assert not each.called


def test_plugins_of_dask_get_plain_arrays(volume):
    with dask.config.set(array_plugins=[lambda array: array]):
        assert type(opened(volume)) is da.Array
    assert type(opened(volume)) is VolumeArray
