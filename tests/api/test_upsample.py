"""Upsampling of WKW: numpy as the oracle, wkw as the reader, killed processes, refusals."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, journaled, rechunks_of, stopping
from faults.trees import JSON_NAME, contents, differences, lay_out, leftovers, make_dataset, states
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run_here
from support.inside import before_task, limited
from support.locks import put_lock, this_process
from support.strategies import DTYPE_NAMES, HEAVY, VOXEL_KINDS, vectors, voxel_array
from support.wkw_files import header_of

import wkwdask
from wkwdask import BoundingBox, Mag
from wkwdask.errors import DiscardWarning, ExistsError, LockedError, MissingError, ResumeError

VOXEL_SIZE = (11.24, 11.24, 28)
OPTIONS = {"block_len": 8, "file_len": 2, "compression": "lz4"}
OFFSET = (9, 4, 13)
SHAPE = (27, 21, 24)


@pytest.fixture(autouse=True)
def _without_flushing(monkeypatch):
    """Killed processes lose no unflushed data."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def voxels(shape=SHAPE, seed=1):
    """Labels, with holes that leave files and regions empty."""
    array = np.random.default_rng(seed).integers(1, 200, shape).astype(np.uint16)
    array[: shape[0] // 2, :, shape[2] // 3 :] = 0
    array[-6:, -9:] = 0
    return array


@pytest.fixture
def dataset(tmp_path):
    """A layer that has mag 4-4-2 alone."""
    folder = make_dataset(tmp_path / "ds", VOXEL_SIZE)
    wkwdask.write(folder / "cells" / "4-4-2", OFFSET, voxels(), category="segmentation", **OPTIONS)
    return folder


def set_box(folder, layer, box):
    """Set the box of a layer in the JSON [voxels of mag 1]."""
    document = json.loads((folder / JSON_NAME).read_text())
    (entry,) = (entry for entry in document["dataLayers"] if entry["name"] == layer)
    entry["boundingBox"] = {
        "topLeft": list(box.topleft),
        "width": box.size[0],
        "height": box.size[1],
        "depth": box.size[2],
    }
    (folder / JSON_NAME).write_text(json.dumps(document))


def enlarged(array, source_box, box):
    """Upsample by indexing."""
    factor = box.mag.step_to(source_box.mag)
    x, y, z = (
        np.arange(a, b) // f - t
        for a, b, f, t in zip(box.topleft, box.bottomright, factor, source_box.topleft, strict=True)
    )
    return array[(slice(None), *np.ix_(x, y, z))]


def listed(folder, layer="cells"):
    return [mag.name for mag in wkwdask.open_dataset(folder)[layer].mags]


# ----------------------------------------------------------------------------- any layer


@st.composite
def layers(draw):
    """Boxes anywhere in the voxels of the coarse mag; factors up to 16, different for each axis."""
    finer = [
        Mag(*draw(st.tuples(*[st.sampled_from([1, 2])] * 3)))
        for _ in range(draw(st.integers(1, 2)))
    ]
    largest = [max(mag.factors[axis] for mag in finer) for axis in range(3)]
    source = Mag(
        *(
            n * f
            for n, f in zip(
                largest, draw(st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 3)), strict=True
            )
        )
    )
    box = BoundingBox(draw(vectors(0, 300)), draw(vectors(1, 45)))
    return box, [mag for mag in dict.fromkeys(finer) if mag != source], source


lengths = st.tuples(st.sampled_from([1, 4, 8, 16]), st.sampled_from([1, 2, 4]))


