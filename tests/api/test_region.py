"""Writes into a region of an existing mag: all other voxels stay, and disjoint jobs run side by
side."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from support.inside import memory_of_tasks
from support.locks import put_lock, this_process
from support.strategies import HEAVY
from support.wkw_files import block_bytes, header_of, spoil_block, stored_voxels

import wkwdask
from wkwdask import BoundingBox
from wkwdask.errors import BoundsError, DiscardWarning, LockedError, MissingError, ResumeError

SHAPE = (1, 70, 50, 40)
OFFSET = (13, 8, 5)
OPTIONS = {"block_len": 8, "file_len": 4}  # files of 32 voxels


def voxels(seed=1, shape=SHAPE, dtype="uint16"):
    random = np.random.default_rng(seed)
    array = random.integers(0, 4, shape).astype(dtype) * random.integers(
        0, 2, (shape[0], shape[1], 1, 1)
    ).astype(dtype)
    array[:, :20] = 0
    return array


@pytest.fixture
def mag(tmp_path):
    """A mag in a dataset, whose box cuts blocks."""
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 40))
    folder = tmp_path / "ds" / "seg" / "1"
    wkwdask.to_wkw(voxels(), folder, offset=OFFSET, **OPTIONS)
    return folder


def hashes(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("x*.wkw"))
    }


def stored(folder, low, shape):
    """Read the files, regardless of the mag's box."""
    high = tuple(a + n for a, n in zip(low, shape[1:], strict=True))
    return stored_voxels(folder, high)[
        (slice(None), *(slice(a, b) for a, b in zip(low, high, strict=True)))
    ]


def region_of(low, size):
    return tuple(low), tuple(a + b for a, b in zip(low, size, strict=True))


def leftovers(folder):
    return [
        path.name
        for path in folder.rglob(".*")
        if "wkwdask-job" in path.name or ("lock" in path.name and "datasource" not in path.name)
    ]


BOXES = st.tuples(*(st.tuples(st.integers(0, n - 1), st.integers(1, n)) for n in SHAPE[1:]))


@HEAVY
@given(
    BOXES,
    st.sampled_from(["numpy", "slices", "odd"]),
    st.booleans(),
    st.sampled_from(["lz4hc", "raw"]),
    st.integers(1, 2),
)
def test_any_region_equals_numpy(tmp_path_factory, box, kind, zeros, compression, channels):
    folder = tmp_path_factory.mktemp("any") / "1"
    shape = (channels, *SHAPE[1:])
    before = voxels(shape=shape)
    wkwdask.to_wkw(before, folder, offset=OFFSET, compression=compression, **OPTIONS)
    low = [a for a, _ in box]
    size = [min(n, whole - a) for (a, n), whole in zip(box, SHAPE[1:], strict=True)]
    new = (
        np.zeros((channels, *size), np.uint16)
        if zeros
        else voxels(2, (channels, *size)) + np.uint16(5)
    )
    array = {
        "numpy": new,
        "slices": da.from_array(new, chunks=(-1, -1, -1, 1)),
        "odd": da.from_array(new, chunks=(1, 7, 50, 13)),
    }[kind]
    start = tuple(a + b for a, b in zip(low, OFFSET, strict=True))
    with dask.config.set(scheduler="synchronous"):
        report = wkwdask.to_wkw(array, folder, region=region_of(start, size))
    expected = before.copy()
    expected[(slice(None), *(slice(a, a + n) for a, n in zip(low, size, strict=True)))] = new
    np.testing.assert_array_equal(stored(folder, OFFSET, shape), expected)
    assert report.voxels == np.prod(size)
    assert not leftovers(folder.parent)
    for path in folder.rglob("x*.wkw"):  # no file without voxels stays
        z, y, x = (
            32 * int(name.lstrip("xyz").removesuffix(".wkw"))
            for name in path.relative_to(folder).parts
        )
        assert stored(folder, (x, y, z), (channels, 32, 32, 32)).any()


def test_files_outside_the_region_stay_unchanged(mag):
    before = {path: path.stat().st_mtime_ns for path in mag.rglob("x*.wkw")}
    wkwdask.to_wkw(np.full((3, 3, 3), 9, np.uint16), mag, region=region_of((40, 40, 40), (3, 3, 3)))
    changed = [
        path.relative_to(mag) for path, mtime in before.items() if path.stat().st_mtime_ns != mtime
    ]
    assert changed == [Path("z1/y1/x1.wkw")]


