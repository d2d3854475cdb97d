"""Functions applied to volumes: the same results as on whole arrays, listed failures, and kept
work."""

from __future__ import annotations

import itertools
import os
from functools import partial
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import ENVIRONMENT
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from support.commands import run_here
from support.strategies import HEAVY

import wkwdask
from wkwdask import BoundingBox
from wkwdask.errors import (
    BoundsError,
    DiscardWarning,
    ExistsError,
    MissingError,
    ResumeError,
    TaskFailedError,
)

SHAPE = (70, 50, 40)
OFFSET = (13, 8, 5)
SMALL = {"block_len": 8, "file_len": 4}
assert ENVIRONMENT  # progress of cluster processes is off


def volume(seed=1, dtype="uint8", shape=SHAPE):
    random = np.random.default_rng(seed)
    return ndimage.gaussian_filter(random.integers(0, 255, shape).astype(np.float32), 1.5).astype(
        dtype
    )


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (4, 4, 4))
    wkwdask.write(folder / "color" / "1", OFFSET, volume(), **SMALL)
    return folder


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def small_regions(monkeypatch):
    """Jobs of many tasks."""
    monkeypatch.setattr("wkwdask.plans.apply.choose_region", lambda *_: (32, 32, 32))


def result(folder):
    return wkwdask.read(folder)[0]


def leftovers(folder):
    return [path.name for path in Path(folder).rglob(".wkwdask-job-*")]


# ----------------------------------------------------------------------------- results equal those
# of whole arrays


@pytest.mark.parametrize(
    ("chunks", "mode"), [(8, "reflect"), (16, "nearest"), (64, "constant"), ((64, 32, 8), "mirror")]
)
def test_a_filter_equals_that_of_the_whole_array(dataset, chunks, mode):
    smooth = partial(ndimage.gaussian_filter, sigma=1.2, truncate=4.0, mode=mode)
    report = wkwdask.apply(
        smooth, dataset / "color", dataset / "smooth" / "1", halo=5, chunks=chunks
    )
    np.testing.assert_array_equal(result(dataset / "smooth" / "1"), smooth(volume()))
    assert report.voxels == np.prod(SHAPE)
    assert wkwdask.open_dataset(dataset)["smooth"].bounding_box == BoundingBox(OFFSET, SHAPE)
    assert not leftovers(dataset)


@HEAVY
@given(
    st.tuples(*[st.integers(1, 40)] * 3),
    st.tuples(*[st.integers(0, 20)] * 3),
    st.sampled_from([8, 16, 32]),
    st.integers(0, 3),
    st.integers(1, 2),
)
def test_any_box_and_halo_equal_scipy(tmp_path_factory, shape, offset, chunks, halo, channels):
    folder = tmp_path_factory.mktemp("any")
    values = np.random.default_rng(3).integers(0, 9, (channels, *shape)).astype(np.int16)
    wkwdask.create(
        folder / "a" / "1", BoundingBox(offset, shape), np.int16, num_channels=channels, **SMALL
    )
    wkwdask.create_dataset(folder, (4, 4, 4))
    wkwdask.write(folder / "b" / "1", offset, values, **SMALL)
    size = 2 * halo + 1

    def blur(array):
        return ndimage.uniform_filter(array, size if array.ndim == 3 else (1, size, size, size))

    with dask.config.set(scheduler="synchronous"):
        wkwdask.apply(
            blur,
            folder / "b" / "1",
            folder / "c" / "1",
            halo=halo,
            chunks=chunks,
            channels=channels,
        )
    expected = blur(values[0])[np.newaxis] if channels == 1 else blur(values)
    np.testing.assert_array_equal(wkwdask.read(folder / "c" / "1"), expected)


def test_a_histogram_and_a_stretch_make_8_bits_of_16(dataset):
    values = (volume(2).astype(np.uint16) + 7) * 200
    wkwdask.write(dataset / "raw" / "1", OFFSET, values, **SMALL)
    counts = wkwdask.apply(
        lambda array: np.bincount(array.ravel(), minlength=65536), dataset / "raw" / "1", chunks=16
    )
    np.testing.assert_array_equal(counts, np.bincount(values.ravel(), minlength=65536))
    low, high = np.searchsorted(np.cumsum(counts), [0.01 * values.size, 0.99 * values.size])

    def stretch(array):
        return (
            (np.clip((array.astype(np.float32) - low) / (high - low), 0, 1) * 255)
            .round()
            .astype(np.uint8)
        )

    wkwdask.apply(stretch, dataset / "raw" / "1", dataset / "stretched" / "1", dtype=np.uint8)
    np.testing.assert_array_equal(result(dataset / "stretched" / "1"), stretch(values))


