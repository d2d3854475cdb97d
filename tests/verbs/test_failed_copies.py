"""A copy that fails before it has finished any work leaves nothing that was not there; one with
finished work can be resumed."""

from __future__ import annotations

import numpy as np
import pytest
from support.inside import limited
from support.range_server import range_server

import wkwdask

pytestmark = pytest.mark.needs("obstore")

VOXELS = np.arange(1, 64**3 + 1, dtype=np.uint32).reshape(64, 64, 64)
SOURCES = ["ds", "ds/color", "ds/color/1", "n5://em.n5/em", "n5://em.n5/em/s0", "em.ome.zarr"]


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    wkwdask.create_dataset(folder / "ds", (4, 4, 8))
    wkwdask.to_wkw(VOXELS, folder / "ds/color/1", category="color", file_len=1)
    wkwdask.to_n5(VOXELS, folder / "em.n5/em/s0", voxel_size=(4, 4, 8))
    wkwdask.save(VOXELS, folder / "em.ome.zarr", voxel_size=(4, 4, 8))
    return folder


def _data_files(folder):
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.suffix not in (".json", ".jsonl", ".npy")
        and path.name != "header.wkw"
    ]


def _at(place, name):
    prefix, _, path = name.rpartition("://")
    return f"{prefix}://{place}/{path}" if prefix else f"{place}/{path}"


def _contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("above", ["", "new/folders/"])
@pytest.mark.parametrize("name", SOURCES)
def test_nothing_new_is_left(source, tmp_path, name, above):
    for path in _data_files(source):
        path.write_bytes(b"no voxels")
    (tmp_path / "target").mkdir()
    before = _contents(tmp_path)
    with (
        range_server(source) as server,
        limited(pauses=(0.0, 0.0)),
        pytest.raises(wkwdask.FormatError),
    ):
        wkwdask.copy(_at(server.url, name), _at(f"{tmp_path}/target/{above}".rstrip("/"), name))
    assert _contents(tmp_path) == before


def test_a_dataset_that_was_there_stays(source, tmp_path):
    for path in _data_files(source):
        path.write_bytes(b"no voxels")
    wkwdask.create_dataset(tmp_path / "empty", (4, 4, 8))
    before = _contents(tmp_path)
    with (
        range_server(source) as server,
        limited(pauses=(0.0, 0.0)),
        pytest.raises(wkwdask.FormatError),
    ):
        wkwdask.copy(f"{server.url}/ds", tmp_path / "empty")
    assert _contents(tmp_path) == before


def test_finished_work_stays_and_is_resumed(source, tmp_path):
    broken = source / "ds/color/1/z0/y0/x0.wkw"
    whole = broken.read_bytes()
    with range_server(source) as server, limited(pauses=(0.0, 0.0)):
        broken.write_bytes(b"no voxels")
        with pytest.raises(wkwdask.FormatError, match=r"z0/y0/x0\.wkw") as caught:
            wkwdask.copy(f"{server.url}/ds", tmp_path / "new/ds")
        assert "finished work is kept" in "".join(caught.value.__notes__)
        assert (tmp_path / "new/ds/datasource-properties.json").is_file()
        broken.write_bytes(whole)
        wkwdask.copy(f"{server.url}/ds", tmp_path / "new/ds")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "new/ds/color/1")[0], VOXELS)
