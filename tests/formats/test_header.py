"""The 16 header bytes: exact bytes both ways, limits, and every refusal with its place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import any_length_headers

from wkwdask.errors import CorruptError, FormatError, TruncatedError, UnsupportedError
from wkwdask.formats.wkw.header import (
    HEADER_NBYTES,
    BlockType,
    format_header,
    make_header,
    parse_header,
)

# One table drives reading and writing.
HEADERS = [
    # bytes, is a data file, dtype, channels, block_len, file_len, block type, data offset
    (
        "57 4b 57 01 22 01 02 06  00 00 00 00 00 00 00 00",
        False,
        "uint16",
        3,
        4,
        4,
        BlockType.RAW,
        0,
    ),
    (
        "57 4b 57 01 22 01 02 06  10 00 00 00 00 00 00 00",
        True,
        "uint16",
        3,
        4,
        4,
        BlockType.RAW,
        16,
    ),
    # 16 + 8 * 64 blocks
    (
        "57 4b 57 01 22 02 02 06  10 02 00 00 00 00 00 00",
        True,
        "uint16",
        3,
        4,
        4,
        BlockType.LZ4,
        528,
    ),
    (
        "57 4b 57 01 22 02 02 06  00 00 00 00 00 00 00 00",
        False,
        "uint16",
        3,
        4,
        4,
        BlockType.LZ4,
        0,
    ),
    # what webknossos writes
    (
        "57 4b 57 01 55 03 01 01  00 00 00 00 00 00 00 00",
        False,
        "uint8",
        1,
        32,
        32,
        BlockType.LZ4HC,
        0,
    ),
    # the high nibble is the file
    (
        "57 4b 57 01 45 03 03 04  00 00 00 00 00 00 00 00",
        False,
        "uint32",
        1,
        32,
        16,
        BlockType.LZ4HC,
        0,
    ),
    # a volume annotation
    (
        "57 4b 57 01 05 02 01 01  18 00 00 00 00 00 00 00",
        True,
        "uint8",
        1,
        32,
        1,
        BlockType.LZ4,
        24,
    ),
    # blocks of one voxel
    (
        "57 4b 57 01 50 01 01 01  10 00 00 00 00 00 00 00",
        True,
        "uint8",
        1,
        1,
        32,
        BlockType.RAW,
        16,
    ),
    # the size byte at its limit
    (
        "57 4b 57 01 22 01 01 ff  10 00 00 00 00 00 00 00",
        True,
        "uint8",
        255,
        4,
        4,
        BlockType.RAW,
        16,
    ),
    (
        "57 4b 57 01 22 01 0a f8  10 00 00 00 00 00 00 00",
        True,
        "int64",
        31,
        4,
        4,
        BlockType.RAW,
        16,
    ),
    # padding before the data
    (
        "57 4b 57 01 22 01 01 01  00 01 00 00 00 00 00 00",
        True,
        "uint8",
        1,
        4,
        4,
        BlockType.RAW,
        256,
    ),
    # padding after the table
    (
        "57 4b 57 01 22 02 01 01  00 10 00 00 00 00 00 00",
        True,
        "uint8",
        1,
        4,
        4,
        BlockType.LZ4,
        4096,
    ),
    # both nibbles at their limit
    (
        "57 4b 57 01 ff 01 01 01  10 00 00 00 00 00 00 00",
        True,
        "uint8",
        1,
        32768,
        32768,
        BlockType.RAW,
        16,
    ),
    (
        "57 4b 57 01 f5 03 01 01  10 00 00 00 00 00 01 00",
        True,
        "uint8",
        1,
        32,
        32768,
        BlockType.LZ4HC,
        16 + 8 * 32768**3,
    ),
    # unsigned, and not looked at here
    (
        "57 4b 57 01 22 01 01 01  ff ff ff ff ff ff ff ff",
        False,
        "uint8",
        1,
        4,
        4,
        BlockType.RAW,
        2**64 - 1,
    ),
]
VOXEL_CODES = [
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
]

VALID = bytes.fromhex("57 4b 57 01 22 02 02 06  10 02 00 00 00 00 00 00")


def _changed(offset, *values):
    return VALID[:offset] + bytes(values) + VALID[offset + len(values) :]


@pytest.mark.parametrize(
    (
        "text",
        "is_data_file",
        "dtype",
        "channels",
        "block_len",
        "file_len",
        "block_type",
        "data_offset",
    ),
    HEADERS,
)
def test_bytes_both_ways(
    text, is_data_file, dtype, channels, block_len, file_len, block_type, data_offset
):
    raw = bytes.fromhex(text)
    header = parse_header(raw, "x0.wkw", is_data_file=is_data_file)
    assert (header.dtype, header.num_channels) == (np.dtype(dtype), channels)
    assert (header.block_len, header.file_len, header.block_type, header.data_offset) == (
        block_len,
        file_len,
        block_type,
        data_offset,
    )
    assert format_header(header) == raw
    assert parse_header(raw + b"what follows", "x0.wkw", is_data_file=is_data_file) == header


@pytest.mark.parametrize(("code", "dtype"), list(enumerate(VOXEL_CODES, start=1)))
def test_voxel_codes(code, dtype):
    header = make_header(dtype, 1, block_len=4, file_len=4, block_type=BlockType.RAW)
    assert format_header(header) == bytes(
        [0x57, 0x4B, 0x57, 1, 0x22, 1, code, np.dtype(dtype).itemsize]
    ) + bytes(8)
    assert parse_header(format_header(header), "header.wkw", is_data_file=False) == header


def test_derived_sizes():
    header = make_header("uint16", 3, block_len=4, file_len=8, block_type=BlockType.LZ4)
    assert (
        header.voxel_nbytes,
        header.block_nbytes,
        header.blocks_per_file,
        header.file_len_vx,
    ) == (6, 384, 512, 32)
    assert header.data_offset == 0  # as it stands in header.wkw
    assert header.for_data_file().data_offset == 16 + 8 * 512
    raw = header.with_block_type(BlockType.RAW)
    assert (raw.is_compressed, raw.for_data_file().data_offset) == (False, 16)
    assert header.for_data_file().with_block_type(BlockType.LZ4HC).data_offset == 0


BROKEN = [
    # bytes, error, message
    (b"", TruncatedError, "x0.wkw: header ends at byte 0, expected 16 bytes"),
    (VALID[:10], TruncatedError, "x0.wkw: header ends at byte 10, expected 16 bytes"),
    (VALID[:15], TruncatedError, "x0.wkw: header ends at byte 15, expected 16 bytes"),
    (_changed(0, 0x56), CorruptError, "x0.wkw: byte 0: expected magic b'WKW', found b'VKW'"),
    (_changed(2, 0x77), CorruptError, "x0.wkw: byte 0: expected magic b'WKW', found b'WKw'"),
    (bytes(16), CorruptError, "x0.wkw: byte 0: expected magic"),
    # the unreleased file-format-v2
    (_changed(3, 2), CorruptError, "x0.wkw: byte 3: expected version 1, found 2"),
    (_changed(3, 0), CorruptError, "x0.wkw: byte 3: expected version 1, found 0"),
    (
        _changed(5, 0),
        CorruptError,
        r"x0.wkw: byte 5: expected block type 1 \(raw\), 2 \(lz4\) or 3 \(lz4hc\), found 0",
    ),
    (_changed(5, 4), CorruptError, "x0.wkw: byte 5: expected block type .*found 4"),
    (_changed(6, 0), CorruptError, r"x0.wkw: byte 6: expected voxel type 1\.\.10, found 0"),
    (_changed(6, 11), CorruptError, r"x0.wkw: byte 6: expected voxel type 1\.\.10, found 11"),
    (
        _changed(7, 0),
        CorruptError,
        r"x0.wkw: byte 7: voxel size must be a positive multiple of 2 \(uint16\), found 0",
    ),
    (
        _changed(7, 5),
        CorruptError,
        r"x0.wkw: byte 7: voxel size must be a positive multiple of 2 \(uint16\), found 5",
    ),
    (
        _changed(6, 4, 12),
        CorruptError,
        r"x0.wkw: byte 7: voxel size must be a positive multiple of 8 \(uint64\), found 12",
    ),
    (
        _changed(5, 1, 2, 6, 15, 0),
        CorruptError,
        "x0.wkw: byte 8: data offset 15 lies inside the header, expected at least 16",
    ),
    (
        _changed(5, 1, 2, 6, 0, 0),
        CorruptError,
        "x0.wkw: byte 8: data offset 0 lies inside the header, expected at least 16",
    ),
    # aborts wkw
    (
        _changed(8, 0, 0),
        CorruptError,
        (
            "x0.wkw: byte 8: data offset 0 lies inside the header and jump table, expected at "
            "least 528"
        ),
    ),
    (
        _changed(8, 0x0F, 2),
        CorruptError,
        (
            "x0.wkw: byte 8: data offset 527 lies inside the header and jump table, expected at "
            "least 528"
        ),
    ),
    (
        _changed(4, 0x0A, 2, 2, 2, 24, 0),
        UnsupportedError,
        "x0.wkw: a block of 1024\\^3 voxels has 2147483648 bytes, LZ4 supports at most 2113929216",
    ),
    (
        _changed(4, 0x0F, 3, 10, 248, 24, 0),
        UnsupportedError,
        "x0.wkw: a block of 32768\\^3 voxels .*LZ4 supports at most 2113929216",
    ),
]


@pytest.mark.parametrize(("raw", "error", "message"), BROKEN)
def test_broken_header(raw, error, message):
    with pytest.raises(error, match=message):
        parse_header(raw, "x0.wkw", is_data_file=True)


def test_offset_of_header_wkw_is_not_looked_at():
    """``header.wkw`` has the offset 0, and some writers leave that of a data file in it."""
    for offset in (0, 7, 528, 2**63):
        raw = VALID[:8] + offset.to_bytes(8, "little")
        assert parse_header(raw, "header.wkw", is_data_file=False).data_offset == offset


def test_lz4_limit_is_exact():
    """1024^3 voxels of one byte are the largest compressed block: LZ4 takes 0x7E000000 bytes."""
    assert (
        make_header("uint8", 1, block_len=1024, file_len=1, any_length=True).block_nbytes == 1 << 30
    )
    with pytest.raises(UnsupportedError, match="LZ4 supports at most 2113929216"):
        make_header("uint8", 2, block_len=1024, file_len=1, any_length=True)
    assert (
        make_header(
            "uint8", 2, block_len=1024, file_len=1, any_length=True, block_type=BlockType.RAW
        ).block_nbytes
        == 1 << 31
    )


@pytest.mark.parametrize("what", ["block_len", "file_len"])
@pytest.mark.parametrize("value", [1, 2, 64, 128])
def test_lengths_that_are_written(what, value):
    assert getattr(make_header("uint8", **{what: value}), what) == value


@pytest.mark.parametrize("what", ["block_len", "file_len"])
@pytest.mark.parametrize("value", [0, -1, 3, 129, 256, 32768])
def test_lengths_that_are_not_written(what, value):
    with pytest.raises(
        ValueError, match=rf"{what} must be a power of two in 1\.\.128, got {value}"
    ):
        make_header("uint8", **{what: value}, block_type=BlockType.RAW)


@pytest.mark.parametrize("what", ["block_len", "file_len"])
def test_any_length(what):
    for value in (256, 32768):
        assert (
            getattr(
                make_header("uint8", **{what: value}, block_type=BlockType.RAW, any_length=True),
                what,
            )
            == value
        )
    for value in (0, 3, 65536):
        with pytest.raises(
            ValueError, match=rf"{what} must be a power of two in 1\.\.32768, got {value}"
        ):
            make_header("uint8", **{what: value}, block_type=BlockType.RAW, any_length=True)


@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        ("uint8", 255),
        ("uint16", 127),
        ("uint32", 63),
        ("float32", 63),
        ("uint64", 31),
        ("float64", 31),
    ],
)
def test_channels_fit_the_size_byte(dtype, most):
    assert make_header(dtype, most).voxel_nbytes <= 255
    for channels in (0, most + 1):
        with pytest.raises(ValueError, match=rf"allows 1\.\.{most} channels, got {channels}"):
            make_header(dtype, channels)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("raw", BlockType.RAW),
        ("lz4", BlockType.LZ4),
        ("lz4hc", BlockType.LZ4HC),
        ("LZ4HC", BlockType.LZ4HC),
    ],
)
def test_compression_names(name, expected):
    assert BlockType.parse(name) is expected
    assert expected.label == name.lower()


@pytest.mark.parametrize("name", ["zstd", "", 3, None])
def test_unknown_compression(name):
    with pytest.raises(ValueError, match='compression must be "raw", "lz4" or "lz4hc", got'):
        BlockType.parse(name)


def test_file_of_another_mag():
    """A file may differ from ``header.wkw`` in its block type, and in nothing else."""
    mag = make_header("uint8", 2, block_len=4, file_len=4)
    mag.check_same_mag(mag.with_block_type(BlockType.RAW).for_data_file(), "x0.wkw")
    for other, message in [
        (
            make_header("uint8", 2, block_len=8, file_len=4),
            "x0.wkw: byte 4: block_len is 8, but the mag's header.wkw says 4",
        ),
        (
            make_header("uint8", 2, block_len=4, file_len=2),
            "x0.wkw: byte 4: file_len is 2, but the mag's header.wkw says 4",
        ),
        (
            make_header("int8", 2, block_len=4, file_len=4),
            "x0.wkw: byte 6: voxel type is int8, but the mag's header.wkw says uint8",
        ),
        (
            make_header("uint8", 3, block_len=4, file_len=4),
            "x0.wkw: byte 7: number of channels is 3, but the mag's header.wkw says 2",
        ),
    ]:
        with pytest.raises(CorruptError, match=message):
            mag.check_same_mag(other, "x0.wkw")


@given(any_length_headers())
def test_round_trip(header):
    raw = format_header(header)
    assert len(raw) == HEADER_NBYTES
    try:
        assert parse_header(raw, "header.wkw", is_data_file=False) == header
    except UnsupportedError:
        assert header.is_compressed
        assert header.block_nbytes > 0x7E000000


@given(
    st.binary(max_size=24) | st.binary(max_size=24).map(lambda raw: b"WKW\x01" + raw), st.booleans()
)
def test_any_bytes(raw, is_data_file):
    """Any bytes are a header, or one of the two errors says why not."""
    try:
        header = parse_header(raw, "x0.wkw", is_data_file=is_data_file)
    except (FormatError, UnsupportedError) as error:
        assert str(error).startswith("x0.wkw: ")  # noqa: PT017
    else:
        assert format_header(header) == raw[:HEADER_NBYTES]
