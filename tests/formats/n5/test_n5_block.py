"""Stored blocks: the byte vectors of the N5 specification, every compression, blocks that are cut
off, both modes, and damage of all kinds."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.n5_volumes import compressed, java_lz4

from wkwdask.errors import CorruptError, FormatError, TruncatedError, UnsupportedError
from wkwdask.formats.as_zarr.n5_view import from_zarr_codec, to_zarr_codec
from wkwdask.formats.n5.attributes import DTYPES
from wkwdask.formats.n5.block import (
    COMPRESSION_TYPES,
    DEFAULT,
    VARLENGTH,
    Compression,
    compress,
    decode_block,
    encode_block,
    format_header,
    header_nbytes,
    make_compression,
    parse_compression,
    parse_header,
)
from wkwdask.model.json_text import Problems

pytestmark = pytest.mark.checks_more

# The example of the specification (README of saalfeldlab/n5, "File-system specification", rule 9):
# 1 x 2 x 3 values of uint16, 1 to 6.
HEADER = "0000 0003 00000001 00000002 00000003"
VECTORS = {
    "raw": "0001 0002 0003 0004 0005 0006",
    "bzip2": (
        "425a6839 31415926 5359023e 0dd20000 0040007f 00200031 0c010d31 a8739433 7c5dc914 e1424008 "
        "f83748"
    ),
    "gzip": "1f8b0800 00000000 00006360 64606260 66606160 65600300 aaea6d bf 0c000000",
    "xz": "fd377a58 5a000004 e6d6b446 02002101 16000000 742fe5a3 01000b00 01000200 03000400 05000600 0d0309ca 34ec15a7 0001240c a618d8d8 1fb6f37d 01000000"  # noqa: E501
    "0004595a",
}
VALUES = np.array([1, 2, 3, 4, 5, 6], np.uint16).reshape((1, 2, 3), order="F")


NEED_A_PACKAGE = ("zstd", "blosc")
pytestmark = pytest.mark.checks_more
HAVE = [
    name
    for name in COMPRESSION_TYPES
    if name != "lz4" and (name not in NEED_A_PACKAGE or find_spec("imagecodecs"))
]


def decode(data, dtype="uint16", compression="raw", num_axes=3, **options):
    kind = compression if isinstance(compression, Compression) else Compression(compression)
    return decode_block(data, np.dtype(dtype), kind, "f", num_axes=num_axes, **options)


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_the_specification(name):
    found = decode(bytes.fromhex(HEADER + VECTORS[name]), compression=name)
    assert found.shape == (1, 2, 3)
    np.testing.assert_array_equal(found, VALUES)


def test_header():
    assert format_header((1, 2, 3)) == bytes.fromhex(HEADER)
    assert parse_header(bytes.fromhex(HEADER), 3, "f").shape == (1, 2, 3)
    assert format_header((4, 5), VARLENGTH) == bytes.fromhex("0001 0002 00000004 00000005 00000014")
    assert [header_nbytes(3), header_nbytes(3, VARLENGTH)] == [16, 20]


@given(st.data())
def test_round_trip(data):
    """Any type, shape, memory order and compression; the bytes behind the header are what libraries
    of others decompress."""
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=5)))
    name = data.draw(st.sampled_from(HAVE))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    values = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    values = np.asarray(values, order=data.draw(st.sampled_from("CF")))
    stored = encode_block(values, make_compression(name), "f")
    found = decode(stored, dtype, make_compression(name), len(shape), largest=shape)
    assert found.tobytes() == values.astype(found.dtype).tobytes()
    plain = {
        "gzip": gzip.decompress,
        "zlib": zlib.decompress,
        "bzip2": bz2.decompress,
        "xz": lzma.decompress,
        "raw": bytes,
    }.get(name)
    if plain is not None:
        assert plain(stored[4 + 4 * len(shape) :]) == values.astype(
            dtype.newbyteorder(">")
        ).tobytes(order="F")


def test_varlength():
    """In that mode the header has four bytes more, and says how many values there are."""
    head = format_header((1, 2, 3), VARLENGTH)
    np.testing.assert_array_equal(decode(head + bytes.fromhex(VECTORS["raw"])), VALUES)
    few = head[:-4] + (5).to_bytes(4, "big")
    with pytest.raises(
        UnsupportedError, match=r"f: byte 16: 5 values in an N5 block of \(1, 2, 3\) voxels"
    ):
        decode(few + bytes(10))


# lz4-java 1.8.0, LZ4BlockOutputStream with blocks of 64 bytes: its stream, and the bytes that it
# was given.
OF_LZ4_JAVA = (
    "4c5a34426c6f636b202300000040000000879b7e09140001001401010014020100140301001404010014050100a0060606060606060606074c5a34426c6f636b2027000000380000"
    "00394cdd03130701001408010014090100140a0100f0060b88ce1660acfa4a8bce246bb4ff3b8adb1d61a7ef4c5a34426c6f636b10000000000000000000000000"
)
WRITTEN_BY_JAVA = [n // 9 for n in range(100)] + list(
    bytes.fromhex("88ce1660acfa4a8bce246bb4ff3b8adb1d61a7ef")
)


def test_lz4_that_java_wrote():
    """A damaged byte that decodes is found by the checksum, which has 28 bits."""
    stored = format_header((120,)) + bytes.fromhex(OF_LZ4_JAVA)
    assert decode(stored, np.dtype("uint8"), "lz4", 1, largest=(120,)).tolist() == WRITTEN_BY_JAVA
    at = len(stored) - 21 - 1
    with pytest.raises(
        CorruptError,
        match=r"f: byte 64: an LZ4 block decodes to bytes with the XXH32 0.{7}, expected 03dd4c39",
    ):
        decode(stored[:at] + b"!" + stored[at + 1 :], np.dtype("uint8"), "lz4", 1, largest=(120,))


@pytest.mark.parametrize("raw_from", [None, 0, 3])
def test_lz4_of_java(raw_from):
    values = np.random.default_rng(0).integers(0, 3, (5, 6, 7)).astype(np.uint16)
    data = values.astype(">u2").tobytes(order="F")
    stored = format_header(values.shape) + java_lz4(data, raw_from=raw_from)
    np.testing.assert_array_equal(decode(stored, compression="lz4"), values)
    assert decode(format_header((0, 2, 2)) + java_lz4(b""), compression="lz4").size == 0
    for end in range(16, len(stored) - 21, 7):
        with pytest.raises(FormatError):
            decode(stored[:end], compression="lz4")


HEADERS = [
    # bytes, error, message
    (b"", TruncatedError, r"f: has 0 bytes, expected the header of an N5 block, 16 bytes"),
    (bytes.fromhex("0000 0003 00000001"), TruncatedError, "f: has 8 bytes"),
    (
        bytes.fromhex("0001 0003 00000001 00000002 00000003"),
        TruncatedError,
        "expected the header of an N5 block, 20 bytes",
    ),
    (bytes.fromhex("0002 0003"), UnsupportedError, "N5 blocks of objects"),
    (
        bytes.fromhex("1f8b 0003"),
        CorruptError,
        "byte 0: mode 8075 of an N5 block, expected 0, 1 or 2",
    ),
    (
        bytes.fromhex("0000 0002 00000001 00000002"),
        CorruptError,
        "byte 2: an N5 block of 2 axes, expected 3",
    ),
    (
        bytes.fromhex("0000 0003 00000009 00000002 00000003"),
        CorruptError,
        r"byte 4: an N5 block of \(9, 2, 3\) values, expected at most \(8, 8, 8\)",
    ),
    (
        bytes.fromhex(HEADER) + b"12345",
        TruncatedError,
        "f: byte 16: raw data of 5 bytes decode to 5 bytes, expected 12",
    ),
    (
        bytes.fromhex(HEADER) + bytes(13),
        CorruptError,
        "raw data of 13 bytes decode to at least 13 bytes, expected 12",
    ),
]


@pytest.mark.parametrize(("data", "error", "message"), HEADERS)
def test_broken_headers(data, error, message):
    with pytest.raises(error, match=message):
        decode(data, largest=(8, 8, 8))


def test_nothing_is_allocated_on_the_word_of_a_header():
    for lengths in ((1 << 31, 1 << 31, 1 << 31), (65536, 65536, 65536)):
        with pytest.raises(CorruptError, match="expected at most 2147483648 bytes"):
            decode(format_header(lengths) + b"\0")
    bomb = format_header((1, 1, 1)) + compressed(np.zeros(1 << 22, np.uint16), "bzip2")
    with pytest.raises(
        CorruptError, match=r"bzip2 data of .* bytes decode to at least 3 bytes, expected 2"
    ):
        decode(bomb, compression="bzip2")


@pytest.mark.parametrize("name", [name for name in COMPRESSION_TYPES if name not in ("lz4", "raw")])
def test_damage(name):
    """Cut off anywhere, or with any byte changed: decoded to something, or refused."""
    if name in NEED_A_PACKAGE:
        pytest.importorskip("imagecodecs", reason=f"{name} needs the extra zarr")
    values = np.random.default_rng(1).integers(0, 9, (6, 5, 4)).astype(np.int32)
    stored = encode_block(values, make_compression(name), "f")
    kind = make_compression(name)
    for end in range(len(stored)):
        with pytest.raises(FormatError):
            decode(stored[:end], "int32", kind, largest=(6, 5, 4))
    for at in range(4, len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 0x55
        try:
            found = decode(bytes(damaged), "int32", kind, largest=(6, 5, 4))
        except FormatError:
            continue
        assert found.size <= values.size
    for wrong in (0, 479, 481):
        head = format_header((wrong, 1, 1))
        with pytest.raises(FormatError):
            decode(head + stored[16:], "uint8", kind)


PARSED = [
    # attributes, type, stream
    ({"compression": {"type": "gzip", "level": -1, "useZlib": True}}, "gzip", "zlib"),
    ({"compression": {"type": "gzip"}}, "gzip", "gzip"),
    ({"compressionType": "bzip2"}, "bzip2", "bzip2"),  # before version 2 of the specification
    ({"compression": "raw"}, "raw", "raw"),
]


@pytest.mark.parametrize(("document", "kind", "stream"), PARSED)
def test_compressions_as_they_are_written(document, kind, stream):
    found = parse_compression(document, "f", Problems())
    assert (found.type, found.stream) == (kind, stream)


def test_unknown_compressions():
    with pytest.raises(UnsupportedError, match="f: compression 'jpeg' is not supported"):
        parse_compression({"compression": {"type": "jpeg"}}, "f", Problems())
    problems = Problems()
    parse_compression({"compression": {"level": 5}}, "f", problems)
    assert problems.messages == [
        'compression: expected an object with a "type", found {"level": 5}'
    ]
    with pytest.raises(ValueError, match="must be one of raw, gzip"):
        make_compression("lz4")
    with pytest.raises(ValueError, match=r"level of bzip2 must be in 1..9, got 0"):
        make_compression("bzip2", 0)
    with pytest.raises(ValueError, match="compression raw of N5 has no level"):
        make_compression("raw", 1)
    with pytest.raises(UnsupportedError, match="lz4 of N5 can only be read"):
        compress(b"", Compression("lz4"), 1, "f")


CODECS = [
    # compression, Zarr codec
    (make_compression("raw"), None),
    (make_compression("gzip", 3), {"name": "gzip", "configuration": {"level": 3}}),
    (make_compression("gzip"), {"name": "gzip", "configuration": {"level": 6}}),
    (make_compression("zlib", 4), {"name": "numcodecs.zlib", "configuration": {"level": 4}}),
    (make_compression("bzip2"), {"name": "numcodecs.bz2", "configuration": {"level": 9}}),
    (
        make_compression("xz", 2),
        {
            "name": "numcodecs.lzma",
            "configuration": {"format": 1, "check": -1, "preset": 2, "filters": None},
        },
    ),
    (
        make_compression("zstd", 7),
        {"name": "zstd", "configuration": {"level": 7, "checksum": False}},
    ),
    (
        Compression("blosc", (("cname", "lz4"), ("clevel", 5), ("shuffle", 2), ("blocksize", 0))),
        {
            "name": "blosc",
            "configuration": {
                "typesize": 4,
                "cname": "lz4",
                "clevel": 5,
                "shuffle": "bitshuffle",
                "blocksize": 0,
            },
        },
    ),
]


@pytest.mark.parametrize(("compression", "codec"), CODECS)
def test_codecs_of_zarr(compression, codec):
    assert to_zarr_codec(compression, 4, "f") == codec
    if codec is not None:
        again = from_zarr_codec(codec)
        assert again.stream == compression.stream
        assert to_zarr_codec(again, 4, "f") == codec


def test_what_zarr_does_not_have():
    with pytest.raises(UnsupportedError, match="no codec for the lz4 of N5"):
        to_zarr_codec(Compression("lz4"), 1, "f")
    assert from_zarr_codec({"name": "crc32c"}) is None
    assert from_zarr_codec({"name": "numcodecs.lzma", "configuration": {"format": 2}}) is None


def test_modes():
    assert (DEFAULT, VARLENGTH) == (0, 1)
