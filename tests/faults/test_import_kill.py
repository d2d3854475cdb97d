"""Imports with their pyramid are killed before changes of the file system: what is visible is
whole, and the same call says that all is there in the end."""

from __future__ import annotations

import json
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, killed_at_each
from faults.trees import leftovers

import wkwdask

pytestmark = pytest.mark.faults


def voxels():
    return np.random.default_rng(0).integers(0, 255, (21, 30, 40)).astype(np.uint8)


def mags(dataset):
    """The voxels of all mags that the JSON lists."""
    path = dataset / "datasource-properties.json"
    if not path.exists():
        return {}
    (layer,) = json.loads(path.read_text())["dataLayers"]
    return {mag["path"]: wkwdask.read(dataset / mag["path"]) for mag in layer["mags"]}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_at_any_step(tmp_path):
    np.save(tmp_path / "a.npy", voxels())

    def convert(folder):
        return wkwdask.convert(
            tmp_path / "a.npy",
            folder / "ds",
            voxel_size=(4, 4, 35),
            block_len=8,
            file_len=2,
            pyramid=True,
        )

    for folder in ("first", "whole"):
        (tmp_path / folder).mkdir()
    with dask.config.set(scheduler="synchronous"):
        convert(tmp_path / "first")  # what a process does once is done
    changes, _ = killed_at(0, convert, tmp_path / "whole")
    expected = mags(tmp_path / "whole" / "ds")
    assert len(expected) > 2
    assert changes > 20
    # the last ones are where all mags are there
    steps = {
        *range(1, changes + 1, 1 if KILLS else max(1, changes // 12)),
        *range(changes - 8, changes + 1),
    }
    seen = []
    folder = tmp_path / "killed"
    for _ in killed_at_each(steps, convert, Path.mkdir, folder):
        seen.append(len(mags(folder / "ds")))
        with dask.config.set(scheduler="synchronous"):
            convert(folder)
            assert "nothing to do" in convert(folder).note
        found = mags(folder / "ds")
        assert list(found) == list(expected)
        for path, array in found.items():
            np.testing.assert_array_equal(array, expected[path])
        assert leftovers(folder) == []
    assert {0, 1, len(expected)} <= set(seen)
