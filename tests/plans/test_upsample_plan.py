"""Regions, readings and bricks of an upsampling: a verifier of what every plan must hold, and a few
plans known by heart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import mags, vectors

from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.geometry.mag import Mag
from wkwdask.plans.regions import Tiling
from wkwdask.plans.upsample import plan_upsampling

BUDGET = 32 << 20  # bytes of a brick, unless one chunk takes more


class Case:
    """A plan and what it was made from."""

    def __init__(self, layer_box, mag, source, chunk, shard, voxel_nbytes, workers):
        self.source_box, self.chunk, self.shard, self.voxel_nbytes = (
            layer_box.in_mag(source),
            chunk,
            shard,
            voxel_nbytes,
        )
        tiling = Tiling(chunk, shard, voxel_nbytes)
        self.unit = tiling.unit_shape
        self.plan = plan_upsampling(layer_box.in_mag(mag), source, tiling, workers)

    def __repr__(self):
        return (
            f"Case({self.plan}, {self.source_box}, {self.chunk}, {self.shard}, {self.voxel_nbytes})"
        )

    def some_regions(self):
        """The first and the last region, and one between them."""
        ranges = cell_range(self.plan.box, self.plan.region_shape)
        return {
            tuple(r[0] for r in ranges),
            tuple(r[-1] for r in ranges),
            tuple(r[len(r) // 2] for r in ranges),
        }


@st.composite
def cases(draw):
    """Plans of few or many regions, for boxes that touch no grid, and any mixture of factors.

    A factor of 256 or 1024 is more than the smallest region or brick, so that one voxel of the
    source is cut. Chunks have other lengths along each axis as often as not. Voxels of 255 bytes
    are drawn because a single chunk is then already more than the budget; many workers, because
    they cut regions below a file.
    """
    mag = draw(mags(4))
    source = Mag(
        *(
            n * f
            for n, f in zip(
                mag.factors,
                draw(st.tuples(*[st.sampled_from([1, 2, 4, 16, 256, 1024])] * 3)),
                strict=True,
            )
        )
    )
    chunk = (draw(st.sampled_from([1, 2, 8, 32, 128])),) * 3
    if draw(st.booleans()):
        chunk = draw(st.tuples(*[st.sampled_from([1, 4, 16, 64])] * 3))
    times = (draw(st.sampled_from([1, 2, 4, 16, 32])),) * 3
    if draw(st.booleans()):
        times = draw(st.tuples(*[st.sampled_from([1, 2, 3, 5, 6, 12, 31])] * 3))
    box = BoundingBox(draw(vectors(0, 5000)), draw(st.one_of(vectors(1, 3000), vectors(1, 40))))
    shard = tuple(n * m for n, m in zip(chunk, times, strict=True))
    return Case(
        box,
        mag,
        source,
        chunk,
        shard,
        draw(st.sampled_from([1, 2, 8, 255])),
        draw(st.sampled_from([1, 2, 16, 1000])),
    )


@given(cases())
def test_shapes(case):
    """Bricks are whole units, readings whole bricks, regions whole readings; powers of two, so
    that all lie on grids of each other."""
    plan = case.plan
    for inner, outer in (
        (case.unit, plan.brick_shape),
        (plan.brick_shape, plan.reading_shape),
        (plan.reading_shape, plan.region_shape),
    ):
        assert len({n // m for n, m in zip(outer, inner, strict=True)}) == 1
        assert all(n % m == 0 for n, m in zip(outer, inner, strict=True))
    counts = [b // n for b, n in zip(case.shard, case.unit, strict=True)]
    if all(n & (n - 1) == 0 for n in counts):  # else the unit is too large
        pairs = zip(plan.region_shape, case.shard, strict=True)
        assert all(a % b == 0 or b % a == 0 for a, b in pairs)


@given(cases())
def test_memory(case):
    plan = case.plan
    least = math.prod(case.unit) * case.voxel_nbytes
    assert math.prod(plan.brick_shape) * case.voxel_nbytes <= max(BUDGET, least)
    for region in case.some_regions():
        for reading in list(plan.readings(region))[:20]:
            share = plan.source_box_of(plan.reading_box(reading))
            assert share.volume * case.voxel_nbytes <= max(BUDGET, least)
            assert (
                share.volume + math.prod(plan.brick_shape)
            ) * case.voxel_nbytes <= plan.memory_nbytes(case.voxel_nbytes)


def _is_in_morton_order(indices):
    codes = morton.encode(indices).astype(int).tolist()
    return codes == sorted(codes)


@given(cases())
def test_bricks_of_a_region(case):
    """Together the bricks of all readings hold each voxel of a region once; they come in Morton
    order, and none lies outside the box."""
    plan = case.plan
    for region in case.some_regions():
        if (
            math.prod(r // b for r, b in zip(plan.region_shape, plan.brick_shape, strict=True))
            > 4096
        ):
            continue
        readings = list(plan.readings(region))
        bricks = [brick for reading in readings for brick in plan.bricks(reading)]
        assert len(set(bricks)) == len(bricks)
        assert _is_in_morton_order(bricks)
        inside = [
            cell_box(brick, plan.brick_shape, plan.box).intersection(plan.region_box(region))
            for brick in bricks
        ]
        assert not any(box.is_empty for box in inside)
        assert sum(box.volume for box in inside) == plan.region_box(region).volume
        for reading in readings:
            boxes = [
                cell_box(brick, plan.brick_shape, plan.box).intersection(plan.box)
                for brick in plan.bricks(reading)
            ]
            assert all(plan.reading_box(reading).contains(box) for box in boxes)


def _few(ranges, limit=1000):
    return math.prod(len(axis) for axis in ranges) <= limit


@given(cases(), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.02, 0.5, 1.0]))
def test_occupied_regions(case, seed, share):
    """A region has data where a cell of the source that it is made from has, by brute force."""
    plan = case.plan
    cell_ranges, ranges = (
        cell_range(case.source_box, plan.source_cell_shape),
        cell_range(plan.box, plan.region_shape),
    )
    if not _few(cell_ranges) or not _few(ranges):
        return
    cells_with_data = np.random.default_rng(seed).random([len(r) for r in cell_ranges]) < share
    occupied = plan.occupied(cells_with_data)
    assert occupied.shape == tuple(len(r) for r in ranges)
    for region in cells(plan.box, plan.region_shape):
        touched = cell_range(plan.source_box_of(plan.region_box(region)), plan.source_cell_shape)
        slices = tuple(
            slice(t.start - r.start, t.stop - r.start)
            for t, r in zip(touched, cell_ranges, strict=True)
        )
        assert (
            occupied[tuple(i - r.start for i, r in zip(region, ranges, strict=True))]
            == cells_with_data[slices].any()
        )
    assert (
        sum(plan.region_box(region).volume for region in plan.regions(np.ones_like(occupied)))
        == plan.box.volume
    )


@given(cases())
def test_source_of_all_regions(case):
    plan = case.plan
    assert plan.source_box_of(plan.box) == case.source_box
    for region in case.some_regions():
        assert case.source_box.contains(plan.source_box_of(plan.region_box(region)))


@given(cases(), st.integers(1, 1000))
def test_the_region_of_an_earlier_planning_is_kept(case, workers):
    plan = case.plan
    again = plan_upsampling(
        plan.box,
        plan.source_mag,
        Tiling(case.chunk, case.shard, case.voxel_nbytes),
        workers,
        plan.region_shape,
    )
    assert again == plan


def test_one_file_is_a_task():
    """The usual case: 1024^3 files, LZ4 blocks of 32, from mag 4."""
    plan = plan_upsampling(
        BoundingBox((0, 0, 0), (4096, 4096, 4096)),
        Mag.parse(4),
        Tiling((32,) * 3, (1024,) * 3, 1),
        1,
    )
    assert plan.region_shape == (1024,) * 3
    assert plan.contains_whole_shards((1024,) * 3)
    assert plan.source_cell_shape == (256,) * 3
    assert plan.brick_shape == (128,) * 3
    assert plan.reading_shape == (512,) * 3  # 2 MiB of the source
    assert len(list(plan.readings((3, 3, 3)))) == 8
    assert next(plan.readings((3, 3, 3))) == (6, 6, 6)


@pytest.mark.parametrize(
    ("source_chunk", "reading"),
    [
        ((64, 64, 64), 128),  # 8 MiB hold two of them along each axis
        ((100, 100, 100), 128),
        ((256, 256, 16), 256),
        ((300, 300, 300), 512),  # as large as memory allows
        ((2048, 2048, 64), 512),
    ],
)
def test_readings_hold_chunks_of_the_source(source_chunk, reading):
    """Large ones would be decoded for each reading that touches them."""
    plan = plan_upsampling(
        BoundingBox((0, 0, 0), (4096, 4096, 4096)),
        Mag.parse(1),
        Tiling((32,) * 3, (1024,) * 3, 1),
        1,
        source_chunk=source_chunk,
    )
    assert (plan.brick_shape, plan.reading_shape) == ((128,) * 3, (reading,) * 3)


def test_a_layer_of_one_file_is_cut_for_its_workers():
    plan = plan_upsampling(
        BoundingBox((0, 0, 0), (1000, 900, 800)),
        Mag.parse("4-4-1"),
        Tiling((32,) * 3, (1024,) * 3, 1),
        16,
    )
    assert plan.region_shape == (256,) * 3
    assert not plan.contains_whole_shards((1024,) * 3)
    assert plan.regions_in_shard((0, 0, 0), (1024,) * 3) == (slice(0, 4),) * 3


def test_a_voxel_that_spans_regions():
    """From mag 1024 with regions of 512: one voxel of the source for two of them along each
    axis."""
    plan = plan_upsampling(
        BoundingBox((512, 0, 0), (2048, 512, 512)),
        Mag.parse(1024),
        Tiling((32,) * 3, (32,) * 3, 1),
        1,
    )
    assert plan.region_shape == (512,) * 3
    assert plan.source_cell_shape == (1, 1, 1)
    assert plan.occupied(np.array([True, False, True]).reshape(3, 1, 1)).ravel().tolist() == [
        True,
        False,
        False,
        True,
    ]


def test_a_source_that_is_not_coarser():
    with pytest.raises(ValueError, match="mag 2-2-1 is not coarser than mag 2 on every axis"):
        plan_upsampling(
            BoundingBox((0, 0, 0), (9, 9, 9), Mag.parse(2)),
            Mag.parse("2-2-1"),
            Tiling((32,) * 3, (32,) * 3, 1),
            1,
        )
