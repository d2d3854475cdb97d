"""Parsed ``attributes.json`` of N5 datasets and groups: storage, voxel size and position. Does no I/O.

An N5 group is any folder, and a dataset is a group whose attributes have ``dimensions`` (N5 specification 4.0.0). All lengths are listed with the fastest axis,
x, first. The specification has no axis names, voxel sizes or positions. Other software stores them by several conventions. Axis names that are not
understood are errors; other malformed attributes are ignored.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, UnsupportedError
from wkwdask.formats.array_images import ArrayGeometry, guess_ratio, nm_per_unit, place_fault, xyz_values
from wkwdask.formats.axes import REMEDY, axes_of, names_in
from wkwdask.formats.n5.block import MAX_BLOCK_NBYTES, Compression, parse_compression
from wkwdask.model.json_text import Problems
from wkwdask.model.levels import base_level, factors_by_shape, mag_from_ratio, offset_from_centre, ratio_of, scale_lengths
from wkwdask.store.paths import is_below, is_valid_path, stated_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wkwdask.model.levels import Lengths

FILE_NAME = "attributes.json"
VERSION = "4.0.0"
DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64")
DATASET_KEYS = ("n5", "dimensions", "blockSize", "dataType", "compression", "compressionType")
"""Attributes that define the storage of a dataset, and the version of a container."""
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
    document: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(-(-n // edge) for n, edge in zip(self.dimensions, self.block_size, strict=True))

    @property
    def block_nbytes(self) -> int:
        return math.prod(self.block_size) * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        lengths = {"dimensions": list(self.dimensions), "blockSize": list(self.block_size)}
        return {**lengths, "dataType": self.dtype.name, "compression": self.compression.to_json()}


def is_dataset(document: dict[str, Any]) -> bool:
    return "dimensions" in document and "blockSize" in document


def parse_dataset(document: dict[str, Any], source: str) -> N5Dataset:
    """Parse the attributes of a dataset; CorruptError lists all problems."""
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
    if problems.messages:
        raise CorruptError(f"{source}: " + "; ".join(problems.messages))
    if document.get("isLabelMultiset") is True:
        raise UnsupportedError(f"{source}: isLabelMultiset: several labels per voxel are not supported")
    return N5Dataset(dimensions, block_size, dtype, compression, document)


def _lengths(value: Any, path: str, least: int, problems: Problems) -> tuple[int, ...]:
    if isinstance(value, list) and 1 <= len(value) <= _MAX_AXES and all(is_whole_number(item) and least <= item <= _MAX_AXIS_LENGTH for item in value):
        return tuple(int(item) for item in value)
    problems.add(path, f"1..{_MAX_AXES} whole numbers of {least} to 2^53", value)
    return ()


def is_whole_number(value: Any) -> bool:
    """Return whether a JSON value is an integer; 64.0 is one too."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and math.isfinite(value) and value == int(value))


# Conventions for voxel sizes and positions, in the order in which they are tried:
# 1. transform and multiscales: Janelia COSEM, WEBKNOSSOS;
# 2. downsamplingFactors, scales and pixelResolution: n5-viewer, BigDataViewer;
# 3. axes, resolution and units: Neuroglancer, tensorstore.
# Axes are named by axes (objects with label and type: n5-ij), axisOrder (Paintera), transform, or by numChannels, numSlices and numFrames (n5-ij).
LEVEL_NAME = re.compile(r"s(\d+)", re.ASCII)
_USUAL_AXES = "xyzct"
_REMEDY = f'"axes" in {FILE_NAME} states others, such as ["x", "y", "z", "c"]; {REMEDY}, x first'


def level_number(name: str) -> int | None:
    """Return the number of a level named ``s0``, ``s1``..., None for another name."""
    match = LEVEL_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def level_names(group: Mapping[str, Any]) -> list[str]:
    """Return the paths of the datasets in ``multiscales``, finest first; empty if the group has no valid ``multiscales``."""
    try:
        names = [entry["path"] for entry in group["multiscales"][0]["datasets"]]
    except (KeyError, IndexError, TypeError):
        return []
    return names if all(isinstance(name, str) and is_valid_path(name) for name in names) else []


def is_inside(name: str) -> bool:
    """Return whether the path of a dataset leads into its group."""
    path = stated_path("/group", name)
    return is_below(path, "/group") and path != "/group"


def group_factors(group: Mapping[str, Any]) -> list[Any]:
    """Return the downsampling factors of all levels from the attributes of their group, by level number."""
    for name in ("scales", "downsamplingFactors"):
        value = group.get(name)
        if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
            return value
    return []


def dataset_axes(dataset: N5Dataset, attributes: Mapping[str, Any], source: str) -> str:
    """Return one letter per axis, ``-`` for an axis of length 1 that is not supported."""
    rank = len(dataset.dimensions)
    names, usual = axis_names(attributes, dataset.dimensions), _USUAL_AXES[:rank].ljust(rank, "-")
    return axes_of(names, dataset.dimensions, source, usual=usual, needed="x", remedy=_REMEDY)


