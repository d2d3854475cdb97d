"""Arrays with named axes: any order, and coordinates that place them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import xarray as xr

import wkwdask

SHAPE = {"c": 2, "x": 6, "y": 5, "z": 4}
OPTIONS = {"block_len": 4, "file_len": 2}


def data_array(dims="cxyz", **coords):
    shape = [SHAPE[dim] for dim in dims]
    values = np.arange(np.prod([SHAPE[dim] for dim in "cxyz"]), dtype=np.uint16).reshape(
        [SHAPE[dim] for dim in "cxyz"]
    )
    if "c" not in dims:
        values = values[0]
    whole = xr.DataArray(values, dims=[dim for dim in "cxyz" if dim in dims], coords=coords)
    assert list(whole.transpose(*dims).shape) == shape
    return whole.transpose(*dims), values


@pytest.mark.parametrize(
    "dims", ["".join(order) for order in itertools.permutations("cxyz")] + ["zyx", "xyz"]
)
@pytest.mark.parametrize("chunked", [False, True])
def test_axes_are_accepted_in_any_order(tmp_path, dims, chunked):
    array, values = data_array(dims)
    wkwdask.to_wkw(
        array.chunk(3) if chunked else array, tmp_path / "1", offset=(3, 0, 0), **OPTIONS
    )
    low, high = (3, 0, 0), (9, 5, 4)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "1", (low, high)),
        values if values.ndim == 4 else values[np.newaxis],
    )


NM = {"units": "nm"}


@pytest.mark.parametrize(
    ("coords", "offset"),
    [
        ({}, (0, 0, 0)),
        ({"x": np.arange(7, 13)}, (7, 0, 0)),
        # centers
        (
            {
                "x": ("x", (np.arange(6) + 7.5) * 11.24, NM),
                "z": ("z", (np.arange(4) + 2.5) * 28, NM),
            },
            (7, 0, 2),
        ),
        ({"y": ("y", (np.arange(5) + 3) * 0.004, {"units": "um"})}, (0, 3, 0)),  # corners
        ({"y": ("y", (np.arange(5) + 100000.5) * 4.03, NM)}, (0, 100000, 0)),
        ({"x": ("x", (np.arange(6) + 600001.5) * 4, NM)}, (600001, 0, 0)),
        ({"x": np.arange(6) + 2000001.5}, (2000001, 0, 0)),
    ],
)
def test_coordinates_place_an_array(tmp_path, coords, offset):
    array, values = data_array("xyz", **coords)
    wkwdask.to_wkw(array, tmp_path / "1", **OPTIONS)
    high = [a + n for a, n in zip(offset, values.shape, strict=True)]
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "1", (offset, high))[0], values)


def test_an_explicit_offset_overrides_coordinates(tmp_path):
    array, values = data_array("xyz", x=np.arange(7, 13))
    wkwdask.to_wkw(array, tmp_path / "1", offset=(0, 0, 0), **OPTIONS)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "1", ((0, 0, 0), values.shape))[0], values
    )


@pytest.mark.parametrize(
    "x", [("x", np.arange(6) * 2.0, {"units": "pixel"}), np.arange(6)[::-1], list("abcdef")]
)
def test_coordinates_are_ignored_with_an_explicit_offset(tmp_path, x):
    array, values = data_array("xyz", x=x)
    wkwdask.create(tmp_path / "2", ((0, 0, 0), (16, 16, 16)), np.uint16, **OPTIONS)
    wkwdask.to_wkw(array, tmp_path / "1", offset=(1, 2, 3), **OPTIONS)
    wkwdask.to_wkw(array, tmp_path / "2", region=((1, 2, 3), (7, 7, 7)))
    for name in ("1", "2"):
        np.testing.assert_array_equal(
            wkwdask.read(tmp_path / name, ((1, 2, 3), (7, 7, 7)))[0], values
        )


def test_a_region_is_written_from_a_data_array(tmp_path):
    array, values = data_array("zyxc")
    wkwdask.create(tmp_path / "1", ((0, 0, 0), (16, 16, 16)), np.uint16, num_channels=2, **OPTIONS)
    wkwdask.to_wkw(array, tmp_path / "1", region=((1, 2, 3), (7, 7, 7)))
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "1", ((1, 2, 3), (7, 7, 7))), values)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda array: array.rename(x="width"), "dimensions must be x, y, z"),
        (lambda array: array.expand_dims("t"), "dimensions must be x, y, z"),
        (
            lambda array: array.assign_coords(x=[0, 1, 2, 3, 4, 6]),
            "coordinate x: must rise in even steps of 1 voxel",
        ),
        (lambda array: array.assign_coords(x=np.arange(6)[::-1]), "coordinate x: must rise"),
        (lambda array: array.assign_coords(x=np.arange(6) + 0.25), "coordinate x: starts at 0.25"),
        (
            lambda array: array.assign_coords(x=("x", np.arange(6.0), {"units": "s"})),
            "coordinate x: units must be a unit of length",
        ),
        (
            lambda array: array.assign_coords(x=("x", np.arange(6) * 2.0, NM)).isel(x=[2]),
            "one value in nm does not determine",
        ),
        (lambda array: array.assign_coords(x=list("abcdef")), "coordinate x: must be numeric"),
        (
            lambda array: array.assign_coords(x=np.arange(6).astype("datetime64[D]")),
            "coordinate x: must be numeric",
        ),
        (lambda array: array.assign_coords(x=np.arange(6) - 3), "offset must not be negative"),
        (
            lambda array: array.to_dataset(name="a"),
            "must be a dask or numpy array or an xarray DataArray",
        ),
    ],
)
def test_coordinates_that_place_nothing_are_refused(tmp_path, change, match):
    with pytest.raises((TypeError, ValueError), match=match):
        wkwdask.to_wkw(change(data_array("xyz")[0]), tmp_path / "1", **OPTIONS)
    assert not (tmp_path / "1").exists()
