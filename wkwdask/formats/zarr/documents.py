"""The JSON files of Zarr arrays and groups, versions 3 and 2, as they are written here. Needs no zarr."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from wkwdask.store import files
from wkwdask.store.locks import read_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


_RECORDS = ("zarr.json", ".zarray", ".zattrs")
_FIRST = re.compile(r"c|\d+", re.ASCII)
# our records and temporary files, what NFS keeps of files that were removed while open, and what desktops strew
_LEFT_BY_SOFTWARE = re.compile(r"\.wkwdask.*|\..*\.wkwdask-tmp|\.nfs.*|\.DS_Store|\._.*|Thumbs\.db")


def is_array(folder: str) -> bool:
    """Tell whether a folder is a Zarr array and nothing else, so that it can be replaced."""
    return array_record(folder) is not None and not array_stray(folder)


def array_record(folder: str) -> str | None:
    """Find the file that describes the array of a folder, None where there is none."""
    if files.isfile(f"{folder}/.zarray"):
        return f"{folder}/.zarray"
    path = f"{folder}/zarr.json"
    document = read_object(path)
    return path if document is not None and document.get("node_type") == "array" else None


def array_stray(folder: str) -> str:
    """Name something in a folder that is no part of an array, an empty text where there is nothing."""
    with files.scandir(folder) as entries:
        for entry in entries:
            is_ours = entry.name in _RECORDS or _LEFT_BY_SOFTWARE.fullmatch(entry.name) or _FIRST.fullmatch(entry.name)
            if not is_ours or entry.is_symlink():
                return entry.path
    return ""


MARK = "wkwdask_view"
"""Its attribute."""


def is_view(path: str) -> bool:
    """Tell whether a ``zarr.json`` was made by :func:`wkwdask.write_zarr_view`."""
    attributes = (read_object(path) or {}).get("attributes")
    return isinstance(attributes, dict) and MARK in attributes


FILE_NAME = "zarr.json"


def letters_of(num_channels: int) -> str:
    """Give a letter for each axis of an array as it is stored here; one channel has no axis."""
    return "czyx" if num_channels > 1 else "zyx"


def outer_shape(num_channels: int, shape: Sequence[int]) -> list[int]:
    """Turn a shape along x, y, z into that of an array."""
    return [*([num_channels] if num_channels > 1 else []), *(int(n) for n in reversed(shape))]


def group_document(attributes: dict[str, Any]) -> dict[str, Any]:
    """Write the ``zarr.json`` of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def array_document(
    shape: Sequence[int], num_channels: int, dtype: np.dtype[Any], chunk_shape: Sequence[int], codecs: list[dict[str, Any]], attributes: dict[str, Any]
) -> dict[str, Any]:
    """Write the ``zarr.json`` of an array."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": outer_shape(num_channels, shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer_shape(num_channels, chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0 if dtype.kind == "f" else 0,
        "codecs": codecs,
        "attributes": attributes,
        "dimension_names": list(letters_of(num_channels)),
        "storage_transformers": [],
    }


def wkw_codecs(block_len: int, compression: str) -> list[dict[str, Any]]:
    """Say that chunks are WKW files."""
    return [{"name": "wkw", "configuration": {"block_len": block_len, "compression": compression}}]


def raw_codecs(dtype: np.dtype[Any]) -> list[dict[str, Any]]:
    """Say that chunks are plain numbers, little-endian."""
    return [{"name": "bytes", "configuration": {"endian": "little"}} if dtype.itemsize > 1 else {"name": "bytes"}]


def format_document(document: dict[str, Any]) -> str:
    """Write a document."""
    return json.dumps(document, indent=2)