@HEAVY
@given(
    layers(),
    st.sampled_from(DTYPE_NAMES),
    st.integers(1, 3),
    st.sampled_from(VOXEL_KINDS),
    lengths,
    lengths,
    st.sampled_from(["lz4hc", "lz4", "raw"]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1 << 10, 32 << 20]),
    st.integers(0, 99),
)
def test_any_layer_equals_numpy_and_wkw(
    tmp_path_factory,
    layer,
    dtype,
    channels,
    kind,
    source_lengths,
    new_lengths,
    compression,
    per_region,
    budget,
    seed,
):
    """Regions and bricks of any size; voxels stored outside the layer's box are cut off."""
    wkw = pytest.importorskip("wkw")
    box, mags, source = layer
    # else there are too many files
    block_len, file_len = (
        (max(8, new_lengths[0]), max(2, new_lengths[1])) if box.volume > 400 else new_lengths
    )
    array = voxel_array(dtype, (channels, *box.in_mag(source).size), seed, kind)
    # -0.0 stays -0.0
    array = np.where(array == 0, -array, array) if array.dtype.kind == "f" else array
    if not array.view(np.uint8).any() or not mags:
        return
    folder = make_dataset(tmp_path_factory.mktemp("brute") / "ds", VOXEL_SIZE)
    wkwdask.write(
        folder / "x" / source.name,
        box.in_mag(source).topleft,
        array,
        block_len=source_lengths[0],
        file_len=source_lengths[1],
        compression="lz4",
    )
    set_box(folder, "x", box)
    small = limited(upsample_brick_nbytes=budget, upsample_reading_nbytes=budget // 2)
    with small, rechunks_of(block_len * per_region), dask.config.set(scheduler="synchronous"):
        report = wkwdask.upsample(
            folder,
            "x",
            source=source,
            mags=mags,
            block_len=block_len,
            file_len=file_len,
            compression=compression,
        )
    assert sorted(listed(folder, "x")) == sorted([source.name, *(mag.name for mag in mags)])
    assert sum(mag.voxels for mag in report.mags) == sum(box.in_mag(mag).volume for mag in mags)
    for mag in mags:
        expected = np.asfortranarray(enlarged(array, box.in_mag(source), box.in_mag(mag)))
        assert wkwdask.read(folder, layer="x", mag=mag).tobytes("F") == expected.tobytes("F")
        wide = box.in_mag(mag)
        around = np.zeros((channels, *(n + 4 for n in wide.size)), dtype)
        low = [min(t, 2) for t in wide.topleft]
        around[(slice(None), *(slice(a, a + n) for a, n in zip(low, wide.size, strict=True)))] = (
            expected
        )
        with wkw.Dataset.open(str(folder / "x" / mag.name)) as reference:
            assert reference.header.block_type == {"raw": 1, "lz4": 2, "lz4hc": 3}[compression]
            found = reference.read(
                [t - a for t, a in zip(wide.topleft, low, strict=True)], around.shape[1:]
            )
        np.testing.assert_array_equal(found, around)  # and nothing beyond the box
    assert leftovers(folder) == []


def test_a_factor_of_four_leaves_no_holes(tmp_path):
    """The reference implementation writes the first and the last of four voxels."""
    folder = make_dataset(tmp_path / "ds", VOXEL_SIZE)
    wkwdask.write(
        folder / "x" / "4", (0, 0, 0), np.array([1, 2], np.uint8).reshape(2, 1, 1), **OPTIONS
    )
    wkwdask.upsample(folder, "x", mags=[1, "1-2-2"])
    assert wkwdask.read(folder, layer="x", mag=1)[0, :, 3, 1].tolist() == [1, 1, 1, 1, 2, 2, 2, 2]
    assert wkwdask.read(folder, layer="x", mag="1-2-2")[0, :, 0, 1].tolist() == [
        1,
        1,
        1,
        1,
        2,
        2,
        2,
        2,
    ]


# ----------------------------------------------------------------------------- choice of mags


def test_the_default_is_all_mags_down_to_1(dataset):
    report = wkwdask.upsample(dataset)
    assert (
        [os.path.basename(mag.path) for mag in report.mags] == ["1", "2-2-1"] == listed(dataset)[:2]
    )
    assert listed(dataset) == ["1", "2-2-1", "4-4-2"]
    assert report.nbytes_in == 2 * voxels().nbytes
    assert (report.mags[0].minimum, report.mags[0].maximum) == (0, 199)
    assert (
        len(
            {
                (header.block_len, header.block_type)
                for header in (
                    header_of(dataset / "cells" / mag) for mag in ("1", "2-2-1", "4-4-2")
                )
            }
        )
        == 1
    )
    np.testing.assert_array_equal(
        wkwdask.read(dataset, mag=1)[:, ::4, ::4, ::2], wkwdask.read(dataset, mag="4-4-2")
    )
    assert wkwdask.info(dataset).layers[0].bounding_box == BoundingBox((36, 16, 26), (108, 84, 48))


@pytest.mark.parametrize(
    ("finest", "mags"),
    [
        ("2-2-1", ["2-2-1"]),
        ("1", ["1", "2-2-1"]),
        ("2-2-2", ["2"]),
        ("1-1-2", ["1-1-2"]),
        ("4-4-2", []),
    ],
)
def test_the_ladder_begins_at_the_finest(dataset, finest, mags):
    report = wkwdask.upsample(dataset / "cells" / "4-4-2", finest=finest)
    assert [os.path.basename(mag.path) for mag in report.mags] == mags
    assert ("nothing to do" in report.note) == (not mags)
    assert listed(dataset) == [*mags, "4-4-2"]


def test_the_ladder_follows_other_layers(dataset):
    wkwdask.write(dataset / "color" / "2-1-1", (0, 0, 0), voxels().astype(np.uint8), **OPTIONS)
    wkwdask.upsample(dataset, "cells")
    assert listed(dataset) == ["1", "2-1-1", "4-4-2"]


def test_an_existing_mag_is_replaced_only_if_listed(dataset):
    wkwdask.write(dataset / "cells" / "1", (36, 16, 26), np.ones((4, 4, 4), np.uint16), **OPTIONS)
    before = contents(dataset / "cells" / "1")
    for existing in ("error", "overwrite", "resume"):
        report = wkwdask.upsample(dataset, source="4-4-2", existing=existing)
        assert [os.path.basename(mag.path) for mag in report.mags] == (["2-2-1"])
        assert contents(dataset / "cells" / "1") == before
    with pytest.raises(ExistsError, match="already exists"):
        wkwdask.upsample(dataset, source="4-4-2", mags=[1])
    wkwdask.upsample(dataset, source="4-4-2", mags=[1], existing="overwrite")
    assert wkwdask.read(dataset, mag=1).max() == 199


def test_without_a_json_the_box_is_that_of_the_files(tmp_path):
    wkwdask.write(tmp_path / "x" / "4-4-1", (16, 0, 32), voxels((20, 16, 9)), **OPTIONS)
    wkwdask.upsample(tmp_path / "x")
    assert sorted(os.listdir(tmp_path / "x")) == ["1", "2-2-1", "4-4-1"]
    box = ((64, 0, 32), (144, 64, 41))
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "x" / "1", box)[0],
        np.repeat(np.repeat(voxels((20, 16, 9)), 4, 0), 4, 1),
    )


