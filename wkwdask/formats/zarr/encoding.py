"""Encoding of a new Zarr array of an image, chosen by the options of a user and by the array that
it is stored like."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.zarr.codec import SHUFFLES, ZarrChunks
from wkwdask.formats.zarr.documents import (
    array_document,
    raw_codecs,
    sharding_codec,
    transpose_codec,
    zarr_shape,
)
from wkwdask.formats.zarr.ngff import zarr_format_of
from wkwdask.geometry.vectors import times
from wkwdask.model.codec import LZ4_BLOCK
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.writing.target_image import storage_text
from wkwdask.plans.chunks import (
    BUCKET_SHARD_NBYTES,
    SHARD_NBYTES,
    chunks_per_shard,
    default_chunks_per_shard,
)
from wkwdask.store.paths import is_bucket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.zarr.options import ZarrOptions
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import LevelSpec


BLOSC = ("zstd", 1)  # Zstandard after a byte shuffle


@dataclass(frozen=True, slots=True)
class ArrayEncoding:
    """Encoding of a new array, and its documents."""

    dtype: np.dtype[Any]
    num_channels: int
    """Values per voxel; each chunk holds all channels."""
    axes: str
    chunk_shape: Vec3
    compression: str
    level: int
    shard_cells: Vec3 = (1, 1, 1)
    """Chunks along x, y, z of a shard, or of a group of files that one task writes."""
    is_sharded: bool = False
    version: int = 3
    blosc: tuple[str, int] = BLOSC
    """Compressor inside Blosc, and its shuffle as a number."""
    is_spliced: bool = False
    """Whether chunks are those of WKW, with the channels of a voxel one after another, so that they
    can be copied without decoding."""

    @property
    def shard_shape(self) -> Vec3:
        """Voxels along x, y, z of a shard, or of a group of files."""
        return times(self.shard_cells, self.chunk_shape)

    def document(self, shape: Sequence[int], attributes: dict[str, Any]) -> dict[str, Any]:
        codecs, outer = raw_codecs(self.dtype), self.chunk_shape
        if self.is_spliced and self.num_channels > 1:  # from the axes c, z, y, x to z, y, x, c
            codecs.insert(0, transpose_codec([1, 2, 3, 0]))
        codecs += compressor_v3(
            self.compression, self.level, self.dtype, self.blosc, has_checksum=False
        )
        if self.is_sharded:
            inner = zarr_shape(self.axes, self.num_channels, outer)
            codecs, outer = [sharding_codec(inner, codecs)], self.shard_shape
        return array_document(
            shape, self.num_channels, self.dtype, outer, codecs, attributes, self.axes
        )

    def document_v2(self, shape: Sequence[int]) -> dict[str, Any]:
        lengths, chunks = (
            zarr_shape(self.axes, self.num_channels, each) for each in (shape, self.chunk_shape)
        )
        return {
            "zarr_format": 2,
            "shape": lengths,
            "chunks": chunks,
            "dtype": self.dtype.newbyteorder("<").str,
            "compressor": compressor_v2(self.compression, self.level, self.blosc),
            "fill_value": self.dtype.type(0).item(),
            "order": "C",
            "filters": None,
            "dimension_separator": "/",
        }


def compressor_v2(kind: str, level: int, blosc: tuple[str, int] = BLOSC) -> JsonObject | None:
    """Return a compressor of Zarr v2, None for raw chunks; the shuffle of Blosc is a number."""
    if kind != "blosc":
        return None if kind == "raw" else {"id": kind, "level": level}
    name, shuffle = blosc
    return {"id": kind, "cname": name, "clevel": level, "shuffle": shuffle, "blocksize": 0}


def compressor_v3(
    kind: str,
    level: int,
    dtype: np.dtype[Any],
    blosc: tuple[str, int] = BLOSC,
    *,
    has_checksum: bool,
) -> list[JsonObject]:
    """Return the codecs of Zarr v3 that compress, none for raw chunks; the shuffle of Blosc has a
    name, and Zstandard states whether it has a checksum."""
    settings = compressor_v2(kind, level, blosc)
    if settings is None:
        return []
    del settings["id"]
    if kind == "blosc":
        settings["shuffle"] = next(name for name, n in SHUFFLES.items() if n == blosc[1])
        settings = {"typesize": dtype.itemsize, **settings}
    elif kind == "zstd":
        settings["checksum"] = has_checksum
    return [{"name": kind, "configuration": settings}]


def with_defaults_from(options: ZarrOptions, like: Volume | None) -> ZarrOptions:
    """Fill missing options with the encoding of another Zarr array."""
    if not isinstance(like, StoredArray) or not isinstance(like.codec, ZarrChunks):
        return options
    chunk_shape, shard_shape = options.chunk_shape or like.chunk_shape, options.shard_shape
    if shard_shape is None:
        # not those of like.shard_shape, which can be a group of small shards
        keeps_shards = like.layout.is_sharded and chunk_shape == like.chunk_shape
        file = like.grid.file
        shard_shape = file[1:] if keeps_shards and file is not None else like.layout.is_sharded
    completed = replace(options, chunk_shape=chunk_shape, shard_shape=shard_shape)
    kind, level = like.codec.compression
    if options.compression is not None or kind not in ("raw", *options.levels):
        return completed
    return replace(
        completed, compression=kind, level=level if options.level is None else options.level
    )


def blosc_of(like: Volume | None) -> tuple[str, int]:
    """Return the compressor inside Blosc and the shuffle of a Zarr array that uses Blosc, else the
    default."""
    return (
        like.codec.blosc
        if isinstance(like, StoredArray) and isinstance(like.codec, ZarrChunks)
        else None
    ) or BLOSC


def largest_shard_nbytes(folder: str) -> int:
    """Return the largest size before compression that a shard has by default."""
    return BUCKET_SHARD_NBYTES if is_bucket(folder) else SHARD_NBYTES


def choose_encoding(
    spec: LevelSpec,
    options: ZarrOptions,
    version: str,
    axes: str,
    *,
    folder: str,
    is_label: bool,
    size: Vec3 | None = None,
) -> ArrayEncoding:
    """Return the encoding that the options ask for; ``size`` is that of the array, by default that
    of the box."""
    dtype = checked_dtype(spec.dtype)
    # a byte shuffle helps to compress numbers of several bytes, but breaks up the repeated ids of a
    # segmentation
    compression = options.compression or ("zstd" if is_label or dtype.itemsize == 1 else "blosc")
    stored: Any = options.with_defaults()
    is_sharded = stored.shard_shape is not False
    if is_sharded and version == "0.4":
        if stored.shard_shape is not True:
            raise ValueError(
                "OME-NGFF 0.4 is stored in Zarr 2, which has no shards: omit shard_shape, or write "
                "version 0.5"
            )
        is_sharded = False
    if isinstance(stored.shard_shape, bool):
        cells = default_chunks_per_shard(
            size or spec.box.size,
            stored.chunk_shape,
            spec.voxel_nbytes,
            largest_shard_nbytes(folder) if is_sharded else None,
        )
    else:
        cells = chunks_per_shard(stored.shard_shape, stored.chunk_shape)
    level, number = options.level_of(compression), zarr_format_of(version)
    return ArrayEncoding(
        dtype,
        spec.num_channels,
        axes,
        stored.chunk_shape,
        compression,
        level,
        cells,
        is_sharded,
        number,
    )


_LZ4_LEVEL = 5  # recorded for LZ4, which has no levels in WKW files


def spliced_encoding(
    spec: LevelSpec, options: ZarrOptions, version: str, axes: str
) -> ArrayEncoding | None:
    """Return the encoding that keeps the stored chunks and files of the source of a level; None if
    there is none, or the user chose another one."""
    source, chosen = (
        spec.source,
        {"chunk_shape", "shard_shape", "compression", "level"} & set(options.explicit()),
    )
    if (
        source is None
        or chosen
        or zarr_format_of(version) != 3
        or not source.layout.is_regular
        or source.codec.shared_encoding is None
    ):
        return None
    encoding = source.codec.shared_encoding
    compression = {LZ4_BLOCK: "blosc", "raw": "raw"}.get(encoding.compression)
    if compression is None:
        return None
    cells = chunks_per_shard(source.shard_shape, source.chunk_shape)
    return ArrayEncoding(
        checked_dtype(spec.dtype),
        spec.num_channels,
        axes,
        source.chunk_shape,
        compression,
        _LZ4_LEVEL if compression == "blosc" else 0,
        cells,
        True,
        blosc=(encoding.encoder, 0),
        is_spliced=True,
    )


def journal_settings(spec: LevelSpec, encoding: ArrayEncoding) -> dict[str, Any]:
    """Return the settings of an array that a resumed job compares."""
    return {
        "mag": spec.box.mag.name,
        "size": list(spec.box.size),
        "origin": list(spec.box.topleft),
        "chunk": list(encoding.chunk_shape),
        "shard": list(encoding.shard_shape),
        "sharded": encoding.is_sharded,
        "compression": encoding.compression,
        "level": encoding.level,
    }


def describe(array: StoredArray) -> str:
    assert isinstance(array.codec, ZarrChunks)
    kind, blosc = array.codec.compression[0], array.codec.blosc
    return storage_text(kind if blosc is None else f"blosc with {blosc[0]}", array)


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    native: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    if native.kind not in "biuf" or native.itemsize > 8:
        raise TypeError(
            f"an image holds bool, integers or real numbers of up to 64 bits, got {native.name}: "
            "cast it with .astype()"
        )
    return native
