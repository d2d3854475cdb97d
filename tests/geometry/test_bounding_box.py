"""Boxes against sets of voxels: every operation is compared with what it means for each voxel."""

from __future__ import annotations

import pickle
import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import boxes, mags

from wkwdask.geometry.bounding_box import BoundingBox, voxel_box
from wkwdask.geometry.mag import Mag

MAG = Mag(2, 2, 1)


def _voxels(box):
    return set(product(*(range(a, b) for a, b in zip(box.topleft, box.bottomright, strict=True))))


def _small():
    return boxes(-4, 4, 5, mag=MAG)


@pytest.mark.parametrize(
    "value",
    [
        "10, 20, 30, 101, 67, 45",  # as WEBKNOSSOS shows it
        "10 20 30 101 67 45",
        " 10,20,30;101,67,45 ",
        [10, 20, 30, 101, 67, 45],
        np.array([10, 20, 30, 101, 67, 45]),
        BoundingBox((10, 20, 30), (101, 67, 45)),
    ],
)
def test_parse(value):
    box = BoundingBox.parse(value)
    assert (box.topleft, box.size, box.bottomright) == ((10, 20, 30), (101, 67, 45), (111, 87, 75))
    assert all(type(number) is int for number in (*box.topleft, *box.size))
    assert box.mag == Mag(1, 1, 1)


def test_parse_keeps_the_mag():
    box = BoundingBox((0, 0, 0), (1, 1, 1), MAG)
    assert BoundingBox.parse(box) is box


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1,2,3",
        "1,2,3,4,5,6,7",
        "1,2,3,4,5,x",
        "1.5,2,3,4,5,6",
        [1, 2, 3],
        [1, 2, 3, 4, 5, 6.5],
        [[1, 2], [3, 4]],
        [[1, 2, 3]],
        5,
        None,
        {},
    ],
)
def test_no_box(value):
    with pytest.raises(
        ValueError,
        match=(
            r"a bounding box is six whole numbers \(x, y, z, width, height, depth\) in voxels of "
            r"mag 1, got"
        ),
    ):
        BoundingBox.parse(value)


@pytest.mark.parametrize(
    "pair",
    [
        ((100, 100, 20), (150, 150, 70)),
        [[100, 100, 20], [150, 150, 70]],
        np.array([[100, 100, 20], [150, 150, 70]]),
    ],
)
def test_a_pair_of_triples_has_two_readings(pair):
    corner_and_size, corners = (
        re.escape("(100, 100, 20, 150, 150, 70)"),
        re.escape("(100, 100, 20, 50, 50, 50)"),
    )
    with pytest.raises(
        ValueError,
        match=(
            f": write {corner_and_size} if the pair is a corner and a size, {corners} if it is two "
            "corners$"
        ),
    ):
        BoundingBox.parse(pair)
    assert voxel_box(pair, MAG) == BoundingBox((100, 100, 20), (50, 50, 50), MAG)


@pytest.mark.parametrize("numbers", [(100, 100, 20, 150, 150, 70), "100,100,20,150,150,70"])
def test_six_numbers_are_no_corners(numbers):
    size, corners = (
        re.escape("((100, 100, 20), (250, 250, 90))"),
        re.escape("((100, 100, 20), (150, 150, 70))"),
    )
    with pytest.raises(
        ValueError,
        match=(
            f"^where is a pair of corners .*: write {size} if they are a corner and a size .*, "
            f"{corners} if they are two corners$"
        ),
    ):
        voxel_box(numbers, MAG, "where")


def test_negative_size():
    for make in (
        lambda: BoundingBox((0, 0, 0), (1, -1, 1)),
        lambda: BoundingBox.parse("0,0,0,1,-1,1"),
        lambda: BoundingBox.from_corners((0, 5, 0), (1, 4, 1)),
    ):
        with pytest.raises(
            ValueError, match=r"the size of a bounding box must not be negative, got \(1, -1, 1\)"
        ):
            make()


