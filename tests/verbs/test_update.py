"""Updates in place: the mags equal those of a new build, and only files above a change are
rewritten."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.inside import limited

import wkwdask
from wkwdask.errors import BoundsError, FormatError, LockedError, MissingError, ResumeError

PROGRESS_NAME, PROVENANCE_NAME, RECORD_NAME = (
    ".wkwdask-progress.jsonl",
    ".wkwdask.json",
    ".wkwdask-files.npy",
)
OPTIONS = {"block_len": 4, "file_len": 2, "compression": "lz4"}  # files of 8 voxels an edge
OFFSET = (3, 0, 5)
SHAPE = (45, 32, 24)
MAGS = ("2-2-1", "4-4-2", "16-16-4")
PYRAMID = {"mags": MAGS, "method": "mean"}  # of noise: a changed voxel changes all voxels above it


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


def voxels(seed=1):
    """Noise, with holes of whole files."""
    random = np.random.default_rng(seed)
    array = random.integers(1, 250, SHAPE, dtype=np.uint8)
    array[20:40, :20] = 0
    return array


def make_dataset(folder, array=None):
    wkwdask.create_dataset(folder, (8, 8, 8))
    wkwdask.write(folder / "color" / "1", OFFSET, voxels() if array is None else array, **OPTIONS)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = make_dataset(tmp_path_factory.mktemp("built") / "ds")
    with dask.config.set(scheduler="synchronous"):
        wkwdask.build_pyramid(folder, **PYRAMID)
    return folder


@pytest.fixture
def dataset(built, tmp_path):
    # with the modification times, which records compare
    return shutil.copytree(built, tmp_path / "ds")


def source_file(dataset, index):
    return dataset / "color" / "1" / "z{2}/y{1}/x{0}.wkw".format(*index)


@pytest.fixture(scope="module")
def other_files(tmp_path_factory):
    """Dataset with other voxels and the same file names."""
    folder = make_dataset(
        tmp_path_factory.mktemp("other") / "ds",
        np.random.default_rng(9).integers(1, 250, SHAPE, dtype=np.uint8),
    )
    with dask.config.set(scheduler="synchronous"):
        wkwdask.build_pyramid(folder, **PYRAMID)
    return folder


def replace(dataset, index, other_files):
    path = source_file(dataset, index)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source_file(other_files, index), path)


def files(dataset, mags=MAGS):
    return {
        f"{mag}/{path.relative_to(dataset / 'color' / mag)}": path
        for mag in mags
        for path in (dataset / "color" / mag).rglob("x*.wkw")
    }


def states(dataset):
    return {
        name: (path.stat().st_ino, path.stat().st_mtime_ns) for name, path in files(dataset).items()
    }


def check_equals_new_build(dataset, **options):
    fresh = dataset.parent / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    # files are published by renaming, never changed
    shutil.copytree(dataset, fresh, copy_function=os.link)
    wkwdask.build_pyramid(fresh, existing="overwrite", **{**PYRAMID, **options})
    assert {name: path.read_bytes() for name, path in files(dataset).items()} == {
        name: path.read_bytes() for name, path in files(fresh).items()
    }
    assert [
        path.name
        for path in dataset.rglob(".*")
        if path.name not in (PROVENANCE_NAME, RECORD_NAME, PROGRESS_NAME)
    ] == []


def changed(before, after):
    """Name the files that were added, removed or replaced."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def above(*indices):
    """Name the files above source files."""
    found = set()
    for x, y, z in indices:
        found |= {
            f"2-2-1/z{z}/y{y // 2}/x{x // 2}.wkw",
            f"4-4-2/z{z // 2}/y{y // 4}/x{x // 4}.wkw",
            f"16-16-4/z{z // 4}/y{y // 16}/x{x // 16}.wkw",
        }
    return found


# ----------------------------------------------------------------------------- by size and time