def test_blocks_outside_the_region_are_not_decoded(mag):
    path = mag / "z1/y1/x1.wkw"
    places = list(header_of(mag).places())
    kept = {
        number: spoil_block(path, number)
        for number, place in enumerate(places)
        if place not in ((0, 8, 0), (8, 8, 0))
    }
    wkwdask.to_wkw(
        np.full((10, 8, 8), 9, np.uint16), mag, region=region_of((38, 40, 32), (10, 8, 8))
    )
    assert {number: block_bytes(path, number) for number in kept} == kept
    assert (wkwdask.read(mag, region_of((38, 40, 32), (10, 8, 8))) == 9).all()


def test_a_file_that_becomes_zero_is_removed(mag):
    assert (mag / "z1/y1/x1.wkw").exists()
    wkwdask.to_wkw(np.zeros((32, 26, 13), np.uint16), mag, region=((32, 32, 32), (64, 58, 45)))
    assert not (mag / "z1/y1/x1.wkw").exists()
    assert not wkwdask.read(mag, ((32, 32, 32), (64, 58, 45))).any()
    wkwdask.to_wkw(np.ones((1, 1, 1), np.uint16), mag, region=((40, 40, 40), (41, 41, 41)))
    assert wkwdask.read(mag, ((32, 32, 32), (64, 58, 45))).sum() == 1


def test_raw_files_in_a_compressed_mag_are_rewritten(mag, tmp_path):
    """Their blocks cannot be copied."""
    wkwdask.to_wkw(voxels(), tmp_path / "raw" / "1", offset=OFFSET, compression="raw", **OPTIONS)
    for path in (tmp_path / "raw" / "1").rglob("x*.wkw"):
        os.replace(path, mag / path.relative_to(tmp_path / "raw" / "1"))
    expected = voxels()
    expected[0, 30:40, 30:40, 30:35] = 9
    start = tuple(a + b for a, b in zip((30, 30, 30), OFFSET, strict=True))
    wkwdask.to_wkw(np.full((10, 10, 5), 9, np.uint16), mag, region=region_of(start, (10, 10, 5)))
    np.testing.assert_array_equal(wkwdask.read(mag), expected)


def test_the_record_of_files_is_updated(mag):
    wkwdask.to_wkw(np.full((3, 3, 3), 9, np.uint16), mag, region=region_of((40, 40, 40), (3, 3, 3)))
    known = {tuple(row[:3]): row[3] for row in np.load(mag / ".wkwdask-files.npy").tolist()}
    assert known[1, 1, 1] == (mag / "z1/y1/x1.wkw").stat().st_size
    assert len(known) == 3 * 2 * 2


def test_an_update_follows_a_region(mag):
    wkwdask.build_pyramid(mag, mags=[2])
    wkwdask.to_wkw(np.full((4, 4, 4), 9, np.uint16), mag, region=region_of((40, 40, 40), (4, 4, 4)))
    wkwdask.build_pyramid(mag, update=True)
    assert (wkwdask.read(mag.parent / "2", ((20, 20, 20), (22, 22, 22))) == 9).all()


def test_without_a_json_a_mag_has_no_border(tmp_path):
    wkwdask.create(tmp_path / "1", ((0, 0, 0), (8, 8, 8)), "uint8", **OPTIONS)
    wkwdask.to_wkw(
        np.ones((2, 2, 2), np.uint8), tmp_path / "1", region=region_of((100, 100, 100), (2, 2, 2))
    )
    assert wkwdask.read(tmp_path / "1").sum() == 8


def test_regions_that_do_not_fit_are_refused(mag, tmp_path):
    cube = np.ones((2, 2, 2), np.uint16)
    for region in (region_of((12, 8, 5), (2, 2, 2)), region_of((82, 8, 5), (2, 2, 2))):
        with pytest.raises(BoundsError, match="reaches outside the layer, whose box is"):
            wkwdask.to_wkw(cube, mag, region=region)
    with pytest.raises(ValueError, match=r"has shape \(2, 2, 3\), the array has \(2, 2, 2\)"):
        wkwdask.to_wkw(cube, mag, region=region_of((13, 8, 5), (2, 2, 3)))
    with pytest.raises(TypeError, match="holds 1 channel of uint16, the array is 1 of uint8"):
        wkwdask.to_wkw(cube.astype(np.uint8), mag, region=region_of((13, 8, 5), (2, 2, 2)))
    with pytest.raises(TypeError, match="the array is 2 of uint16"):
        wkwdask.to_wkw(
            np.ones((2, 2, 2, 2), np.uint16), mag, region=region_of((13, 8, 5), (2, 2, 2))
        )
    with pytest.raises(ValueError, match="file_len= is for a new one"):
        wkwdask.to_wkw(cube, mag, region=region_of((13, 8, 5), (2, 2, 2)), file_len=4)
    with pytest.raises(MissingError):
        wkwdask.to_wkw(cube, tmp_path / "none" / "1", region=region_of((13, 8, 5), (2, 2, 2)))
    assert not leftovers(mag.parent)


