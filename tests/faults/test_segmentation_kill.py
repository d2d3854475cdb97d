"""Jobs that make segmentations are killed at steps of each stage: nothing half-made is visible, and
the same call completes."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, journaled, killed_at, killed_at_each, logged, regions_of, runs
from faults.trees import contents, differences, lay_out, leftovers, make_dataset
from scipy import ndimage
from support.inside import limited

import wkwdask

pytestmark = pytest.mark.faults

SHAPE = (64, 64, 32)


def small():
    """Let there be many tasks."""
    return limited(components_nbytes=16**3 * 8, brick_nbytes=16**3 * 8), regions_of(32)


def find_components(folder):
    bricks, regions = small()
    with bricks, regions:
        wkwdask.connected_components(folder / "seg" / "1", folder / "cc" / "1", min_voxels=2)


def map_ids(folder):
    bricks, regions = small()
    with bricks, regions:
        wkwdask.remap(folder / "seg" / "1", folder / "cc" / "1", {1: 7, 2: 7})


def segment_blocks(folder):
    bricks, regions = small()
    with bricks, regions:
        wkwdask.segment(
            lambda em: ndimage.label(em == 2)[0],
            folder / "seg" / "1",
            folder / "cc" / "1",
            halo=3,
            chunks=(20, 24, 16),
            min_voxels=2,
        )


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("job", [find_components, map_ids, segment_blocks])
def test_killed_at_steps_of_all_stages(tmp_path, job):
    source = make_dataset(tmp_path / "source", (4, 4, 4))
    random = np.random.default_rng(1)
    values = np.where(random.random(SHAPE) < 0.4, random.integers(1, 3, SHAPE), 0).astype(np.uint32)
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_wkw(
            values,
            source / "seg" / "1",
            offset=(5, 0, 9),
            block_len=8,
            file_len=2,
            compression="lz4",
        )
        before = contents(source)
        job(source)
    after = contents(source)
    changes, publishing = killed_at(0, job, lay_out(before, tmp_path / "whole"))
    assert contents(tmp_path / "whole") == after
    steps = (
        range(1, changes + 1)
        if KILLS
        else {
            *range(1, changes, max(1, changes // 14)),
            *range(publishing - 1, changes, 4),
            changes,
        }
    )
    folder = tmp_path / "ds"
    for step in killed_at_each(steps, job, lambda folder: lay_out(before, folder), folder):
        seen = {
            name: content for name, content in contents(folder).items() if name.startswith("cc/")
        }
        assert seen in (
            {},
            {name: content for name, content in after.items() if name.startswith("cc/")},
        ), step
        done, log = journaled(folder), tmp_path / f"{step}.log"
        with dask.config.set(scheduler="synchronous"), logged(log):
            try:
                job(folder)
            except wkwdask.ExistsError:
                assert seen
        assert not done & set(runs(log)), step
        assert differences(contents(folder), after) == [], step
        assert leftovers(folder) == []
