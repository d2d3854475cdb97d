"""Enlarged voxels are those of ``numpy.repeat``, whatever the strides of what is enlarged."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import DTYPE_NAMES, VOXEL_KINDS, vectors, voxel_array

from wkwdask.kernels.window.reduce import repeat_voxels


@given(
    st.sampled_from(DTYPE_NAMES),
    st.integers(1, 3),
    vectors(0, 5),
    st.tuples(*[st.sampled_from([1, 2, 3, 8])] * 3),
    st.sampled_from(VOXEL_KINDS),
    st.permutations(range(4)),
    st.integers(0, 99),
)
def test_repeat(dtype, channels, shape, repeats, kind, order, seed):
    planes = voxel_array(dtype, (channels, *shape), seed, kind)
    expected = planes
    for axis, times in zip((3, 2, 1), repeats, strict=True):
        expected = np.repeat(expected, times, axis=axis)
    # the same voxels, other strides
    planes = np.ascontiguousarray(planes.transpose(order)).transpose(np.argsort(order))
    out = np.empty_like(expected, order="C")
    repeat_voxels(planes, repeats, out)
    assert out.tobytes() == expected.tobytes()  # NaN too