def test_a_damaged_file_is_an_error_and_stays_unchanged(mag):
    path = mag / "z1/y1/x1.wkw"
    path.write_bytes(path.read_bytes()[:-3])
    before = hashes(mag)
    with pytest.raises(wkwdask.FormatError, match=r"x1\.wkw"):
        wkwdask.to_wkw(
            np.ones((2, 2, 2), np.uint16), mag, region=region_of((40, 40, 40), (2, 2, 2))
        )
    assert hashes(mag) == before


# ----------------------------------------------------------------------------- several jobs


def test_jobs_with_other_files_run_side_by_side(mag):
    """One job waits inside its function until another one has ended."""
    started, ended = threading.Event(), threading.Event()

    def wait(block):
        started.set()
        assert ended.wait(60)
        return block

    ones = np.ones((8, 8, 8), np.uint16)
    slow = da.map_blocks(
        wait, da.from_array(ones, chunks=-1), dtype=np.uint16, meta=np.empty((0, 0, 0), np.uint16)
    )
    first = threading.Thread(
        target=wkwdask.to_wkw, args=(slow, mag), kwargs={"region": region_of((24, 8, 8), (8, 8, 8))}
    )
    first.start()
    try:
        assert started.wait(60)
        wkwdask.to_wkw(ones * 2, mag, region=region_of((32, 8, 8), (8, 8, 8)))  # the next file
        with pytest.raises(
            LockedError,
            match=(
                r"another job writes its files \(0, 0, 0\) to \(1, 1, 1\).*to_wkw region.*remove "
                r".*region-lock"
            ),
        ):
            wkwdask.to_wkw(ones * 3, mag, region=region_of((31, 8, 8), (8, 8, 8)))
        with pytest.raises(LockedError, match="another job writes"):
            wkwdask.to_wkw(ones, mag, existing="overwrite")
        with pytest.raises(LockedError, match="another job writes"):
            wkwdask.rechunk(mag, file_len=2)
    finally:
        ended.set()
        first.join()
    np.testing.assert_array_equal(
        wkwdask.read(mag, region_of((24, 8, 8), (16, 8, 8)))[0, :, 0, 0], [1] * 8 + [2] * 8
    )
    assert not leftovers(mag.parent)


def test_a_lock_on_the_mag_excludes_regions(mag):
    put_lock(mag, this_process())
    with pytest.raises(LockedError, match="another job writes it: another job"):
        wkwdask.to_wkw(
            np.ones((2, 2, 2), np.uint16), mag, region=region_of((40, 40, 40), (2, 2, 2))
        )


def test_a_lock_can_be_removed_by_hand(mag):
    lock = put_lock(mag, this_process(), [(1, 1, 1), (2, 2, 2)])
    region = region_of((40, 40, 40), (2, 2, 2))
    with pytest.raises(LockedError, match="if you know that this job is dead, remove"):
        wkwdask.to_wkw(np.ones((2, 2, 2), np.uint16), mag, region=region)
    lock.unlink()
    wkwdask.to_wkw(np.ones((2, 2, 2), np.uint16), mag, region=region)
    assert not leftovers(mag.parent)


