"""Age of leftovers: repair removes only those that no process can still be writing."""

from __future__ import annotations

import os
import shutil
import time

import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.formats.leftovers import describe_age
from wkwdask.store.locks import locked_file

HOUR = 3600
VOXELS = np.arange(1, 33 * 8 * 8 + 1, dtype=np.uint32).reshape(33, 8, 8)
RECHUNK = ".rechunk-01234567-89ab-cdef-0123-456789abcdef"
TEMPORARIES = {
    "the reference library": "ds/color/1/z0/y0/x0.wkw_tmp",
    "webknossos-wrap": "ds/color/1/z0/y0/x0.wkw.tmp",
    "wkwdask in a dataset": "ds/.datasource-properties.json.0123456789abcdef.wkwdask-tmp",
    "tensorstore": "em.n5/s0/attributes.json.__lock",
    "zarr-python": "em.ome.zarr/0123456789abcdef0123456789abcdef.partial",
}
"""Temporary files of software, whose writers repair cannot find."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    wkwdask.create_dataset(folder / "ds", (4, 4, 8))
    wkwdask.to_wkw(VOXELS, folder / "ds/color/1", category="color", block_len=8, file_len=1)
    wkwdask.to_n5(VOXELS, folder / "em.n5/s0", voxel_size=(4, 4, 8))
    wkwdask.save(
        VOXELS, folder / "em.ome.zarr", voxel_size=(4, 4, 8), compression="raw", shard_shape=False
    )
    return folder


@pytest.fixture
def images(originals, tmp_path):
    return shutil.copytree(originals, tmp_path / "images")


def aged(path, seconds, data=b""):
    """Write a file that was last written some seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    written = time.time() - seconds
    os.utime(path, (written, written))
    return path


def temporary_of(images, writer):
    """Return the path of a temporary file and the image around it."""
    name = TEMPORARIES[writer]
    if writer == "zarr-python":
        name = name.replace("em.ome.zarr/", "em.ome.zarr/zarr.json.")
    return images / name, images / name.split("/")[0]


def repaired(image, **options):
    """Repair an image; return the report and the leftovers that it leaves."""
    report = wkwdask.repair(image, **options)
    return report, [left.fault.path for left in report.remaining]


@pytest.mark.parametrize("writer", TEMPORARIES)
@pytest.mark.parametrize(
    ("seconds", "options", "is_removed"),
    [
        (0, {}, False),
        (HOUR - 60, {}, False),
        (HOUR + 60, {}, True),
        (-HOUR, {}, False),  # the clock was set back
        (90, {"older_than": 60}, True),
        (30, {"older_than": 60}, False),
        (0, {"older_than": 0}, True),
        (-HOUR, {"older_than": 0}, True),
        (HOUR + 60, {"older_than": 2 * HOUR}, False),
    ],
)
def test_temporaries(images, writer, seconds, options, is_removed):
    path, image = temporary_of(images, writer)
    aged(path, seconds)
    report, left = repaired(image, **options)
    assert path.exists() is not is_removed
    assert (str(path) in left) is not is_removed
    if not is_removed:
        limit = options.get("older_than", HOUR)
        assert f"it is removed when it is older than {limit} s" in str(report)


def test_own_temporaries_in_a_mag_have_no_writer_while_the_mag_is_locked(images):
    path = aged(images / "ds/color/1/z0/y0/.x0.wkw.0123456789abcdef.wkwdask-tmp", 0)
    wkwdask.repair(images / "ds")
    assert not path.exists()


@pytest.mark.parametrize(("newest", "is_removed"), [(HOUR - 60, False), (HOUR + 60, True)])
def test_a_folder_is_as_old_as_its_newest_file(images, newest, is_removed):
    """Of a mag that webknossos was building; the layer has all of its voxels."""
    folder = images / "ds/color" / RECHUNK
    source = images / "ds/color/1"
    for path in [source / "header.wkw", *source.rglob("*.wkw")]:
        seconds = newest if path.name == "x4.wkw" else 30 * HOUR
        aged(folder / "color/1" / path.relative_to(source), seconds, path.read_bytes())
    written = time.time() - 30 * HOUR
    os.utime(folder, (written, written))
    report = wkwdask.repair(images / "ds", remove_copies=True)
    assert folder.exists() is not is_removed, str(report)


@pytest.mark.parametrize(("seconds", "is_removed"), [(HOUR - 60, False), (HOUR + 60, True)])
def test_an_unreadable_lock(images, seconds, is_removed):
    path = aged(images / "ds/color/.1.wkwdask-lock", seconds, b"{")
    wkwdask.repair(images / "ds")
    assert path.exists() is not is_removed


@pytest.mark.parametrize(("seconds", "is_removed"), [(HOUR - 60, False), (HOUR + 60, True)])
def test_a_job_folder_without_an_owner(images, seconds, is_removed):
    """A job creates its folder a moment before it writes its owner there."""
    folder = images / "ds/color/.wkwdask-job-20260101T000000-01234567"
    folder.mkdir()
    written = time.time() - seconds
    os.utime(folder, (written, written))
    wkwdask.repair(images / "ds")
    assert folder.exists() is not is_removed


@pytest.mark.parametrize(("seconds", "is_removed"), [(HOUR - 60, False), (HOUR + 60, True)])
def test_an_empty_temporary_of_a_lock(tmp_path, seconds, is_removed):
    path = aged(tmp_path / "..file.wkwdask-lock.0123456789abcdef.wkwdask-tmp", seconds)
    with locked_file(str(tmp_path / "file"), "a test"):
        assert path.exists() is not is_removed


def test_the_command_has_the_same_option(images):
    path, image = temporary_of(images, "the reference library")
    aged(path, 90)
    assert "older than 3600 s" in run_here("repair", image).stdout
    assert path.exists()
    assert "remove" in run_here("repair", image, "--older-than", "60").stdout
    assert not path.exists()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 seconds"),
        (-60, "0 seconds"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (7199, "119 minutes"),
        (7200, "2 hours"),
        (172799, "47 hours"),
        (172800, "2 days"),
    ],
)
def test_ages_are_named_in_units_that_people_read(tmp_path, monkeypatch, seconds, text):
    path = tmp_path / "file"
    path.write_bytes(b"")
    written = path.stat().st_mtime
    monkeypatch.setattr(time, "time", lambda: written + seconds)
    assert describe_age(str(path)) == text
