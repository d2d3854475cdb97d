"""Jump tables: exact bytes, slices, gaps, and every refusal with its place."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.formats.wkw.file import (
    format_jump_table,
    parse_jump_table,
    raw_block_bounds,
    table_range,
)
from wkwdask.formats.wkw.header import BlockType, make_header

# 8 blocks; data from byte 80 on
HEADER = make_header("uint8", block_len=4, file_len=2, block_type=BlockType.LZ4).for_data_file()


def _entries(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def _parse(*values, first=0, file_nbytes=1000):
    return parse_jump_table(
        _entries(*values), HEADER, first, len(values) - 1, file_nbytes, "x0.wkw"
    )


def test_bytes():
    """Entry n is the absolute end of block n."""
    table = format_jump_table(HEADER, np.array([10, 1, 2, 3, 4, 5, 6, 7]))
    assert table == _entries(90, 91, 93, 96, 100, 105, 111, 118)


def test_sizes_beyond_32_bits():
    sizes = np.full(8, 1 << 31)
    assert format_jump_table(HEADER, sizes)[-8:] == _entries(80 + (1 << 34))


def test_wrong_number_of_sizes():
    with pytest.raises(ValueError, match=r"8 blocks, got sizes of shape \(7,\)"):
        format_jump_table(HEADER, np.zeros(7, np.int64))


@pytest.mark.parametrize(
    ("first", "count", "expected"),
    [
        (0, 8, (8, 72)),  # the data offset in the header is the start of block 0
        (0, 1, (8, 16)),
        (1, 1, (16, 16)),
        (7, 1, (64, 16)),
    ],
)
def test_slice_range(first, count, expected):
    assert table_range(first, count) == expected


@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("count", [1, 2, 8])
def test_slices_agree_with_the_whole(first, count):
    sizes = np.arange(1, 9)
    raw = bytes(8) + _entries(80) + format_jump_table(HEADER, sizes)
    bounds = 80 + np.concatenate([[0], np.cumsum(sizes)])
    count = min(count, 8 - first)
    offset, nbytes = table_range(first, count)
    found = parse_jump_table(raw[offset : offset + nbytes], HEADER, first, count, 116, "x0.wkw")
    assert found.dtype == np.int64
    assert found.tolist() == bounds[first : first + count + 1].tolist()


def test_accepted_oddities():
    # padding after the table; an empty block is not judged here
    assert _parse(512, 600, 700, 700).tolist() == [512, 600, 700, 700]
    assert _parse(80, 90, 95, file_nbytes=95).tolist() == [80, 90, 95]  # ends with the file
    # bytes after the last block
    assert _parse(80, 90, 95, file_nbytes=1 << 40).tolist() == [80, 90, 95]


BROKEN = [
    # entries, first block, bytes of the file, error, message
    (
        (0, 90, 95),
        0,
        1000,
        CorruptError,
        "x0.wkw: byte 8: block 0 starts at byte 0, inside the header and jump table",
    ),
    (
        (79, 90, 95),
        0,
        1000,
        CorruptError,
        "x0.wkw: byte 8: block 0 starts at byte 79, inside the header and jump table",
    ),
    (
        (15, 90, 95),
        3,
        1000,
        CorruptError,
        "x0.wkw: byte 32: block 3 starts at byte 15, inside the header and jump table",
    ),
    (
        (80, 90, 89, 95),
        0,
        1000,
        CorruptError,
        "x0.wkw: byte 24: jump table decreases: block 1 starts at byte 90 and ends at byte 89",
    ),
    (
        (80, 0, 0, 0),
        0,
        1000,
        CorruptError,
        "x0.wkw: byte 16: jump table decreases: block 0 starts at byte 80 and ends at byte 0",
    ),
    (
        (100, 90),
        4,
        1000,
        CorruptError,
        "x0.wkw: byte 48: jump table decreases: block 4 starts at byte 100 and ends at byte 90",
    ),
    (
        (80, 90, 95),
        0,
        94,
        TruncatedError,
        "x0.wkw: byte 24: block 1 ends at byte 95, but the file has 94 bytes",
    ),
    (
        (80, 2**64 - 1),
        0,
        1000,
        TruncatedError,
        "x0.wkw: byte 16: block 0 ends at byte 18446744073709551615, but the file has 1000 bytes",
    ),
    (
        (80, 2**63, 2**63),
        0,
        1000,
        TruncatedError,
        "x0.wkw: byte 16: block 0 ends at byte 9223372036854775808, but the file has 1000 bytes",
    ),
    ((2**63, 2**63), 2, 1000, TruncatedError, "x0.wkw: byte 24: block 2"),  # starts beyond the file
]


@pytest.mark.parametrize(("values", "first", "file_nbytes", "error", "message"), BROKEN)
def test_broken_table(values, first, file_nbytes, error, message):
    with pytest.raises(error, match=message):
        _parse(*values, first=first, file_nbytes=file_nbytes)


def test_every_truncation():
    raw = _entries(80, *range(81, 89))
    for length in range(len(raw)):
        with pytest.raises(
            TruncatedError,
            match=f"x0.wkw: jump table ends at byte {8 + length}, expected 8 entries up to byte 80",
        ):
            parse_jump_table(raw[:length], HEADER, 0, 8, 88, "x0.wkw")


@given(
    st.lists(st.integers(0, 2**64 - 1) | st.integers(70, 130), min_size=2, max_size=9),
    st.integers(0, 200),
)
def test_accepted_tables_are_safe(values, file_nbytes):
    """Whatever is accepted never falls, starts behind the table and ends inside the file."""
    try:
        bounds = _parse(*values, file_nbytes=file_nbytes)
    except (CorruptError, TruncatedError):
        assert values != sorted(values) or values[0] < 80 or values[-1] > file_nbytes
        return
    assert bounds.tolist() == values
    assert values == sorted(values)
    assert 80 <= values[0] <= values[-1] <= file_nbytes


class TestRawBlocks:
    """Raw files have no table; their boundaries follow from the header."""

    # 8 blocks of 48 bytes
    header = make_header(
        "uint16", 3, block_len=2, file_len=2, block_type=BlockType.RAW
    ).for_data_file()

    def test_bounds(self):
        assert raw_block_bounds(self.header, 0, 8, 16 + 8 * 48, "x0.wkw").tolist() == [
            16 + 48 * n for n in range(9)
        ]
        assert raw_block_bounds(self.header, 3, 2, 1 << 30, "x0.wkw").tolist() == [160, 208, 256]

    def test_truncated(self):
        message = (
            "x0.wkw: block 7 at byte 352: the file has 399 bytes, expected 400: raw blocks of 48 "
            "bytes from byte 16"
        )
        with pytest.raises(TruncatedError, match=message):
            raw_block_bounds(self.header, 0, 8, 399, "x0.wkw")

    def test_blocks_before_the_cut_are_read(self):
        assert raw_block_bounds(self.header, 2, 2, 16 + 4 * 48, "x0.wkw").tolist() == [
            112,
            160,
            208,
        ]

    def test_data_beyond_the_file(self):
        header = replace(self.header, data_offset=5000)
        with pytest.raises(
            TruncatedError, match=r"x0\.wkw: block 0 at byte 5000: the file has 400 bytes"
        ):
            raw_block_bounds(header, 0, 8, 400, "x0.wkw")
