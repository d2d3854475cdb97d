"""Arrays of a layer of a dataset, whose document states the box and lists the arrays.

As the webknossos library writes them, arrays begin at voxel 0 and end on a whole shard, the first
axis of a chunk is the fastest, and the folder of the layer is an OME-NGFF group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wkwdask.formats.axes import axis_order
from wkwdask.formats.container import patterns
from wkwdask.formats.zarr.array import zarr_array
from wkwdask.formats.zarr.codec import ZarrCodec
from wkwdask.formats.zarr.documents import (
    FILE_NAME,
    array_document,
    format_document,
    raw_codecs,
    sharding_codec,
    transpose_codec,
    zarr_shape,
)
from wkwdask.formats.zarr.encoding import (
    checked_dtype,
    compressor_v2,
    compressor_v3,
    describe,
    largest_shard_nbytes,
)
from wkwdask.formats.zarr.layer import read_node
from wkwdask.formats.zarr.ngff import ImageAxes, multiscale, pyramid_level
from wkwdask.formats.zarr.ngff_edit import NgffEdit, read_attributes, read_image, stated_axes
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import is_multiple, times
from wkwdask.model.writing.target_array import TargetArray
from wkwdask.model.writing.target_image import NewLevels
from wkwdask.plans.chunks import chunks_per_shard, default_chunks_per_shard
from wkwdask.store.paths import basename, dirname
from wkwdask.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from wkwdask.formats.zarr.options import ZarrOptions
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import LevelSpec

# of a layer without another array
_AXES = "cxyz"
_CHUNK, _SHARD = (32, 32, 32), (1024, 1024, 1024)
_LEVEL = 5

_VERSIONS = {"zarr": "0.4", "zarr3": "0.5"}  # of OME-NGFF, by the format that the dataset states


def layer_levels(
    layer: Image,
    data_format: str,
    folders: Sequence[str],
    specs: Sequence[LevelSpec],
    options: ZarrOptions,
    like: Volume | None,
) -> NewLevels:
    """Lay out arrays of a layer that a dataset stores as ``zarr`` or ``zarr3``, stored like another
    one where options are not given."""
    version = _VERSIONS[data_format]
    if options.ngff not in (None, version):
        raise ValueError(
            f"{layer.folder}: is stored as {data_format}, whose metadata have version {version} of "
            f"OME-NGFF, got ngff={options.ngff!r}"
        )
    record = ".zarray" if data_format == "zarr" else FILE_NAME
    pattern = _pattern(layer, record, like)
    targets, settings = [], []
    for folder, spec in zip(folders, specs, strict=True):
        axes, document = _document(spec, options, pattern, record, folder)
        store = open_store(folder)
        array = zarr_array(store, record, document, axes, is_new=True)
        unit = array.grid.file[1:] if array.layout.is_sharded else array.grid.unit  # type: ignore[index]
        array = replace(array, mag=spec.box.mag, grid=replace(array.grid, unit=unit), crop=spec.box)
        targets.append(TargetArray(array, store, ((record, format_document(document).encode()),)))
        settings.append(
            {"mag": spec.box.mag.name, "box": [*spec.box.topleft, *spec.box.size]} | document
        )
    return NewLevels(
        layer.folder,
        tuple(folders),
        tuple(targets),
        {"arrays": settings},
        _group_edit(layer, version, axes, folders, specs),
        stored_as=describe(targets[0].array),
        stated=(axis_order(axes),) * len(specs),
    )


def _pattern(layer: Image, record: str, like: Volume | None) -> StoredArray | None:
    """Return the array that new ones are stored like: a given one, or else the finest of the
    layer."""
    return next(
        (
            array
            for array in patterns(layer, like)
            if isinstance(array.codec, ZarrCodec)
            and (node := read_node(array.name)) is not None
            and node.record == record
        ),
        None,
    )


def _document(
    spec: LevelSpec, options: ZarrOptions, pattern: StoredArray | None, record: str, folder: str
) -> tuple[str, dict[str, Any]]:
    """Return the axes of an array, and its document."""
    dtype = checked_dtype(spec.dtype)
    node = None if pattern is None else read_node(pattern.name)
    axes = _AXES if pattern is None else pattern.codec.axes  # type: ignore[attr-defined]
    if "c" not in axes and spec.num_channels > 1:
        axes, node = _AXES, None
    chunk = options.chunk_shape or (_CHUNK if pattern is None else pattern.chunk_shape)
    shard = _shard_shape(spec, options, pattern, chunk, record, folder)
    whole = spec.box if spec.extent is None else spec.box.union(spec.extent)
    end = [-(-n // step) * step for n, step in zip(whole.bottomright, shard or chunk, strict=True)]
    is_alike = node is not None and pattern is not None and pattern.dtype == dtype
    compression = _compression(options, pattern if is_alike else None)
    stored = node.document if is_alike and node is not None else {}
    lengths = [zarr_shape(axes, spec.num_channels, shape) for shape in (end, chunk)]
    if record != FILE_NAME:
        return axes, _document_v2(lengths, dtype, compression, stored)
    codecs = _codecs(axes, dtype, compression, stored)
    if shard is not None:
        codecs = [sharding_codec(lengths[1], codecs)]
    document = array_document(end, spec.num_channels, dtype, shard or chunk, codecs, {}, axes)
    kept = ("chunk_key_encoding", "dimension_names")
    return axes, document | {name: stored[name] for name in kept if name in stored}


def _document_v2(
    lengths: Sequence[Sequence[int]],
    dtype: np.dtype[Any],
    compression: tuple[str, int] | None,
    stored: JsonObject,
) -> JsonObject:
    """Return the document of an array of given lengths, in chunks of given lengths; what
    ``stored`` states, the document of an array like it, is kept."""
    shape, chunks = lengths
    return {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": stored.get("dtype", dtype.newbyteorder("<").str),
        "compressor": compressor_v2(*compression) if compression else stored.get("compressor"),
        "fill_value": dtype.type(0).item(),
        "order": stored.get("order", "F"),
        "filters": stored.get("filters"),
        "dimension_separator": stored.get("dimension_separator", "/"),
    }


def _codecs(
    axes: str, dtype: np.dtype[Any], compression: tuple[str, int] | None, stored: JsonObject
) -> list[JsonObject]:
    """Return the codecs of a chunk, by default those of an array like it."""
    codecs = _inner_codecs(stored) or [
        transpose_codec(range(len(axes))[::-1]),
        *raw_codecs(dtype),
    ]
    if compression is None:
        return codecs
    codecs = [codec for codec in codecs if codec["name"] in ("transpose", "bytes")]
    return [*codecs, *compressor_v3(*compression, dtype, has_checksum=True)]


def _inner_codecs(document: JsonObject) -> list[JsonObject]:
    codecs: list[JsonObject] = [
        {"name": codec} if isinstance(codec, str) else codec for codec in document.get("codecs", ())
    ]
    if [codec["name"] for codec in codecs] == ["sharding_indexed"]:
        return _inner_codecs(codecs[0]["configuration"])
    return codecs


def _shard_shape(
    spec: LevelSpec,
    options: ZarrOptions,
    pattern: StoredArray | None,
    chunk: Vec3,
    record: str,
    folder: str,
) -> Vec3 | None:
    """Return the shape of a shard, None if each chunk is a file."""
    given: Any = options.shard_shape
    if record != FILE_NAME:
        if given:
            raise ValueError(
                f"{folder}: the layer is stored in Zarr 2, which has no shards: omit shard_shape"
            )
        return None
    if given is None:
        if pattern is None:
            given = _SHARD if options.chunk_shape is None else True
        elif pattern.layout.is_sharded:
            file = vec3(pattern.grid.file[1:])  # type: ignore[index]
            given = file if is_multiple(file, chunk) else True
    if not given:
        return None
    cells = (
        default_chunks_per_shard(
            spec.box.size, chunk, spec.voxel_nbytes, largest_shard_nbytes(folder)
        )
        if given is True
        else chunks_per_shard(given, chunk)
    )
    return times(cells, chunk)


def _compression(options: ZarrOptions, pattern: StoredArray | None) -> tuple[str, int] | None:
    """Return the compression and its level; None for that of the pattern, unchanged."""
    if options.compression is None and options.level is None and pattern is not None:
        return None
    kind = options.compression
    if kind is None and pattern is not None and pattern.codec.compression[0] in options.levels:  # type: ignore[attr-defined]
        kind = pattern.codec.compression[0]  # type: ignore[attr-defined]
    if kind is None and options.level is None:
        return "zstd", _LEVEL
    return kind or "zstd", options.level_of(kind or "zstd")


def _group_edit(
    layer: Image, version: str, axes: str, folders: Sequence[str], specs: Sequence[LevelSpec]
) -> NgffEdit | None:
    """Return the edit that lists arrays in the group of the layer; None for a group that describes
    other axes or lists no arrays, and for arrays elsewhere."""
    if layer.voxel_size_nm is None or any(dirname(folder) != layer.folder for folder in folders):
        return None
    named, is_new = ImageAxes.of_letters(axes), not layer.levels
    image = read_image(layer.folder)
    if image is None and not (is_new or read_attributes(layer.folder) is not None):
        return None
    if image is not None and (
        image[0] != version or stated_axes(image[1], layer.folder) != named.named
    ):
        return None
    levels = [
        pyramid_level(basename(folder), spec.box.mag, (0, 0, 0), layer.voxel_size_nm)
        for folder, spec in zip(folders, specs, strict=True)
    ]
    return NgffEdit(
        layer.folder, version, multiscale(layer.name, levels, named, version), False, None
    )
