"""Parse and edit the ``info`` JSON of a Neuroglancer precomputed volume (neuroglancer,
``precomputed/volume.rst``, "info JSON file format").

Text in, records out. Opens no file. Parsing is tolerant: fields that other readers treat as
optional have defaults, and an invalid scale does not affect the other scales. Edits keep all fields
that this module does not know.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.precomputed.sharding import Sharding, format_sharding, parse_sharding
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.geometry.vectors import ceil_divide
from wkwdask.model.json_text import Problems, parse_object
from wkwdask.model.levels import base_level, factors_by_shapes, finest_first, is_number, ratio_of
from wkwdask.model.voxel_type import VOXEL_TYPES, by_precomputed_name
from wkwdask.store.paths import is_absolute

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.levels import Lengths

FILE_NAME = "info"
TYPE = "neuroglancer_multiscale_volume"
ENCODINGS = ("raw", "compressed_segmentation", "compresso", "jpeg", "png", "jxl")
DTYPES = tuple(
    voxel_type.precomputed_name for voxel_type in VOXEL_TYPES if voxel_type.precomputed_name
)
ENCODER_OPTIONS = ("jpeg_quality", "png_level", "jxl_quality", "jxl_effort", "jxl_decodingspeed")
"""Fields of a scale that configure encoders; readers ignore them."""
_MAX_INTEGER = 1 << 53  # JavaScript's exact integers
_MAX_CHUNK_NBYTES = 1 << 34  # of a decoded chunk, which must fit into memory

_TOLERANCE = 1e-3  # of the ratio of two resolutions: writers often round them
_MAX_MAG_POWER = 30


@dataclass(frozen=True, slots=True)
class Scale:
    """One resolution of a volume, stored in one chunk size."""

    key: str  # folder, relative to the volume
    size: Vec3
    voxel_offset: Vec3  # first absolute voxel of the scale; may be negative
    chunk_size: Vec3
    resolution: Lengths  # edge lengths of a voxel [nm]
    encoding: str
    sharding: Sharding | None = None  # None if each chunk is a file
    block_size: Vec3 | None = None  # `compressed_segmentation_block_size`, None for other encodings
    hidden: bool = False
    chunk_sizes: tuple[Vec3, ...] = ()
    options: JsonObject = field(default_factory=dict)
    entry: JsonObject = field(default_factory=dict, repr=False, compare=False)
    index: int = field(default=0, compare=False)  # index in the `scales` of the JSON

    @property
    def grid(self) -> Vec3:
        return ceil_divide(self.size, self.chunk_size)

    def with_chunk_size(self, chunk_size: Sequence[int]) -> Scale:
        chosen = vec3(chunk_size, "chunk_size")
        stored = self.chunk_sizes or (self.chunk_size,)
        if chosen not in stored:
            raise ValueError(
                f"scale {self.key!r} has no chunks of {chosen} voxels, but of "
                f"{' and '.join(str(size) for size in stored)}"
            )
        return replace(self, chunk_size=chosen)


@dataclass(frozen=True, slots=True)
class UnusableScale:
    """A scale with invalid or unsupported JSON."""

    index: int  # index in the `scales` of the JSON
    key: str  # key, or JSON path if the key is invalid
    problem: str  # path of the file, then all problems with their JSON paths
    resolution: Lengths | None = None  # edge lengths of a voxel [nm], None if invalid
    # true if the JSON is valid but uses something that is not implemented
    is_unsupported: bool = False
    entry: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """Content of an ``info`` file."""

    type: str  # "image" or "segmentation"
    dtype: np.dtype[Any]
    num_channels: int
    scales: tuple[Scale, ...] = ()  # valid scales, finest first, each with its first chunk size
    document: JsonObject = field(default_factory=dict, repr=False, compare=False)
    unusable: tuple[UnusableScale, ...] = ()
    # URL or relative path of the actual volume; all other fields are then meaningless
    redirect: str | None = None


def default_key(resolution: Sequence[float]) -> str:
    """Return the key that other writers choose for a scale: its resolution.

    Examples
    --------
    >>> default_key((8, 8, 40)), default_key((4.5, 4.0, 40.0))
    ('8_8_40', '4.5_4_40')
    """
    return "_".join(f"{float(length):g}" for length in resolution)


def parse_info(content: str | bytes, source: str) -> VolumeInfo:
    document = parse_object(content, source)
    problems = Problems()
    if document.get("@type", TYPE) != TYPE:
        problems.add("@type", f'"{TYPE}"', document["@type"])
    redirect = document.get("redirect")
    if isinstance(redirect, str) and not _can_be_path(redirect):
        problems.add("redirect", "a path or URL", redirect)
    if isinstance(redirect, str) and redirect and not problems.messages:
        return VolumeInfo(
            "image", VOXEL_TYPES[0].dtype.newbyteorder("="), 1, (), document, redirect=redirect
        )
    name, num_channels = document.get("data_type"), document.get("num_channels")
    voxel_type = by_precomputed_name(name) if isinstance(name, str) else None
    if voxel_type is None:
        problems.add("data_type", "one of " + ", ".join(DTYPES), name)
        voxel_type = VOXEL_TYPES[0]
    if num_channels is not None and not (
        _is_whole(num_channels) and 1 <= num_channels <= _MAX_INTEGER
    ):
        problems.add("num_channels", "a whole number of at least 1", num_channels)
        num_channels = 1
    num_channels = 1 if num_channels is None else int(num_channels)
    entries = document.get("scales")
    if not isinstance(entries, list):
        problems.add("scales", "a list", entries)
        entries = []
    scales, unusable = [], []
    for index, entry in enumerate(entries):
        scale = _scale(entry, index, num_channels * voxel_type.dtype.itemsize, source)
        if isinstance(scale, Scale):
            scales.append(scale)
        else:
            unusable.append(scale)
    if problems.messages:
        raise CorruptError(
            "; ".join(
                [
                    f"{source}: " + "; ".join(problems.messages),
                    *(scale.problem.removeprefix(f"{source}: ") for scale in unusable),
                ]
            )
        )
    kind = "segmentation" if str(document.get("type")).lower() == "segmentation" else "image"
    by_size = tuple(scales[n] for n in finest_first([scale.resolution for scale in scales]))
    return VolumeInfo(
        kind, voxel_type.dtype.newbyteorder("="), num_channels, by_size, document, tuple(unusable)
    )


def _is_whole(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) <= _MAX_INTEGER
        and value == int(value)
    )


def _scale(entry: Any, index: int, voxel_nbytes: int, source: str) -> Scale | UnusableScale:
    path, problems, missing = f"scales[{index}]", Problems(), Problems()
    if not isinstance(entry, dict):
        problems.add(path, "an object", entry)
        return UnusableScale(index, path, f"{source}: {problems.messages[0]}", entry=entry)
    key = entry.get("key")
    if not isinstance(key, str) or not _can_be_path(key):
        problems.add(f"{path}.key", "a folder", key)
    elif is_absolute(key):
        problems.add(f"{path}.key", "a path relative to the volume", key)
    size = _triple(entry.get("size"), f"{path}.size", 1, problems)
    offset = _triple(
        [0, 0, 0] if entry.get("voxel_offset") is None else entry["voxel_offset"],
        f"{path}.voxel_offset",
        -_MAX_INTEGER,
        problems,
    )
    sizes = entry.get("chunk_sizes")
    if not isinstance(sizes, list) or not sizes:
        problems.add(f"{path}.chunk_sizes", "a list of chunk sizes", sizes)
        sizes = []
    chunk_sizes = tuple(
        _triple(one, f"{path}.chunk_sizes[{number}]", 1, problems)
        for number, one in enumerate(sizes)
    )
    resolution = _resolution(entry.get("resolution"), f"{path}.resolution", problems)
    encoding = _encoding(entry.get("encoding"), f"{path}.encoding", problems, missing)
    block_size = None
    if encoding == "compressed_segmentation":
        name = "compressed_segmentation_block_size"
        block_size = _triple(entry.get(name), f"{path}.{name}", 1, problems)
    sharding = (
        None
        if entry.get("sharding") is None
        else parse_sharding(entry["sharding"], f"{path}.sharding", problems)
    )
    if not problems.messages:
        _check_chunks(size, chunk_sizes, sharding, voxel_nbytes, path, problems)
    if problems.messages or missing.messages:
        name = key if isinstance(key, str) and _can_be_path(key) else path
        text = f"{source}: " + "; ".join(problems.messages + missing.messages)
        return UnusableScale(index, name, text, resolution, not problems.messages, entry)
    assert isinstance(key, str)
    assert resolution is not None
    options = {name: entry[name] for name in ENCODER_OPTIONS if name in entry}
    return Scale(
        key,
        size,
        offset,
        chunk_sizes[0],
        resolution,
        encoding,
        sharding,
        block_size,
        entry.get("hidden") is True,
        chunk_sizes,
        options,
        entry,
        index,
    )


def _can_be_path(text: str) -> bool:
    # JSON strings may contain NUL and unpaired surrogates, which no file name can.
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _triple(value: Any, path: str, minimum: int, problems: Problems) -> Vec3:
    if (
        isinstance(value, list)
        and len(value) == 3
        and all(_is_whole(item) and item >= minimum for item in value)
    ):
        return int(value[0]), int(value[1]), int(value[2])
    problems.add(
        path,
        "three whole numbers" + (f" of {minimum} to 2^53" if minimum > 0 else " of at most 2^53"),
        value,
    )
    return 1, 1, 1


def _resolution(value: Any, path: str, problems: Problems) -> Lengths | None:
    if (
        isinstance(value, list)
        and len(value) == 3
        and all(
            isinstance(n, (int, float)) and not isinstance(n, bool) and 0 < n < _MAX_INTEGER
            for n in value
        )
    ):
        return value[0], value[1], value[2]
    problems.add(path, "three positive numbers", value)
    return None


def _encoding(value: Any, path: str, problems: Problems, missing: Problems) -> str:
    if isinstance(value, str) and value.lower() in ENCODINGS:
        return value.lower()
    (missing if isinstance(value, str) else problems).add(
        path, "one of " + ", ".join(ENCODINGS), value
    )
    return ""


def _check_chunks(
    size: Vec3,
    chunk_sizes: tuple[Vec3, ...],
    sharding: Sharding | None,
    voxel_nbytes: int,
    path: str,
    problems: Problems,
) -> None:
    if sharding is not None and len(chunk_sizes) > 1:
        problems.add(
            f"{path}.chunk_sizes",
            "one chunk size, since the scale is sharded",
            [list(chunk) for chunk in chunk_sizes],
        )
    for index, chunk in enumerate(chunk_sizes):
        x, y, z = (min(edge, n) for edge, n in zip(chunk, size, strict=True))
        if x * y * z * voxel_nbytes > _MAX_CHUNK_NBYTES:
            problems.add(
                f"{path}.chunk_sizes[{index}]",
                f"chunks of at most {_MAX_CHUNK_NBYTES} bytes",
                list(chunk),
            )
    bits = sum((cells - 1).bit_length() for cells in ceil_divide(size, chunk_sizes[0]))
    if sharding is not None and bits > compressed_morton.MAX_BITS:
        problems.add(
            f"{path}.chunk_sizes[0]",
            f"chunks whose identifiers have at most {compressed_morton.MAX_BITS} bits, not {bits}",
            list(chunk_sizes[0]),
        )


def listed_scales(info: VolumeInfo) -> list[Scale | UnusableScale]:
    """Return all scales in the order of the JSON, usable or not."""
    return sorted([*info.scales, *info.unusable], key=lambda scale: scale.index)


def sorted_scales(info: VolumeInfo) -> list[Scale | UnusableScale]:
    """Return all scales finest first, usable or not, as other software expects them in the JSON."""
    listed = listed_scales(info)
    return [listed[n] for n in finest_first([scale.resolution for scale in listed])]


def base_resolution(info: VolumeInfo) -> Lengths | None:
    """Return the resolution of the finest scale, usable or not; None if a scale without a
    resolution comes first."""
    listed = listed_scales(info)
    sizes = [scale.resolution for scale in listed]
    return (
        sizes[base_level(sizes, [isinstance(scale, Scale) for scale in listed])] if listed else None
    )


def mag_of(info: VolumeInfo, scale: Scale | UnusableScale) -> Mag | None:
    """Return the mag of a scale: its resolution divided by that of the finest scale, or None if the
    ratios are not powers of two.

    Examples
    --------
    >>> entry = {"size": [9, 9, 9], "chunk_sizes": [[8, 8, 8]], "encoding": "raw"}
    >>> scales = [
    ...     {**entry, "key": str(length), "resolution": [length, length, 40]}
    ...     for length in (11.24, 22.48, 30)
    ... ]
    >>> import json
    >>> info = parse_info(json.dumps({"data_type": "uint8", "scales": scales}), "info")
    >>> [mag_of(info, scale) for scale in info.scales]
    [Mag(1, 1, 1), Mag(2, 2, 1), None]
    """
    base = base_resolution(info)
    if base is None or scale.resolution is None:
        return None
    finest_size = next((finest.size for finest in info.scales if finest.resolution == base), None)
    stated = [other for other in listed_scales(info) if other.resolution is not None]
    found = factors_by_shapes(
        [ratio_of(other.resolution or base, base) for other in stated],
        finest_size,
        [other.size if isinstance(other, Scale) else None for other in stated],
    )
    factors = []
    for ratio in found[stated.index(scale)]:
        power = round(ratio) if ratio < 2 << _MAX_MAG_POWER else 0
        if (
            power < 1
            or power & (power - 1)
            or power > 1 << _MAX_MAG_POWER
            or abs(ratio / power - 1) > _TOLERANCE
        ):
            return None
        factors.append(power)
    return Mag.parse(factors)


# ------------------------------------------------------------------------------------------------
# writing

PROVENANCE_FILE_NAME = "provenance"
_KNOWN_FIELDS = (
    "key",
    "size",
    "voxel_offset",
    "chunk_sizes",
    "resolution",
    "encoding",
    "sharding",
    "compressed_segmentation_block_size",
    "hidden",
    *ENCODER_OPTIONS,
)

PROVENANCE = {"description": "", "sources": [], "owners": [], "processing": []}
"""Content of an empty ``provenance`` file (neuroglancer, ``precomputed/volume.rst``; cloud-volume
writes the same fields)."""


def new_document(kind: str, dtype: Any, num_channels: int) -> JsonObject:
    return {
        "@type": TYPE,
        "type": kind,
        "data_type": np.dtype(dtype).name,
        "num_channels": num_channels,
        "scales": [],
    }


def with_scales(document: JsonObject, scales: Sequence[Scale]) -> JsonObject:
    """Return a copy of the JSON with scales added or replaced. All other fields are kept."""
    changed = copy.deepcopy(document)
    listed = changed.get("scales")
    entries = changed["scales"] = listed if isinstance(listed, list) else []
    for scale in scales:
        index = _index_of(scale, entries)
        if index is None:
            entries.append(scale_entry(scale))
            # Other software takes the first scale for the finest.
            entries[:] = [entries[n] for n in finest_first([_lengths(entry) for entry in entries])]
        else:
            entries[index] = {**_unknown_fields(entries[index]), **scale_entry(scale)}
    return changed


def without_scales(document: JsonObject, keys: Collection[str]) -> JsonObject:
    """Return the JSON without the scales of some keys. All other fields are kept."""
    return {
        **document,
        "scales": [
            entry
            for entry in document["scales"]
            if not isinstance(entry, dict) or entry.get("key") not in keys
        ],
    }


def scale_entry(scale: Scale) -> JsonObject:
    """Return the JSON object of a scale, including the unknown fields of the object it was parsed
    from."""
    entry: JsonObject = {
        "key": scale.key,
        "size": list(scale.size),
        "resolution": [_length(length) for length in scale.resolution],
        "voxel_offset": list(scale.voxel_offset),
        "chunk_sizes": [list(chunk) for chunk in scale.chunk_sizes or (scale.chunk_size,)],
        "encoding": scale.encoding,
    }
    if scale.block_size is not None:
        entry["compressed_segmentation_block_size"] = list(scale.block_size)
    if scale.sharding is not None:
        entry["sharding"] = format_sharding(scale.sharding)
    if scale.hidden:
        entry["hidden"] = True
    return {**_unknown_fields(scale.entry), **entry, **scale.options}


def _index_of(scale: Scale, entries: list[Any]) -> int | None:
    """Return the index of the entry with the key of a scale, else of the one with its resolution,
    else None."""
    keys = [entry.get("key") if isinstance(entry, dict) else None for entry in entries]
    if scale.key in keys:
        return keys.index(scale.key)
    for index, entry in enumerate(entries):
        lengths = _lengths(entry)
        if lengths is not None and same_resolution(lengths, scale.resolution):
            return index
    return None


def same_resolution(lengths: Lengths, others: Lengths) -> bool:
    """Check whether two resolutions are equal up to rounding."""
    return all(abs(a / b - 1) <= _TOLERANCE for a, b in zip(lengths, others, strict=True))


def _lengths(entry: Any) -> Lengths | None:
    lengths = entry.get("resolution") if isinstance(entry, dict) else None
    if isinstance(lengths, list) and len(lengths) == 3 and all(map(is_number, lengths)):
        return lengths[0], lengths[1], lengths[2]
    return None


def _unknown_fields(entry: Any) -> JsonObject:
    return (
        {name: value for name, value in entry.items() if name not in _KNOWN_FIELDS}
        if isinstance(entry, dict)
        else {}
    )


def _length(length: float) -> float:
    # 8 instead of 8.0, as other writers do
    return int(length) if float(length).is_integer() and length < 1 << 53 else length