def test_unchanged_source_rebuilds_nothing(dataset):
    before = states(dataset)
    report = wkwdask.build_pyramid(dataset, update=True)
    assert report.note == "nothing to do: no finer file has changed"
    assert (report.mags, report.files, report.nbytes_in) == ((), 0, 0)
    assert states(dataset) == before
    check_equals_new_build(dataset)


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["synchronous", "processes"])
def test_changed_file_rebuilds_the_files_above_it(dataset, other_files, scheduler):
    before = states(dataset)
    replace(dataset, (5, 3, 2), other_files)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        report = wkwdask.build_pyramid(dataset, update=True)
    assert changed(before, states(dataset)) == above((5, 3, 2))
    assert report.note == "3 files rebuilt, 3 of them changed"
    assert [(Path(mag.path).name, mag.files) for mag in report.mags] == [(mag, 1) for mag in MAGS]
    assert report.nbytes_in == sum(
        mag.voxels * times for mag, times in zip(report.mags, (4, 8, 32), strict=True)
    )
    check_equals_new_build(dataset)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({"update": True}, above((5, 3, 2))),
        ({"bounding_box": (43, 24, 21, 1, 1, 1)}, above((5, 3, 2))),
        ({"update": "content"}, None),
    ],
)
def test_the_plan_of_an_update(dataset, other_files, options, paths):
    assert "nothing to do" in str(wkwdask.plan_pyramid(dataset, update=True))
    replace(dataset, (5, 3, 2), other_files)
    before = states(dataset)
    plan = wkwdask.plan_pyramid(dataset, **options)
    assert states(dataset) == before
    report = wkwdask.build_pyramid(dataset, **options)
    rebuilt = [(mag.path, mag.files) for mag in report.mags]
    if paths is None:
        assert all(m.files >= n for m, (_, n) in zip(plan.mags, rebuilt, strict=True))
    else:
        assert [(mag.folder, mag.files) for mag in plan.mags] == rebuilt
        assert plan.tasks == plan.files == len(paths)
        written = sum(mag.nbytes for mag in report.mags)
        assert plan.nbytes_out / 1.5 < written < 1.5 * plan.nbytes_out
    assert plan.voxel_nbytes_in >= report.nbytes_in
    assert f"up to {plan.files} files, about" in str(plan)
    assert "free" in str(plan)


def test_touched_file_changes_no_bytes_above_it(dataset):
    os.utime(source_file(dataset, (5, 3, 2)))
    before = states(dataset)
    report = wkwdask.build_pyramid(dataset, update=True)
    assert report.note == "1 file rebuilt, 0 of them changed"
    assert states(dataset) == before
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note
    check_equals_new_build(dataset)


def test_added_and_removed_files(dataset, other_files):
    before = states(dataset)
    assert not source_file(dataset, (3, 1, 2)).exists()
    replace(dataset, (3, 1, 2), other_files)
    for index in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)):
        source_file(dataset, index).unlink()
    wkwdask.build_pyramid(dataset, update=True)
    assert changed(before, states(dataset)) == above((3, 1, 2), (0, 0, 0))
    assert "2-2-1/z0/y0/x0.wkw" not in states(dataset)  # without source files
    check_equals_new_build(dataset)


def test_overwritten_source(dataset):
    wkwdask.write(dataset / "color" / "1", OFFSET, voxels(2), existing="overwrite", **OPTIONS)
    wkwdask.build_pyramid(dataset, update=True)
    check_equals_new_build(dataset)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, existing="resume", **PYRAMID).note


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("2-2-1/z2/y1/x2.wkw", "lost"),
        ("2-2-1/z2/y1/x2.wkw", "replaced"),
        ("4-4-2/z1/y0/x1.wkw", "touched"),
        ("16-16-4/z0/y0/x0.wkw", "replaced"),
    ],
)
def test_damaged_coarser_file_is_rebuilt_before_those_above_it(dataset, other_files, name, how):
    path = dataset / "color" / name
    if how == "lost":
        path.unlink()
    elif how == "touched":
        os.utime(path)
    else:
        shutil.copyfile(other_files / "color" / name, path)
    before = states(dataset)
    report = wkwdask.build_pyramid(dataset, update=True)
    assert Path(report.mags[0].path) == dataset / "color" / name.split("/", 1)[0]
    assert changed(before, states(dataset)) == (set() if how == "touched" else {name})
    check_equals_new_build(dataset)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


