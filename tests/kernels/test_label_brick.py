"""Components of one brick are those of scipy, and those that touch an open side have the first
ids."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.references import assert_same_components, of_labels

from wkwdask.kernels.labels.components import label_brick


@settings(max_examples=60)
@given(
    st.tuples(*[st.integers(1, 9)] * 3),
    st.integers(1, 4),
    st.sampled_from([6, 18, 26]),
    st.sampled_from(["u1", "u2", "i4", "u8", "?"]),
    st.integers(0, 99),
)
def test_a_brick(shape, num_labels, connectivity, dtype, seed):
    random = np.random.default_rng(seed)
    voxels = random.integers(0, num_labels + 1, shape).astype(dtype)
    is_open = random.random((3, 2)) < 0.5
    labels, num_touching, sizes = label_brick(voxels, connectivity, is_open)
    assert_same_components(labels, of_labels(voxels, connectivity))
    np.testing.assert_array_equal(sizes, np.bincount(labels.ravel(), minlength=1)[1:])
    on_open = [
        labels.take(-side, axis) for axis in range(3) for side in (0, 1) if is_open[axis, side]
    ]
    touching = (
        np.unique(np.concatenate([face.ravel() for face in on_open])) if on_open else np.zeros(0)
    )
    np.testing.assert_array_equal(touching[touching > 0], np.arange(1, num_touching + 1))
