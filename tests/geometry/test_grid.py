"""Cells of a grid, and cutting at its lines, against every voxel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import boxes

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells, piece_lengths

CELLS = st.tuples(*[st.integers(1, 7)] * 3)


@given(boxes(-20, 20, 12), CELLS)
def test_cells_of_a_box(box, cell):
    found = list(cells(box, cell))
    per_axis = [
        {n // c for n in range(a, b)}
        for a, b, c in zip(box.topleft, box.bottomright, cell, strict=True)
    ]
    expected = (
        set()
        if box.is_empty
        else {(x, y, z) for x in per_axis[0] for y in per_axis[1] for z in per_axis[2]}
    )
    assert set(found) == expected
    assert len(found) == len(expected)
    assert found == sorted(found, key=lambda at: at[::-1])  # x fastest
    assert [len(axis) for axis in cell_range(box, cell)] == [
        0 if box.is_empty else len(axis) for axis in per_axis
    ]


@given(boxes(-20, 20, 12, min_size=1), CELLS)
def test_cells_partition_the_box(box, cell):
    """Each voxel of the box lies in one cell, and no cell lies outside."""
    shares = [cell_box(index, cell, box).intersection(box) for index in cells(box, cell)]
    assert not any(share.is_empty for share in shares)
    assert sum(share.volume for share in shares) == box.volume
    assert all(cell_box(index, cell, box).mag == box.mag for index in cells(box, cell))


def test_cell_box():
    like = BoundingBox((0, 0, 0), (1, 1, 1))
    assert cell_box((-1, 0, 2), (4, 5, 6), like) == BoundingBox((-4, 0, 12), (4, 5, 6))


@pytest.mark.parametrize(
    ("start", "stop", "step", "expected"),
    [
        (30, 100, 32, (2, 32, 32, 4)),
        (0, 64, 32, (32, 32)),
        (32, 64, 32, (32,)),
        (33, 40, 32, (7,)),
        (-5, 5, 4, (1, 4, 4, 1)),  # cuts at -4, 0 and 4
        (7, 7, 4, (0,)),  # as dask writes an empty axis
        (9, 7, 4, (0,)),
        (0, 3, 1, (1, 1, 1)),
    ],
)
def test_borders_table(start, stop, step, expected):
    assert piece_lengths(start, stop, step) == expected


@given(st.integers(-50, 50), st.integers(1, 60), st.integers(1, 20))
def test_borders(start, length, step):
    pieces = piece_lengths(start, start + length, step)
    assert sum(pieces) == length
    assert min(pieces) > 0
    cuts = {start + sum(pieces[:n]) for n in range(1, len(pieces))}
    assert cuts == {n for n in range(start + 1, start + length) if n % step == 0}
