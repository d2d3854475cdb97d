"""Mags as people write them, and the steps between them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from support.strategies import mags

from wkwdask.geometry.mag import Mag, real_number, vec3, whole_number


@pytest.mark.parametrize(
    ("value", "expected", "name"),
    [
        (1, (1, 1, 1), "1"),
        (4, (4, 4, 4), "4"),
        ("4", (4, 4, 4), "4"),
        ("2-2-1", (2, 2, 1), "2-2-1"),
        # the long name of an isotropic mag is read, the short one is written
        ("1-1-1", (1, 1, 1), "1"),
        ([2, 2, 1], (2, 2, 1), "2-2-1"),
        ((32, 32, 8), (32, 32, 8), "32-32-8"),
        (np.array([4, 2, 1]), (4, 2, 1), "4-2-1"),
        (Mag(2, 1, 1), (2, 1, 1), "2-1-1"),
        ([2.0, 2.0, 1.0], (2, 2, 1), "2-2-1"),
    ],
)
def test_parse(value, expected, name):
    mag = Mag.parse(value)
    assert mag.factors == expected
    assert all(type(factor) is int for factor in mag.factors)
    assert mag.name == str(mag) == name
    assert mag.long_name == "{}-{}-{}".format(*expected)
    assert mag.maximum == max(expected)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "2-2",
        "2-2-1-1",
        "2x2x1",
        "a",
        "-2",
        "2-2-",
        " 2",
        "2.0",
        [2, 2],
        [2, 2, 1, 1],
        [1.5, 2, 2],
        (),
        {},
    ],
)
def test_no_mag(value):
    with pytest.raises(
        ValueError, match=r'a mag looks like "2" or "2-2-1", got|a mag must be three whole numbers'
    ):
        Mag.parse(value)


@pytest.mark.parametrize("value", [0, 3, -2, "0", "6", "2-3-1", [2, 2, 0], [2, -2, 2], [12, 4, 4]])
def test_no_powers_of_two(value):
    with pytest.raises(ValueError, match="the factors of a mag must be powers of two, got"):
        Mag.parse(value)


@given(mags())
def test_names_parse_back(mag):
    assert Mag.parse(mag.name) == Mag.parse(mag.long_name) == Mag.parse(list(mag.factors)) == mag
    assert eval(repr(mag), {"Mag": Mag}) == mag
    assert pickle.loads(pickle.dumps(mag)) == mag


@given(mags(), mags())
def test_steps(fine, coarse):
    if all(b >= a for a, b in zip(fine.factors, coarse.factors, strict=True)):
        step = fine.step_to(coarse)
        assert Mag(*(a * f for a, f in zip(fine.factors, step, strict=True))) == coarse
    else:
        with pytest.raises(
            ValueError, match=f"mag {coarse} is not coarser than mag {fine} on every axis"
        ):
            fine.step_to(coarse)


def test_order_and_hash():
    assert sorted([Mag(2, 2, 1), Mag(1, 1, 1), Mag(2, 1, 1)]) == [
        Mag(1, 1, 1),
        Mag(2, 1, 1),
        Mag(2, 2, 1),
    ]
    assert len({Mag(2, 2, 1), Mag.parse("2-2-1"), Mag(2, 2, 2)}) == 2


@pytest.mark.parametrize(
    "values",
    [[1, 2, 3], (1.0, 2.0, 3.0), np.array([1, 2, 3], np.uint8), range(1, 4), iter([1, 2, 3])],
)
def test_vec3(values):
    found = vec3(values)
    assert found == (1, 2, 3)
    assert all(type(value) is int for value in found)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2],
        [1, 2, 3, 4],
        [0.5, 1, 1],
        [float("nan"), 1, 1],
        [float("inf"), 1, 1],
        "abc",
        "123",
        5,
    ],
)
def test_no_vec3(values):
    with pytest.raises(
        ValueError, match=r"corner must be three whole numbers|invalid literal|cannot convert"
    ):
        vec3(values, "corner")


@pytest.mark.parametrize("value", [3, 3.0, np.uint8(3), np.float32(3), np.int64(3)])
def test_whole_number(value):
    found = whole_number(value, "size", 3)
    assert (found, type(found)) == (3, int)
    with pytest.raises(ValueError, match="size must be at least 4, got 3"):
        whole_number(value, "size", 4)
    assert real_number(value, "size") is value


@pytest.mark.parametrize("value", ["3", 3.5, float("nan"), float("inf"), None, {}, (3,), [], b"3"])
def test_no_whole_number(value):
    with pytest.raises(TypeError, match="size must be a whole number, got "):
        whole_number(value, "size", 1)


@pytest.mark.parametrize("value", ["3", None, {}, (3,), 3j])
def test_no_number(value):
    with pytest.raises(TypeError, match="size must be a number, got "):
        real_number(value, "size")
