"""Rules for new volumes: reject those that some reader cannot open, and warn about those that
Neuroglancer shows incorrectly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.precomputed.info import DTYPES, ENCODINGS
from wkwdask.geometry import compressed_morton

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.sharding import Sharding

_SUPPORT: dict[str, tuple[tuple[str, ...], tuple[int, ...] | None]] = {
    "raw": (DTYPES, None),
    "compressed_segmentation": (("uint32", "uint64"), None),
    "compresso": (("uint8", "uint16", "uint32", "uint64"), (1,)),
    "jpeg": (("uint8",), (1, 3)),
    "png": (("uint8", "uint16"), (1, 2, 3, 4)),
    "jxl": (("uint8",), (1, 3, 4)),
}
"""Data types and numbers of channels of each encoding (neuroglancer, ``precomputed/volume.rst``,
"Chunk encoding"); None for any number."""
_OPTION_RANGES = {
    "jpeg_quality": ("jpeg", 0, 100),
    "png_level": ("png", 0, 9),
    "jxl_quality": ("jxl", 0, 100),
    "jxl_effort": ("jxl", 1, 10),
    "jxl_decodingspeed": ("jxl", 0, 4),
}
_MAX_TEXTURE = 2048  # Neuroglancer loads a chunk as a three-dimensional WebGL texture
_MAX_COMPRESSO = 65535  # the header has 16 bits for each side
_MAX_INDEX_BITS = 20  # a shard index of 16 MiB
_MAX_COORDINATE = 1 << 53  # JavaScript's integers


def is_lossy(encoding: str, quality: float | None) -> bool:
    """Return whether an encoding changes voxels.

    Examples
    --------
    >>> is_lossy("jpeg", 100), is_lossy("jxl", None), is_lossy("jxl", 90)
    (True, False, True)
    """
    return encoding == "jpeg" or (encoding == "jxl" and quality is not None and quality < 100)


def check_encoding(encoding: str, dtype: Any, num_channels: int) -> None:
    """Raise ValueError if an encoding does not support a data type or a number of channels.

    Examples
    --------
    >>> check_encoding("png", "uint16", 4)
    """
    problems = list(_encoding_problems(encoding, np.dtype(dtype).name, num_channels))
    if problems:
        raise ValueError("; ".join(problems))


def check_writable(
    scale: Scale, dtype: Any, num_channels: int, kind: str, *, force: bool = False
) -> list[str]:
    """Raise ValueError if other readers cannot read a new scale, and return warnings about
    Neuroglancer."""
    name = np.dtype(dtype).name
    problems = [
        *_volume_problems(name, num_channels, kind),
        *_geometry_problems(scale),
        *_encoding_problems(scale.encoding, name, num_channels),
        *_option_problems(scale),
        *(() if scale.sharding is None else _sharding_problems(scale, scale.sharding)),
    ]
    if (
        kind == "segmentation"
        and not force
        and is_lossy(scale.encoding, scale.options.get("jxl_quality"))
    ):
        problems.append(
            f"{scale.encoding} changes the ids of a segmentation: choose compressed_segmentation, "
            "or force=True if that is what you want"
        )
    if problems:
        raise ValueError(f"scale {scale.key!r}: " + "; ".join(problems))
    return list(viewer_warnings(scale, name, num_channels))


def _volume_problems(dtype: str, num_channels: int, kind: str) -> Iterator[str]:
    if kind not in ("image", "segmentation"):
        yield f'type must be "image" or "segmentation", got {kind!r}'
    if dtype not in DTYPES:
        advice = {
            "int64": "uint64",
            "float64": "float32",
            "bool": "uint8",
            "float16": "float32",
        }.get(dtype, "one of these")
        yield f"the format has no {dtype}, only {', '.join(DTYPES)}: cast to {advice}"
    if num_channels < 1:
        yield f"num_channels must be at least 1, got {num_channels}"
    if kind == "segmentation" and num_channels != 1:
        yield f"a segmentation has one channel, got {num_channels}"
    if kind == "segmentation" and dtype in ("float32", "float64"):
        yield f"a segmentation has integers, got {dtype}"


def _geometry_problems(scale: Scale) -> Iterator[str]:
    if not scale.key:
        yield "key must not be empty"
    if min(scale.size) < 1:
        yield f"size must be positive, got {scale.size}"
    if any(min(chunk) < 1 for chunk in (scale.chunk_size, *scale.chunk_sizes)):
        yield f"chunk sizes must be positive, got {scale.chunk_sizes or scale.chunk_size}"
    if not all(0 < length < _MAX_COORDINATE for length in scale.resolution):
        yield f"resolution must be positive, got {scale.resolution}"
    if any(
        max(abs(first), abs(first + n)) > _MAX_COORDINATE
        for first, n in zip(scale.voxel_offset, scale.size, strict=True)
    ):
        yield f"{scale.size} voxels from {scale.voxel_offset} exceed the coordinate limit of 2^53"


def _encoding_problems(encoding: str, dtype: str, num_channels: int) -> Iterator[str]:
    if encoding not in ENCODINGS:
        yield f"encoding must be one of {', '.join(ENCODINGS)}, got {encoding!r}"
        return
    dtypes, channels = _SUPPORT[encoding]
    if dtype not in dtypes:
        yield f"{encoding} encodes {', '.join(dtypes)}, not {dtype}"
    if channels is not None and num_channels not in channels:
        yield (
            f"{encoding} encodes {' or '.join(str(n) for n in channels)} channels, not "
            f"{num_channels}"
        )


def _option_problems(scale: Scale) -> Iterator[str]:
    sizes = {scale.chunk_size, *scale.chunk_sizes}
    if scale.encoding == "compressed_segmentation" and (
        scale.block_size is None or min(scale.block_size) < 1
    ):
        yield f"compressed_segmentation needs a positive block size, got {scale.block_size}"
    if scale.encoding != "compressed_segmentation" and scale.block_size is not None:
        yield (
            "compressed_segmentation_block_size belongs to compressed_segmentation, not to "
            f"{scale.encoding}"
        )
    if scale.encoding == "compresso" and any(max(chunk) > _MAX_COMPRESSO for chunk in sizes):
        yield (
            f"compresso encodes sides of at most {_MAX_COMPRESSO} voxels, got chunks of "
            f"{scale.chunk_size}"
        )
    for name, value in scale.options.items():
        encoding, minimum, maximum = _OPTION_RANGES.get(name, (scale.encoding, 0, 0))
        if encoding != scale.encoding:
            yield f"{name} belongs to {encoding}, not to {scale.encoding}"
        elif name in _OPTION_RANGES and not (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and minimum <= value <= maximum
        ):
            yield f"{name} must be from {minimum} to {maximum}, got {value!r}"


def _sharding_problems(scale: Scale, sharding: Sharding) -> Iterator[str]:
    if len(scale.chunk_sizes) > 1:
        yield f"a sharded scale has one chunk size, got {len(scale.chunk_sizes)}"
    bits = (sharding.preshift_bits, sharding.minishard_bits, sharding.shard_bits)
    if (
        min(bits) < 0
        or max(bits[0], bits[1] + bits[2]) > compressed_morton.MAX_BITS
        or bits[1] > _MAX_INDEX_BITS
    ):
        yield (
            "preshift, minishard and shard bits must be from 0 to 64, with at most "
            f"{_MAX_INDEX_BITS} minishard bits, got {bits}"
        )
    if min(*scale.size, *scale.chunk_size) < 1:
        return
    needed = sum((cells - 1).bit_length() for cells in scale.grid)
    if needed > compressed_morton.MAX_BITS:
        yield (
            f"a grid of {scale.grid} chunks needs chunk identifiers of {needed} bits, more than "
            f"{compressed_morton.MAX_BITS}: choose larger chunks"
        )
    elif sharding.hash != "identity" or sum(bits) < needed:
        yield (
            f"a new shard must be a box of voxels: hash must be identity, and the bits {bits} must "
            f"cover identifiers of {needed} bits; "
            "choose_sharding returns such a sharding"
        )


def viewer_warnings(scale: Scale, dtype: str, num_channels: int) -> Iterator[str]:
    """Yield the reasons why Neuroglancer does not show a scale correctly."""
    if any(max(chunk) > _MAX_TEXTURE for chunk in (scale.chunk_size, *scale.chunk_sizes)):
        yield (
            f"Neuroglancer cannot show chunks with a side of more than {_MAX_TEXTURE} voxels, and "
            f"this scale has chunks of {scale.chunk_size}"
        )
    if scale.encoding == "png" and dtype == "uint16" and num_channels > 1:
        yield (
            f"Neuroglancer shows png of uint16 with {num_channels} channels incorrectly: choose "
            "raw, or one channel"
        )
    if scale.encoding == "jxl" and num_channels > 1:
        yield (
            f"Neuroglancer shows jxl with {num_channels} channels incorrectly or not at all: "
            "choose jpeg or png, or one channel"
        )
    if scale.encoding == "compresso" and dtype == "uint64":
        yield (
            "Neuroglancer truncates compresso ids of 2^32 and more: choose "
            "compressed_segmentation, or uint32"
        )
