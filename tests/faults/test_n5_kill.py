"""Conversions to N5 are killed before changes of the file system: a dataset is visible whole or not at all, and the same call completes it."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, killed_at_each
from faults.trees import contents, leftovers

import wkwdask

pytestmark = pytest.mark.faults

SHAPE = (40, 30, 21)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "ds"
    voxels = np.random.default_rng(0).integers(0, 255, SHAPE).astype(np.uint8)
    wkwdask.create_dataset(folder, voxel_size=(4, 4, 35))
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_wkw(voxels, folder / "color" / "1", block_len=8, file_len=2, category="color")
    return folder


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_at_any_step(tmp_path, source):
    def convert(folder):
        wkwdask.convert(source, f"n5://{folder}/c.n5/em", chunk_shape=(16, 16, 16), existing="resume")

    for folder in ("first", "whole"):
        (tmp_path / folder).mkdir()
    with dask.config.set(scheduler="synchronous"):
        convert(tmp_path / "first")  # what a process does once is done
    changes, _ = killed_at(0, convert, tmp_path / "whole")
    assert changes > 8
    expected = contents(tmp_path / "whole")
    assert {"c.n5/attributes.json", "c.n5/em/attributes.json", "c.n5/em/s0/attributes.json", "c.n5/em/s0/2/1/1"} <= set(expected)
    seen = []
    folder = tmp_path / "killed"
    for _ in killed_at_each(range(1, changes + 1, 1 if KILLS else max(1, changes // 10)), convert, Path.mkdir, folder):
        seen.append({name: data for name, data in contents(folder).items() if "/s0/" in name})
        assert seen[-1] in ({}, {name: data for name, data in expected.items() if "/s0/" in name})
        with dask.config.set(scheduler="synchronous"):
            convert(folder)
        assert contents(folder) == expected
        assert leftovers(folder) == []
    assert {} in seen