def test_a_threshold_and_several_inputs(dataset):
    wkwdask.write(dataset / "labels" / "1", OFFSET, volume(4, np.uint32), **SMALL)
    wkwdask.apply(
        lambda em, ids: np.where(em > 120, ids, 0),
        [dataset / "color" / "1", dataset / "labels" / "1"],
        dataset / "kept" / "1",
        dtype=np.uint32,
    )
    np.testing.assert_array_equal(
        result(dataset / "kept" / "1"), np.where(volume() > 120, volume(4, np.uint32), 0)
    )
    assert wkwdask.open_dataset(dataset)["kept"].category == "segmentation"


def test_a_function_may_return_more_channels(dataset):
    wkwdask.apply(
        lambda em: np.stack([em, 255 - em]),
        dataset / "color" / "1",
        dataset / "two" / "1",
        channels=2,
    )
    np.testing.assert_array_equal(
        wkwdask.read(dataset / "two" / "1"), np.stack([volume(), 255 - volume()])
    )


def test_functions_with_a_box_parameter_receive_it(dataset):
    def planes(em, box):
        z = np.arange(box.topleft[2], box.bottomright[2], dtype=np.uint8)
        return np.broadcast_to(z, em.shape).copy()

    wkwdask.apply(planes, dataset / "color" / "1", dataset / "z" / "1", chunks=16)
    np.testing.assert_array_equal(result(dataset / "z" / "1")[0, 0], np.arange(5, 45))


