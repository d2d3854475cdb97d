"""The table of voxel types, and what happens to numpy types that are not in it."""

from __future__ import annotations

import numpy as np
import pytest

from wkwdask.model.voxel_type import (
    VOXEL_TYPES,
    by_dtype,
    by_precomputed_name,
    by_wkw_code,
    element_class,
)

TABLE = [
    # code, dtype, elementClass of one channel, of three channels
    (1, "uint8", "uint8", "uint24"),
    (2, "uint16", "uint16", "uint48"),
    (3, "uint32", "uint32", "uint96"),
    (4, "uint64", "uint64", "uint192"),
    (5, "float32", "float", "float96"),
    (6, "float64", "double", "float192"),
    (7, "int8", "int8", "int24"),
    (8, "int16", "int16", "int48"),
    (9, "int32", "int32", "int96"),
    (10, "int64", "int64", "int192"),
]


@pytest.mark.parametrize(("code", "dtype", "one_channel", "three_channels"), TABLE)
def test_names(code, dtype, one_channel, three_channels):
    voxel_type = by_wkw_code(code)
    assert voxel_type.dtype == np.dtype(dtype).newbyteorder("<")
    assert (voxel_type.wkw_code, voxel_type.element_class) == (code, one_channel)
    assert by_dtype(dtype) is voxel_type
    assert by_dtype(np.dtype(dtype).newbyteorder(">")) is voxel_type
    assert element_class(dtype, 1) == one_channel
    assert element_class(dtype, 3) == three_channels


def test_table_is_complete():
    assert [voxel_type.wkw_code for voxel_type in VOXEL_TYPES] == [row[0] for row in TABLE]


def test_names_in_precomputed_volumes():
    """All but 64-bit integers with a sign and long floats; letters of either case are read."""
    for voxel_type in VOXEL_TYPES:
        name = voxel_type.dtype.name
        expected = None if name in ("int64", "float64") else voxel_type
        assert by_precomputed_name(name) is by_precomputed_name(name.upper()) is expected
    assert by_precomputed_name("bool") is None


def test_five_channels_of_uint16():
    assert element_class("uint16", 5) == "uint80"


@pytest.mark.parametrize("code", [0, 11, 255, -1])
def test_unknown_code(code):
    assert by_wkw_code(code) is None


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("bool", r'no voxel type for bool; it stores uint8, .*: cast with .astype\("uint8"\)'),
        ("float16", r'no voxel type for float16; .*: cast with .astype\("float32"\)'),
        ("complex64", "no voxel type for complex64; .*: store real and imaginary parts as two"),
        ("datetime64[s]", r"no voxel type for datetime64\[s\]; .*: cast to one of these"),
        ("U3", "no voxel type for str96; .*: cast to one of these"),
        ("O", "no voxel type for object; .*: cast to one of these"),
    ],
)
def test_types_that_are_not_stored(dtype, message):
    with pytest.raises(TypeError, match=message):
        by_dtype(dtype)
