"""OME-NGFF ("OME-Zarr") metadata of the arrays of a group: axes, voxel sizes and translations. Does
no I/O.

Reads versions 0.1 to 0.6 and writes 0.4 to 0.6. The specification leaves open whether a coordinate
is the center or a corner of a voxel. wkwdask writes centers: coordinate 0 is the center of voxel 0
of mag 1, as most readers assume.
"""

from __future__ import annotations

import contextlib
import copy
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import UnsupportedError
from wkwdask.formats.array_images import ArrayGeometry, guess_ratio, nm_per_unit, xyz_values
from wkwdask.formats.axes import axis_letter, name_by_type, names_in
from wkwdask.formats.zarr.coordinate_systems import INTRINSIC, dataset_entry, parse_placed, steps_of
from wkwdask.model.levels import (
    base_level,
    factors_by_shapes,
    finest_first,
    is_number,
    lengths_in,
    mag_from_ratio,
    offset_from_center,
    ratio_of,
    scale_lengths,
)
from wkwdask.model.placement import plain_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths


VERSIONS = ("0.6", "0.5", "0.4")
DEFAULT_VERSION = "0.5"
_DRAFT_OF_06 = re.compile(r"0\.6[.-]?(dev|a|b|rc)\d*")
LABELS = "labels"
"""Name of the group in an image that lists its label images (OME-NGFF 0.5, "labels")."""
_RED_GREEN_BLUE = ("FF0000", "00FF00", "0000FF")


@dataclass(frozen=True, slots=True)
class PyramidLevel:
    """Array of an image that is written."""

    path: str
    lengths: Lengths
    translation: Lengths
    """Center of its voxel 0 along x, y, z."""


def pyramid_level(path: str, mag: Mag, topleft: Vec3, voxel_size: Lengths | None) -> PyramidLevel:
    """Return the level of a mag whose array begins at a voxel of that mag.

    Examples
    --------
    >>> from wkwdask.geometry.mag import Mag
    >>> pyramid_level("2-2-1", Mag(2, 2, 1), (10, 0, 0), (4, 4, 40)).translation
    (82.0, 2.0, 0.0)
    """
    size = (1.0, 1.0, 1.0) if voxel_size is None else voxel_size
    lengths = lengths_in(mag, size)
    # A voxel of mag m covers m voxels of mag 1, so its center lies (m - 1) / 2 of them further:
    #     mag 1   | 0 | 1 | 2 | 3 |      centers at 0, 1, 2, 3
    #     mag 2   |   0   |   1   |      centers at 0.5, 2.5: scale 2, translation 0.5
    shift = [
        first * length + (factor - 1) / 2 * base
        for first, length, factor, base in zip(topleft, lengths, mag.factors, size, strict=True)
    ]
    return PyramidLevel(path, lengths, (shift[0], shift[1], shift[2]))


def is_written(version: str) -> bool:
    """Return whether images of a version can be written and extended."""
    return version in VERSIONS or has_systems(version)


def has_systems(version: str) -> bool:
    """Return whether images of a version have coordinate systems: 0.6 and its drafts."""
    return version == "0.6" or _DRAFT_OF_06.fullmatch(version) is not None


def zarr_format_of(version: str) -> int:
    """Return the version of Zarr in which a version of OME-NGFF is stored."""
    return 2 if version == "0.4" else 3


