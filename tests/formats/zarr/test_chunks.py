"""Chunks and shards of Zarr as bytes: what zarr itself makes of them, and options that make no
sense."""

from __future__ import annotations

import numpy as np
import pytest

from wkwdask.formats.zarr.array import zarr_array
from wkwdask.formats.zarr.encoding import ArrayEncoding
from wkwdask.formats.zarr.options import ZarrOptions
from wkwdask.formats.zarr.shards import ZarrShards
from wkwdask.model.writing.file_buffer import Arena
from wkwdask.store.store import open_store

zarr = pytest.importorskip(
    "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
)


def test_an_index(tmp_path):
    """The one that zarr writes for the same shard: an empty chunk and a raw one."""
    array = zarr.create_array(
        str(tmp_path / "a"),
        shape=(2, 2, 4),
        shards=(2, 2, 4),
        chunks=(2, 2, 2),
        dtype="uint8",
        compressors=None,
    )
    array[:, :, 2:] = 7
    (path,) = (path for path in tmp_path.rglob("0") if path.is_file())
    layout = ZarrShards((1, 2, 1, 1), "zyx")
    expected = layout.format_index(np.array([1], np.uint64), np.array([0]), np.array([8]))
    assert len(expected) == layout.index_nbytes
    assert path.read_bytes() == bytes([7] * 8) + expected


@pytest.mark.parametrize("compression", ["raw", "zstd", "blosc", "gzip"])
def test_a_chunk_at_the_border(tmp_path, compression):
    """It is filled up with zeros."""
    encoding = ArrayEncoding(
        np.dtype("int16"),
        2,
        "czyx",
        (4, 3, 2),
        compression,
        ZarrOptions(compression=compression).level_of(compression),
    )
    voxels = np.arange(2 * 3 * 3 * 1, dtype=">i2").reshape(2, 3, 3, 1)
    document = encoding.document((3, 3, 1), {})
    codecs, codec = (
        document["codecs"],
        zarr_array(open_store(tmp_path), "zarr.json", document, "czyx", is_new=True).codec,
    )
    # a whole chunk before, whose values the memory of this thread still holds
    ones, arena = np.full((2, 4, 3, 2), -1, ">i2"), Arena()
    codec.encode(ones, "a")
    codec.encode_in_arena(ones, arena, "a")
    arena.release()
    assert codec.encode(voxels, "a") == codec.encode_in_arena(voxels, arena, "a")
    array = zarr.create_array(
        str(tmp_path / "a"),
        shape=(2, 1, 3, 3),
        chunks=(2, 2, 3, 4),
        dtype="int16",
        serializer=codecs[0],
        compressors=codecs[1:],
    )
    (tmp_path / "a" / "c" / "0" / "0" / "0").mkdir(parents=True)
    (tmp_path / "a" / "c" / "0" / "0" / "0" / "0").write_bytes(codec.encode(voxels, "a"))
    np.testing.assert_array_equal(array[...], voxels.transpose(0, 3, 2, 1))


def test_levels():
    assert [ZarrOptions().level_of(name) for name in ("zstd", "blosc", "gzip", "raw")] == [
        3,
        3,
        5,
        0,
    ]
    with pytest.raises(ValueError, match="must be one of"):
        ZarrOptions(compression="lzma")
    with pytest.raises(ValueError, match="compression raw of OME-NGFF has no level"):
        ZarrOptions(compression="raw", level=1)
