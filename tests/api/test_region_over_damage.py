"""A region that covers a damaged file whole replaces it, in every format; one that cuts it is
refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("zarr", reason="zarr is not installed")

import wkwdask
from wkwdask.errors import CorruptError, FormatError, TaskFailedError, TruncatedError

FORMS = {
    "wkw": ("{}/wkw/1", {"block_len": 8, "file_len": 2}),
    "wkw-raw": ("{}/wkw/1", {"block_len": 8, "file_len": 2, "compression": "raw"}),
    "zarr": ("zarr://{}/image.zarr/1", {"chunk_shape": (16, 16, 16), "shard_shape": (16, 16, 16)}),
    "zarr-shards": (
        "zarr://{}/image.zarr/1",
        {"chunk_shape": (8, 8, 8), "shard_shape": (16, 16, 16)},
    ),
    "n5": ("n5://{}/image.n5/s0", {"chunk_shape": (16, 16, 16)}),
    "precomputed": (
        "precomputed://{}/volume",
        {"chunk_shape": (16, 16, 16), "shard_shape": (16, 16, 16)},
    ),
    "precomputed-shards": (
        "precomputed://{}/volume",
        {"chunk_shape": (8, 8, 8), "shard_shape": (16, 16, 16)},
    ),
}
DAMAGES = {
    "empty": lambda _: b"",
    "cut off": lambda raw: raw[: len(raw) // 2],
    "zeros": lambda raw: bytes(len(raw)),
    "other bytes": lambda raw: bytes(255 - byte for byte in raw),
}
SHAPE = (1, 48, 32, 16)
CUT = (1, 40, 32, 16)
"""Shape that cuts files; WKW has no end of the array."""


def voxels(url):
    return np.random.default_rng(7).integers(1, 200, CUT if "://" in url else SHAPE, np.uint8)


@pytest.fixture(params=FORMS)
def written(request, tmp_path):
    """Write an array in files of 16 voxels; return its URL, and the file with the voxels from (32,
    16, 0) on, which the array cuts."""
    url, options = FORMS[request.param]
    url = url.format(tmp_path)
    wkwdask.save(
        voxels(url),
        url.removesuffix("/1") if url.startswith("zarr") else url,
        voxel_size=(4, 4, 4),
        **options,
    )
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    width = voxels(url).shape[1]
    wkwdask.save(
        np.zeros((1, width - 32, 16, 16), np.uint8), url, region=((32, 16, 0), (width, 32, 16))
    )
    (path,) = (path for path in before if not path.exists())
    path.write_bytes(before[path])
    np.testing.assert_array_equal(wkwdask.read(url), voxels(url))
    return url, path


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("value", [0, 9])
def test_region_that_covers_a_damaged_file_replaces_it(written, damage, value):
    url, path = written
    path.write_bytes(damage(path.read_bytes()))
    expected = voxels(url)
    width = expected.shape[1]
    wkwdask.save(
        np.full((1, width - 28, 16, 16), value, np.uint8),
        url,
        region=((28, 16, 0), (width, 32, 16)),
    )
    expected[:, 28:, 16:] = value
    np.testing.assert_array_equal(wkwdask.read(url), expected)
    assert wkwdask.verify(url).is_sound


def test_region_that_cuts_a_damaged_file_changes_nothing(written):
    url, path = written
    damaged = path.read_bytes()[:11]
    path.write_bytes(damaged)
    with pytest.raises(
        (FormatError, TaskFailedError, CorruptError, TruncatedError), match=path.name
    ):
        wkwdask.save(np.full((1, 3, 16, 16), 9, np.uint8), url, region=((34, 16, 0), (37, 32, 16)))
    assert path.read_bytes() == damaged
