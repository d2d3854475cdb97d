"""JSON documents of the Zarr arrays and groups that wkwdask writes. Does not import zarr."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from wkwdask.store.documents import read_object
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from wkwdask.model.json_text import JsonObject


FILE_NAME = "zarr.json"
INNER_BOX = "inner_box_vx"
"""Attribute of an array that begins before the bounding box: x, y, z, width, height, depth [voxels,
counted from the first one of the array]."""


def array_record(folder: str) -> str | None:
    """Return the path of the file that describes the array in a folder, or None."""
    store = store_at(folder)
    if store.is_file(".zarray"):
        return store.path_of(".zarray")
    document = read_object(store, FILE_NAME) or {}
    return store.path_of(FILE_NAME) if document.get("node_type") == "array" else None


def new_axes(num_channels: int) -> str:
    """Return the axes of a new array, one letter each; a single channel has no axis."""
    return "czyx" if num_channels > 1 else "zyx"


def zarr_shape(axes: str, num_channels: int, shape: Sequence[int]) -> list[int]:
    """Return the shape of a new array for a shape along x, y, z; axes without a letter have length
    1.

    Examples
    --------
    >>> zarr_shape("-czyx", 3, (30, 20, 10))
    [1, 3, 10, 20, 30]
    """
    lengths = dict(zip("cxyz", (num_channels, *shape), strict=True))
    return [int(lengths.get(letter, 1)) for letter in axes]


def group_document(attributes: JsonObject) -> JsonObject:
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def array_document(
    shape: Sequence[int],
    num_channels: int,
    dtype: np.dtype[Any],
    chunk_shape: Sequence[int],
    codecs: list[JsonObject],
    attributes: JsonObject,
    axes: str | None = None,
) -> JsonObject:
    axes = axes or new_axes(num_channels)
    lengths, chunk = (zarr_shape(axes, num_channels, each) for each in (shape, chunk_shape))
    names = [None if letter == "-" else letter for letter in axes]
    return {
        **generic_array_document(lengths, dtype, chunk, codecs, attributes),
        "dimension_names": names,
        "storage_transformers": [],
    }


def generic_array_document(
    shape: Sequence[int],
    dtype: np.dtype[Any],
    chunk_shape: Sequence[int],
    codecs: list[JsonObject],
    attributes: JsonObject,
    naming: str = "default",
) -> JsonObject:
    """Return the ``zarr.json`` of an array with any axes."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": naming, "configuration": {"separator": "/"}},
        "fill_value": dtype.type(0).item(),
        "codecs": codecs,
        "attributes": attributes,
    }


def raw_codecs(dtype: np.dtype[Any]) -> list[JsonObject]:
    """Return the codecs of uncompressed little-endian chunks; values of one byte have no ``endian``
    (Zarr v3, codec ``bytes``)."""
    return [
        {"name": "bytes", "configuration": {"endian": "little"}}
        if dtype.itemsize > 1
        else {"name": "bytes"}
    ]


def transpose_codec(order: Sequence[int]) -> JsonObject:
    return {"name": "transpose", "configuration": {"order": list(order)}}


def sharding_codec(
    chunk_shape: Sequence[int], codecs: list[JsonObject], *, is_checked: bool = True
) -> JsonObject:
    """Return the codec of shards whose index is at the end, with a checksum if it is checked."""
    index = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunk_shape),
            "codecs": codecs,
            "index_codecs": [*index, {"name": "crc32c"}] if is_checked else index,
            "index_location": "end",
        },
    }


def format_document(document: JsonObject) -> str:
    return json.dumps(document, indent=2)