@settings(max_examples=max(1, settings.default.max_examples // 3))
@given(st.data())
def test_any_changes(tmp_path_factory, built, other_files, data):
    """Replace, add, remove and touch files in several rounds: only files above them are
    rewritten."""
    dataset = shutil.copytree(built, tmp_path_factory.mktemp("any") / "ds")
    indices = st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3))
    for _ in range(data.draw(st.integers(1, 3))):
        before, touched = states(dataset), []
        for index, change in data.draw(
            st.lists(
                st.tuples(indices, st.sampled_from(["replace", "remove", "touch"])), max_size=4
            )
        ):
            touched.append(index)
            if change == "replace":
                replace(dataset, index, other_files)
            elif source_file(dataset, index).exists():
                source_file(dataset, index).unlink() if change == "remove" else os.utime(
                    source_file(dataset, index)
                )
        wkwdask.build_pyramid(dataset, update=True)
        assert changed(before, states(dataset)) <= above(*touched)
        check_equals_new_build(dataset)
        assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


def test_changed_box_of_the_layer(dataset):
    """Another box changes the windows at its border, although no file has changed."""
    path = dataset / "datasource-properties.json"
    document = json.loads(path.read_text())
    box = document["dataLayers"][0]["boundingBox"]
    for topleft, size in (((0, 0, 0), (55, 37, 34)), ((5, 3, 6), (42, 28, 22))):
        box["topLeft"], (box["width"], box["height"], box["depth"]) = list(topleft), size
        path.write_text(json.dumps(document))
        wkwdask.build_pyramid(dataset, update=True)
        check_equals_new_build(dataset)
        assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


def test_changed_box_updates_mags_built_by_another_call(dataset):
    wkwdask.build_pyramid(dataset, mags=["32-32-8"], finest="16-16-4", method="mean")
    path = dataset / "datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"][0]["boundingBox"] = {
        "topLeft": [0, 0, 0],
        "width": 55,
        "height": 37,
        "depth": 34,
    }
    path.write_text(json.dumps(document))
    wkwdask.build_pyramid(dataset, update=True)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note
    check_equals_new_build(dataset)
    chained = wkwdask.read(dataset, mag="32-32-8")
    wkwdask.build_pyramid(
        dataset, mags=["32-32-8"], finest="16-16-4", method="mean", existing="overwrite"
    )
    np.testing.assert_array_equal(chained, wkwdask.read(dataset, mag="32-32-8"))


def test_mags_with_other_block_lengths_built_by_other_calls(dataset, other_files):
    wkwdask.build_pyramid(
        dataset, mags=["32-32-8"], finest="16-16-4", method="mean", block_len=2, file_len=1
    )
    wkwdask.build_pyramid(
        dataset, mags=["8-8-4"], finest="4-4-2", method="mean", block_len=8, file_len=4
    )
    replace(dataset, (1, 1, 1), other_files)
    wkwdask.build_pyramid(dataset, update=True)
    for mag, low in (("8-8-4", "4-4-2"), ("32-32-8", "16-16-4")):
        fresh = dataset.parent / "again"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(dataset, fresh)
        lengths = {"8-8-4": (8, 4), "32-32-8": (2, 1)}[mag]
        wkwdask.build_pyramid(
            fresh,
            mags=[mag],
            finest=low,
            method="mean",
            existing="overwrite",
            block_len=lengths[0],
            file_len=lengths[1],
        )
        assert {name: path.read_bytes() for name, path in files(dataset, [mag]).items()} == {
            name: path.read_bytes() for name, path in files(fresh, [mag]).items()
        }


def test_update_keeps_ignoring_zeros(tmp_path, other_files):
    dataset = make_dataset(tmp_path / "ds")
    options = {"mags": MAGS, "method": "mode", "ignore_zero": True}
    wkwdask.build_pyramid(dataset, **options)
    replace(dataset, (4, 2, 2), other_files)
    wkwdask.build_pyramid(dataset, update=True)
    check_equals_new_build(dataset, **options)


# ----------------------------------------------------------------------------- by content


def restore_time(path, times):
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def make_raw(folder):
    """Make a dataset of raw files, which all have one size."""
    wkwdask.create_dataset(folder, (8, 8, 8))
    wkwdask.write(folder / "color" / "1", OFFSET, voxels(), **{**OPTIONS, "compression": "raw"})
    wkwdask.build_pyramid(folder, **PYRAMID)
    return folder


def flip(dataset, index):
    """Change voxels, but neither size nor modification time of their file."""
    path = source_file(dataset, index)
    times, raw = path.stat(), bytearray(path.read_bytes())
    raw[16:] = bytes(255 - n for n in raw[16:])
    path.write_bytes(raw)
    restore_time(path, times)


