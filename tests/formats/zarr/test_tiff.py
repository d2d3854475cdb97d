"""TIFF headers: the proposal's bytes, bytes by hand, what Pillow sees, and what is refused."""

from __future__ import annotations

import base64
import gzip
import io
import lzma
import re
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from support.zarr_proposal import TIFF_PREFIX

import wkwdask
from wkwdask.errors import UnsupportedError
from wkwdask.formats.zarr.codecs.headers import ChunkLayout
from wkwdask.formats.zarr.codecs.tiff import tiff_header, tiff_prefix


def _tags(header, at=8):
    """Read one directory: tag to (type, values), and where the next one is."""
    order = "<" if header[:2] == b"II" else ">"
    (count,) = struct.unpack_from(f"{order}H", header, at)
    tags = {}
    for n in range(count):
        tag, kind, number = struct.unpack_from(f"{order}HHI", header, at + 2 + 12 * n)
        letter, size = {2: ("s", 1), 3: ("H", 2), 4: ("I", 4)}[kind]
        place = at + 2 + 12 * n + 8
        if size * number > 4:
            (place,) = struct.unpack_from(f"{order}I", header, place)
        form = f"{number}s" if letter == "s" else f"{number}{letter}"
        tags[tag] = (kind, struct.unpack_from(f"{order}{form}", header, place))
    assert list(tags) == sorted(tags)  # TIFF 6.0, section 2: in ascending order
    return tags, struct.unpack_from(f"{order}I", header, at + 2 + 12 * count)[0]


def test_the_bytes_of_the_proposal():
    assert base64.b64encode(tiff_prefix((256, 256), "uint16")).decode() == TIFF_PREFIX
    assert wkwdask.tiff_prefix is tiff_prefix


def test_big_endian_by_hand():
    """A short number stands at the left of its field, which no reader of the little-endian one
    notices."""
    header = tiff_prefix((3, 5), "uint16", "big")
    assert header[:8] == b"MM\0\x2a\0\0\0\x08"
    assert header[10:22] == bytes([1, 0, 0, 3, 0, 0, 0, 1, 0, 5, 0, 0])  # ImageWidth, SHORT, 1, 5
    tags, following = _tags(header)
    assert (tags[257], tags[273], tags[279], following) == ((3, (3,)), (4, (110,)), (4, (30,)), 0)


def test_wide_image_has_long_numbers():
    tags, _ = _tags(tiff_prefix((1, 70_000), "uint8"))
    assert tags[256] == (4, (70_000,))
    assert tags[257] == (3, (1,))


@pytest.mark.parametrize(
    ("dtype", "bits", "form"),
    [
        ("uint8", 8, None),
        ("int8", 8, 2),
        ("int64", 64, 2),
        ("float16", 16, 3),
        ("float32", 32, 3),
        ("float64", 64, 3),
        ("complex64", 64, 6),
    ],
)
def test_sample_formats(dtype, bits, form):
    tags, _ = _tags(tiff_prefix((3, 5), dtype))
    assert tags[258] == (3, (bits,))
    assert tags.get(339) == (None if form is None else (3, (form,)))


def test_samples():
    rgb, _ = _tags(tiff_prefix((3, 5, 3), "uint16", axes="yxs"))
    assert (rgb[258], rgb[262], rgb[277], rgb[284], rgb.get(338)) == (
        (3, (16, 16, 16)),
        (3, (2,)),
        (3, (3,)),
        (3, (1,)),
        None,
    )
    rgba, _ = _tags(tiff_prefix((3, 5, 4), "float32", axes="yxs"))
    assert (rgba[262], rgba[338], rgba[339]) == ((3, (2,)), (3, (2,)), (3, (3, 3, 3, 3)))
    other, _ = _tags(tiff_prefix((3, 5, 5), "uint8", axes="yxs"))
    assert (other[262], other[338]) == ((3, (1,)), (3, (0, 0, 0, 0)))


def test_pages_by_hand():
    header = tiff_prefix((4, 3, 5), "uint16")
    at, strips = 8, []
    while at:
        tags, at = _tags(header, at)
        strips.append((tags[273][1][0], tags[279][1][0]))
    assert strips == [(len(header) + 30 * n, 30) for n in range(4)]


def test_imagej_by_hand():
    tags, following = _tags(tiff_prefix((2, 4, 3, 5), "uint16", axes="zcyx", stack="imagej"))
    assert (
        tags[270][1][0]
        == b"ImageJ=1.11a\nimages=8\nchannels=4\nslices=2\nhyperstack=true\nloop=false\n\0"
    )
    assert tags[279] == (4, (8 * 30,))
    assert following == 0


SEEN = [
    # dtype, shape, axes, mode
    ("uint8", (6, 9), None, "L"),
    ("uint8", (4, 6, 9), None, "L"),
    ("uint8", (6, 9, 3), "yxs", "RGB"),
    ("uint8", (6, 9, 4), "yxs", "RGBA"),
    ("uint8", (2, 6, 9, 3), "zyxs", "RGB"),
    ("uint16", (4, 6, 9), None, "I;16"),
    ("int16", (6, 9), None, "I"),
    ("int32", (6, 9), None, "I"),
    ("float32", (4, 6, 9), None, "F"),
]


@pytest.mark.parametrize(("dtype", "shape", "axes", "mode"), SEEN)
def test_seen_by_pillow(dtype, shape, axes, mode):
    voxels = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    with Image.open(io.BytesIO(tiff_prefix(shape, dtype, axes=axes) + voxels.tobytes())) as image:
        assert image.mode == mode
        pages = []
        for n in range(image.n_frames):
            image.seek(n)
            pages.append(np.asarray(image))
    np.testing.assert_array_equal(np.stack(pages).reshape(shape), voxels)