def write_slab(folder, z):
    wkwdask.to_wkw(
        np.full((70, 50, 8), z + 1, np.uint16),
        folder,
        region=((13, 8, 8 + 32 * z), (83, 58, 16 + 32 * z)),
    )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_array_of_jobs_fills_one_layer(tmp_path):
    folder = tmp_path / "1"
    wkwdask.create(folder, region_of((13, 8, 0), (70, 50, 128)), np.uint16, **OPTIONS)
    children = [
        multiprocessing.get_context("fork").Process(target=write_slab, args=(folder, z))
        for z in range(4)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    found = stored(folder, (13, 8, 0), (1, 70, 50, 128))[0]
    np.testing.assert_array_equal(
        found[0, 0, :].reshape(4, 32)[:, 8:16], np.repeat([[1], [2], [3], [4]], 8, axis=1)
    )
    assert found.astype(bool).sum() == 4 * 70 * 50 * 8
    assert not leftovers(tmp_path)


# ----------------------------------------------------------------------------- resumed writes


class Flaky:
    """Chunks that record their computation; from the third one on they fail until ``good`` is 0."""

    def __init__(self, new, good=2):
        self.new, self.good, self.made = new, good, []

    def array(self, chunk):
        def make(block, block_info):
            location = block_info[0]["array-location"]
            self.made.append(tuple(low for low, _ in location))
            if self.good and len(self.made) > self.good:
                raise OverflowError("no")
            return block

        return da.map_blocks(
            make,
            da.from_array(self.new, chunks=chunk),
            dtype=self.new.dtype,
            meta=np.empty((0, 0, 0), self.new.dtype),
        )


@pytest.mark.parametrize("region", [None, region_of((32, 0, 0), (32, 32, 128))])
def test_a_resumed_write_computes_no_finished_file_again(tmp_path, region):
    folder, new = tmp_path / "1", np.ones((32, 32, 128), np.uint8)
    if region is not None:
        wkwdask.create(folder, region_of((0, 0, 0), (64, 32, 128)), np.uint8, **OPTIONS)
    where = {"offset": (32, 0, 0), **OPTIONS} if region is None else {"region": region}
    flaky = Flaky(new)
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(OverflowError) as failed:
            wkwdask.to_wkw(flaky.array(32), folder, **where)
        assert 'existing="resume" resumes with any array' in failed.value.__notes__[-1]
        made, flaky.made, flaky.good = flaky.made, [], 0
        report = wkwdask.to_wkw(flaky.array(32), folder, existing="resume", **where)
    assert set(made[:2]).isdisjoint(flaky.made)
    assert len(flaky.made) == 2
    assert (
        "2 files had been finished before; the array is assumed to be the same, because its place, "
        "shape and type are" in report.note
    )
    assert (wkwdask.read(folder, region_of((32, 0, 0), new.shape)) == 1).all()
    assert not leftovers(tmp_path)


def failed_write(folder, **options):
    with dask.config.set(scheduler="synchronous"), pytest.raises(OverflowError):
        wkwdask.to_wkw(
            Flaky(np.ones((32, 32, 128), np.uint8)).array(32), folder, **{**OPTIONS, **options}
        )


def test_a_resumed_write_compares_token_and_settings(tmp_path):
    folder = tmp_path / "1"
    ones = da.ones((32, 32, 128), dtype=np.uint8, chunks=32)
    failed_write(folder, token="a")
    for options, match in (
        ({"token": "b"}, "token was a, is b"),
        ({"token": "a", "file_len": 2}, "file_len was 4, is 2"),
        ({}, "token was a, is None"),
    ):
        with pytest.raises(ResumeError, match=match):
            wkwdask.to_wkw(ones, folder, existing="resume", **{**OPTIONS, **options})
    report = wkwdask.to_wkw(ones, folder, existing="resume", token="a", **OPTIONS)
    assert "type and token 'a' are" in report.note
    again = wkwdask.to_wkw(ones, folder, existing="resume", token="a", **OPTIONS)
    assert again.note.startswith("nothing to do")
    with pytest.raises(ResumeError, match="token was a, is b"):
        wkwdask.to_wkw(ones, folder, existing="resume", token="b", **OPTIONS)


def test_arrays_in_memory_are_compared(tmp_path):
    folder, ones = tmp_path / "1", np.ones((32, 32, 64), np.uint8)
    wkwdask.to_wkw(ones, folder, **OPTIONS)
    assert (
        "the array is the same" in wkwdask.to_wkw(ones, folder, existing="resume", **OPTIONS).note
    )
    with pytest.raises(ResumeError, match="the source was replaced"):
        wkwdask.to_wkw(ones * 2, folder, existing="resume", **OPTIONS)


def test_another_call_replaces_an_interrupted_one(tmp_path):
    folder = tmp_path / "1"
    failed_write(folder)
    assert leftovers(tmp_path)
    with pytest.warns(DiscardWarning, match="2 tasks, .* of to_wkw"):
        wkwdask.to_wkw(np.full((8, 8, 8), 5, np.uint8), folder, **OPTIONS)
    assert (wkwdask.read(folder) == 5).sum() == 512
    assert not leftovers(tmp_path)


def test_interrupted_regions_are_resumed_independently(tmp_path):
    folder, new = tmp_path / "1", np.ones((32, 32, 128), np.uint8)
    wkwdask.create(folder, region_of((0, 0, 0), (64, 32, 128)), np.uint8, **OPTIONS)
    regions = [region_of((x, 0, 0), new.shape) for x in (0, 32)]
    with dask.config.set(scheduler="synchronous"):
        for region in regions:
            with pytest.raises(OverflowError):
                wkwdask.to_wkw(Flaky(new).array(32), folder, region=region)
        assert len(leftovers(tmp_path)) == 2
        for region in regions:
            report = wkwdask.to_wkw(
                Flaky(new, 0).array(32), folder, region=region, existing="resume"
            )
            assert "files had been finished before" in report.note
    assert (wkwdask.read(folder) == 1).all()
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("change", ["replaced", "appeared"])
def test_files_written_since_the_interruption_are_not_trusted(tmp_path, change):
    folder = tmp_path / "1"
    new = np.ones((32, 32, 128), np.uint8)
    if change == "appeared":
        new[:, :, :64] = 0
    wkwdask.create(
        folder, region_of((0, 0, 0), (32, 32, 128)), np.uint8, compression="raw", **OPTIONS
    )
    wkwdask.to_wkw(np.full_like(new, 9), folder, region=region_of((0, 0, 0), new.shape))
    old = {path: path.read_bytes() for path in folder.rglob("x*.wkw")}
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(OverflowError):
            wkwdask.to_wkw(Flaky(new).array(32), folder, region=region_of((0, 0, 0), new.shape))
        for path, data in old.items():
            path.write_bytes(data)
        report = wkwdask.to_wkw(
            Flaky(new, 0).array(32),
            folder,
            region=region_of((0, 0, 0), new.shape),
            existing="resume",
        )
    assert report.note == ""
    np.testing.assert_array_equal(stored(folder, (0, 0, 0), (1, *new.shape))[0], new)


def test_a_region_is_resumed_beside_a_running_neighbour(tmp_path):
    folder, new = tmp_path / "1", np.ones((32, 32, 128), np.uint8)
    wkwdask.create(folder, region_of((0, 0, 0), (64, 32, 128)), np.uint8, **OPTIONS)
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(OverflowError):
            wkwdask.to_wkw(Flaky(new).array(32), folder, region=region_of((0, 0, 0), new.shape))
        put_lock(folder, this_process(), [(1, 0, 0), (2, 1, 4)])
        report = wkwdask.to_wkw(
            Flaky(new, 0).array(32),
            folder,
            region=region_of((0, 0, 0), new.shape),
            existing="resume",
        )
    assert "2 files had been finished before" in report.note


def test_a_delayed_write_of_a_finished_mag_reports_it(tmp_path):
    ones = da.ones((32, 32, 64), dtype=np.uint8, chunks=32)
    for _ in range(2):
        report = wkwdask.to_wkw(
            ones, tmp_path / "1", existing="resume", compute=False, **OPTIONS
        ).compute()
        assert report.files == 2
    assert report.note.startswith("nothing to do")
    assert not leftovers(tmp_path)


def test_temporary_files_of_a_killed_writer_are_removed(mag):
    left = mag / "..wkwdask-files.npy.0123456789abcdef.wkwdask-tmp"
    left.write_bytes(b"half")
    wkwdask.to_wkw(np.full((3, 3, 3), 9, np.uint16), mag, region=region_of((40, 40, 40), (3, 3, 3)))
    assert not left.exists()


# ----------------------------------------------------------------------------- chunks across files


@pytest.mark.parametrize(("scheduler", "region"), [("synchronous", False), ("threads", True)])
def test_chunks_too_large_for_memory_go_through_scratch_files(tmp_path, scheduler, region):
    values = voxels(3, (2, 130, 70, 60))
    array = da.from_array(values, chunks=(1, -1, -1, 1))
    where = {"offset": OFFSET, **OPTIONS}
    if region:
        wkwdask.create(
            tmp_path / "1",
            BoundingBox(OFFSET, values.shape[1:]),
            np.uint16,
            num_channels=2,
            **OPTIONS,
        )
        where = {"region": region_of(OFFSET, values.shape[1:])}
    with dask.config.set(scheduler=scheduler), memory_of_tasks(4 << 14):
        report = wkwdask.to_wkw(array, tmp_path / "1", **where)
    assert "went through scratch files" in report.note
    np.testing.assert_array_equal(stored(tmp_path / "1", OFFSET, values.shape), values)
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("dtype", [">u2", "<u2", ">i4"])
def test_any_byte_order_is_written(tmp_path, dtype):
    values = np.arange(64**3).reshape(64, 64, 64).astype(dtype)
    with memory_of_tasks(1 << 14):
        report = wkwdask.to_wkw(
            da.from_array(values, chunks=(64, 64, 1)), tmp_path / "1", block_len=32, file_len=1
        )
    assert "scratch files" in report.note
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "1")[0], values)