def test_content_finds_changes_without_new_times(tmp_path):
    dataset = make_raw(tmp_path / "ds")
    flip(dataset, (5, 3, 2))
    before = states(dataset)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note
    report = wkwdask.build_pyramid(dataset, update="content")
    assert changed(before, states(dataset)) <= above((5, 3, 2))
    assert "2-2-1/z2/y1/x2.wkw" in changed(before, states(dataset))
    assert report.note.endswith(f"{len(changed(before, states(dataset)))} of them changed")
    check_equals_new_build(dataset)


def test_content_needs_no_record(dataset, other_files):
    replace(dataset, (5, 3, 2), other_files)
    for mag in MAGS:
        (dataset / "color" / mag / RECORD_NAME).unlink()
        (dataset / "color" / mag / PROVENANCE_NAME).unlink()
    with pytest.raises(
        MissingError,
        match=(
            r'no mags that build_pyramid made from mag 1; mags="[-0-9,]+" with update="content" '
            r"builds them again"
        ),
    ):
        wkwdask.build_pyramid(dataset, update="content", method="mean")
    with pytest.raises(ResumeError, match=r"2-2-1: not made by wkwdask"):
        wkwdask.build_pyramid(dataset, update=True, mags=MAGS, method="mean")
    before = states(dataset)
    wkwdask.build_pyramid(dataset, update="content", mags=MAGS, method="mean")
    assert changed(before, states(dataset)) == above((5, 3, 2))
    check_equals_new_build(dataset)


def test_content_removes_files_without_source(dataset):
    for path in (dataset / "color" / "1").rglob("x*.wkw"):
        if path.parent.parent.name == "z3":
            path.unlink()
    wkwdask.build_pyramid(dataset, update="content")
    check_equals_new_build(dataset)
    assert not (dataset / "color" / "2-2-1" / "z3").exists() or not list(
        (dataset / "color" / "2-2-1" / "z3").rglob("*.wkw")
    )


# ----------------------------------------------------------------------------- above a box


@pytest.mark.parametrize(
    ("box", "update"),
    [
        ((42, 25, 18, 3, 3, 3), False),
        ("42, 25, 18, 3, 3, 3", True),
        (wkwdask.BoundingBox((40, 24, 16), (8, 8, 8)), False),
    ],
)
def test_box_limits_the_rebuilt_files(tmp_path, box, update):
    dataset = make_raw(tmp_path / "ds")
    flip(dataset, (5, 3, 2))
    flip(dataset, (0, 0, 1))
    before = states(dataset)
    wkwdask.build_pyramid(dataset, bounding_box=box, update=update)
    assert "2-2-1/z2/y1/x2.wkw" in changed(before, states(dataset))
    assert changed(before, states(dataset)) <= above((5, 3, 2))
    wkwdask.build_pyramid(dataset, bounding_box=(0, 0, 0, 16, 16, 16))
    check_equals_new_build(dataset)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


def test_box_outside_the_layer_is_refused(dataset):
    before = states(dataset)
    with pytest.raises(BoundsError, match="lies outside"):
        wkwdask.build_pyramid(dataset, bounding_box=(1000, 1000, 1000, 5, 5, 5))
    assert states(dataset) == before


# ----------------------------------------------------------------------------- refused updates


def test_missing_mags_are_not_updated(tmp_path):
    dataset = make_dataset(tmp_path / "ds")
    all_options = ({"update": True}, {"update": "content"}, {"bounding_box": (3, 0, 5, 9, 9, 9)})
    for options in all_options:
        with pytest.raises(MissingError, match="no mags that build_pyramid made from mag 1"):
            wkwdask.build_pyramid(dataset, **options)
    wkwdask.build_pyramid(dataset, mags=[2], method="max")
    for options in all_options:
        with pytest.raises(
            MissingError, match="mag 4, 8 is missing and cannot be updated; build it first"
        ):
            wkwdask.build_pyramid(dataset, mags=[2, 4, 8], **options)
    assert sorted(os.listdir(dataset / "color")) == ["1", "2"]


