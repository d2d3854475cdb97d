"""Updates in place: afterwards the mags are what a new build would make, and nothing was made that did not lie above a change."""

from __future__ import annotations

import json
import os
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

PROGRESS_NAME, PROVENANCE_NAME, RECORD_NAME = ".wkwdask-progress.jsonl", ".wkwdask.json", ".wkwdask-files.npy"
OPTIONS = {"block_len": 4, "file_len": 2, "compression": "lz4"}  # files of 8 voxels an edge
OFFSET = (3, 0, 5)
SHAPE = (60, 40, 30)
MAGS = ("2-2-1", "4-4-2", "16-16-4")
PYRAMID = {"mags": MAGS, "method": "mean"}  # of noise: where one voxel is another, so are all above it


@pytest.fixture(autouse=True)
def _serial():
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


@pytest.fixture
def dataset(tmp_path):
    folder = make_dataset(tmp_path / "ds")
    wkwdask.build_pyramid(folder, **PYRAMID)
    return folder


def source_file(dataset, index):
    return dataset / "color" / "1" / "z{2}/y{1}/x{0}.wkw".format(*index)


@pytest.fixture(scope="module")
def other_files(tmp_path_factory):
    """Files of other voxels, to put in the place of some."""
    return make_dataset(tmp_path_factory.mktemp("other") / "ds", np.random.default_rng(9).integers(1, 250, SHAPE, dtype=np.uint8))


def replace(dataset, index, other_files):
    path = source_file(dataset, index)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source_file(other_files, index), path)


def files(dataset, mags=MAGS):
    return {f"{mag}/{path.relative_to(dataset / 'color' / mag)}": path for mag in mags for path in (dataset / "color" / mag).rglob("x*.wkw")}


def states(dataset):
    return {name: (path.stat().st_ino, path.stat().st_mtime_ns) for name, path in files(dataset).items()}


def check_like_new(dataset, **options):
    """Build the same pyramid elsewhere, and compare every byte of every file."""
    fresh = dataset.parent / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(dataset, fresh)
    wkwdask.build_pyramid(fresh, existing="overwrite", **{**PYRAMID, **options})
    assert {name: path.read_bytes() for name, path in files(dataset).items()} == {name: path.read_bytes() for name, path in files(fresh).items()}
    assert [path.name for path in dataset.rglob(".*") if path.name not in (PROVENANCE_NAME, RECORD_NAME, PROGRESS_NAME)] == []


