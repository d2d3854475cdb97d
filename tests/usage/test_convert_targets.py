"""Targets of conversions whose suffix is not writable: an error before any work lists the writable
ones."""

from __future__ import annotations

import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.errors import UnsupportedError

TARGETS = (
    r"\.tif, \.ome\.tif, \.npy, \.zarr, \.ome\.zarr, precomputed://PATH, n5://PATH, or a folder of "
    r"TIFFs"
)


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", voxel_size=(4, 4, 4))
    wkwdask.to_wkw(np.ones((1, 8, 8, 8), np.uint8), tmp_path / "ds" / "color" / "1")
    return tmp_path / "ds" / "color" / "1"


@pytest.mark.parametrize(
    "name",
    [
        "out.h5:/x",
        "out.h5:x",
        "out.HDF5:/volumes/raw",
        "out.h5",
        "out.nii",
        "out.nii.gz",
        "out.png",
        "out.mrc",
        "out.tif.bak",
        "out.n5/s0.nrrd",
    ],
)
def test_an_export_to_a_format_without_a_writer_is_an_error(tmp_path, dataset, name):
    with pytest.raises((UnsupportedError, ValueError), match=f"{TARGETS}|named like N5"):
        wkwdask.convert(dataset, f"{tmp_path}/{name}")
    assert [path.name for path in tmp_path.iterdir()] == ["ds"]


@pytest.mark.parametrize("name", ["out.h5:/x", "out.h5", "out.png", "out.mrc"])
def test_an_import_to_a_format_without_a_writer_is_an_error(tmp_path, name):
    np.save(tmp_path / "a.npy", np.ones((3, 4, 5), np.uint8))
    with pytest.raises(UnsupportedError, match=TARGETS):
        wkwdask.convert(tmp_path / "a.npy", f"{tmp_path}/{name}", voxel_size=(4, 4, 4))
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_the_command_lists_the_targets(tmp_path, dataset):
    done = run_here("convert", dataset, f"{tmp_path}/out.h5:/x")
    assert done.returncode == 1
    assert ".h5 is read but not written; use .tif, .ome.tif, .npy, .zarr" in " ".join(
        done.stderr.split()
    )


@pytest.mark.needs("tifffile")
@pytest.mark.parametrize(
    "name", ["sections", "sections.v2/", "2012-09-28_ex145_07.2", "a.b/sections", "existing.d"]
)
def test_sections_are_written_into_a_folder(tmp_path, dataset, name):
    """A name with a suffix is a folder if it ends with a slash or exists as one."""
    (tmp_path / "existing.d").mkdir()
    wkwdask.convert(dataset, f"{tmp_path}/{name}")
    assert len(list((tmp_path / name).glob("z*.tif"))) == 8
