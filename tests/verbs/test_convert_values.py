"""Values that get another type: exact fractions are the reference, and nothing wraps."""

from __future__ import annotations

from fractions import Fraction

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import DTYPE_NAMES

import wkwdask
from wkwdask.errors import BoundsError

INTEGERS = [name for name in DTYPE_NAMES if not name.startswith("float")]
SMALL = [name for name in INTEGERS if not name.endswith("64")]


def convert(folder, values, dtype, value_range=None):
    """Convert a row of values."""
    np.save(folder / "values.npy", values.reshape(1, 1, -1))
    with dask.config.set(scheduler="synchronous"):
        wkwdask.convert(
            folder / "values.npy",
            folder / "ds",
            layer="em",
            dtype=dtype,
            value_range=value_range,
            voxel_size=(4, 4, 4),
            existing="overwrite",
        )
    return wkwdask.read(folder / "ds", layer="em", mag=1)[0, :, 0, 0]


def scaled(value, low, high, limits):
    """By the book: clip, scale, round half to even."""
    clipped = min(max(Fraction(value), Fraction(low)), Fraction(high))
    return round(
        (clipped - Fraction(low))
        * (int(limits.max) - int(limits.min))
        / (Fraction(high) - Fraction(low))
    ) + int(limits.min)


@given(st.sampled_from(SMALL), st.sampled_from(["uint8", "int8", "uint16", "int16"]), st.data())
def test_scaled_integers(tmp_path_factory, source, target, data):
    limits, own = np.iinfo(target), np.iinfo(source)
    low = data.draw(st.integers(int(own.min), int(own.max) - 1))
    high = data.draw(st.integers(low + 1, int(own.max)))
    values = data.draw(st.lists(st.integers(int(own.min), int(own.max)), min_size=1, max_size=20))
    found = convert(
        tmp_path_factory.mktemp("scaled"), np.array(values, source), target, (low, high)
    )
    assert found.dtype == target
    for got, value in zip(found.tolist(), values, strict=True):
        assert got == scaled(value, low, high, limits)


@pytest.mark.parametrize(
    ("values", "source", "target", "value_range", "expected"),
    [
        # the range of the type itself: only cut off
        ([0, 1, 128, 65535], "uint16", "uint8", (0, 255), [0, 1, 128, 255]),
        ([0, 128, 129, 386, 65535], "uint16", "uint8", (0, 65535), [0, 0, 1, 2, 255]),
        ([0, 1, 3, 5], "uint8", "uint8", (0, 510), [0, 0, 2, 2]),  # halves go to the even neighbour
        ([-5.0, 0.5, np.nan, np.inf, -np.inf], "float32", "uint8", (0, 1), [0, 128, 0, 255, 0]),
        ([-1.0, 0.0, 1.0], "float64", "int16", (-1, 1), [-32768, 0, 32767]),
        ([0, 50, 100, 200], "uint8", "float32", (0, 100), [0.0, 0.5, 1.0, 1.0]),
        ([0.0, 1.0, 2.0], "float64", "uint64", (0, 1), [0, 2**64 - 1, 2**64 - 1]),
        ([0.0, 1.0], "float64", "int64", (0, 1), [-(2**63), 2**63 - 1]),
    ],
)
def test_known_values(tmp_path, values, source, target, value_range, expected):
    found = convert(tmp_path, np.array(values, source), target, value_range)
    assert found.tolist() == expected
    assert found.dtype == target


@given(st.sampled_from(DTYPE_NAMES), st.sampled_from(DTYPE_NAMES), st.integers(0, 1000))
def test_without_a_range_values_stay_or_it_is_an_error(tmp_path_factory, source, target, seed):
    rng = np.random.default_rng(seed)
    if source.startswith("float"):
        values = rng.choice([0.0, 1.0, -1.0, 300.0, 0.5, 1e10, 2.0**63, 2.0**64], 3).astype(source)
    else:
        limits = np.iinfo(source)
        values = rng.choice(
            np.array([limits.min, limits.max, 0, 1, 100, limits.max // 2 + 1], source), 3
        )
    try:
        found = convert(tmp_path_factory.mktemp("kept"), values, target)
    except BoundsError:
        if target.startswith("float"):
            assert any(int(value) != int(np.dtype(target).type(value)) for value in values.tolist())
        else:
            limits = np.iinfo(target)
            assert any(
                value != int(value) or not int(limits.min) <= int(value) <= int(limits.max)
                for value in values.tolist()
            )
    else:
        assert found.dtype == target
        if not (source == "float64" and target == "float32"):  # that one rounds, as ever
            assert [Fraction(value) for value in found.tolist()] == [
                Fraction(value) for value in values.tolist()
            ]


def test_a_volume(tmp_path):
    """Channels in another order, and an error that names the voxel."""
    array = np.random.default_rng(0).integers(0, 1000, (4, 5, 6, 7)).astype(np.uint16)  # c, z, y, x
    np.save(tmp_path / "a.npy", array)
    options = {
        "axes": "czyx",
        "offset": (10, 20, 30),
        "voxel_size": (4, 4, 4),
        "channels": (3, 1),
        "dtype": "uint8",
    }
    wkwdask.convert(
        tmp_path / "a.npy", tmp_path / "ds", layer="em", value_range=(0, 999), **options
    )
    expected = np.rint(array[[3, 1]].astype(float) * 255 / 999).transpose(0, 3, 2, 1)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "ds", ((10, 20, 30), (17, 26, 35)), layer="em"), expected
    )
    array[1, 4, 4, 3] = 1000
    array[array != 1000] %= 256
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(
        BoundsError,
        match=(
            r"a\.npy: voxel \(13, 24, 34\) of channel 1: 1000 does not fit into uint8; scale the "
            r"values"
        ),
    ):
        wkwdask.convert(tmp_path / "a.npy", tmp_path / "ds", layer="other", **options)


@pytest.mark.parametrize("prefix", ["precomputed", "n5"])
@pytest.mark.parametrize(
    ("dtype", "value_range"), [("int8", (0, 255)), ("uint8", (-100, 155)), ("int16", (5, 260))]
)
def test_missing_files_are_zeros_that_are_scaled_too(tmp_path, prefix, dtype, value_range):
    array = np.zeros((4096, 8, 8), np.int16)  # several regions
    array[3, 2, 1] = 77
    source = tmp_path / "ds" / "em" / "1"
    wkwdask.write(source, (0, 0, 0), array, block_len=8, file_len=2, voxel_size=(4, 4, 4))
    assert sum(path.name.startswith("x") for path in source.rglob("*.wkw")) == 1
    target = f"{prefix}://{tmp_path}/scaled"
    wkwdask.convert(
        source, target, dtype=dtype, value_range=value_range, chunk_shape=(8, 8, 8), verify=True
    )
    limits = np.iinfo(dtype)
    steps = (int(limits.max) - int(limits.min)) / 255
    expected = np.clip(array - value_range[0], 0, 255) * steps + limits.min
    np.testing.assert_array_equal(wkwdask.read(target)[0], expected)
