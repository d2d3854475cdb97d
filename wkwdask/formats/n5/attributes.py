"""What the ``attributes.json`` of an N5 dataset and its group say: how the dataset is stored, and where it lies. Opens nothing.

An N5 group is any folder, and a dataset a group whose attributes have ``dimensions``; all lengths are listed with the fastest axis first, which is x.

Of places these are read, in this order: ``transform`` and ``multiscales`` (Janelia COSEM, WEBKNOSSOS), ``downsamplingFactors``, ``scales`` and
``pixelResolution`` (n5-viewer, BigDataViewer), ``axes``, ``resolution`` and ``units`` (Neuroglancer, tensorstore). Nothing of that is part of the N5
specification, so what makes no sense is left aside instead of being an error.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, UnsupportedError
from wkwdask.formats.array_images import ArrayGeometry, axis_letters
from wkwdask.formats.n5.block import MAX_BLOCK_NBYTES, Compression, parse_compression
from wkwdask.model.json_text import Problems
from wkwdask.model.levels import is_number, length_nm, mag_of, offset_of, ratio_of, times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wkwdask.model.levels import Lengths

FILE_NAME = "attributes.json"
VERSION = "4.0.0"
DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64")
DATASET_KEYS = ("n5", "dimensions", "blockSize", "dataType", "compression", "compressionType")
"""Attributes that say how a dataset is stored."""
_MAX_AXIS_LENGTH = 1 << 53
_MAX_AXES = 32


@dataclass(frozen=True, slots=True)
class N5Dataset:
    """How a dataset is stored."""

    dimensions: tuple[int, ...]
    """Its lengths, x first."""
    block_size: tuple[int, ...]
    """Lengths of a block, which those at the upper ends may fall short of."""
    dtype: np.dtype[Any]
    """Type of its values, in native byte order."""
    compression: Compression
    document: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All that the JSON says."""

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks along each axis."""
        return tuple(-(-n // edge) for n, edge in zip(self.dimensions, self.block_size, strict=True))

    @property
    def block_nbytes(self) -> int:
        """Bytes of a whole block's values."""
        return math.prod(self.block_size) * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """Give what ``attributes.json`` says of it."""
        lengths = {"dimensions": list(self.dimensions), "blockSize": list(self.block_size)}
        return {**lengths, "dataType": self.dtype.name, "compression": self.compression.to_json()}


def is_dataset(document: dict[str, Any]) -> bool:
    """Tell whether attributes are those of a dataset."""
    return "dimensions" in document and "blockSize" in document


def parse_dataset(document: dict[str, Any], source: str) -> N5Dataset:
    """Read the attributes of a dataset."""
    problems = Problems()
    dimensions = _lengths(document.get("dimensions"), "dimensions", 0, problems)
    block_size = _lengths(document.get("blockSize"), "blockSize", 1, problems)
    if dimensions and block_size and len(dimensions) != len(block_size):
        problems.add("blockSize", f"{len(dimensions)} numbers, as many as there are dimensions", list(block_size))
    name = document.get("dataType")
    if name in ("object", "string"):
        raise UnsupportedError(f"{source}: dataType: holds {name}s, expected numbers: {', '.join(DTYPES)}")
    if name not in DTYPES:
        problems.add("dataType", f"one of {', '.join(DTYPES)}", name)
    compression = parse_compression(document, source, problems)
    dtype = np.dtype(name if name in DTYPES else "uint8")
    if block_size and math.prod(block_size) * dtype.itemsize > MAX_BLOCK_NBYTES:
        problems.add("blockSize", f"blocks of at most {MAX_BLOCK_NBYTES} bytes", list(block_size))
    if problems.found:
        raise CorruptError(f"{source}: " + "; ".join(problems.found))
    if document.get("isLabelMultiset") is True:
        raise UnsupportedError(f"{source}: isLabelMultiset: holds several labels for each voxel, which is not read")
    return N5Dataset(dimensions, block_size, dtype, compression, document)


def _lengths(value: Any, path: str, least: int, problems: Problems) -> tuple[int, ...]:
    if isinstance(value, list) and 1 <= len(value) <= _MAX_AXES and all(is_whole_number(item) and least <= item <= _MAX_AXIS_LENGTH for item in value):
        return tuple(int(item) for item in value)
    problems.add(path, f"1..{_MAX_AXES} whole numbers of {least} to 2^53", value)
    return ()


