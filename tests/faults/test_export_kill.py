"""Exports are killed before changes of the file system: what is visible is whole, and the same call completes it."""

from __future__ import annotations

import contextlib

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at
from faults.trees import contents, leftovers

import wkwdask
from wkwdask.errors import ExistsError

pytestmark = pytest.mark.faults

VOXEL_SIZE = (4, 4, 35)
SHAPE = (40, 30, 21)


def voxels():
    return np.random.default_rng(0).integers(0, 255, SHAPE).astype(np.uint8)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    np.save(folder / "a.npy", voxels().T)
    with dask.config.set(scheduler="synchronous"):
        wkwdask.convert(folder / "a.npy", folder / "ds", voxel_size=VOXEL_SIZE, block_len=8, file_len=2)
    return folder / "ds"


def files(path):
    """The bytes of a file, or of all in a folder."""
    if not path.exists():
        return None
    return {item.name: item.read_bytes() for item in path.iterdir()} if path.is_dir() else path.read_bytes()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["a.npy", "a.tif", "sections"])
def test_killed_at_any_step(tmp_path, source, name):
    pytest.importorskip("tifffile", reason="tifffile, of the extra convert, is not installed")

    def export(folder):
        wkwdask.convert(source, folder / name)

    for folder in ("first", "whole"):
        (tmp_path / folder).mkdir()
    with dask.config.set(scheduler="synchronous"):
        export(tmp_path / "first")  # what a process does once is done
    changes, _ = killed_at(0, export, tmp_path / "whole")
    assert changes > 8
    expected = files(tmp_path / "whole" / name)
    seen = []
    for step in range(1, changes + 1, 1 if KILLS else max(1, changes // 12)):
        folder = tmp_path / str(step)
        folder.mkdir()
        assert killed_at(step, export, folder) is None
        seen.append(files(folder / name))
        assert seen[-1] in (None, expected)
        with dask.config.set(scheduler="synchronous"), contextlib.nullcontext() if seen[-1] is None else pytest.raises(ExistsError):
            export(folder)
        assert files(folder / name) == expected
        assert leftovers(folder) == []
    assert None in seen
    assert leftovers(tmp_path / "whole") == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_images_killed_at_any_step(tmp_path, source):
    """An array of an OME-NGFF image is there whole or not at all, and what lists it is never without it for good."""
    pytest.importorskip("zarr", minversion="3.1.3", reason="zarr, of the extra zarr, is not installed")

    def export(folder):
        wkwdask.convert(source, folder / "a.ome.zarr", chunk_size=(8, 8, 8), existing="resume")

    def seen_in(folder):
        return {name: data for name, data in contents(folder).items() if not name.startswith(".")}

    for folder in ("first", "whole"):
        (tmp_path / folder).mkdir()
    with dask.config.set(scheduler="synchronous"):
        export(tmp_path / "first")
    changes, _ = killed_at(0, export, tmp_path / "whole")
    expected = seen_in(tmp_path / "whole")
    assert set(expected) == {"a.ome.zarr/zarr.json", "a.ome.zarr/1/zarr.json", "a.ome.zarr/1/c/0/0/0"}
    seen = []
    for step in range(1, changes + 1, 1 if KILLS else max(1, changes // 12)):
        folder = tmp_path / str(step)
        folder.mkdir()
        assert killed_at(step, export, folder) is None
        seen.append(seen_in(folder))
        assert all(expected[name] == data for name, data in seen[-1].items())
        assert "a.ome.zarr/zarr.json" not in seen[-1] or seen[-1] == expected
        with dask.config.set(scheduler="synchronous"):
            export(folder)
        assert seen_in(folder) == expected
        assert leftovers(folder) == []
    assert {} in seen