def changed(before, after):
    """Name the files that were added, removed or replaced."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def above(*indices):
    """Name the files above source files."""
    found = set()
    for x, y, z in indices:
        found |= {f"2-2-1/z{z}/y{y // 2}/x{x // 2}.wkw", f"4-4-2/z{z // 2}/y{y // 4}/x{x // 4}.wkw", f"16-16-4/z{z // 4}/y{y // 16}/x{x // 16}.wkw"}
    return found


# ----------------------------------------------------------------------------- by size and time


def test_nothing_has_changed(dataset):
    before = states(dataset)
    report = wkwdask.build_pyramid(dataset, update=True)
    assert report.note == "nothing to do: no finer file has changed"
    assert (report.mags, report.files, report.nbytes_in) == ((), 0, 0)
    assert states(dataset) == before
    check_like_new(dataset)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_one_file_has_changed(dataset, other_files, scheduler):
    before = states(dataset)
    replace(dataset, (5, 3, 2), other_files)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        report = wkwdask.build_pyramid(dataset, update=True)
    assert changed(before, states(dataset)) == above((5, 3, 2))
    assert report.note == "3 files rebuilt, 3 of them changed"
    assert [(Path(mag.path).name, mag.files) for mag in report.mags] == [(mag, 1) for mag in MAGS]
    assert report.nbytes_in == sum(mag.voxels * times for mag, times in zip(report.mags, (4, 8, 32), strict=True))
    check_like_new(dataset)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


def test_a_file_that_was_only_touched(dataset):
    """What is made of it comes out with the same bytes, and so is no change for what lies above."""
    os.utime(source_file(dataset, (5, 3, 2)))
    before = states(dataset)
    report = wkwdask.build_pyramid(dataset, update=True)
    assert report.note == "1 file rebuilt, 0 of them changed"
    assert states(dataset) == before
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note
    check_like_new(dataset)


def test_files_come_and_go(dataset, other_files):
    before = states(dataset)
    assert not source_file(dataset, (3, 1, 2)).exists()
    replace(dataset, (3, 1, 2), other_files)
    for index in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)):
        source_file(dataset, index).unlink()
    wkwdask.build_pyramid(dataset, update=True)
    assert changed(before, states(dataset)) == above((3, 1, 2), (0, 0, 0))
    assert "2-2-1/z0/y0/x0.wkw" not in states(dataset)  # nothing is left below it
    check_like_new(dataset)


def test_a_source_that_was_written_anew(dataset):
    wkwdask.write(dataset / "color" / "1", OFFSET, voxels(2), existing="overwrite", **OPTIONS)
    wkwdask.build_pyramid(dataset, update=True)
    check_like_new(dataset)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, existing="resume", **PYRAMID).note


@pytest.mark.parametrize("how", ["lost", "replaced", "touched"])
@pytest.mark.parametrize("name", ["2-2-1/z2/y1/x2.wkw", "4-4-2/z1/y0/x1.wkw", "16-16-4/z0/y0/x0.wkw"])
def test_a_file_of_a_made_mag_that_is_not_what_it_was(dataset, other_files, name, how):
    """It is made again, before anything is made from it; what is above it then comes out as it was."""
    path = dataset / "color" / name
    if how == "lost":
        path.unlink()
    elif how == "touched":
        os.utime(path)
    else:
        wkwdask.build_pyramid(other_files, existing="overwrite", **PYRAMID)
        shutil.copyfile(other_files / "color" / name, path)
    before = states(dataset)
    report = wkwdask.build_pyramid(dataset, update=True)
    assert Path(report.mags[0].path) == dataset / "color" / name.split("/", 1)[0]
    assert changed(before, states(dataset)) == (set() if how == "touched" else {name})
    check_like_new(dataset)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


@settings(max_examples=10)
@given(st.data())
def test_any_changes(tmp_path_factory, other_files, data):
    """Replaced, added, removed and touched, in several rounds: always what a new build makes, and no other file is written."""
    dataset = make_dataset(tmp_path_factory.mktemp("any") / "ds")
    wkwdask.build_pyramid(dataset, **PYRAMID)
    indices = st.tuples(st.integers(0, 7), st.integers(0, 4), st.integers(0, 4))
    for _ in range(data.draw(st.integers(1, 3))):
        before, touched = states(dataset), []
        for index, what in data.draw(st.lists(st.tuples(indices, st.sampled_from(["replace", "remove", "touch"])), max_size=4)):
            touched.append(index)
            if what == "replace":
                replace(dataset, index, other_files)
            elif source_file(dataset, index).exists():
                source_file(dataset, index).unlink() if what == "remove" else os.utime(source_file(dataset, index))
        wkwdask.build_pyramid(dataset, update=True)
        assert changed(before, states(dataset)) <= above(*touched)
        check_like_new(dataset)
        assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


def test_a_layer_of_another_box(dataset):
    """With another box other voxels count in the windows at the border, although no file has changed."""
    path = dataset / "datasource-properties.json"
    document = json.loads(path.read_text())
    box = document["dataLayers"][0]["boundingBox"]
    for topleft, size in (((0, 0, 0), (70, 45, 40)), ((5, 3, 6), (57, 36, 28))):
        box["topLeft"], (box["width"], box["height"], box["depth"]) = list(topleft), size
        path.write_text(json.dumps(document))
        wkwdask.build_pyramid(dataset, update=True)
        check_like_new(dataset)
        assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


def test_a_chain_in_a_layer_of_another_box(dataset):
    """Also mags that another call built from one of the coarser mags take note of the box that they agree with now."""
    wkwdask.build_pyramid(dataset, mags=["32-32-8"], finest="16-16-4", method="mean")
    path = dataset / "datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"][0]["boundingBox"] = {"topLeft": [0, 0, 0], "width": 70, "height": 45, "depth": 40}
    path.write_text(json.dumps(document))
    wkwdask.build_pyramid(dataset, update=True)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note
    check_like_new(dataset)
    chained = wkwdask.read(dataset, mag="32-32-8")
    wkwdask.build_pyramid(dataset, mags=["32-32-8"], finest="16-16-4", method="mean", existing="overwrite")
    np.testing.assert_array_equal(chained, wkwdask.read(dataset, mag="32-32-8"))


def test_mags_of_other_lengths_that_were_built_apart(dataset, other_files):
    wkwdask.build_pyramid(dataset, mags=["32-32-8"], finest="16-16-4", method="mean", block_len=2, file_len=1)
    wkwdask.build_pyramid(dataset, mags=["8-8-4"], finest="4-4-2", method="mean", block_len=8, file_len=4)
    replace(dataset, (1, 1, 1), other_files)
    wkwdask.build_pyramid(dataset, update=True)
    for mag, low in (("8-8-4", "4-4-2"), ("32-32-8", "16-16-4")):
        fresh = dataset.parent / "again"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(dataset, fresh)
        lengths = {"8-8-4": (8, 4), "32-32-8": (2, 1)}[mag]
        wkwdask.build_pyramid(fresh, mags=[mag], finest=low, method="mean", existing="overwrite", block_len=lengths[0], file_len=lengths[1])
        assert {name: path.read_bytes() for name, path in files(dataset, [mag]).items()} == {
            name: path.read_bytes() for name, path in files(fresh, [mag]).items()
        }


def test_zeros_stay_ignored(tmp_path, other_files):
    dataset = make_dataset(tmp_path / "ds")
    options = {"mags": MAGS, "method": "mode", "ignore_zero": True}
    wkwdask.build_pyramid(dataset, **options)
    replace(dataset, (4, 2, 2), other_files)
    wkwdask.build_pyramid(dataset, update=True)
    check_like_new(dataset, **options)


# ----------------------------------------------------------------------------- by content


def restore_time(path, times):
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def make_raw(folder):
    """A dataset whose files all have one size."""
    wkwdask.create_dataset(folder, (8, 8, 8))
    wkwdask.write(folder / "color" / "1", OFFSET, voxels(), **{**OPTIONS, "compression": "raw"})
    wkwdask.build_pyramid(folder, **PYRAMID)
    return folder


def flip(dataset, index):
    """Change voxels in place, and neither the size nor the time of the file."""
    path = source_file(dataset, index)
    times, raw = path.stat(), bytearray(path.read_bytes())
    raw[16:] = bytes(255 - n for n in raw[16:])
    path.write_bytes(raw)
    restore_time(path, times)


def test_content_finds_what_times_do_not_tell(tmp_path):
    dataset = make_raw(tmp_path / "ds")
    flip(dataset, (5, 3, 2))
    before = states(dataset)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note
    report = wkwdask.build_pyramid(dataset, update="content")
    assert changed(before, states(dataset)) <= above((5, 3, 2))
    assert "2-2-1/z2/y1/x2.wkw" in changed(before, states(dataset))
    assert report.note.endswith(f"{len(changed(before, states(dataset)))} of them changed")
    check_like_new(dataset)


def test_content_needs_no_record(dataset, other_files):
    """Mags of another writer, or whose record was lost."""
    replace(dataset, (5, 3, 2), other_files)
    for mag in MAGS:
        (dataset / "color" / mag / RECORD_NAME).unlink()
        (dataset / "color" / mag / PROVENANCE_NAME).unlink()
    with pytest.raises(MissingError, match="no mags that build_pyramid made"):
        wkwdask.build_pyramid(dataset, update="content", method="mean")
    with pytest.raises(ResumeError, match=r"2-2-1: not made by wkwdask"):
        wkwdask.build_pyramid(dataset, update=True, mags=MAGS, method="mean")
    before = states(dataset)
    wkwdask.build_pyramid(dataset, update="content", mags=MAGS, method="mean")
    assert changed(before, states(dataset)) == above((5, 3, 2))
    check_like_new(dataset)


def test_content_removes_what_has_no_source(dataset, other_files):
    wkwdask.build_pyramid(other_files, existing="overwrite", **PYRAMID)
    for path in (dataset / "color" / "1").rglob("x*.wkw"):
        if path.parent.parent.name == "z4":
            path.unlink()
    wkwdask.build_pyramid(dataset, update="content")
    check_like_new(dataset)
    assert not (dataset / "color" / "2-2-1" / "z4").exists() or not list((dataset / "color" / "2-2-1" / "z4").rglob("*.wkw"))


# ----------------------------------------------------------------------------- above a box


@pytest.mark.parametrize("box", [(42, 25, 18, 3, 3, 3), "42, 25, 18, 3, 3, 3", wkwdask.BoundingBox((40, 24, 16), (8, 8, 8))])
@pytest.mark.parametrize("update", [False, True])
def test_above_a_box(tmp_path, box, update):
    dataset = make_raw(tmp_path / "ds")
    flip(dataset, (5, 3, 2))
    flip(dataset, (0, 0, 1))
    before = states(dataset)
    wkwdask.build_pyramid(dataset, bounding_box=box, update=update)
    assert "2-2-1/z2/y1/x2.wkw" in changed(before, states(dataset))
    assert changed(before, states(dataset)) <= above((5, 3, 2))
    wkwdask.build_pyramid(dataset, bounding_box=(0, 0, 0, 16, 16, 16))
    check_like_new(dataset)
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note


def test_a_box_elsewhere(dataset):
    before = states(dataset)
    with pytest.raises(BoundsError, match="lies outside"):
        wkwdask.build_pyramid(dataset, bounding_box=(1000, 1000, 1000, 5, 5, 5))
    assert states(dataset) == before


# ----------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("options", [{"update": True}, {"update": "content"}, {"bounding_box": (3, 0, 5, 9, 9, 9)}])
def test_what_is_not_there(tmp_path, options):
    dataset = make_dataset(tmp_path / "ds")
    with pytest.raises(MissingError, match="no mags that build_pyramid made from mag 1"):
        wkwdask.build_pyramid(dataset, **options)
    wkwdask.build_pyramid(dataset, mags=[2], method="max")
    with pytest.raises(MissingError, match="mag 4, 8 is missing and cannot be updated; build it first"):
        wkwdask.build_pyramid(dataset, mags=[2, 4, 8], **options)
    assert sorted(os.listdir(dataset / "color")) == ["1", "2"]


def test_another_method_is_another_pyramid(dataset, other_files):
    replace(dataset, (5, 3, 2), other_files)
    for options, asked in (({"method": "min"}, "min"), ({"method": "mode"}, "mode"), ({"ignore_zero": True, "method": "mean"}, "mean with ignore_zero")):
        with pytest.raises(ResumeError, match=f"made with mean, not {asked}; build the mags again"):
            wkwdask.build_pyramid(dataset, update=True, **options)
    wkwdask.build_pyramid(dataset, update=True, method="mean")
    check_like_new(dataset)


def test_mags_of_different_methods(dataset, other_files):
    wkwdask.build_pyramid(dataset, mags=["16-16-4"], finest="4-4-2", method="min", existing="overwrite")
    replace(dataset, (5, 3, 2), other_files)
    wkwdask.build_pyramid(dataset, update=True)
    updated = {name: path.read_bytes() for name, path in files(dataset).items()}
    wkwdask.build_pyramid(dataset, mags=["16-16-4"], finest="4-4-2", method="min", existing="overwrite")
    assert {name: path.read_bytes() for name, path in files(dataset).items()} == updated


def test_a_mag_of_another_type(dataset):
    shutil.rmtree(dataset / "color" / "4-4-2")
    wkwdask.write(dataset.parent / "x" / "1", (0, 0, 0), np.ones((9, 9, 9), np.uint16), **OPTIONS)
    shutil.copytree(dataset.parent / "x" / "1", dataset / "color" / "4-4-2")
    with pytest.raises(ResumeError, match=r"4-4-2: made by to_wkw"):
        wkwdask.build_pyramid(dataset, update="content", mags=["2-2-1", "4-4-2"])
    (dataset / "color" / "4-4-2" / PROVENANCE_NAME).unlink()
    with pytest.raises(ValueError, match=r"4-4-2: 1 channels of uint16, the finest mag has 1 of uint8"):
        wkwdask.build_pyramid(dataset, update="content", mags=["2-2-1", "4-4-2"])


def test_a_mag_that_another_job_writes(dataset):
    def update(voxels):
        with pytest.raises(LockedError, match="4-4-2: another job writes it: to_wkw"):
            wkwdask.build_pyramid(dataset, update=True)
        return voxels

    array = da.zeros((8, 8, 8), dtype=np.uint8, chunks=8).map_blocks(update, dtype=np.uint8, meta=np.empty((0, 0, 0), np.uint8))
    wkwdask.to_wkw(array, dataset / "color" / "4-4-2", existing="overwrite", **OPTIONS)
    wkwdask.build_pyramid(dataset, mags=["4-4-2", "16-16-4"], method="mean", existing="overwrite", finest="2-2-1")
    wkwdask.build_pyramid(dataset, update=True)


def test_an_unwritable_mag(dataset, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("4-4-2"))
    with pytest.raises(PermissionError, match="the mag cannot be written"):
        wkwdask.build_pyramid(dataset, update=True)
    assert [path.name for path in (dataset / "color").iterdir() if path.name.startswith(".")] == []


# ----------------------------------------------------------------------------- interrupted


def test_an_update_that_fails_is_done_again(dataset, other_files):
    """Each file appears whole; records are kept while the work goes on, so that the next update does not begin at the beginning."""
    for index in ((0, 4, 0), (2, 4, 0), (5, 3, 2)):
        replace(dataset, index, other_files)
    path = source_file(dataset, (5, 3, 2))
    whole = path.read_bytes()
    path.write_bytes(whole[:16] + b"\xff" * 64 + whole[80:])
    before = states(dataset)
    with limited(save_seconds=0.0), pytest.raises(FormatError):
        wkwdask.build_pyramid(dataset, update=True)
    assert changed(before, states(dataset)) == {"2-2-1/z0/y2/x0.wkw", "2-2-1/z0/y2/x1.wkw"}
    assert [name for name in os.listdir(dataset / "color") if name.startswith(".")] == []
    path.write_bytes(whole)
    before = states(dataset)
    wkwdask.build_pyramid(dataset, update=True)
    assert changed(before, states(dataset)) == above((0, 4, 0), (2, 4, 0), (5, 3, 2)) - {"2-2-1/z0/y2/x0.wkw", "2-2-1/z0/y2/x1.wkw"}
    check_like_new(dataset)


def test_an_update_that_fails_before_any_record_was_kept(dataset, other_files):
    for index in ((0, 4, 0), (5, 3, 2)):
        replace(dataset, index, other_files)
    path = source_file(dataset, (5, 3, 2))
    whole = path.read_bytes()
    path.write_bytes(whole[:16] + b"\xff" * 64 + whole[80:])
    with pytest.raises(FormatError):
        wkwdask.build_pyramid(dataset, update=True)
    path.write_bytes(whole)
    wkwdask.build_pyramid(dataset, update=True)
    check_like_new(dataset)