def test_malformed_calls_are_refused(dataset):
    for options, match in (
        ({"source": 2}, "no mag 2"),
        ({"mags": ["4-4-2"]}, "is the source"),
        ({"mags": [8]}, "mag 4-4-2 is not coarser than mag 8 on every axis"),
        ({"mags": ["2-2-4"]}, "mag 4-4-2 is not coarser than mag 2-2-4 on every axis"),
        ({"finest": "8"}, "mag 4-4-2 is not coarser than mag 8 on every axis"),
        ({"finest": 1, "mags": [1]}, "one or the other"),
        ({"mags": [3]}, "powers of two"),
        ({"compression": "zip"}, "compression"),
        ({"level": 13}, "level"),
        ({"existing": "update"}, "existing"),
        ({"file_len": 3}, "file_len"),
    ):
        with pytest.raises((ValueError, MissingError), match=match):
            wkwdask.upsample(dataset, **options)
    with pytest.raises(MissingError, match="labels"):
        wkwdask.upsample(dataset, "labels")
    with pytest.raises(ValueError, match="is mag 4-4-2, but source= says 2"):
        wkwdask.upsample(dataset / "cells" / "4-4-2", source=2)
    assert listed(dataset) == ["4-4-2"]
    assert sorted(os.listdir(dataset / "cells")) == ["4-4-2"]


