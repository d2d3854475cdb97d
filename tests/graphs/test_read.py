"""Volumes as dask arrays: any index equals numpy, slices limit what is read, and graphs have one
task per chunk."""

from __future__ import annotations

import pickle
import warnings
from unittest import mock

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory_volume import make_volume, store_of

from wkwdask import BoundingBox
from wkwdask.graphs import selection
from wkwdask.graphs.read import BoxReader, box_reader, open_array
from wkwdask.graphs.selection import read_orthogonal, read_points

TOPLEFT = (21, 3, 9)
SHAPE = (2, 50, 37, 23)


def from_0(box):
    return BoundingBox((0, 0, 0), box.bottomright)


@pytest.fixture(scope="module")
def array():
    return np.random.default_rng(1).integers(1, 1000, SHAPE, dtype=np.uint16)


@pytest.fixture(scope="module")
def volume(array):
    return make_volume("read", array, TOPLEFT)


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


def reader(volume, **options):
    return BoxReader(
        **{
            "volume": volume,
            "extent": volume.box,
            "box": volume.box,
            "axes": "cxyz",
            "channel": None,
            **options,
        }
    )


def opened(volume, **options):
    return open_array(
        volume,
        **{
            "chunks": "auto",
            "box": volume.box,
            "extent": volume.box,
            "axes": None,
            "channel": None,
            **options,
        },
    )


INDICES = (
    (slice(None),) * 4,
    (0, 1, 2, 3),
    (-1, -1, -1, -1),
    (slice(1, 2), slice(3, 40, 7), slice(None), 5),
    (1, slice(40, 3, -3), slice(None, None, -1), slice(-5, None)),
    (slice(None), slice(10, 10), slice(None), slice(None)),
    (slice(None), slice(30, 10), 4, slice(None)),
    (slice(None), slice(1000, 2000), slice(-1000, 5), slice(2, 1000, 50)),
    (slice(None), [1, 5, 1], slice(None), slice(None)),
    (slice(None), slice(None), np.array([-1, 0]), 3),
    (Ellipsis, 4),
    3 % 2,
    slice(1),
    (slice(None), slice(None), None, slice(None), slice(None)),
    (np.int64(1), slice(np.int64(2), np.int64(9)), 4, slice(None)),
)


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_reader_equals_numpy(volume, array, index):
    np.testing.assert_array_equal(reader(volume)[index], array[index])


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_dask_equals_numpy(volume, array, index):
    result = opened(volume, chunks=(16, 8, 8))[index]
    assert result.shape == array[index].shape
    np.testing.assert_array_equal(result.compute(), array[index])


def test_reader_raises_the_index_errors_of_numpy(volume):
    with pytest.raises(IndexError):
        reader(volume)[2, 0, 0, 0]
    with pytest.raises(IndexError):
        reader(volume)[0, 0, 0, 0, 0]


one_axis = st.one_of(st.integers(-60, 59), st.slices(60))


@given(index=st.tuples(one_axis, one_axis, one_axis))
def test_any_basic_index(index):
    array = np.arange(60 * 7 * 60, dtype=np.uint32).reshape(1, 60, 7, 60) + 1
    volume = make_volume("any-index", array, (5, 6, 7))
    try:
        expected = array[0, index[0], index[1], index[2]]
    except IndexError:
        with pytest.raises(IndexError):
            reader(volume, axes="xyz", channel=0)[index]
        return
    np.testing.assert_array_equal(reader(volume, axes="xyz", channel=0)[index], expected)


@pytest.mark.parametrize("axes", ["cxyz", "czyx", "zyxc", "xcyz"])
def test_axes(volume, array, axes):
    expected = array.transpose(["cxyz".index(axis) for axis in axes])
    result = opened(volume, axes=axes)
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.compute(), expected)
    np.testing.assert_array_equal(
        reader(volume, axes=axes)[1:, 1, ::2, ::-1], expected[1:, 1, ::2, ::-1]
    )


@pytest.mark.parametrize("axes", [None, "xyz", "zyx", "yxz"])
@pytest.mark.parametrize("channel", [0, 1, -1])
def test_one_channel(volume, array, axes, channel):
    expected = array[channel].transpose(["xyz".index(axis) for axis in axes or "xyz"])
    np.testing.assert_array_equal(opened(volume, axes=axes, channel=channel).compute(), expected)


