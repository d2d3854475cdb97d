"""Meshing is killed before changes of the file system: no half mesh is visible, and the same call
completes all."""

from __future__ import annotations

import contextlib
import json
from functools import partial

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, killed_at_each
from faults.trees import leftovers

import wkwdask
from wkwdask.errors import ExistsError

pytestmark = [pytest.mark.faults, pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")]


def make_volume(folder):
    """Save balls of two labels."""
    x, y, z = np.ogrid[:30, :20, :20]
    labels = ((x - 9) ** 2 + (y - 10) ** 2 + (z - 9) ** 2 < 60).astype(np.uint32)
    labels[(x - 20) ** 2 + (y - 9) ** 2 + (z - 10) ** 2 < 60] = 2
    url = f"precomputed://{folder}"
    wkwdask.save(labels, url, voxel_size=(4, 4, 35), category="segmentation")


def make_meshes(folder, sharded):
    wkwdask.meshes(f"precomputed://{folder}", cell=14, sharded=sharded)


def seen_in(folder):
    """The field of info that names meshes, and their files."""
    named = json.loads((folder / "info").read_bytes()).get("mesh")
    if not (folder / "mesh").exists():
        return named, None
    # a record of the publication is there for a moment
    names = (path for path in (folder / "mesh").iterdir() if not path.name.startswith("."))
    return named, {path.name: path.read_bytes() for path in names}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("sharded", "names"),
    [(True, ["0.shard", "info"]), (False, ["1", "1.index", "2", "2.index", "info"])],
    ids=["sharded", "unsharded"],
)
def test_killed_at_any_step(tmp_path, sharded, names):
    mesh = partial(make_meshes, sharded=sharded)
    with dask.config.set(scheduler="synchronous"):
        for folder in ("first", "whole"):
            make_volume(tmp_path / folder)
        mesh(tmp_path / "first")  # what a process does once is done
        changes, _ = killed_at(0, mesh, tmp_path / "whole")
    expected = seen_in(tmp_path / "whole")
    assert changes > 30
    assert sorted(expected[1]) == names
    states = []
    for _ in killed_at_each(
        range(1, changes + 1, 1 if KILLS else max(1, changes // 12)),
        mesh,
        make_volume,
        tmp_path / "killed",
    ):
        named, files = seen_in(tmp_path / "killed")
        assert files in (None, expected[1])
        assert named in (None, "mesh")
        assert named is None or files is not None
        states.append(named)
        with (
            dask.config.set(scheduler="synchronous"),
            # one that was killed while it published is completed, and says so
            contextlib.nullcontext() if files is None else contextlib.suppress(ExistsError),
        ):
            mesh(tmp_path / "killed")
        assert seen_in(tmp_path / "killed") == expected
        assert leftovers(tmp_path / "killed") == []
    assert None in states
    print(f"{changes} changes of the file system, killed before {len(states)}")
