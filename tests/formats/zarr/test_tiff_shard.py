"""Shards that are TIFF files: the bytes by hand, and that metadata and index are standard ones."""

from __future__ import annotations

import json
import pickle
import re
import struct

import numpy as np
import pytest

pytest.importorskip("zarr", reason="zarr is not installed")
from support.zarr_arrays import Stored

import wkwdask
from wkwdask.errors import UnsupportedError
from wkwdask.formats.zarr.codecs.tiff import TiffImage, tiff_prefix, tiff_segments_header
from wkwdask.formats.zarr.codecs.tiff_shard import TiffShardCodec


def _stored(inner, chunks=(32, 48), shape=(40, 50), dtype="uint16", **options):
    return Stored(
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        serializer=wkwdask.tiff_shard_codec(inner, **options),
    )


def test_whole_shard_by_hand():
    stored = _stored((32, 48))
    data, voxels = stored.bytes(), stored.voxels[:32, :48]
    prefix = tiff_prefix((32, 48), "uint16")
    assert data[:-20] == prefix + voxels.tobytes()
    assert struct.unpack("<QQ", data[-20:-4]) == (len(prefix), voxels.nbytes)


def test_metadata_are_standard():
    codecs = json.loads(_stored((16, 16), compression="zstd", level=5).bytes("zarr.json"))["codecs"]
    assert [codec["name"] for codec in codecs] == ["sharding_indexed"]
    configuration = codecs[0]["configuration"]
    assert [codec["name"] for codec in configuration["codecs"]] == ["bytes", "zstd"]
    assert configuration["chunk_shape"] == [16, 16]
    assert configuration["index_location"] == "end"


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    ("inner", "chunks", "axes"),
    [
        ((32, 48), (32, 48), None),
        ((16, 16), (32, 48), None),
        ((1, 16, 48), (3, 32, 48), None),
        ((16, 16, 3), (16, 32, 3), "yxs"),
    ],
)
def test_read_by_zarr_alone(compression, inner, chunks, axes):
    stored = _stored(
        inner,
        chunks,
        tuple(n + 7 if n > 3 else n for n in chunks),
        compression=compression,
        axes=axes,
    )
    again = stored.open()
    assert (again.chunks, again.shards) == (inner, chunks)
    np.testing.assert_array_equal(again[...], stored.voxels)
    np.testing.assert_array_equal(again[1:9, 5], stored.voxels[1:9, 5])  # by the index
    np.testing.assert_array_equal(stored.array[1:9, 5], stored.voxels[1:9, 5])


def test_update_keeps_the_header_and_reopening_does_not():
    stored = _stored((16, 16))
    stored.array[2:5, 7] = stored.voxels[2:5, 7] = 9
    assert stored.bytes()[:4] == b"II*\0"
    again = stored.open()
    np.testing.assert_array_equal(again[...], stored.voxels)
    again[2:5, 8] = stored.voxels[2:5, 8] = 9  # a standard shard from here on, right but no TIFF
    assert stored.bytes()[:4] != b"II*\0"
    np.testing.assert_array_equal(stored.array[...], stored.voxels)


def test_header_stays_with_the_array():
    stored = _stored((16, 16))
    stored.array.resize((64, 96))
    stored.array.update_attributes({"a": 1})
    stored.array[-1, -1] = 5
    assert stored.bytes("c/1/1")[:4] == b"II*\0"
    codec = pickle.loads(pickle.dumps(stored.array.metadata.codecs[0]))
    assert codec == stored.array.metadata.codecs[0]
    assert isinstance(codec, TiffShardCodec)


@pytest.mark.parametrize(
    ("shape", "tile", "axes", "message"),
    [
        ((32, 48), (8, 48), None, "tiles of 8 x 48 pixels, expected multiples of 16"),
        (
            (4, 32, 48),
            (2, 32, 48),
            None,
            "inner chunks with z 2 of 4, y 32 of 32, x 48 of 48, expected 1 along planes",
        ),
        ((32, 48, 4), (32, 48, 1), "yxs", "s 1 of 4"),
    ],
)
def test_parts_that_are_no_tiles(shape, tile, axes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        tiff_segments_header(
            TiffImage.of(shape, "uint8", "little", axes, "pages"), shape, tile, (1,), "none"
        )


def test_compressed_stack_in_one_chunk():
    with pytest.raises(ValueError, match="a TIFF tile lies in one plane"):
        _stored((3, 32, 48), (3, 32, 48), (3, 32, 48), compression="zstd")


def test_refused():
    with pytest.raises(ValueError, match="compression 'gzip', expected one of none, zlib, zstd"):
        wkwdask.tiff_shard_codec((16, 16), compression="gzip")
    with pytest.raises(ValueError, match="byteorder 'native'"):
        wkwdask.tiff_shard_codec((16, 16), byteorder="native")
    with pytest.raises(ValueError, match="divisible"):
        _stored((16, 20))
    with pytest.raises(UnsupportedError, match="cannot be created from metadata"):
        TiffShardCodec.from_dict({"name": "sharding_indexed"})
