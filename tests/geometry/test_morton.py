"""Morton codes against the table of the webknossos-wrap README, its test vectors, and bits taken
one by one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import vectors

from wkwdask.geometry.morton import MAX_BITS, decode, encode, ordered_box

# webknossos-wrap README, "High-level description": the first blocks of a file.
README_TABLE = [
    (0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1),
    (2, 0, 0), (3, 0, 0), (2, 1, 0), (3, 1, 0), (2, 0, 1),
]  # fmt: skip


def _bits(x, y, z):
    """Interleave bit by bit, in Python integers."""
    return sum(
        (x >> i & 1) << 3 * i | (y >> i & 1) << 3 * i + 1 | (z >> i & 1) << 3 * i + 2
        for i in range(MAX_BITS)
    )


def test_readme_table():
    assert encode(README_TABLE).tolist() == list(range(len(README_TABLE)))
    assert decode(range(len(README_TABLE))).tolist() == [list(at) for at in README_TABLE]


@pytest.mark.parametrize(
    ("at", "code"),
    [
        ((29, 20, 3), 13029),  # the vectors of the reference library's own tests
        ((23, 20, 3), 12525),
        ((31, 31, 31), 32767),  # the last block of a file of 32 blocks
        ((1023, 1023, 1023), 2**30 - 1),  # the last that the table holds
        ((1024, 0, 0), 2**30),  # the first beyond it
        ((0, 1024, 1), 2**31 + 4),
        ((2**21 - 1,) * 3, 2**63 - 1),  # all bits there are
    ],
)
def test_vectors(at, code):
    assert encode([at]).tolist() == [code]
    assert decode([code]).tolist() == [list(at)]


@given(st.lists(vectors(0, 2**MAX_BITS - 1) | vectors(0, 1100), max_size=20))
def test_oracle(coordinates):
    codes = encode(np.array(coordinates, np.int64).reshape(-1, 3))
    assert codes.dtype == np.uint64
    assert codes.tolist() == [_bits(*at) for at in coordinates]
    assert decode(codes).tolist() == [list(at) for at in coordinates]


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_inverse(codes):
    found = decode(codes)
    assert found.dtype == np.int64
    assert encode(found).tolist() == codes


def test_every_block_of_a_file():
    codes = np.arange(16**3)
    assert encode(decode(codes)).tolist() == codes.tolist()
    assert len({tuple(at) for at in decode(codes).tolist()}) == 16**3


@pytest.mark.parametrize("at", [(-1, 0, 0), (0, 0, -1), (2**21, 0, 0), (0, 2**40, 0)])
def test_limits(at):
    with pytest.raises(ValueError, match=r"morton coordinates must lie in 0\.\.2\*\*21 - 1"):
        encode([(0, 0, 0), at])


@given(vectors(0, 40), vectors(0, 5))
def test_ordered_box(low, size):
    high = tuple(a + n for a, n in zip(low, size, strict=True))
    codes, coordinates = ordered_box(low, high)
    expected = sorted(
        (_bits(*at), at) for at in product(*(range(a, b) for a, b in zip(low, high, strict=True)))
    )
    assert codes.tolist() == [code for code, _ in expected]
    assert [tuple(at) for at in coordinates.tolist()] == [at for _, at in expected]
    assert coordinates.shape == (len(expected), 3)


def test_ordered_box_is_shared_and_read_only():
    codes, coordinates = ordered_box((0, 0, 0), (2, 2, 2))
    assert ordered_box((0, 0, 0), (2, 2, 2))[0] is codes
    for array in (codes, coordinates):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@given(st.integers(0, 4), vectors(0, 5))
def test_aligned_cubes_are_contiguous(power, index):
    """The fact that everything rests on: a cube of 2^k blocks an edge, on its own grid, is one
    range of codes."""
    edge = 1 << power
    low = tuple(n * edge for n in index)
    codes, coordinates = ordered_box(low, tuple(a + edge for a in low))
    first = _bits(*index) * edge**3
    assert codes.tolist() == list(range(first, first + edge**3))
    # its inside has the same order everywhere
    np.testing.assert_array_equal(coordinates - low, ordered_box((0, 0, 0), (edge,) * 3)[1])


@given(st.lists(vectors(0, 50), min_size=2, max_size=10))
def test_halving_keeps_the_order(coordinates):
    """Eight consecutive blocks make one of the next mag, and blocks of all mags come in the same
    order."""
    ordered = sorted(coordinates, key=lambda at: _bits(*at))
    halved = encode(np.array(ordered) // 2)
    assert (np.diff(halved.astype(np.int64)) >= 0).all()
    assert halved.tolist() == [code // 8 for code in encode(ordered).tolist()]
