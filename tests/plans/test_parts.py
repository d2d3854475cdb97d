"""Parts of arrays in any chunks: they lie on the grids, and the bytes that they touch equal a
brute-force count."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.plans.chunks import plan_parts

LENGTHS = st.lists(st.integers(1, 24), min_size=1, max_size=4)


def touched_voxels(lengths, box, shape):
    """Count the voxels of the chunks that each part touches, voxel by voxel along each axis."""
    most = 0
    owners = [np.repeat(np.arange(len(axis)), axis) for axis in lengths]
    for part in cells(box, shape):
        inside = cell_box(part, shape, box).intersection(box)
        total = 1
        for axis, owner, low, first, last in zip(
            lengths, owners, box.topleft, inside.topleft, inside.bottomright, strict=True
        ):
            total *= sum(axis[n] for n in np.unique(owner[first - low : last - low]))
        most = max(most, total)
    return most


@given(
    st.tuples(LENGTHS, LENGTHS, LENGTHS),
    st.tuples(*[st.integers(0, 50)] * 3),
    st.sampled_from([(32, 32, 32), (12, 20, 24)]),
    st.sampled_from([1 << 8, 1 << 12, 1 << 20]),
)
def test_parts(lengths, topleft, shard, nbytes):
    box = BoundingBox(topleft, tuple(map(sum, lengths)))
    plan = plan_parts(lengths, box, (4, 4, 4), shard, 2, nbytes)
    assert all(edge % n == 0 and n % 4 == 0 for edge, n in zip(shard, plan.part_shape, strict=True))
    assert plan.part_shape == (4, 4, 4) or math.prod(plan.part_shape) * 2 <= nbytes
    assert plan.touched_nbytes == 2 * touched_voxels(lengths, box, plan.part_shape)
    least = 2 * touched_voxels(lengths, box, (4, 4, 4))
    assert plan.touched_nbytes <= max(least, nbytes)


def test_cubes_for_cubes():
    box = BoundingBox((0, 0, 0), (1024, 1024, 1024))
    assert (
        plan_parts([[512] * 2] * 3, box, (32,) * 3, (1024,) * 3, 1, 128 << 20).part_shape
        == (512,) * 3
    )


def test_an_empty_array_touches_nothing():
    assert (
        plan_parts(
            [[0], [4], [4]], BoundingBox((0, 0, 0), (0, 4, 4)), (4,) * 3, (8,) * 3, 1, 1 << 20
        ).touched_nbytes
        == 0
    )
