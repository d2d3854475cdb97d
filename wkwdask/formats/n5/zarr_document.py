"""The ``zarr.json`` that says of an N5 dataset what its ``attributes.json`` says, so that zarr-python reads and writes the same files. Opens nothing.

Two forms: the registered codec ``n5_default``, which knows blocks that are cut off; and the chain transpose, bytes, compressor and ``offset``, for blocks that
are all whole. The axes of the Zarr array are those of N5, x first: ``transpose`` puts the fastest axis first in the bytes.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from wkwdask.errors import UnsupportedError
from wkwdask.formats.n5.attributes import OWN
from wkwdask.formats.n5.block import format_header
from wkwdask.formats.n5.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wkwdask.formats.n5.attributes import N5Dataset

_BLOSC_NAMES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


def zarr_codec(compression: Compression, itemsize: int, source: str) -> dict[str, Any] | None:
    """Say how Zarr v3 calls the codec of the same bytes."""
    kind = compression.stream
    if kind == "raw":
        return None
    if kind == "lz4":
        raise UnsupportedError(f"{source}: Zarr has no codec for the lz4 of N5, which is the block stream of lz4-java; open it with wkwdask instead")
    level = _whole(compression.option("level"), -1)
    if kind == "gzip":
        return _codec("gzip", level=level if 0 <= level <= 9 else 6)
    if kind == "zlib":
        return _codec("numcodecs.zlib", level=level if 0 <= level <= 9 else 6)
    if kind == "bzip2":
        return _codec("numcodecs.bz2", level=_whole(compression.option("blockSize"), 9))
    if kind == "xz":
        return _codec("numcodecs.lzma", format=1, check=-1, preset=_whole(compression.option("preset"), 6), filters=None)
    if kind == "zstd":
        return _codec("zstd", level=max(level, 0), checksum=False)
    shuffle = _whole(compression.option("shuffle"), 1)
    shuffle = shuffle if 0 <= shuffle <= 2 else 2 if itemsize == 1 else 1
    name = compression.option("cname")
    return _codec(
        "blosc", typesize=itemsize, cname=name if name in _BLOSC_NAMES else "blosclz", clevel=_whole(compression.option("clevel"), 5),
        shuffle=_BLOSC_SHUFFLES[shuffle], blocksize=_whole(compression.option("blocksize"), 0),
    )  # fmt: skip


def _codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def of_zarr_codec(codec: dict[str, Any]) -> Compression | None:
    """Say how N5 calls a Zarr v3 codec; None for one that N5 does not have.

    Examples
    --------
    >>> of_zarr_codec({"name": "gzip", "configuration": {"level": 5}}).to_json()
    {'type': 'gzip', 'level': 5, 'useZlib': False}
    """
    name = str(codec.get("name")).removeprefix("numcodecs.")
    given = codec.get("configuration") or {}
    if name in ("gzip", "zlib"):
        return Compression("gzip", (("level", given.get("level", 6)), ("useZlib", name == "zlib")))
    if name == "bz2":
        return Compression("bzip2", (("blockSize", given.get("level", 9)),))
    if name == "lzma":
        is_xz = given.get("format", 1) == 1 and not given.get("filters")
        return Compression("xz", (("preset", _whole(given.get("preset"), 6)),)) if is_xz else None
    if name == "zstd":
        return Compression("zstd", (("level", given.get("level", 0)),))
    if name == "blosc":
        shuffle = given.get("shuffle", "shuffle")
        number = _BLOSC_SHUFFLES.index(shuffle) if shuffle in _BLOSC_SHUFFLES else _whole(shuffle, 1)
        options = {"cname": given.get("cname", "blosclz"), "clevel": given.get("clevel", 5), "shuffle": number, "blocksize": given.get("blocksize", 0)}
        return Compression("blosc", tuple(options.items()))
    return None


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