def is_whole_number(value: Any) -> bool:
    """Tell whether a value of a JSON is a whole number; one written as 64.0 is."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and math.isfinite(value) and value == int(value))


LEVEL_NAME = re.compile(r"s(\d+)", re.ASCII)
_DEFAULT_AXES = "xyzct"


def level_number(name: str) -> int | None:
    """Give the number of a level that is named like one (``s0``, ``s1``...), None for another name."""
    found = LEVEL_NAME.fullmatch(name)
    return None if found is None else int(found[1])


def level_names(group: Mapping[str, Any]) -> list[str]:
    """List the datasets that a group's ``multiscales`` name, finest first; none where there is no such attribute."""
    try:
        names = [entry["path"] for entry in group["multiscales"][0]["datasets"]]
    except (KeyError, IndexError, TypeError):
        return []
    is_inside = all(isinstance(name, str) and name and not name.startswith("/") and ".." not in name.split("/") for name in names)
    return names if is_inside else []


def group_factors(group: Mapping[str, Any]) -> list[Any]:
    """List the factors of downsampling that a group's attributes have for all levels, by their numbers."""
    for name in ("scales", "downsamplingFactors"):
        value = group.get(name)
        if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
            return value
    return []


def axes_of(dataset: N5Dataset, attributes: Mapping[str, Any], source: str) -> str:
    """Say which axis is which."""
    rank = len(dataset.dimensions)
    names = axis_names(attributes, rank) or list(_DEFAULT_AXES[:rank].ljust(rank, "-"))
    letters = axis_letters(names)
    odd = [n for n, letter in enumerate(letters) if (letter == "-" or letter in letters[:n]) and dataset.dimensions[n] != 1]
    if odd or "x" not in letters:
        what = f"an axis {names[odd[0]]!r} of length {dataset.dimensions[odd[0]]}" if odd else "no axis x"
        raise UnsupportedError(f"{source}: has {what}; datasets are read that have the axes x, y, z and c")
    return "".join("-" if letter in letters[:n] else letter for n, letter in enumerate(letters))


def axis_names(attributes: Mapping[str, Any], rank: int) -> list[str] | None:
    """Read the names of the axes of a dataset, first to last, None where its attributes have none."""
    names, transform = _parse_axis_names(attributes.get("axes"), rank), attributes.get("transform")
    if names is not None or not isinstance(transform, dict):
        return names
    names = _parse_axis_names(transform.get("axes"), rank)
    if names is None or transform.get("ordering") == "F":
        return names
    return names[::-1]  # as numpy lists axes


def _parse_axis_names(value: Any, rank: int) -> list[str] | None:
    """Take names of axes, where they are some."""
    if not isinstance(value, list) or len(value) != rank or not all(isinstance(name, str) for name in value):
        return None
    names = [name.lower() for name in value]
    return names if "x" in names and len(set(names)) == rank else None


def _xyz_values(values: Sequence[Any] | Any, letters: Sequence[str], default: float = 1.0) -> Lengths | None:
    """Pick the numbers of x, y and z out of one for each axis; None where they are none."""
    if not isinstance(values, (list, tuple)) or len(values) not in (len(letters), 3):
        return None
    letters = letters if len(values) == len(letters) else "xyz"
    named = dict(zip(letters, values, strict=True))
    found = [named.get(letter, default) for letter in "xyz"]
    if not all(map(is_number, found)):
        return None
    return float(found[0]), float(found[1]), float(found[2])


def _parse_transform(attributes: Mapping[str, Any]) -> tuple[Lengths, Lengths] | None:
    """Read the lengths of a voxel and the centre of the first one [nm] of ``transform``."""
    transform = attributes.get("transform")
    if not isinstance(transform, dict) or not isinstance(transform.get("axes"), list):
        return None
    letters = [str(name).lower() for name in transform["axes"]]
    scale = _xyz_values(transform.get("scale"), letters)
    shift = _xyz_values(transform.get("translate", [0.0] * len(letters)), letters, 0.0)
    per_unit = _nm_per_unit(transform.get("units"), letters)
    if scale is None or shift is None or min(scale) <= 0 or per_unit is None:
        return None
    return times(scale, per_unit), times(shift, per_unit)


def _nm_per_unit(units: Any, letters: Sequence[str]) -> Lengths | None:
    """Turn the units of all axes into nanometers along x, y, z; None where one is none."""
    if not isinstance(units, list) or len(units) != len(letters):
        return None
    named = dict(zip(letters, units, strict=True))
    with contextlib.suppress(ValueError):
        x, y, z = (length_nm(1.0, str(named.get(letter, "nm"))) for letter in "xyz")
        return x, y, z
    return None