def test_sources_of_other_mags_are_repeated_or_span_more_voxels(dataset):
    wkwdask.build_pyramid(dataset, "color", mags=["2-2-1"])
    coarse = wkwdask.read(dataset / "color" / "2-2-1")[0]
    wkwdask.apply(
        lambda fine, rough: rough,
        [dataset / "color" / "1", dataset / "color" / "2-2-1"],
        dataset / "back" / "1",
        chunks=16,
    )
    # the box starts at 13, in the middle of a coarse voxel
    whole = coarse.repeat(2, 0).repeat(2, 1)[1:71, 0:50]
    np.testing.assert_array_equal(result(dataset / "back" / "1"), whole)

    def most(fine):
        x, y, z = fine.shape
        return fine.reshape(x // 2, 2, y // 2, 2, z).max(axis=(1, 3))

    wkwdask.apply(most, dataset / "color" / "1", dataset / "most" / "2-2-1", chunks=16)
    padded = np.pad(volume(), ((1, 1), (0, 0), (0, 0)))
    np.testing.assert_array_equal(result(dataset / "most" / "2-2-1"), most(padded))
    wkwdask.write(dataset / "odd" / "1-1-2", (0, 0, 0), np.ones((99, 99, 99), np.uint8), **SMALL)
    with pytest.raises(ValueError, match="finer than mag 2-2-1 on one axis and coarser on another"):
        wkwdask.apply(most, dataset / "odd" / "1-1-2", dataset / "no" / "2-2-1")


def test_sources_may_be_array_files(dataset, tmp_path):
    """Voxel 0 of the file is voxel 0 of the dataset."""
    np.save(tmp_path / "shade.npy", np.full((100, 100, 100), 3, np.uint8))
    wkwdask.apply(
        lambda em, shade: em // shade,
        [dataset / "color" / "1", tmp_path / "shade.npy"],
        dataset / "shaded" / "1",
    )
    np.testing.assert_array_equal(result(dataset / "shaded" / "1"), volume() // 3)
    np.save(tmp_path / "other.npy", volume().T)  # z, y, x, as convert takes arrays
    wkwdask.apply(np.invert, tmp_path / "other.npy", dataset / "inverse" / "1", chunks=32)
    np.testing.assert_array_equal(result(dataset / "inverse" / "1"), ~volume())
    with pytest.raises(MissingError):
        wkwdask.apply(np.invert, tmp_path / "nothing.npy", dataset / "no" / "1")


@pytest.mark.parametrize("mag", ["1", "2-2-1"])
def test_a_coarser_mask_restricts_the_work(dataset, mag):
    factor = wkwdask.Mag.parse(mag).factors
    mask = np.zeros([60 // f + 1 for f in factor], np.uint8)
    mask[20 // factor[0] : 30 // factor[0], :, : 20 // factor[2]] = 3
    wkwdask.write(dataset / "tissue" / mag, (0, 0, 0), mask, **SMALL)
    seen = []

    def invert(em):
        seen.append(em.shape)
        return 255 - em

    wkwdask.apply(
        invert,
        dataset / "color" / "1",
        dataset / "inverted" / "1",
        mask=dataset / "tissue" / mag,
        chunks=8,
    )
    whole = np.zeros((100, 100, 100), bool)
    fine = (
        mask.repeat(factor[0], 0)
        .repeat(factor[1], 1)
        .repeat(factor[2], 2)
        .astype(bool)[:100, :100, :100]
    )
    whole[tuple(slice(n) for n in fine.shape)] = fine
    inside = whole[tuple(slice(o, o + n) for o, n in zip(OFFSET, SHAPE, strict=True))]
    np.testing.assert_array_equal(
        result(dataset / "inverted" / "1"), np.where(inside, 255 - volume(), 0)
    )
    assert 0 < len(seen) <= 3 * 8 * 3  # bricks that touch the mask


def test_a_finer_mask_covers_every_voxel_that_it_touches(dataset):
    wkwdask.build_pyramid(dataset, "color", mags=[2])
    mask = np.zeros((100, 100, 100), np.uint8)
    mask[41, 21, 21] = 1
    wkwdask.write(dataset / "tissue" / "1", (0, 0, 0), mask, **SMALL)
    wkwdask.apply(
        lambda em: np.full_like(em, 7),
        dataset / "color" / "2",
        dataset / "point" / "2",
        mask=dataset / "tissue" / "1",
    )
    found = wkwdask.read(dataset / "point" / "2", ((20, 10, 10), (21, 11, 11)))
    assert found.item() == 7
    assert wkwdask.read(dataset / "point" / "2").sum() == 7


def test_where_restricts_the_work_to_a_box(dataset):
    boxes = []

    def note(em, box):
        boxes.append(box)
        return em

    wkwdask.apply(
        note,
        dataset / "color" / "1",
        dataset / "part" / "1",
        where=((30, 10, 0), (50, 40, 20)),
        chunks=16,
    )
    expected = np.zeros_like(volume())
    part = (slice(17, 37), slice(2, 32), slice(0, 15))
    expected[part] = volume()[part]
    np.testing.assert_array_equal(result(dataset / "part" / "1"), expected)
    trial, *boxes = boxes
    assert all(BoundingBox((30, 10, 5), (20, 30, 15)).contains(box) for box in (trial, *boxes))
    assert sum(box.volume for box in boxes) == 20 * 30 * 15
    with pytest.raises(BoundsError, match="lies outside of its box"):
        wkwdask.apply(
            note,
            dataset / "color" / "1",
            dataset / "none" / "1",
            where=((300, 10, 0), (320, 40, 20)),
        )


def test_skip_empty_skips_bricks_without_files(dataset):
    sparse = np.zeros((128, 32, 32), np.uint32)
    sparse[100:, :9] = 5
    wkwdask.write(dataset / "sparse" / "1", (0, 0, 0), sparse, **SMALL)
    calls = []

    def double(ids):
        calls.append(ids.shape)
        return ids * 2

    wkwdask.apply(
        double, dataset / "sparse" / "1", dataset / "double" / "1", skip_empty=True, chunks=32
    )
    assert calls == [(32, 32, 32)]
    np.testing.assert_array_equal(result(dataset / "double" / "1"), sparse * 2)


def test_skip_empty_keeps_bricks_with_voxels_in_the_halo(tmp_path, small_regions):
    """The voxel lies at a file border, and the next region has no file."""
    array = np.zeros((64, 16, 16), np.uint8)
    array[31, 8, 8] = 1
    wkwdask.write(tmp_path / "a" / "1", (0, 0, 0), array, **SMALL)
    wkwdask.create_dataset(tmp_path, (4, 4, 4))
    wkwdask.write(tmp_path / "b" / "1", (0, 0, 0), array, **SMALL)
    spread = partial(ndimage.maximum_filter, size=5)
    wkwdask.apply(
        spread, tmp_path / "b" / "1", tmp_path / "c" / "1", halo=2, skip_empty=True, chunks=8
    )
    np.testing.assert_array_equal(result(tmp_path / "c" / "1"), spread(array))


# ----------------------------------------------------------------------------- reductions


def test_reductions_combine_the_values_of_all_bricks(dataset):
    color = dataset / "color" / "1"
    assert wkwdask.apply(lambda em: int(em.sum()), color, chunks=16) == volume().sum()
    assert wkwdask.apply(np.max, color, combine=max, chunks=16) == volume().max()
    assert (
        wkwdask.apply(lambda em: int(em.sum()), color, where=((30, 10, 0), (50, 40, 20)), chunks=16)
        == volume()[17:37, 2:32, 0:15].sum()
    )
    assert wkwdask.apply(lambda em: None, color, combine=lambda a, b: None) is None
    for options in ({"halo": 1}, {"mask": color}):
        with pytest.raises(ValueError, match="halo= and mask= need a target"):
            wkwdask.apply(np.max, color, **options)
    options = {"dtype": "uint8", "existing": "overwrite", "compression": "raw"}
    message = 'of no use without a target: dtype=, existing="overwrite", compression='
    with pytest.raises(ValueError, match=message):
        wkwdask.apply(np.max, color, **options)


def test_values_are_combined_in_one_order(dataset):
    """A sum of floats is the same each time."""
    color = dataset / "color" / "1"

    def boxes(em, box):
        return [box.topleft]

    serial = wkwdask.apply(boxes, color, chunks=16)
    starts = [[o, *range(o // 16 * 16 + 16, o + n, 16)] for o, n in zip(OFFSET, SHAPE, strict=True)]
    assert sorted(serial) == list(itertools.product(*starts))
    with dask.config.set(scheduler="threads", num_workers=4):
        assert wkwdask.apply(boxes, color, chunks=16) == serial


# ----------------------------------------------------------------------------- failures


def fail_at(places, em, box):
    if any(box.topleft == place for place in places):
        raise ArithmeticError(f"no result for {box.topleft}")
    return em


def test_failed_tasks_are_listed_and_the_others_kept(dataset, small_regions):
    target = dataset / "copy" / "1"
    bad = [(32, 32, 32), (64, 32, 32)]

    def broken(em, box):
        return fail_at(bad, em, box)

    with pytest.raises(TaskFailedError) as failed:
        wkwdask.apply(broken, dataset / "color" / "1", target, chunks=32)
    message = str(failed.value)
    assert message.startswith("2 tasks failed; all tasks that do not depend on them are done:")
    assert "(32, 32, 32) + (32, 26, 13) in mag 1, computed by" in message
    assert (
        "ArithmeticError: no result for (64, 32, 32) (box (64, 32, 32) + (19, 26, 13) in mag 1)"
        in message
    )
    assert "finished work is kept" in failed.value.__notes__[-1]
    assert not target.exists()
    calls = []

    def repaired(em, box):
        calls.append(box.topleft)
        return em

    repaired.__qualname__ = broken.__qualname__
    report = wkwdask.apply(repaired, dataset / "color" / "1", target, chunks=32)
    assert sorted(calls[1:]) == bad  # the first call is the trial
    assert "10 tasks had been finished before" in report.note
    np.testing.assert_array_equal(result(target), volume())
    assert not leftovers(dataset)


def test_a_failed_task_is_tried_again(dataset, small_regions):
    failures = itertools.count()

    def flaky(em):
        if next(failures) % 3 == 0:
            raise TimeoutError("the file server sleeps")
        return em

    wkwdask.apply(flaky, dataset / "color" / "1", dataset / "copy" / "1", chunks=32)
    np.testing.assert_array_equal(result(dataset / "copy" / "1"), volume())


def test_another_try_gets_unchanged_voxels(dataset):
    """The first one changes its array in place."""
    failures = itertools.count()

    def flaky(em):
        em += 1
        if next(failures) % 2 == 0:
            raise TimeoutError("the file server sleeps")
        return em

    wkwdask.apply(flaky, dataset / "color" / "1", dataset / "copy" / "1", chunks=32)
    np.testing.assert_array_equal(result(dataset / "copy" / "1"), volume() + 1)


def test_a_function_that_always_fails_ends_the_job_soon(dataset, small_regions):
    """The trial call succeeds."""
    calls = []

    def broken(em):
        calls.append(1)
        if len(calls) > 1:
            raise NameError("typo")
        return em

    with pytest.raises(
        TaskFailedError, match=r"8 tasks failed; too many failed.*\n.*NameError: typo"
    ):
        wkwdask.apply(broken, dataset / "color" / "1", dataset / "copy" / "1", chunks=32)
    assert len(calls) == 9
    assert not leftovers(dataset)


def test_results_that_do_not_fit_are_refused(dataset):
    color, target = dataset / "color" / "1", dataset / "copy" / "1"
    for function, match in (
        (
            lambda em: em[1:],
            r"returned shape \(69, 50, 40\), expected \(70, 50, 40\) voxels in 1 channel ",
        ),
        (lambda em: np.stack([em, em]), r"in 1 channel \(channels="),
        (lambda em: em.astype(float), "float64, which uint8 cannot store without loss"),
        (lambda em: 7, "returned int, expected an array"),
        (lambda em: np.ma.masked_less(em, 100), "returned MaskedArray, expected an array"),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            wkwdask.apply(function, color, target)
    with pytest.raises(ValueError, match="with the halo"):
        wkwdask.apply(lambda em: em[1:-1, 1:-1, 1:-1], color, target, halo=1, chunks=8)
    assert not target.exists()


def test_an_existing_mag_is_not_replaced(dataset):
    with pytest.raises(ExistsError):
        wkwdask.apply(np.copy, dataset / "color" / "1", dataset / "color" / "1")
    with pytest.raises(MissingError):
        wkwdask.apply(np.copy, dataset / "colour" / "1", dataset / "copy" / "1")


def test_other_bricks_or_arguments_are_not_resumed(dataset, small_regions):
    """A larger brick makes larger regions, which the journal does not list."""
    color, target = dataset / "color" / "1", dataset / "copy" / "1"
    with pytest.raises(TaskFailedError):
        wkwdask.apply(partial(fail_at, [(64, 32, 32)]), color, target, chunks=16, file_len=16)
    with pytest.raises(ResumeError, match="chunks was 16,16,16, is 64,64,64"):
        wkwdask.apply(partial(fail_at, [(64, 32, 32)]), color, target, chunks=64, file_len=16)
    with pytest.raises(ResumeError, match="arguments was"):
        wkwdask.apply(partial(fail_at, []), color, target, chunks=16, file_len=16)


def test_other_settings_are_not_resumed(dataset, small_regions):
    with pytest.raises(TaskFailedError):
        wkwdask.apply(
            partial(fail_at, [(64, 32, 32)]),
            dataset / "color" / "1",
            dataset / "copy" / "1",
            chunks=32,
            token="1",
        )
    with pytest.raises(ResumeError, match="token was 1, is 2"):
        wkwdask.apply(
            partial(fail_at, [(64, 32, 32)]),
            dataset / "color" / "1",
            dataset / "copy" / "1",
            chunks=32,
            token="2",
        )
    with pytest.raises(ResumeError, match=r"function was .*fail_at, is numpy:copy"):
        wkwdask.apply(
            np.copy, dataset / "color" / "1", dataset / "copy" / "1", chunks=32, token="1"
        )
    path = next((dataset / "color" / "1").rglob("x0.wkw"))
    os.utime(path)
    with pytest.raises(ResumeError, match="the source has changed since"):
        wkwdask.apply(
            partial(fail_at, [(64, 32, 32)]),
            dataset / "color" / "1",
            dataset / "copy" / "1",
            chunks=32,
            token="1",
        )
    with pytest.warns(
        DiscardWarning, match="discards the finished work of an interrupted job: 11 tasks"
    ):
        wkwdask.apply(
            np.copy, dataset / "color" / "1", dataset / "copy" / "1", existing="overwrite"
        )
    np.testing.assert_array_equal(result(dataset / "copy" / "1"), volume())


# ----------------------------------------------------------------------------- plan and command


def test_bricks_that_are_not_whole_blocks_are_refused(dataset):
    for chunks in (12, (8, 8, 4)):
        with pytest.raises(ValueError, match="whole blocks of the target, multiples of"):
            wkwdask.apply(np.copy, dataset / "color" / "1", dataset / "copy" / "1", chunks=chunks)
    for chunks in (0, (8, 8, 0)):
        with pytest.raises(ValueError, match="chunks must be at least 1, got"):
            wkwdask.apply(np.copy, dataset / "color" / "1", dataset / "copy" / "1", chunks=chunks)


@pytest.mark.parametrize("chunks", [np.int64(16), 16.0])
def test_one_number_for_all_axes_is_any_whole_number(dataset, chunks):
    source, target = dataset / "color" / "1", dataset / "copy" / "1"
    wkwdask.apply(np.copy, source, target, chunks=chunks)
    np.testing.assert_array_equal(wkwdask.read(target), wkwdask.read(source))


def test_command(dataset, tmp_path):
    color = dataset / "color" / "1"
    out = run_here(
        "apply",
        "scipy.ndimage:gaussian_filter",
        "--arg",
        "sigma=1.2",
        "--halo",
        "5",
        color,
        dataset / "smooth" / "1",
    )
    assert out.returncode == 0
    assert "252,000" not in out.output
    assert "140,000 voxels" in out.output
    np.testing.assert_array_equal(
        result(dataset / "smooth" / "1"), ndimage.gaussian_filter(volume(), 1.2)
    )
    (tmp_path / "of_mine.py").write_text(
        "def above(array, limit):\n    return (array > limit).astype('uint8')\n"
    )
    out = run_here(
        "apply",
        f"{tmp_path}/of_mine.py:above",
        "--arg",
        "limit=100",
        color,
        dataset / "above" / "1",
        "--chunks",
        "16,16,8",
    )
    assert out.returncode == 0
    np.testing.assert_array_equal(result(dataset / "above" / "1"), volume() > 100)
    for name in ("copy", "random", "of.mine"):  # as modules of others are called
        (tmp_path / f"{name}.py").write_text("def copy(array):\n    return array * 0 + 7\n")
        assert (
            run_here("apply", f"{tmp_path}/{name}.py:copy", color, dataset / name / "1").returncode
            == 0
        )
        assert (result(dataset / name / "1") == 7).all()
    assert run_here("apply", "numpy:pi", color, "--reduce").returncode == 2
    assert run_here("apply", "numpy:count_nonzero", color, "--reduce").output.strip() == str(
        np.count_nonzero(volume())
    )
    for name in ("numpy", "numpy:nothing", "no_such_module:f", "nofile.py:f"):
        assert run_here("apply", name, color, dataset / "x" / "1").returncode == 2
    assert run_here("apply", "numpy:copy", color).returncode == 2


@pytest.mark.needs("zarr")
def test_bricks_are_multiples_of_chunks_of_any_lengths(tmp_path):
    array = np.arange(30 * 20 * 12, dtype="uint16").reshape(30, 20, 12)
    wkwdask.save(
        array, f"zarr://{tmp_path}/a.ome.zarr", voxel_size=(4, 4, 40), chunk_shape=(5, 6, 7)
    )
    wkwdask.apply(
        _double,
        f"zarr://{tmp_path}/a.ome.zarr/1",
        f"zarr://{tmp_path}/b.ome.zarr",
        chunks=(10, 12, 7),
    )
    np.testing.assert_array_equal(wkwdask.open(f"zarr://{tmp_path}/b.ome.zarr")[0], 2 * array)
    with pytest.raises(
        ValueError,
        match=r"whole blocks of the target, multiples of \(5, 6, 7\) voxels, got \(8, 8, 8\)",
    ):
        wkwdask.apply(
            _double, f"zarr://{tmp_path}/a.ome.zarr/1", f"zarr://{tmp_path}/c.ome.zarr", chunks=8
        )


def _double(voxels):
    return 2 * voxels
