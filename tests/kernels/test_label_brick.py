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
    st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9)),
    st.integers(1, 4),
    st.sampled_from([6, 18, 26]),
    st.sampled_from(["u1", "u2", "i4", "u8", "?"]),
    st.integers(0, 99),
)
def test_a_brick(shape, num_labels, connectivity, dtype, seed):
    random = np.random.default_rng(seed)
    voxels = random.integers(0, num_labels + 1, shape).astype(dtype)
    is_open = random.random((3, 2)) < 0.5
    runs, values, sizes = label_brick(voxels, connectivity, is_open)
    lookup = np.arange(len(sizes) + 1, dtype=np.uint32)
    corner = tuple(random.integers(0, 3, 3).tolist())
    out = np.full(np.add(shape, 3), 7, np.uint32, order="F")
    inside = tuple(slice(a, a + n) for a, n in zip(corner, shape, strict=True))
    out[inside] = 0
    runs.paint(lookup, out, corner)
    labels = out[inside].copy()
    out[inside] = 7
    assert (out == 7).all()
    assert_same_components(labels, of_labels(voxels, connectivity))
    np.testing.assert_array_equal(sizes, np.bincount(labels.ravel(), minlength=1)[1:])
    on_open = [
        labels.take(-side, axis) for axis in range(3) for side in (0, 1) if is_open[axis, side]
    ]
    touching = (
        np.unique(np.concatenate([face.ravel() for face in on_open])) if on_open else np.zeros(0)
    )
    np.testing.assert_array_equal(touching[touching > 0], np.arange(1, len(values) + 1))
    for label, value in enumerate(values.astype(dtype), 1):
        assert (voxels[labels == label] == value).all()
    for axis in range(3):
        for side in (0, 1):
            face = runs.face(axis, side, lookup)
            expected = labels.take(-side, axis).T
            if face is None:
                assert not expected.any()
            else:
                np.testing.assert_array_equal(face, expected)
