"""One Zarr array of version 2 or 3 as a stored array: its document becomes a chunk grid, file
names, a layout and a codec.

An array with codecs that are not implemented here is read by zarr-python, one box at a time.
"""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass, replace
from operator import floordiv, mod
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, FormatError, MissingError, UnsupportedError
from wkwdask.formats.identity import JsonIdentity, canonical_json, read_record_state
from wkwdask.formats.zarr.codec import ZarrChunks, ZarrCodec, parse_stages
from wkwdask.formats.zarr.extensions import check_extensions
from wkwdask.formats.zarr.shards import ZarrShards
from wkwdask.kernels.arrays import copy_into, is_zero
from wkwdask.model.chunk_grid import ChunkGrid, grouped_unit, pick_cxyz, to_cxyz
from wkwdask.model.extras import import_extra
from wkwdask.model.layout import ShardLayout, SingleFiles
from wkwdask.model.naming import GridNaming
from wkwdask.model.stored_array import BoxLayout, StoredArray
from wkwdask.store.lru import LruCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wkwdask.array_types import AnyArray, IntArray
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.layout import ChunkSource, StoredChunk
    from wkwdask.model.store import Store


# may change without changing how the array is stored
_IGNORED_KEYS = ("attributes", "dimension_names", "consolidated_metadata")
_DTYPES = {
    "bool": "|b1",
    **{
        f"{kind}{8 * n}": f"<{letter}{n}"
        for kind, letter in (("int", "i"), ("uint", "u"), ("float", "f"))
        for n in (1, 2, 4, 8)
    },
}

_MAX_CHUNK_NBYTES = 1 << 40  # a chunk is decoded in memory

_open_arrays: LruCache[Any] = LruCache(16)


@dataclass(frozen=True, slots=True)
class ZarrPythonCodec(ZarrChunks):
    """Codec of chunks that only zarr-python can decode, as a part of a box."""

    is_opaque = True

    @property
    def compression(self) -> tuple[str, int | None]:
        return "", None

    def largest_nbytes(self, shape: Sequence[int]) -> int:
        del shape
        return sys.maxsize

    def decode(self, data: bytes, shape: Vec4, source: str, offset: int = 0) -> AnyArray:
        raise UnsupportedError(f"{source}: only zarr-python can decode its chunks")

    def encode(self, voxels: AnyArray, source: str) -> bytes:
        raise UnsupportedError(f"{source}: only zarr-python can encode its chunks")

    def check_packages(self, source: str) -> None:
        raise UnsupportedError(f"{source}: only zarr-python can encode its chunks")


@dataclass(frozen=True, slots=True)
class ZarrPythonReader(ShardLayout, BoxLayout):
    """Reader of boxes for arrays whose chunks only zarr-python can decode."""

    axes: str
    positions: tuple[int, ...]
    """Index along each axis named ``-``."""
    is_sharded: bool
    """Whether a file contains many chunks."""

    def chunks_at(self, array: ChunkSource, cells: IntArray) -> Iterator[StoredChunk]:
        raise UnsupportedError(f"{array.store.url}: only zarr-python can find its chunks")

    def read_box(self, array: StoredArray, out: AnyArray, low: Vec4, *, fill_zeros: bool) -> int:
        # zarr-python reads an absent chunk as the fill value, even if the whole folder was removed
        # or unmounted
        array.identity.check(has_absent=True)
        named = {
            letter: slice(a, a + n) for letter, a, n in zip("cxyz", low, out.shape, strict=True)
        }
        others = (slice(n, n + 1) for n in self.positions)
        part = tuple(named[letter] if letter in named else next(others) for letter in self.axes)
        try:
            values = np.asarray(_open_cached(array)[part])
        except FileNotFoundError:
            raise MissingError(f"{array.name}: was removed while it was read") from None
        except MemoryError:
            raise UnsupportedError(
                f"{array.name}: {out.shape} voxels in chunks of {array.grid.chunk} do not fit into "
                "memory"
            ) from None
        except (ModuleNotFoundError, FormatError, UnsupportedError, OSError):
            raise
        except Exception as error:
            if type(error).__module__.startswith("obstore"):
                raise OSError(f"{array.name}: cannot be read: {error}") from None
            raise CorruptError(
                f"{array.name}: {low[1:]} + {out.shape[1:]} cannot be read: "
                f"{error or type(error).__name__}"
            ) from error
        voxels = to_cxyz(values, self.axes)
        if is_zero(voxels):
            if fill_zeros:
                out[...] = 0
            return 0
        copy_into(voxels.astype(out.dtype, order="K", copy=False), out)
        return 1