def test_mags_above_a_removed_mag_need_it(dataset):
    wkwdask.rm(dataset, mags="2-2-1")
    remedy = r'build_pyramid\(mags="2-2-1", method="mean"\) builds it again, and then update=True'
    message = f"mag 4-4-2 was made from mag 2-2-1, which does not exist; {remedy}"
    for update in (True, "content"):
        with pytest.raises(MissingError, match=message):
            wkwdask.build_pyramid(dataset, update=update)
    wkwdask.build_pyramid(dataset, mags="2-2-1", method="mean")
    wkwdask.build_pyramid(dataset, update=True)
    check_equals_new_build(dataset)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_mag_above_a_gap_is_not_left_out_in_silence(dataset, other_files, is_listed):
    """Finer mags could be updated, but the pyramid would not be up to date."""
    replace(dataset, (5, 3, 2), other_files)
    if is_listed:
        shutil.rmtree(dataset / "color" / "4-4-2")
    else:
        wkwdask.rm(dataset, mags="4-4-2")
    before = states(dataset)
    remedy = r'build_pyramid\(mags="4-4-2", finest="2-2-1", method="mean"\) builds it again'
    message = f"mag 16-16-4 was made from mag 4-4-2, which does not exist; {remedy}"
    for verb in (wkwdask.build_pyramid, wkwdask.plan_pyramid):
        for options in ({"update": True}, {"bounding_box": (3, 0, 5, 9, 9, 9)}):
            with pytest.raises(MissingError, match=f'{message}.*; mags="2-2-1" updates the others'):
                verb(dataset, **options)
    assert states(dataset) == before
    report = wkwdask.build_pyramid(dataset, update=True, mags="2-2-1")
    assert [Path(mag.path).name for mag in report.mags] == ["2-2-1"]
    wkwdask.build_pyramid(dataset, mags="4-4-2", finest="2-2-1", method="mean")
    wkwdask.build_pyramid(dataset, update=True)
    check_equals_new_build(dataset)


