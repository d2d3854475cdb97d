"""Regions, readings and bricks of an import: a verifier of what every plan must hold, and a few
plans known by heart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import vectors

from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.plans.regions import Tiling
from wkwdask.plans.slabs import READING_NBYTES, plan_slabs


@st.composite
def cases(draw):
    """Boxes at any place, pieces that are whole sections, strips, rods or odd boxes, and files that
    hold one block or many.

    Voxels of many bytes make sections too large for memory, without large boxes.
    """
    box = BoundingBox(draw(vectors(0, 300)), draw(vectors(1, 150)))
    block = draw(st.sampled_from([4, 8, 16]))
    file_len = draw(st.sampled_from([1, 2, 4, 32]))
    section = (box.size[0], box.size[1], 1)
    piece = draw(
        st.sampled_from(
            [
                section,
                (box.size[0], 1, 1),
                (1, 1, box.size[2]),
                (17, 40, 1),
                (64, 64, 64),
                (5000, 5000, 1),
            ]
        )
    )
    tiling = Tiling(
        (block,) * 3, (block * file_len,) * 3, draw(st.sampled_from([1, 8, 1 << 15, 1 << 18]))
    )
    return (
        plan_slabs(
            box,
            (section, piece) if draw(st.booleans()) else (piece,),
            tiling,
            draw(st.sampled_from([1, 2, 100])),
        ),
        block,
        block * file_len,
    )


@given(cases())
def test_every_voxel_once(case):
    """Regions, their readings and the bricks of these cover the box, each voxel once."""
    plan, _, _ = case
    seen = np.zeros(plan.box.size, np.int8)
    for region in cells(plan.box, plan.region_shape):
        for reading in plan.readings(region):
            for index in plan.bricks(reading):
                brick = cell_box(index, plan.brick_shape, plan.box).intersection(plan.box)
                assert plan.reading_box(reading).contains(brick)
                assert plan.region_box(region).contains(brick)
                seen[
                    tuple(
                        slice(a - t, b - t)
                        for a, b, t in zip(
                            brick.topleft, brick.bottomright, plan.box.topleft, strict=True
                        )
                    )
                ] += 1
    assert (seen == 1).all()


@given(cases())
def test_whole_files_come_in_their_order(case):
    plan, block, file_vx = case
    if not plan.contains_whole_shards((file_vx,) * 3):
        assert all(n <= m for n, m in zip(plan.brick_shape, (file_vx,) * 3, strict=True))
        return
    assert all(n % file_vx == 0 for n in plan.region_shape)
    for region in cells(plan.box, plan.region_shape):
        bricks = [brick for reading in plan.readings(region) for brick in plan.bricks(reading)]
        corners = np.array(bricks) * plan.brick_shape
        files = [tuple(corner) for corner in (corners // file_vx).tolist()]
        changes = [n for n in range(1, len(files)) if files[n] != files[n - 1]]
        assert len(changes) + 1 == len(set(files))
        for start, stop in zip([0, *changes], [*changes, len(files)], strict=True):
            codes = morton.encode(corners[start:stop] % file_vx // block)
            assert (np.diff(codes.astype(np.int64)) > 0).all()


@given(cases())
def test_shapes(case):
    """All lie on grids of each other and of the files."""
    plan, block, file_vx = case
    for inner, outer in (
        ((block,) * 3, plan.brick_shape),
        (plan.brick_shape, plan.reading_shape),
        (plan.reading_shape, plan.region_shape),
    ):
        assert all(n % m == 0 for n, m in zip(outer, inner, strict=True))
    assert all(a % file_vx == 0 or file_vx % a == 0 for a in plan.region_shape)


@pytest.mark.parametrize(
    ("box", "pieces", "voxel_nbytes", "workers", "region", "reading"),
    [
        # sections: a slab as deep as a block, so that each is decoded once
        (
            ((0, 0, 0), (5000, 3000, 200)),
            [(5000, 3000, 1)],
            1,
            4,
            (8192, 4096, 32),
            (8192, 4096, 32),
        ),
        # that lie across a border of the grid: the next grid that does not cut them
        (((1000, 0, 0), (100, 100, 64)), [(100, 100, 1)], 1, 2, (2048, 128, 32), (2048, 128, 32)),
        # too large to be held: read in strips, but a task still has whole sections
        (
            ((0, 0, 0), (20000, 20000, 320)),
            [(20000, 20000, 1)],
            1,
            4,
            (32768, 32768, 32),
            (32768, 512, 32),
        ),
        # too large, but of tiles: tasks need no whole sections
        (
            ((0, 0, 0), (20000, 20000, 320)),
            [(20000, 20000, 1), (256, 256, 1)],
            1,
            4,
            (1024, 1024, 1024),
            (512, 512, 64),
        ),
    ],
)
def test_known_plans(box, pieces, voxel_nbytes, workers, region, reading):
    plan = plan_slabs(
        BoundingBox(*box), pieces, Tiling((32,) * 3, (1024,) * 3, voxel_nbytes), workers
    )
    assert (plan.region_shape, plan.reading_shape) == (region, reading)


@given(vectors(1, 60_000), st.sampled_from([1, 2, 4, 12]))
def test_memory(size, voxel_nbytes):
    box = BoundingBox((77, 3, 5), size)
    plan = plan_slabs(box, [(size[0], size[1], 1)], Tiling((32,) * 3, (1024,) * 3, voxel_nbytes), 4)
    largest = (
        math.prod(min(n, m) for n, m in zip(plan.reading_shape, size, strict=True)) * voxel_nbytes
    )
    assert largest <= max(READING_NBYTES, 32 * 32 * size[0] * voxel_nbytes)
    if size[0] * size[1] * 32 * voxel_nbytes <= READING_NBYTES:
        assert [len(r) for r in cell_range(box, plan.reading_shape)][:2] == [1, 1]
    assert [len(r) for r in cell_range(box, plan.region_shape)][:2] == [1, 1]


def test_shapes_of_an_earlier_start():
    first = plan_slabs(
        BoundingBox((0, 0, 0), (500, 500, 500)),
        [(64, 64, 64)],
        Tiling((32,) * 3, (128,) * 3, 1),
        100,
    )
    again = plan_slabs(
        BoundingBox((0, 0, 0), (500, 500, 500)),
        [(64, 64, 64)],
        Tiling((32,) * 3, (128,) * 3, 1),
        1,
        (first.region_shape, first.reading_shape),
    )
    assert again == first
