"""Writing ``attributes.json``: what a new dataset says of itself, and what its group says of all levels. Opens nothing.

Places are written as ``transform`` (centres of voxels, axes as numpy lists them), as WEBKNOSSOS, Janelia's software and xarray-ome-ngff read them; factors and
the size of voxels also as ``downsamplingFactors``, ``scales`` and ``pixelResolution``, as n5-viewer, BigDataViewer and Neuroglancer do.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.formats.n5.attributes import VERSION
from wkwdask.formats.n5.placement import level_number
from wkwdask.model.json_text import format_json

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from wkwdask.formats.n5.attributes import N5Dataset
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths


@dataclass(frozen=True, slots=True)
class LevelPlace:
    """Where a new dataset lies."""

    mag: Mag
    """Its mag relative to the group's finest one."""
    offset: Vec3
    """Absolute voxel of the mag that is stored first; may be negative."""
    base_lengths_nm: Lengths | None
    """Edge lengths of a voxel of the finest dataset [nm]; None where nobody knows them."""

    def transform(self, num_axes: int) -> dict[str, Any]:
        """Say where voxels lie: lengths of a voxel, and the centre of the first one, when that of voxel 0 of the finest dataset is the origin."""
        unit = "nm" if self.base_lengths_nm is not None else ""
        base = self.base_lengths_nm or (1.0, 1.0, 1.0)
        scale = [length * factor for length, factor in zip(base, self.mag.factors, strict=True)]
        shift = [length * (first * factor + (factor - 1) / 2) for length, first, factor in zip(base, self.offset, self.mag.factors, strict=True)]
        channel = num_axes - 3
        return {
            "ordering": "C",
            "axes": [*["c"] * channel, "z", "y", "x"],
            "scale": [*[1.0] * channel, *reversed(scale)],
            "translate": [*[0.0] * channel, *reversed(shift)],
            "units": [*[""] * channel, *[unit] * 3],
        }

    def factors(self, num_axes: int) -> list[int]:
        """Give the factors of downsampling along all axes, x first."""
        return [*self.mag.factors, *[1] * (num_axes - 3)]


def dataset_document(dataset: N5Dataset, place: LevelPlace, *, is_level: bool, is_root: bool) -> dict[str, Any]:
    """Say all that the ``attributes.json`` of a new dataset says."""
    num_axes = len(dataset.dimensions)
    document: dict[str, Any] = {"n5": VERSION} if is_root else {}
    document |= {**dataset.to_json(), "axes": axis_names(num_axes), "transform": place.transform(num_axes)}
    if is_level:
        document["downsamplingFactors"] = place.factors(num_axes)
    elif place.base_lengths_nm is not None:
        document["pixelResolution"] = _resolution(place.base_lengths_nm, num_axes)
    return document


def axis_names(num_axes: int) -> list[str]:
    """Name the axes of a new dataset, x first."""
    return list("xyzc"[:num_axes])


def _resolution(lengths: Sequence[float], num_axes: int) -> dict[str, Any]:
    return {"dimensions": [*lengths, *[1.0] * (num_axes - 3)], "unit": "nm"}


def with_level(group: dict[str, Any], name: str, num_axes: int, place: LevelPlace) -> dict[str, Any]:
    """Add a level to what a group says of all, or replace it; everything else is kept."""
    changed = copy.deepcopy(group)
    images = changed.get("multiscales")
    if not isinstance(images, list) or not images or not isinstance(images[0], dict) or not isinstance(images[0].get("datasets"), list):
        images = changed["multiscales"] = [{"name": "", "datasets": []}]
    entries = [entry for entry in images[0]["datasets"] if isinstance(entry, dict) and entry.get("path") != name]
    entries.append({"path": name, "transform": place.transform(num_axes)})
    images[0]["datasets"] = sorted(entries, key=_size)
    changed["axes"] = axis_names(num_axes)
    if place.base_lengths_nm is not None:
        changed["pixelResolution"] = _resolution(place.base_lengths_nm, num_axes)
    number = level_number(name)
    listed = changed.get("scales")
    listed = listed if isinstance(listed, list) else []
    if number is not None and number <= len(listed):
        changed["scales"] = [*listed[:number], place.factors(num_axes), *listed[number + 1 :]]
    return changed


def without_levels(group: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Take levels off what a group says of all; everything else is kept."""
    changed = copy.deepcopy(group)
    images = changed.get("multiscales")
    if isinstance(images, list) and images and isinstance(images[0], dict) and isinstance(images[0].get("datasets"), list):
        images[0]["datasets"] = [entry for entry in images[0]["datasets"] if not isinstance(entry, dict) or entry.get("path") not in names]
    numbers = {level_number(name) for name in names}
    for listed in (changed.get("scales"), changed.get("downsamplingFactors")):
        while isinstance(listed, list) and len(listed) - 1 in numbers:  # those of the others are known by their places
            listed.pop()
    return changed


def _size(entry: dict[str, Any]) -> float:
    """Give the length of a level's voxels, by which levels are listed."""
    try:
        return float(sum(entry["transform"]["scale"]))
    except (KeyError, TypeError, ValueError):
        return 0.0


def format_attributes(document: dict[str, Any]) -> str:
    """Write attributes; numbers that were read keep their digits."""
    return format_json(document)