def test_a_removed_mag_is_built_again_as_it_was(tmp_path):
    """Its pyramid begins at another mag than the finest one, and ignores zeros."""
    dataset, rng = tmp_path / "ds", np.random.default_rng(1)
    wkwdask.create_dataset(dataset, (8, 8, 8))
    for mag in (1, 2):
        array = rng.integers(0, 3, (1, *(64 // mag,) * 3), np.uint8)
        wkwdask.to_wkw(array, dataset / "color" / str(mag), block_len=8, file_len=2)
    options = {"finest": "2", "method": "median", "ignore_zero": True}
    wkwdask.build_pyramid(dataset, mags=["4", "8"], **options)
    expected = wkwdask.read(dataset, mag="4"), wkwdask.read(dataset, mag="8")
    wkwdask.rm(dataset, mags="4")
    remedy = 'mags="4", finest="2", method="median", ignore_zero=True'
    with pytest.raises(MissingError, match=re.escape(f"build_pyramid({remedy}) builds it again")):
        wkwdask.build_pyramid(dataset, update=True, finest="2")
    wkwdask.build_pyramid(dataset, mags="4", **options)
    wkwdask.build_pyramid(dataset, update=True, finest="2")
    for mag, before in zip(("4", "8"), expected, strict=True):
        np.testing.assert_array_equal(wkwdask.read(dataset, mag=mag), before)


def test_a_mag_of_another_pyramid_may_have_lost_its_source(dataset):
    """It does not belong to the mags above the finest one that exists."""
    wkwdask.build_pyramid(dataset, mags="8", method="mean")
    wkwdask.rm(dataset, mags="1")
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


def test_mags_above_a_mag_of_another_source(dataset):
    wkwdask.upsample(dataset, source="16-16-4", mags="2-2-1", existing="overwrite")
    message = "mag 4-4-2 was made from mag 2-2-1, which build_pyramid did not make from mag 1: name"
    with pytest.raises(MissingError, match=message):
        wkwdask.build_pyramid(dataset, update=True)
    report = wkwdask.build_pyramid(dataset, update=True, finest="2-2-1")
    assert [Path(mag.path).name for mag in report.mags] == ["4-4-2", "16-16-4"]


def test_update_with_another_method_is_refused(dataset, other_files):
    replace(dataset, (5, 3, 2), other_files)
    for options, asked in (
        ({"method": "min"}, "min"),
        ({"method": "mode"}, "mode"),
        ({"ignore_zero": True, "method": "mean"}, "mean with ignore_zero"),
    ):
        with pytest.raises(ResumeError, match=f"made with mean, not {asked}; build the mags again"):
            wkwdask.build_pyramid(dataset, update=True, **options)
    wkwdask.build_pyramid(dataset, update=True, method="mean")
    check_equals_new_build(dataset)


def test_each_mag_keeps_its_method(dataset, other_files):
    wkwdask.build_pyramid(
        dataset, mags=["16-16-4"], finest="4-4-2", method="min", existing="overwrite"
    )
    replace(dataset, (5, 3, 2), other_files)
    wkwdask.build_pyramid(dataset, update=True)
    updated = {name: path.read_bytes() for name, path in files(dataset).items()}
    wkwdask.build_pyramid(
        dataset, mags=["16-16-4"], finest="4-4-2", method="min", existing="overwrite"
    )
    assert {name: path.read_bytes() for name, path in files(dataset).items()} == updated


def test_mag_of_another_type_is_refused(dataset):
    shutil.rmtree(dataset / "color" / "4-4-2")
    wkwdask.write(dataset.parent / "x" / "1", (0, 0, 0), np.ones((9, 9, 9), np.uint16), **OPTIONS)
    shutil.copytree(dataset.parent / "x" / "1", dataset / "color" / "4-4-2")
    with pytest.raises(ResumeError, match=r"4-4-2: made by to_wkw"):
        wkwdask.build_pyramid(dataset, update="content", mags=["2-2-1", "4-4-2"])
    (dataset / "color" / "4-4-2" / PROVENANCE_NAME).unlink()
    with pytest.raises(
        ValueError, match=r"4-4-2: 1 channel of uint16, the finest mag has 1 of uint8"
    ):
        wkwdask.build_pyramid(dataset, update="content", mags=["2-2-1", "4-4-2"])


def test_locked_mag_is_refused(dataset):
    def update(voxels):
        with pytest.raises(LockedError, match="4-4-2: another job writes it: to_wkw"):
            wkwdask.build_pyramid(dataset, update=True)
        return voxels

    array = da.zeros((8, 8, 8), dtype=np.uint8, chunks=8).map_blocks(
        update, dtype=np.uint8, meta=np.empty((0, 0, 0), np.uint8)
    )
    wkwdask.to_wkw(array, dataset / "color" / "4-4-2", existing="overwrite", **OPTIONS)
    wkwdask.build_pyramid(
        dataset, mags=["4-4-2", "16-16-4"], method="mean", existing="overwrite", finest="2-2-1"
    )
    wkwdask.build_pyramid(dataset, update=True)


def test_unwritable_mag_is_refused(dataset, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("4-4-2"))
    with pytest.raises(PermissionError, match="the mag cannot be written"):
        wkwdask.build_pyramid(dataset, update=True)
    assert [path.name for path in (dataset / "color").iterdir() if path.name.startswith(".")] == []


# ----------------------------------------------------------------------------- interrupted


def test_failed_update_resumes_from_its_records(dataset, other_files):
    for index in ((0, 3, 0), (2, 3, 0), (5, 3, 2)):
        replace(dataset, index, other_files)
    path = source_file(dataset, (5, 3, 2))
    whole = path.read_bytes()
    path.write_bytes(whole[:16] + b"\xff" * 64 + whole[80:])
    before = states(dataset)
    with limited(save_seconds=0.0), pytest.raises(FormatError):
        wkwdask.build_pyramid(dataset, update=True)
    assert changed(before, states(dataset)) == {"2-2-1/z0/y1/x0.wkw", "2-2-1/z0/y1/x1.wkw"}
    assert [name for name in os.listdir(dataset / "color") if name.startswith(".")] == []
    path.write_bytes(whole)
    before = states(dataset)
    wkwdask.build_pyramid(dataset, update=True)
    assert changed(before, states(dataset)) == above((0, 3, 0), (2, 3, 0), (5, 3, 2)) - {
        "2-2-1/z0/y1/x0.wkw",
        "2-2-1/z0/y1/x1.wkw",
    }
    check_equals_new_build(dataset)


def test_update_that_fails_before_its_first_record(dataset, other_files):
    for index in ((0, 3, 0), (5, 3, 2)):
        replace(dataset, index, other_files)
    path = source_file(dataset, (5, 3, 2))
    whole = path.read_bytes()
    path.write_bytes(whole[:16] + b"\xff" * 64 + whole[80:])
    with pytest.raises(FormatError):
        wkwdask.build_pyramid(dataset, update=True)
    path.write_bytes(whole)
    wkwdask.build_pyramid(dataset, update=True)
    check_equals_new_build(dataset)