def test_invalid_axes_and_channels_are_refused(volume):
    for options in (
        {"axes": "xyz"},
        {"axes": "cxy"},
        {"axes": "cxyz", "channel": 0},
        {"axes": "xxyz"},
        {"axes": ""},
    ):
        with pytest.raises(ValueError, match="axes must be an order of"):
            opened(volume, **options)
    for channel in (2, -3):
        with pytest.raises((IndexError, ValueError), match="channel"):
            opened(volume, channel=channel)


def test_chunks_are_c_contiguous(volume):
    for axes in ("cxyz", "czyx"):
        for index in ((slice(None),) * 4, (slice(None), slice(1, 9), 0, slice(None))):
            assert reader(volume, axes=axes)[index].flags.c_contiguous


# ----------------------------------------------------------------------------- chunks


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ("file", ((2,), (11, 32, 7), (29, 8), (7, 16))),
        ("block", ((2,), (3, *[8] * 5, 7), (5, *[8] * 4), (3, *[4] * 5))),
        (10**9, ((2,), (50,), (37,), (23,))),
        ((10, 100, 23), ((2,), (9, 10, 10, 10, 10, 1), (37,), (14, 9))),
        # 8 * 8 * 4 voxels of 4 bytes are 1 KiB
        ("2kiB", ((2,), (3, *[8] * 5, 7), (5, *[8] * 4), (3, *[4] * 5))),
        ("8KiB", ((2,), (11, *[16] * 2, 7), (13, 16, 8), (7, 8, 8))),
        ("1GiB", ((2,), (11, 32, 7), (29, 8), (7, 16))),
        ("1B", ((2,), (3, *[8] * 5, 7), (5, *[8] * 4), (3, *[4] * 5))),
    ],
)
def test_chunk_policies(volume, chunks, expected):
    assert opened(volume, chunks=chunks).chunks == expected


def test_auto_follows_dask(volume):
    with dask.config.set({"array.chunk-size": "8KiB"}):
        assert opened(volume).chunks == opened(volume, chunks="8KiB").chunks
    assert opened(volume).chunks == opened(volume, chunks="file").chunks


def test_one_channel_has_larger_chunks(volume):  # both channels of a shard take 64 KiB
    assert (
        opened(volume, chunks="32KiB", channel=0).chunks == opened(volume, chunks="file").chunks[1:]
    )
    assert opened(volume, chunks="32KiB").chunks == opened(volume, chunks="8KiB").chunks


@pytest.mark.parametrize(
    "chunks",
    [
        "blocks",
        "12 apples",
        *(0, -1, 1.5, None),
        *((1, 2), (1, 2, 0), (1, 2, 3, 4), (1.5, 2, 3), ("auto", 5, 5)),
    ],
)
def test_invalid_chunks_are_refused(volume, chunks):
    with pytest.raises(ValueError, match=r"chunks .*got"):
        opened(volume, chunks=chunks)


def test_absolute_origin(volume, array):
    result = opened(volume, extent=from_0(volume.box), chunks=(16, 16, 16))
    assert result.shape == (2, *(a + n for a, n in zip(TOPLEFT, SHAPE[1:], strict=True)))
    assert result.chunks[1] == (16, 16, 16, 16, 7)
    expected = np.zeros(result.shape, np.uint16)
    expected[:, 21:, 3:, 9:] = array
    np.testing.assert_array_equal(result.compute(), expected)
    np.testing.assert_array_equal(result[:, 15:30, ::-2, 8].compute(), expected[:, 15:30, ::-2, 8])
    store_of("read").reads.clear()
    assert not result[:, :16, :16].compute().any()
    assert not store_of("read").reads


def test_larger_extent_than_the_box(volume, array):
    extent = BoundingBox((20, 0, 12), (60, 45, 30))
    result = opened(volume, extent=extent, chunks=(16, 16, 16))
    assert result.chunks[1] == (12, 16, 16, 16)
    expected = np.zeros(result.shape, np.uint16)
    expected[:, 1:51, 3:40, :20] = array[..., 3:]
    np.testing.assert_array_equal(result.compute(), expected)
    np.testing.assert_array_equal(dask.compute(result)[0], expected)
    elsewhere = opened(volume, extent=BoundingBox((100, 100, 100), (9, 9, 9)))
    assert not elsewhere.compute().any()