def test_compressed_is_seen_by_pillow():
    voxels = np.random.default_rng(0).integers(0, 9, (4, 6, 9)).astype("uint8")
    encoded = zlib.compress(voxels.tobytes())
    layout = ChunkLayout(voxels.shape, voxels.dtype, 300)
    header = tiff_header(encoded, layout, compression="zlib")
    assert len(header) == 300
    assert not any(header[-100:])  # what is left is zeros
    with Image.open(io.BytesIO(header + encoded)) as image:
        # the planes below each other
        np.testing.assert_array_equal(np.asarray(image), voxels.reshape(24, 9))


def test_uncompressed_dynamic_is_the_prefix():
    voxels = np.zeros((4, 6, 9), "int16")
    prefix = tiff_prefix(voxels.shape, voxels.dtype)
    assert (
        tiff_header(voxels.tobytes(), ChunkLayout(voxels.shape, voxels.dtype, len(prefix)))
        == prefix
    )


@pytest.mark.parametrize(
    ("compression", "encoded", "message"),
    [
        (
            "zlib",
            gzip.compress(b"voxels", mtime=0),
            "1f 8b 08 00, expected a zlib stream: this is gzip; TIFF's Deflate is a zlib stream",
        ),
        ("zlib", bytes(54), "a chunk begins with 00 00 00 00, expected a zlib stream"),
        ("zlib", b"\x78", "expected a zlib stream"),
        ("zstd", zlib.compress(b"voxels"), "expected 28 b5 2f fd of zstd"),
        (
            "lzma",
            lzma.compress(b"voxels", format=lzma.FORMAT_ALONE),
            "expected fd 37 7a 58 5a 00 of lzma, which numcodecs.lzma writes with format 1 (xz)",
        ),
        (
            "none",
            gzip.compress(b"voxels", mtime=0),
            (
                "encoded bytes, expected 54: if it is compressed, name the compressor with "
                "compression="
            ),
        ),
        (
            "gzip",
            gzip.compress(b"voxels", mtime=0),
            "compression 'gzip', expected one of none, zlib, lzma, zstd",
        ),
    ],
    ids=[
        "gzip as zlib",
        "zeros as zlib",
        "one byte",
        "zlib as zstd",
        "lzma alone",
        "gzip as none",
        "gzip",
    ],
)
def test_what_is_no_tiff_compression(compression, encoded, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        tiff_header(encoded, ChunkLayout((6, 9), np.dtype("uint8"), 512), compression=compression)


def test_refused():
    with pytest.raises(
        ValueError,
        match=(
            "a TIFF header of this chunk has 110 bytes, expected at most 100: choose a larger "
            "offset"
        ),
    ):
        tiff_header(bytes(54), ChunkLayout((6, 9), np.dtype("uint8"), 100))
    with pytest.raises(ValueError, match="of a compressed chunk of 2 planes, expected 'tall'"):
        tiff_header(
            zlib.compress(bytes(108)),
            ChunkLayout((2, 6, 9), np.dtype("uint8"), 512),
            compression="zlib",
            stack="pages",
        )


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (((6, 9), "bool"), {}, TypeError, "TIFF has no type for bool; .*: cast to uint8"),
        (((6, 9), "datetime64[s]"), {}, TypeError, "TIFF has no type for datetime64"),
        (((9,), "uint8"), {}, ValueError, r"a chunk of shape \(9,\): axes= must name its axes"),
        (((2, 2, 6, 9), "uint8"), {}, ValueError, "axes= must name its axes"),
        (
            ((6, 9), "uint8", "native"),
            {},
            ValueError,
            "byteorder 'native', expected 'little' or 'big'",
        ),
        (
            ((6, 9), "uint8"),
            {"axes": "xy"},
            ValueError,
            "axes 'xy', expected any of t, z, c, then y and x",
        ),
        (
            ((6, 9), "uint8"),
            {"axes": "zyx"},
            ValueError,
            "expected a length of at least 1 for each",
        ),
        (((2, 2, 6, 9), "uint8"), {"axes": "zzyx"}, ValueError, "axes 'zzyx'"),
        (((0, 9), "uint8"), {}, ValueError, "expected a length of at least 1"),
        (
            ((6, 9), "uint8"),
            {"stack": "volume"},
            ValueError,
            "stack 'volume', expected one of pages, imagej, tall",
        ),
        (((3, 6, 9), "int16"), {"stack": "imagej"}, UnsupportedError, "ImageJ stacks of int16 zyx"),
        (
            ((2, 3, 6, 9), "uint8"),
            {"stack": "imagej", "axes": "czyx"},
            UnsupportedError,
            "expected the order t, z, c",
        ),
        (
            ((2, 6, 9, 3), "uint16"),
            {"stack": "imagej", "axes": "zyxs"},
            UnsupportedError,
            "or RGB of uint8",
        ),
        (
            ((1 << 16, 1 << 15), "uint16"),
            {},
            UnsupportedError,
            "expected less than 4294967296: choose smaller chunks",
        ),
        (((1, 1 << 32), "uint8"), {}, UnsupportedError, "too large for TIFF"),
    ],
)
def test_refused_images(arguments, options, error, message):
    with pytest.raises(error, match=message):
        tiff_prefix(*arguments, **options)
