"""Situations in which a resumed or updated pyramid could lose voxels by guessing."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import regions_of
from support.inside import before_task, workers_of

import wkwdask
from wkwdask.errors import (
    BoundsError,
    DiscardWarning,
    ExistsError,
    IncompleteWriteError,
    MissingError,
    ResumeError,
)
from wkwdask.runs.job_folder import Publisher

OPTIONS = {"block_len": 8, "file_len": 2, "compression": "lz4"}


@pytest.fixture
def dataset(tmp_path):
    return make_dataset(tmp_path / "ds")


def make_dataset(folder):
    wkwdask.create_dataset(folder, (1, 1, 1))
    return folder


def labels(seed, edge=32):
    return np.random.default_rng(seed).integers(
        10 * seed + 1, 10 * seed + 9, (edge,) * 3, dtype=np.uint32
    )


def write(dataset, mag, voxels, **options):
    return wkwdask.to_wkw(voxels, dataset / "seg" / mag, **{**OPTIONS, **options})


def voxels_of(dataset, mag):
    return wkwdask.read(dataset, layer="seg", mag=mag)[0]


class CrashError(Exception):
    pass


def quarters(dataset, which):
    """Write four files along x of one value each; those that are not listed are absent."""
    voxels = np.zeros((256, 64, 64), np.uint8)
    for n in which:
        voxels[64 * n : 64 * (n + 1)] = 10 + n
    wkwdask.to_wkw(voxels, dataset / "seg" / "1", block_len=8, file_len=8, compression="lz4")


@pytest.mark.parametrize("file_len", [None, 2])
@pytest.mark.parametrize(("first", "then"), [([0, 2, 3], [0, 1, 2, 3]), ([0, 1, 2, 3], [0, 2, 3])])
def test_source_files_added_or_removed_after_an_interruption_are_noticed(
    dataset, tmp_path, file_len, first, then
):
    quarters(dataset, first)

    def crash():
        raise CrashError

    with (
        dask.config.set(scheduler="sync"),
        before_task(len(first), crash),
        workers_of(4),
        regions_of(32),
        pytest.raises(CrashError),
    ):
        wkwdask.build_pyramid(dataset, mags=[2, 4], method="mode", file_len=file_len)
    other = make_dataset(tmp_path / "other")
    quarters(other, then)
    file = "seg/1/z0/y0/x1.wkw"
    if (other / file).exists():
        shutil.copy(other / file, dataset / file)
    else:
        (dataset / file).unlink()
    for existing in ("error", "overwrite"):
        with pytest.raises(ResumeError, match="added or removed"):
            wkwdask.build_pyramid(
                dataset, mags=[2, 4], method="mode", file_len=file_len, existing=existing
            )
    with pytest.warns(DiscardWarning):
        wkwdask.build_pyramid(
            dataset, mags=[2, 4], method="mode", file_len=file_len, existing="restart"
        )
    np.testing.assert_array_equal(voxels_of(dataset, "2"), voxels_of(dataset, "1")[::2, ::2, ::2])


def test_an_update_changes_no_mag_of_another_verb(dataset):
    write(dataset, "4", labels(1, 16))
    wkwdask.upsample(dataset, "seg", source=4)
    wkwdask.build_pyramid(dataset, "seg", finest=4, mags=[8])
    write(dataset, "4", labels(2, 16), existing="overwrite")
    with pytest.raises(MissingError, match="from mag 4"):
        wkwdask.build_pyramid(dataset, "seg", update=True)
    for options in ({"update": True}, {"update": "content"}, {"bounding_box": (0, 0, 0, 8, 8, 8)}):
        with pytest.raises(ResumeError, match="made by"):
            wkwdask.build_pyramid(dataset, "seg", mags=[2, 4], **options)
    np.testing.assert_array_equal(voxels_of(dataset, "4"), labels(2, 16))
    wkwdask.build_pyramid(dataset, "seg", finest=4, update=True)
    assert voxels_of(dataset, "8").min() >= 21


def test_an_update_reads_the_recorded_source_of_each_mag(dataset):
    write(dataset, "1", labels(1))
    wkwdask.build_pyramid(dataset, mags=[2, 4])
    wkwdask.build_pyramid(dataset, finest=1, mags=[8])
    before = voxels_of(dataset, "8")
    assert "nothing to do" in wkwdask.build_pyramid(dataset, update=True).note
    os.utime(dataset / "seg/1/z0/y0/x0.wkw")
    assert wkwdask.build_pyramid(dataset, update=True).mags
    np.testing.assert_array_equal(voxels_of(dataset, "8"), before)


def end_before_publishing(dataset):
    """Build a pyramid in a process that ends when all files are written."""
    Publisher.publish = lambda self: os._exit(9)
    with dask.config.set(scheduler="sync"):
        wkwdask.build_pyramid(dataset, existing="overwrite", file_len=1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_update_includes_a_publication_that_it_finished(dataset, tmp_path):
    write(dataset, "1", labels(1), file_len=4)
    wkwdask.build_pyramid(dataset)
    child = multiprocessing.get_context("fork").Process(
        target=end_before_publishing, args=(dataset,)
    )
    child.start()
    child.join()
    assert child.exitcode == 9
    os.utime(dataset / "seg/1/z0/y0/x0.wkw")
    wkwdask.build_pyramid(dataset, update=True)
    again = make_dataset(tmp_path / "again")
    write(again, "1", labels(1), file_len=4)
    wkwdask.build_pyramid(again)
    for mag in ("2", "4"):
        np.testing.assert_array_equal(voxels_of(dataset, mag), voxels_of(again, mag))


def test_resume_checks_every_mag_and_file(dataset):
    write(dataset, "1", labels(1))
    wkwdask.build_pyramid(dataset, mags=[2, 4])
    assert "nothing to do" in wkwdask.build_pyramid(dataset, mags=[2, 4], existing="resume").note
    (dataset / "seg/4/z0/y0/x0.wkw").unlink()
    with pytest.raises(ResumeError, match="1 file was changed"):
        wkwdask.build_pyramid(dataset, mags=[2, 4], existing="resume")
    assert wkwdask.build_pyramid(dataset, update=True).files == 1
    assert "nothing to do" in wkwdask.build_pyramid(dataset, mags=[2, 4], existing="resume").note


def test_a_moved_dataset_is_resumed(dataset, tmp_path):
    write(dataset, "1", labels(1))
    wkwdask.build_pyramid(dataset, mags=[2])
    moved = tmp_path / "moved"
    shutil.move(dataset, moved)
    assert "nothing to do" in wkwdask.build_pyramid(moved, mags=[2], existing="resume").note


def test_a_source_replaced_during_the_job_is_an_error(dataset):
    write(dataset, "1", labels(1))
    replace = before_task(1, lambda: write(dataset, "1", labels(2), existing="overwrite"))
    with (
        dask.config.set(scheduler="sync"),
        replace,
        pytest.raises(IncompleteWriteError, match="replaced while it was read"),
    ):
        wkwdask.build_pyramid(dataset, mags=[2])
    assert not (dataset / "seg/2").exists()


def test_several_layers_are_checked_before_the_first_is_built(dataset):
    for layer in ("a", "b"):
        wkwdask.to_wkw(labels(1), dataset / layer / "1", **OPTIONS)
    wkwdask.build_pyramid(dataset, "b", method="max")
    with pytest.raises(ExistsError):
        wkwdask.build_pyramid(dataset, ["a", "b"])
    assert not (dataset / "a/2").exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"update": True, "compression": "raw"}, ValueError),
        ({"update": True, "file_len": 4}, ValueError),
        ({"update": True, "existing": "resume"}, ValueError),
        ({"update": "content", "bounding_box": (0, 0, 0, 8, 8, 8)}, ValueError),
        ({"bounding_box": (1000, 0, 0, 8, 8, 8)}, BoundsError),
        ({"mags": 4}, TypeError),
        ({"layer": []}, ValueError),
    ],
)
def test_options_without_effect_are_refused(dataset, options, error):
    write(dataset, "1", labels(1))
    wkwdask.build_pyramid(dataset)
    with pytest.raises(error):
        wkwdask.build_pyramid(dataset, **options)


def test_linked_folders_on_another_disk_are_updated_there(tmp_path):
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    other = next(
        (
            folder
            for folder in folders
            if os.access(folder, os.W_OK) and folder.stat().st_dev != tmp_path.stat().st_dev
        ),
        None,
    )
    if other is None:
        pytest.skip("there is no second disk")
    array = np.random.default_rng(0).integers(1, 9, (32, 32, 32), dtype=np.uint8)
    wkwdask.to_wkw(array, tmp_path / "1", block_len=8, file_len=1, compression="lz4")
    wkwdask.build_pyramid(tmp_path, method="max", mags=[2], file_len=1)
    elsewhere = Path(tempfile.mkdtemp(dir=other))
    try:
        shutil.move(tmp_path / "2" / "z0", elsewhere / "z0")
        (tmp_path / "2" / "z0").symlink_to(elsewhere / "z0")
        wkwdask.to_wkw(
            array + 1,
            tmp_path / "1",
            block_len=8,
            file_len=1,
            compression="lz4",
            existing="overwrite",
        )
        wkwdask.build_pyramid(tmp_path, method="max", mags=[2], update=True)
        assert (tmp_path / "2" / "z0").is_symlink()
        np.testing.assert_array_equal(
            wkwdask.read(tmp_path, mag=2)[0],
            (array + 1).reshape(16, 2, 16, 2, 16, 2).max(axis=(1, 3, 5)),
        )
        assert {path.name for path in elsewhere.rglob("*") if path.is_file()} == {
            "x0.wkw",
            "x1.wkw",
        }
    finally:
        shutil.rmtree(elsewhere)


@pytest.mark.parametrize("coarsest", [3, "3", "s2"])
def test_the_coarsest_mag_is_a_mag(tmp_path, coarsest):
    wkwdask.write(tmp_path / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8))
    with pytest.raises(ValueError, match=r"powers? of two|a mag looks like"):
        wkwdask.build_pyramid(tmp_path / "1", coarsest=coarsest)
