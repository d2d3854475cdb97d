"""The examples of the proposal, as printed where they work, mended where they do not."""

from __future__ import annotations

import base64
import io
import json
import struct

import numpy as np
import pytest
from PIL import Image
from support import zarr_proposal as proposal

pytest.importorskip("zarr", reason="zarr is not installed")
import zarr
from support.zarr_arrays import Stored
from zarr.codecs import GzipCodec
from zarr.storage import MemoryStore

import wkwdask
from wkwdask.formats.zarr.codecs.headers import ChunkLayout, n5_header


def _opened(codecs, **changes):
    """Open an array of the proposal's 256 x 256 chunks of uint16 with a list of codecs."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [500, 600],
        "data_type": "uint16",
        "fill_value": 0,
        "codecs": codecs,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [256, 256]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        **changes,
    }
    files = {}
    store = MemoryStore(files)
    files["zarr.json"] = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(
        json.dumps(document).encode()
    )
    return zarr.open_array(store), files


def test_example_1_as_printed():
    """Every chunk is a TIFF file, those at the border of the array too."""
    array, files = _opened(proposal.EXAMPLE_1["codecs"])
    voxels = np.random.default_rng(0).integers(1, 1 << 16, array.shape).astype("uint16")
    array[...] = voxels
    for y in range(2):
        for x in range(3):
            whole = np.zeros((256, 256), "uint16")
            part = voxels[256 * y : 256 * y + 256, 256 * x : 256 * x + 256]
            whole[: part.shape[0], : part.shape[1]] = part
            with Image.open(io.BytesIO(files[f"c/{y}/{x}"].to_bytes())) as image:
                np.testing.assert_array_equal(np.asarray(image), whole)


def test_hexdump_of_example_1_is_not_its_base64():
    """The dump lacks eight bytes: the values of ImageWidth and ImageLength; it has one row per
    strip, and two bytes in it. The base64 is right."""
    dump = bytes.fromhex(proposal.TIFF_HEXDUMP.replace("\n", " "))
    prefix = base64.b64decode(proposal.TIFF_PREFIX, validate=True)
    assert (len(dump), len(prefix)) == (102, 110)
    assert wkwdask.tiff_prefix((256, 256), "uint16") == prefix
    assert struct.unpack_from("<HHII", prefix, 10) == (256, 3, 1, 256)
    # 16,842,753 widths: the next entry is read as part of this one
    assert struct.unpack_from("<HHII", dump, 10) == (256, 3, 0x0101_0001, 0x0001_0003)


def test_example_1_of_other_types_needs_other_headers():
    """The printed header says uint16; for int16 it would show other numbers, and Pillow would show
    them."""
    voxels = np.full((256, 256), -5, "int16")
    for prefix, seen in (
        (base64.b64decode(proposal.TIFF_PREFIX), 65531),
        (wkwdask.tiff_prefix((256, 256), "int16"), -5),
    ):
        with Image.open(io.BytesIO(prefix + voxels.tobytes())) as image:
            assert int(np.asarray(image)[0, 0]) == seen


def test_example_2_as_printed_does_not_open():
    """It has no codec that makes bytes of an array, and gzip has no level, which its own
    specification requires."""
    with pytest.raises((ValueError, TypeError, KeyError)):
        _opened(proposal.EXAMPLE_2["codecs"])


def test_example_2_mended():
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "gzip", "configuration": {"level": 5}},
        proposal.EXAMPLE_2["codecs"][1],
    ]
    array, files = _opened(codecs)
    array[...] = 7
    assert files["c/0/0"].to_bytes().startswith(b"MY_CUSTOM_HEADER\x1f\x8b")
    assert int(array[...].min()) == 7


def test_header_of_example_3():
    """The prefix is the header of a 64 x 64 block, and what the header "n5" makes."""
    prefix = base64.b64decode(proposal.EXAMPLE_3["codecs"][-1]["configuration"]["prefix"])
    assert n5_header(b"", ChunkLayout((64, 64), np.dtype(">u2"), 12)) == prefix


def test_dynamic_header_as_spelled():
    """``offset_codec(offset=, prefix_func=)``; ``create_array`` takes such codecs as
    ``compressors=``, not as ``codecs=``."""

    def create_tiff_header(compressed_chunk: bytes) -> bytes:
        assert compressed_chunk[:2] == b"\x1f\x8b"
        return len(compressed_chunk).to_bytes(110, "little")

    stored = Stored([GzipCodec(), wkwdask.offset_codec(offset=110, prefix_func=create_tiff_header)])
    data = stored.bytes()
    assert int.from_bytes(data[:110], "little") == len(data) - 110
    np.testing.assert_array_equal(stored.open()[...], stored.voxels)
