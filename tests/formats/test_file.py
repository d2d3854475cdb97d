"""Whole files: exact bytes, layout, and the one invariant of the decoder.

Any bytes decode to an array or raise a FormatError or an UnsupportedError, never anything else, and
no memory is taken on the word of a header.
"""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from formats.encoded_wkw import encode_file
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import any_length_headers, damaged, file_voxels, headers, voxel_array

from wkwdask.errors import CorruptError, FormatError, TruncatedError, UnsupportedError
from wkwdask.formats.wkw.file import (
    block_bounds,
    decode_file,
    encode_block,
    format_file_head,
    format_jump_table,
)
from wkwdask.formats.wkw.header import BlockType, format_header, make_header


def _decodes_or_refuses(raw):
    try:
        array = decode_file(raw, "x0.wkw")
    except (FormatError, UnsupportedError) as error:
        assert str(error).startswith("x0.wkw: ")  # noqa: PT017
        return None
    assert array.flags.f_contiguous
    return array


@st.composite
def _files(draw):
    header = draw(headers(max_block_len=2, max_file_len=2))
    array = draw(file_voxels(header))
    return header, array, encode_file(array, header)


def test_raw_file_bytes():
    """Header, then blocks in Morton order; each block with x fastest."""
    header = make_header("uint8", block_len=1, file_len=2, block_type=BlockType.RAW)
    array = np.arange(8, dtype=np.uint8).reshape(1, 2, 2, 2)  # value 4 x + 2 y + z
    raw = bytes.fromhex("57 4b 57 01 10 01 01 01  10 00 00 00 00 00 00 00  00 04 02 06 01 05 03 07")
    assert encode_file(array, header) == raw
    np.testing.assert_array_equal(decode_file(raw), array)


def test_blocks_in_morton_order():
    """Block (x, y, z) of a file of 4 blocks an edge stands at the place of its interleaved bits."""
    header = make_header("uint8", block_len=2, file_len=4, block_type=BlockType.RAW)
    raw = encode_file(np.zeros((1, 8, 8, 8), np.uint8), header)
    for code, (x, y, z) in [
        (0, (0, 0, 0)),
        (1, (1, 0, 0)),
        (2, (0, 1, 0)),
        (4, (0, 0, 1)),
        (8, (2, 0, 0)),
        (45, (3, 0, 3)),
        (63, (3, 3, 3)),
    ]:
        marked = bytearray(raw)
        marked[16 + 8 * code] = 1
        assert np.argwhere(decode_file(bytes(marked))).tolist() == [[0, 2 * x, 2 * y, 2 * z]]


def test_compressed_file_bytes():
    header = make_header("uint8", block_len=1, file_len=2, block_type=BlockType.LZ4)
    raw = encode_file(np.arange(8, dtype=np.uint8).reshape(1, 2, 2, 2), header)
    # a single byte is a token and a literal
    table = struct.pack("<8Q", *(80 + 2 * n for n in range(1, 9)))
    blocks = b"".join(bytes([0x10, value]) for value in (0, 4, 2, 6, 1, 5, 3, 7))
    assert raw == bytes.fromhex("57 4b 57 01 10 02 01 01  50 00 00 00 00 00 00 00") + table + blocks


@pytest.mark.parametrize("block_type", list(BlockType))
def test_head(block_type):
    header = make_header("uint8", block_len=4, file_len=2, block_type=block_type)
    head = format_file_head(header, np.full(8, 64))
    table = (
        b""
        if block_type is BlockType.RAW
        else format_jump_table(header.for_data_file(), np.full(8, 64))
    )
    assert head == format_header(header.for_data_file()) + table
    assert len(head) == header.for_data_file().data_offset


@given(_files())
def test_round_trip(case):
    header, array, raw = case
    decoded = decode_file(raw)
    assert (decoded.dtype, decoded.shape) == (header.dtype, array.shape)
    assert decoded.tobytes() == array.tobytes()
    bounds = block_bounds(raw, header.for_data_file(), "x0.wkw")
    assert (bounds[0], bounds[-1]) == (header.for_data_file().data_offset, len(raw))


@given(_files(), st.binary(min_size=1, max_size=40))
def test_trailing_bytes_are_accepted(case, trailing):
    _, array, raw = case
    assert decode_file(raw + trailing).tobytes() == array.tobytes()


@pytest.mark.parametrize("block_type", list(BlockType))
@pytest.mark.parametrize("padding", [1, 8, 1000])
def test_padding_before_the_data_is_accepted(block_type, padding):
    header = make_header("uint16", 2, block_len=2, file_len=2, block_type=block_type)
    array = voxel_array("uint16", (2, 4, 4, 4), 1, "few")
    plain = encode_file(array, header)
    start = header.for_data_file().data_offset
    moved = replace(header, data_offset=start + padding)
    sizes = np.diff(block_bounds(plain, header.for_data_file(), "x0.wkw"))
    head = format_header(moved) + (format_jump_table(moved, sizes) if header.is_compressed else b"")
    np.testing.assert_array_equal(decode_file(head + b"\xa5" * padding + plain[start:]), array)


@pytest.mark.parametrize("block_type", list(BlockType))
def test_every_truncation(block_type):
    header = make_header("uint16", 2, block_len=2, file_len=2, block_type=block_type)
    raw = encode_file(voxel_array("uint16", (2, 4, 4, 4), 2, "noise"), header)
    for length in range(len(raw)):
        with pytest.raises(TruncatedError, match=r"x0.wkw: .*byte"):
            decode_file(raw[:length], "x0.wkw")


