"""Writes into a living mag that are killed: each file is the old or the new one, whole, and the
same call makes all right."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, killed_at_each
from faults.trees import JSON_NAME, contents, differences, lay_out, leftovers, make_dataset

import wkwdask

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

SHAPE = (70, 40, 60)
REGION = ((5, 2, 9), (68, 40, 63))


def voxels(seed, shape):
    random = np.random.default_rng(seed)
    return random.integers(0, 50, shape).astype(np.uint32)


def start(folder):
    make_dataset(folder, (4, 4, 40))
    wkwdask.to_wkw(
        voxels(1, SHAPE),
        folder / "seg" / "1",
        offset=(1, 2, 3),
        block_len=8,
        file_len=4,
        compression="lz4",
    )


def write(folder, existing="error"):
    """Blocks, files and the box are cut; one file becomes empty."""
    new = voxels(2, [b - a for a, b in zip(*REGION, strict=True)])
    new[27:59, :30, 23:] = 0
    wkwdask.to_wkw(
        da.from_array(new, chunks=(40, 40, 7)),
        folder / "seg" / "1",
        region=REGION,
        existing=existing,
    )


def resume(folder):
    write(folder, "resume")


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    folder = tmp_path_factory.mktemp("known") / "ds"
    with dask.config.set(scheduler="synchronous"):
        start(folder)
        before = contents(folder)
        write(folder)
    return before, contents(folder)


@pytest.mark.long
def test_killed_at_any_step(tmp_path, known):
    before, after = known
    assert len(set(before) - set(after)) == 1  # the file that becomes empty
    changes, _ = killed_at(0, write, lay_out(before, tmp_path / "whole"))
    assert contents(tmp_path / "whole") == after
    assert changes > 60
    problems = []
    steps = (
        range(1, changes + 1)
        if KILLS
        else [*range(1, changes, max(1, changes // 25)), changes - 1, changes]
    )
    folder = tmp_path / "ds"
    for turn, step in enumerate(
        killed_at_each(steps, write, lambda folder: lay_out(before, folder), folder)
    ):
        seen = contents(folder)
        wrong = [
            name
            for name in {**before, **after, **seen}
            if seen.get(name) not in (before.get(name), after.get(name))
        ]
        assert seen[JSON_NAME] == before[JSON_NAME]
        with dask.config.set(scheduler="synchronous"):
            (write, resume)[turn % 2](folder)
        wrong += differences(contents(folder), after) + leftovers(folder)
        if wrong:
            problems.append(f"killed before change {step} of {changes}: {wrong}")
    assert not problems, "\n".join(problems)
