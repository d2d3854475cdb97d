"""The JSON files of Zarr arrays and groups, versions 3 and 2, as they are written here. Needs no zarr."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from wkwdask.store import files
from wkwdask.store.locks import read_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


FILE_NAME = "zarr.json"
VIEW_MARK = "wkwdask_view"
"""An attribute of each ``zarr.json`` that was put beside WKW files."""


def is_view(path: str, mark: str = VIEW_MARK) -> bool:
    """Tell whether a ``zarr.json`` was made by :func:`wkwdask.write_zarr_view`, or is marked as made by somebody else."""
    attributes = (read_object(path) or {}).get("attributes")
    return isinstance(attributes, dict) and mark in attributes


def array_record(folder: str) -> str | None:
    """Find the file that describes the array of a folder, None where there is none."""
    if files.isfile(f"{folder}/.zarray"):
        return f"{folder}/.zarray"
    path = f"{folder}/{FILE_NAME}"
    document = read_object(path)
    return path if document is not None and document.get("node_type") == "array" else None


def axis_letters(num_channels: int) -> str:
    """Give a letter for each axis of an array as it is stored here; one channel has no axis."""
    return "czyx" if num_channels > 1 else "zyx"


def zarr_shape(num_channels: int, shape: Sequence[int]) -> list[int]:
    """Turn a shape along x, y, z into that of an array."""
    return [*([num_channels] if num_channels > 1 else []), *(int(n) for n in reversed(shape))]


def group_document(attributes: dict[str, Any]) -> dict[str, Any]:
    """Write the ``zarr.json`` of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def array_document(
    shape: Sequence[int], num_channels: int, dtype: np.dtype[Any], chunk_shape: Sequence[int], codecs: list[dict[str, Any]], attributes: dict[str, Any]
) -> dict[str, Any]:
    """Write the ``zarr.json`` of an array as it is stored here."""
    document = generic_array_document(zarr_shape(num_channels, shape), dtype, zarr_shape(num_channels, chunk_shape), codecs, attributes)
    return {**document, "dimension_names": list(axis_letters(num_channels)), "storage_transformers": []}


def generic_array_document(
    shape: Sequence[int], dtype: np.dtype[Any], chunk_shape: Sequence[int], codecs: list[dict[str, Any]], attributes: dict[str, Any], naming: str = "default"
) -> dict[str, Any]:
    """Write the ``zarr.json`` of an array with any axes."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": naming, "configuration": {"separator": "/"}},
        "fill_value": 0.0 if dtype.kind == "f" else 0,
        "codecs": codecs,
        "attributes": attributes,
    }


def raw_codecs(dtype: np.dtype[Any]) -> list[dict[str, Any]]:
    """Say that chunks are plain numbers, little-endian."""
    return [{"name": "bytes", "configuration": {"endian": "little"}} if dtype.itemsize > 1 else {"name": "bytes"}]


def format_document(document: dict[str, Any]) -> str:
    """Write a document."""
    return json.dumps(document, indent=2)