def _open_cached(array: StoredArray) -> Any:
    """Return the array opened by zarr-python, from a small cache."""
    # a forked process must not share zarr's event loop
    key = (os.getpid(), array.store.url, array.identity.token)
    opened = _open_arrays.get(key)
    if opened is None:
        opened = open_array(array.store)
        _open_arrays.put(key, opened)
    return opened


def open_array(store: Store) -> Any:
    """Open an array for reading by zarr-python, with compressors whose output is bounded by the
    size of a chunk."""
    zarr = import_extra("zarr", store.url, "zarr")
    from wkwdask.formats.zarr.library_store import library_store

    array = zarr.open_array(library_store(store), mode="r")
    from wkwdask.formats.zarr.codecs.bounded import bound_decoders

    return bound_decoders(array)


_Storage = tuple[tuple[int, ...], ZarrCodec | ZarrPythonCodec, ShardLayout]
"""Lengths of a file in the order of the stored axes, codec of a chunk, and layout of chunks in a
file."""


def zarr_array(
    store: Store,
    name: str,
    document: Mapping[str, Any],
    axes: str,
    positions: tuple[int, ...] = (),
    *,
    is_new: bool = False,
) -> StoredArray:
    """Return the array of a folder as a stored array that starts at voxel 0; ``name`` is that of
    its document, ``positions`` are the indices along the axes named ``-``, by default 0, ``is_new``
    if it is being written."""
    is_v2 = name == ".zarray"
    if not is_v2:
        check_extensions(document)
    storage = (_parse_storage_v2 if is_v2 else _parse_storage_v3)(document, axes)
    shape = tuple(map(int, document["shape"]))
    naming = _parse_naming(document, axes, is_v2=is_v2)
    positions = positions or (0,) * axes.count("-")
    if storage is None or naming is None:
        storage = _zarr_python_storage(store, document, axes, positions)
    outer, codec, layout = storage
    if any(positions):
        files = [n for n, letter in zip(outer, axes, strict=True) if letter == "-"]
        if naming is not None:
            naming = replace(naming, constants=tuple(map(floordiv, positions, files)))
        if isinstance(codec, ZarrCodec):
            codec = replace(codec, inside=tuple(map(mod, positions, files)))
    if isinstance(codec, ZarrCodec):
        if codec.nbytes > _MAX_CHUNK_NBYTES:
            lengths = list(codec.chunk_shape)
            raise UnsupportedError(
                f"{store.path_of(name)}: expected chunks of at most {_MAX_CHUNK_NBYTES} bytes, "
                f"found {lengths}; store it in smaller ones"
            )
        codec.check_settings()
    fill = _parse_fill_value(document.get("fill_value"), np.dtype(codec.dtype))
    size, chunk, file = (
        pick_cxyz(shape, axes),
        pick_cxyz(codec.chunk_shape, axes),
        pick_cxyz(outer, axes),
    )
    dtype = np.dtype(codec.dtype).newbyteorder("=")
    grid = ChunkGrid(size, chunk, file, grouped_unit(size, file, dtype.itemsize))
    identity = JsonIdentity(
        store,
        name,
        read_record_state(store, name) if store.can.states and not is_new else None,
        canonical_json(document, _IGNORED_KEYS),
        _IGNORED_KEYS,
    )
    return StoredArray(store, grid, naming, layout, codec, dtype, identity, fill=fill)


