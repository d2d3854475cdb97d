"""Passes, regions and bricks: a verifier of what every plan must hold, and a few plans known by
heart."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.strategies import vectors

from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.geometry.mag import Mag
from wkwdask.plans.pyramid import choose_region, plan_pass, plan_passes, step_factors
from wkwdask.plans.regions import Tiling

STEPS = [(2, 2, 2), (2, 2, 1), (2, 1, 1), (1, 1, 2), (1, 2, 2)]
JUMPS = [(4, 4, 4), (4, 4, 1), (8, 8, 8), (1, 8, 2), (8, 1, 1), (4, 2, 8), (32, 32, 32)]
SOURCE_BUDGET = 32 << 20  # bytes that are read at once, unless one window takes more
TASK_BUDGET = 8 << 30  # bytes that a task reads, unless two chunks an edge take more


def _ladder(finest, steps):
    mags = [finest]
    for step in steps:
        mags.append(Mag(*(a * b for a, b in zip(mags[-1].factors, step, strict=True))))
    return mags


class Case:
    """A plan and what it was made from."""

    def __init__(self, box, mags, chunk, shard, voxel_nbytes, workers):
        self.box, self.mags, self.chunk, self.shard, self.voxel_nbytes, self.workers = (
            box,
            mags,
            chunk,
            shard,
            voxel_nbytes,
            workers,
        )
        tiling = Tiling(chunk, shard, voxel_nbytes)
        self.unit = tiling.unit_shape
        self.passes = plan_passes(box.in_mag(mags[0]), mags[1:], [tiling] * len(mags), workers)

    def __repr__(self):
        return (
            f"Case({self.box}, {[mag.name for mag in self.mags]}, {self.chunk}, {self.shard}, "
            f"{self.voxel_nbytes}, {self.workers})"
        )

    def levels(self):
        """Go through all mags: pass, index in the pass, level."""
        return [
            (plan, number, level)
            for plan in self.passes
            for number, level in enumerate(plan.levels)
        ]


@st.composite
def cases(draw):
    """Plans of few or many regions, for boxes that touch no grid, chunks of one to 128 voxels, also
    of lengths that are no powers of two, and any steps.

    Chunks and shards have other lengths along each axis as often as not, which is where mixed-up
    axes show. Shards of other than powers of two of chunks are made from larger units, or from
    chunks if units are too large. Voxels of 255 bytes are drawn because a brick of the smallest
    kind is then already more than the budget; many workers, because they cut regions below a file.
    """
    mags = _ladder(
        Mag.parse("1"), draw(st.lists(st.sampled_from(STEPS + JUMPS), min_size=1, max_size=6))
    )
    chunk = (draw(st.sampled_from([1, 2, 8, 24, 32, 100, 128])),) * 3
    if draw(st.booleans()):
        chunk = draw(st.tuples(*[st.sampled_from([1, 4, 10, 16, 64])] * 3))
    times = (draw(st.sampled_from([1, 2, 4, 16, 32])),) * 3
    if draw(st.booleans()):
        times = draw(st.tuples(*[st.sampled_from([1, 2, 3, 5, 6, 12, 31])] * 3))
    box = BoundingBox(draw(vectors(0, 5000)), draw(st.one_of(vectors(1, 3000), vectors(1, 40))))
    return Case(
        box,
        mags,
        chunk,
        tuple(n * m for n, m in zip(chunk, times, strict=True)),
        draw(st.sampled_from([1, 2, 4, 8, 255])),
        draw(st.sampled_from([1, 2, 16, 1000])),
    )


@given(cases())
def test_levels(case):
    """Together the levels of all passes are the mags; boxes, factors and shapes of one level follow
    from those of the level before."""
    assert [level.box for _, _, level in case.levels()] == [
        case.box.in_mag(mag) for mag in case.mags[1:]
    ]
    assert [level.factor for _, _, level in case.levels()] == [
        before.step_to(mag) for before, mag in pairwise(case.mags)
    ]
    assert [plan.source_box for plan in case.passes] == [
        case.box.in_mag(case.mags[0]),
        *(plan.levels[-1].box for plan in case.passes[:-1]),
    ]
    for plan in case.passes:
        assert plan.source_region_shape == tuple(
            n * f for n, f in zip(plan.levels[0].region_shape, plan.levels[0].factor, strict=True)
        )
        for level in plan.levels:
            assert all(
                n % chunk == 0
                for n, chunk in zip(
                    (*level.region_shape, *level.brick_shape), case.chunk * 2, strict=True
                )
            )
            odd = [n // (n & -n) for n in case.unit * 2]  # shapes are units times powers of two
            assert all(
                n > 0 and n // (n & -n) == part
                for n, part in zip((*level.region_shape, *level.brick_shape), odd, strict=True)
            )
            assert all(
                r % b == 0 for r, b in zip(level.region_shape, level.brick_shape, strict=True)
            )
        for finer, level in pairwise(plan.levels):
            assert all(
                a == b * f
                for a, b, f in zip(
                    finer.region_shape, level.region_shape, level.factor, strict=True
                )
            )
            # a brick of the finer level lies in one brick of this one, and so does each of its
            # windows
            footprint = [b * f for b, f in zip(level.brick_shape, level.factor, strict=True)]
            assert all(n % a == 0 for n, a in zip(footprint, finer.brick_shape, strict=True))
            assert all(a % f == 0 for a, f in zip(finer.brick_shape, level.factor, strict=True))


@given(cases())
def test_a_pass_stops_where_a_share_is_less_than_a_unit(case):
    done = 0
    for plan in case.passes:
        done += len(plan.levels)
        if done < len(case.mags) - 1:
            factor = case.mags[done].step_to(case.mags[done + 1])
            assert any(
                n // f < edge
                for n, f, edge in zip(plan.levels[-1].region_shape, factor, case.unit, strict=True)
            )


@given(cases())
def test_memory(case):
    # one of another length cannot be halved down to a voxel
    assume(all(n & (n - 1) == 0 for n in case.unit))
    for plan in case.passes:
        first = plan.levels[0]
        window = math.prod(first.factor)
        # whole windows
        assert all(n % f == 0 for n, f in zip(plan.source_brick_shape, first.factor, strict=True))
        # of one brick
        assert all(
            b * f % n == 0
            for b, f, n in zip(
                first.brick_shape, first.factor, plan.source_brick_shape, strict=True
            )
        )
        assert math.prod(plan.source_brick_shape) * case.voxel_nbytes <= max(
            SOURCE_BUDGET, window * case.voxel_nbytes
        )
        least = max(
            [
                1,
                *(
                    -(-f // edge)
                    for level in plan.levels[1:]
                    for f, edge in zip(level.factor, case.unit, strict=True)
                ),
            ]
        )
        least_brick = math.prod(n * least for n in case.unit)
        for level in plan.levels:
            assert math.prod(level.brick_shape) <= max(
                SOURCE_BUDGET // (window * case.voxel_nbytes), least_brick
            )
        bricks = math.prod(plan.source_brick_shape) + 2 * sum(
            math.prod(level.brick_shape) for level in plan.levels
        )
        assert plan.memory_nbytes(case.voxel_nbytes) == bricks * case.voxel_nbytes


def _few(cells_per_axis, limit=3000):
    return math.prod(len(axis) for axis in cells_per_axis) <= limit


def _all_regions(plan):
    first = plan.levels[0]
    return list(cells(first.box, first.region_shape))


@given(cases(), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.02, 0.5, 1.0]))
def test_regions(case, seed, share):
    """The regions are the cells that hold data, each once, in Morton order."""
    for plan in case.passes:
        first = plan.levels[0]
        ranges = cell_range(first.box, first.region_shape)
        if not _few(ranges):
            continue
        occupied = np.random.default_rng(seed).random([len(r) for r in ranges]) < share
        regions = list(plan.regions(occupied))
        assert set(regions) == {
            index
            for index in _all_regions(plan)
            if occupied[tuple(i - r.start for i, r in zip(index, ranges, strict=True))]
        }
        assert len(regions) == occupied.sum()
        codes = _codes(regions)
        assert codes == sorted(codes)


@given(cases(), vectors(0, 2**45), st.integers(0, 2**32 - 1))
def test_regions_far_away(case, shift, seed):
    """The order is that of the same layer near the origin, as long as files lie within a million
    regions of each other."""
    plan = case.passes[0]
    first = plan.levels[0]
    if not _few(cell_range(first.box, first.region_shape)):
        return
    # whole regions, far more than the box has
    shift = [
        n // (edge << 15) * (edge << 15)
        for n, edge in zip(shift, plan.source_region_shape, strict=True)
    ]
    there = replace(
        plan.source_box,
        topleft=tuple(t + n for t, n in zip(plan.source_box.topleft, shift, strict=True)),
    )
    far = plan_passes(
        there,
        case.mags[1:],
        [Tiling(case.chunk, case.shard, case.voxel_nbytes)] * len(case.mags),
        case.workers,
    )[0]
    occupied = (
        np.random.default_rng(seed).random(
            [len(r) for r in cell_range(first.box, first.region_shape)]
        )
        < 0.5
    )
    moved = [n // r for n, r in zip(shift, plan.source_region_shape, strict=True)]
    assert list(far.regions(occupied)) == [
        tuple(i + m for i, m in zip(region, moved, strict=True))
        for region in plan.regions(occupied)
    ]


@given(cases())
def test_regions_cover_each_voxel_once(case):
    """In the source and in every mag: the shares of the regions lie on a grid, and have the volume
    of the box."""
    for plan in case.passes:
        if not _few(cell_range(plan.levels[0].box, plan.levels[0].region_shape)):
            continue
        regions = list(
            plan.regions(
                np.ones(
                    [len(r) for r in cell_range(plan.levels[0].box, plan.levels[0].region_shape)],
                    bool,
                )
            )
        )
        assert (
            sum(plan.source_region(region).volume for region in regions) == plan.source_box.volume
        )
        for level in plan.levels:
            shares = [
                cell_box(region, level.region_shape, level.box).intersection(level.box)
                for region in regions
            ]
            assert sum(share.volume for share in shares) == level.box.volume
            assert not any(share.is_empty for share in shares)


@given(cases(), st.integers(0, 2**32 - 1), st.sampled_from([0.02, 0.5, 1.0]))
def test_every_shard_has_its_regions(case, seed, share):
    """The regions that a join waits for, and the shards that are known to be empty, by brute force
    over all regions."""
    random = np.random.default_rng(seed)
    for plan, number, level in case.levels():
        first = cell_range(plan.levels[0].box, plan.levels[0].region_shape)
        if not _few(first, 500) or not _few(cell_range(level.box, case.shard), 500):
            continue
        occupied = random.random([len(r) for r in first]) < share
        parts, places = Counter(), {}
        for region in _all_regions(plan):
            place = tuple(i - r.start for i, r in zip(region, first, strict=True))
            touched = list(
                cells(
                    cell_box(region, level.region_shape, level.box).intersection(level.box),
                    case.shard,
                )
            )
            for shard in touched:
                places.setdefault(shard, []).append(place)
                parts[shard] += occupied[place]
        found = plan.levels[number].occupied_shards(case.shard, occupied)
        ranges = cell_range(level.box, case.shard)
        assert found.shape == tuple(len(r) for r in ranges)
        for shard in cells(level.box, case.shard):
            slices = plan.levels[number].regions_in_shard(shard, case.shard)
            assert occupied[slices].size == len(places[shard])
            assert occupied[slices].sum() == parts[shard]
            assert found[tuple(i - r.start for i, r in zip(shard, ranges, strict=True))] == (
                parts[shard] > 0
            )
        if plan.writes_whole_shards(number, case.shard):
            assert level.in_order or all(
                n % edge == 0 for n, edge in zip(level.brick_shape, case.shard, strict=True)
            )
            assert {len(regions) for regions in places.values()} == {1}


def _codes(bricks):
    return morton.encode(bricks).astype(int).tolist()


def _num_bricks(plan):
    first = plan.levels[0]
    return math.prod(
        r * f // b
        for r, f, b in zip(first.region_shape, first.factor, plan.source_brick_shape, strict=True)
    )


@given(cases())
def test_bricks(case):
    """The source bricks of a region hold each of its source voxels once; the bricks of the first
    level that they make come in Morton order."""
    for plan in case.passes:
        if _num_bricks(plan) > 4096:
            continue
        first = plan.levels[0]
        ranges = cell_range(first.box, first.region_shape)
        per_brick = [
            b * f // n
            for b, f, n in zip(
                first.brick_shape, first.factor, plan.source_brick_shape, strict=True
            )
        ]
        for region in {(xs[0], ys[-1], zs[0]) for xs, ys, zs in [ranges]} | {
            tuple(axis[-1] for axis in ranges)
        }:
            share = plan.source_region(region)
            bricks = list(plan.bricks(region))
            inside = [
                cell_box(brick, plan.source_brick_shape, plan.source_box).intersection(share)
                for brick in bricks
            ]
            assert all(not box.is_empty for box in inside)
            assert sum(box.volume for box in inside) == share.volume
            assert len(set(bricks)) == len(bricks)
            made = [
                tuple(i // n for i, n in zip(brick, per_brick, strict=True)) for brick in bricks
            ]
            codes = _codes(made)
            assert codes == sorted(codes)


@given(cases())
def test_levels_in_order_get_their_bricks_in_morton_order(case):
    """A parent goes out with its last child; where the plan says so, that keeps the order of Morton
    in the parents' mag too."""
    for plan in case.passes:
        first = plan.levels[0]
        assert first.in_order
        if _num_bricks(plan) > 4096:
            continue
        region = tuple(axis[0] for axis in cell_range(first.box, first.region_shape))
        per_brick = [
            b * f // n
            for b, f, n in zip(
                first.brick_shape, first.factor, plan.source_brick_shape, strict=True
            )
        ]
        order = list(
            dict.fromkeys(
                tuple(i // n for i, n in zip(brick, per_brick, strict=True))
                for brick in plan.bricks(region)
            )
        )
        for finer, level in pairwise(plan.levels):
            last_child = {}
            for at, brick in enumerate(order):
                parent = tuple(
                    b * n // (f * m)
                    for b, n, f, m in zip(
                        brick, finer.brick_shape, level.factor, level.brick_shape, strict=True
                    )
                )
                last_child[parent] = at
            order = sorted(last_child, key=last_child.get)
            if level.in_order:
                codes = _codes(order)
                assert codes == sorted(codes)


@given(cases(), st.integers(1, 1000))
def test_regions_of_an_earlier_planning_are_kept(case, workers):
    regions = [plan.levels[0].region_shape for plan in case.passes]
    again = plan_passes(
        case.passes[0].source_box,
        case.mags[1:],
        [Tiling(case.chunk, case.shard, case.voxel_nbytes)] * len(case.mags),
        workers,
        regions,
    )
    assert again == case.passes


@given(cases())
def test_a_region_is_a_file_or_less(case):
    """At least two units an edge; never more than a minute's work, nor so large that workers have
    nothing to do while regions could be halved."""
    largest, counts = max(case.unit), [n // m for n, m in zip(case.shard, case.unit, strict=True)]
    for plan in case.passes:
        first = plan.levels[0]
        edge = {n // unit for n, unit in zip(first.region_shape, case.unit, strict=True)}
        assert len(edge) == 1
        (edge,) = edge
        assert edge >= 2
        assert edge * largest <= max(512, largest * max(2, *counts))
        assert edge <= 2 or math.prod(plan.source_region_shape) * case.voxel_nbytes <= TASK_BUDGET
        num_regions = math.prod(len(r) for r in cell_range(first.box, first.region_shape))
        if case.workers > num_regions:
            assert edge <= 2 or edge * largest <= 128


@pytest.mark.parametrize(("edge", "voxel_nbytes"), [(10, 8), (12, 1), (24, 4), (96, 1), (100, 1)])
def test_regions_hold_whole_bricks_whatever_the_length_of_a_chunk(edge, voxel_nbytes):
    box = BoundingBox((0, 0, 0), (1500, 700, 100))
    for plan in plan_passes(
        box, [Mag.parse(2), Mag.parse(4)], [Tiling((edge,) * 3, (edge,) * 3, voxel_nbytes)] * 2, 2
    ):
        for level in plan.levels:
            assert all(
                n % brick == 0
                for n, brick in zip(level.region_shape, level.brick_shape, strict=True)
            )


def test_one_file_of_the_first_coarser_mag_is_a_task():
    """The usual case: 1024^3 files, LZ4 blocks of 32, isotropic steps."""
    box = BoundingBox((0, 0, 0), (4096, 4096, 4096))
    (plan,) = plan_passes(
        box, [Mag.parse(2), Mag.parse(4), Mag.parse(8)], [Tiling((32,) * 3, (1024,) * 3, 1)] * 3, 1
    )
    assert [level.region_shape for level in plan.levels] == [(1024,) * 3, (512,) * 3, (256,) * 3]
    assert plan.source_region_shape == (2048,) * 3
    assert plan.source_brick_shape == (256,) * 3
    assert plan.source_region((1, 0, 1)) == BoundingBox((2048, 0, 2048), (2048,) * 3)
    assert len(list(plan.regions(np.ones((2, 2, 2), bool)))) == 8
    assert [plan.writes_whole_shards(n, (1024,) * 3) for n in range(3)] == [True, False, False]
    assert [plan.levels[n].regions_in_shard((0, 0, 0), (1024,) * 3) for n in range(3)] == [
        (slice(0, 1),) * 3,
        (slice(0, 2),) * 3,
        (slice(0, 2),) * 3,
    ]


def test_more_workers_make_smaller_regions():
    box = BoundingBox((0, 0, 0), (1024, 1024, 1024), Mag.parse(2))
    edges = [
        choose_region(box, (2, 2, 2), Tiling((32,) * 3, (1024,) * 3, 1), workers)[0]
        for workers in (1, 2, 20, 10_000)
    ]
    assert edges == sorted(edges, reverse=True)
    assert edges[0] == 1024
    assert edges[-1] == 128  # no smaller: a task would be too short


def test_tasks_that_are_short_anyway_are_not_cut_further():
    """For 40 workers 64 regions of a second each do, as long as none of them is long."""
    box = BoundingBox((0, 0, 0), (1024, 1024, 1024), Mag.parse(2))
    short, long = (
        choose_region(box, (2, 2, 2), Tiling((32,) * 3, (1024,) * 3, voxel_nbytes), 40)[0]
        for voxel_nbytes in (1, 8)
    )
    assert (short, long) == (256, 128)


def test_a_step_of_eight_has_bricks_of_its_source():
    """A block of 32 in mag 8 is 256 voxels of mag 1 along each axis; with 8 bytes a voxel that is
    read in pieces."""
    box = BoundingBox((0, 0, 0), (4096, 4096, 4096))
    plan = plan_pass(box, [Mag.parse(8)], (32,) * 3, 8, (256,) * 3)
    assert plan.levels[0].brick_shape == (32,) * 3
    assert plan.source_brick_shape == (128, 128, 256)
    assert list(plan.bricks((0, 0, 0)))[:5] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (1, 1, 0),
        (2, 0, 0),
    ]


def test_a_window_larger_than_the_budget():
    plan = plan_pass(BoundingBox((0, 0, 0), (4096,) * 3), [Mag.parse(1024)], (1,) * 3, 1, (2,) * 3)
    assert plan.source_brick_shape == (1024,) * 3
    assert plan.levels[0].brick_shape == (1,) * 3


def test_a_ladder_goes_on_in_another_pass():
    """From one region of 512 no chunk of 32 is left after four steps: the last mags are made from
    mag 16."""
    box = BoundingBox((0, 0, 0), (65536, 65536, 4096))
    mags = _ladder(Mag.parse(1), [(2, 2, 2)] * 8)
    passes = plan_passes(box, mags[1:], [Tiling((32,) * 3, (512,) * 3, 1)] * len(mags), 1)
    assert [[level.box.mag.name for level in plan.levels] for plan in passes] == [
        ["2", "4", "8", "16", "32"],
        ["64", "128", "256"],
    ]
    assert passes[1].source_box == box.in_mag(Mag.parse(32))


def test_anisotropic_steps_are_not_in_order():
    box = BoundingBox((0, 0, 0), (4096, 4096, 4096))
    for steps in ([(2, 2, 1), (2, 2, 1), (2, 2, 2)], [(2, 2, 1), (4, 4, 4), (2, 2, 2)]):
        plan = plan_pass(box, _ladder(Mag.parse(1), steps)[1:], (32,) * 3, 1, (512,) * 3)
        # once lost, the order does not come back
        assert [level.in_order for level in plan.levels] == [True, False, False]


def test_step_factors():
    assert step_factors(Mag.parse(1), _ladder(Mag.parse(1), STEPS + JUMPS)[1:]) == STEPS + JUMPS
    for names in (["2", "2-2-1"], ["1", "2-2-1", "4-4-2", "8-8-1"]):
        finest, *mags = map(Mag.parse, names)
        with pytest.raises(
            ValueError, match=f"mag {names[-1]} is not coarser than mag {names[-2]} on every axis"
        ):
            step_factors(finest, mags)
        with pytest.raises(ValueError, match="on every axis"):
            plan_passes(
                BoundingBox((0, 0, 0), (9, 9, 9), finest),
                mags,
                [Tiling((1,) * 3, (2,) * 3, 1)] * len(mags),
                1,
            )


def test_first_bricks_by_heart():
    box = BoundingBox((0, 0, 0), (256, 256, 128))
    # 64 bytes a voxel: bricks of one chunk, each read at once
    plan = plan_pass(box, [Mag.parse(2)], (32,) * 3, 64, (128,) * 3)
    assert plan.levels[0].brick_shape == (32, 32, 32)
    assert plan.source_brick_shape == (64, 64, 64)
    assert list(plan.bricks((0, 0, 0)))[:5] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (1, 1, 0),
        (0, 0, 1),
    ]
    # 255 bytes: two pieces of a brick
    wide = plan_pass(box, [Mag.parse(2)], (32,) * 3, 255, (128,) * 3)
    assert wide.source_brick_shape == (32, 64, 64)
    assert list(wide.bricks((0, 0, 0)))[:5] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 0),
        (0, 1, 0),
    ]


def test_tasks_have_an_upper_size():
    box = BoundingBox((0, 0, 0), (1 << 15,) * 3)
    for factor, voxel_nbytes, workers in (
        ((2, 2, 2), 8, 100),
        ((8, 8, 8), 1, 100),
        ((16, 16, 16), 4, 1),
    ):
        region = choose_region(box, factor, Tiling((32,) * 3, (1024,) * 3, voxel_nbytes), workers)
        assert np.prod(region) * np.prod(factor) * voxel_nbytes <= 8 << 30