@dataclass(frozen=True, slots=True)
class ImageAxes:
    """Axes of an image that is written."""

    letters: str
    """One for each axis, ``-`` for an axis of length 1 that is neither spatial nor channels."""
    named: Sequence[Mapping[str, Any]]
    """The axes as metadata state them."""
    scale: tuple[float, ...]
    """Along each axis, the stored scale of a voxel of 1 nm, or of any voxel if the axis is not
    spatial."""
    shift: tuple[float, ...]
    """Along each axis, what the translations of levels have to add."""

    @classmethod
    def of_letters(cls, letters: str, unit: str | None = "nanometer") -> ImageAxes:
        """Return the axes of a new image."""
        space = {"type": "space", "unit": unit} if unit else {"type": "space"}
        named = [
            {"name": "c", "type": "channel"} if letter == "c" else {"name": letter, **space}
            for letter in letters
        ]
        return cls(letters, named, (1.0,) * len(letters), (0.0,) * len(letters))

    @classmethod
    def of_image(
        cls, image: Mapping[str, Any], named: Sequence[Mapping[str, Any]]
    ) -> ImageAxes | None:
        """Return the axes of an entry of ``multiscales``; None if new levels cannot have them."""
        letters = "".join(axis_letter(str(name_by_type(axis))) for axis in named)
        units = {
            letter: axis.get("unit")
            for letter, axis in zip(letters, named, strict=True)
            if letter in "xyz"
        }
        lengths = (1.0, 1.0, 1.0) if set(units.values()) <= {None} else nm_per_unit(units, None)
        # The transformations of the whole image apply after those of a level (OME-NGFF 0.5,
        # "multiscales").
        common = _parse_level(
            {"path": ""},
            () if "coordinateSystems" in image else image.get("coordinateTransformations") or (),
        )
        first = next((scale_of(entry) for entry in image["datasets"]), ())
        factors, moves = (
            (common.scale or (1.0,) * len(named)),
            (common.translation or (0.0,) * len(named)),
        )
        if (
            letters.replace("-", "") not in ("zyx", "czyx")
            or lengths is None
            or not len(factors) == len(moves) == len(named)
            or 0 in factors
        ):
            return None
        nm = dict(zip("xyz", lengths, strict=True))
        others = first if len(first) == len(named) else (1.0,) * len(named)
        scale = tuple(
            1 / (nm[letter] * factor) if letter in nm else other
            for letter, factor, other in zip(letters, factors, others, strict=True)
        )
        return cls(
            letters,
            named,
            scale,
            tuple(0.0 - move / factor for move, factor in zip(moves, factors, strict=True)),
        )

    def entry(self, level: PyramidLevel) -> dict[str, Any]:
        """Return the dataset entry of a level."""
        scale, shift = list(self.scale), list(self.shift)
        for letter, length, place in zip("xyz", level.lengths, level.translation, strict=True):
            n = self.letters.find(letter)
            if n < 0:
                continue
            scale[n], shift[n] = length * self.scale[n], place * self.scale[n] + self.shift[n]
        return dataset_entry(level.path, [float(n) for n in scale], [float(n) for n in shift])

    def lengths_nm(self, scale: Sequence[float]) -> Lengths | None:
        """Return the edge lengths of a voxel in nanometers from the scale of a dataset entry, None
        if it has none."""
        if len(scale) != len(self.letters) or min(scale) <= 0:
            return None
        x, y, z = (scale[n] / self.scale[n] for n in map(self.letters.index, "xyz"))
        return x, y, z


def multiscale(
    name: str, levels: Iterable[PyramidLevel], axes: ImageAxes, version: str = DEFAULT_VERSION
) -> dict[str, Any]:
    entries = list(map(axes.entry, levels))
    datasets = (
        entries
        if has_systems(version)
        else [{**entry, "coordinateTransformations": list(steps_of(entry))} for entry in entries]
    )
    named = list(axes.named)
    systems = (
        {"coordinateSystems": [{"name": INTRINSIC, "axes": named}]}
        if has_systems(version)
        else {"axes": named}
    )
    return {"name": name, **systems, "datasets": merge_entries([], datasets)}