def test_a_ladder_that_misses_the_source_is_refused(tmp_path):
    folder = make_dataset(tmp_path / "ds", (10.5, 10.5, 24))
    wkwdask.write(folder / "x" / "1-1-2", (0, 0, 0), np.ones((4, 4, 4), np.uint16), **OPTIONS)
    with pytest.raises(
        ValueError,
        match=r"no ladder of mags leads from 1 to 1-1-2 .*list the mags to make with mags=",
    ):
        wkwdask.upsample(folder, "x")
    assert wkwdask.upsample(folder, "x", mags=[1]).files


# ----------------------------------------------------------------------------- runners


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The dataset before and after an upsampling of many regions."""
    folder = make_dataset(tmp_path_factory.mktemp("undisturbed") / "ds", VOXEL_SIZE)
    wkwdask.write(folder / "cells" / "4-4-2", OFFSET, voxels(), category="segmentation", **OPTIONS)
    before = contents(folder)
    with dask.config.set(scheduler="synchronous"), rechunks_of(16):
        wkwdask.upsample(folder, file_len=4)
    return before, contents(folder)


def check_after(folder, after):
    assert differences(contents(folder), after) == []
    assert leftovers(folder) == []


@pytest.mark.long
@pytest.mark.parametrize("edge", [8, 64])
def test_any_regions_make_the_same_files(tmp_path, undisturbed, edge):
    before, after = undisturbed
    folder = lay_out(before, tmp_path / "ds")
    with rechunks_of(edge):
        wkwdask.upsample(folder, file_len=4)
    check_after(folder, after)


def test_threads_make_the_same_files(tmp_path, undisturbed):
    before, after = undisturbed
    folder = lay_out(before, tmp_path / "ds")
    with dask.config.set(scheduler="threads", num_workers=5), rechunks_of(16):
        wkwdask.upsample(folder, file_len=4)
    check_after(folder, after)


# ----------------------------------------------------------------------------- kills


def upsample_in_child(folder, num_tasks):
    """Work until some tasks are done, or to the end on two threads."""
    with contextlib.ExitStack() as stack:
        if num_tasks is not None:
            stack.enter_context(
                before_task(num_tasks + 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
            )
        stack.enter_context(rechunks_of(16))
        stack.enter_context(
            dask.config.set(
                scheduler="threads" if num_tasks is None else "synchronous", num_workers=2
            )
        )
        wkwdask.upsample(folder, source="4-4-2", file_len=4, existing="resume")


def killed(folder, num_tasks=None, seconds=None):
    """Work in a forked process that is killed after some tasks or some time, and return whether it
    was."""
    child = multiprocessing.get_context("fork").Process(
        target=upsample_in_child, args=(folder, num_tasks)
    )
    child.start()
    if seconds is not None:
        time.sleep(seconds)
        child.kill()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def check_unseen(folder, before, after):
    """Check that an unfinished job shows no mag, or a whole one while it publishes."""
    found = contents(folder)
    for mag in ("1", "2-2-1"):
        mine, whole = (
            {name: content for name, content in tree.items() if name.startswith(f"cells/{mag}/")}
            for tree in (found, after)
        )
        assert mine in ({}, whole)
    assert found[JSON_NAME] in (before[JSON_NAME], after[JSON_NAME])


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_jobs_are_resumed(tmp_path, undisturbed):
    """Twice after some tasks; no task runs again."""
    before, after = undisturbed
    for num_tasks in (1, 40, 90):
        folder = lay_out(before, tmp_path / str(num_tasks))
        assert killed(folder, num_tasks)
        assert killed(folder, 3)
        check_unseen(folder, before, after)
        assert len(journaled(folder)) == num_tasks + 3
        with dask.config.set(scheduler="synchronous"):  # other regions would be chosen now
            report = wkwdask.upsample(folder, source="4-4-2", file_len=4)
        check_after(folder, after)
        assert (
            report.voxels == sum(mag.voxels for mag in report.mags) == 108 * 84 * 48 + 54 * 42 * 48
        )


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_jobs_killed_at_random_moments_are_resumed(tmp_path, undisturbed):
    before, after = undisturbed
    started = time.monotonic()
    assert not killed(lay_out(before, tmp_path / "whole"))
    seconds = time.monotonic() - started
    check_after(tmp_path / "whole", after)
    random = np.random.default_rng(7)
    for n in range(2 + KILLS):
        folder = lay_out(before, tmp_path / str(n))
        for _ in range(20):
            if not killed(folder, seconds=random.uniform(0, 0.7 * seconds)):
                break
            check_unseen(folder, before, after)
        else:
            assert not killed(folder)
        check_after(folder, after)


def interrupt(folder, num_tasks=9):
    error = RuntimeError("the disk is full")
    stop = stopping(folder.parent / "log", num_tasks, error)
    with (
        stop,
        rechunks_of(16),
        dask.config.set(scheduler="synchronous"),
        pytest.raises(RuntimeError, match="disk is full"),
    ):
        wkwdask.upsample(folder, source="4-4-2", file_len=4)
    assert any("the same call resumes" in note for note in error.__notes__)


def test_an_interrupted_job_refuses_other_settings(tmp_path, undisturbed):
    before, after = undisturbed
    folder = lay_out(before, tmp_path / "ds")
    interrupt(folder)
    for options in (
        {},
        {"file_len": 2},
        {"file_len": 4, "finest": "2-2-1"},
        {"file_len": 4, "compression": "raw", "existing": "resume"},
    ):
        with pytest.raises(ResumeError, match="made with other settings"):
            wkwdask.upsample(folder, source="4-4-2", **options)
    set_box(folder, "cells", BoundingBox((36, 16, 26), (108, 84, 47)))
    with pytest.raises(
        ResumeError, match="layer_box was 36,16,26,108,84,48, is 36,16,26,108,84,47"
    ):
        wkwdask.upsample(folder, source="4-4-2", file_len=4)
    set_box(folder, "cells", BoundingBox((36, 16, 26), (108, 84, 48)))
    wkwdask.upsample(folder, source="4-4-2", file_len=4)
    check_after(folder, after)


def test_a_source_changed_since_the_interruption_is_refused(tmp_path, undisturbed):
    before, after = undisturbed
    folder = lay_out(before, tmp_path / "ds")
    interrupt(folder, 30)
    for path in (folder / "cells" / "4-4-2").rglob("x*.wkw"):
        os.utime(path, (1, 1))
    with pytest.raises(
        ResumeError,
        match=r"the source has changed since the job was interrupted \(.*wkw was changed last",
    ):
        wkwdask.upsample(folder, source="4-4-2", file_len=4)
    with pytest.warns(DiscardWarning):
        wkwdask.upsample(folder, source="4-4-2", file_len=4, existing="restart")
    check_after(folder, after)


# ----------------------------------------------------------------------------- repeated calls


def test_a_finished_job_is_not_repeated(dataset):
    first = wkwdask.upsample(dataset)
    before = states(dataset)
    again = wkwdask.upsample(dataset, source="4-4-2", existing="resume")
    assert again.mags == first.mags
    assert "nothing to do" in again.note
    for options in ({}, {"source": "4-4-2"}, {"existing": "resume"}):
        # mag 1 is the finest now, but the source is that of before
        assert "nothing to do" in wkwdask.upsample(dataset, **options).note
    assert states(dataset) == before
    with pytest.raises(ResumeError, match="compression was lz4, is lz4hc; level was 0, is 6"):
        wkwdask.upsample(dataset, source="4-4-2", existing="resume", compression="lz4hc", level=6)
    with pytest.raises(ResumeError, match="mags was 1,2-2-1, is 1"):
        wkwdask.upsample(dataset, source="4-4-2", mags=[1], existing="resume")
    assert wkwdask.upsample(dataset, existing="overwrite").files == first.files
    assert states(dataset) != before


def test_a_changed_source_of_a_finished_job_is_noticed(dataset):
    wkwdask.upsample(dataset)
    path = next((dataset / "cells" / "4-4-2").rglob("x*.wkw"))
    os.utime(path, (1, 1))
    with pytest.raises(ResumeError, match=r"has changed since .*1 was made from it"):
        wkwdask.upsample(dataset, source="4-4-2", existing="resume")
    report = wkwdask.upsample(dataset, source="4-4-2", existing="overwrite")
    assert [os.path.basename(mag.path) for mag in report.mags] == ["1", "2-2-1"]
    assert "nothing to do" in wkwdask.upsample(dataset, source="4-4-2", existing="resume").note


def test_records_name_the_files_of_the_coarse_mag(dataset):
    """Each mag is made from the coarse one, not from the other."""
    wkwdask.upsample(dataset, file_len=OPTIONS["file_len"])
    rows = {mag: np.load(dataset / "cells" / mag / ".wkwdask-files.npy") for mag in ("1", "2-2-1")}
    sources = {mag: {int(row[5]) for row in of_mag if row[3]} for mag, of_mag in rows.items()}
    assert 0 not in sources["1"]
    for mag, of_mag in rows.items():
        assert sum(of_mag[:, 3] > 0) == len(list((dataset / "cells" / mag).rglob("x*.wkw")))
    # a file of mag 4-4-2 spans 4 x 4 x 2 files of mag 1 and lies in no other
    assert len(sources["1"]) == len(list((dataset / "cells" / "4-4-2").rglob("x*.wkw")))


def test_a_pyramid_of_upsampled_labels_restores_the_coarse_mag(dataset):
    wkwdask.upsample(dataset)
    coarse = wkwdask.read(dataset, mag="4-4-2")
    with pytest.raises(MissingError, match="no mags that build_pyramid made from mag 1"):
        wkwdask.build_pyramid(dataset, update="content")
    report = wkwdask.build_pyramid(dataset, mags=["2-2-1", "4-4-2"], existing="overwrite")
    assert [os.path.basename(mag.path) for mag in report.mags] == ["2-2-1", "4-4-2"]
    np.testing.assert_array_equal(wkwdask.read(dataset, mag="4-4-2"), coarse)


def test_a_locked_mag_is_refused(dataset):
    lock = put_lock(dataset / "cells" / "2-2-1", this_process())
    with pytest.raises(LockedError, match="another job"):
        wkwdask.upsample(dataset)
    lock.unlink()
    assert wkwdask.upsample(dataset).files


# ----------------------------------------------------------------------------- the command line


def test_command(dataset):
    done = run_here(
        "upsample",
        dataset,
        "--layer",
        "cells",
        "--mag",
        "4-4-2",
        "--finest",
        "2-2-1",
        "--compression",
        "raw",
        "--file-len",
        4,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{dataset / 'cells' / '2-2-1'}: ")
    assert listed(dataset) == ["2-2-1", "4-4-2"]
    again = run_here("upsample", dataset, "--mag", "4-4-2", "--mags", "2-2-1,1")
    assert again.returncode == 1
    assert again.stderr.startswith("error: ")
    assert "--overwrite" in again.stderr
    both = run_here("upsample", dataset, "--resume", "--overwrite")
    assert both.returncode == 2
    assert "use one of them" in both.stderr


def test_help_shows_an_example():
    done = run_here("upsample", "--help")
    assert done.returncode == 0
    assert "wkwdask upsample dataset" in done.stdout
