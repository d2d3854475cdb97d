"""One block: exact bytes, order of the voxels, every block type, and damage."""

from __future__ import annotations

import lz4.block
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import headers, voxels

from wkwdask.errors import CorruptError, FormatError, TruncatedError
from wkwdask.formats.wkw.file import decode_block, encode_block, encode_raw_block
from wkwdask.formats.wkw.header import BlockType, make_header


def _decode(raw, header):
    return decode_block(raw, header, "x0.wkw", 5, 100)


def test_order_of_the_voxels():
    """Channel fastest, then x, y, z; little-endian."""
    header = make_header("uint16", 2, block_len=2, file_len=1, block_type=BlockType.RAW)
    raw = np.arange(16, dtype="<u2").tobytes()
    block = _decode(raw, header)
    assert block.shape == (2, 2, 2, 2)
    for c, x, y, z in np.ndindex(2, 2, 2, 2):
        assert block[c, x, y, z] == c + 2 * x + 4 * y + 8 * z
    assert encode_block(block, header) == raw


def test_lz4_bytes():
    """A bare LZ4 block without frame or size: token, literals, match, last literals."""
    header = make_header("uint8", block_len=4, file_len=1, block_type=BlockType.LZ4)
    # one literal, then 4 + 15 + 39 bytes from one byte back; then five literals
    raw = bytes.fromhex("1f 07 01 00 27  50 07 07 07 07 07")
    assert _decode(raw, header).tobytes(order="F") == b"\x07" * 64


@pytest.mark.parametrize("block_type", list(BlockType))
@pytest.mark.parametrize("level", [1, 5, 12])
def test_block_types(block_type, level):
    header = make_header("uint32", 2, block_len=8, file_len=1, block_type=block_type)
    block = (np.arange(2 * 512) // 7).astype("uint32").reshape(2, 8, 8, 8)
    raw = encode_block(block, header, level)
    assert (len(raw) == header.block_nbytes) == (block_type is BlockType.RAW)
    assert encode_raw_block(block.tobytes(order="F"), block_type, level) == raw
    np.testing.assert_array_equal(_decode(raw, header), block)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<i4", ">i4"])
def test_any_memory_order_and_byte_order(order, dtype):
    header = make_header("int32", 3, block_len=2, file_len=1, block_type=BlockType.RAW)
    block = np.arange(24).reshape(3, 2, 2, 2)
    assert encode_block(np.array(block, dtype, order=order), header) == block.astype("<i4").tobytes(
        order="F"
    )


def test_wrong_shape():
    header = make_header("uint8", block_len=4, file_len=1)
    with pytest.raises(
        ValueError, match=r"a block of this mag has 64 bytes, got an array of shape \(1, 4, 4, 2\)"
    ):
        encode_block(np.zeros((1, 4, 4, 2), np.uint8), header)


RAW = make_header("uint16", block_len=2, file_len=1, block_type=BlockType.RAW)
LZ4 = make_header("uint16", block_len=2, file_len=1, block_type=BlockType.LZ4)
BROKEN = [
    # stored bytes, header, error, message
    (b"", RAW, TruncatedError, "x0.wkw: block 5 at byte 100: 0 bytes, expected 16"),
    (bytes(15), RAW, TruncatedError, "x0.wkw: block 5 at byte 100: 15 bytes, expected 16"),
    # an empty entry of the jump table
    (
        b"",
        LZ4,
        CorruptError,
        "x0.wkw: block 5 at byte 100: 0 stored bytes cannot decode to 16 bytes",
    ),
    (
        b"\xff\xff\xff",
        LZ4,
        CorruptError,
        "x0.wkw: block 5 at byte 100: 3 bytes are not an LZ4 block of 16 bytes",
    ),
    (
        b"\x00",
        LZ4,
        CorruptError,
        "x0.wkw: block 5 at byte 100: 1 bytes decode to 0 bytes, expected 16",
    ),
    (
        lz4.block.compress(bytes(8), store_size=False),
        LZ4,
        CorruptError,
        "x0.wkw: block 5 at byte 100: .* bytes decode to 8 bytes, expected 16",
    ),
    (
        lz4.block.compress(bytes(17), store_size=False),
        LZ4,
        CorruptError,
        "x0.wkw: block 5 at byte 100: .* bytes are not an LZ4 block of 16 bytes",
    ),
]


@pytest.mark.parametrize(("raw", "header", "error", "message"), BROKEN)
def test_broken_block(raw, header, error, message):
    with pytest.raises(error, match=message):
        _decode(raw, header)


def test_more_raw_bytes_than_the_block():
    assert _decode(bytes(range(20)), RAW).tobytes(order="F") == bytes(range(16))


def test_nothing_is_allocated_for_an_impossible_length():
    """A few bytes cannot be a gigabyte: the length is refused before LZ4 gets memory for it."""
    header = make_header(
        "uint8", block_len=1024, file_len=1, block_type=BlockType.LZ4, any_length=True
    )
    with pytest.raises(CorruptError, match="64 stored bytes cannot decode to 1073741824 bytes"):
        _decode(bytes(64), header)


def test_the_most_that_lz4_compresses():
    """A long match takes one byte for 255: the refusal of impossible lengths lets the best possible
    block through."""
    header = make_header("uint8", block_len=128, file_len=1, block_type=BlockType.LZ4)
    raw = lz4.block.compress(
        bytes(128**3), mode="high_compression", compression=12, store_size=False
    )
    assert not _decode(raw, header).any()


@given(st.data())
def test_round_trip(data):
    header = data.draw(headers(max_block_len=8, max_file_len=1))
    edge = header.block_len
    block = data.draw(voxels(header.dtype, (header.num_channels, edge, edge, edge)))
    decoded = _decode(encode_block(block, header), header)
    assert (decoded.dtype, decoded.flags.f_contiguous) == (header.dtype, True)
    assert decoded.tobytes() == block.tobytes()  # bit for bit, NaN too


@given(st.data(), st.binary(max_size=80))
def test_any_bytes(data, raw):
    header = data.draw(headers(max_block_len=4, max_file_len=1))
    try:
        block = _decode(raw, header)
    except FormatError as error:
        assert "x0.wkw: block 5 at byte 100: " in str(error)  # noqa: PT017
    else:
        assert block.nbytes == header.block_nbytes
