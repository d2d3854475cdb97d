"""Orthogonal and pointwise indices against numpy, on a volume whose chunks are small and anisotropic."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_volume import make_volume, store_of

from wkwdask.graphs import selection
from wkwdask.graphs.read import box_reader
from wkwdask.graphs.selection import read_orthogonal, read_points

TOPLEFT = (21, 3, 9)
SHAPE = (2, 50, 37, 23)
ARRAY = np.random.default_rng(1).integers(1, 1000, SHAPE, dtype=np.uint16)


@pytest.fixture(scope="module")
def volume():
    return make_volume("selection", ARRAY, TOPLEFT)


def reader_of(volume, axes="cxyz", start=None, channel=None):
    return box_reader(volume, volume.box, volume.box.topleft if start is None else start, axes, channel)


def whole(axes, absolute, channel=None):
    array = np.pad(ARRAY, [(0, 0), *((n, 0) for n in TOPLEFT)]) if absolute else ARRAY
    array = array if channel is None else array[channel]
    return array.transpose([("cxyz" if channel is None else "xyz").index(axis) for axis in axes])


def items(length):
    places = st.integers(-length, length - 1)
    return st.one_of(
        places,
        st.builds(slice, st.none() | places, st.none() | places, st.none() | st.integers(1, 12) | st.integers(-12, -1)),
        st.lists(places, max_size=8).map(lambda found: np.array(found, np.int64)),
    )


def expected_of(array, index):
    """Apply one index per axis, each for itself, last first: an int removes its axis."""
    for axis in reversed(range(array.ndim)):
        array = array[(slice(None),) * axis + (index[axis],)]
    return array


@given(data=st.data())
@pytest.mark.parametrize(("axes", "channel"), [("cxyz", None), ("zcyx", None), ("yzx", 1)])
@pytest.mark.parametrize("absolute", [False, True])
def test_orthogonal_indices_equal_numpy(volume, axes, channel, absolute, data):
    array = whole(axes, absolute, channel)
    index = tuple(data.draw(items(n)) for n in array.shape)
    with mock.patch.object(selection, "_CELL", data.draw(st.sampled_from([8, 16, 256]))):
        found = read_orthogonal(reader_of(volume, axes, (0, 0, 0) if absolute else None, channel), index)
    np.testing.assert_array_equal(found, expected_of(array, index))
    assert found.dtype == array.dtype


@given(data=st.data())
@pytest.mark.parametrize(("axes", "channel"), [("cxyz", None), ("zcyx", None), ("yzx", 1)])
@pytest.mark.parametrize("absolute", [False, True])
def test_points_equal_numpy(volume, axes, channel, absolute, data):
    array = whole(axes, absolute, channel)
    shape = data.draw(st.sampled_from([(5,), (1,), (2, 3), (0,)]))
    is_sliced = [data.draw(st.booleans()) for _ in array.shape]
    is_sliced[data.draw(st.integers(0, array.ndim - 1))] = False  # at least one array
    index = []
    for n, sliced in zip(array.shape, is_sliced, strict=True):
        if sliced:
            index.append(slice(data.draw(st.integers(0, n - 1)), None, data.draw(st.integers(5, 20))))
        else:
            places = data.draw(st.lists(st.integers(-n, n - 1), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
            index.append(np.array(places, np.int64).reshape(shape))
    with mock.patch.object(selection, "_POINTS", data.draw(st.sampled_from([1, 7, 1 << 21]))):
        found = read_points(reader_of(volume, axes, (0, 0, 0) if absolute else None, channel), index)
    # numpy keeps sliced axes in place where the arrays are neighbours; all arrays first is the rule here
    moved = array.transpose([*(n for n, sliced in enumerate(is_sliced) if not sliced), *(n for n, sliced in enumerate(is_sliced) if sliced)])
    order = [item for item, sliced in zip(index, is_sliced, strict=True) if not sliced] + [item for item in index if isinstance(item, slice)]
    np.testing.assert_array_equal(found, moved[tuple(order)])


def test_arrays_of_points_are_broadcast(volume):
    x, y = np.array([[3], [7]]), np.array([[1, 5, 30]])
    found = read_points(reader_of(volume, "xyz", channel=0), [x, y, np.array([[4]])])
    np.testing.assert_array_equal(found, ARRAY[0][x, y, 4])


@given(data=st.data())
@pytest.mark.parametrize(("axes", "channel"), [("cxyz", None), ("yzx", 1)])
@pytest.mark.parametrize("absolute", [False, True])
def test_points_of_boxes_are_read_as_boxes(volume, axes, channel, absolute, data):
    """So come the points of transposed and sliced arrays."""
    array = whole(axes, absolute, channel)
    ndim = data.draw(st.integers(array.ndim, array.ndim + 1))
    order = data.draw(st.permutations(range(ndim)))[: array.ndim]
    lines = [data.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=6) | st.just(range(n // 2, n))) for n in array.shape]
    index = [np.array(line).reshape([-1 if n == axis else 1 for n in range(ndim)]) for axis, line in zip(order, lines, strict=True)]
    if data.draw(st.booleans()):
        index = list(np.broadcast_arrays(*index))
    with mock.patch.object(selection, "sample_points", side_effect=AssertionError("point by point")):
        found = read_points(reader_of(volume, axes, (0, 0, 0) if absolute else None, channel), index)
    np.testing.assert_array_equal(found, array[tuple(index)])


@given(data=st.data())
def test_any_points_equal_numpy(volume, data):
    """Also those that are nearly a box."""
    shape = data.draw(st.sampled_from([(2, 2), (2, 3, 1), (3,)]))
    index = []
    for n in ARRAY[0].shape:
        part = tuple(data.draw(st.sampled_from([size, 1])) for size in shape)
        places = data.draw(st.lists(st.integers(0, 2) | st.integers(-n, n - 1), min_size=int(np.prod(part)), max_size=int(np.prod(part))))
        index.append(np.array(places, np.int64).reshape(part))
    np.testing.assert_array_equal(read_points(reader_of(volume, "xyz", channel=0), index), ARRAY[0][tuple(index)])


@pytest.mark.parametrize("item", [np.array([50]), np.array([-51]), 50])
def test_outside_is_an_error(volume, item):
    with pytest.raises(IndexError, match=r"out of (bounds|range)"):
        read_orthogonal(reader_of(volume, "xyz", channel=0), (item, 0, np.array([0])))


def test_far_places_read_only_their_chunks(volume):
    """Steps longer than a chunk, and arrays, do not read what lies between."""
    reads = store_of("selection").reads
    reads.clear()
    read_orthogonal(reader_of(volume, "xyz", channel=0), (slice(None, None, 40), slice(0, 1), np.array([22, 0])))
    spans = 2 * 1 * 2
    assert len(reads) == spans


def test_what_is_read_at_once_is_bounded(volume, monkeypatch):
    seen = []
    monkeypatch.setattr(selection, "_CELL", 16)
    reader = reader_of(volume, "xyz", channel=0)
    original = type(reader).__getitem__
    monkeypatch.setattr(type(reader), "__getitem__", lambda self, index: seen.append(index) or original(self, index))
    read_orthogonal(reader, (slice(None, None, 2),) * 3)
    assert seen
    assert all(item.stop - item.start <= 16 for index in seen for item in index)
    borders = {(item.start + start) // 16 == (item.stop - 1 + start) // 16 for index in seen for item, start in zip(index, TOPLEFT, strict=True)}
    assert borders == {True}