def _zarr_python_storage(
    store: Store, document: Mapping[str, Any], axes: str, positions: tuple[int, ...]
) -> _Storage:
    try:
        item = open_array(store)
    except ValueError as error:
        if str(error).startswith("Unknown "):  # codec or chunk key encoding
            raise UnsupportedError(
                f"zarr-python cannot open it: {error}; if a package registers it, install that "
                "package"
            ) from None
        names = [codec.get("name") for codec in _as_objects(document.get("codecs") or [])]
        if "sharding_indexed" in names[1:]:  # it compares lengths before it transposes them
            raise UnsupportedError(
                f"zarr-python cannot open it: {str(error).rstrip('.')}; store it again without the "
                f"codec {names[0]!r} before the shards"
            ) from None
        raise
    chunk = tuple(max(1, n) for n in item.chunks)
    shard = tuple(max(1, n) for n in item.shards or chunk)
    return (
        shard,
        ZarrPythonCodec(np.dtype(item.dtype).str, chunk, axes),
        ZarrPythonReader(axes, positions, item.shards is not None),
    )


def _parse_fill_value(value: Any, dtype: np.dtype[Any]) -> int | float:
    """Parse a fill value (Zarr v3, "Fill value"); raises ValueError if it is no value of the
    type."""
    if value is None:  # undefined
        return 0
    try:
        if dtype.kind == "f":
            return _parse_real(value, dtype)
        number = int(value)
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if low <= number <= high and (not isinstance(value, float) or number == value):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"fill_value: expected a value of type {dtype.name}, found {value!r}")


def _parse_real(value: Any, dtype: np.dtype[Any]) -> float:
    """Parse a real number. JSON has no NaN, so both versions spell it; version 3 also has the bits
    as hexadecimal digits."""
    if not isinstance(value, str) or value[:2].lower() != "0x":
        with np.errstate(over="ignore"):
            return float(dtype.type(float(value)))
    # another number of digits is an error
    (number,) = np.frombuffer(bytes.fromhex(value[2:]), dtype.newbyteorder(">"))
    return float(number)


def _parse_naming(document: Mapping[str, Any], axes: str, *, is_v2: bool) -> GridNaming | None:
    """Parse the chunk key encoding: ``c/0/0`` (v3 ``default``) or ``0.0`` (v3 ``v2``, and version
    2); None if it is another one."""
    prefix, separator = "", document.get("dimension_separator", ".")
    if not is_v2:
        encoding = document.get("chunk_key_encoding")
        if isinstance(encoding, str):
            encoding = {"name": encoding}
        if not isinstance(encoding, dict) or encoding.get("name") not in ("default", "v2"):
            return None
        is_default = encoding["name"] == "default"
        separator = (encoding.get("configuration") or {}).get(
            "separator", "/" if is_default else "."
        )
        prefix = f"c{separator}" if is_default else ""
    return GridNaming(axes, prefix, separator) if separator in ("/", ".") else None


def _parse_lengths(stated: Sequence[Any], shape: Sequence[int]) -> tuple[int, ...]:
    """Parse the lengths of a chunk, which may be 0 along axes of length 0; raises ValueError."""
    lengths = tuple(map(int, stated))
    if len(lengths) != len(shape) or any(
        n < min(1, length) for n, length in zip(lengths, shape, strict=True)
    ):
        raise ValueError(
            f"chunks: expected {len(shape)} positive lengths, found {json.dumps(stated)[:80]}"
        )
    return tuple(max(1, n) for n in lengths)


def _parse_storage_v2(document: Mapping[str, Any], axes: str) -> _Storage | None:
    """Parse a ``.zarray``; None if zarr-python must read the array."""
    dtype, chunk = document.get("dtype"), _parse_lengths(document["chunks"], document["shape"])
    if not isinstance(dtype, str) or document.get("order", "C") not in ("C", "F"):
        return None
    filters, compressor = list(document.get("filters") or ()), document.get("compressor")
    codecs = (*filters, *([compressor] if compressor else []))
    stages = [
        (
            str(codec["id"]),
            json.dumps({key: value for key, value in codec.items() if key != "id"}, sort_keys=True),
        )
        for codec in codecs
    ]
    order = range(len(chunk)) if document.get("order", "C") == "C" else reversed(range(len(chunk)))
    return (
        chunk,
        ZarrCodec(dtype, chunk, axes, tuple(order), tuple(stages), len(filters)),
        SingleFiles(),
    )


