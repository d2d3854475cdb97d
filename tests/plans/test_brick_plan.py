"""Bricks and regions of functions: every voxel lies in one brick, and every brick in one region."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wkwdask import BoundingBox
from wkwdask.plans.apply import plan_bricks
from wkwdask.plans.regions import Tiling


@given(
    st.tuples(*[st.integers(1, 150)] * 3),
    st.tuples(*[st.integers(0, 100)] * 3),
    st.integers(1, 8),
    st.sampled_from([(64, 64, 64), (24, 48, 40)]),
    st.sampled_from([None, (16, 16, 16), (64, 8, 32), (24, 56, 8)]),
)
def test_plans_cover_every_voxel_once(shape, offset, workers, shard, brick):
    box = BoundingBox(offset, shape)
    plan = plan_bricks(box, Tiling((8, 8, 8), shard, 1 << 14), workers, brick)
    seen = np.zeros(shape, np.uint8)
    everywhere = np.ones([len(r) for r in plan.region_range()], bool)
    for region in plan.regions(everywhere):
        for index in plan.bricks(region):
            part = plan.brick_box(index)
            assert plan.region_box(region).contains(part)
            seen[
                tuple(
                    slice(a - o, b - o)
                    for a, b, o in zip(part.topleft, part.bottomright, offset, strict=True)
                )
            ] += 1
    assert (seen == 1).all()