@pytest.mark.parametrize("block_type", list(BlockType))
def test_every_damaged_byte(block_type):
    header = make_header("uint16", 1, block_len=2, file_len=2, block_type=block_type)
    raw = encode_file(voxel_array("uint16", (1, 4, 4, 4), 3, "few"), header)
    refused = 0
    for at in range(len(raw)):
        for value in {0, 1, 0x7F, 0x80, 0xFF, raw[at] ^ 1, raw[at] ^ 0x10} - {raw[at]}:
            refused += _decodes_or_refuses(raw[:at] + bytes([value]) + raw[at + 1 :]) is None
    assert refused > 50  # the header alone has so many


@given(st.data())
def test_damage(data):
    _, _, raw = data.draw(_files())
    for _ in range(data.draw(st.integers(1, 3))):
        raw = data.draw(damaged(raw))
    _decodes_or_refuses(raw)


@given(st.binary(max_size=200))
def test_random_bytes(raw):
    _decodes_or_refuses(raw)


@given(any_length_headers(), st.binary(max_size=200))
def test_random_bytes_behind_a_header(header, rest):
    _decodes_or_refuses(format_header(header) + rest)
    _decodes_or_refuses(format_header(header.for_data_file()) + rest)


HUGE = [
    # bytes per dimension, block type, voxel type, voxel size, why
    (0xFF, 1, 1, 1),  # 2^90 bytes, raw
    (0xF0, 1, 1, 1),  # 2^45 blocks of one byte
    (0xF0, 2, 1, 1),  # a table of 2^48 bytes
    (0x0F, 1, 4, 248),  # one raw block of 2^45 voxels
    (0x0A, 2, 1, 1),  # one compressed block of a gigabyte
    (0xFA, 3, 1, 1),
    (0x77, 3, 1, 255),  # the largest lengths that are written
]


@pytest.mark.parametrize(("per_dim", "block_type", "voxel_type", "voxel_nbytes"), HUGE)
@pytest.mark.parametrize("rest", [b"", bytes(4096)])
def test_no_memory_on_the_word_of_a_header(per_dim, block_type, voxel_type, voxel_nbytes, rest):
    blocks = (1 << (per_dim >> 4)) ** 3
    offset = 16 + (8 * blocks if block_type > 1 else 0)
    raw = (
        struct.pack("<3sBBBBBQ", b"WKW", 1, per_dim, block_type, voxel_type, voxel_nbytes, offset)
        + rest
    )
    tracemalloc.start()
    try:
        with pytest.raises((FormatError, UnsupportedError), match=r"x0\.wkw: "):
            decode_file(raw, "x0.wkw")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_no_memory_on_the_word_of_a_table():
    """A table may promise a gigabyte in a few bytes: one block whose stored length cannot hold
    it."""
    raw = struct.pack("<3sBBBBBQQ", b"WKW", 1, 0x0A, 2, 1, 1, 24, 24 + 64) + bytes(64)
    tracemalloc.start()
    try:
        with pytest.raises(
            CorruptError,
            match=r"x0\.wkw: block 0 at byte 24: 64 stored bytes cannot decode to 1073741824 bytes",
        ):
            decode_file(raw, "x0.wkw")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def _with_entry(raw, block, end):
    at = 16 + 8 * block
    return raw[:at] + struct.pack("<Q", end) + raw[at + 8 :]


def test_impossible_tables():
    header = make_header("uint8", block_len=2, file_len=2, block_type=BlockType.LZ4)
    raw = encode_file(voxel_array("uint8", (1, 4, 4, 4), 4, "noise"), header)
    for changed, error, message in [
        (
            _with_entry(raw, 3, 80),
            CorruptError,
            "x0.wkw: byte 40: jump table decreases: block 3 starts at byte .* and ends at byte 80",
        ),
        (
            _with_entry(raw, 0, 0),
            CorruptError,
            "x0.wkw: byte 16: jump table decreases: block 0 starts at byte 80 and ends at byte 0",
        ),
        # ends inside the table
        (_with_entry(raw, 0, 20), CorruptError, "x0.wkw: byte 16: jump table decreases"),
        (
            _with_entry(raw, 7, len(raw) + 1),
            TruncatedError,
            (
                f"x0.wkw: byte 72: block 7 ends at byte {len(raw) + 1}, but the file has "
                f"{len(raw)} bytes"
            ),
        ),
        (
            _with_entry(raw, 7, 2**64 - 1),
            TruncatedError,
            "x0.wkw: byte 72: block 7 ends at byte 18446744073709551615",
        ),
        (
            _with_entry(raw, 2, 2**63),
            CorruptError,
            "x0.wkw: byte 40: jump table decreases: block 3",
        ),
    ]:
        with pytest.raises(error, match=message):
            decode_file(changed, "x0.wkw")
    with pytest.raises(
        CorruptError, match=r"x0\.wkw: block 2 at byte .*: 0 stored bytes cannot decode to 8 bytes"
    ):
        # block 2 has no bytes
        decode_file(_with_entry(raw, 2, struct.unpack_from("<Q", raw, 16 + 8)[0]), "x0.wkw")


def test_a_broken_block_is_named():
    header = make_header("uint8", block_len=4, file_len=2, block_type=BlockType.LZ4)
    array = np.zeros((1, 8, 8, 8), np.uint8)
    raw = encode_file(array, header)
    size = len(encode_block(array[:, :4, :4, :4], header))
    start = 80 + 5 * size
    with pytest.raises(CorruptError, match=f"x0.wkw: block 5 at byte {start}: "):
        decode_file(raw[:start] + b"\xff" * size + raw[start + size :], "x0.wkw")
