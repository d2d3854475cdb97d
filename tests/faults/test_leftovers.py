"""After a kill at any change of the file system, the same call leaves nothing behind but documented records."""

from __future__ import annotations

import shutil

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, killed_at_each, rechunks_of, without_flushing
from faults.trees import leftovers

import wkwdask

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]
VOXELS = np.random.default_rng(0).integers(1, 255, (16, 16, 8)).astype(np.uint8)


def n5_as_zarr(folder):
    wkwdask.n5_as_zarr(f"n5://{folder}/em.n5", write=True)


def rechunk(folder):
    with rechunks_of(8):
        wkwdask.rechunk(folder / "ds" / "seg" / "1", file_len=1)


def make(folder):
    folder.mkdir()
    wkwdask.create_dataset(folder / "ds", voxel_size=(4, 4, 4))
    wkwdask.save(VOXELS, folder / "ds" / "seg" / "1", block_len=8, file_len=2)
    wkwdask.save(VOXELS, f"n5://{folder}/em.n5/s0", voxel_size=(4, 4, 4), chunk_shape=(8, 8, 8))


def fail_at_the_corner(ids, box):
    if box.topleft == (0, 0, 0):
        raise ValueError("corner")
    return ids


def test_a_function_that_fails_leaves_no_layer(tmp_path):
    make(tmp_path / "all")
    ds = tmp_path / "all" / "ds"
    with dask.config.set(scheduler="synchronous"), pytest.raises(wkwdask.TaskFailedError, match="corner"):
        wkwdask.apply(fail_at_the_corner, ds / "seg" / "1", ds / "new" / "1", chunks=8)
    assert not (ds / "new").exists()
    assert leftovers(ds) == []


@pytest.mark.parametrize("verb", [n5_as_zarr, rechunk])
def test_the_same_call_leaves_nothing_behind(tmp_path, verb):
    make(tmp_path / "before")

    def run(folder):
        with without_flushing():
            verb(folder)

    def start(folder):
        shutil.copytree(tmp_path / "before", folder)

    start(tmp_path / "whole")
    changes, _ = killed_at(0, run, tmp_path / "whole")
    steps = range(1, changes + 1, 1 if KILLS else max(1, changes // 12))
    for step in killed_at_each(steps, run, start, tmp_path / "killed"):
        with dask.config.set(scheduler="synchronous"):
            run(tmp_path / "killed")
        assert leftovers(tmp_path / "killed") == [], step
