"""The ``zarr.json`` that says of an N5 dataset what its ``attributes.json`` says, so that zarr-python reads and writes the same files. Opens nothing.

Two forms: the registered codec ``n5_default``, which knows blocks that are cut off; and the chain transpose, bytes, compressor and ``offset``, for blocks that
are all whole. The axes of the Zarr array are those of N5, x first: ``transpose`` puts the fastest axis first in the bytes.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from wkwdask.formats.n5.attributes import OWN
from wkwdask.formats.n5.block import format_header
from wkwdask.formats.n5.zarr_codecs import zarr_codec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wkwdask.formats.n5.attributes import N5Dataset

FILE_NAME = "zarr.json"
FORMS = ("n5_default", "offset")
CODEC = "n5_default"
MARK = "_n5"
"""The attribute that holds how N5 says that the dataset is stored; a ``zarr.json`` with it was made of an ``attributes.json``."""


def array_document(dataset: N5Dataset, source: str, form: str = CODEC, axes: Sequence[str] | None = None, mode: int = 0) -> dict[str, Any]:
    """Describe a dataset as a Zarr v3 array."""
    compressor = zarr_codec(dataset.compression, dataset.dtype.itemsize, source)
    inner = inner_codecs(len(dataset.dimensions), compressor)
    if form == CODEC:
        codecs = [{"name": CODEC, "configuration": {"codecs": inner}}]
    else:
        header = format_header(dataset.block_size, mode)
        codecs = [*inner, {"name": "offset", "configuration": {"offset": len(header), "prefix": base64.b64encode(header).decode()}}]
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(dataset.dimensions),
        "data_type": dataset.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(dataset.block_size)}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}},
        "fill_value": 0.0 if dataset.dtype.kind == "f" else 0,
        "codecs": codecs,
        "attributes": _attributes(dataset.document),
    }
    if axes is not None:
        document["dimension_names"] = list(axes)
    return document


def group_document(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a group as a Zarr v3 group; one without ``attributes.json`` has no attributes."""
    return {"zarr_format": 3, "node_type": "group", "attributes": _attributes(attributes)}


def is_made_here(document: Mapping[str, Any]) -> bool:
    """Tell whether a ``zarr.json`` was made of an ``attributes.json``."""
    attributes = document.get("attributes")
    return isinstance(attributes, dict) and MARK in attributes


def _attributes(document: Mapping[str, Any]) -> dict[str, Any]:
    """Split what N5 says into attributes of the user, and how a dataset is stored."""
    users = {name: value for name, value in document.items() if name not in OWN and name != MARK}
    return {**users, MARK: {name: document[name] for name in OWN if name in document}}


def inner_codecs(num_axes: int, compressor: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """List the Zarr codecs of what follows the header of a block."""
    turned = {"name": "transpose", "configuration": {"order": list(range(num_axes))[::-1]}}
    return [turned, {"name": "bytes", "configuration": {"endian": "big"}}, *([] if compressor is None else [dict(compressor)])]
