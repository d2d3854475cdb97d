"""Passes, regions and bricks: a verifier of what every plan must hold, and a few plans known by heart."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import vectors

from wkwdask.errors import UnsupportedError
from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.geometry.mag import Mag
from wkwdask.plans.pyramid import check_steps, plan_pass

STEPS = [(2, 2, 2), (2, 2, 1), (2, 1, 1), (1, 1, 2), (1, 2, 2)]
BRICK_BUDGET = 32 << 20  # source bytes of a brick, unless two chunks an edge take more


def _ladder(finest, steps):
    mags = [finest]
    for step in steps:
        mags.append(Mag(*(a * b for a, b in zip(mags[-1].factors, step, strict=True))))
    return mags


@st.composite
def plans(draw):
    """Plans of few or many regions, for boxes that touch no grid, chunks of one to 128 voxels, and any mixture of steps.

    Voxels of 255 bytes are drawn because two chunks an edge are then already more than the budget; many workers, because they cut regions below a file.
    """
    mags = _ladder(Mag.parse("1"), draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=6)))
    chunk = draw(st.sampled_from([1, 2, 8, 32, 128]))
    shard = chunk * draw(st.sampled_from([1, 2, 4, 16, 32]))
    box = BoundingBox(draw(vectors(0, 5000)), draw(vectors(1, 3000)))
    voxel_nbytes = draw(st.sampled_from([1, 2, 4, 8, 255]))
    workers = draw(st.sampled_from([1, 2, 16, 1000]))
    plan = plan_pass(box.in_mag(mags[0]), mags[1:], box, (chunk,) * 3, (shard,) * 3, voxel_nbytes, workers)
    return plan, mags, box, chunk, shard, voxel_nbytes, workers


@given(plans())
def test_levels(case):
    """The levels are the first of the mags; boxes, factors and shapes of one level follow from those of the level before."""
    plan, mags, box, chunk, _, voxel_nbytes, _ = case
    assert 1 <= len(plan.levels) <= len(mags) - 1
    finer = None
    for level, before, mag in zip(plan.levels, mags, mags[1:], strict=False):
        assert level.box == box.in_mag(mag)
        assert level.factor == before.step_to(mag)
        for n in (*level.region_shape, *level.brick_shape):
            assert n % chunk == 0  # whole chunks
            assert n >= chunk
        assert all(r % b == 0 for r, b in zip(level.region_shape, level.brick_shape, strict=True))
        if finer is not None:
            assert all(a == b * f for a, b, f in zip(finer.region_shape, level.region_shape, level.factor, strict=True))
            # a brick of the finer level lies in one brick of this one, and so does each of its windows
            footprint = [b * f for b, f in zip(level.brick_shape, level.factor, strict=True)]
            assert all(n % a == 0 for n, a in zip(footprint, finer.brick_shape, strict=True))
            assert all(a % f == 0 for a, f in zip(finer.brick_shape, level.factor, strict=True))
        finer = level
    first = plan.levels[0]
    source_nbytes = voxel_nbytes * math.prod(first.brick_shape) * math.prod(first.factor)
    smallest = voxel_nbytes * (2 * chunk) ** 3 * math.prod(first.factor)
    assert source_nbytes <= max(BRICK_BUDGET, smallest)


@given(plans())
def test_pass_stops_where_a_share_is_less_than_a_chunk(case):
    plan, mags, _, chunk, _, _, _ = case
    if len(plan.levels) < len(mags) - 1:
        last = plan.levels[-1]
        factor = mags[len(plan.levels)].step_to(mags[len(plan.levels) + 1])
        assert any(n // f < chunk for n, f in zip(last.region_shape, factor, strict=True))


def _few(cells_per_axis, limit=4000):
    return math.prod(len(axis) for axis in cells_per_axis) <= limit


@given(plans())
def test_regions_cover_each_target_voxel_once(case):
    """In every mag: the shares of the regions have the volume of the box, and lie on a grid of their own."""
    plan, _, _, _, _, _, _ = case
    if not _few(cell_range(plan.levels[0].box, plan.levels[0].region_shape)):
        return
    regions = list(plan.regions())
    assert len(regions) == len(set(regions)) == plan.num_regions
    for level in plan.levels:
        shares = [cell_box(region, level.region_shape, level.box).intersection(level.box) for region in regions]
        assert sum(share.volume for share in shares) == level.box.volume


@given(plans())
def test_every_shard_has_its_parts(case):
    """The regions that touch a shard are those that its join waits for; a level that is written whole has one region per shard."""
    plan, _, _, _, shard, _, _ = case
    if not _few(cell_range(plan.levels[0].box, plan.levels[0].region_shape), 500):
        return
    for number, level in enumerate(plan.levels):
        if not _few(cell_range(level.box, (shard,) * 3), 500):
            continue
        parts = Counter()
        for region in plan.regions():
            share = cell_box(region, level.region_shape, level.box).intersection(level.box)
            parts.update(cells(share, (shard,) * 3))
        assert dict(parts) == {index: plan.num_parts(number, index, (shard,) * 3) for index in cells(level.box, (shard,) * 3)}
        if plan.writes_whole(number, (shard,) * 3):
            assert level.in_order
            assert set(parts.values()) == {1}


def _codes(bricks):
    return morton.encode(bricks).astype(int).tolist()


@given(plans())
def test_bricks(case):
    """The bricks of a region hold each of its voxels once, in Morton order, and none lies outside the box."""
    plan, _, _, _, _, _, _ = case
    first = plan.levels[0]
    counts = [r // b for r, b in zip(first.region_shape, first.brick_shape, strict=True)]
    ranges = cell_range(first.box, first.region_shape)
    if math.prod(counts) > 4096:
        return
    for region in {(xs[0], ys[-1], zs[0]) for xs, ys, zs in [ranges]} | {tuple(axis[-1] for axis in ranges)}:
        share = cell_box(region, first.region_shape, first.box).intersection(first.box)
        bricks = list(plan.bricks(region))
        inside = [cell_box(brick, first.brick_shape, first.box).intersection(share) for brick in bricks]
        assert all(not box.is_empty for box in inside)
        assert sum(box.volume for box in inside) == share.volume
        assert len(set(bricks)) == len(bricks)
        low = [n * c for n, c in zip(region, counts, strict=True)]
        codes = _codes([[b - a for a, b in zip(low, brick, strict=True)] for brick in bricks])
        assert codes == sorted(codes)


@given(plans())
def test_levels_in_order_get_their_bricks_in_morton_order(case):
    """A parent goes out with its last child; where the plan says so, that keeps the order of Morton in the parents' mag too."""
    plan, _, _, _, _, _, _ = case
    first = plan.levels[0]
    if math.prod(r // b for r, b in zip(first.region_shape, first.brick_shape, strict=True)) > 4096:
        return
    region = tuple(axis[0] for axis in cell_range(first.box, first.region_shape))
    order = list(plan.bricks(region))
    for finer, level in zip(plan.levels, plan.levels[1:], strict=False):
        last_child = {}
        for at, brick in enumerate(order):
            parent = tuple(b * n // (f * m) for b, n, f, m in zip(brick, finer.brick_shape, level.factor, level.brick_shape, strict=True))
            last_child[parent] = at
        order = sorted(last_child, key=last_child.get)
        if level.in_order:
            codes = _codes(order)
            assert codes == sorted(codes)


def test_one_file_of_the_first_coarser_mag_is_a_task():
    """The usual case: 1024^3 files, LZ4 blocks of 32, isotropic steps."""
    box = BoundingBox((0, 0, 0), (4096, 4096, 4096))
    mags = [Mag.parse(2), Mag.parse(4), Mag.parse(8)]
    plan = plan_pass(box, mags, box, (32,) * 3, (1024,) * 3, 1, 1)
    assert [level.region_shape for level in plan.levels] == [(1024,) * 3, (512,) * 3, (256,) * 3]
    assert plan.num_regions == 8
    assert [plan.writes_whole(n, (1024,) * 3) for n in range(3)] == [True, False, False]
    assert [plan.num_parts(n, (0, 0, 0), (1024,) * 3) for n in range(3)] == [1, 8, 8]


def test_more_workers_make_smaller_regions():
    box = BoundingBox((0, 0, 0), (2048, 2048, 2048))
    shapes = [plan_pass(box, [Mag.parse(2)], box, (32,) * 3, (1024,) * 3, 1, workers).levels[0].region_shape[0] for workers in (1, 2, 20, 10_000)]
    assert shapes == sorted(shapes, reverse=True)
    assert shapes[0] == 1024
    assert shapes[-1] == 128  # no smaller: a task would be too short


def test_anisotropic_steps_are_not_in_order():
    box = BoundingBox((0, 0, 0), (4096, 4096, 4096))
    mags = _ladder(Mag.parse(1), [(2, 2, 1), (2, 2, 1), (2, 2, 2)])
    plan = plan_pass(box, mags[1:], box, (32,) * 3, (128,) * 3, 1, 1)
    assert [level.in_order for level in plan.levels] == [True, False, False]  # once lost, the order does not come back


def test_check_steps():
    assert check_steps(Mag.parse(1), _ladder(Mag.parse(1), STEPS)[1:]) == STEPS
    with pytest.raises(UnsupportedError, match=r"the step to mag 8-8-4 has the factors \(4, 4, 4\); only 1 and 2 are supported on each axis"):
        check_steps(Mag.parse(1), [Mag.parse("2-2-1"), Mag.parse("8-8-4")])
    with pytest.raises(ValueError, match="mag 2-2-1 is not coarser than mag 2 on every axis"):
        check_steps(Mag.parse(2), [Mag.parse("2-2-1")])


def test_first_bricks_by_heart():
    box = BoundingBox((0, 0, 0), (256, 256, 128))
    plan = plan_pass(box, [Mag.parse(2)], box, (32,) * 3, (128,) * 3, 255, 1)  # 255 bytes a voxel: bricks of two chunks
    assert plan.levels[0].brick_shape == (64, 64, 64)
    assert list(plan.bricks((0, 0, 0))) == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
