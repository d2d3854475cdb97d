"""Targets of writes: the group of an OME-NGFF image, its existing arrays, and the encoding of new
ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from wkwdask.errors import (
    ExistsError,
    FormatError,
    MetadataWarning,
    MissingError,
    UnsupportedError,
    ViewerWarning,
)
from wkwdask.formats.marks import VIEW_MARK, contains_wkw
from wkwdask.formats.roots import Root, check_links_to
from wkwdask.formats.zarr.array import zarr_array
from wkwdask.formats.zarr.codec import ZarrChunks
from wkwdask.formats.zarr.documents import (
    FILE_NAME,
    INNER_BOX,
    array_record,
    format_document,
    new_axes,
)
from wkwdask.formats.zarr.encoding import (
    BLOSC,
    ArrayEncoding,
    blosc_of,
    checked_dtype,
    choose_encoding,
    describe,
    journal_settings,
    spliced_encoding,
    with_defaults_from,
)
from wkwdask.formats.zarr.layer import (
    NAME,
    PREFIX,
    find_zarr_layers,
    image_of_labels,
    names_zarr2,
    read_node,
)
from wkwdask.formats.zarr.ngff import (
    DEFAULT_VERSION,
    LABELS,
    VERSIONS,
    ImageAxes,
    has_systems,
    is_written,
    multiscale,
    ome_of,
    pyramid_level,
    rgb_range,
    scale_of,
    zarr_format_of,
)
from wkwdask.formats.zarr.ngff_copy import NgffGroup, moved_entry
from wkwdask.formats.zarr.ngff_edit import (
    ArrayEdit,
    NgffEdit,
    read_attributes,
    read_image,
    stated_axes,
)
from wkwdask.geometry.mag import Mag, mag_order
from wkwdask.geometry.vectors import minus, times
from wkwdask.model.levels import ratio_of
from wkwdask.model.placement import job_in, plain_name
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.voxel_type import guess_category
from wkwdask.model.writing.target_array import TargetArray
from wkwdask.model.writing.target_image import NewLevels, TargetFolder
from wkwdask.plans.extents import common_extent, extent_beside
from wkwdask.store import by_path
from wkwdask.store.paths import basename, dirname, stated_path, target_path
from wkwdask.store.store import open_store, store_at

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from wkwdask.formats.zarr.layer import Node
    from wkwdask.formats.zarr.ngff import PyramidLevel
    from wkwdask.formats.zarr.options import ZarrOptions
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.levels import Lengths
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import Destination, LevelSpec


_SHOWN = 5


@dataclass(frozen=True, slots=True)
class NgffTarget(TargetFolder):
    """Local group of an image, existing or new; implements
    :class:`wkwdask.model.writing.target_image.TargetImage`."""

    prefix: ClassVar[str] = PREFIX
    image: dict[str, Any] | None
    """Existing entry of ``multiscales``, with plain paths; None for a new image."""
    version: str | None
    listed: Mapping[str, str] = field(default_factory=dict)
    """Path that the document states for each plain path, where these can differ."""

    def new_levels(
        self,
        specs: Sequence[LevelSpec],
        options: ZarrOptions,
        like: Volume | None = None,
        existing: str = "error",
    ) -> NewLevels:
        del existing
        if self.destination.category not in (None, "color", "segmentation"):
            raise ValueError(
                f'category must be "color" or "segmentation", got {self.destination.category!r}'
            )
        first = specs[0]
        shared = self._axes(first.num_channels)
        sizes = self._voxel_sizes(shared)
        source = _copied_node(first, like)
        version = self._version(options, source)
        dtype = checked_dtype(first.dtype)
        is_label = (
            self.destination.category or guess_category(dtype, first.num_channels)
        ) == "segmentation"
        encoded = partial(
            _encoding, options=options, version=version, folder=self.folder, is_label=is_label
        )
        together = sorted(
            self.destination.levels or specs,
            key=lambda spec: mag_order(spec.box.mag),
        )
        last = together[-1]
        coarsest = encoded(last, (last.source or like) if last.is_copy else like, shared.letters)
        extents = self._extents(specs, together, coarsest)
        entry = self._copied_entry(first, extents[0], version, like)
        axes = shared.letters if entry is None else like.codec.axes  # type: ignore[union-attr]
        encodings = [
            encoded(spec, like, axes, extent.size)
            for spec, extent in zip(specs, extents, strict=True)
        ]
        size: Lengths | None
        if entry is None:
            size = base = self._new_voxel_size(first, sizes, shared, like)
            levels = [
                self._new_level(extent.mag, extent.topleft, base, shared) for extent in extents
            ]
            edit, lost = self._edit(first, levels, shared, version, is_label=is_label)
            paths = [level.path for level in levels]
        else:
            size, paths = (
                None if self.image is None else _base_size(entry, first.box.mag, shared),
                [entry["path"]],
            )
            edit, lost = self._copied_edit(entry, first, version, like)
        self._check_unlisted(paths)
        self._check_label(first, edit, is_label=is_label)
        root = self._root(version)
        folders = tuple(
            root.level_folder(
                path, [entry["path"] for entry in self._entries if entry["path"] not in paths]
            )
            for path in paths
        )
        names = (
            None
            if entry is not None or self.image is None
            else [axis.get("name") for axis in shared.named]
        )
        placed = list(zip(specs, encodings, extents, strict=True))
        targets = tuple(
            replace(
                _target_array(folder, *level, source, names),
                listed=self._listed_folder(path),
                keeps_files=self.destination.keeps_files and level[1].is_spliced,
            )
            for folder, path, level in zip(folders, paths, placed, strict=True)
        )
        if size is not None:
            self._check_voxel_size(
                size, sizes, {*paths, *(mag.name for mag in self.destination.all_mags)}
            )
        settings: dict[str, Any] = {
            "version": version,
            # A copied level has the scale of its source. The first level of a copy has no image yet
            # to count mags from, the same call repeated has one.
            "voxel_size": None if size is None or entry is not None else list(size),
            "label": is_label,
            "dtype": dtype.name,
            "channels": first.num_channels,
            **_array_settings(specs, encodings, extents),
        }
        if any(target.keeps_files for target in targets):
            settings["keeps_outside"] = True
        warnings, parent = (*self._warnings(specs), *lost), root.work_folder(self.folder, folders)
        return NewLevels(
            parent,
            folders,
            targets,
            settings,
            edit,
            warnings,
            describe(targets[0].array),
            placed_as=_margins(together[0], extents[0]),
        )

    def _new_voxel_size(
        self,
        first: LevelSpec,
        sizes: Mapping[str, Lengths],
        shared: ImageAxes,
        like: Volume | None,
    ) -> Lengths:
        """Return the edge lengths of a voxel of mag 1 that new levels are counted from."""
        # the given size comes first, so that a mismatch with the existing image is reported
        size = (
            self.destination.required_voxel_size_nm
            or next(iter(sizes.values()), None)
            or self.destination.source_voxel_size_nm
        )
        if size is None:
            # an image without units, whose finest array is mag 1
            stored = (_base_size(entry, Mag(1, 1, 1), shared) for entry in self._entries)
            size = min(filter(None, stored), default=None)
        if size is not None:
            return size
        if first.is_copy and like is not None:
            raise ValueError(
                f"{like.name}: states no voxel size, which its copy as an image needs; convert() "
                "with voxel_size= writes it, such as (4, 4, 40): the edge lengths of a voxel along "
                "x, y, z in nanometers"
            )
        raise ValueError(
            "voxel_size= is needed for a new image: the edge lengths of a voxel of mag 1 in "
            "nanometers, such as (4, 4, 40)"
        )

    def _listed_folder(self, path: str) -> str | None:
        """Return the folder that the document names for an array; None if it lists no such one."""
        return stated_path(self.folder, self.listed[path]) if path in self.listed else None

    def _root(self, version: str) -> Root:
        return Root(
            self.folder,
            f"{self.folder}/{FILE_NAME if zarr_format_of(version) == 3 else '.zattrs'}",
            self.destination.allow_external,
        )

    def _extents(
        self, specs: Sequence[LevelSpec], together: Sequence[LevelSpec], coarsest: ArrayEncoding
    ) -> list[BoundingBox]:
        """Return the box of each new array: all levels of an image begin and end in one place.

        ``together`` are the levels that one call writes, and ``coarsest`` is the encoding of the
        last of them.
        """
        if all(spec.extent is not None for spec in specs):
            return [spec.extent for spec in specs if spec.extent is not None]
        other = self._extent_of_others({spec.box.mag for spec in (*specs, *together)})
        if other is not None:
            return [extent_beside(other, spec.box) for spec in specs]
        if len(together) == 1 and not coarsest.is_spliced:
            return [specs[0].box]
        common = common_extent([spec.box for spec in together], coarsest.chunk_shape)
        return [common.in_mag(spec.box.mag) for spec in specs]

    def _extent_of_others(self, mags: Collection[Mag]) -> BoundingBox | None:
        """Return the box of the array of the finest level whose mag is none of the given ones; None
        if there is no other level."""
        if not self._entries:
            return None
        (image,) = find_zarr_layers(self.folder)
        others = (
            level
            for level in image.levels
            if level.mag is not None and level.mag not in mags and not level.problem
        )
        return next((level.open().extent for level in others), None)

    @property
    def _source(self) -> NgffGroup | None:
        """Group of the image that is copied or converted, None for other sources."""
        details = None if self.destination.image is None else self.destination.image.details
        return details if isinstance(details, NgffGroup) else None

    @property
    def _copied(self) -> Image:
        """Image that is copied or converted."""
        assert self.destination.image is not None
        return self.destination.image

    def _copied_entry(
        self, spec: LevelSpec, extent: BoundingBox, version: str, like: Volume | None
    ) -> dict[str, Any] | None:
        """Return the dataset entry of a copied level; None for a level whose axes or version differ
        from those of its source."""
        source = self._source
        if (
            not spec.is_copy
            or source is None
            or source.version != version
            or not isinstance(like, StoredArray)
            or not isinstance(like.codec, ZarrChunks)
        ):
            return None
        level, axes = self._copied.level_of(like), like.codec.axes
        entry = None if level is None else source.entry_of(level.key, len(axes))
        if level is None or entry is None or not axes.endswith("zyx"):
            return None
        if self.image is not None and stated_axes(self.image, self.folder) != stated_axes(
            source.image, self._copied.folder
        ):
            return None
        scale = scale_of(entry)
        path = next(
            (
                other["path"]
                for other in self._entries
                if len(scale) > 1 and scale_of(other) == scale
            ),
            None,
        )
        moves = {
            letter: low - before
            for letter, low, before in zip("xyz", extent.topleft, like.origin, strict=True)
        }
        return moved_entry(
            entry,
            path or (spec.box.mag.name if "/" in level.key else level.key),
            [moves.get(letter, 0) for letter in axes],
        )

    def _copied_edit(
        self, entry: dict[str, Any], spec: LevelSpec, version: str, like: Any
    ) -> tuple[NgffEdit, list[Warning]]:
        """Return the metadata edit of a copied level, and a warning about metadata that do not hold
        for the copy."""
        source, destination = self._source, self.destination
        assert source is not None
        keys = {
            level.key
            for level in self._copied.levels
            if level.mag in destination.all_mags and "/" not in level.key
        }
        attributes, lost = source.copied(
            entry,
            keys,
            is_moved=any(destination.translate),
            is_cropped=spec.box.size != like.box.size,
        )
        edit = NgffEdit(
            self.folder,
            version,
            ome_of(attributes)["multiscales"][0],
            "image-label" in ome_of(attributes),
            None,
            attributes,
        )
        edit.check_current()
        return edit, self._lost(lost)

    def _lost(self, names: Sequence[str]) -> list[Warning]:
        """Return a warning about metadata that a new image does not take over from its source."""
        if not names or self.image is not None:
            return []
        return [
            MetadataWarning(
                f"{self.folder}: does not take over from {self._copied.folder}: {'; '.join(names)}"
            )
        ]

    def _warnings(self, specs: Sequence[LevelSpec]) -> tuple[Warning, ...]:
        """Return a warning if a label image gets another number of levels than its image, which the
        specification forbids."""
        above, mags = dirname(self.folder), {spec.box.mag for spec in specs}
        if basename(above) != LABELS or (
            self.destination.all_mags and self.destination.all_mags[-1] not in mags
        ):
            return ()
        image = read_image(dirname(above))
        names = {mag.name for mag in (*self.destination.all_mags, *mags)} | {
            entry["path"] for entry in self._entries
        }
        if (
            image is None
            or not self.destination.all_mags
            or len(image[1]["datasets"]) == len(names)
        ):
            return ()
        found = f"has {len(names)} arrays, its image {len(image[1]['datasets'])}"
        return (
            ViewerWarning(
                f"{self.folder}: {found}; OME-NGFF requires the same number: mag= selects some"
            ),
        )

    def _version(self, options: ZarrOptions, source: Node | None) -> str:
        """Return the version of the image: a copy has that of its source, or that of the same
        Zarr."""
        above = (
            read_image(dirname(dirname(self.folder)))
            if self.version is None and basename(dirname(self.folder)) == LABELS
            else None
        )
        # one version in a hierarchy (OME-NGFF 0.6, "OME-Zarr Metadata")
        stored = self.version or (None if above is None else above[0])
        default = "0.4" if names_zarr2(self.destination.url) else DEFAULT_VERSION
        if source is not None:
            if self._source is not None and is_written(self._source.version):
                default = self._source.version
            elif source.record == ".zarray":
                default = "0.4"
        version = options.ngff or stored or default
        if stored is not None and version == "0.6" and has_systems(stored):
            version = stored
        if not is_written(version):
            raise FormatError(
                f"{self.folder}: is an image of OME-NGFF {version!r}, which cannot be extended, "
                f"expected {' or '.join(VERSIONS)}"
            )
        return version

    def _axes(self, num_channels: int) -> ImageAxes:
        """Return the axes of new levels: those of the existing image if it can have them."""
        named = (
            None
            if self.image is None or not self.image["datasets"]
            else stated_axes(self.image, self.folder)
        )
        stored = None
        if (
            self.image is not None
            and isinstance(named, list)
            and all(isinstance(axis, dict) for axis in named)
        ):
            stored = ImageAxes.of_image(self.image, named)
        own = ImageAxes.of_letters(new_axes(num_channels))
        return (
            own if stored is None or ("c" in own.letters and "c" not in stored.letters) else stored
        )

    def _edit(
        self,
        spec: LevelSpec,
        levels: Sequence[PyramidLevel],
        axes: ImageAxes,
        version: str,
        *,
        is_label: bool,
    ) -> tuple[NgffEdit, list[Warning]]:
        """Return the metadata edit of new arrays, checked against the existing image, and a warning
        about metadata of their source that it lacks."""
        name = self.folder.rpartition("/")[2].removesuffix(".ome.zarr").removesuffix(".zarr")
        for level in levels:
            self._check_no_duplicate(self._root(version), level, axes)
        rgb = None if is_label else rgb_range(spec.dtype, spec.num_channels)
        edit = NgffEdit(
            self.folder, version, multiscale(name, levels, axes, version), is_label, rgb
        )
        edit.check_current()
        return edit, [] if self._source is None else self._lost(
            self._source.lost_in(edit.new_attributes, self._copied.levels)
        )

    def _check_unlisted(self, paths: Collection[str]) -> None:
        """Raise ExistsError if a group without an image holds other arrays, which ``multiscales``
        of the new ones alone would hide."""
        if self.image is not None or not store_at(self.folder).is_folder():
            return
        try:
            found = [image.name for image in find_zarr_layers(self.folder)]
        except MissingError:
            return
        hidden = [name for name in found if name not in paths and not name.startswith(f"{LABELS}/")]
        if hidden:
            names = ", ".join(hidden[:_SHOWN]) + (
                f" and {len(hidden) - _SHOWN} more" if len(hidden) > _SHOWN else ""
            )
            raise ExistsError(
                f"{self.folder}: holds {names}, and no multiscales lists them: an image here would "
                "hide them from readers of OME-NGFF; "
                "write it to a new group, or copy() or convert() these into an image first"
            )

    def _check_label(self, spec: LevelSpec, edit: NgffEdit, *, is_label: bool) -> None:
        if self.folder.split("/")[-2] == LABELS and not (is_label or edit.is_label):
            what = f"got {spec.num_channels} x {spec.dtype.name}, which is not a segmentation"
            raise ValueError(f"{self.folder}: labels must be integers in one channel, {what}")

    @property
    def _entries(self) -> list[dict[str, Any]]:
        return [] if self.image is None else self.image["datasets"]

    def _new_level(self, mag: Mag, corner: Vec3, size: Lengths, axes: ImageAxes) -> PyramidLevel:
        """Return a level named like the array of its mag that it replaces, else by its mag, with
        all three factors where the short name belongs to an array of another mag."""
        for path in self._paths_of(mag):
            level = pyramid_level(path, mag, corner, size)
            if any(
                entry["path"] == path and _has_size(entry, level, axes) for entry in self._entries
            ):
                return level
        for path in dict.fromkeys((mag.name, "-".join(map(str, mag.factors)))):
            level = pyramid_level(path, mag, corner, size)
            others = [entry for entry in self._entries if entry["path"] == path]
            if not others or _has_size(others[0], level, axes) is not False:
                return level
        raise ExistsError(
            f"{self.folder}: the array {path!r} has another voxel size than mag {mag}, which would "
            "get its name; rename it"
        )

    def _paths_of(self, mag: Mag) -> list[str]:
        """Return the paths of the existing arrays of a mag."""
        if not self._entries:
            return []
        (image,) = find_zarr_layers(self.folder)
        return [plain_name(level.key) for level in image.levels if level.mag == mag]

    def _check_no_duplicate(self, root: Root, level: PyramidLevel, axes: ImageAxes) -> None:
        """Raise ExistsError if another array has the voxel size of a new level."""
        for entry in self._entries:
            if _has_size(entry, level, axes) and entry["path"] != level.path:
                root.check(stated_path(self.folder, entry["path"]), entry["path"])
                raise ExistsError(
                    f"{self.folder}: the array {entry['path']!r} has the voxel size "
                    f"of mag {level.path} already; write other mags, or remove that one first"
                )

    def _voxel_sizes(self, axes: ImageAxes) -> dict[str, Lengths]:
        """Return the voxel size of mag 1 according to each array, by its path; empty if other
        software named the arrays."""
        try:
            sizes = {
                entry["path"]: _base_size(entry, Mag.parse(entry["path"]), axes)
                for entry in self._entries
            }
        except ValueError:
            return {}
        known = {path: size for path, size in sizes.items() if size is not None}
        agree = all(_is_close(size, other) for size, other in pairwise(known.values()))
        return known if agree else {}

    def _check_voxel_size(
        self, size: Lengths, sizes: Mapping[str, Lengths], replaced: Collection[str]
    ) -> None:
        """Raise FormatError if a remaining array implies another voxel size of mag 1."""
        for path, stored in sizes.items():
            if path not in replaced and not _is_close(size, stored):
                stated = " x ".join(f"{n:g}" for n in stored)
                new = " x ".join(f"{n:g}" for n in size)
                raise FormatError(
                    f"{self.folder}: the voxel size of mag 1 is {stated} nm according to its array "
                    f"{path!r}, got {new}"
                )


@dataclass(frozen=True, slots=True)
class ArrayTarget(TargetFolder):
    """Single array that is stored again with other chunks, shards or compression; shape, type, axes
    and attributes stay."""

    prefix: ClassVar[str] = PREFIX

    def new_levels(
        self,
        specs: Sequence[LevelSpec],
        options: ZarrOptions,
        like: Volume | None = None,
        existing: str = "error",
    ) -> NewLevels:
        del existing
        node, spec = read_node(self.folder), specs[0]
        if (
            node is None
            or not isinstance(like, StoredArray)
            or not isinstance(like.codec, ZarrChunks)
            or [spec.box.mag for spec in specs] != [like.mag]
        ):
            raise UnsupportedError(
                f"{self.folder}: is a single Zarr array, and levels need an image: write it as a "
                "level of one with save()"
            )
        extent, version = spec.extent or spec.box, "0.4" if node.record == ".zarray" else "0.5"
        encoding = choose_encoding(
            spec,
            with_defaults_from(options, like),
            version,
            like.codec.axes,
            folder=self.folder,
            is_label=False,
            size=extent.size,
        )
        target = _target_array(self.folder, spec, encoding, extent, node, keeps_place=False)
        above = dirname(self.folder)
        return NewLevels(
            above,
            (self.folder,),
            (target,),
            journal_settings(spec, encoding),
            ArrayEdit(above),
            stored_as=describe(target.array),
        )


def _has_size(entry: Mapping[str, Any], level: PyramidLevel, axes: ImageAxes) -> bool | None:
    """Return whether an array has the voxel size of a level, None where it is not known."""
    lengths = axes.lengths_nm(scale_of(entry))
    return None if lengths is None else _is_close(lengths, level.lengths)


def _is_close(lengths: Lengths, others: Lengths) -> bool:
    return all(abs(a / b - 1) <= 1e-3 for a, b in zip(lengths, others, strict=True) if b)


def _copied_node(spec: LevelSpec, like: Volume | None) -> Node | None:
    """Return the array that a level is a copy of, None for another level."""
    return read_node(like.name) if spec.is_copy and isinstance(like, StoredArray) else None


def _encoding(
    spec: LevelSpec,
    like: Volume | None,
    axes: str,
    size: Vec3 | None = None,
    *,
    options: ZarrOptions,
    version: str,
    folder: str,
    is_label: bool,
) -> ArrayEncoding:
    """Return the encoding of a new array; ``like`` is an array whose storage is used for options
    that are not given, ``size`` that of the array."""
    blosc = blosc_of(like) if options.compression is None else BLOSC
    filled = with_defaults_from(options, like)
    chosen = choose_encoding(
        spec, filled, version, axes, folder=folder, is_label=is_label, size=size
    )
    return spliced_encoding(spec, filled, version, axes) or replace(chosen, blosc=blosc)


def _array_settings(
    specs: Sequence[LevelSpec],
    encodings: Sequence[ArrayEncoding],
    extents: Sequence[BoundingBox],
) -> dict[str, Any]:
    """Return the settings of arrays for a journal: a list with a value per array, and for a single
    array the value alone."""
    each = list(map(journal_settings, specs, encodings))
    settings = (
        dict(each[0])
        if len(each) == 1
        else {name: [values[name] for values in each] for name in each[0]}
    )
    if any(extent != spec.box for spec, extent in zip(specs, extents, strict=True)):
        settings["extents"] = [[*extent.topleft, *extent.size] for extent in extents]
    return settings


def _margins(spec: LevelSpec, extent: BoundingBox) -> str:
    """Describe the voxels of arrays around the box of the finest level; ``extent`` is that of any
    level. A copy has those of its source."""
    (low, high), (first, end) = (
        [times(corner, box.mag.factors) for corner in (box.topleft, box.bottomright)]
        for box in (spec.box, extent)
    )
    before, after = (
        " x ".join(map(str, lengths)) for lengths in (minus(low, first), minus(end, high))
    )
    if (first, end) == (low, high) or spec.extent is not None:
        return ""
    return (
        f"arrays begin {before} voxels of mag 1 before the bounding box and end {after} after it, "
        "on a block and a voxel of the coarsest level"
    )


def _base_size(entry: Mapping[str, Any], mag: Mag, axes: ImageAxes) -> Lengths | None:
    """Return the voxel size of mag 1 in nanometers according to the dataset entry of a mag; None if
    it has no scale."""
    lengths = axes.lengths_nm(scale_of(entry))
    return None if lengths is None else ratio_of(lengths, mag.factors)


def _target_array(
    folder: str,
    spec: LevelSpec,
    encoding: ArrayEncoding,
    extent: BoundingBox,
    source: Node | None = None,
    names: Any = None,
    *,
    keeps_place: bool = True,
) -> TargetArray:
    """Return a new array as a target, which may be larger than its box. A copy has attributes and
    names of axes of its source."""
    store, box, origin, size = open_store(folder), spec.box, extent.topleft, extent.size
    attributes = (
        {}
        if source is None
        else {
            name: value
            for name, value in source.attributes.items()
            if name not in (VIEW_MARK, INNER_BOX)
        }
    )
    attributes |= {"mag": list(box.mag.factors), "offset_vx": list(origin)} if keeps_place else {}
    if extent != box:
        attributes[INNER_BOX] = [*minus(box.topleft, origin), *box.size]
    if encoding.version == 2:
        documents = {".zarray": encoding.document_v2(size), ".zattrs": attributes}
    else:
        documents = {FILE_NAME: encoding.document(size, attributes)}
        names = names if source is None else source.document.get("dimension_names")
        if names is not None and len(names) == len(encoding.axes):
            documents[FILE_NAME]["dimension_names"] = names
    name = next(iter(documents))
    array = zarr_array(store, name, documents[name], encoding.axes, is_new=True)
    # Files of single chunks are recorded in the groups by which the array is read: these follow
    # from its size, which may be larger than the box.
    unit = encoding.shard_shape if array.layout.is_sharded else array.grid.unit
    array = replace(
        array,
        mag=box.mag,
        grid=replace(array.grid, unit=unit, origin=origin),
        crop=box if extent != box else None,
    )
    return TargetArray(
        array,
        store,
        tuple((name, format_document(document).encode()) for name, document in documents.items()),
    )


def ngff_target(destination: Destination) -> NgffTarget:
    """Return the target of an image; raises ExistsError if its folder contains something else."""
    named = target_path(NAME.stripped(destination.url))
    folder = by_path.real_target(named)
    if contains_wkw(folder):
        raise ExistsError(
            f"{folder}: holds WKW data; write an image to another folder (write_zarr_view makes "
            "WKW readable as Zarr in place)"
        )
    if array_record(folder) is not None:
        raise ExistsError(
            f"{folder}: is a Zarr array: region= writes a part of it; a new level is written to "
            f"{dirname(folder)}, with mag="
        )
    if store_at(folder).is_taken() and not store_at(folder).is_folder():
        raise ExistsError(f"{folder}: is a file, expected nothing or a folder")
    existing = read_image(folder)
    if basename(folder) == LABELS and read_image(dirname(folder)) is not None:
        raise ExistsError(
            f"{folder}: is the group that lists the labels of an image; write to a folder in it, "
            f"such as {folder}/neurons"
        )
    if existing is None and store_at(folder).is_folder() and read_attributes(folder) is None:
        # Records of jobs may exist, and arrays of a job that was killed after their publication,
        # before the image listed them, or in a bucket before they had a document.
        others = (
            name
            for name in store_at(folder).names()
            if not name.startswith(".")
            and not job_in(name)
            and array_record(f"{folder}/{name}") is None
        )
        other = min(others, default=None)
        if other is not None:
            raise ExistsError(f"{folder}: contains other files than an image ({other})")
    check_links_to(named, image_of_labels(named), destination.allow_external)
    version, image = existing or (None, None)
    listed: dict[str, str] = {}
    if image is not None and store_at(folder).folders is None:
        listed = {plain_name(entry["path"]): entry["path"] for entry in image["datasets"]}
        image["datasets"] = [
            entry if entry["path"] in listed else moved_entry(entry, plain_name(entry["path"]), ())
            for entry in image["datasets"]
        ]
    return NgffTarget(folder, destination, image, version, listed)