def test_voxels_before_the_box_are_one_chunk():
    volume = make_volume("far", np.ones((1, 8, 8, 4), np.uint8), (80_000, 80_000, 40_000))
    result = opened(volume, extent=from_0(volume.box))
    assert result.numblocks == (1, 2, 2, 2)
    assert result[0, 80_007, 80_000, 40_003].compute() == 1


def test_crop(volume, array):
    box = BoundingBox((30, 10, 12), (11, 20, 8))
    cropped = opened(volume, box=box, extent=box, chunks="block")
    np.testing.assert_array_equal(cropped.compute(), array[:, 9:20, 7:27, 3:11])
    absolute = opened(volume, box=box, extent=from_0(box))
    assert absolute.shape == (2, 41, 30, 20)
    np.testing.assert_array_equal(absolute[:, 30:, 10:, 12:].compute(), array[:, 9:20, 7:27, 3:11])
    assert not absolute[:, :30].any().compute()  # stored voxels outside the crop read as zero


@pytest.mark.parametrize("size", [(0, 5, 5), (5, 0, 5), (0, 0, 0)])
def test_empty_box(volume, size):
    box = BoundingBox((30, 10, 12), size)
    result = opened(volume, box=box, extent=box)
    assert result.shape == (2, *size)
    assert result.compute().shape == (2, *size)


def test_many_chunks_warn():
    volume = make_volume("large", np.ones((1, 1, 1, 1), np.uint8), (0, 0, 0))
    for edge, warns in ((200_000, False), (200_001, True)):
        large = type(volume)(volume.store, "uint8", 1, BoundingBox((0, 0, 0), (edge * 8, 1, 1)))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opened(large, chunks="block")
        assert len(caught) == warns
    assert "200001 chunks of (8, 1, 1) voxels" in str(caught[0].message)
    assert 'chunks="file"' in str(caught[0].message)


# ----------------------------------------------------------------------------- reads


def reads_of(array):
    """Compute an array by its tasks, and return the boxes that were read."""
    store = store_of("read")
    store.reads.clear()
    dask.compute(array)
    return list(store.reads)


def test_slice_of_a_large_chunk_reads_one_layer_of_blocks(volume):
    whole = opened(volume, chunks=10**6)
    assert whole.npartitions == 1
    reads = reads_of(whole[1, :, :, 7])
    assert reads == [(BoundingBox((21, 3, 16), (50, 37, 1)), 1, 1)]
    assert volume.chunks_touched() == 7 * 5
    reads = reads_of(whole[:, 4:6, 1:3, 20:22])
    assert reads == [(BoundingBox((25, 4, 29), (2, 2, 2)), 0, 2)]


def test_slice_of_many_chunks_reads_the_selected_voxels(volume):
    reads = reads_of(opened(volume, chunks="block")[:, :, :, 7])
    assert {box.size[2] for box, _, _ in reads} == {1}
    assert sum(box.volume for box, _, _ in reads) == 50 * 37
    assert len(reads) == 7 * 5


def test_one_channel_is_read_alone(volume):
    assert {(first, count) for _, first, count in reads_of(opened(volume, channel=1))} == {(1, 1)}


def test_each_voxel_is_read_once(volume):
    for chunks in ("block", "file", (9, 10, 11)):
        assert (
            sum(box.volume for box, _, _ in reads_of(opened(volume, chunks=chunks))) == 50 * 37 * 23
        )


def num_tasks(array):
    """Count the tasks that run after optimization; an alias of another task runs nothing."""
    (optimized,) = dask.optimize(array)
    return sum(type(task).__name__ != "Alias" for task in dict(optimized.__dask_graph__()).values())


def test_one_task_per_chunk(volume):
    array = opened(volume, chunks="block")
    assert array.npartitions == 7 * 5 * 6
    assert num_tasks(array) == array.npartitions
    # a slice adds no task: it is fused into the read
    sliced = array[0, :, :, 7]
    assert sliced.npartitions == 7 * 5
    assert num_tasks(sliced) == sliced.npartitions
    assert num_tasks(array[:, 2:30, :9, 1] + 1) == 5 * 2


