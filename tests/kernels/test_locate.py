"""The blocks of a box and the byte ranges to read for them, against brute force over all blocks of
a cube."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.geometry import morton
from wkwdask.kernels.blocks.layout import CODE, OFFSET, SIZE, START, X, Z
from wkwdask.kernels.blocks.locate import locate_blocks


def _check(sizes, low, high, block_len, origin, gap_nbytes, batch_nbytes, start=100):
    bounds = start + np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    found = locate_blocks(bounds, low, high, block_len, origin, gap_nbytes, batch_nbytes)

    # every block of the box, in Morton order, with its place in the file and in the array
    coordinates = morton.decode(np.arange(len(sizes)))
    codes = [
        code
        for code, at in enumerate(coordinates.tolist())
        if all(a <= n < b for a, n, b in zip(low, at, high, strict=True))
    ]
    assert found.blocks[:, CODE].tolist() == codes
    assert found.blocks[:, OFFSET].tolist() == bounds[codes].tolist()
    assert found.blocks[:, SIZE].tolist() == [sizes[code] for code in codes]
    np.testing.assert_array_equal(
        found.blocks[:, X : Z + 1], coordinates[codes] * block_len + origin
    )
    assert found.blocks[found.smallest, SIZE] == found.blocks[:, SIZE].min()
    assert found.blocks[found.largest, SIZE] == found.blocks[:, SIZE].max()

    # batches follow each other and end with all blocks and ranges
    assert found.batches[0].tolist()[:2] == [0, 0]
    assert found.batches[-1].tolist() == [len(codes), len(found.ranges), 0]
    file = np.random.default_rng(0).integers(0, 256, int(bounds[-1]), np.uint8)
    for (first, first_range, nbytes), (last, last_range, _) in zip(
        found.batches[:-1].tolist(), found.batches[1:].tolist(), strict=True
    ):
        assert first < last
        assert first_range < last_range
        assert nbytes <= batch_nbytes or last - first == 1
        ranges = found.ranges[first_range:last_range].tolist()
        memory = np.zeros(nbytes, np.uint8)
        end = 0
        for offset, place, length in ranges:
            assert place == end  # no two ranges share memory, and none is left out
            memory[place : place + length] = file[offset : offset + length]
            end = place + length
        assert end == nbytes
        for (offset, _, length), (after, _, _) in pairwise(ranges):
            assert after - (offset + length) > gap_nbytes  # a smaller gap is read over
        wanted = int(found.blocks[first:last, SIZE].sum())
        assert nbytes - wanted <= gap_nbytes * (last - first - 1)
        for offset, size, place in found.blocks[first:last, [OFFSET, SIZE, START]].tolist():
            assert memory[place : place + size].tobytes() == file[offset : offset + size].tobytes()


@st.composite
def _cases(draw):
    edge = draw(st.sampled_from([1, 2, 4, 8]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # empty blocks are for the caller to judge
    sizes = rng.integers(0, draw(st.sampled_from([1, 2, 50])), edge**3).tolist()
    low = tuple(draw(st.integers(0, edge - 1)) for _ in range(3))
    high = tuple(draw(st.integers(a + 1, edge)) for a in low)
    origin = draw(st.tuples(*[st.integers(-100, 100)] * 3))
    return (
        sizes,
        low,
        high,
        draw(st.sampled_from([1, 32])),
        origin,
        draw(st.sampled_from([0, 1, 60, 10**6])),
        draw(st.sampled_from([0, 1, 100, 10**9])),
    )


@given(_cases())
def test_brute_force(case):
    _check(*case)


@pytest.mark.parametrize("gap_nbytes", [0, 25, 10**6])
@pytest.mark.parametrize("batch_nbytes", [1, 64, 10**9])
def test_slices_of_a_cube(gap_nbytes, batch_nbytes):
    sizes = (np.arange(512) % 23 + 1).tolist()
    for low, high in [
        ((0, 0, 0), (8, 8, 8)),
        ((0, 0, 3), (8, 8, 4)),
        ((5, 0, 0), (6, 8, 8)),
        ((3, 3, 3), (5, 5, 5)),
        ((7, 7, 7), (8, 8, 8)),
    ]:
        _check(sizes, low, high, 32, (-3, 0, 5), gap_nbytes, batch_nbytes)


def test_one_range_for_an_aligned_cube():
    """An aligned cube is contiguous: one range, however small its gaps may be."""
    bounds = np.arange(513, dtype=np.int64) * 10
    found = locate_blocks(bounds, (4, 0, 4), (8, 4, 8), 32, (0, 0, 0), 0, 10**9)
    assert found.ranges.tolist() == [[5 * 640, 0, 640]]


def test_offsets_beyond_32_bits():
    bounds = np.array([0, 1 << 40, (1 << 40) + 5, *[(1 << 40) + 5] * 6], np.int64)
    found = locate_blocks(bounds, (1, 0, 0), (2, 1, 1), 4, (0, 0, 0), 0, 100)
    assert found.blocks.tolist() == [[1, 1 << 40, 5, 0, 4, 0, 0]]
    assert found.ranges.tolist() == [[1 << 40, 0, 5]]
