"""Voxel types and their names in each format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class VoxelType:
    """Scalar type and its names."""

    wkw_code: int
    """``voxelType`` in a WKW header."""
    dtype: np.dtype[Any]
    """Little-endian numpy type."""
    element_class: str
    """``elementClass`` of one channel in ``datasource-properties.json``."""
    precomputed_name: str | None
    """``data_type`` of a Neuroglancer precomputed volume, None if that format lacks the type."""


# webknossos-wrap README, "Header fields", lists codes 1-6. All its implementations and WEBKNOSSOS
# also use 7-10.
VOXEL_TYPES = tuple(
    VoxelType(code, np.dtype(name).newbyteorder("<"), element_class, precomputed_name)
    for code, name, element_class, precomputed_name in (
        (1, "uint8", "uint8", "uint8"),
        (2, "uint16", "uint16", "uint16"),
        (3, "uint32", "uint32", "uint32"),
        (4, "uint64", "uint64", "uint64"),
        (5, "float32", "float", "float32"),
        (6, "float64", "double", None),
        (7, "int8", "int8", "int8"),
        (8, "int16", "int16", "int16"),
        (9, "int32", "int32", "int32"),
        (10, "int64", "int64", None),
    )
)

_BY_CODE = {voxel_type.wkw_code: voxel_type for voxel_type in VOXEL_TYPES}
_BY_DTYPE = {voxel_type.dtype: voxel_type for voxel_type in VOXEL_TYPES}
_BY_PRECOMPUTED_NAME = {
    voxel_type.precomputed_name: voxel_type
    for voxel_type in VOXEL_TYPES
    if voxel_type.precomputed_name
}

_CASTS = {
    "bool": "uint8",
    "float16": "float32",
    "float128": "float64",
}


def common_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a type that all formats and compiled loops support: native byte order, bool becomes
    uint8, float16 becomes float32.

    Examples
    --------
    >>> common_dtype("bool").name, common_dtype(">f2").name, common_dtype(">u2").name
    ('uint8', 'float32', 'uint16')
    """
    native = np.dtype(dtype).newbyteorder("=")
    return np.dtype(_CASTS[native.name]) if native.name in ("bool", "float16") else native


def by_wkw_code(code: int) -> VoxelType | None:
    """Return the voxel type of a code in a WKW header, None if the code is invalid."""
    return _BY_CODE.get(code)


def by_precomputed_name(name: str) -> VoxelType | None:
    """Return the voxel type of the ``data_type`` of a Neuroglancer precomputed volume (any case),
    None if it is invalid.

    Examples
    --------
    >>> by_precomputed_name("UINT8").wkw_code
    1
    """
    return _BY_PRECOMPUTED_NAME.get(name.lower())


def by_dtype(dtype: Any) -> VoxelType:
    """Return the voxel type of a numpy type of any byte order; raises TypeError if WKW cannot store
    it.

    Examples
    --------
    >>> by_dtype(">u2").wkw_code
    2
    """
    numpy_type = np.dtype(dtype)
    voxel_type = _BY_DTYPE.get(numpy_type.newbyteorder("<"))
    if voxel_type is None:
        hint = _CASTS.get(numpy_type.name)
        names = ", ".join(each.dtype.name for each in VOXEL_TYPES)
        advice = f'cast with .astype("{hint}")' if hint else "cast to one of these"
        if numpy_type.kind == "c":
            advice = "store real and imaginary parts as two channels, or the magnitude (numpy.abs)"
        raise TypeError(f"WKW has no voxel type for {numpy_type.name}; it stores {names}: {advice}")
    return voxel_type


def parse_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the numpy type that a user names; raises TypeError for anything else.

    Examples
    --------
    >>> parse_dtype("uint8")
    dtype('uint8')
    """
    try:
        chosen: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        raise TypeError(f'dtype must be a type of numpy, such as "uint8", got {dtype!r}') from None
    return chosen


def guess_category(dtype: np.dtype[Any], num_channels: int) -> str:
    """Return the likely category of an image: integers of at least 32 bits in one channel are a
    segmentation.

    Examples
    --------
    >>> guess_category(np.dtype("uint32"), 1), guess_category(np.dtype("uint16"), 1)
    ('segmentation', 'color')
    """
    return (
        "segmentation"
        if dtype.kind in "iu" and dtype.itemsize >= 4 and num_channels == 1
        else "color"
    )


def element_class(dtype: Any, num_channels: int) -> str:
    """Return the element class of a layer: it states the bits of all channels, so three channels of
    uint8 are ``uint24``.

    Examples
    --------
    >>> element_class("uint8", 3), element_class("float32", 1)
    ('uint24', 'float')
    """
    voxel_type = by_dtype(dtype)
    if num_channels == 1:
        return voxel_type.element_class
    stem = voxel_type.dtype.name.rstrip("0123456789")
    return f"{stem}{voxel_type.dtype.itemsize * 8 * num_channels}"
