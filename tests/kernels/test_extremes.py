"""Least and greatest values, beside numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wkwdask.kernels.arrays import extremes

DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]


@given(st.data(), st.sampled_from(DTYPES), st.permutations(range(4)))
def test_integers_in_any_memory_order(data, dtype, order):
    """Whole arrays and parts of them, with extremes at any place, of any sign."""
    shape = data.draw(st.tuples(st.integers(1, 2), *[st.integers(1, 30)] * 3))
    info = np.iinfo(dtype)
    memory = np.random.default_rng(0).integers(
        info.min // 2, info.max // 2, [shape[axis] for axis in order], dtype
    )
    array = memory.transpose(np.argsort(order))
    for value in data.draw(st.lists(hnp.from_dtype(np.dtype(dtype)), max_size=2)):
        array[tuple(data.draw(st.integers(0, n - 1)) for n in shape)] = value
    part = array[
        tuple(
            slice(data.draw(st.integers(0, n // 3)), None, data.draw(st.sampled_from([1, 1, 2])))
            for n in shape
        )
    ]
    assert extremes(part) == (int(part.min()), int(part.max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_ends_of_a_type(dtype):
    array = np.full((1, 32, 32, 32), 5, dtype, order="F")
    assert extremes(array) == (5, 5)
    array[0, 3, 4, 5], array[0, 31, 31, 31] = np.iinfo(dtype).min, np.iinfo(dtype).max
    assert extremes(array) == (np.iinfo(dtype).min, np.iinfo(dtype).max)
    assert [type(value) for value in extremes(array)] == [int, int]


def test_backward_and_foreign_memory():
    array = np.arange(8192, dtype=np.int32).reshape(1, 16, 32, 16) - 5
    assert extremes(array[:, ::-1]) == extremes(array.astype(">i4")) == (-5, 8186)


def test_nan_is_passed_over():
    array = np.full((1, 4, 4, 4), np.nan, np.float32)
    assert np.isnan(extremes(array)).all()
    array[0, 0, 0, 0] = -2.5
    assert extremes(array) == (-2.5, -2.5)