def voxel_lengths_nm(attributes: Mapping[str, Any], letters: str) -> Lengths | None:
    """Read how long a voxel is along x, y, z [nm], None where nobody says it."""
    transformed = _parse_transform(attributes)
    if transformed is not None:
        return transformed[0]
    resolution = attributes.get("pixelResolution")
    if isinstance(resolution, dict):
        lengths, units = _xyz_values(resolution.get("dimensions"), letters), [resolution.get("unit")] * len(letters)
    else:
        lengths, units = _xyz_values(attributes.get("resolution"), letters), attributes.get("units", ["nm"] * len(letters))
    per_unit = _nm_per_unit(units, letters)
    return times(lengths, per_unit) if lengths is not None and min(lengths) > 0 and per_unit is not None else None


def level_factors(own: Mapping[str, Any], group: Mapping[str, Any], name: str, letters: str) -> Lengths | None:
    """Read how much a level was downsampled along x, y, z, None where nobody says it."""
    found = own.get("downsamplingFactors")
    number = level_number(name)
    if found is None and number is not None:
        listed = group_factors(group)
        found = listed[number] if number < len(listed) else None
    factors = _xyz_values(found, letters)
    return factors if factors is not None and min(factors) > 0 else None


def level_attributes(own: Mapping[str, Any], group: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Join what a level says of itself with what its group's ``multiscales`` and other attributes say of it."""
    merged = {key: value for key, value in group.items() if key not in ("downsamplingFactors", "scales", "transform", "multiscales")}
    with contextlib.suppress(KeyError, IndexError, TypeError, StopIteration):
        entry = next(entry for entry in group["multiscales"][0]["datasets"] if entry["path"] == name)
        merged["transform"] = entry["transform"]
    return {**merged, **own}


def place_levels(levels: Sequence[tuple[str, N5Dataset, Mapping[str, Any]]], group: Mapping[str, Any], source: str) -> list[ArrayGeometry | UnsupportedError]:
    """Place the levels of a group beside each other."""
    placed: list[ArrayGeometry | UnsupportedError] = []
    base: _LevelMetadata | None = None
    for name, dataset, attributes in levels:
        try:
            letters = axes_of(dataset, attributes, f"{source}/{name}" if name else source)
        except UnsupportedError as error:
            placed.append(error)
            continue
        level = _LevelMetadata(
            dataset, letters, voxel_lengths_nm(attributes, letters), level_factors(dataset.document, group, name, letters), _parse_transform(attributes)
        )
        base = base or level
        placed.append(level.placed_against(base))
    return placed


@dataclass(frozen=True, slots=True)
class _LevelMetadata:
    """What one level says of itself."""

    dataset: N5Dataset
    letters: str
    lengths_nm: Lengths | None
    factors: Lengths | None
    transform: tuple[Lengths, Lengths] | None

    def placed_against(self, base: _LevelMetadata) -> ArrayGeometry:
        """Place it beside the finest level."""
        if self.transform is not None and base.transform is not None:
            ratio: Lengths | None = ratio_of(self.transform[0], base.transform[0])
        elif self.factors is not None:
            ratio = ratio_of(self.factors, base.factors or (1.0, 1.0, 1.0))
        else:
            ratio = _guess_ratio(base.dataset, base.letters, self.dataset, self.letters)
        lengths = None if base.lengths_nm is None or ratio is None else times(base.lengths_nm, ratio)
        offset = (0, 0, 0)
        if self.transform is not None and base.transform is not None and ratio is not None:
            offset = offset_of(self.transform[1], base.transform[0], ratio)
        return ArrayGeometry(self.letters, mag_of(ratio), lengths, offset)


def _guess_ratio(first: N5Dataset, first_letters: str, dataset: N5Dataset, letters: str) -> Lengths | None:
    """Guess by how much a level was downsampled of which only the lengths are known: by the power of two that is nearest."""
    before, after = dict(zip(first_letters, first.dimensions, strict=True)), dict(zip(letters, dataset.dimensions, strict=True))
    factors = [2.0 ** round(math.log2(max(1, before.get(letter, 1)) / max(1, after.get(letter, 1)))) for letter in "xyz"]
    return (factors[0], factors[1], factors[2]) if min(factors) >= 1 else None
