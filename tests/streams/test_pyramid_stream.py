"""The one-pass pyramid against plain numpy, level by level.

The oracle reduces each level as a whole from the one before it, window by window in masked arrays,
with only the voxels of the finer level's box counting. Nothing of it knows bricks, regions, passes
or Morton order.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import vectors, voxel_array

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.geometry.mag import Mag
from wkwdask.plans import pyramid
from wkwdask.plans.pyramid import plan_passes
from wkwdask.plans.regions import Tiling
from wkwdask.streams import pyramid as stream_module
from wkwdask.streams.pyramid import PyramidStream

LADDERS = [
    [(2, 2, 2)],
    [(2, 2, 2)] * 4,
    [(2, 2, 1), (2, 2, 2), (2, 2, 2)],
    [(2, 2, 1), (2, 2, 1), (2, 2, 2), (1, 1, 2)],
    [(1, 1, 2), (2, 1, 1), (1, 2, 1)],
    [(2, 1, 1), (2, 2, 1), (2, 2, 2), (1, 1, 2)],
    [(2, 2, 2), (1, 1, 2), (2, 2, 1)],
    [(4, 4, 4), (2, 2, 2)],
    [(4, 4, 1), (2, 2, 8), (1, 4, 2)],
    [(8, 8, 8)],
    [(2, 2, 2), (8, 1, 4)],
    [(1, 8, 1), (8, 1, 8)],
]


def _name(steps):
    return " ".join("".join(map(str, step)) for step in steps)


def _mags(steps):
    mags = [Mag.parse(1)]
    for step in steps:
        mags.append(Mag(*(a * b for a, b in zip(mags[-1].factors, step, strict=True))))
    return mags


def _reduce(windows, counted, method):
    """Reduce the last axis of an integer array; entries that are not counted are outside the
    box."""
    values = np.ma.masked_array(windows.astype(np.int64), ~counted)
    if method == "max":
        return values.max(axis=-1).filled(0)
    if method == "mean":
        count = counted.sum(axis=-1)
        whole, rest = np.divmod(values.sum(axis=-1).filled(0), np.maximum(count, 1))
        return whole + ((2 * rest > count) | ((2 * rest == count) & (whole % 2 == 1)))
    if method == "median":
        ordered = np.sort(np.where(counted, windows.astype(np.int64), 1 << 40), axis=-1)
        count = np.maximum(counted.sum(axis=-1), 1)[..., None]
        return (
            (
                np.take_along_axis(ordered, (count - 1) // 2, -1)
                + np.take_along_axis(ordered, count // 2, -1)
            )
            // 2
        )[..., 0]
    # mode
    counts = ((windows[..., :, None] == windows[..., None, :]) & counted[..., None, :]).sum(axis=-1)
    counts = np.where(counted, counts, -1)
    best = counts == counts.max(axis=-1, keepdims=True)
    return np.where(best, windows.astype(np.int64), 1 << 40).min(axis=-1)


def _coarser(array, box, mag, method, *, ignore_zero=False):
    """Make the next mag of an array (c, x, y, z) that fills its box: pad to whole windows, note
    what counts, reduce."""
    factor = box.mag.step_to(mag)
    target = box.in_mag(mag)
    low = [a - t * f for a, t, f in zip(box.topleft, target.topleft, factor, strict=True)]
    high = [t * f - b for b, t, f in zip(box.bottomright, target.bottomright, factor, strict=True)]
    pad = [(0, 0), *zip(low, high, strict=True)]
    windows = []
    for values in (
        np.pad(array, pad, constant_values=1),
        np.pad(array != 0 if ignore_zero else np.ones(array.shape, bool), pad),
    ):
        c, (x, y, z), (fx, fy, fz) = len(values), target.size, factor
        windows.append(
            values.reshape(c, x, fx, y, fy, z, fz)
            .transpose(0, 1, 3, 5, 2, 4, 6)
            .reshape(c, x, y, z, -1)
        )
    reduced = _reduce(*windows, method)
    return np.where(windows[1].any(axis=-1), reduced, 0).astype(array.dtype), target


def _passes(box, steps, chunk, workers=1000):
    return plan_passes(
        box, _mags(steps)[1:], [Tiling((chunk,) * 3, (chunk * 2,) * 3, 1)] * len(steps), workers
    )


def _plan(box, steps, chunk, workers=1000):
    """The first pass alone."""
    return _passes(box, steps, chunk, workers)[0]


def _regions(plan):
    return list(
        plan.regions(
            np.ones(
                [len(r) for r in cell_range(plan.levels[0].box, plan.levels[0].region_shape)], bool
            )
        )
    )


def _chunk_shape(plan, shortest):
    """Choose chunks that are whole windows, and that bricks are whole chunks of."""
    axes = zip(plan.source_brick_shape, plan.levels[0].factor, strict=True)
    return tuple(
        step << k if brick % (step << k) == 0 else step
        for (brick, step), k in zip(axes, shortest, strict=True)
    )


def _chunks(plan, source, brick_box, shape, *, sparse):
    """Return the chunks of a brick, last ones first; they end where the volume does, and hold other
    voxels where they begin before the box."""
    box = plan.source_box
    for cell in reversed(list(cells(brick_box, shape))):
        topleft = tuple(n * edge for n, edge in zip(cell, shape, strict=True))
        length = tuple(
            min(edge, high - t)
            for edge, high, t in zip(shape, box.bottomright, topleft, strict=True)
        )
        voxels = np.full((len(source), *reversed(length)), 77, source.dtype).transpose(0, 3, 2, 1)
        inside = cell_box(cell, shape, box).intersection(box)
        part = (
            slice(None),
            *(
                slice(a - t, b - t)
                for a, b, t in zip(inside.topleft, inside.bottomright, topleft, strict=True)
            ),
        )
        voxels[part] = source[
            (
                slice(None),
                *(
                    slice(a - t, b - t)
                    for a, b, t in zip(inside.topleft, inside.bottomright, box.topleft, strict=True)
                ),
            )
        ]
        if not sparse or voxels[part].any():
            yield topleft, voxels if sum(cell) % 2 else np.ascontiguousarray(voxels)


def _stream(plan, source, method, *, sparse, ignore_zero=False, chunk_shape=None):
    """Run all regions of a plan; returns how often each brick came and the assembled levels. What
    no brick covers stays 200."""
    box = plan.source_box
    levels = [np.full((len(source), *level.box.size), 200, source.dtype) for level in plan.levels]
    seen = [Counter() for _ in plan.levels]
    nothing = 0
    for region in _regions(plan):
        stream = PyramidStream(plan, method, source.dtype, len(source), ignore_zero=ignore_zero)
        stream.source_memory[...] = 99  # what earlier bricks leave behind must not be seen
        assert list(plan.bricks(region)) == [brick for brick, _ in plan.completions(region)]
        for brick, expected in plan.completions(region):
            part = stream.source_box(brick)
            view = stream.source_view(brick)
            assert view.shape[1:] == part.size
            voxels = source[
                (
                    slice(None),
                    *(
                        slice(a - t, b - t)
                        for a, b, t in zip(part.topleft, part.bottomright, box.topleft, strict=True)
                    ),
                )
            ]
            is_zero = sparse and not voxels.any()
            view[...] = 55 if is_zero or chunk_shape is not None else voxels
            order = []
            if chunk_shape is None:
                completed = stream.push(brick, is_zero)
            else:
                completed = stream.push_chunks(
                    brick, _chunks(plan, source, part, chunk_shape, sparse=sparse), chunk_shape
                )
            for found in completed:
                level = plan.levels[found.level]
                order.append((found.level, found.index))
                seen[found.level][found.index] += 1
                inside = cell_box(found.index, level.brick_shape, level.box).intersection(level.box)
                assert found.topleft == inside.topleft
                nothing += found.voxels is None
                target = levels[found.level][
                    (
                        slice(None),
                        *(
                            slice(a - t, b - t)
                            for a, b, t in zip(
                                inside.topleft, inside.bottomright, level.box.topleft, strict=True
                            )
                        ),
                    )
                ]
                if found.voxels is None:
                    target[...] = 0
                else:
                    assert found.voxels.shape == target.shape
                    target[...] = found.voxels
            assert order == expected  # finest first
        stream.close()
    return levels, seen, nothing


def _check_all(passes, source, method, *, sparse, ignore_zero=False, shortest=None):
    """Check pass after pass, brick by brick or chunk by chunk; the next one reads what the one
    before it has made."""
    for plan in passes:
        chunk_shape = None if shortest is None else _chunk_shape(plan, shortest)
        _check(
            plan, source, method, sparse=sparse, ignore_zero=ignore_zero, chunk_shape=chunk_shape
        )
        source = _stream(plan, source, method, sparse=sparse, ignore_zero=ignore_zero)[0][-1]


def _check(plan, source, method, *, sparse, ignore_zero=False, chunk_shape=None):
    levels, seen, nothing = _stream(
        plan, source, method, sparse=sparse, ignore_zero=ignore_zero, chunk_shape=chunk_shape
    )
    expected, box = source, plan.source_box
    for number, level in enumerate(plan.levels):
        expected, box = _coarser(expected, box, level.box.mag, method, ignore_zero=ignore_zero)
        assert box == level.box
        # each brick once, and no other
        assert seen[number] == Counter(cells(level.box, level.brick_shape))
        np.testing.assert_array_equal(levels[number], expected)
    return nothing


@pytest.fixture(autouse=True)
def _small_regions(monkeypatch):
    """Cut small arrays the way large ones are cut: regions of many bricks (for one worker), or many
    regions (for a thousand)."""
    _shrink(monkeypatch)


def _shrink(monkeypatch):
    monkeypatch.setattr(pyramid, "_REGION_VX", 32)
    monkeypatch.setattr(pyramid, "_SMALLEST_REGION_VX", 8)
    monkeypatch.setattr(pyramid, "_SMALL_TASK_NBYTES", 0)
    monkeypatch.setattr(pyramid, "_BRICK_SOURCE_NBYTES", 512)


def _with_holes(array, rng, edge=8):
    """Clear a good part of an array in cubes, so that whole bricks are zero among others that are
    not."""
    holes = rng.random([-(-n // edge) for n in array.shape[1:]]) < 0.7
    for at in np.argwhere(holes):
        array[(slice(None), *(slice(n * edge, (n + 1) * edge) for n in at))] = 0
    return array


@pytest.mark.parametrize("steps", LADDERS, ids=_name)
@settings(max_examples=max(1, settings.default.max_examples // 2))  # for each ladder
@given(data=st.data())
def test_levels_equal_numpy(steps, data):
    """Boxes that touch no grid, bricks of four to 32 voxels, one or two channels, dense or full of
    zeros."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _shrink(monkeypatch)
        box = BoundingBox(data.draw(vectors(0, 70)), data.draw(vectors(1, 45)))
        passes = _passes(
            box, steps, data.draw(st.sampled_from([2, 4])), data.draw(st.sampled_from([1, 1000]))
        )
        method, seed = (
            data.draw(st.sampled_from(["median", "mode"])),
            data.draw(st.integers(0, 2**32 - 1)),
        )
        source = np.array(
            voxel_array(
                "uint8",
                (data.draw(st.integers(1, 2)), *box.size),
                seed,
                data.draw(st.sampled_from(["few", "noise"])),
            )
        )
        if data.draw(st.booleans()):
            source = _with_holes(source, np.random.default_rng(seed))
        _check_all(
            passes,
            source,
            method,
            sparse=data.draw(st.booleans()),
            shortest=data.draw(st.none() | vectors(0, 2)),
        )


