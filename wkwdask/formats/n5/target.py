"""Targets of writes: the folder of an N5 dataset or group, the storage of new datasets, and their ``attributes.json`` files.

Positions are written as ``transform`` (voxel centres, slowest axis first) for WEBKNOSSOS, Janelia's software and xarray-ome-ngff. Factors and voxel sizes are
also written as ``downsamplingFactors``, ``scales`` and ``pixelResolution`` for n5-viewer, BigDataViewer and Neuroglancer.
"""

from __future__ import annotations

import copy
import errno
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wkwdask.errors import CorruptError, ExistsError, MissingError, UnsupportedError
from wkwdask.formats.format import LevelRemoval, MetadataEdit
from wkwdask.formats.n5.array import N5Description, n5_array, read_attributes
from wkwdask.formats.n5.attributes import DTYPES, FILE_NAME, VERSION, N5Dataset, is_dataset, level_attributes, level_number, voxel_lengths_nm
from wkwdask.formats.n5.block import MAX_BLOCK_NBYTES, make_compression
from wkwdask.formats.n5.layer import PREFIX, location_of, stripped
from wkwdask.formats.wkw.folder import contains_wkw
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.json_text import format_json
from wkwdask.model.levels import lengths_in
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.target_array import TargetArray
from wkwdask.model.target_image import Destination, NewLevels, TargetFolder
from wkwdask.store import files
from wkwdask.store.locks import update_json
from wkwdask.store.paths import basename, dirname, is_remote
from wkwdask.store.store import FolderStore, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from wkwdask.formats.n5.options import N5Options
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.levels import Lengths
    from wkwdask.model.target_image import LevelSpec
    from wkwdask.model.volume import Volume


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

    def factors(self, num_axes: int) -> list[int]:
        """Return the downsampling factors along all axes, x first."""
        return [*self.mag.factors, *[1] * (num_axes - 3)]


def dataset_document(dataset: N5Dataset, geometry: LevelGeometry, *, is_level: bool, is_root: bool) -> dict[str, Any]:
    num_axes = len(dataset.dimensions)
    document: dict[str, Any] = {"n5": VERSION} if is_root else {}
    document |= {**dataset.to_json(), "axes": new_axis_names(num_axes), "transform": geometry.transform(num_axes)}
    if is_level:
        document["downsamplingFactors"] = geometry.factors(num_axes)
    elif geometry.base_lengths_nm is not None:
        document["pixelResolution"] = _resolution(geometry.base_lengths_nm, num_axes)
    return document


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
    image["datasets"] = sorted([*entries, {"path": name, "transform": geometry.transform(num_axes)}], key=_voxel_extent)
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


def _voxel_extent(entry: dict[str, Any]) -> float:
    """Return the sort key of levels in ``multiscales``: the sum of the edge lengths of a voxel."""
    try:
        return float(sum(entry["transform"]["scale"]))
    except (KeyError, TypeError, ValueError):
        return 0.0


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

    def apply(self) -> None:
        update_attributes(self.root, lambda document: document if "n5" in document else {"n5": VERSION, **document})
        if self.group is not None:
            update_attributes(self.group, self._with_levels)

    def _with_levels(self, document: dict[str, Any]) -> dict[str, Any]:
        for name, geometry in self.levels:
            document = with_level(document, name, self.num_axes, geometry)
        return document

    def check_writable(self) -> None:
        for folder in filter(None, (self.root, self.group)):
            changed = dirname(files.realpath(f"{folder}/{FILE_NAME}"))
            if files.isdir(changed) and not files.is_writable(changed):
                raise PermissionError(errno.EACCES, f"the container's {FILE_NAME} could not be updated", changed)

    def to_json(self) -> dict[str, Any]:
        levels = [{"name": name, "mag": geometry.mag.factors, "offset": geometry.offset, "lengths": geometry.base_lengths_nm} for name, geometry in self.levels]
        return {**MetadataEdit.to_json(self), "levels": levels}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> N5Edit:
        levels = []
        for level in value["levels"]:
            lengths = None if level["lengths"] is None else tuple(level["lengths"])
            levels.append((level["name"], LevelGeometry(Mag.parse(level["mag"]), vec3(level["offset"]), lengths)))
        return cls(value["root"], value["group"], value["num_axes"], tuple(levels))


class N5Removal(LevelRemoval):
    __slots__ = ()
    kind = "removal of n5 levels"

    def apply(self) -> None:
        if files.exists(f"{self.folder}/{FILE_NAME}"):
            update_attributes(self.folder, lambda document: without_levels(document, self.keys))


