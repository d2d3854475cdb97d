"""Chunks of precomputed volumes: every encoding there and back, images of any shape, limits,
missing packages, and any bytes."""

from __future__ import annotations

import json
import pickle
import struct
import sys
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.strategies import damaged, vectors, voxel_array

from wkwdask.errors import CorruptError, FormatError, TruncatedError
from wkwdask.formats.precomputed import images
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.precomputed.images import jxl_size
from wkwdask.formats.precomputed.info import parse_info
from wkwdask.model.writing.file_buffer import MEMORY_NBYTES, Arena

CODECS = [
    # encoding, type, channels
    *[
        ("raw", dtype, 1)
        for dtype in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32")
    ],
    ("raw", "int16", 3),
    *[("png", dtype, channels) for dtype in ("uint8", "uint16") for channels in (1, 2, 3, 4)],
    ("jxl", "uint8", 1),
    ("jxl", "uint8", 3),
    ("jxl", "uint8", 4),
    *[("compresso", dtype, 1) for dtype in ("uint8", "uint16", "uint32", "uint64")],
    ("compressed_segmentation", "uint32", 2),
    ("compressed_segmentation", "uint64", 1),
]
PACKAGES = {
    "png": "imagecodecs",
    "jpeg": "imagecodecs",
    "jxl": "imagecodecs",
    "compresso": "compresso",
}
SHAPE = (6, 5, 4)


def _rows(rows):
    """Mark the rows of a table, whose first value is an encoding, with the packages that they
    need."""
    return [
        pytest.param(
            *row, marks=[pytest.mark.needs(PACKAGES[row[0]])] if row[0] in PACKAGES else []
        )
        for row in rows
    ]


def _codec(encoding, dtype, channels=1, **options):
    if encoding in PACKAGES:
        pytest.importorskip(PACKAGES[encoding], reason=f"{encoding} needs the extra precomputed")
    return PrecomputedCodec(encoding, np.dtype(dtype), channels, **options)


def _decoded(codec, data, shape, offset=0):
    return codec.decode(data, (codec.num_channels, *shape), "f", offset)


