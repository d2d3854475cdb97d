"""Exports are killed before changes of the file system: what is visible is whole, and the same call
completes it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, killed_at_each
from faults.trees import leftovers

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
        wkwdask.convert(
            folder / "a.npy", folder / "ds", voxel_size=VOXEL_SIZE, block_len=8, file_len=2
        )
    return folder / "ds"


def files(path):
    """The bytes of a file, or of all in a folder."""
    if not path.exists():
        return None
    return (
        {item.name: item.read_bytes() for item in path.iterdir()}
        if path.is_dir()
        else path.read_bytes()
    )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["a.npy", "a.tif", "sections"])
@pytest.mark.needs("tifffile")
def test_killed_at_any_step(tmp_path, source, name):
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
    folder = tmp_path / "killed"
    for _ in killed_at_each(
        range(1, changes + 1, 1 if KILLS else max(1, changes // 12)), export, Path.mkdir, folder
    ):
        seen.append(files(folder / name))
        assert seen[-1] in (None, expected)
        with (
            dask.config.set(scheduler="synchronous"),
            # one that was killed while it published is completed, and says so
            contextlib.nullcontext() if seen[-1] is None else contextlib.suppress(ExistsError),
        ):
            export(folder)
        assert files(folder / name) == expected
        assert leftovers(folder) == []
    assert None in seen
    assert leftovers(tmp_path / "whole") == []


NAMES_OF_ZARR_2 = (".zarray", ".zattrs", ".zgroup")


def files_below(folder):
    """The bytes of every file that is no record of a job; some names of Zarr 2 begin with a dot
    too."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    visible = [
        path
        for path in paths
        if not any(part.startswith(".wkwdask") for part in path.relative_to(folder).parts)
    ]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in visible
        if path.name in NAMES_OF_ZARR_2 or not path.name.startswith(".")
    }


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "version", "lists"),
    [("a.ome.zarr", "0.5", "zarr.json"), ("a.ome.zarr/labels/ids", "0.4", ".zattrs")],
)
@pytest.mark.needs("zarr")
def test_images_killed_at_any_step(tmp_path, source, name, version, lists):
    """An array of an OME-NGFF image is there whole or not at all, and is there before the image
    lists it; the same call lists it."""
    pytest.importorskip(
        "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
    )
    wkwdask.to_wkw(voxels().astype("uint32"), tmp_path / "ids" / "1", block_len=8, file_len=2)

    def export(folder):
        of_labels = {"voxel_size": VOXEL_SIZE} if "labels" in name else {}
        wkwdask.convert(
            tmp_path / "ids" if of_labels else source,
            folder / name,
            chunk_shape=(8, 8, 8),
            existing="resume",
            ngff=version,
            **of_labels,
        )

    for folder in ("first", "whole"):
        (tmp_path / folder).mkdir()
    with dask.config.set(scheduler="synchronous"):
        export(tmp_path / "first")
    changes, _ = killed_at(0, export, tmp_path / "whole")
    expected = files_below(tmp_path / "whole")
    arrays = {path for path in expected if path.startswith(f"{name}/1/")}
    assert f"{name}/{lists}" in expected
    assert arrays
    seen = []
    folder = tmp_path / "killed"
    for _ in killed_at_each(
        range(1, changes + 1, 1 if KILLS else max(1, changes // 8)), export, Path.mkdir, folder
    ):
        seen.append(
            {
                path: data
                for path, data in files_below(folder).items()
                if path in arrays or path == f"{name}/{lists}"
            }
        )
        assert all(expected[path] == data for path, data in seen[-1].items())
        assert arrays <= set(seen[-1]) or not seen[-1]
        with dask.config.set(scheduler="synchronous"):
            export(folder)
        assert files_below(folder) == expected
        assert [path for path in leftovers(folder) if not path.endswith(NAMES_OF_ZARR_2)] == []
    assert {} in seen