def test_names_are_stable_and_distinct(volume):
    names = {
        opened(volume, **options).name
        for options in (
            {},
            {"chunks": "block"},
            {"channel": 0},
            {"axes": "czyx"},
            {"extent": from_0(volume.box)},
        )
    }
    assert len(names) == 5
    assert opened(volume).name == opened(volume).name
    assert opened(volume).name.startswith("wkwdask-")


def test_pickle(volume, array):
    original = reader(volume, axes="czyx")
    again = pickle.loads(pickle.dumps(original))
    assert again == original
    assert len(pickle.dumps(original)) < 2000
    np.testing.assert_array_equal(again[:, 3, 4], array.transpose(0, 3, 2, 1)[:, 3, 4])
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(opened(volume)))[0, 1].compute(), array[0, 1]
    )


def test_other_process_reads_a_folder(tmp_path, array):
    volume = make_volume(str(tmp_path / "store"), array, TOPLEFT)
    with dask.config.set(scheduler="processes", num_workers=1):
        np.testing.assert_array_equal(
            opened(volume, chunks="file")[:, 3:40].compute(), array[:, 3:40]
        )


# ----------------------------------------------------------------------------- orthogonal and
# pointwise indices


ARRAY = np.random.default_rng(1).integers(1, 1000, SHAPE, dtype=np.uint16)


def reader_of(volume, axes="cxyz", extent=None, channel=None):
    return box_reader(volume, volume.box, extent or volume.box, axes, channel)


def whole(axes, absolute, channel=None):
    array = np.pad(ARRAY, [(0, 0), *((n, 0) for n in TOPLEFT)]) if absolute else ARRAY
    array = array if channel is None else array[channel]
    return array.transpose([("cxyz" if channel is None else "xyz").index(axis) for axis in axes])


def items(length):
    places = st.integers(-length, length - 1)
    return st.one_of(
        places,
        st.builds(
            slice,
            st.none() | places,
            st.none() | places,
            st.none() | st.integers(1, 12) | st.integers(-12, -1),
        ),
        st.lists(places, max_size=8).map(lambda found: np.array(found, np.int64)),
    )


def expected_of(array, index):
    """Apply one index per axis, each for itself, last first: an int removes its axis."""
    for axis in reversed(range(array.ndim)):
        array = array[(slice(None),) * axis + (index[axis],)]
    return array


@given(data=st.data())
@pytest.mark.parametrize(
    ("axes", "channel", "absolute"), [("cxyz", None, True), ("zcyx", None, False), ("yzx", 1, True)]
)
def test_orthogonal_indices_equal_numpy(volume, axes, channel, absolute, data):
    array = whole(axes, absolute, channel)
    index = tuple(data.draw(items(n)) for n in array.shape)
    with mock.patch.object(selection, "_CELL_VX", data.draw(st.sampled_from([8, 16, 256]))):
        found = read_orthogonal(
            reader_of(volume, axes, from_0(volume.box) if absolute else None, channel), index
        )
    np.testing.assert_array_equal(found, expected_of(array, index))
    assert found.dtype == array.dtype


@given(data=st.data())
@pytest.mark.parametrize(
    ("axes", "channel", "absolute"), [("cxyz", None, True), ("zcyx", None, False), ("yzx", 1, True)]
)
def test_points_equal_numpy(volume, axes, channel, absolute, data):
    array = whole(axes, absolute, channel)
    shape = data.draw(st.sampled_from([(5,), (1,), (2, 3), (0,)]))
    is_sliced = [data.draw(st.booleans()) for _ in array.shape]
    is_sliced[data.draw(st.integers(0, array.ndim - 1))] = False  # at least one array
    index = []
    for n, sliced in zip(array.shape, is_sliced, strict=True):
        if sliced:
            index.append(
                slice(data.draw(st.integers(0, n - 1)), None, data.draw(st.integers(5, 20)))
            )
        else:
            places = data.draw(
                st.lists(
                    st.integers(-n, n - 1),
                    min_size=int(np.prod(shape)),
                    max_size=int(np.prod(shape)),
                )
            )
            index.append(np.array(places, np.int64).reshape(shape))
    with mock.patch.object(selection, "_POINTS", data.draw(st.sampled_from([1, 7, 1 << 21]))):
        found = read_points(
            reader_of(volume, axes, from_0(volume.box) if absolute else None, channel), index
        )
    # numpy keeps sliced axes in place where the arrays are neighbours; all arrays first is the rule
    # here
    moved = array.transpose(
        [
            *(n for n, sliced in enumerate(is_sliced) if not sliced),
            *(n for n, sliced in enumerate(is_sliced) if sliced),
        ]
    )
    order = [item for item, sliced in zip(index, is_sliced, strict=True) if not sliced] + [
        item for item in index if isinstance(item, slice)
    ]
    np.testing.assert_array_equal(found, moved[tuple(order)])


