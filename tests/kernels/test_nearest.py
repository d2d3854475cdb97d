"""The two nearest of some points, and the demo dataset that is made of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.kernels.nearest_compiled import find_two_nearest
from wkwdask.viewer.demo import make_image, make_labels


@given(
    shape=st.tuples(*[st.integers(1, 20)] * 3),
    num_centers=st.integers(1, 40),
    step=st.sampled_from([0.0, 0.01, 0.3, 5.0]),
    noise=st.sampled_from([0.0, 0.05, 3.0]),
    seed=st.integers(0, 99),
)
def test_all_centers_are_compared(shape, num_centers, step, noise, seed):
    """Positions lie on a bent lattice, or anywhere."""
    random = np.random.default_rng(seed)
    positions = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij")) * step
    positions = positions + noise * random.random(positions.shape)
    centers = random.random((3, num_centers)) * 4
    first, second, nearest = np.empty(shape), np.empty(shape), np.empty(shape, np.int64)
    find_two_nearest(positions, centers, first, second, nearest)
    squares = (positions[..., np.newaxis] - centers[:, np.newaxis, np.newaxis, np.newaxis]) ** 2
    squares = squares[0] + squares[1] + squares[2]
    np.testing.assert_array_equal(nearest, squares.argmin(axis=3))
    squares = np.sort(np.append(squares, np.full((*shape, 1), np.inf), axis=3), axis=3)
    np.testing.assert_array_equal(first, squares[..., 0])
    np.testing.assert_array_equal(second, squares[..., 1])


@pytest.mark.parametrize("make", [make_image, make_labels])
def test_a_voxel_of_the_demo_depends_on_its_position_alone(make):
    corner = (40, 100, 20)
    whole = make(corner, (50, 70, 40))
    assert len(np.unique(whole)) > 4
    for low, shape in [((40, 100, 20), (1, 1, 1)), ((61, 120, 33), (29, 17, 9))]:
        at = tuple(
            slice(a - b, a - b + n) for a, b, n in zip(low, (40, 100, 20), shape, strict=True)
        )
        np.testing.assert_array_equal(make(low, shape), whole[at])
