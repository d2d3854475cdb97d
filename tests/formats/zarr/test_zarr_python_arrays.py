"""Arrays whose chunks only zarr-python decodes, in every place that is read: folders, memory, zips,
and zips on a server and in zips."""

from __future__ import annotations

import pickle
import zipfile

import numpy as np
import pytest
from support.range_server import range_server

import wkwdask
from wkwdask.errors import CorruptError, MissingError

zarr = pytest.importorskip("zarr", reason="writes the arrays")

pytestmark = pytest.mark.filterwarnings(
    "ignore:Numcodecs codecs are not in the Zarr version 3 specification"
)

VOXELS = np.random.default_rng(1).integers(1, 999, (20, 30, 40)).astype("uint16")  # (z, y, x)
BOX = ((3, 5, 7), (33, 25, 19))
FILTER = {"name": "numcodecs.delta", "configuration": {"dtype": "<u2"}}
WAYS = {"delta": {}, "shards": {"shards": (16, 16, 16)}}


@pytest.fixture(params=WAYS)
def folder(tmp_path, request):
    """A folder with an array whose first chunks are absent."""
    array = zarr.create_array(
        tmp_path / "a.zarr",
        shape=VOXELS.shape,
        chunks=(8, 8, 8),
        dtype="uint16",
        filters=[FILTER],
        **WAYS[request.param],
    )
    array[8:] = VOXELS[8:]
    return tmp_path / "a.zarr"


def _expected():
    voxels = VOXELS.copy()
    voxels[:8] = 0
    return voxels.T[np.newaxis]


def _zipped(folder, compression=zipfile.ZIP_STORED):
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", compression) as file:
        for each in sorted(folder.rglob("*")):
            if each.is_file():
                file.write(each, each.relative_to(folder))
    return path


def _check(url):
    (expected,) = _expected()
    inside = tuple(map(slice, *BOX))
    np.testing.assert_array_equal(wkwdask.read(url, BOX)[0], expected[inside])
    array = pickle.loads(pickle.dumps(wkwdask.open(url)))
    np.testing.assert_array_equal(np.asarray(array)[0], expected)


def test_zarr_python_alone_reads_them(folder):
    _check(f"zarr://{folder}")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_on_disk(folder, compression):
    _check(f"zarr://{_zipped(folder, compression)}")


def test_a_zip_in_a_zip(folder):
    inner = _zipped(folder)
    with zipfile.ZipFile(folder.parent / "outer.zip", "w") as file:
        file.write(inner, "b/inner.zip")
    _check(f"zarr://{folder.parent}/outer.zip|zip:b/inner.zip|zip:")


@pytest.mark.needs("obstore")
def test_a_zip_on_a_server(folder):
    _zipped(folder)
    with range_server(folder.parent) as server:
        _check(f"zarr://{server.url}/a.zip")


@pytest.mark.parametrize("folder", ["delta"], indirect=True)
def test_a_damaged_chunk_in_a_zip_is_an_error(folder):
    path = _zipped(folder)
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        raw[file.getinfo("c/1/1/1").header_offset + 60] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match=r"a\.zip\|zip:.*c/1/1/1"):
        wkwdask.read(f"zarr://{path}", ((8, 8, 8), (16, 16, 16)))


@pytest.mark.needs("obstore")
def test_a_zip_that_vanishes_from_its_server_is_not_read_as_zeros(folder):
    path = _zipped(folder)
    with range_server(folder.parent) as server:
        array = wkwdask.open(f"zarr://{server.url}/a.zip")
        path.unlink()
        with pytest.raises(MissingError):
            # one chunk: zarr-python reports only one of several errors
            np.asarray(array[:, 8:16, 8:16, 8:16])
