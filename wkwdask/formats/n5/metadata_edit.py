"""Writing ``attributes.json``: what a new dataset says of itself, and what its group says of all levels once a job has made them.

Places are written as ``transform`` (centres of voxels, axes as numpy lists them), as WEBKNOSSOS, Janelia's software and xarray-ome-ngff read them; factors and
the size of voxels also as ``downsamplingFactors``, ``scales`` and ``pixelResolution``, as n5-viewer, BigDataViewer and Neuroglancer do.
"""

from __future__ import annotations

import copy
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from wkwdask.formats.format import LevelRemoval, MetadataEdit
from wkwdask.formats.n5.array import read_attributes
from wkwdask.formats.n5.attributes import FILE_NAME, VERSION
from wkwdask.formats.n5.placement import level_number
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.json_text import format_json
from wkwdask.store import files
from wkwdask.store.locks import update_json
from wkwdask.store.paths import dirname
from wkwdask.store.store import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from wkwdask.formats.n5.attributes import N5Dataset
    from wkwdask.geometry.mag import Vec3
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
    image = _image_of(changed)
    if image is None:
        image = {"name": "", "datasets": []}
        changed["multiscales"] = [image]
    entries = [entry for entry in image["datasets"] if isinstance(entry, dict) and entry.get("path") != name]
    image["datasets"] = sorted([*entries, {"path": name, "transform": place.transform(num_axes)}], key=_size)
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
    image = _image_of(changed)
    if image is not None:
        image["datasets"] = [entry for entry in image["datasets"] if not isinstance(entry, dict) or entry.get("path") not in names]
    numbers = {level_number(name) for name in names}
    for listed in (changed.get("scales"), changed.get("downsamplingFactors")):
        while isinstance(listed, list) and len(listed) - 1 in numbers:  # those of the others are known by their places
            listed.pop()
    return changed


def _image_of(group: dict[str, Any]) -> dict[str, Any] | None:
    """Find what ``multiscales`` says, None where it lists no datasets."""
    images = group.get("multiscales")
    image = images[0] if isinstance(images, list) and images else None
    return image if isinstance(image, dict) and isinstance(image.get("datasets"), list) else None


def _size(entry: dict[str, Any]) -> float:
    """Give the length of a level's voxels, by which levels are listed."""
    try:
        return float(sum(entry["transform"]["scale"]))
    except (KeyError, TypeError, ValueError):
        return 0.0


def update_attributes(folder: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the ``attributes.json`` of a group, or make it."""
    update_json(f"{folder}/{FILE_NAME}", lambda: read_attributes(FolderStore(folder)), change, format_json, {})


@dataclass(frozen=True, slots=True)
class N5Edit(MetadataEdit):
    """What the groups above datasets are to say once these are there."""

    kind: ClassVar[str] = "n5 attributes"
    folder_names: ClassVar[tuple[str, ...]] = ("root", "group")
    root: str
    """The container; where it says no version of N5, it gets one."""
    group: str | None
    """The group that lists the datasets as levels, None where none does."""
    num_axes: int
    """Their axes."""
    levels: tuple[tuple[str, LevelPlace], ...]
    """Name of each, and where it lies."""

    def apply(self) -> None:
        """Change the attributes, or make them."""
        update_attributes(self.root, lambda document: document if "n5" in document else {"n5": VERSION, **document})
        if self.group is not None:
            update_attributes(self.group, self._with_levels)

    def _with_levels(self, document: dict[str, Any]) -> dict[str, Any]:
        for name, place in self.levels:
            document = with_level(document, name, self.num_axes, place)
        return document

    def check_writable(self) -> None:
        """Make sure, before any work, that attributes can be changed after it."""
        for folder in filter(None, (self.root, self.group)):
            changed = dirname(files.realpath(f"{folder}/{FILE_NAME}"))
            if files.isdir(changed) and not files.is_writable(changed):
                raise PermissionError(errno.EACCES, f"the container's {FILE_NAME} could not be updated", changed)

    def to_json(self) -> dict[str, Any]:
        """Give the form that a publish record holds."""
        levels = [{"name": name, "mag": place.mag.factors, "offset": place.offset, "lengths": place.base_lengths_nm} for name, place in self.levels]
        return {**MetadataEdit.to_json(self), "levels": levels}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> N5Edit:
        """Read the form that a publish record holds."""
        levels = []
        for level in value["levels"]:
            lengths = None if level["lengths"] is None else tuple(level["lengths"])
            levels.append((level["name"], LevelPlace(Mag.parse(level["mag"]), vec3(level["offset"]), lengths)))
        return cls(value["root"], value["group"], value["num_axes"], tuple(levels))


class N5Removal(LevelRemoval):
    """Levels that a group is to forget."""

    __slots__ = ()
    kind = "removal of n5 levels"

    def apply(self) -> None:
        """Change the attributes, where there are any."""
        if files.exists(f"{self.folder}/{FILE_NAME}"):
            update_attributes(self.folder, lambda document: without_levels(document, self.keys))
