"""Edit the ``attributes.json`` of N5 groups and datasets: geometry of levels, new and removed levels, and their numbers.

Positions are written as ``transform`` (voxel centres, slowest axis first) for WEBKNOSSOS, Janelia's software and xarray-ome-ngff. Factors and voxel sizes are
also written as ``downsamplingFactors``, ``scales`` and ``pixelResolution`` for n5-viewer, BigDataViewer and Neuroglancer.
"""

from __future__ import annotations

import copy
import errno
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wkwdask.errors import LockedError
from wkwdask.formats.format import LevelRemoval, MetadataEdit
from wkwdask.formats.n5.array import read_attributes
from wkwdask.formats.n5.attributes import FILE_NAME, VERSION, N5Dataset, is_inside, level_number
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.json_text import format_json
from wkwdask.model.levels import finest_first, is_number
from wkwdask.store import files
from wkwdask.store.locks import lock_holder, update_json
from wkwdask.store.paths import dirname
from wkwdask.store.store import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.levels import Lengths


@dataclass(frozen=True, slots=True)
class LevelGeometry:
    """Mag, position and voxel size of a new dataset."""

    mag: Mag
    """Relative to the finest mag of the group."""
    offset: Vec3
    """Absolute first voxel [voxels of the mag]; may be negative."""
    base_lengths_nm: Lengths | None
    """Voxel size of the finest dataset [nm]; None if unknown."""

    def transform(self, num_axes: int) -> dict[str, Any]:
        """Return the voxel size and the centre of the first voxel; the origin is the centre of voxel 0 of the finest dataset."""
        unit = "nm" if self.base_lengths_nm is not None else ""
        base = self.base_lengths_nm or (1.0, 1.0, 1.0)
        # A voxel of mag m covers m voxels of the finest mag, so the centre of its voxel 0 lies (m - 1) / 2 of them after the origin.
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

    def is_stated_by(self, transform: Any, num_axes: int) -> bool:
        """Return whether the transform of a dataset, if it has one, is that of this geometry."""
        ours = self.transform(num_axes)
        try:
            return transform is None or (
                all(transform[name] == ours[name] for name in ("ordering", "axes", "units"))
                and np.allclose(transform["scale"], ours["scale"], rtol=1e-6, atol=0)
                and np.allclose(transform["translate"], ours["translate"], rtol=0, atol=1e-6 * min(ours["scale"]))
            )
        except (KeyError, TypeError, ValueError):
            return False

    def factors(self, num_axes: int) -> list[int]:
        """Return the downsampling factors along all axes, x first."""
        return [*self.mag.factors, *[1] * (num_axes - 3)]

    def to_json(self) -> dict[str, Any]:
        return {"mag": self.mag.factors, "offset": self.offset, "lengths": self.base_lengths_nm}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LevelGeometry:
        lengths = None if value["lengths"] is None else tuple(value["lengths"])
        return cls(Mag.parse(value["mag"]), vec3(value["offset"]), lengths)


def dataset_document(dataset: N5Dataset, geometry: LevelGeometry, *, is_level: bool, is_root: bool) -> dict[str, Any]:
    num_axes = len(dataset.dimensions)
    document: dict[str, Any] = {"n5": VERSION} if is_root else {}
    document |= {**dataset.to_json(), "axes": new_axis_names(num_axes), "transform": geometry.transform(num_axes)}
    if is_level:
        document["downsamplingFactors"] = geometry.factors(num_axes)
    elif geometry.base_lengths_nm is not None:
        document["pixelResolution"] = _resolution(geometry.base_lengths_nm, num_axes)
    return document


def with_geometry(document: dict[str, Any], geometry: LevelGeometry) -> dict[str, Any]:
    """Return the attributes of a dataset as a level with another geometry."""
    num_axes = len(document["dimensions"])
    changed = {**document, "transform": geometry.transform(num_axes), "downsamplingFactors": geometry.factors(num_axes)}
    if "pixelResolution" in document and geometry.base_lengths_nm is not None:
        changed["pixelResolution"] = _resolution(geometry.base_lengths_nm, num_axes)
    return changed


def new_axis_names(num_axes: int) -> list[str]:
    """Return the axis names of a new dataset, x first."""
    return list("xyzc"[:num_axes])


def _resolution(lengths: Sequence[float], num_axes: int) -> dict[str, Any]:
    return {"dimensions": [*lengths, *[1.0] * (num_axes - 3)], "unit": "nm"}


def with_level(group: dict[str, Any], name: str, num_axes: int, geometry: LevelGeometry) -> dict[str, Any]:
    """Return the attributes of a group with a level added or replaced; other attributes are unchanged."""
    changed = copy.deepcopy(group)
    image = _find_image(changed)
    if image is None:
        image = {"name": "", "datasets": []}
        changed["multiscales"] = [image]
    entries = [entry for entry in image["datasets"] if isinstance(entry, dict) and entry.get("path") != name]
    entries.append({"path": name, "transform": geometry.transform(num_axes)})
    image["datasets"] = [entries[n] for n in finest_first(list(map(_voxel_size, entries)))]
    changed["axes"] = new_axis_names(num_axes)
    if geometry.base_lengths_nm is not None:
        changed["pixelResolution"] = _resolution(geometry.base_lengths_nm, num_axes)
    number = level_number(name)
    listed = changed.get("scales")
    listed = listed if isinstance(listed, list) else []
    if number is not None and number <= len(listed):
        changed["scales"] = [*listed[:number], geometry.factors(num_axes), *listed[number + 1 :]]
    return changed