def axis_names(attributes: Mapping[str, Any], dimensions: Sequence[int]) -> list[str | None]:
    """Return the stated axis names of a dataset, fastest first; empty if there are none."""
    transform = attributes.get("transform")
    listed = names_in(transform.get("axes")) if isinstance(transform, dict) else []
    # C ordering: ``transform`` lists the slowest axis first, as numpy does
    of_transform = listed if isinstance(transform, dict) and transform.get("ordering") == "F" else listed[::-1]
    stated = (names_in(attributes.get("axes")), names_in(attributes.get("axisOrder")), of_transform, _imagej_axes(attributes, len(dimensions)))
    return next((names for names in stated if any(names)), [])


def _imagej_axes(attributes: Mapping[str, Any], rank: int) -> list[str | None]:
    """Return the axes of a dataset that n5-ij wrote: channels, slices and frames in this order, each if there are several."""
    counts = [attributes.get(key) for key in ("numChannels", "numSlices", "numFrames")]
    if not all(isinstance(count, int) and not isinstance(count, bool) for count in counts):
        return []
    return list("xyczt") if rank == 5 else ["x", "y", *(letter for letter, count in zip("czt", counts, strict=True) if count != 1)]


def _xyz_values(values: Any, letters: Sequence[str], default: float = 1.0) -> Lengths | None:
    """Return the values of x, y and z from a list with one number per axis, or with just these three; None if it is no such list."""
    has_xyz_only = isinstance(values, (list, tuple)) and len(values) == 3 != len(letters)
    return xyz_values(values, "xyz" if has_xyz_only else letters, default)


def _units(units: Any, letters: Sequence[str]) -> Lengths | None:
    """Return the nanometers per unit along x, y, z from a list with one unit per axis; None if it is no such list, or a unit is no length."""
    is_valid = isinstance(units, list) and len(units) == len(letters)
    return nm_per_unit(dict(zip(letters, units, strict=True)), "nm") if is_valid else None


def _parse_transform(attributes: Mapping[str, Any]) -> tuple[Lengths, Lengths] | None:
    """Return the voxel size and the centre of the first voxel [nm] of ``transform``, or None."""
    transform = attributes.get("transform")
    if not isinstance(transform, dict) or not isinstance(transform.get("axes"), list):
        return None
    letters = [str(name).lower() for name in transform["axes"]]
    scale = _xyz_values(transform.get("scale"), letters)
    shift = _xyz_values(transform.get("translate", [0.0] * len(letters)), letters, 0.0)
    per_unit = _units(transform.get("units"), letters)
    if scale is None or shift is None or min(scale) <= 0 or per_unit is None:
        return None
    return scale_lengths(scale, per_unit), scale_lengths(shift, per_unit)


def voxel_lengths_nm(attributes: Mapping[str, Any], letters: str) -> Lengths | None:
    """Return the voxel size along x, y, z [nm], or None if it is not stated."""
    transformed = _parse_transform(attributes)
    if transformed is not None:
        return transformed[0]
    resolution = attributes.get("pixelResolution")
    if isinstance(resolution, dict):
        lengths, units = _xyz_values(resolution.get("dimensions"), letters), [resolution.get("unit")] * len(letters)
    else:
        lengths, units = _xyz_values(attributes.get("resolution"), letters), attributes.get("units", ["nm"] * len(letters))
    per_unit = _units(units, letters)
    return scale_lengths(lengths, per_unit) if lengths is not None and min(lengths) > 0 and per_unit is not None else None


def level_factors(own: Mapping[str, Any], group: Mapping[str, Any], name: str, letters: str) -> Lengths | None:
    """Return the downsampling factors of a level along x, y, z, or None if they are not stated."""
    stated = own.get("downsamplingFactors")
    number = level_number(name)
    if stated is None and number is not None:
        by_number = group_factors(group)
        stated = by_number[number] if number < len(by_number) else None
    factors = _xyz_values(stated, letters)
    return factors if factors is not None and min(factors) > 0 else None