_MAX_BLOCK_LEN = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class N5Target(TargetFolder):
    """Local folder of a dataset or group, existing or new; implements :class:`wkwdask.model.target_image.TargetImage`."""

    prefix: ClassVar[str] = PREFIX
    root: str
    group: str | None
    """Group whose levels are the datasets; None for a single dataset."""
    others: tuple[str, ...] = ()
    """Existing levels of the group that stay unchanged."""
    levels: Mapping[Mag, str] = field(default_factory=dict)
    """Names of existing levels, if new levels are computed from one of them; else empty."""

    def new_levels(self, specs: Sequence[LevelSpec], options: N5Options, like: Volume | None = None, existing: str = "error") -> NewLevels:
        del existing
        geometries = [LevelGeometry(self._relative_mag(spec.box.mag), spec.box.topleft, self._base_lengths()) for spec in specs]
        folders = self._folders([spec.box.mag for spec in specs])
        datasets = [_choose_dataset(spec, options, like) for spec in specs]
        targets, settings = [], []
        for spec, geometry, dataset, folder in zip(specs, geometries, datasets, folders, strict=True):
            dataset = replace(dataset, document=dataset_document(dataset, geometry, is_level=self.group is not None, is_root=self.root == folder))
            store = open_store(folder)
            array = n5_array(store, dataset, "xyzc"[: len(dataset.dimensions)], spec.box.mag, is_new=True).moved(geometry.offset)
            targets.append(TargetArray(array, store, ((FILE_NAME, format_json(dataset.document).encode()),)))
            lengths = None if geometry.base_lengths_nm is None else list(geometry.base_lengths_nm)
            settings.append({"dataset": dataset.to_json(), "mag": geometry.mag.name, "offset": list(geometry.offset), "voxel_size": lengths})
        edit = N5Edit(self.root, self.group, len(datasets[0].dimensions), tuple(zip(map(basename, folders), geometries, strict=True)))
        stored_as = f"{datasets[0].compression.type}, blocks of {' x '.join(map(str, datasets[0].block_size[:3]))} voxels, each a file"
        # journals of a single dataset keep its settings without a list
        journal_settings = settings[0] if len(settings) == 1 else {"datasets": settings}
        return NewLevels(dirname(folders[0]), folders, tuple(targets), journal_settings, edit, stored_as=stored_as)

    def _folders(self, mags: Sequence[Mag]) -> tuple[str, ...]:
        """Return the folders of the mags. New mags get the next numbers, because N5 numbers levels from fine to coarse."""
        if not self.levels:
            return (self.folder,)
        names, coarsest = dict(self.levels), max(self.levels, key=lambda mag: mag.maximum)
        number = max((level_number(name) or 0 for name in names.values()), default=0)
        for mag in mags:
            if mag in names:
                continue
            if mag.maximum <= coarsest.maximum:
                raise UnsupportedError(f"{self.folder}: N5 levels are numbered from fine to coarse, and mag {mag} is not coarser than mag {coarsest}")
            number, coarsest = number + 1, mag
            names[mag] = f"s{number}"
        return tuple(f"{self.folder}/{names[mag]}" for mag in mags)

    def unchanged_levels_note(self, existing: str) -> str:
        del existing
        return f"existing other levels are not changed: {', '.join(self.others)}" if self.others else ""

    def _relative_mag(self, mag: Mag) -> Mag:
        """Return a mag relative to the finest mag of the group."""
        finest = self.destination.all_mags[0] if self.destination.all_mags else MAG_1
        if any(a % b for a, b in zip(mag.factors, finest.factors, strict=True)):
            raise MissingError(f"{self.folder}: mag {mag} is not a multiple of mag {finest} along all axes; mag= selects other mags")
        return Mag.parse(finest.step_to(mag))

    def _base_lengths(self) -> Lengths | None:
        """Return the voxel size of the finest level: from the user, else from the source, else from the group."""
        size = _base_voxel_size(self.destination)
        return size or (None if self.group is None else _stored_voxel_size(self.group))


def _base_voxel_size(destination: Destination) -> Lengths | None:
    size = destination.required_voxel_size_nm or destination.source_voxel_size_nm
    return size if size is None or not destination.all_mags else lengths_in(destination.all_mags[0], size)