@pytest.mark.parametrize("memory", [1 << 14, 1 << 40])
def test_chunks_of_another_shape_or_type_are_errors(tmp_path, memory):
    ones = da.from_array(np.ones((64, 64, 64), np.uint8), chunks=(64, 64, 1))
    short = ones.map_blocks(
        lambda block: block[:60],
        dtype=np.uint8,
        chunks=ones.chunks,
        meta=np.empty((0, 0, 0), np.uint8),
    )
    with memory_of_tasks(memory), pytest.raises(ValueError, match="but the array declares"):
        wkwdask.to_wkw(short, tmp_path / "1", file_len=1)
    masked = da.ma.masked_less(ones, 5)
    with memory_of_tasks(memory), pytest.raises(TypeError, match="holds masked arrays"):
        wkwdask.to_wkw(masked, tmp_path / "1", file_len=1)


def test_chunks_that_fit_into_memory_are_written_directly(tmp_path):
    report = wkwdask.to_wkw(
        da.from_array(voxels(), chunks=(1, -1, -1, 1)), tmp_path / "1", **OPTIONS
    )
    assert report.note == ""


def test_regions_of_other_formats_are_written_by_their_functions(tmp_path):
    array, patch, region = (
        np.arange(20 * 18 * 11, dtype=np.uint16).reshape(20, 18, 11),
        np.full((3, 4, 5), 7, np.uint16),
        ((4, 3, 2), (7, 7, 7)),
    )
    expected = array.copy()
    expected[4:7, 3:7, 2:7] = 7
    for function, url in (
        (wkwdask.to_n5, f"{tmp_path}/c.n5/em/s0"),
        (wkwdask.to_precomputed, f"precomputed://{tmp_path}/p"),
        (wkwdask.to_zarr, f"{tmp_path}/z.ome.zarr"),
    ):
        if function is wkwdask.to_zarr:
            pytest.importorskip("zarr")
        function(array, url, voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8))
        function(patch, url, region=region)
        np.testing.assert_array_equal(wkwdask.read(url)[0], expected)
        with pytest.raises(
            ValueError, match="region= writes into an existing mag; chunk_shape= is for a new one"
        ):
            function(patch, url, region=region, chunk_shape=(8, 8, 8))
        with pytest.raises(BoundsError, match="reaches outside"):
            function(patch, url, region=((18, 3, 2), (21, 7, 7)))
    with pytest.raises(ValueError, match=r"named as OME-NGFF, but to_wkw\(\) writes WKW"):
        wkwdask.to_wkw(array, f"{tmp_path}/z.ome.zarr")


