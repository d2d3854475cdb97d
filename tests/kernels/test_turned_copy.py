"""Copies between memory orders: numpy's own copy is what the loops are held against."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import voxel_array

from wkwdask.kernels.arrays import copy_into

DTYPES = ("uint8", "int16", "float32", "uint64")


@st.composite
def _copies(draw):
    """Arrays of sides around the length of a tile, some of one voxel, in memory of any order of
    axes, as parts of larger ones."""
    shape = draw(st.tuples(st.integers(1, 3), *[st.sampled_from([1, 2, 7, 8, 9, 31, 65])] * 3))
    dtype = draw(st.sampled_from(DTYPES))

    def array():
        order = draw(st.permutations(range(4)))
        step = draw(st.integers(1, 2))
        memory = np.zeros([shape[axis] * step for axis in order], dtype).transpose(
            np.argsort(order)
        )
        return memory[tuple(slice(None, None, step) for _ in shape)]

    source, out = array(), array()
    source[...] = voxel_array(dtype, shape, draw(st.integers(0, 99)), "noise")
    return source, out


@given(_copies())
def test_equals_a_copy(arrays):
    source, out = arrays
    copy_into(source, out)
    np.testing.assert_array_equal(out.view(f"u{out.itemsize}"), source.view(f"u{out.itemsize}"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large(dtype):
    array = voxel_array(dtype, (2, 70, 33, 41), 1, "noise")
    array = np.where(array == array, array, 0).astype(dtype)
    for order in "FC":
        out = np.full(array.shape, 1, dtype, order="C" if order == "F" else "F")
        copy_into(np.asarray(array, order=order), out)
        np.testing.assert_array_equal(out, array)


def test_what_no_loop_copies():
    """Another type, another byte order, backward strides: numpy does them."""
    array = np.arange(2 * 20**3, dtype=np.uint16).reshape(2, 20, 20, 20)
    for source in (array.astype("<u4"), array.astype(">u2"), array[:, ::-1, :, ::-1]):
        out = np.empty(array.shape, np.uint16, order="F")
        copy_into(source, out)
        np.testing.assert_array_equal(out, source)
    complex_ = np.asfortranarray(array.astype(np.complex128))
    out = np.empty(array.shape, np.complex128)
    copy_into(complex_, out)
    np.testing.assert_array_equal(out, array)


def test_only_its_place_is_written():
    memory = np.full((1, 40, 40, 40), 9, np.uint8)
    copy_into(np.asfortranarray(np.zeros((1, 20, 21, 22), np.uint8)), memory[:, 3:23, 4:25, 5:27])
    expected = np.full((1, 40, 40, 40), 9, np.uint8)
    expected[:, 3:23, 4:25, 5:27] = 0
    np.testing.assert_array_equal(memory, expected)
