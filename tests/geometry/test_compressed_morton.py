"""Compressed Morton codes: the specification's diagram, the worked example, and brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from support.strategies import vectors

from wkwdask.geometry.compressed_morton import bit_axes, cells_per_axis, decode, encode

# neuroglancer, precomputed/volume.rst: X of 16 bits, Y of 14 and Z of 24; a digit is a bit of the
# coordinate, 10 to 23 are a to f and once more 0 to 7.
DIAGRAM = (
    "---- ---- ---- ---- ---f -e-- d--c --b- -a-- 9--8 --7- -6-- 5--4 --3- -2-- 1--0",
    "---- ---- ---- ---- ---- ---d --c- -b-- a--9 --8- -7-- 6--5 --4- -3-- 2--1 --0-",
    "---- ---- --76 5432 10f- e-d- -c-- b--a --9- -8-- 7--6 --5- -4-- 3--2 --1- -0--",
)
DIAGRAM_GRID = (1 << 16, 1 << 14, 1 << 24)


def _places(line):
    """Return the place in the code of each bit of a coordinate, the lowest first."""
    digits = line.replace(" ", "")[::-1]
    return [place for place, digit in enumerate(digits) if digit != "-"]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_diagram(axis):
    """Every single bit lands where the specification draws it."""
    places = _places(DIAGRAM[axis])
    assert len(places) == (16, 14, 24)[axis]
    for bit, place in enumerate(places):
        cell = [0, 0, 0]
        cell[axis] = 1 << bit
        assert encode([cell], DIAGRAM_GRID).tolist() == [1 << place]


def test_the_digits_of_the_diagram_ascend():
    """Each line of the diagram names the bits of its coordinate in their order, as the test above
    takes for granted."""
    for line, count in zip(DIAGRAM, (16, 14, 24), strict=True):
        digits = line.replace(" ", "").replace("-", "")[::-1]
        assert digits == "0123456789abcdef01234567"[:count]


def test_worked_example():
    cells = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0)]
    assert encode(cells, (3, 2, 1)).tolist() == [0, 1, 2, 3, 4, 6]


def _by_the_text(cell, grid):
    """The specification's algorithm, word by word."""
    code, j = 0, 0
    for i in range(64):
        for dim in range(3):
            if 2**i < grid[dim]:
                code |= (cell[dim] >> i & 1) << j
                j += 1
    return code


@given(vectors(1, 9))
def test_all_cells(grid):
    cells = list(product(*(range(n) for n in grid)))
    codes = encode(cells, grid)
    assert codes.tolist() == [_by_the_text(cell, grid) for cell in cells]
    assert decode(codes, grid).tolist() == [list(cell) for cell in cells]
    assert len(np.unique(codes)) == len(cells)


@given(vectors(1, 40))
def test_boxes_of_low_bits(grid):
    """Cells that share all bits but the lowest are a box of the size that is said."""
    total = len(bit_axes(grid))
    for bits in range(total + 1):
        box = cells_per_axis(bits, grid)
        cells = np.array(
            list(product(*(range(min(edge, n)) for edge, n in zip(box, grid, strict=True))))
        )
        assert not (encode(cells, grid) >> np.uint64(bits)).any() or bits == 64
        assert np.prod(box) == 1 << bits


def test_limits():
    assert len(bit_axes((1 << 22, 1 << 21, 1 << 21))) == 64
    with pytest.raises(
        ValueError, match="identifiers of 65 bits, more than 64: choose larger chunks"
    ):
        bit_axes((1 << 22, 1 << 22, 1 << 21))
    with pytest.raises(ValueError, match="at least one cell"):
        bit_axes((1, 0, 1))
    with pytest.raises(ValueError, match="outside the grid"):
        encode([(3, 0, 0)], (3, 2, 1))
    assert encode(
        [((1 << 22) - 1, (1 << 21) - 1, (1 << 21) - 1)], (1 << 22, 1 << 21, 1 << 21)
    ).tolist() == [2**64 - 1]
