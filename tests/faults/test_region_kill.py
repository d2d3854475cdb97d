"""Writes into a living mag that are killed: each file is the old or the new one, whole, and the
same call makes all right."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, killed_at_each
from faults.trees import JSON_NAME, contents, differences, lay_out, leftovers, make_dataset
from support.commands import run_here

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


FORMS = {
    "wkw": ("{}/em/1", {"block_len": 8, "file_len": 2}),
    "n5": ("{}/em.n5/s0", {"chunk_shape": (16, 16, 16)}),
    "ngff": ("{}/em.ome.zarr", {"chunk_shape": (16, 16, 16), "shard_shape": "none"}),
    "precomputed": ("precomputed://{}/em", {"chunk_shape": (16, 16, 16)}),
}
OF_JOBS = {"job.dead", "job.interrupted", "job.running", "leftover.lock", "leftover.temporary"}
"""Kinds of faults that a killed job leaves."""


@pytest.mark.filterwarnings("ignore::wkwdask.errors.DiscardWarning")
@pytest.mark.parametrize(
    "form", ["wkw", "n5", pytest.param("ngff", marks=pytest.mark.needs("zarr")), "precomputed"]
)
def test_the_record_of_files_follows_a_write_that_is_given_up(tmp_path, form):
    """``verify`` finds nothing wrong with files that a killed job has replaced or removed, neither
    before it is given up, by request or by a write elsewhere, nor after."""
    url, options = FORMS[form]

    def save(folder):
        folder.mkdir()
        wkwdask.save(
            voxels(3, (32, 32, 32)) + 1, url.format(folder), voxel_size=(4, 4, 4), **options
        )

    def fill(folder, low, high, value):
        box = np.full((high - low,) * 3, value, np.uint32)
        wkwdask.write(url.format(folder), None, box, region=((low,) * 3, (high,) * 3))

    def clear(folder):
        fill(folder, 0, 20, 0)

    with dask.config.set(scheduler="synchronous"):
        save(tmp_path / "whole")
        changes, _ = killed_at(0, clear, tmp_path / "whole")
        folder = tmp_path / "ds"
        for turn, step in enumerate(
            killed_at_each(range(changes // 3, changes + 1), clear, save, folder)
        ):
            faults = wkwdask.verify(url.format(folder)).faults
            assert {fault.kind for fault in faults} <= OF_JOBS, f"step {step}: {faults}"
            if turn % 2:
                fill(folder, 30, 32, 7)
            else:
                run_here("cancel", url.format(folder), "--discard")
            faults = wkwdask.verify(url.format(folder)).faults
            assert {fault.kind for fault in faults} <= OF_JOBS, f"step {step}: {faults}"