@pytest.mark.parametrize(
    ("mag", "topleft", "size"),
    [
        # facts/wkw.md 2.3, as webknossos 4.3.3 aligns it
        (Mag(2, 2, 1), (5, 10, 30), (51, 34, 45)),
        (Mag(4, 4, 2), (2, 5, 15), (26, 17, 23)),
        (Mag(1, 1, 1), (10, 20, 30), (101, 67, 45)),
    ],
)
def test_in_mag_table(mag, topleft, size):
    assert BoundingBox((10, 20, 30), (101, 67, 45)).in_mag(mag) == BoundingBox(topleft, size, mag)


def test_an_empty_box_is_empty_in_any_mag():
    for mag in (Mag(2, 2, 1), Mag(1, 1, 1)):
        box = BoundingBox((5, 4, 3), (0, 3, 2), Mag(1, 1, 1)).in_mag(mag)
        assert box.size[0] == 0


@given(boxes(-50, 50, 40, min_size=1), mags(16))
def test_in_mag_covers_and_is_tight(box, mag):
    """Floor of the lowest and ceiling of the highest corner: all of the box is inside, and no whole
    voxel of the mag could go."""
    found = box.in_mag(mag)
    assert found.mag == mag
    for a, b, n, low, high, m in zip(
        found.topleft,
        found.bottomright,
        mag.factors,
        box.topleft,
        box.bottomright,
        box.mag.factors,
        strict=True,
    ):
        assert a * n <= low * m < (a + 1) * n
        assert (b - 1) * n < high * m <= b * n


@given(boxes(-50, 50, 40), mags(4))
def test_finer_and_back(box, factor):
    """Counting in a finer mag loses nothing."""
    coarse = BoundingBox(
        box.topleft,
        box.size,
        Mag(*(a * b for a, b in zip(box.mag.factors, factor.factors, strict=True))),
    )
    assert coarse.in_mag(box.mag).in_mag(coarse.mag) == coarse


@given(boxes(-30, 30, 20, min_size=1), st.tuples(*[st.integers(1, 9)] * 3))
def test_aligned(box, cell):
    found = box.aligned(cell)
    assert found.contains(box)
    assert found.mag == box.mag
    for a, b, n, low, high in zip(
        found.topleft, found.bottomright, cell, box.topleft, box.bottomright, strict=True
    ):
        assert a % n == b % n == 0
        assert low - a < n
        assert b - high < n


@given(_small(), _small())
def test_set_operations(a, b):
    both = a.intersection(b)
    assert _voxels(both) == _voxels(a) & _voxels(b)
    assert both.mag == MAG
    assert a.contains(b) == (_voxels(a) >= _voxels(b))
    around = a.union(b)
    assert _voxels(around) >= _voxels(a) | _voxels(b)
    for axis in range(3):  # no side can move in
        places = [voxel[axis] for voxel in _voxels(a) | _voxels(b)]
        if places:
            assert (around.topleft[axis], around.bottomright[axis]) == (
                min(places),
                max(places) + 1,
            )
    assert a.volume == len(_voxels(a))
    assert a.is_empty == (not _voxels(a))


def test_boxes_of_different_mags():
    a, b = BoundingBox((0, 0, 0), (1, 1, 1)), BoundingBox((0, 0, 0), (1, 1, 1), MAG)
    assert a != b
    for verb in (a.contains, a.intersection, a.union):
        with pytest.raises(
            ValueError, match=r"boxes must be of the same mag, got .* in mag 1 and .* in mag 2-2-1"
        ):
            verb(b)


@given(boxes())
def test_records(box):
    assert BoundingBox.from_corners(box.topleft, box.bottomright, box.mag) == box
    assert eval(repr(box), {"BoundingBox": BoundingBox, "Mag": Mag}) == box
    assert pickle.loads(pickle.dumps(box)) == box
    assert len({box, BoundingBox(list(box.topleft), list(box.size), box.mag)}) == 1


def test_text():
    assert str(BoundingBox((1, 2, 3), (4, 5, 6), MAG)) == "(1, 2, 3) + (4, 5, 6) in mag 2-2-1"