def without_levels(group: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the attributes of a group without some levels; other attributes are unchanged."""
    changed = copy.deepcopy(group)
    image = _find_image(changed)
    if image is not None:
        image["datasets"] = [entry for entry in image["datasets"] if not isinstance(entry, dict) or entry.get("path") not in names]
    numbers = {level_number(name) for name in names}
    for listed in (changed.get("scales"), changed.get("downsamplingFactors")):
        # An entry belongs to the level with its index. So only entries at the end can be removed.
        while isinstance(listed, list) and len(listed) - 1 in numbers:
            listed.pop()
    return changed


def _find_image(group: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first entry of ``multiscales``, None if it lists no datasets."""
    images = group.get("multiscales")
    image = images[0] if isinstance(images, list) and images else None
    return image if isinstance(image, dict) and isinstance(image.get("datasets"), list) else None


def _voxel_size(entry: dict[str, Any]) -> list[float] | None:
    """Return the size of a voxel of a level in ``multiscales``, None if it is not stated."""
    try:
        scale = entry["transform"]["scale"]
        return list(scale) if all(map(is_number, scale)) else None
    except (KeyError, TypeError):
        return None


def update_attributes(folder: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the ``attributes.json`` of a group atomically; create it if it is missing."""
    update_json(f"{folder}/{FILE_NAME}", lambda: read_attributes(FolderStore(folder)), change, format_json, {})


@dataclass(frozen=True, slots=True)
class N5Edit(MetadataEdit):
    """Addition of levels to the attributes of a group, and of the N5 version to its container."""

    kind: ClassVar[str] = "n5 attributes"
    folder_names: ClassVar[tuple[str, ...]] = ("root", "group")
    root: str
    """Container, which gets a version of N5 if it has none."""
    group: str | None
    """Group whose levels are the datasets; None for a single dataset."""
    num_axes: int
    levels: tuple[tuple[str, LevelGeometry], ...]
    """Name and geometry of each new level."""
    others: tuple[tuple[str, str, LevelGeometry], ...] = ()
    """Name now and afterwards, and geometry, of all existing levels if new ones come before some of them."""

    @property
    def makes_room(self) -> bool:
        return any(before != after for before, after, _ in self.others)

    def make_room(self) -> None:
        for before, after, _ in reversed(self.others):
            if files.lexists(f"{self.group}/{before}") and not files.lexists(f"{self.group}/{after}"):
                files.rename(f"{self.group}/{before}", f"{self.group}/{after}")
        if self.makes_room:
            files.fsync(str(self.group))

    def check_current(self) -> None:
        """Raise LockedError if another job writes a level that would be renamed."""
        renamed = {name for before, after, _ in self.others if before != after for name in (before, after)}
        for name in sorted(renamed - {name for name, _ in self.levels}):  # this job holds the locks of the new levels
            holder = lock_holder(f"{self.group}/{name}")
            if holder is not None:
                raise LockedError(f"{self.group}/{name}: another job writes it: {holder}; repeat the call when it has ended")

    def apply(self) -> None:
        update_attributes(self.root, lambda document: document if "n5" in document else {"n5": VERSION, **document})
        for _, name, geometry in self.others:
            update_attributes(f"{self.group}/{name}", partial(with_geometry, geometry=geometry))
        if self.group is not None:
            update_attributes(self.group, self._with_levels)

    def _with_levels(self, document: dict[str, Any]) -> dict[str, Any]:
        levels = [*self.levels, *((name, geometry) for _, name, geometry in self.others)]
        if self.others:  # names have other meanings than before
            document = without_levels(document, [name for other in self.others for name in other[:2]])
            document = {key: value for key, value in document.items() if key not in ("scales", "downsamplingFactors")}
        for name, geometry in sorted(levels, key=lambda level: (level[1].mag.maximum, level[1].mag.factors)):
            document = with_level(document, name, self.num_axes, geometry)
        return document

    def check_writable(self) -> None:
        for folder in filter(None, (self.root, self.group)):
            changed = dirname(files.realpath(f"{folder}/{FILE_NAME}"))
            if files.isdir(changed) and not files.is_writable(changed):
                raise PermissionError(errno.EACCES, f"the container's {FILE_NAME} could not be updated", changed)

    def to_json(self) -> dict[str, Any]:
        levels = [{"name": name, **geometry.to_json()} for name, geometry in self.levels]
        others = [{"before": before, "after": after, **geometry.to_json()} for before, after, geometry in self.others]
        return {**MetadataEdit.to_json(self), "levels": levels, "others": others}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> N5Edit:
        levels = tuple((level["name"], LevelGeometry.from_json(level)) for level in value["levels"])
        others = tuple((level["before"], level["after"], LevelGeometry.from_json(level)) for level in value.get("others", ()))
        for name in (name for other in others for name in other[:2]):  # a record of somebody else must not rename other folders
            if not is_inside(name):
                raise ValueError(f"expected the name of a level, found {name!r}")
        return cls(value["root"], value["group"], value["num_axes"], levels, others)


class N5Removal(LevelRemoval):
    __slots__ = ()
    kind = "removal of n5 levels"

    def apply(self) -> None:
        if files.exists(f"{self.folder}/{FILE_NAME}"):
            update_attributes(self.folder, lambda document: without_levels(document, self.keys))
