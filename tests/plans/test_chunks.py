"""How arrays are cut into chunks: tables, and a verifier of the grid."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import boxes

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.plans.chunks import chunk_lengths, largest_multiple, num_chunks

COUNTS = st.sampled_from([1, 2, 4, 7, 8, 12, 16, 30, 32])


@pytest.mark.parametrize(
    ("chunk", "shard", "voxel_nbytes", "nbytes", "expected"),
    [
        ((32,) * 3, (1024,) * 3, 1, 128 << 20, (512,) * 3),  # exactly the limit
        ((32,) * 3, (1024,) * 3, 1, (128 << 20) - 1, (256,) * 3),
        ((32,) * 3, (1024,) * 3, 4, 128 << 20, (256,) * 3),  # 512^3 would take 512 MiB
        ((32,) * 3, (1024,) * 3, 3, 128 << 20, (256,) * 3),  # all channels count
        ((32,) * 3, (128,) * 3, 1, 1 << 40, (128,) * 3),  # never more than a file
        ((32,) * 3, (32,) * 3, 1, 1 << 40, (32,) * 3),
        ((128,) * 3, (1024,) * 3, 8, 1, (128,) * 3),  # never less than a block
        # an axis that is full stays, the others grow
        ((64, 64, 16), (256, 256, 16), 1, 1 << 40, (256, 256, 16)),
        ((32,) * 3, (96, 384, 32), 1, 1 << 40, (96, 384, 32)),
        ((32,) * 3, (31 * 32, 64, 64), 1, 1 << 20, (32, 64, 64)),  # 31 chunks would be too many
        ((10,) * 3, (25, 40, 40), 1, 1 << 40, (10, 40, 40)),  # not whole chunks
    ],
)
def test_largest_multiple_table(chunk, shard, voxel_nbytes, nbytes, expected):
    assert largest_multiple(chunk, shard, voxel_nbytes, nbytes) == expected


@given(
    st.tuples(COUNTS, COUNTS, COUNTS),
    st.tuples(COUNTS, COUNTS, COUNTS),
    st.integers(1, 255),
    st.integers(0, 1 << 30),
)
def test_largest_multiple(chunk, times, voxel_nbytes, nbytes):
    shard = tuple(c * t for c, t in zip(chunk, times, strict=True))
    found = largest_multiple(chunk, shard, voxel_nbytes, nbytes)
    assert all(s % n == 0 and n % c == 0 for c, n, s in zip(chunk, found, shard, strict=True))
    assert found == chunk or found[0] * found[1] * found[2] * voxel_nbytes <= nbytes
    # the next one is larger by a factor of at most 7 along each axis
    larger = [s if s // n < 7 else 7 * n for n, s in zip(found, shard, strict=True)]
    assert found == shard or math.prod(larger) * voxel_nbytes > nbytes


@pytest.mark.parametrize(
    ("start", "topleft", "size", "shape", "expected"),
    [
        # the first chunk is short
        ((30, 0, 0), (30, 0, 0), (70, 32, 1), (32, 32, 32), ((2, 32, 32, 4), (32,), (1,))),
        # absolute: zeros before the box
        ((0, 0, 0), (30, 0, 0), (70, 32, 1), (32, 32, 32), ((32, 32, 32, 4), (32,), (1,))),
        # one chunk for all that lies before
        ((0, 0, 0), (70, 0, 0), (3, 32, 32), (32, 32, 32), ((64, 9), (32,), (32,))),
        ((5, 5, 5), (5, 5, 5), (0, 1, 1), (4, 4, 4), ((0,), (1,), (1,))),  # an empty box
        ((0, 0, 0), (8, 0, 0), (1, 1, 1), (4, 4, 4), ((8, 1), (1,), (1,))),
    ],
)
def test_chunk_lengths_table(start, topleft, size, shape, expected):
    box = BoundingBox(topleft, size)
    extent = BoundingBox.from_corners(start, box.bottomright)
    assert chunk_lengths(extent, box, shape) == expected


@given(
    boxes(0, 100, 60, min_size=1),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.booleans(),
    st.integers(0, 90),
)
def test_chunk_lengths(box, shape, absolute, rest):
    """Chunks fill the array, inner borders lie on the grid, and only the chunk before the box is
    longer than asked for."""
    start = (0, 0, 0) if absolute else box.topleft
    extent = BoundingBox.from_corners(start, [end + rest for end in box.bottomright])
    lengths = chunk_lengths(extent, box, shape)
    for axis, pieces in enumerate(lengths):
        assert sum(pieces) == extent.size[axis]
        assert min(pieces) > 0
        at = start[axis]
        for index, piece in enumerate(pieces):
            assert at % shape[axis] == 0 or index == 0
            if at + piece > box.topleft[axis]:  # holds data: lies in one cell
                assert at // shape[axis] == (at + piece - 1) // shape[axis]
            else:
                assert index == 0
            at += piece
    assert num_chunks(lengths) == len(lengths[0]) * len(lengths[1]) * len(lengths[2])


def test_num_chunks():
    assert num_chunks(((1, 2), (3,), (4, 5, 6))) == 6
