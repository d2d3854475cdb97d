"""Copies between blocks and arrays of every memory order equal slices of numpy, also where they
transpose tiles or write past the cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wkwdask.kernels import arrays
from wkwdask.kernels.arrays import empty_aligned
from wkwdask.kernels.blocks import batch
from wkwdask.kernels.blocks.layout import RAW, SIZE, START, X, Z

DTYPES = (
    ("uint8", "uint16", "float32", "uint64")
    if settings.get_current_profile_name() == "nightly"
    else ("uint8", "uint64")
)


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    if batch._compiled() is None:
        pytest.skip("python-lz4 does not export LZ4's functions here, or WKWDASK_LZ4=python is set")


def _decode(blocks, corners, out):
    """Copy raw blocks, shape (n, c, x, y, z), to an array."""
    stored = [block.tobytes(order="F") for block in blocks]
    table = np.zeros((len(blocks), 7), np.int64)
    table[:, START], table[:, SIZE], table[:, X : Z + 1] = (
        np.arange(len(blocks)) * len(stored[0]),
        len(stored[0]),
        corners,
    )
    source = np.frombuffer(b"".join(stored), np.uint8)
    decoded = batch.decode_into(
        source, table, out, block_len=blocks.shape[2], num_channels=blocks.shape[1], block_type=RAW
    )
    assert decoded == (len(blocks), -1, 0)


def _encode(array, corner, edge):
    """Copy a raw block out of an array."""
    out = np.empty(batch.compress_bound(edge**3 * array.shape[0] * array.itemsize), np.uint8)
    found = batch.encode_from(
        array,
        np.array([corner], np.int64),
        out,
        block_len=edge,
        block_type=RAW,
        level=1,
        store_zero=True,
    )
    return (
        out[: found.nbytes].view(array.dtype).reshape((array.shape[0], edge, edge, edge), order="F")
    )


def _surrounded(array, edge):
    """Return an array with as many zeros around it as a block may reach outside."""
    return np.pad(array, ((0, 0), *[(edge, edge)] * 3))


def _slices(corner, edge):
    """Return the place of a block in a surrounded array."""
    return (slice(None), *(slice(n + edge, n + 2 * edge) for n in corner))


@given(st.data())
def test_any_order_and_place(data):
    dtype, edge = (
        np.dtype(data.draw(st.sampled_from(DTYPES))),
        data.draw(st.sampled_from([4, 8, 16, 32])),
    )
    channels = data.draw(st.sampled_from([1, 1, 2]))
    shape = (channels, *(data.draw(st.integers(1, 2 * edge)) for _ in range(3)))
    corner = tuple(data.draw(st.integers(1 - edge, n - 1)) for n in shape[1:])
    order = data.draw(st.permutations(range(4)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    margin = data.draw(st.integers(0, 1))  # of a larger array, which stays unchanged
    memory = rng.integers(1, 250, [shape[axis] + 2 * margin for axis in order]).astype(dtype)
    whole = memory.transpose(np.argsort(order))
    inside = tuple(slice(margin, n + margin) for n in shape)
    blocks = rng.integers(1, 250, (1, channels, edge, edge, edge)).astype(dtype)

    array = whole[inside]
    np.testing.assert_array_equal(
        _encode(array, corner, edge), _surrounded(array, edge)[_slices(corner, edge)]
    )

    expected = whole.copy()
    surrounded = _surrounded(array, edge)
    surrounded[_slices(corner, edge)] = blocks[0]
    expected[inside] = surrounded[(slice(None), *[slice(edge, -edge)] * 3)]
    _decode(blocks, [corner], array)
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.long
@pytest.mark.parametrize("order", ["C", "F", "cxzy"])
@pytest.mark.parametrize(("dtype", "edge"), [("uint8", 128), ("uint32", 32), ("uint64", 32)])
def test_an_array_larger_than_the_cache(dtype, edge, order):
    """Whole lines of the cache are written past it, others not."""
    lengths = (256, 256, (40 << 20) // 65536 // np.dtype(dtype).itemsize)
    if order == "cxzy":
        out = empty_aligned(
            (1, lengths[0], lengths[2], lengths[1]), np.dtype(dtype), "C"
        ).transpose(0, 1, 3, 2)
    else:
        out = empty_aligned((1, *lengths), np.dtype(dtype), order)
    assert out.ctypes.data % 64 == 0
    out[...] = 7
    expected = out.copy()
    corners = [
        (0, 0, 0),
        (edge, 2, -1),
        (256 - edge // 2, 256 - edge, lengths[2] - edge),
        (3, edge + 1, 16),
    ]
    blocks = (
        np.random.default_rng(1).integers(0, 250, (len(corners), 1, edge, edge, edge)).astype(dtype)
    )
    for block, corner in zip(blocks, corners, strict=True):
        part = tuple(slice(max(0, n), n + edge) for n in corner)
        to = expected[(slice(None), *part)]
        low = [max(0, -n) for n in corner]
        to[...] = block[
            (slice(None), *(slice(a, a + n) for a, n in zip(low, to.shape[1:], strict=True)))
        ]
    _decode(blocks, corners, out)
    assert (out == expected).all()


def test_a_small_array_is_any_array_and_a_large_one_starts_with_a_line():
    assert empty_aligned((1, 3, 4, 5), np.dtype(np.float32), "C").flags.owndata
    large = empty_aligned((1, 1 << 10, 1 << 10, 3), np.dtype(np.float32), "C")
    assert large.flags.c_contiguous
    assert large.flags.writeable
    assert large.ctypes.data % arrays._LINE_NBYTES == 0
