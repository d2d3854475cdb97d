"""compressed_segmentation: small vectors by hand, the compiled loops against plain numpy, overflow,
and every damage."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from formats.precomputed import plain_segmentation
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import damaged, vectors

from wkwdask.errors import CorruptError, FormatError, TruncatedError
from wkwdask.formats.precomputed import compressed_segmentation
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.precomputed.compressed_segmentation import BlockShapes

VECTORS = [
    # type, ids of a block of 4 x 1 x 1, words: the channel, table and bits, place of the indices,
    # indices, table
    ("uint32", [3, 3, 3, 3], [1, 2 | 0 << 24, 2, 3]),
    ("uint64", [3, 3, 3, 3], [1, 2 | 0 << 24, 2, 3, 0]),
    # the vector of neuroglancer's encode_uint32.spec.ts
    ("uint32", [4, 3, 4, 4], [1, 3 | 1 << 24, 2, 0b1101, 3, 4]),
    ("uint64", [2**32 + 1, 3, 4, 4], [1, 3 | 2 << 24, 2, 0b01_01_00_10, 3, 0, 4, 0, 1, 1]),
    ("uint32", [9, 8, 7, 6], [1, 3 | 2 << 24, 2, 0b00_01_10_11, 6, 7, 8, 9]),
]


@pytest.mark.parametrize(("dtype", "ids", "words"), VECTORS)
def test_by_hand(dtype, ids, words):
    array = np.array(ids, dtype).reshape(1, 4, 1, 1)
    data = np.array(words, "<u4").tobytes()
    assert compressed_segmentation.encode(array, (4, 1, 1), "f") == data
    assert (
        compressed_segmentation.decode(
            data, BlockShapes((4, 1, 1), (4, 1, 1)), np.dtype(dtype), 1, "f", 0
        )
        == array
    ).all()


def test_tables_are_shared():
    """Equal tables of two blocks are written once, and a table that begins like another one is not
    the same."""
    array = np.array([1, 2, 2, 1, 1, 3], np.uint32).reshape(1, 6, 1, 1)
    words = np.frombuffer(compressed_segmentation.encode(array, (2, 1, 1), "f"), "<u4").tolist()
    assert words == [
        1,
        7 | 1 << 24,
        6,
        7 | 1 << 24,
        9,
        11 | 1 << 24,
        10,
        0b10,
        1,
        2,
        0b01,
        0b10,
        1,
        3,
    ]


def test_two_channels():
    array = np.array([[5, 5], [6, 7]], np.uint32).reshape(2, 2, 1, 1)
    words = np.frombuffer(compressed_segmentation.encode(array, (2, 1, 1), "f"), "<u4").tolist()
    assert words == [2, 5, 2, 2, 5, 3 | 1 << 24, 2, 0b10, 6, 7]


@st.composite
def _segmentations(draw):
    """Ids of few or of many values, all of whose bits count, and of every number of bits that a
    block may have."""
    dtype = np.dtype(draw(st.sampled_from(["uint32", "uint64"])))
    shape = draw(vectors(1, 20))
    channels = draw(st.integers(1, 2))
    kinds = draw(st.sampled_from([1, 2, 3, 5, 17, 300]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ids = np.frombuffer(rng.bytes(kinds * dtype.itemsize), dtype)
    return rng.choice(ids, (channels, *shape))


@given(
    _segmentations(),
    st.sampled_from([(8, 8, 8), (3, 4, 5), (16, 1, 2), (64, 64, 64), (1, 1, 1)]),
    st.sampled_from(["C", "F", "czyx"]),
)
def test_compiled_and_plain_are_equal(array, block_size, order):
    """Bytes are equal, and so is what they decode to, in any memory order."""
    given_ = (
        np.ascontiguousarray(array.transpose(0, 3, 2, 1)).transpose(0, 3, 2, 1)
        if order == "czyx"
        else np.asarray(array, order=order)
    )
    data = compressed_segmentation.encode(given_, block_size, "f")
    assert data == plain_segmentation.encode(array, block_size)
    shape = array.shape[1:]
    assert (
        plain_segmentation.decode(data, shape, block_size, array.dtype, len(array)) == array
    ).all()
    assert (
        compressed_segmentation.decode(
            data, BlockShapes(shape, block_size), array.dtype, len(array), "f", 0
        )
        == array
    ).all()
    out = np.empty_like(given_)
    compressed_segmentation.decode_into(
        data, BlockShapes(shape, block_size), out, (0, 0, 0), "f", 0
    )
    assert (out == array).all()


@given(
    _segmentations(), vectors(-12, 12), vectors(1, 15), st.sampled_from(["C", "F", "odd", "back"])
)
def test_a_part_at_its_place(array, corner, size, order):
    """Of a chunk that lies anywhere relative to an array of any memory order, the part inside is
    written, and nothing else."""
    shape = array.shape[1:]
    data = compressed_segmentation.encode(array, (8, 8, 8), "f")
    if order in "CF":
        out = np.full((len(array), *size), 77, array.dtype, order=order)
    elif order == "odd":
        out = np.full((len(array), *(2 * n for n in size)), 77, array.dtype)[:, ::2, 1::2, ::2]
    else:
        out = np.full((len(array), *size), 77, array.dtype)[:, ::-1]
    expected = out.copy()
    for cell in np.ndindex(size):
        at = [n - first for n, first in zip(cell, corner, strict=True)]
        if all(0 <= n < end for n, end in zip(at, shape, strict=True)):
            expected[(slice(None), *cell)] = array[(slice(None), *at)]
    codec = PrecomputedCodec("compressed_segmentation", array.dtype, len(array))
    codec.decode_into(data, (len(array), *shape), out, (0, *corner), "f")
    assert (out == expected).all()


def test_many_ids_in_a_block():
    """16 and 32 bits: more than 256 and more than 65536 ids in one block."""
    for count, bits in ((257, 16), (65536, 16), (65537, 32)):
        array = np.arange(count, dtype=np.uint64)[::-1].reshape(1, count, 1, 1) * np.uint64(
            2**33 + 1
        )
        data = compressed_segmentation.encode(array, (count, 1, 1), "f")
        assert data[7] == bits
        assert data == plain_segmentation.encode(array, (count, 1, 1))
        assert (
            compressed_segmentation.decode(
                data, BlockShapes((count, 1, 1), (count, 1, 1)), array.dtype, 1, "f", 0
            )
            == array
        ).all()


def test_tables_that_no_header_can_name():
    """A table beyond 2^24 words is an error before anything is written; most of a block is padding
    here, which makes a small array long."""
    array = np.arange(257 * 256, dtype=np.uint32).reshape(1, 257, 1, 256)
    block_size = (2048, 64, 1)
    with pytest.raises(
        FormatError,
        match=(
            r"f: compressed_segmentation cannot hold channel 0 of \(257, 1, 256\) voxels: .* 64 "
            r"MiB .*: choose smaller chunks"
        ),
    ):
        compressed_segmentation.encode(array, block_size, "f")
    fits = array[..., :254]
    data = compressed_segmentation.encode(fits, block_size, "f")
    assert len(data) > 1 << 25
    assert (
        compressed_segmentation.decode(
            data, BlockShapes((257, 1, 254), block_size), np.dtype("uint32"), 1, "f", 0
        )
        == fits
    ).all()


ONE = struct.pack("<6I", 1, 3 | 1 << 24, 2, 0b1101, 3, 4)
DAMAGES = [
    # bytes, what is said
    (
        ONE[:-1],
        "f: byte 50: a chunk of compressed segmentation has a multiple of 4 bytes, found 23",
    ),
    (b"", "f: byte 50: a chunk of 1 blocks has at least 12 bytes, found 0"),
    (ONE[:8], "f: byte 50: a chunk of 1 blocks has at least 12 bytes, found 8"),
    (
        struct.pack("<6I", 5, *struct.unpack("<5I", ONE[4:])),
        "f: byte 50: channel 0 starts at word 5 of 6, too late for 1 blocks",
    ),
    (
        struct.pack("<6I", 1, 3 | 3 << 24, 2, 0, 3, 4),
        "f: byte 54: block 0 of channel 0 has a number of bits that is no power of two up to 32",
    ),
    (
        struct.pack("<6I", 1, 3 | 64 << 24, 2, 0, 3, 4),
        "f: byte 54: block 0 of channel 0 has a number of bits",
    ),
    (
        struct.pack("<6I", 1, 5 | 1 << 24, 2, 0, 3, 4),
        "f: byte 54: block 0 of channel 0 has a lookup table beyond the end of the chunk",
    ),
    (
        struct.pack("<6I", 1, 0xFFFFFF | 0 << 24, 2, 0, 3, 4),
        "f: byte 54: block 0 of channel 0 has a lookup table beyond the end of the chunk",
    ),
    (
        struct.pack("<6I", 1, 3 | 1 << 24, 5, 0, 3, 4),
        "f: byte 54: block 0 of channel 0 has indices beyond the end of the chunk",
    ),
    (
        struct.pack("<6I", 1, 3 | 1 << 24, 2**32 - 1, 0, 3, 4),
        "f: byte 54: block 0 of channel 0 has indices beyond the end of the chunk",
    ),
    (
        struct.pack("<6I", 1, 3 | 2 << 24, 2, 0b10, 3, 4),
        "f: byte 54: block 0 of channel 0 has an index beyond its lookup table",
    ),
]


@pytest.mark.parametrize(("data", "message"), DAMAGES)
def test_damage(data, message):
    with pytest.raises(FormatError) as caught:
        compressed_segmentation.decode(
            data, BlockShapes((4, 1, 1), (4, 1, 1)), np.dtype("uint32"), 1, "f", 50
        )
    assert str(caught.value).startswith(message)


@given(st.data())
def test_any_bytes(data):
    """Damaged bytes decode to something, or are refused; nothing beyond them is read."""
    array = data.draw(_segmentations())
    raw = data.draw(damaged(compressed_segmentation.encode(array, (8, 8, 8), "f")))
    try:
        found = compressed_segmentation.decode(
            raw, BlockShapes(array.shape[1:], (8, 8, 8)), array.dtype, len(array), "f", 0
        )
    except FormatError:
        return
    assert found.shape == array.shape


def test_every_truncation():
    array = np.random.default_rng(0).integers(0, 9, (2, 9, 9, 2)).astype(np.uint64)
    raw = compressed_segmentation.encode(array, (8, 8, 8), "f")
    for length in range(len(raw)):
        with pytest.raises((TruncatedError, CorruptError)):
            compressed_segmentation.decode(
                raw[:length], BlockShapes(array.shape[1:], (8, 8, 8)), array.dtype, 2, "f", 0
            )


def test_a_promise_of_much():
    """Nothing is allocated for a chunk that has no bytes for its blocks, or a block that is larger
    than any file."""
    with pytest.raises(TruncatedError, match="a chunk of 8589934592 blocks has at least"):
        compressed_segmentation.decode(
            bytes(100),
            BlockShapes((1 << 14, 1 << 14, 1 << 14), (8, 8, 8)),
            np.dtype("uint64"),
            1,
            "f",
            0,
        )
    with pytest.raises(CorruptError, match="indices beyond the end"):
        compressed_segmentation.decode(
            struct.pack("<4I", 1, 2 | 1 << 24, 3, 0),
            BlockShapes((2, 2, 2), (2**40, 2**40, 2**40)),
            np.dtype("uint32"),
            1,
            "f",
            0,
        )


def test_read_only_and_unaligned_memory():
    array = np.arange(8, dtype=np.uint64).reshape(1, 2, 2, 2)
    raw = compressed_segmentation.encode(array, (2, 2, 2), "f")
    for view in (
        bytearray(raw),
        memoryview(b"x" + raw)[1:],
        memoryview(bytearray(b"abc" + raw))[3:],
    ):
        assert (
            compressed_segmentation.decode(
                view, BlockShapes((2, 2, 2), (2, 2, 2)), array.dtype, 1, "f", 0
            )
            == array
        ).all()
