"""Tables of labels say what numpy says of the whole array."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import vectors, voxel_array

from wkwdask.kernels.labels.layout import COUNT, HIGH, LOW, SUM, UPPER_SUM
from wkwdask.kernels.labels.tables import LabelTable, has_exact_sums
from wkwdask.kernels.labels.values import count_values, counted_values

LABEL_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
VALUE_DTYPES = (*LABEL_DTYPES, "float32", "float64")


def tabulate_labels(labels, values=None, topleft=(0, 0, 0), *, ignore_zero=True):
    """Gather what an array says of its labels."""
    table = LabelTable(
        labels.dtype,
        *(() if values is None else (values.dtype, len(values))),
        ignore_zero=ignore_zero,
    )
    table.add(labels, topleft, values)
    return table.rows().sorted()


def make_labels(dtype, shape, seed, kind):
    """Draw runs of labels from the limits of the type, or from few or very many labels."""
    rng = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    choices = np.array([0, 1, 2, limits.max, limits.min, limits.max // 2], dtype)
    if kind == "noise":
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    labels = rng.choice(choices, shape)
    if kind == "runs":
        labels = np.repeat(labels, 1 + seed % 20, axis=0)[: shape[0]]
    return labels


def expected_rows(labels, values, topleft, *, ignore_zero):
    """Look at each label by itself."""
    for label in np.unique(labels):
        if label == 0 and ignore_zero:
            continue
        where = np.argwhere(labels == label) + topleft
        inside = None if values is None else values[:, labels == label]
        yield label, where, inside


def check_rows(rows, labels, values, topleft, *, ignore_zero):
    expected = list(expected_rows(labels, values, topleft, ignore_zero=ignore_zero))
    assert rows.labels.dtype == labels.dtype
    assert rows.labels.tolist() == [label for label, _, _ in expected]
    for n, (_, where, inside) in enumerate(expected):
        place = rows.extents[n]
        assert place[COUNT] == len(where)
        assert place[LOW : LOW + 3].tolist() == where.min(axis=0).tolist()
        assert place[HIGH : HIGH + 3].tolist() == (where.max(axis=0) + 1).tolist()
        assert [
            (int(b) << 32) + int(a)
            for a, b in zip(place[SUM : SUM + 3], place[UPPER_SUM : UPPER_SUM + 3], strict=True)
        ] == where.sum(axis=0).tolist()
        if values is not None:
            check_values(rows.totals[:, n], rows.extremes[:, n], inside)


def check_values(totals, extremes, inside):
    np.testing.assert_array_equal(
        extremes, np.stack([inside.min(axis=1), inside.max(axis=1)], axis=1)
    )
    for total, numbers in zip(totals.tolist(), inside, strict=True):
        if has_exact_sums(inside.dtype):
            assert (total[1] << 32) + total[0] == sum(numbers.tolist())
            assert (total[3] << 32) + total[2] == sum(n * n for n in numbers.tolist())
        else:
            with np.errstate(all="ignore"):
                numbers = numbers.astype(np.float64)
                assert total[0] == len(numbers)
                scale = float(np.abs(numbers).max())
                np.testing.assert_allclose(
                    total[1],
                    numbers.sum(),
                    rtol=1e-12,
                    atol=1e-12 * scale * len(numbers) if np.isfinite(scale) else 0,
                )
                np.testing.assert_allclose(
                    total[2],
                    ((numbers - numbers.mean()) ** 2).sum(),
                    rtol=1e-9,
                    atol=1e-12 * scale**2 if np.isfinite(scale) else 0,
                )


@given(
    st.sampled_from(LABEL_DTYPES),
    st.one_of(st.none(), st.sampled_from(VALUE_DTYPES)),
    vectors(1, 14),
    st.sampled_from(["runs", "few", "noise"]),
    st.sampled_from(["few", "noise", "extremes"]),
    st.sampled_from(["F", "C"]),
    vectors(-50, 1 << 30),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_one_box(
    dtype, value_dtype, shape, kind, value_kind, order, topleft, ignore_zero, channels, seed
):
    labels = np.asarray(make_labels(dtype, shape, seed, kind), order=order)
    values = (
        None
        if value_dtype is None
        else np.asarray(voxel_array(value_dtype, (channels, *shape), seed, value_kind), order=order)
    )
    rows = tabulate_labels(labels, values, topleft, ignore_zero=ignore_zero)
    check_rows(rows, labels, values, topleft, ignore_zero=ignore_zero)


@given(
    st.sampled_from(LABEL_DTYPES),
    st.one_of(st.none(), st.sampled_from(VALUE_DTYPES)),
    st.lists(st.integers(0, 30), max_size=6),
    st.sampled_from(["runs", "few", "noise"]),
    st.sampled_from(["few", "noise", "extremes"]),
    st.integers(0, 2**32 - 1),
)
def test_parts_that_are_merged_are_the_whole(dtype, value_dtype, cuts, kind, value_kind, seed):
    """Half of the parts go into one table, the others are merged into it; boxes without voxels are
    parts too."""
    shape, corner = (30, 5, 4), (1 << 20, 7, -3)
    labels = make_labels(dtype, shape, seed, kind)
    values = (
        None if value_dtype is None else voxel_array(value_dtype, (2, *shape), seed, value_kind)
    )
    of_values = () if values is None else (values.dtype, 2)
    table = LabelTable(labels.dtype, *of_values, ignore_zero=False)
    borders = [0, *sorted(cuts), 30]
    for n, (start, stop) in enumerate(pairwise(borders)):
        part = LabelTable(labels.dtype, *of_values, ignore_zero=False) if n % 2 else table
        part.add(
            labels[start:stop],
            (corner[0] + start, *corner[1:]),
            None if values is None else values[:, start:stop],
        )
        if n % 2:
            table.merge(part.rows())
    check_rows(table.rows().sorted(), labels, values, corner, ignore_zero=False)


def test_more_labels_than_there_is_room_for():
    labels = (
        np.random.default_rng(0)
        .permutation(np.arange(40**3, dtype=np.uint64) << np.uint64(40))
        .reshape(40, 40, 40)
    )
    rows = tabulate_labels(labels, ignore_zero=False)
    np.testing.assert_array_equal(rows.labels, np.sort(labels, axis=None))
    assert (rows.counts == 1).all()
    table = LabelTable(labels.dtype, np.dtype(np.uint8), 1, ignore_zero=False)
    for _ in range(2):
        table.merge(
            tabulate_labels(labels, np.ones((1, *labels.shape), np.uint8), ignore_zero=False)
        )
    rows = table.rows().sorted()
    assert (rows.counts == 2).all()
    assert (rows.totals[0, :, 0] == 2).all()
    assert len(rows.labels) == 40**3


def test_sums_beyond_64_bits_are_exact():
    """A petavoxel of one label: the tables of its parts, merged, have sums that no 64 bits hold."""
    part = tabulate_labels(
        np.ones((64, 1, 1), np.uint32),
        np.full((1, 64, 1, 1), -(1 << 15), np.int16),
        ((1 << 31) - 64, 0, 0),
    )
    (place,), ((total,),) = part.extents, part.totals
    table, times = LabelTable(np.dtype(np.uint32), np.dtype(np.int16), 1), 0
    for doublings in range(0, 44, 4):  # as if 2^n such boxes had been added
        count = 1 << doublings
        exact = [
            (int(b) << 32) + int(a)
            for a, b in ((place[SUM], place[UPPER_SUM]), total[:2], total[2:])
        ]
        extents, totals = part.extents.copy(), part.totals.copy()
        extents[0, COUNT] = 64 * count
        extents[0, SUM], extents[0, UPPER_SUM] = (
            exact[0] * count & 0xFFFFFFFF,
            exact[0] * count >> 32,
        )
        for n, value in enumerate(exact[1:]):
            totals[0, 0, 2 * n : 2 * n + 2] = value * count & 0xFFFFFFFF, value * count >> 32
        table.merge(part._replace(extents=extents, totals=totals))
        times += count
    rows = table.rows()
    assert (
        (int(rows.extents[0, UPPER_SUM]) << 32) + int(rows.extents[0, SUM])
        == times * sum(range((1 << 31) - 64, 1 << 31))
        > 1 << 64
    )
    assert (int(rows.totals[0, 0, 1]) << 32) + int(rows.totals[0, 0, 0]) == -times * 64 << 15
    assert (
        (int(rows.totals[0, 0, 3]) << 32) + int(rows.totals[0, 0, 2]) == times * 64 << 30 > 1 << 64
    )
    np.testing.assert_allclose(rows.sums()[0, 0] / rows.counts[0], (1 << 31) - 32.5, rtol=1e-15)


def test_shapes_and_types_are_checked():
    table = LabelTable(np.dtype(np.uint32), np.dtype(np.uint8), 1)
    with pytest.raises(
        ValueError,
        match=(
            r"values \(dtype\('uint8'\), \(1, 2, 2, 3\)\); expected uint32 in three dimensions and "
            r".*\(1, 2, 2, 2\)"
        ),
    ):
        table.add(np.ones((2, 2, 2), np.uint32), (0, 0, 0), np.ones((1, 2, 2, 3), np.uint8))
    with pytest.raises(ValueError, match=r"labels are int32"):
        table.add(np.ones((2, 2, 2), np.int32), (0, 0, 0), np.ones((1, 2, 2, 2), np.uint8))


@given(
    st.sampled_from(["uint8", "int8", "uint16", "int16"]),
    st.integers(0, 70),
    st.integers(1, 3),
    st.sampled_from(["few", "noise", "extremes"]),
    st.integers(0, 99),
)
def test_counted_values(dtype, number, stride, kind, seed):
    values = voxel_array(dtype, (number * stride,), seed, kind)[::stride]
    ids, counts = np.unique(values, return_counts=True)
    found = count_values(values)
    np.testing.assert_array_equal(counted_values(values.dtype)[found > 0], ids)
    np.testing.assert_array_equal(found[found > 0], counts)