def _choose_dataset(spec: LevelSpec, stored: N5Options, like: Volume | None) -> N5Dataset:
    """Choose the storage of a new dataset; missing options are those of ``like`` if it is N5."""
    like_dataset = like.identity.dataset if isinstance(like, StoredArray) and isinstance(like.identity, N5Description) else None
    compression = None if like_dataset is None or stored.compression is not None or stored.level is not None else like_dataset.compression
    options: Any = (stored if like_dataset is None else replace(stored, chunk_shape=stored.chunk_shape or like.chunk_shape)).with_defaults()  # type: ignore[union-attr]
    native = np.dtype(spec.dtype).newbyteorder("=")
    if native.name not in DTYPES:
        hint = {"bool": "uint8", "float16": "float32"}.get(native.name)
        advice = f'cast with .astype("{hint}")' if hint else "cast to one of these"
        raise TypeError(f"N5 has no type for {native.name}; it stores {', '.join(DTYPES)}: {advice}")
    channels = (spec.num_channels,) if spec.num_channels > 1 else ()
    block: Vec3 = options.chunk_shape
    dataset = N5Dataset((*spec.box.size, *channels), (*block, *channels), native, compression or make_compression(options.compression, options.level))
    if max(block) > _MAX_BLOCK_LEN or dataset.block_nbytes > MAX_BLOCK_NBYTES:
        raise ValueError(f"chunk_shape must be three lengths of a block of at most {MAX_BLOCK_NBYTES} bytes, got {block} of {native.name}")
    return dataset


def n5_target(destination: Destination) -> N5Target:
    """Return the target of a dataset: the named folder, or a level in it if the levels of an image are written."""
    folder = _local_folder(destination.url)
    if destination.names_image and not destination.all_mags and destination.mag not in (None, MAG_1):
        raise ValueError(f"{destination.url} gets its finest level of images: mag= is not for it")
    if not destination.names_image:
        return _target_in(folder, destination, ())
    number = destination.all_mags.index(destination.mag or MAG_1) if destination.all_mags else 0
    return _target_in(f"{folder}/s{number}", destination, tuple(_other_levels(folder, destination)))


def target_beside(image: Image) -> N5Target:
    """Return an existing group as the target of levels that are computed from one of its levels."""
    levels = {level.mag: level.key for level in image.levels if level.mag is not None and not level.problem}
    if "" in levels.values():
        raise UnsupportedError(f"{image.folder}: is a single N5 dataset, and levels need a group: write it as {image.folder}/s0")
    destination = Destination(PREFIX + image.folder, source_voxel_size_nm=image.voxel_size_nm)
    target = _target_in(f"{_local_folder(image.folder)}/s0", destination, ())
    return replace(target, folder=dirname(target.folder), levels=levels)


def _target_in(folder: str, destination: Destination, others: tuple[str, ...]) -> N5Target:
    """Return the target of a dataset folder, after checks of the folder and all folders above it."""
    is_level = level_number(basename(folder)) is not None
    for path in (folder, dirname(folder)) if is_level else (folder,):
        if contains_wkw(path):
            raise ExistsError(f"{path}: holds WKW data; write N5 to another folder")
    above, root = dirname(folder), None
    while dirname(above) != above:
        document = read_attributes(FolderStore(above))
        if document is not None and is_dataset(document):
            raise ExistsError(f"{folder}: lies inside the N5 dataset {above}, among its blocks")
        if root is None and ((document is not None and "n5" in document) or above.endswith(".n5")):
            root = above
        above = dirname(above)
    group = dirname(folder) if is_level and (root is None or root != folder) else None
    return N5Target(folder, destination, root or group or folder, group, others)


def _local_folder(url: str) -> str:
    text = stripped(url)
    if is_remote(text):
        raise UnsupportedError(f"{text}: N5 is written to local folders only; write to one and copy it, for example with gsutil or aws s3")
    return files.realpath(location_of(text))


def _stored_voxel_size(group: str) -> Lengths | None:
    """Return the voxel size of the finest existing level of a group, or None."""
    document = read_attributes(FolderStore(group)) or {}
    try:
        finest = read_attributes(FolderStore(group), "s0") or {}
    except CorruptError:
        finest = {}
    return voxel_lengths_nm(level_attributes(finest, document, "s0"), "xyz")


def _other_levels(group: str, destination: Destination) -> list[str]:
    """Return the existing levels of a group that a write to its first levels does not replace; raises ExistsError if their voxel size differs."""
    numbers = [number for number in map(level_number, files.listdir(group)) if number is not None] if files.isdir(group) else []
    others = [f"s{number}" for number in sorted(numbers) if number >= max(1, len(destination.all_mags)) and files.isfile(f"{group}/s{number}/{FILE_NAME}")]
    stored_lengths, lengths = _stored_voxel_size(group) if others else None, _base_voxel_size(destination)
    if (
        others
        and not (stored_lengths is None and lengths is None)
        and (stored_lengths is None or lengths is None or not np.allclose(stored_lengths, lengths, rtol=1e-6))
    ):
        what = f"holds {', '.join(others)} too, for a voxel size of {stored_lengths} nm in s0, got {lengths} nm"
        raise ExistsError(f"{group}: {what}: choose another group, or remove this one first")
    return others
