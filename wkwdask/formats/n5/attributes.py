"""Parsed ``attributes.json`` of N5 datasets and groups: storage, voxel size and position. Does no
I/O.

An N5 group is any folder, and a dataset is a group whose attributes have ``dimensions`` (N5
specification 4.0.0). All lengths are listed with the fastest axis, x, first. The specification has
no axis names, voxel sizes or positions. Other software stores them by several conventions. Axis
names that are not understood are errors; other malformed attributes are ignored.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, UnsupportedError
from wkwdask.formats.axes import REMEDY, axes_of, axis_letter, names_in
from wkwdask.formats.n5.block import MAX_BLOCK_NBYTES, Compression, parse_compression
from wkwdask.model.json_text import Problems
from wkwdask.model.levels import is_number, is_whole_number
from wkwdask.store.paths import is_below, is_valid_path, stated_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wkwdask.model.json_text import JsonObject


FILE_NAME = "attributes.json"
VERSION = "4.0.0"
DTYPES = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
)
DATASET_KEYS = ("n5", "dimensions", "blockSize", "dataType", "compression", "compressionType")
"""Attributes that define the storage of a dataset, and the version of a container."""
FACTOR_LISTS = ("scales", "downsamplingFactors")
"""Attributes of a group that list the downsampling factors of its levels by their numbers."""
_MAX_AXIS_LENGTH = 1 << 53  # exact as a double, which JSON readers use
_MAX_AXES = 32


@dataclass(frozen=True, slots=True)
class N5Dataset:
    dimensions: tuple[int, ...]
    """Shape, x first."""
    block_size: tuple[int, ...]
    """Shape of a whole block, x first; blocks at the upper ends may be smaller."""
    dtype: np.dtype[Any]
    compression: Compression
    document: JsonObject = field(default_factory=dict, repr=False, compare=False)

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(
            -(-n // edge) for n, edge in zip(self.dimensions, self.block_size, strict=True)
        )

    @property
    def block_nbytes(self) -> int:
        return math.prod(self.block_size) * self.dtype.itemsize

    def to_json(self) -> JsonObject:
        lengths = {"dimensions": list(self.dimensions), "blockSize": list(self.block_size)}
        return {**lengths, "dataType": self.dtype.name, "compression": self.compression.to_json()}


def is_dataset(document: JsonObject) -> bool:
    return "dimensions" in document and "blockSize" in document


def parse_dataset(document: JsonObject, source: str) -> N5Dataset:
    """Parse the attributes of a dataset; CorruptError lists all problems."""
    problems = Problems()
    dimensions = _lengths(document.get("dimensions"), "dimensions", 0, problems)
    block_size = _lengths(document.get("blockSize"), "blockSize", 1, problems)
    if dimensions and block_size and len(dimensions) != len(block_size):
        problems.add(
            "blockSize",
            f"{len(dimensions)} numbers, as many as there are dimensions",
            list(block_size),
        )
    name = document.get("dataType")
    if name in ("object", "string"):
        raise UnsupportedError(
            f"{source}: dataType: holds {name}s, expected numbers: {', '.join(DTYPES)}"
        )
    if name not in DTYPES:
        problems.add("dataType", f"one of {', '.join(DTYPES)}", name)
    compression = parse_compression(document, source, problems)
    dtype = np.dtype(name if name in DTYPES else "uint8")
    if block_size and math.prod(block_size) * dtype.itemsize > MAX_BLOCK_NBYTES:
        problems.add("blockSize", f"blocks of at most {MAX_BLOCK_NBYTES} bytes", list(block_size))
    if problems.messages:
        raise CorruptError(f"{source}: " + "; ".join(problems.messages))
    if document.get("isLabelMultiset") is True:
        raise UnsupportedError(
            f"{source}: isLabelMultiset: several labels per voxel are not supported"
        )
    return N5Dataset(dimensions, block_size, dtype, compression, document)


def _lengths(value: Any, path: str, least: int, problems: Problems) -> tuple[int, ...]:
    if (
        isinstance(value, list)
        and 1 <= len(value) <= _MAX_AXES
        and all(is_whole_number(item) and least <= item <= _MAX_AXIS_LENGTH for item in value)
    ):
        return tuple(int(item) for item in value)
    problems.add(path, f"1..{_MAX_AXES} whole numbers of {least} to 2^53", value)
    return ()


# Axes are named by axes (objects with label and type: n5-ij), axisOrder (Paintera), transform, or
# by numChannels, numSlices and numFrames (n5-ij).
LEVEL_NAME = re.compile(r"s(\d+)", re.ASCII)
_USUAL_AXES = "xyzct"
_REMEDY = f'"axes" in {FILE_NAME} states others, such as ["x", "y", "z", "c"]; {REMEDY}, x first'


def level_number(name: str) -> int | None:
    """Return the number of a level named ``s0``, ``s1``..., None for another name."""
    match = LEVEL_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def level_names(group: Mapping[str, Any]) -> list[str]:
    """Return the paths of the datasets in ``multiscales``, finest first; empty if the group has no
    valid ``multiscales``."""
    try:
        names = [entry["path"] for entry in group["multiscales"][0]["datasets"]]
    except (KeyError, IndexError, TypeError):
        return []
    return names if all(isinstance(name, str) and is_valid_path(name) for name in names) else []


def is_inside(name: str) -> bool:
    """Return whether the path of a dataset leads into its group."""
    path = stated_path("/group", name)
    return is_below(path, "/group") and path != "/group"


def is_factor_list(value: Any) -> bool:
    """Return whether a JSON value is a list of the factors of several levels, by level number."""
    return isinstance(value, list) and all(
        isinstance(item, list) and item and all(is_number(factor) and factor > 0 for factor in item)
        for item in value
    )


def group_factors(group: Mapping[str, Any]) -> list[Any]:
    """Return the downsampling factors of all levels from the attributes of their group, by level
    number."""
    for name in FACTOR_LISTS:
        value = group.get(name)
        if value and is_factor_list(value):
            return list(value)
    return []


def dataset_axes(dataset: N5Dataset, attributes: Mapping[str, Any], source: str) -> str:
    """Return one letter per axis, ``-`` for an axis of length 1 that is not supported."""
    rank = len(dataset.dimensions)
    names, usual = axis_names(attributes, dataset.dimensions), _USUAL_AXES[:rank].ljust(rank, "-")
    return axes_of(names, dataset.dimensions, source, usual=usual, needed="x", remedy=_REMEDY)


def names_of_axes(dataset: N5Dataset, attributes: Mapping[str, Any], letters: str) -> list[str]:
    """Return the axis names of a dataset, fastest first: those that are stated, else its letters,
    and t for an axis without meaning."""
    stated = axis_names(attributes, dataset.dimensions) or [None] * len(letters)
    return [
        name if name and axis_letter(name) == letter else letter.replace("-", "t")
        for name, letter in zip(stated, letters, strict=True)
    ]


def axis_names(attributes: Mapping[str, Any], dimensions: Sequence[int]) -> list[str | None]:
    """Return the stated axis names of a dataset, fastest first; empty if there are none."""
    transform = attributes.get("transform")
    listed = names_in(transform.get("axes")) if isinstance(transform, dict) else []
    # C ordering: ``transform`` lists the slowest axis first, as numpy does
    of_transform = (
        listed if isinstance(transform, dict) and transform.get("ordering") == "F" else listed[::-1]
    )
    stated = (
        names_in(attributes.get("axes")),
        names_in(attributes.get("axisOrder")),
        of_transform,
        _imagej_axes(attributes, len(dimensions)),
    )
    return next((names for names in stated if any(names)), [])


def _imagej_axes(attributes: Mapping[str, Any], rank: int) -> list[str | None]:
    """Return the axes of a dataset that n5-ij wrote: channels, slices and frames in this order,
    each if there are several."""
    counts = [attributes.get(key) for key in ("numChannels", "numSlices", "numFrames")]
    if not all(isinstance(count, int) and not isinstance(count, bool) for count in counts):
        return []
    return (
        list("xyczt")
        if rank == 5
        else [
            "x",
            "y",
            *(letter for letter, count in zip("czt", counts, strict=True) if count != 1),
        ]
    )


def level_attributes(own: Mapping[str, Any], group: Mapping[str, Any], name: str) -> JsonObject:
    """Merge the attributes of a level with those of its group and its entry of ``multiscales``; its
    own take precedence."""
    merged = {
        key: value
        for key, value in group.items()
        if key not in (*FACTOR_LISTS, "transform", "multiscales")
    }
    with contextlib.suppress(KeyError, IndexError, TypeError, StopIteration):
        entry = next(
            entry for entry in group["multiscales"][0]["datasets"] if entry["path"] == name
        )
        merged["transform"] = entry["transform"]
    return {**merged, **own}