def test_arrays_of_points_are_broadcast(volume):
    x, y = np.array([[3], [7]]), np.array([[1, 5, 30]])
    found = read_points(reader_of(volume, "xyz", channel=0), [x, y, np.array([[4]])])
    np.testing.assert_array_equal(found, ARRAY[0][x, y, 4])


@given(data=st.data())
@pytest.mark.parametrize(("axes", "channel", "absolute"), [("cxyz", None, False), ("yzx", 1, True)])
def test_points_that_form_a_box_are_read_as_a_box(volume, axes, channel, absolute, data):
    """Transposed and sliced arrays ask for such points."""
    array = whole(axes, absolute, channel)
    ndim = data.draw(st.integers(array.ndim, array.ndim + 1))
    order = data.draw(st.permutations(range(ndim)))[: array.ndim]
    lines = [
        data.draw(
            st.lists(st.integers(-n, n - 1), min_size=1, max_size=6) | st.just(range(n // 2, n))
        )
        for n in array.shape
    ]
    index = [
        np.array(line).reshape([-1 if n == axis else 1 for n in range(ndim)])
        for axis, line in zip(order, lines, strict=True)
    ]
    if data.draw(st.booleans()):
        index = list(np.broadcast_arrays(*index))
    with mock.patch.object(
        selection, "sample_points", side_effect=AssertionError("point by point")
    ):
        found = read_points(
            reader_of(volume, axes, from_0(volume.box) if absolute else None, channel), index
        )
    np.testing.assert_array_equal(found, array[tuple(index)])


@given(data=st.data())
def test_any_points_equal_numpy(volume, data):
    """Some examples are nearly a box."""
    shape = data.draw(st.sampled_from([(2, 2), (2, 3, 1), (3,)]))
    index = []
    for n in ARRAY[0].shape:
        part = tuple(data.draw(st.sampled_from([size, 1])) for size in shape)
        places = data.draw(
            st.lists(
                st.integers(0, 2) | st.integers(-n, n - 1),
                min_size=int(np.prod(part)),
                max_size=int(np.prod(part)),
            )
        )
        index.append(np.array(places, np.int64).reshape(part))
    np.testing.assert_array_equal(
        read_points(reader_of(volume, "xyz", channel=0), index), ARRAY[0][tuple(index)]
    )


@pytest.mark.parametrize("item", [np.array([50]), np.array([-51]), 50])
def test_index_outside_is_an_error(volume, item):
    with pytest.raises(IndexError, match=r"out of (bounds|range)"):
        read_orthogonal(reader_of(volume, "xyz", channel=0), (item, 0, np.array([0])))


def test_distant_indices_read_only_their_chunks(volume):
    reads = store_of("read").reads
    reads.clear()
    read_orthogonal(
        reader_of(volume, "xyz", channel=0), (slice(None, None, 40), slice(0, 1), np.array([22, 0]))
    )
    spans = 2 * 1 * 2
    assert len(reads) == spans


def test_each_read_is_bounded(volume, monkeypatch):
    seen = []
    monkeypatch.setattr(selection, "_CELL_VX", 16)
    reader = reader_of(volume, "xyz", channel=0)
    original = type(reader).__getitem__
    monkeypatch.setattr(
        type(reader), "__getitem__", lambda self, index: seen.append(index) or original(self, index)
    )
    read_orthogonal(reader, (slice(None, None, 2),) * 3)
    assert seen
    assert all(item.stop - item.start <= 16 for index in seen for item in index)
    borders = {
        (item.start + start) // 16 == (item.stop - 1 + start) // 16
        for index in seen
        for item, start in zip(index, TOPLEFT, strict=True)
    }
    assert borders == {True}