# ----------------------------------------------------------------------------- names of arrays


@pytest.mark.parametrize(
    ("save", "url"),
    [
        (wkwdask.to_wkw, "{}/image/1"),
        pytest.param(wkwdask.to_zarr, "zarr://{}/image", marks=pytest.mark.needs("zarr")),
        (wkwdask.to_n5, "n5://{}/image"),
        (wkwdask.to_precomputed, "precomputed://{}/image"),
    ],
)
def test_an_array_opened_after_a_write_has_another_name(tmp_path, save, url):
    url = url.format(tmp_path)
    save(voxels()[..., :32], url, **({} if save is wkwdask.to_wkw else {"voxel_size": (4, 4, 4)}))
    before = wkwdask.open(url)
    assert wkwdask.open(url).name == before.name
    save(np.full((1, 8, 8, 8), 9, np.uint16), url, region=region_of((0, 0, 0), (8, 8, 8)))
    assert wkwdask.open(url).name != before.name


def test_a_cluster_that_holds_old_voxels_reads_new_ones(mag, cluster):
    with Client(cluster):
        held = wkwdask.open(mag).persist()
        assert (held.compute() == voxels()).all()
        wkwdask.to_wkw(
            np.full((1, *SHAPE[1:]), 7, np.uint16),
            mag,
            region=region_of(OFFSET, SHAPE[1:]),
        )
        assert (wkwdask.open(mag).compute() == 7).all()
        assert (held.compute() == voxels()).all()
