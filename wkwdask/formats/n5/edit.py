"""Edit the ``attributes.json`` of N5 groups and datasets: geometry of levels, new and removed
levels, and their numbers.

Positions are written as ``transform`` (voxel centers, slowest axis first) for WEBKNOSSOS, Janelia's
software and xarray-ome-ngff. Factors and voxel sizes are also written as ``downsamplingFactors``,
``scales`` and ``pixelResolution`` for n5-viewer, BigDataViewer and Neuroglancer. A group of other
software keeps its own description of levels: a new level is added to the lists that it has, and a
list that it lacks would hide its other levels.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from wkwdask.errors import LockedError
from wkwdask.formats.axes import axis_letter
from wkwdask.formats.edits import DocumentEdit, LevelRemoval
from wkwdask.formats.n5.array import read_attributes
from wkwdask.formats.n5.attributes import FILE_NAME, VERSION, N5Dataset, is_inside
from wkwdask.formats.n5.big_data_viewer import lacks_unit
from wkwdask.formats.n5.factor_lists import (
    factors_in,
    has_lists,
    inherited_by,
    level_folders,
    setup_of,
    with_factor_lists,
    with_levels_of_time_points,
)
from wkwdask.formats.n5.layer import read_level
from wkwdask.formats.n5.placement import (
    IMAGEJ_LENGTHS,
    IMAGEJ_UNIT,
    Placement,
    stated_lengths_nm,
    states_imagej_size,
)
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag, mag_order, vec3
from wkwdask.model.levels import finest_first, is_number, lengths_in, ratio_of, scale_lengths
from wkwdask.store.documents import check_replaceable, update_json
from wkwdask.store.locks import lock_holder
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from wkwdask.formats.n5.factor_lists import Factors
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.levels import Lengths

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LevelGeometry:
    """Mag, position and voxel size of a new dataset."""

    mag: Mag
    """Relative to the finest mag of the group."""
    offset: Vec3
    """Absolute first voxel [voxels of the mag]; may be negative."""
    base_lengths_nm: Lengths | None
    """Voxel size of the finest dataset [nm]; None if unknown."""
    base_factors: Lengths = (1.0, 1.0, 1.0)
    """Downsampling factors of the finest dataset, which are not 1 if the full resolution was
    removed."""
    origin: Lengths = (0.0, 0.0, 0.0)
    """Center of voxel 0 of the finest dataset [nm, or voxels of it]."""

    @property
    def full_lengths_nm(self) -> Lengths | None:
        """Voxel size of the full resolution [nm], to which factors refer."""
        return (
            None
            if self.base_lengths_nm is None
            else ratio_of(self.base_lengths_nm, self.base_factors)
        )

    @property
    def placement(self) -> Placement:
        """Voxel size and center of the first voxel."""
        base = self.base_lengths_nm or (1.0, 1.0, 1.0)
        # A voxel of mag m covers m voxels of the finest mag, so the center of its voxel 0 lies (m -
        # 1) / 2 of them after the origin.
        steps = zip(self.origin, base, self.offset, self.mag.factors, strict=True)
        x, y, z = (
            start + length * (first * factor + (factor - 1) / 2)
            for start, length, first, factor in steps
        )
        return Placement(lengths_in(self.mag, base), (x, y, z), self.base_lengths_nm is not None)

    def transform(self, names: Sequence[str]) -> JsonObject:
        """Return the placement as ``transform``; ``names`` are the axes, x first."""
        place = self.placement
        return {
            "ordering": "C",
            "axes": list(names)[::-1],
            "scale": by_axis(names, place.scale, 1.0)[::-1],
            "translate": by_axis(names, place.center, 0.0)[::-1],
            "units": by_axis(names, ["nm" if place.is_nm else ""] * 3, "")[::-1],
        }

    def factors(self, names: Sequence[str]) -> list[int]:
        """Return the downsampling factors along all axes, x first."""
        return by_axis(
            names,
            [round(a * b) for a, b in zip(self.mag.factors, self.base_factors, strict=True)],
            1,
        )

    def to_json(self) -> JsonObject:
        base = {
            "lengths": self.base_lengths_nm,
            "base_factors": self.base_factors,
            "origin": self.origin,
        }
        return {"mag": self.mag.factors, "offset": self.offset, **base}

    @classmethod
    def from_json(cls, value: JsonObject) -> LevelGeometry:
        lengths = None if value["lengths"] is None else tuple(value["lengths"])
        base = {name: tuple(value[name]) for name in ("base_factors", "origin") if name in value}
        return cls(Mag.parse(value["mag"]), vec3(value["offset"]), lengths, **base)


def by_axis(names: Sequence[str], xyz: Sequence[_T], other: _T) -> list[_T]:
    """Return one value per axis: those of x, y and z, and another one for all other axes."""
    values = dict(zip("xyz", xyz, strict=True))
    return [values.get(letter, other) for letter in map(axis_letter, names)]


def dataset_document(
    dataset: N5Dataset,
    geometry: LevelGeometry,
    names: Sequence[str],
    *,
    is_level: bool,
    is_root: bool,
    states_own_size: bool = False,
) -> JsonObject:
    """Return the attributes of a new dataset; ``states_own_size`` if the other levels state
    resolutions, and no factors."""
    document: JsonObject = {"n5": VERSION} if is_root else {}
    document |= {**dataset.to_json(), "axes": list(names), "transform": geometry.transform(names)}
    if is_level and states_own_size and geometry.base_lengths_nm is not None:
        document |= _resolution(names, geometry.placement.scale)
    elif is_level:
        document["downsamplingFactors"] = geometry.factors(names)
    elif geometry.base_lengths_nm is not None:
        document["pixelResolution"] = _pixel_resolution(names, geometry.base_lengths_nm)
    return document


def with_geometry(
    document: JsonObject, geometry: LevelGeometry, names: Sequence[str]
) -> JsonObject:
    """Return the attributes of a dataset as a level with another geometry."""
    changed = {**document, "transform": geometry.transform(names)}
    is_of_array = "resolution" in document or states_imagej_size(document)
    if is_of_array and "downsamplingFactors" not in document:
        return changed
    return with_voxel_size(
        {**changed, "downsamplingFactors": geometry.factors(names)}, geometry.full_lengths_nm, names
    )


def with_voxel_size(
    document: JsonObject, lengths: Lengths | None, names: Sequence[str]
) -> JsonObject:
    """Return attributes that state another voxel size of the full resolution, if they state one."""
    stated = stated_lengths_nm(document, "".join(map(axis_letter, names)))
    if lengths is None or stated is None or np.allclose(stated, lengths, rtol=1e-6, atol=0):
        return document
    changed = dict(document)
    if "pixelResolution" in document:
        changed["pixelResolution"] = _pixel_resolution(names, lengths)
    if states_imagej_size(document):
        changed |= {**dict(zip(IMAGEJ_LENGTHS, lengths, strict=True)), IMAGEJ_UNIT: "nm"}
    return changed | _resolution(names, lengths) if "resolution" in document else changed


def _pixel_resolution(names: Sequence[str], lengths: Lengths) -> JsonObject:
    return {"dimensions": by_axis(names, lengths, 1.0), "unit": "nm"}


def _resolution(names: Sequence[str], lengths: Lengths) -> JsonObject:
    return {"resolution": by_axis(names, lengths, 1.0), "units": by_axis(names, ["nm"] * 3, "")}


def with_level(
    group: JsonObject,
    name: str,
    names: Sequence[str],
    geometry: LevelGeometry,
    *,
    is_ours: bool,
    keeps_size: bool = False,
) -> JsonObject:
    """Return the attributes of a group with a level added or replaced, but for lists of factors;
    other attributes are unchanged.

    The group describes its levels as before. If ``is_ours``, no other level depends on that, and it
    gets all attributes that describe levels. With ``keeps_size``, its voxel size is stated
    elsewhere.
    """
    changed = copy.deepcopy(group)
    image = _find_image(changed)
    if image is None and is_ours:
        image = {"name": "", "datasets": []}
        changed["multiscales"] = [image]
    if image is not None:
        entries = [
            entry
            for entry in image["datasets"]
            if isinstance(entry, dict) and entry.get("path") != name
        ]
        entries.append({"path": name, "transform": geometry.transform(names)})
        image["datasets"] = [entries[n] for n in finest_first(list(map(_voxel_size, entries)))]
    lengths = geometry.full_lengths_nm
    if is_ours:
        changed["axes"] = list(names)
        if lengths is not None and "resolution" not in changed:
            changed.setdefault("pixelResolution", _pixel_resolution(names, lengths))
        if "offset" in changed and geometry.mag == MAG_1:
            changed["offset"] = by_axis(
                names, scale_lengths(geometry.offset, lengths or (1.0, 1.0, 1.0)), 0.0
            )
    if geometry.mag == MAG_1 and not keeps_size:
        changed = with_voxel_size(changed, lengths, names)
    return changed


def without_levels(group: JsonObject, names: Collection[str]) -> JsonObject:
    """Return the attributes of a group without some levels, but for lists of factors; other
    attributes are unchanged."""
    changed = copy.deepcopy(group)
    image = _find_image(changed)
    if image is not None:
        image["datasets"] = [
            entry
            for entry in image["datasets"]
            if not isinstance(entry, dict) or entry.get("path") not in names
        ]
    return changed


def _find_image(group: JsonObject) -> JsonObject | None:
    """Return the first entry of ``multiscales``, None if it lists no datasets."""
    images = group.get("multiscales")
    image = images[0] if isinstance(images, list) and images else None
    return image if isinstance(image, dict) and isinstance(image.get("datasets"), list) else None


def _voxel_size(entry: JsonObject) -> list[float] | None:
    """Return the size of a voxel of a level in ``multiscales``, None if it is not stated."""
    try:
        scale = entry["transform"]["scale"]
        return list(scale) if all(map(is_number, scale)) else None
    except (KeyError, TypeError):
        return None


def update_attributes(folder: str, change: Callable[[JsonObject], JsonObject]) -> None:
    """Change the ``attributes.json`` of a group atomically; create it if it is missing."""
    update_json(store_at(folder), FILE_NAME, change, {})


def update_factors(
    group: str,
    factors: Factors,
    change: Callable[[JsonObject], JsonObject],
    removed: Collection[str] = (),
) -> None:
    """Change the attributes of a group, and lists of factors to those of its levels."""
    setup = setup_of(group)
    if setup is not None:
        update_attributes(
            setup,
            partial(with_levels_of_time_points, group=group, factors=factors, removed=removed),
        )
    lists = partial(with_factor_lists, factors=factors, inherited=inherited_by(group))
    before = read_attributes(store_at(group)) or {}
    if has_lists(before) and not has_lists(lists(change(before))):
        # what the lists stated moves to the levels
        for name, value in factors.items():
            if value is not None:
                update_attributes(
                    f"{group}/{name}", partial(operator.or_, {"downsamplingFactors": value})
                )
    update_attributes(group, lambda document: lists(change(document)))


@dataclass(frozen=True, slots=True)
class N5Edit(DocumentEdit):
    """Addition of levels to the attributes of a group, and of the N5 version to its container."""

    kind: ClassVar[str] = "n5 attributes"
    folder_names: ClassVar[tuple[str, ...]] = ("root", "group")
    root: str
    """Container, which gets a version of N5 if it has none."""
    group: str | None
    """Group whose levels are the datasets; None for a single dataset."""
    levels: tuple[tuple[str, LevelGeometry], ...]
    """Name and geometry of each new level."""
    others: tuple[tuple[str, str, LevelGeometry], ...] = ()
    """Name now and afterwards, and geometry, of all existing levels if new ones come before some of
    them."""

    @property
    def makes_room(self) -> bool:
        return any(before != after for before, after, _ in self.others)

    def make_room(self) -> None:
        group = store_at(str(self.group))
        for before, after, _ in reversed(self.others):
            if group.is_taken(before) and not group.is_taken(after):
                folders_of(group.url).rename(group.path_of(before), group.path_of(after))
        if self.makes_room:
            folders_of(group.url).fsync(group.url)

    def check_current(self) -> None:
        """Raise LockedError if another job writes a level that would be renamed."""
        renamed = {
            name for before, after, _ in self.others if before != after for name in (before, after)
        }
        for name in sorted(renamed - {name for name, _ in self.levels}):
            # this job holds the locks of the new levels
            holder = lock_holder(f"{self.group}/{name}")
            if holder is not None:
                raise LockedError(
                    f"{self.group}/{name}: another job writes it: {holder}; repeat the call when "
                    "it has ended"
                )

    def apply(self) -> None:
        update_attributes(
            self.root,
            lambda document: document if "n5" in document else {"n5": VERSION, **document},
        )
        if self.group is None:
            return
        store = store_at(self.group)
        for _, name, geometry in self.others:
            update_attributes(
                f"{self.group}/{name}",
                partial(with_geometry, geometry=geometry, names=read_level(store, name).names),
            )
        levels = [*self.levels, *((name, geometry) for _, name, geometry in self.others)]
        placed = {
            name: (geometry, read_level(store, name).names)
            for name, geometry in levels
            if store_at(self.group).is_file(f"{name}/{FILE_NAME}")
        }
        known = {name: geometry.factors(names) for name, (geometry, names) in placed.items()}
        update_factors(
            self.group, factors_in(self.group, known), partial(self._with_levels, levels=placed)
        )

    def _with_levels(
        self, document: JsonObject, levels: Mapping[str, tuple[LevelGeometry, Sequence[str]]]
    ) -> JsonObject:
        is_ours = level_folders(str(self.group)) <= levels.keys()
        keeps_size = lacks_unit(document) and setup_of(str(self.group)) is not None
        if self.others:  # names have other meanings than before
            document = without_levels(
                document, [name for other in self.others for name in other[:2]]
            )
        for name, (geometry, names) in sorted(
            levels.items(), key=lambda level: mag_order(level[1][0].mag)
        ):
            document = with_level(
                document, name, names, geometry, is_ours=is_ours, keeps_size=keeps_size
            )
        return document

    def check_writable(self) -> None:
        for folder in filter(None, (self.root, self.group)):
            check_replaceable(store_at(folder), FILE_NAME, "container")

    def to_json(self) -> JsonObject:
        levels = [{"name": name, **geometry.to_json()} for name, geometry in self.levels]
        others = [
            {"before": before, "after": after, **geometry.to_json()}
            for before, after, geometry in self.others
        ]
        return {**DocumentEdit.to_json(self), "levels": levels, "others": others}

    @classmethod
    def from_json(cls, value: JsonObject) -> N5Edit:
        levels = tuple((level["name"], LevelGeometry.from_json(level)) for level in value["levels"])
        others = tuple(
            (level["before"], level["after"], LevelGeometry.from_json(level))
            for level in value.get("others", ())
        )
        for name in (name for other in others for name in other[:2]):
            # a record of somebody else must not rename other folders
            if not is_inside(name):
                raise ValueError(f"expected the name of a level, found {name!r}")
        return cls(value["root"], value["group"], levels, others)


class N5Removal(LevelRemoval):
    __slots__ = ()
    kind = "removal of n5 levels"

    def apply(self) -> None:
        keys = set(self.keys)
        if not store_at(self.folder).is_folder():
            return
        update_factors(
            self.folder,
            factors_in(self.folder, {}, without=keys),
            lambda document: without_levels(document, keys),
            removed=keys,
        )
