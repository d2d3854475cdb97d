"""Zarr arrays of zarr-python in every way that it stores them: codecs, filters, shards, fill values
and types."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)
from zarr.codecs import numcodecs as codecs_v3

CHUNKS = ((4, 8, 8), (5, 6, 7))
INTEGERS = ("uint8", "uint16", "int16", "uint32", "int64", "uint64")
FLOATS = ("float32", "float64")
TYPES = (*INTEGERS, *FLOATS, "float16", "bool")


@dataclass(frozen=True)
class Pipeline:
    """One way to store an array."""

    name: str
    options: Any
    """Function from a data type, the lengths of chunks and those of shards to the options of
    ``zarr.create_array``."""
    zarr_format: int = 3
    types: tuple[str, ...] = TYPES
    is_library_only: bool = False
    """Whether only zarr-python decodes its chunks."""
    change: Any = field(default=None, compare=False)
    """Function that changes the document of an array without any chunk."""

    def __str__(self):
        return f"v{self.zarr_format} {self.name}"

    def write(self, folder, voxels, fill=0, region=(...,), chunks=CHUNKS[0]):
        """Write a region of an array, z, y, x with optional axes before; the other chunks are
        absent. Shards have eight chunks, one along other axes."""
        chunks = (*(1,) * (voxels.ndim - 3), *chunks)
        options = self.options(
            voxels.dtype.name, chunks, (*chunks[:-3], *(2 * n for n in chunks[-3:]))
        )
        options = {"chunks": chunks, "compressors": None, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # codecs that are not part of the specification
            array = zarr.create_array(
                folder,
                shape=voxels.shape,
                dtype=voxels.dtype,
                fill_value=fill,
                zarr_format=self.zarr_format,
                **options,
            )
            if self.change is not None:
                path = Path(folder, "zarr.json" if self.zarr_format == 3 else ".zarray")
                path.write_text(json.dumps(self.change(json.loads(path.read_text()))))
                array = zarr.open_array(folder)
            array[region] = voxels[region]
        return array


def _filters(make, compressors=None):
    return lambda dtype, *_: {"filters": [make(dtype)], "compressors": compressors}


def _compressors(*codecs):
    return lambda *_: {"compressors": list(codecs)}


def _sharded(**options):
    return lambda dtype, chunks, shards: {"shards": shards, **options}


def _turned(rank):
    return TransposeCodec(order=tuple(range(rank))[::-1])


def _nested(dtype, chunks, shards):
    inner = ShardingCodec(chunk_shape=chunks, codecs=[_bytes(dtype), ZstdCodec()])
    middle = (*shards[:-1], chunks[-1])  # shards of shards of chunks
    return {"chunks": shards, "serializer": ShardingCodec(chunk_shape=middle, codecs=[inner])}


def _big_endian_index(dtype, chunks, shards):
    index = [BytesCodec(endian="big"), Crc32cCodec()]
    return {
        "chunks": shards,
        "serializer": ShardingCodec(
            chunk_shape=chunks, codecs=[_bytes(dtype), ZstdCodec()], index_codecs=index
        ),
    }


def _turned_shards(dtype, chunks, shards):
    # zarr-python requires that chunks divide shards before the transpose too
    shards = tuple(map(math.lcm, chunks, chunks[::-1]))
    sharding = ShardingCodec(chunk_shape=chunks[::-1], codecs=[_bytes(dtype)])
    return {"chunks": shards, "filters": [_turned(len(shards))], "serializer": sharding}


def _index_at_start(dtype, chunks, shards):
    return {
        "chunks": shards,
        "serializer": ShardingCodec(
            chunk_shape=chunks, codecs=[_bytes(dtype), GzipCodec()], index_location="start"
        ),
    }


def _compressed_index(dtype, chunks, shards):
    sharding = ShardingCodec(chunk_shape=chunks, codecs=[_bytes(dtype), ZstdCodec()])
    return {"chunks": shards, "serializer": sharding, "compressors": [ZstdCodec()]}


def _delta_in_shards(dtype, chunks, shards):
    return {"shards": shards, "filters": [codecs_v3.Delta(dtype=dtype)]}


def _fixed_offset(dtype):
    return codecs_v3.FixedScaleOffset(offset=3, scale=1, dtype=dtype, astype=dtype)


def _two_filters(dtype):
    return {"filters": [numcodecs.Delta(dtype=dtype), numcodecs.Shuffle(np.dtype(dtype).itemsize)]}


def _bytes(dtype, endian="little"):
    return BytesCodec(endian=endian if np.dtype(dtype).itemsize > 1 else None)


def _hexadecimal(document):
    bits = {"float16": "0x7e00", "float32": "0x7fc00000", "float64": "0x7ff8000000000000"}
    return {**document, "fill_value": bits[document["data_type"]]}


def _v2(options, **more):
    def make(dtype, chunks, shards):
        found = options(dtype) if callable(options) else options
        return {
            "chunk_key_encoding": {"name": "v2", "separator": more.get("separator", "/")},
            "order": more.get("order", "C"),
            **found,
        }

    return make


PIPELINES = (
    Pipeline("raw", lambda *_: {}),
    Pipeline("big-endian", lambda dtype, *_: {"serializer": _bytes(dtype, "big")}),
    Pipeline("zstd with a checksum", _compressors(ZstdCodec(checksum=True), Crc32cCodec())),
    Pipeline("blosc", _compressors(BloscCodec(cname="lz4", shuffle="shuffle"))),
    Pipeline(
        "transpose",
        lambda dtype, chunks, _: {"filters": [_turned(len(chunks))], "compressors": [GzipCodec()]},
    ),
    Pipeline("other keys", lambda *_: {"chunk_key_encoding": {"name": "v2", "separator": "."}}),
    Pipeline("shards", _sharded(compressors=[ZstdCodec()])),
    Pipeline(
        "transpose in shards",
        lambda dtype, chunks, shards: {
            "shards": shards,
            "filters": [_turned(len(chunks))],
            "compressors": [GzipCodec()],
        },
    ),
    Pipeline("index at the start", _index_at_start),
    Pipeline("zlib of numcodecs", lambda *_: {"compressors": [codecs_v3.Zlib()]}),
    Pipeline(
        "hexadecimal fill value",
        lambda *_: {"compressors": [ZstdCodec()]},
        types=(*FLOATS, "float16"),
        change=_hexadecimal,
    ),
    Pipeline(
        "delta",
        _filters(lambda dtype: codecs_v3.Delta(dtype=dtype)),
        types=INTEGERS,
        is_library_only=True,
    ),
    Pipeline(
        "delta with zstd",
        _filters(lambda dtype: codecs_v3.Delta(dtype=dtype), [ZstdCodec()]),
        types=INTEGERS,
        is_library_only=True,
    ),
    Pipeline("delta in shards", _delta_in_shards, types=INTEGERS, is_library_only=True),
    Pipeline(
        "fixed scale and offset", _filters(_fixed_offset), types=INTEGERS, is_library_only=True
    ),
    Pipeline(
        "fletcher32", lambda *_: {"compressors": [codecs_v3.Fletcher32()]}, is_library_only=True
    ),
    Pipeline(
        "shuffle",
        lambda dtype, *_: {
            "compressors": [codecs_v3.Shuffle(elementsize=np.dtype(dtype).itemsize), ZstdCodec()]
        },
        is_library_only=True,
    ),
    Pipeline("nested shards", _nested, is_library_only=True),
    Pipeline("big-endian index", _big_endian_index, is_library_only=True),
    Pipeline("transpose before shards", _turned_shards, is_library_only=True),
    Pipeline("compressed shards", _compressed_index, is_library_only=True),
    Pipeline("raw", _v2({}), 2),
    Pipeline(
        "zlib and order F", _v2({"compressors": numcodecs.Zlib()}, order="F", separator="."), 2
    ),
    Pipeline("blosc", _v2({"compressors": numcodecs.Blosc()}), 2),
    Pipeline(
        "delta", _v2(lambda dtype: {"filters": [numcodecs.Delta(dtype=dtype)]}), 2, types=INTEGERS
    ),
    Pipeline(
        "delta and lzma",
        _v2(
            lambda dtype: {
                "filters": [numcodecs.Delta(dtype=dtype)],
                "compressors": numcodecs.LZMA(),
            }
        ),
        2,
        types=INTEGERS,
    ),
    Pipeline(
        "astype",
        _v2(lambda dtype: {"filters": [numcodecs.AsType("i8", dtype)]}),
        2,
        types=("uint8", "uint16", "int16", "uint32"),
    ),
    Pipeline(
        "shuffle and fletcher32",
        _v2(
            lambda dtype: {
                "filters": [numcodecs.Shuffle(np.dtype(dtype).itemsize), numcodecs.Fletcher32()]
            }
        ),
        2,
    ),
    Pipeline("two filters in order F", _v2(_two_filters, order="F"), 2, types=INTEGERS),
)
