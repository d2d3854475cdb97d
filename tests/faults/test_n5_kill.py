"""Jobs on N5 are killed before changes of the file system: a dataset is visible whole or not at
all, and the same call completes the job."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, killed_at_each
from faults.trees import contents, lay_out, leftovers

import wkwdask
from wkwdask.errors import ReplacedError

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
        wkwdask.convert(
            source, f"n5://{folder}/c.n5/em", chunk_shape=(16, 16, 16), existing="resume"
        )

    for folder in ("first", "whole"):
        (tmp_path / folder).mkdir()
    with dask.config.set(scheduler="synchronous"):
        convert(tmp_path / "first")  # what a process does once is done
    changes, _ = killed_at(0, convert, tmp_path / "whole")
    assert changes > 8
    expected = contents(tmp_path / "whole")
    assert {
        "c.n5/attributes.json",
        "c.n5/em/attributes.json",
        "c.n5/em/s0/attributes.json",
        "c.n5/em/s0/2/1/1",
    } <= set(expected)
    seen = []
    folder = tmp_path / "killed"
    for _ in killed_at_each(
        range(1, changes + 1, 1 if KILLS else max(1, changes // 10)), convert, Path.mkdir, folder
    ):
        seen.append({name: data for name, data in contents(folder).items() if "/s0/" in name})
        assert seen[-1] in ({}, {name: data for name, data in expected.items() if "/s0/" in name})
        with dask.config.set(scheduler="synchronous"):
            convert(folder)
        assert contents(folder) == expected
        assert leftovers(folder) == []
    assert {} in seen


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_finer_level_killed_at_any_step(tmp_path):
    """The new level is s0, and the levels behind it are renamed: meanwhile the group refuses to be
    read, or shows whole levels."""
    voxels = np.random.default_rng(0).integers(0, 255, SHAPE).astype(np.uint8)
    finer = voxels.repeat(2, 0).repeat(2, 1)

    def url(folder):
        return f"n5://{folder}/c.n5/em"

    def upsample(folder):
        wkwdask.upsample(url(folder), voxel_size=(2, 2, 35))

    with dask.config.set(scheduler="synchronous"):
        first = tmp_path / "first"
        wkwdask.to_n5(
            voxels,
            f"{url(first)}/s0",
            voxel_size=(4, 4, 35),
            offset=(3, 4, 5),
            chunk_shape=(16, 16, 16),
        )
        wkwdask.build_pyramid(url(first), mags=["2-2-1"], method="max")
        before = contents(first)
        coarser = wkwdask.open(url(first), mag="2-2-1").compute()
        upsample(first)
    known = {array.shape[-3:]: array for array in (finer, voxels, coarser)}
    changes, publishing = killed_at(0, upsample, lay_out(before, tmp_path / "whole"))
    expected = contents(tmp_path / "whole")
    assert {"c.n5/em/s2/attributes.json", "c.n5/em/s0/4/3/1"} <= set(expected)
    steps = (
        range(1, changes + 1)
        if KILLS
        else sorted(
            {*range(1, publishing, max(1, publishing // 4)), *range(publishing, changes + 1)}
        )
    )
    folder, num_refused = tmp_path / "killed", 0
    for step in killed_at_each(steps, upsample, lambda folder: lay_out(before, folder), folder):
        with dask.config.set(scheduler="synchronous"):
            try:
                for mag in wkwdask.info(url(folder)).scales:
                    array = wkwdask.open(url(folder), mag=mag.key).compute()
                    np.testing.assert_array_equal(
                        array.reshape(array.shape[-3:]),
                        known[array.shape[-3:]].reshape(array.shape[-3:]),
                    )
            except ReplacedError:
                num_refused += 1
            upsample(folder)
        assert contents(folder) == expected, step
        assert leftovers(folder) == [], step
    assert num_refused > 2