def test_memory_of_pieces():
    """Pieces do not overlap, also where one memory is full and where a piece is larger than a
    memory."""
    arena = Arena()
    sizes = [5, MEMORY_NBYTES // 2, MEMORY_NBYTES // 2, MEMORY_NBYTES + 1, 70, 64]
    reserved = [arena.reserve(size) for size in sizes]
    for n, memory in enumerate(reserved):
        memory[...] = n
    assert [
        (len(memory), set(memory.tolist()[:: max(1, size // 9)]))
        for memory, size in zip(reserved, sizes, strict=True)
    ] == [(size, {n}) for n, size in enumerate(sizes)]
    arena.release()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("encoding", "dtype", "channels"), _rows(CODECS))
@pytest.mark.parametrize("kind", ["zeros", "few", "noise", "extremes"])
def test_there_and_back(encoding, dtype, channels, kind):
    """Voxels are what they were, bit by bit, from and to arrays of any memory order."""
    codec = _codec(encoding, dtype, channels)
    array = voxel_array(dtype, (channels, *SHAPE), 1, kind)
    data = codec.encode(np.asarray(array, order="F"), "f")
    assert data == codec.encode(
        np.ascontiguousarray(array).astype(array.dtype.newbyteorder(">")), "f"
    )
    fixed = np.array(array.transpose(0, 3, 2, 1), order="C").transpose(0, 3, 2, 1)
    fixed.flags.writeable = False
    assert data == codec.encode(fixed, "f")
    arena = Arena()
    encoded = [
        codec.encode_in_arena(voxels, arena, "f")
        for voxels in (fixed, np.ascontiguousarray(array), fixed[:, ::-1][:, ::-1])
    ]
    assert list(map(bytes, encoded)) == [data] * 3
    arena.release()
    found = _decoded(codec, data, SHAPE)
    assert (found.shape, found.dtype) == (array.shape, np.dtype(dtype))
    np.testing.assert_array_equal(found, array)
    out = np.full((channels, 4, 9, 3), 5, dtype)
    if not codec.decode_into(data, (channels, *SHAPE), out, (0, -3, 2, 1), "f"):
        out[:, :3, 2:7, 1:] = 0
    np.testing.assert_array_equal(out[:, :3, 2:7, 1:], array[:, 3:, :, :2])
    assert (out[:, 3:] == 5).all()
    assert (out[:, :, :2] == 5).all()
    assert (out[..., :1] == 5).all()
    codec.decode_into(data, (channels, *SHAPE), out, (0, -60, 2, 1), "f")  # all of it outside


@given(vectors(1, 7), st.sampled_from(["png", "jxl", "compresso"]), st.integers(0, 2**32 - 1))
def test_thin_chunks(shape, encoding, seed):
    codec = _codec(encoding, "uint8")
    array = voxel_array("uint8", (1, *shape), seed, "few")
    np.testing.assert_array_equal(_decoded(codec, codec.encode(array, "f"), shape), array)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_noise_in_narrow_images(dtype):
    """Each row has one byte more, and noise does not become smaller."""
    rng = np.random.default_rng(0)
    for channels, *shape in [
        (1, 1, 12, 11),
        (1, 2, 8, 18),
        (2, 1, 16, 16),
        (3, 1, 17, 17),
        (1, 1, 100, 100),
    ]:
        noise = rng.integers(0, 1 << 8 * np.dtype(dtype).itemsize, (channels, *shape)).astype(dtype)
        for level in range(10):
            codec = _codec("png", dtype, channels, level=level)
            np.testing.assert_array_equal(
                _decoded(codec, codec.encode(noise, "x"), tuple(shape)), noise
            )


def test_raw_by_hand():
    array = np.arange(12, dtype=np.uint16).reshape(2, 3, 2, 1)
    assert PrecomputedCodec("raw", np.dtype("uint16"), 2).encode(array, "f") == struct.pack(
        "<12H", 0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11
    )


def test_raw_lengths():
    codec = PrecomputedCodec("raw", np.dtype("uint16"), 1)
    with pytest.raises(
        TruncatedError, match=r"f: byte 7: a raw chunk of \(2, 1, 1\) voxels has 4 bytes, found 3"
    ):
        _decoded(codec, b"abc", (2, 1, 1), 7)
    with pytest.raises(CorruptError, match="has 4 bytes, found 5"):
        _decoded(codec, b"abcde", (2, 1, 1), 7)


def _smooth(channels, shape=(32, 24, 8)):
    x, y, z = np.meshgrid(*(np.linspace(0, 3, n) for n in shape), indexing="ij")
    return np.stack(
        [
            (100 + 20 * c + 60 * np.sin(x + c) * np.cos(y + z)).astype(np.uint8)
            for c in range(channels)
        ]
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_lossy(channels):
    array = _smooth(channels)
    for codec in (
        _codec("jpeg", "uint8", channels, quality=95),
        _codec("jxl", "uint8", channels, quality=95),
    ):
        assert codec.is_lossy
        found = _decoded(codec, codec.encode(array, "f"), array.shape[1:])
        assert np.abs(found.astype(int) - array).mean() <= 3
        assert (found != array).any()
    assert not _codec("jxl", "uint8").is_lossy
    assert not _codec("jxl", "uint8", quality=100).is_lossy


def test_quality_and_effort():
    array = _smooth(1)
    for encoding in ("jpeg", "jxl"):
        sizes = [
            len(_codec(encoding, "uint8", quality=quality).encode(array, "f"))
            for quality in (20, 60, 95)
        ]
        assert sizes == sorted(set(sizes))
    fast, small = (len(_codec("png", "uint8", level=level).encode(array, "f")) for level in (1, 9))
    assert small < fast
    default = _codec("jpeg", "uint8").encode(array, "f")
    assert default == _codec("jpeg", "uint8", quality=75).encode(array, "f")


SIDES = [
    # encoding, chunk, width and height
    ("jpeg", (64, 64, 64), (64, 4096)),
    ("jpeg", (64, 256, 256), (16384, 256)),  # Y * Z is more than a JPEG image may be high
    ("jpeg", (256, 256, 256), (4096, 4096)),
    ("jpeg", (66000, 2, 1), (352, 375)),
    ("png", (64, 256, 256), (64, 65536)),
    ("jxl", (1, 1024, 1024), (1024, 1024)),
]


@pytest.mark.parametrize(("encoding", "shape", "sides"), SIDES)
def test_sides(encoding, shape, sides):
    assert images.image_shape(shape, images._MAX_SIDES[encoding], "f") == sides


def test_a_chunk_that_no_image_holds():
    with pytest.raises(
        FormatError,
        match=(
            r"f: no image with sides of at most 65500 pixels holds a chunk of \(65521, 1, 1\) "
            r"voxels"
        ),
    ):
        images.image_shape((65521, 1, 1), 65500, "f")


def test_a_large_jpeg():
    codec = _codec("jpeg", "uint8")
    array = np.zeros((1, 64, 256, 256), np.uint8)
    array[0, :, :, 128:] = 200
    data = codec.encode(array, "f")
    assert images.image_size("jpeg", data) == (16384, 256)
    assert np.abs(_decoded(codec, data, (64, 256, 256)).astype(int) - array).max() <= 3


@pytest.mark.needs("imagecodecs")
@pytest.mark.parametrize("width", [1, 4, 6, 10, 30, 120])
@pytest.mark.parametrize("encoding", ["png", "jxl"])
def test_any_width_and_height(encoding, width):
    """The rows of an image one after the other are the voxels, however long they are."""
    import imagecodecs

    array = voxel_array("uint8", (3, *SHAPE), 2, "noise")
    pixels = np.ascontiguousarray(array.transpose(3, 2, 1, 0)).reshape(120 // width, width, 3)
    data = (
        imagecodecs.png_encode(pixels)
        if encoding == "png"
        else imagecodecs.jpegxl_encode(pixels, lossless=True)
    )
    np.testing.assert_array_equal(_decoded(_codec(encoding, "uint8", 3), data, SHAPE), array)


def _image(array, kind, **options):
    memory = BytesIO()
    (array if isinstance(array, Image.Image) else Image.fromarray(array)).save(
        memory, kind, **options
    )
    return memory.getvalue()


GRAY = np.arange(120, dtype=np.uint8).reshape(10, 12)


def test_images_of_other_encoders():
    """Interlaced and paletted PNG, progressive JPEG with a comment: what the libraries decode is
    right if it has the right form."""
    pytest.importorskip("imagecodecs", reason="images need the extra precomputed")
    expected = GRAY.reshape(4, 5, 6).transpose(2, 1, 0)[None]
    png, jpeg = (
        PrecomputedCodec("png", np.dtype("uint8"), 1),
        PrecomputedCodec("jpeg", np.dtype("uint8"), 1),
    )
    np.testing.assert_array_equal(_decoded(png, _image(GRAY, "png"), SHAPE), expected)
    for options in (
        {"progressive": True},
        {"comment": b"\xff\xd9 not the end"},
        {"restart_marker_blocks": 1},
    ):
        found = _decoded(jpeg, _image(GRAY, "jpeg", quality=100, **options), SHAPE)
        assert np.abs(found.astype(int) - expected).max() <= 2
    colors = Image.fromarray(GRAY).convert("P")
    assert _decoded(
        PrecomputedCodec("png", np.dtype("uint8"), 3), _image(colors, "png"), SHAPE
    ).shape == (3, *SHAPE)


WRONG_IMAGES = [
    # encoding, type, channels, image, what is said
    (
        "png",
        "uint8",
        1,
        lambda: _image(GRAY[:5], "png"),
        r"a chunk of \(6, 5, 4\) voxels needs an image of 120 pixels, found 12 x 5",
    ),
    (
        "png",
        "uint16",
        1,
        lambda: _image(GRAY, "png"),
        "expected a png image of 1 x uint16, found 1 x uint8",
    ),
    (
        "png",
        "uint8",
        3,
        lambda: _image(GRAY, "png"),
        "expected a png image of 3 x uint8, found 1 x uint8",
    ),
    (
        "png",
        "uint8",
        1,
        lambda: _image(Image.fromarray(GRAY).convert("RGBA"), "png"),
        "expected a png image of 1 x uint8, found 4 x uint8",
    ),
    (
        "jpeg",
        "uint8",
        1,
        lambda: _image(GRAY[:5], "jpeg"),
        ".*needs an image of 120 pixels, found 12 x 5",
    ),
    (
        "jpeg",
        "uint8",
        3,
        lambda: _image(Image.fromarray(GRAY).convert("CMYK"), "jpeg"),
        "expected a jpeg image of 3 x uint8, found 4 x uint8",
    ),
    ("jpeg", "uint8", 1, lambda: _image(GRAY, "png"), "no jpeg image: not a JPEG file"),
    ("png", "uint8", 1, lambda: _image(GRAY, "jpeg"), "no png image: not a PNG file"),
    ("jxl", "uint8", 1, lambda: _image(GRAY, "png"), "no JPEG XL image"),
    # decoders fill up what is missing
    ("jpeg", "uint8", 1, lambda: _image(GRAY, "jpeg")[:-20], "a jpeg image is cut off"),
    (
        "jpeg",
        "uint8",
        1,
        lambda: _image(GRAY, "jpeg", comment=b"\xff\xd9")[:-20],
        "a jpeg image is cut off",
    ),
    ("jpeg", "uint8", 1, lambda: b"\xff\xd8\x00\x01" + bytes(9), "no jpeg image: "),
    ("png", "uint8", 1, lambda: _image(GRAY, "png")[:-20], "a png image cannot be decoded"),
    ("png", "uint8", 1, lambda: _image(GRAY, "png")[:30], "no png image: "),
    ("jxl", "uint8", 1, lambda: b"\xff\x0a", "a JPEG XL image is cut off in its header"),
    (
        "jxl",
        "uint8",
        1,
        lambda: b"\x00\x00\x00\x0cJXL \r\n\x87\n" + bytes(20),
        "a JPEG XL container without a codestream",
    ),
]


@pytest.mark.parametrize(("encoding", "dtype", "channels", "make", "message"), _rows(WRONG_IMAGES))
def test_wrong_images(encoding, dtype, channels, make, message):
    codec = _codec(encoding, dtype, channels)
    with pytest.raises(FormatError, match=f"f: byte 9: {message}"):
        _decoded(codec, make(), SHAPE, 9)


def test_bombs():
    """An image that would be huge is refused by its header; nothing of it is decoded."""
    header = struct.pack(">IIBBBBB", 1 << 30, 1 << 30, 8, 0, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + b"IHDR"
        + header
        + struct.pack(">I", zlib.crc32(b"IHDR" + header))
        + bytes(4)
        + b"IDAT"
    )
    with pytest.raises(
        CorruptError, match="needs an image of 120 pixels, found 1073741824 x 1073741824"
    ):
        _decoded(_codec("png", "uint8"), png, SHAPE)
    jpeg = bytearray(_image(GRAY, "jpeg"))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptError, match="needs an image of 120 pixels, found 65535 x 65535"):
        _decoded(_codec("jpeg", "uint8"), bytes(jpeg), SHAPE)
    # from the last bit to the first: width, its form, no ratio, height, its form, not small
    bits = int("1" * 30 + "11" + "000" + "1" * 30 + "11" + "0", 2)
    with pytest.raises(
        CorruptError, match="needs an image of 120 pixels, found 1073741824 x 1073741824"
    ):
        _decoded(
            _codec("jxl", "uint8"), b"\xff\x0a" + (bits | 1 << 68).to_bytes(12, "little"), SHAPE
        )


@given(vectors(1, 2000), st.booleans())
def test_sizes_of_jxl(sides, is_boxed):
    """The header is read as its decoder reads it: small sides, ratios, codestreams and
    containers."""
    imagecodecs = pytest.importorskip("imagecodecs", reason="images need the extra precomputed")
    width, height = sides[0] % 300 + 1, (sides[1] if sides[2] % 2 else sides[0]) % 300 + 1
    data = imagecodecs.jpegxl_encode(
        np.zeros((height, width), np.uint8), effort=1, lossless=True, usecontainer=is_boxed
    )
    assert jxl_size(data) == (width, height)


def test_a_moving_image():
    imagecodecs = pytest.importorskip("imagecodecs", reason="images need the extra precomputed")
    data = imagecodecs.jpegxl_encode(np.zeros((3, 8, 8, 3), np.uint8), lossless=True)
    with pytest.raises(CorruptError, match="with a preview or an animation"):
        jxl_size(data)


def test_sizes_of_png():
    assert images.image_size("png", _image(GRAY, "png")) == (12, 10)


@pytest.mark.parametrize(
    ("encoding", "dtype", "channels"), _rows([*CODECS, ("jpeg", "uint8", 1), ("jpeg", "uint8", 3)])
)
def test_any_bytes(encoding, dtype, channels):
    """Bytes that are damaged anywhere decode to the right shape, or are refused."""
    codec = _codec(encoding, dtype, channels)
    array = voxel_array(dtype, (channels, *SHAPE), 3, "few")
    valid = codec.encode(array, "f")

    @given(damaged(valid) | st.binary(max_size=80))
    def check(raw):
        try:
            found = _decoded(codec, raw, SHAPE)
        except FormatError:
            return
        assert (found.shape, found.dtype) == (array.shape, np.dtype(dtype))

    check()


@pytest.mark.parametrize(
    ("encoding", "dtype"),
    _rows(
        [
            ("png", "uint8"),
            ("jpeg", "uint8"),
            ("jxl", "uint8"),
            ("compresso", "uint32"),
            ("raw", "uint8"),
        ]
    ),
)
def test_every_truncation(encoding, dtype):
    codec = _codec(encoding, dtype)
    raw = codec.encode(voxel_array(dtype, (1, *SHAPE), 4, "few"), "f")
    # PNG's last chunk and JPEG's last byte say nothing of voxels
    tail = {"png": 12, "jpeg": 1}.get(encoding, 0)
    for length in range(len(raw) - tail):
        with pytest.raises(FormatError):
            _decoded(codec, raw[:length], SHAPE)


@pytest.mark.parametrize(
    ("encoding", "dtype", "package"),
    [
        ("png", "uint8", "imagecodecs"),
        ("jpeg", "uint8", "imagecodecs"),
        ("jxl", "uint8", "imagecodecs"),
    ],
)
def test_a_missing_package(monkeypatch, encoding, dtype, package):
    monkeypatch.setitem(sys.modules, package, None)
    codec = PrecomputedCodec(encoding, np.dtype(dtype), 1)
    message = (
        f"f: {encoding}: needs the package {package}, which is not installed: pip install "
        "'wkwdask\\[precomputed\\]'"
    )
    with pytest.raises(ModuleNotFoundError, match=message):
        codec.encode(np.zeros((1, *SHAPE), dtype), "f")
    with pytest.raises(ModuleNotFoundError, match=message):
        _decoded(codec, b"", SHAPE)


def test_compresso_is_missing(monkeypatch):
    """Only for writing: reading is done here."""
    array = np.ones((1, *SHAPE), np.uint32)
    codec = _codec("compresso", "uint32")
    data = codec.encode(array, "f")
    monkeypatch.setitem(sys.modules, "compresso", None)
    assert (_decoded(codec, data, SHAPE) == 1).all()
    with pytest.raises(
        ModuleNotFoundError,
        match=r"f: compresso: needs the package compresso, .* pip install 'wkwdask\[precomputed\]'",
    ):
        codec.encode(array, "f")


ENTRY = {
    "key": "1",
    "size": [6, 5, 4],
    "chunk_sizes": [[6, 5, 4]],
    "resolution": [1, 1, 1],
    "encoding": "jpeg",
    "jpeg_quality": 60,
}


def test_codecs_of_scales():
    def codec(changes, dtype="uint8", channels=1):
        info = parse_info(
            json.dumps(
                {"data_type": dtype, "num_channels": channels, "scales": [{**ENTRY, **changes}]}
            ),
            "info",
        )
        return PrecomputedCodec.of(info, info.scales[0])

    assert codec({}, channels=3) == PrecomputedCodec("jpeg", np.dtype("uint8"), 3, quality=60)
    assert codec({"encoding": "png", "png_level": 3}) == PrecomputedCodec(
        "png", np.dtype("uint8"), 1, level=3
    )
    assert codec({"encoding": "jxl", "jxl_effort": 2, "jxl_quality": 80}) == PrecomputedCodec(
        "jxl", np.dtype("uint8"), 1, quality=80, level=2
    )
    block = {"encoding": "compressed_segmentation", "compressed_segmentation_block_size": [4, 4, 2]}
    assert codec(block, "uint64").block_size == (4, 4, 2)
    assert pickle.loads(pickle.dumps(codec({}))) == codec({})
    with pytest.raises(CorruptError, match="scale '1': jpeg encodes uint8, not uint16"):
        codec({}, "uint16")