def _parse_storage_v3(document: Mapping[str, Any], axes: str) -> _Storage | None:
    """Parse the ``zarr.json`` of an array; None if zarr-python must read it."""
    grid, codecs, data_type = (
        document.get("chunk_grid") or {},
        document.get("codecs") or [],
        document.get("data_type"),
    )
    if not isinstance(data_type, str) or data_type not in _DTYPES:
        return None
    outer = _parse_lengths(grid["configuration"]["chunk_shape"], document["shape"])
    codecs = _as_objects(codecs)
    if [codec.get("name") for codec in codecs] != ["sharding_indexed"]:
        codec = _parse_codec_v3(codecs, data_type, outer, axes)
        return None if codec is None else (outer, codec, SingleFiles())
    sharding = codecs[0].get("configuration") or {}
    inner = _parse_lengths(sharding["chunk_shape"], document["shape"])
    codec = _parse_codec_v3(sharding.get("codecs") or [], data_type, inner, axes)
    has_checksum = _has_index_checksum(sharding.get("index_codecs") or [])
    location = sharding.get("index_location", "end")
    if codec is None or has_checksum is None or location not in ("start", "end"):
        return None
    if len(inner) != len(outer) or any(a % b for a, b in zip(outer, inner, strict=True)):
        return None
    counts = [a // b for a, b in zip(outer, inner, strict=True)]
    cells = pick_cxyz(counts, axes)
    # the products differ if another axis than c, x, y, z has several chunks in a shard
    return (
        (outer, codec, ZarrShards(cells, axes, location == "end", has_checksum))
        if math.prod(cells) == math.prod(counts)
        else None
    )


def _as_objects(codecs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return codecs as objects; Zarr v3 allows a codec without configuration to be its name
    alone."""
    return [{"name": codec} if isinstance(codec, str) else codec for codec in codecs]


def _has_index_checksum(codecs: Sequence[Mapping[str, Any]]) -> bool | None:
    """Return whether the index of a shard ends with a CRC-32C; None if its codecs are not
    supported."""
    names = [codec.get("name") for codec in codecs]
    if (
        names not in (["bytes"], ["bytes", "crc32c"])
        or (codecs[0].get("configuration") or {}).get("endian") != "little"
    ):
        return None
    return len(names) == 2


def _parse_codec_v3(
    codecs: Sequence[Any], data_type: str, chunk: tuple[int, ...], axes: str
) -> ZarrCodec | None:
    """Parse a chain of codecs: transposes, ``bytes``, then compressors and checksums; None if one
    is not supported."""
    order = list(range(len(chunk)))
    remaining = _as_objects(codecs)
    while remaining and remaining[0].get("name") == "transpose":
        axes_order = (remaining.pop(0).get("configuration") or {}).get("order")
        # drafts of version 3 had "C" and "F" instead of a permutation
        if isinstance(axes_order, str):
            axes_order = {"C": list(range(len(chunk))), "F": list(range(len(chunk)))[::-1]}.get(
                axes_order
            )
        if not isinstance(axes_order, list) or sorted(axes_order) != list(range(len(chunk))):
            return None
        order = [order[n] for n in axes_order]
    if not remaining or remaining[0].get("name") != "bytes":
        return None
    endian = (remaining.pop(0).get("configuration") or {}).get("endian") or "little"
    stages = parse_stages(remaining)
    if endian not in ("little", "big") or stages is None:
        return None
    dtype = np.dtype(_DTYPES[data_type]).newbyteorder("<" if endian == "little" else ">").str
    return ZarrCodec(dtype, chunk, axes, tuple(order), stages)