@given(data=st.data())
def test_zeros_are_ignored(data):
    """Zeros are left out of each window like what lies outside the box; a window of nothing else
    stays zero."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _shrink(monkeypatch)
        box = BoundingBox(data.draw(vectors(0, 70)), data.draw(vectors(1, 30)))
        passes = _passes(
            box,
            data.draw(st.sampled_from(LADDERS)),
            data.draw(st.sampled_from([2, 4])),
            data.draw(st.sampled_from([1, 1000])),
        )
        method, seed = (
            data.draw(st.sampled_from(["median", "mode", "mean"])),
            data.draw(st.integers(0, 2**32 - 1)),
        )
        source = np.array(
            voxel_array("uint8", (data.draw(st.integers(1, 2)), *box.size), seed, "few")
        )
        if data.draw(st.booleans()):
            source = _with_holes(source, np.random.default_rng(seed))
        _check_all(
            passes,
            source,
            method,
            sparse=data.draw(st.booleans()),
            ignore_zero=True,
            shortest=data.draw(st.none() | vectors(0, 2)),
        )


@pytest.mark.parametrize("method", ["mean", "max", "median", "mode"])
def test_many_regions_equal_numpy(method):
    box = BoundingBox((13, 3, 31), (60, 41, 50))
    plan = _plan(box, LADDERS[3], 4)
    assert len(_regions(plan)) > 4
    assert len(plan.levels) > 1
    _check(plan, voxel_array("uint16", (1, *box.size), 3, "noise"), method, sparse=False)


@pytest.mark.long
@pytest.mark.parametrize("steps", LADDERS[1:8:2], ids=_name)
def test_skipped_zero_bricks_equal_reduced_ones(steps):
    box = BoundingBox((5, 0, 9), (42, 30, 28))
    plan = _plan(box, steps, 2, workers=1000 if LADDERS.index(steps) % 2 else 1)
    source = np.zeros((2, *box.size), np.uint8)
    source[:, 20:29, 17:24, 11:22] = 7
    source[:, 40:, 28:, 22:] = 9
    # parents whose first children are zero, made in memory that others have used
    source[:, ::13, ::11, ::17] = 3
    dense, _, nothing_dense = _stream(plan, source, "max", sparse=False)
    sparse, seen, nothing_sparse = _stream(plan, source, "max", sparse=True)
    for a, b in zip(dense, sparse, strict=True):
        np.testing.assert_array_equal(a, b)
    assert nothing_dense == 0
    if max(map(max, steps)) == 2:  # the bricks of longer steps span most of the box
        assert nothing_sparse > sum(sum(count.values()) for count in seen) // 3
    _check(plan, source, "mode", sparse=True)
    _check(plan, source, "mode", sparse=True, chunk_shape=_chunk_shape(plan, (0, 0, 0)))
    _check(plan, source, "mode", sparse=False, chunk_shape=_chunk_shape(plan, (1, 0, 1)))


def test_all_zero_source_allocates_no_voxels():
    box = BoundingBox((1, 2, 3), (40, 40, 40))
    plan = _plan(box, LADDERS[2], 2)
    nothing = _check(plan, np.zeros((1, *box.size), np.uint8), "mean", sparse=True)
    assert nothing == sum(len(list(cells(level.box, level.brick_shape))) for level in plan.levels)


def test_box_of_one_voxel():
    box = BoundingBox((33, 17, 5), (1, 1, 1))
    _check(_plan(box, LADDERS[1], 2), np.full((1, 1, 1, 1), 42, np.uint8), "median", sparse=False)


def test_nan_spreads_within_its_windows_only():
    box = BoundingBox((0, 0, 0), (16, 16, 16))
    plan = _plan(box, [(2, 2, 2), (2, 2, 2)], 2)
    source = np.ones((1, 16, 16, 16), np.float32)
    source[0, 5, 9, 2] = np.nan
    levels, _, _ = _stream(plan, source, "mean", sparse=False)
    assert np.argwhere(np.isnan(levels[0])).tolist() == [[0, 2, 4, 1]]
    assert np.argwhere(np.isnan(levels[1])).tolist() == [[0, 1, 2, 0]]
    assert (levels[1][~np.isnan(levels[1])] == 1).all()


def test_pending_bricks_do_not_grow_with_the_region():
    box = BoundingBox((0, 0, 0), (128, 64, 32))
    plan = _plan(box, [(2, 2, 2)] * 3, 2, workers=1)
    assert len(list(plan.bricks((0, 0, 0)))) > 100
    for region in _regions(plan):
        stream = PyramidStream(plan, "max", np.dtype("uint8"), 1)
        most = 0
        for brick in plan.bricks(region):
            stream.source_view(brick)[...] = 1
            for _ in stream.push(brick, False):
                most = max(most, sum(len(level) for level in stream._pending))
        assert sum(len(level) for level in stream._pending) == 0
        assert most <= 2 * len(plan.levels)


@pytest.mark.long
@pytest.mark.parametrize("steps", LADDERS, ids=_name)
def test_allocated_memory_is_within_the_plan(monkeypatch, steps):
    # steps along y or z alone keep several parents pending for each that is counted
    orderly = all(x >= y >= z for x, y, z in steps[1:])
    box = BoundingBox((3, 5, 7), (80, 60, 40))
    for plan in _passes(box, steps, 2, workers=4):
        allocated = []
        planar = PyramidStream._allocate

        def counted(stream, shape, planar=planar, allocated=allocated):
            memory = planar(stream, shape)
            allocated.append(memory.nbytes)
            return memory

        monkeypatch.setattr(stream_module, "_free_bricks", stream_module.FreeBricks())
        monkeypatch.setattr(PyramidStream, "_allocate", counted)
        _stream(plan, np.ones((1, *plan.source_box.size), np.uint8), "max", sparse=False)
        assert sum(allocated) <= plan.memory_nbytes(1) * (1 if orderly else 4)