def merge_entries(
    datasets: Sequence[dict[str, Any]], new: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Merge dataset entries, finest first; new ones replace those of the same plain path, except
    for fields of other software."""
    by_path = {plain_name(entry["path"]): entry for entry in datasets}
    for entry in new:
        path = plain_name(entry["path"])
        by_path[path] = {**by_path.get(path, {}), **entry}
    entries = list(by_path.values())
    return [entries[n] for n in finest_first(list(map(scale_of, entries)))]


def is_valid_entry(entry: Any) -> bool:
    """Return whether a dataset entry has a path, and a scale for each axis if it has one."""
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        return False
    steps = entry.get("coordinateTransformations", [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        return False
    scales = [step.get("scale") for step in steps_of(entry) if step.get("type") == "scale"]
    return all(
        isinstance(scale, list) and len(scale) >= 2 and all(map(is_number, scale))
        for scale in scales
    )


def scale_of(entry: Mapping[str, Any]) -> list[float]:
    """Return the scale of a dataset entry along all axes, or a single zero if it has none."""
    return next(
        (
            list(map(float, step["scale"]))
            for step in steps_of(entry)
            if step.get("type") == "scale"
        ),
        [0.0],
    )


def rgb_range(dtype: np.dtype[Any], num_channels: int) -> tuple[float, float] | None:
    """Return the value range of RGB channels, or None if the channels are not RGB."""
    return (
        (0, int(np.iinfo(dtype).max))
        if num_channels == 3 and dtype.kind == "u" and dtype.itemsize <= 2
        else None
    )


def image_attributes(
    image: dict[str, Any],
    *,
    version: str,
    is_label: bool = False,
    rgb: Sequence[float] | None = None,
) -> dict[str, Any]:
    more: dict[str, Any] = (
        {"image-label": {} if zarr_format_of(version) == 3 else {"version": version}}
        if is_label
        else {}
    )
    if rgb is not None:
        window = {"min": rgb[0], "max": rgb[1], "start": rgb[0], "end": rgb[1]}
        more["omero"] = {
            "channels": [
                {"color": color, "window": window, "active": True} for color in _RED_GREEN_BLUE
            ]
        }
    if zarr_format_of(version) == 3:
        return {"ome": {"version": version, "multiscales": [image], **more}}
    return {"multiscales": [{"version": version, **image}], **more}


def attributes_for_viewer(
    attributes: Mapping[str, Any], source: str, finest: Mag, *, is_rgb: bool
) -> dict[str, Any]:
    """Return the attributes of an image of version 0.4 or 0.5 as Neuroglancer shall read them.

    ``finest`` is the mag of its finest level. Images of other formats have the corner of voxel 0 at
    coordinate 0. OME-NGFF has its center there, which Neuroglancer respects, so all coordinates are
    moved by half a voxel of mag 1. Three channels are one color: Neuroglancer passes channels to
    the shader together if the name of their axis ends in ``^``.
    """
    shown: dict[str, Any] = copy.deepcopy(dict(attributes))
    parsed, image = parse_image(attributes, source), ome_of(shown)["multiscales"][0]
    if parsed is not None:
        order = [level.path for level in parsed.levels]
        image["datasets"].sort(key=lambda entry: order.index(str(entry["path"])))
    if parsed is not None and parsed.levels[0].scale is not None:
        factors = dict(zip("xyz", finest.factors, strict=True))
        lengths = zip(map(axis_letter, map(str, parsed.axes)), parsed.levels[0].scale, strict=True)
        half = {
            "type": "translation",
            "translation": [length / factors.get(letter, 1) / 2 for letter, length in lengths],
        }
        image["coordinateTransformations"] = [*image.get("coordinateTransformations", ()), half]
    for axis in image["axes"] if is_rgb else ():
        if axis.get("type") == "channel":
            axis["name"] += "^"
            del axis["type"]  # Neuroglancer would make it a slider
    return shown


def ome_of(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of the attributes of a group that OME-NGFF defines: all of them before
    version 0.5."""
    inner = attributes.get("ome")
    return inner if isinstance(inner, dict) else attributes


def stated_version(attributes: Mapping[str, Any]) -> str:
    """Return the version of an image, by its coordinate systems if it is not stated."""
    ome = ome_of(attributes)
    image = ome["multiscales"][0]
    return str(
        ome.get("version", image.get("version", "0.6" if "coordinateSystems" in image else "0.4"))
    )


def label_attributes(names: Sequence[str], version: str) -> dict[str, Any]:
    return (
        {"ome": {"version": version, "labels": list(names)}}
        if zarr_format_of(version) == 3
        else {"labels": list(names)}
    )


_KNOWN_VERSION = re.compile(r"0\.[1-6](\D.*)?")


@dataclass(frozen=True, slots=True)
class NgffLevel:
    """Array of an image that is read."""

    path: str
    scale: tuple[float, ...] | None
    """Size of a voxel along all axes; None if not stated."""
    translation: tuple[float, ...] | None
    """Center of voxel 0 along all axes; None if not stated."""


@dataclass(frozen=True, slots=True)
class NgffImage:
    """Parsed first entry of ``multiscales``."""

    axes: tuple[str | None, ...]
    """Axis names, ``c`` for one of the type channel; empty if not stated, as in versions 0.1 and
    0.2."""
    units: tuple[str | None, ...]
    levels: tuple[NgffLevel, ...]
    is_labels: bool = False
    system: str | None = None
    """Name of the coordinate system of the axes, since version 0.6."""
    ignored: tuple[str, ...] = ()
    """Transformations that are not applied."""


def versions_of(attributes: Mapping[str, Any]) -> list[str]:
    """Return the versions that the attributes of a group state for its images; none if there are no
    images."""
    ome = ome_of(attributes)
    listed = ome.get("multiscales")
    images = (
        [image for image in listed if isinstance(image, dict)] if isinstance(listed, list) else []
    )
    return (
        [str(entry["version"]) for entry in (ome, *images) if entry.get("version") is not None]
        if images
        else []
    )


def check_version(attributes: Mapping[str, Any], source: str) -> None:
    """Raise UnsupportedError for an image of an unknown version."""
    versions = versions_of(attributes)
    unknown = next((version for version in versions if not _KNOWN_VERSION.fullmatch(version)), None)
    if unknown is None:
        return
    path = "ARRAY"
    with contextlib.suppress(LookupError, TypeError):
        path = str(attributes.get("ome", attributes)["multiscales"][0]["datasets"][0]["path"])
    raise UnsupportedError(
        f"{source}: found an OME-NGFF image with version {unknown!r}, expected one of version 0.1 "
        "to 0.6; "
        f"zarr://{source}/{path} opens one of its arrays, without voxel size and position"
    )


def parse_image(attributes: Mapping[str, Any], source: str) -> NgffImage | None:
    """Parse the attributes of a group; None if they describe no image. Raises CorruptError for
    invalid coordinate systems."""
    check_version(attributes, source)
    ome = attributes.get("ome", attributes)
    try:
        first = ome["multiscales"][0]
        if "coordinateSystems" in first or (
            has_systems(str(ome.get("version"))) and "axes" not in first
        ):
            return _parse_placed(first, source, is_labels="image-label" in ome)
        axes, units = _parse_axes(first.get("axes"))
        common = first.get("coordinateTransformations") or []
        levels = tuple(_parse_level(entry, common) for entry in first["datasets"])
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    if not levels:
        return None
    unusable = tuple(text for level in levels for text in _unusable(level, len(axes)))
    return NgffImage(axes, units, _finest_first(levels), "image-label" in ome, ignored=unusable)


def _unusable(level: NgffLevel, num_axes: int) -> Iterator[str]:
    """Describe the transformations of a level that place no array of some axes."""
    for name, numbers in (("scale", level.scale), ("translation", level.translation)):
        if num_axes and numbers is not None and len(numbers) != num_axes:
            yield f"{name} of the array {level.path!r}, {len(numbers)} numbers for {num_axes} axes"
    if level.scale is not None and min(level.scale) <= 0:
        yield f"scale of the array {level.path!r}, which is not positive: {list(level.scale)}"


def _parse_placed(image: Mapping[str, Any], source: str, *, is_labels: bool) -> NgffImage:
    """Parse an entry of ``multiscales`` with the coordinate systems of version 0.6."""
    placed = parse_placed(image, f"{source}: multiscales[0]")
    levels = tuple(
        NgffLevel(path, *((None, None) if place is None else (place.scale, place.translation)))
        for path, place in placed.placements
    )
    axes, units = _parse_axes(list(placed.axes))
    return NgffImage(axes, units, _finest_first(levels), is_labels, placed.system, placed.ignored)


def _parse_axes(value: Any) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    """Return the names and units of the axes; two empty tuples if no axis is named."""
    names = [None if name is None else name.lower() for name in names_in(value or None)]
    if not any(names):
        return (), ()
    units = (
        [axis.get("unit") if isinstance(axis, dict) else None for axis in value]
        if isinstance(value, list)
        else [None] * len(names)
    )
    return tuple(names), tuple(units)


def _finest_first(levels: tuple[NgffLevel, ...]) -> tuple[NgffLevel, ...]:
    """Sort levels by voxel size, as the specification requires."""
    return tuple(levels[n] for n in finest_first([level.scale for level in levels]))


def _parse_level(entry: Mapping[str, Any], common: Sequence[Mapping[str, Any]]) -> NgffLevel:
    """Parse one dataset entry. The transformations of the whole image apply after its own (OME-NGFF
    0.5, "multiscales")."""
    scale: list[float] | None = None
    translation: list[float] | None = None
    for step in [*(entry.get("coordinateTransformations") or []), *common]:
        factors, moves = _parse_numbers(step.get("scale")), _parse_numbers(step.get("translation"))
        if step.get("type") == "scale" and factors is not None:
            scale = (
                factors if scale is None else [a * b for a, b in zip(scale, factors, strict=False)]
            )
            translation = (
                None
                if translation is None
                else [a * b for a, b in zip(translation, factors, strict=False)]
            )
        elif step.get("type") == "translation" and moves is not None:
            translation = (
                moves
                if translation is None
                else [a + b for a, b in zip(translation, moves, strict=False)]
            )
    return NgffLevel(
        str(entry["path"]),
        None if scale is None else tuple(scale),
        None if translation is None else tuple(translation),
    )


def _parse_numbers(value: Any) -> list[float] | None:
    if not isinstance(value, list) or not value or not all(map(is_number, value)):
        return None
    return [float(n) for n in value]


def place_levels(
    image: NgffImage, axes: Sequence[str], shapes: Sequence[Sequence[int] | None]
) -> list[ArrayGeometry]:
    """Return the mag, voxel size and offset of each level of an image, by scales, or by shapes if a
    scale is missing.

    A shape is None if the array cannot be read. Mags count from the finest level that the image
    lists, readable or not.
    """
    units = _image_nm_per_unit(image)
    scales = [
        xyz_values(level.scale, letters, 1.0)
        for level, letters in zip(image.levels, axes, strict=True)
    ]
    known = [scale for scale in scales if scale is not None and min(scale) > 0]
    sizes = [
        None if shape is None else xyz_values(shape, letters, 1.0) or (1.0, 1.0, 1.0)
        for letters, shape in zip(axes, shapes, strict=True)
    ]
    if len(known) < len(scales):  # versions 0.1 to 0.3 have no scales
        largest = max(filter(None, sizes), key=math.prod, default=None)
        if largest is None or None in sizes[: sizes.index(largest)]:
            # an array of unknown shape may be the finest
            return [ArrayGeometry(letters, None, None, (0, 0, 0)) for letters in axes]
        # an axis that is longer than in the largest array counts as not downsampled
        ratios = [
            None if size is None else [max(1.0, factor) for factor in guess_ratio(largest, size)]
            for size in sizes
        ]
        return [
            ArrayGeometry(letters, mag_from_ratio(ratio), None, (0, 0, 0))
            for letters, ratio in zip(axes, ratios, strict=True)
        ]
    if not known:
        return []
    geometries = []
    first = base_level(known, [shape is not None for shape in shapes])
    base = known[first]
    factors = factors_by_shapes([ratio_of(scale, base) for scale in known], sizes[first], sizes)
    for level, letters, scale, ratio in zip(image.levels, axes, known, factors, strict=True):
        translation = xyz_values(level.translation, letters, 0.0)
        offset = (0, 0, 0) if translation is None else offset_from_center(translation, base, ratio)
        lengths = [
            length if factor == length / unit else unit * factor
            for length, unit, factor in zip(scale, base, ratio, strict=True)
        ]
        geometries.append(
            ArrayGeometry(
                letters,
                mag_from_ratio(ratio),
                None if units is None else scale_lengths(lengths, units),
                offset,
            )
        )
    return geometries


def _image_nm_per_unit(image: NgffImage) -> Lengths | None:
    """Return the nanometers per unit along x, y, z; None if a unit is missing or no length."""
    units = {
        letter: unit
        for letter, unit in zip(image.axes, image.units, strict=True)
        if letter in ("x", "y", "z")
    }
    return None if None in units.values() else nm_per_unit(units, next(iter(units.values()), None))
