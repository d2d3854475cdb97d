"""Containers in which one array cannot be read: the others are listed and read, and the bad one is
named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.commands import run_here

import wkwdask
from wkwdask.errors import FormatError, UnsupportedError, WkwDaskError

zarr = pytest.importorskip("zarr", reason="zarr, of the extra convert, is not installed")

VOXELS = np.random.default_rng(0).integers(1, 255, (4, 8, 16), np.uint8)
BROKEN = {
    "no JSON": lambda path, record: record.write_text("{"),
    "another type": lambda path, record: record.write_text("[1, 2]"),
    "no shape": lambda path, record: record.write_text(
        json.dumps(
            {key: value for key, value in json.loads(record.read_text()).items() if key != "shape"}
        )
    ),
    "an unknown codec": lambda path, record: record.write_text(
        record.read_text().replace('"zstd"', '"nobody"')
    ),
    "attributes": lambda path, record: record.write_text(
        json.dumps(json.loads(record.read_text()) | {"attributes": 3})
    ),
}


def container(tmp_path, version):
    group = zarr.create_group(str(tmp_path / "c.zarr"), zarr_format=version)
    for name in ("a", "bad", "below/c"):
        group.create_array(name, shape=VOXELS.shape, dtype="uint8", chunks=(4, 8, 8))[...] = VOXELS
    return tmp_path / "c.zarr"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", BROKEN)
def test_one_broken_array_does_not_hide_the_others(tmp_path, version, kind):
    path = container(tmp_path, version)
    BROKEN[kind](path / "bad", path / "bad" / ("zarr.json" if version == 3 else ".zarray"))
    for layer in ("a", "below/c"):
        np.testing.assert_array_equal(
            wkwdask.read(path, layer=layer)[0].T, VOXELS.transpose(0, 1, 2)
        )
    listed = run_here("info", path)
    assert listed.returncode == 0, listed.stderr
    assert all(name in listed.stdout for name in ("a", "below/c"))
    if version == 3 or kind not in ("attributes", "an unknown codec"):
        # which version 2 keeps elsewhere, or looks up later
        assert f"{path}/bad" in listed.stdout
        with pytest.raises(WkwDaskError, match=f"{path}/bad"):
            wkwdask.read(path, layer="bad")
        with pytest.raises(ValueError, match=f"name an array in it: {path}/a"):
            wkwdask.convert(path, tmp_path / "ds", voxel_size=(4, 4, 4), mag=1)


def test_an_array_of_too_many_axes_does_not_hide_the_others(tmp_path):
    path = container(tmp_path, 3)
    zarr.create_array(str(path / "deep"), shape=(2,) * 7, chunks=(2,) * 7, dtype="uint8")
    np.testing.assert_array_equal(wkwdask.read(path, layer="a")[0].T, VOXELS)
    with pytest.raises((FormatError, UnsupportedError), match=f"{path}/deep"):
        wkwdask.read(path, layer="deep")