def level_attributes(own: Mapping[str, Any], group: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Merge the attributes of a level with those of its group and its entry of ``multiscales``; its own take precedence."""
    merged = {key: value for key, value in group.items() if key not in ("downsamplingFactors", "scales", "transform", "multiscales")}
    with contextlib.suppress(KeyError, IndexError, TypeError, StopIteration):
        entry = next(entry for entry in group["multiscales"][0]["datasets"] if entry["path"] == name)
        merged["transform"] = entry["transform"]
    return {**merged, **own}


def place_levels(
    levels: Sequence[tuple[str, N5Dataset | None, Mapping[str, Any]]], group: Mapping[str, Any], source: str
) -> list[ArrayGeometry | UnsupportedError]:
    """Return the geometry of each level; an error for a level with unsupported axes.

    A dataset is None if it cannot be read. Mags count from the finest level, readable or not.
    """
    errors: dict[int, UnsupportedError] = {}
    parsed = []
    for n, (name, dataset, attributes) in enumerate(levels):
        try:
            parsed.append(LevelMetadata.of(name, dataset, attributes, group, source))
        except UnsupportedError as error:
            errors[n] = error
            parsed.append(LevelMetadata.of(name, None, attributes, group, source))
    base = parsed[base_level(level_sizes(parsed), [level.dataset is not None for level in parsed])]
    return [errors[n] if n in errors else level.geometry(base) for n, level in enumerate(parsed)]


def level_sizes(levels: Sequence[LevelMetadata]) -> list[Lengths | None]:
    """Return comparable voxel sizes of levels by what all state: their voxel sizes, else their factors, else their shapes."""
    sizes = [level.voxel_size for level in levels]
    if None in sizes and any(level.factors for level in levels):
        sizes = [level.factors or (1.0, 1.0, 1.0) for level in levels]
    return [level.relative_size for level in levels] if None in sizes else sizes


@dataclass(frozen=True, slots=True)
class LevelMetadata:
    """Size and place of a level, as its attributes state them."""

    dataset: N5Dataset | None
    """None if it cannot be read."""
    letters: str
    lengths_nm: Lengths | None
    factors: Lengths | None
    transform: tuple[Lengths, Lengths] | None
    """Voxel size and centre of the first voxel [nm]."""

    @classmethod
    def of(cls, name: str, dataset: N5Dataset | None, attributes: Mapping[str, Any], group: Mapping[str, Any], source: str) -> LevelMetadata:
        """Parse the attributes of a level and its group; raises UnsupportedError for other axes."""
        letters = "xyz" if dataset is None else dataset_axes(dataset, attributes, f"{source}/{name}" if name else source)
        factors = level_factors({} if dataset is None else dataset.document, group, name, letters)
        return cls(dataset, letters, voxel_lengths_nm(attributes, letters), factors, _parse_transform(attributes))

    @property
    def size(self) -> tuple[int, int, int] | None:
        """Voxels along x, y, z; None if the dataset cannot be read."""
        if self.dataset is None:
            return None
        x, y, z = (self.dataset.dimensions[self.letters.index(letter)] if letter in self.letters else 1 for letter in "xyz")
        return x, y, z

    @property
    def voxel_size(self) -> Lengths | None:
        """Voxel size that ``transform`` states [nm]."""
        return None if self.transform is None else self.transform[0]

    @property
    def relative_size(self) -> Lengths | None:
        """Voxel size in relation to the other levels, by the shape."""
        if self.size is None:
            return None
        x, y, z = (1 / max(1, n) for n in self.size)
        return x, y, z

    def place_faults(self, base: LevelMetadata) -> Iterator[tuple[str, str, str]]:
        """Yield kind, found and expected values where the level does not cover the voxels of the finest one."""
        levels = (base, self)
        if self.transform is not None and base.transform is not None:
            scales, shifts = ([level.transform[n] for level in levels if level.transform is not None] for n in (0, 1))
        elif self.factors is not None:
            scales = [base.factors or (1.0, 1.0, 1.0), self.factors]
            shifts = [(a / 2, b / 2, c / 2) for a, b, c in scales]  # factors state no position
        else:
            return
        for n, axis in enumerate("xyz"):
            places = zip(levels, scales, shifts, strict=True)
            fault = place_fault(*((level.size[n], scale[n], shift[n]) for level, scale, shift in places if level.size is not None))
            if fault is not None and axis in self.letters:
                kind, found, expected = fault
                yield kind, f"{found} along {axis}", expected

    def geometry(self, base: LevelMetadata) -> ArrayGeometry:
        """Return the geometry relative to the finest level: by ``transform``, by factors, or guessed from the shapes."""
        if self.transform is not None and base.transform is not None:
            ratio: Lengths | None = factors_by_shape(ratio_of(self.transform[0], base.transform[0]), base.size, self.size)
        elif self.factors is not None:
            ratio = factors_by_shape(ratio_of(self.factors, base.factors or (1.0, 1.0, 1.0)), base.size, self.size)
        elif base.size is None or self.size is None:
            ratio = None
        else:
            guess = guess_ratio(base.size, self.size)
            ratio = guess if min(guess) >= 1 else None
        # the voxel size of the finest level times the ratio, so that mags and voxel sizes agree
        lengths = None if base.lengths_nm is None or ratio is None else scale_lengths(base.lengths_nm, ratio)
        offset = (0, 0, 0)
        if self.transform is not None and ratio is not None:
            offset = offset_from_centre(self.transform[1], base.voxel_size or ratio_of(self.transform[0], ratio), ratio)
        return ArrayGeometry(self.letters, mag_from_ratio(ratio), lengths, offset)
