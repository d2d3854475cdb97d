"""Targets of new mags: their folders and headers, and the edit that lists them in the JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.errors import BoundsError, ExistsError, FormatError, UnsupportedError
from wkwdask.formats.edits import Edits
from wkwdask.formats.file_suffixes import READ_SUFFIXES
from wkwdask.formats.registry import check_folder_name, format_named
from wkwdask.formats.replaceable import is_occupied, replaces
from wkwdask.formats.roots import checked_folder, root_of
from wkwdask.formats.webknossos.dataset import (
    STORED_IN,
    check_supported,
    dataset_of,
    find_listed_arrays,
    is_arrays_layer,
    layer_in,
    mag_from_name,
    make_layer,
    open_arrays,
    other_layers_with,
    with_external,
)
from wkwdask.formats.webknossos.datasource import (
    FILE_NAME,
    NewLayer,
    check_layer_name,
    format_datasource,
    new_document,
    parse_datasource,
)
from wkwdask.formats.webknossos.document import (
    check_own_datasource,
    read_datasource,
)
from wkwdask.formats.webknossos.layer_edit import LayerEdit
from wkwdask.formats.webknossos.layer_metadata import type_text
from wkwdask.formats.wkw.array import wkw_target
from wkwdask.formats.wkw.header import (
    derived_header,
    largest_file_len,
    new_header,
    rewritten_header,
    storage_settings,
    storage_text,
)
from wkwdask.formats.wkw.layout import header_of, is_wkw
from wkwdask.formats.wkw.remote import open_in
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.vectors import is_multiple, minus
from wkwdask.model.coordinates import same_lengths
from wkwdask.model.levels import Lengths, lengths_in
from wkwdask.model.options import make_options
from wkwdask.model.placement import plain_name
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.voxel_type import element_class, guess_category
from wkwdask.model.writing.target_image import NewLevels
from wkwdask.plans.mag_ladder import check_one_ladder
from wkwdask.store.paths import (
    basename,
    dirname,
    is_below,
    is_bucket,
    is_remote,
    relpath,
    split,
    splitext,
    target_path,
)
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.formats.wkw.options import WkwOptions
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image
    from wkwdask.model.options import StorageOptions
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.model.writing.target_image import Destination, LevelSpec


@dataclass(frozen=True, slots=True)
class MagTarget:
    """Target of one new mag, a :class:`wkwdask.model.writing.target_image.TargetImage`."""

    folder: str
    """Folder of the mag, with symbolic links that leave the dataset resolved."""
    mag: Mag
    layer: Image
    """Layer of the mag, with its record if the JSON lists it."""
    destination: Destination
    """Destination and options given by the user."""
    user_folder: str = ""
    """Folder as the user named it, if links lead elsewhere."""

    @property
    def _is_named_as_mag(self) -> bool:
        """Whether the folder is named after the mag."""
        return basename(self.user_folder or self.folder) in (self.mag.name, self.mag.long_name)

    def url_of(self, folder: str) -> str:
        return self.user_folder or folder

    def unchanged_levels_note(self, existing: str) -> str:
        """Return a note on existing coarser mags, which are not updated."""
        listed = {} if dataset_of(self.layer).record is None else self.layer.mags
        here = listed.get(self.mag, self.folder) if is_bucket(self.folder) else self.folder
        if not replaces(existing) and is_occupied(here):
            return ""
        coarser = [
            mag.name
            for mag in listed
            if mag != self.mag and is_multiple(mag.factors, self.mag.factors)
        ]
        if not coarser:
            return ""
        advice = (
            'build_pyramid(update=True) brings them up to date, existing="overwrite" replaces them'
        )
        return f"existing coarser mags are not changed: {', '.join(coarser)}; {advice}"

    def new_levels(
        self,
        specs: Sequence[LevelSpec],
        options: StorageOptions,
        like: Volume | None = None,
        existing: str = "error",
    ) -> NewLevels:
        (spec,) = specs
        if self.destination.category not in (None, "color", "segmentation"):
            raise ValueError(
                f'category must be "color" or "segmentation", got {self.destination.category!r}'
            )
        if min(spec.box.topleft) < 0:
            option = "translate=" if any(self.destination.translate) else "offset="
            raise BoundsError(
                f"{self.folder}: starts at voxel {spec.box.topleft}, but WKW has no voxels below "
                f"0: move it with {option}, or exclude that part "
                "with bounding_box="
            )
        data_format = self._data_format(spec)
        layer, source = self.layer, self.destination.image
        if layer.category is None and source is not None and source.is_layer:
            layer = replace(layer, category=self.destination.category or source.category)
        levels = _stored_levels(layer, data_format, [self.folder], specs, options, like, existing)
        (target,) = levels.targets
        size = self._voxel_size_of_new_dataset()
        edit = (self if size is None else self._in_new_dataset(size))._edit(
            target, levels, spec.box, size, data_format
        )
        keeps = self.destination.keeps_files and _is_hidden_outside(edit, spec.box)
        settings = {
            "folder": self.folder,
            "dtype": target.dtype.name,
            "channels": target.num_channels,
            **levels.settings,
        }
        return replace(
            levels,
            parent=self.layer.folder,
            targets=(replace(target, keeps_files=keeps),),
            settings=settings,
            edit=Edits.of(levels.edit, edit),
            placed_as=self._missing_voxels(spec.box),
            is_unchanged=False,
        )

    def _data_format(self, spec: LevelSpec) -> str:
        """Return the format of the files: that of the layer, or that of the source for the copy of
        a layer."""
        dataset, source = dataset_of(self.layer), self.destination.image
        if dataset.record is not None or not spec.is_copy or source is None or not source.is_layer:
            return dataset.data_format
        return dataset_of(source).data_format

    def _missing_voxels(self, box: BoundingBox) -> str:
        """Describe the voxels that a coarser mag lacks in the layer's box; an empty text if it has
        all of them."""
        levels = self.destination.levels
        whole = box if not levels else levels[0].box.in_mag(box.mag)
        if box.contains(whole):
            return ""
        before, after = (
            " x ".join(str(max(0, n)) for n in minus(high, low))
            for low, high in ((whole.topleft, box.topleft), (box.bottomright, whole.bottomright))
        )
        return (
            f"mag {box.mag} begins {before} and ends {after} of its voxels inside of the layer's "
            "bounding box, which is one for all mags in WKW: voxels there "
            'are zero; build_pyramid with existing="overwrite" computes the mag with all of them'
        )

    def _edit(
        self,
        target: TargetArray,
        levels: NewLevels,
        box: BoundingBox,
        voxel_size_nm: Lengths | None,
        data_format: str,
    ) -> LayerEdit | None:
        """Return the edit that lists the mag, or None without a JSON. A new layer that copies
        another one inherits its attributes."""
        layer, destination = self.layer, self.destination
        dataset, record = dataset_of(layer).dataset_folder, dataset_of(layer).record
        source = (
            dataset_of(destination.image).record
            if destination.image is not None and destination.image.is_layer
            else None
        )
        if dataset is None:
            return None
        listed = () if record is None else record.mags
        check_one_ladder(layer.folder, [entry.mag for entry in listed], [self.mag])
        (folder,) = levels.folders
        path = (
            f"./{relpath(self.user_folder, dataset)}"
            if self.user_folder and folder == self.folder
            else json_path(layer, self.mag, folder)
        )
        edit = LayerEdit(
            dataset,
            layer.name,
            ((self.mag, path, levels.stated[0]),),
            voxel_size_nm=voxel_size_nm,
            is_listed=record is not None,
            data_format=data_format,
        )
        elements = element_class(target.dtype, target.num_channels)
        # a mag that replaces the only one changes type and box of the layer; without mags, the
        # layer declares them
        kept = None if [entry.mag for entry in listed] == [self.mag] else record
        if kept is not None and (kept.element_class, kept.num_channels) != (
            elements,
            target.num_channels,
        ):
            raise ValueError(
                f"{layer.folder}: the layer {'stores' if listed else 'is declared in the JSON as'} "
                f"{type_text(kept.element_class, kept.num_channels)}, "
                f"the array is {type_text(elements, target.num_channels)}; cast it, or write to "
                "another layer"
            )
        # The box of the layer changes only if the new mag extends beyond it: other mags stay
        # visible where they have voxels, and a declared box may be filled later.
        if kept is not None and kept.bounding_box.in_mag(self.mag).contains(box):
            return edit
        if record is not None:
            category = record.category
        else:
            copied = destination.image
            if source is None or copied is None or copied.name != layer.name:
                check_layer_name(layer.name)
            category = destination.category or (
                source.category
                if source is not None
                else guess_category(target.dtype, target.num_channels)
            )
        layer_box, attributes = box.in_mag(MAG_1), {}
        if source is not None and destination.image_box is not None:
            # the box of a coarse mag may extend beyond that of the layer
            layer_box, attributes = destination.image_box, source.attributes
        if kept is not None:
            layer_box = kept.bounding_box.union(layer_box)
        return replace(
            edit,
            new_layer=NewLayer(category, layer_box, elements, target.num_channels),
            attributes=attributes,
        )

    def _voxel_size_of_new_dataset(self) -> Lengths | None:
        """Return the voxel size of a dataset to create [nm]; None for an existing one, whose voxel
        size must agree."""
        destination = self.destination
        if not destination.needs_container and destination.voxel_size_nm is None:
            return (
                None
                if destination.coordinate_voxel_size_nm is None
                else self._voxel_size_from_coordinates(destination.coordinate_voxel_size_nm)
            )
        if not destination.needs_container and not self._is_named_as_mag:
            raise ValueError(
                f"{self.folder}: voxel_size= creates a dataset, whose mags are folders such as "
                f"{self.folder}/LAYER/1: pass one of them"
            )
        # An explicit voxel size must match an existing dataset. Without one, a new dataset takes
        # that of the source.
        explicit = (
            destination.required_voxel_size_nm
            if destination.needs_container
            else destination.voxel_size_nm
        )
        dataset = dirname(dirname(self.user_folder or self.folder))
        datasource = read_datasource(dataset)
        if datasource is not None:
            known = datasource.voxel_size_nm
            if explicit is not None and known is not None and not same_lengths(explicit, known):
                raise ValueError(
                    f"{dataset}/{FILE_NAME}: the voxel size is {known} nm, not {explicit} nm; "
                    "leave voxel_size= out, or correct the JSON"
                )
            return None
        size = explicit or destination.source_voxel_size_nm
        if size is None:
            raise ValueError(
                f"{dataset}: a new dataset needs a voxel size, and the source has none: pass "
                "voxel_size=, such as voxel_size=(4, 4, 35) in nm"
            )
        return size

    def _voxel_size_from_coordinates(self, size: Lengths) -> Lengths | None:
        """Return the voxel size of a dataset to create for an array with coordinates; None if none
        is created."""
        datasource = dataset_of(self.layer).datasource
        if datasource is None:
            return size if self.destination.is_empty_folder and self._is_named_as_mag else None
        known = datasource.voxel_size_nm
        if known is not None and not same_lengths(size, known):
            in_dataset, in_array = (
                ", ".join(f"{length:g}" for length in lengths_in(self.mag, lengths))
                for lengths in (known, size)
            )
            raise ValueError(
                f"{self.folder}: voxels of mag {self.mag} are {in_dataset} nm in the dataset, but "
                f"{in_array} nm in the array's coordinates; "
                "write to the mag with this voxel size, or pass offset="
            )
        return None

    def _in_new_dataset(self, voxel_size_nm: Lengths) -> MagTarget:
        """Return the target with the JSON of its new dataset, which is published together with the
        mag."""
        layer, dataset = self.layer, dirname(self.layer.folder)
        datasource = parse_datasource(
            format_datasource(new_document(basename(dataset), voxel_size_nm)),
            f"{dataset}/{FILE_NAME}",
        )
        layer = make_layer(
            layer.folder, layer.name, dataset, datasource, allow_external=layer.allow_external
        )
        checked_folder(layer, self.folder)
        return replace(self, layer=layer)


@dataclass(frozen=True, slots=True)
class LayerTarget:
    """Target of new mags that are computed from a mag of the same layer, a
    :class:`wkwdask.model.writing.target_image.TargetImage`."""

    layer: Image
    destination: Destination
    """Destination and options given by the user."""

    @property
    def mag(self) -> Mag:
        """Mag 1; unused, because each level has its own mag."""
        return MAG_1

    def url_of(self, folder: str) -> str:
        return folder

    def unchanged_levels_note(self, existing: str) -> str:
        """Return an empty note: all coarser mags are computed."""
        del existing
        return ""

    def new_levels(
        self,
        specs: Sequence[LevelSpec],
        options: StorageOptions,
        like: Volume | None = None,
        existing: str = "error",
    ) -> NewLevels:
        assert like is not None
        mags, is_copy = [spec.box.mag for spec in specs], specs[0].is_copy
        named = (
            [like.name]
            if is_copy
            else [self.layer.mags.get(mag, f"{self.layer.folder}/{mag.name}") for mag in mags]
        )
        named = list(map(plain_name, named))
        folders = tuple(checked_folder(self.layer, folder) for folder in named)
        levels = _stored_levels(
            self.layer,
            dataset_of(self.layer).data_format,
            folders,
            specs,
            options,
            like,
            existing,
        )
        folders = levels.folders
        if is_copy:
            self._check_listed_once(like, levels.targets[0])
        else:
            check_no_overlap(self.layer, like, mags, folders)
        check_one_ladder(self.layer.folder, self.layer.mags, mags)
        edit, dataset = None, dataset_of(self.layer).dataset_folder
        if dataset is not None and dataset_of(self.layer).record is not None:
            paths = [
                json_path(self.layer, mag, folder)
                for mag, folder in zip(mags, folders, strict=True)
            ]
            listed = zip(mags, paths, levels.stated, strict=True)
            edit = LayerEdit(dataset, self.layer.name, tuple(listed), is_listed=True)
        return replace(
            levels,
            parent=root_of(self.layer).work_folder(self.layer.folder, folders),
            edit=Edits.of(levels.edit, edit),
        )

    def _check_listed_once(self, like: Volume, target: TargetArray) -> None:
        """Raise ValueError for a new file length of a mag that another layer lists too: that
        layer's record would become wrong."""
        if dataset_of(self.layer).datasource is None or (like.chunk_shape, like.shard_shape) == (
            target.chunk_shape,
            target.shard_shape,
        ):
            return
        for other in other_layers_with(self.layer, like.name):
            raise ValueError(
                f"{like.name}: layer {other} lists this mag and its file length too; write to "
                "another target"
            )


def _is_hidden_outside(edit: LayerEdit | None, box: BoundingBox) -> bool:
    """Return whether the layer's box will lie inside a box: then voxels outside of that box stay
    hidden, and whole files can be kept."""
    if edit is None:
        return False
    if edit.new_layer is not None:
        return box.contains(edit.new_layer.box.in_mag(box.mag))
    datasource = read_datasource(edit.dataset_folder)
    record = None if datasource is None else datasource.layer(edit.layer)
    return record is not None and box.contains(record.bounding_box.in_mag(box.mag))


def _stored_levels(
    layer: Image,
    data_format: str,
    folders: Sequence[str],
    specs: Sequence[LevelSpec],
    options: StorageOptions,
    like: Volume | None,
    existing: str,
) -> NewLevels:
    """Lay out mags in the format of the files of a layer."""
    stored = format_named(STORED_IN[data_format])
    own = (
        options
        if isinstance(options, stored.options)
        else make_options(
            stored.options, **{name: getattr(options, name) for name in options.explicit()}
        )
    )
    for level in layer.levels if is_arrays_layer(layer) else ():
        is_replaced = plain_name(level.folder) in folders and not level.problem
        if is_replaced and level.open().channels is not None:
            raise UnsupportedError(
                f"{level.folder}: holds channels of other layers, too (channelIndex), and is not "
                "replaced; copy() stores those of the layer apart"
            )
    if dataset_of(layer).record is None:  # other folders beside it are not its mags
        layer = replace(layer, list_levels=tuple)
    levels = stored.layer_levels(layer, data_format, folders, specs, own, like, existing)
    targets = (
        replace(target, listed=layer.mags.get(target.mag))
        if is_bucket(layer.folder) or target.listed is not None
        else target
        for target in levels.targets
    )
    return replace(levels, targets=tuple(targets))


def wkw_levels(
    layer: Image,
    folders: Sequence[str],
    specs: Sequence[LevelSpec],
    options: WkwOptions,
    like: Volume | None,
) -> NewLevels:
    """Lay out mags that are stored as WKW; storage options are inherited from a mag that is WKW,
    too."""
    headers = [_header(spec, options, like) for spec in specs]
    targets = tuple(
        _target(folder, header, options, spec.box)
        for folder, header, spec in zip(folders, headers, specs, strict=True)
    )
    level = options.chosen_level
    is_same = (
        specs[0].is_copy
        and options.level is None
        and isinstance(like, StoredArray)
        and is_wkw(like)
        and is_remote(like.name) is is_bucket(folders[0])
        and store_at(folders[0]).real() == store_at(plain_name(like.name)).real()
        and headers[0] == header_of(like).for_header_file()
        and _is_uniform(like)
    )
    return NewLevels(
        layer.folder,
        tuple(folders),
        targets,
        storage_settings(headers, level),
        stored_as=storage_text(headers, level),
        stated=tuple({"cubeLength": header.file_len_vx} for header in headers),
        is_unchanged=is_same,
    )


def _header(spec: LevelSpec, options: WkwOptions, like: Volume | None) -> WkwHeader:
    if like is None or not is_wkw(like):
        return new_header(spec, options)
    before = header_of(like)
    if spec.is_copy:
        is_part = spec.box.size != like.box.size
        return rewritten_header(before, options, spec.box, is_part=is_part, name=like.name)
    mag, finer = spec.box.mag, like.box.mag
    largest = (
        before.file_len
        if mag == finer
        else largest_file_len(before, is_finer=mag.maximum < finer.maximum)
    )
    return derived_header(before, options, spec, largest)


def _target(folder: str, header: WkwHeader, options: WkwOptions, box: BoundingBox) -> TargetArray:
    """Return the target of a mag; with an explicit level, blocks are encoded again instead of
    copied."""
    target = wkw_target(folder, header, options.chosen_level, box)
    return target if options.level is None else replace(target, splicer=None)


def mag_target(destination: Destination) -> MagTarget:
    """Return the target of a new mag, given the destination that a user named."""
    allow_external = destination.allow_external
    named = mag_folder(destination) if destination.needs_container else target_path(destination.url)
    folder = plain_name(named)
    layer_folder, name = split(folder)
    dataset_folder, layer_name = split(layer_folder)
    found = find_listed_arrays(folder)
    mag = mag_from_name(name) if found is None or found.mag is None else found.mag
    if found is not None and found.mag is not None and found.layers[0].folder == folder:
        raise UnsupportedError(
            f"{folder}: is the folder of layer {found.layers[0].name} and of its mag {mag}, "
            "and is not replaced; name the folder of another layer"
        )
    if mag is None:
        _check_new_name(folder)
        for dataset, example in ((folder, f"{folder}/LAYER/1"), (layer_folder, f"{folder}/1")):
            if read_datasource(dataset) is not None:
                raise ValueError(
                    f"{folder}: is not the folder of a mag; name one, such as {example}"
                )
        if re.fullmatch(r"[\d_,x-]+", name) and read_datasource(dataset_folder) is not None:
            raise ValueError(
                f"{folder}: a mag of a layer is named like 2 or 2-2-1, with powers of two, got "
                f"{name!r}"
            )
        layer = make_layer(layer_folder, layer_name, allow_external=allow_external)
        return MagTarget(checked_folder(layer, folder), MAG_1, layer, destination)
    datasource = read_datasource(dataset_folder)
    if datasource is None:
        _check_new_name(folder)
        if read_datasource(layer_folder) is not None:
            raise ValueError(
                f"{layer_folder}: is a dataset, whose mags lie in folders of layers; name one, "
                f"such as {layer_folder}/LAYER/{name}"
            )
        if not allow_external:
            check_own_datasource(dataset_folder)  # a link to a missing file
        return MagTarget(
            folder,
            mag,
            make_layer(layer_folder, layer_name, allow_external=allow_external),
            destination,
        )
    layer = layer_in(dataset_folder, datasource, layer_folder) or make_layer(
        layer_folder, layer_name, dataset_folder, datasource
    )
    check_supported(layer)
    if allow_external:
        layer = with_external(layer)
    if is_arrays_layer(layer):
        layer = open_arrays(layer)
    real = checked_folder(layer, folder)
    listed = layer.mags.get(mag) if dataset_of(layer).record is not None else None
    if listed is not None and (
        is_remote(listed) is not is_bucket(folder)
        or (is_occupied(listed) and store_at(plain_name(listed)).real() != store_at(folder).real())
    ):
        stated = next((level.stated for level in layer.levels if level.mag == mag), None)
        named = "" if stated is None else f" ({layer.document} names it {stated!r})"
        raise ExistsError(
            f"{folder}: mag {mag} of layer {layer.name} is at {listed}{named}; write to that folder"
        )
    return (
        MagTarget(folder, mag, layer, destination)
        if real == folder
        else MagTarget(real, mag, replace(layer, folder=dirname(real)), destination, folder)
    )


def _check_new_name(folder: str) -> None:
    """Raise ValueError if a new mag is named like a file, or lies in a folder that is named like an
    image of another format."""
    if store_at(folder).exists():
        return
    check_folder_name(folder)
    if splitext(folder)[1].lower() in READ_SUFFIXES:
        raise ValueError(
            f"{folder}: is named like a file, but would be a folder of WKW; choose another name, "
            "or write images and .npy with convert()"
        )


def _is_uniform(volume: StoredArray) -> bool:
    """Return whether all files have the block type of the header; files of other software may
    differ."""
    header = header_of(volume)
    for x, y, z in volume.files.stored_states()[:, :3].tolist():
        file = open_in(volume.store, (x, y, z), header)
        if file is not None and file.header.block_type is not header.block_type:
            return False
    return True


def json_path(layer: Image, mag: Mag, folder: str) -> str:
    """Return the path of a mag for the JSON: the listed path, else a path relative to the dataset,
    else the absolute path."""
    dataset = str(dataset_of(layer).dataset_folder)
    record = dataset_of(layer).record
    listed: str | None = (
        next((entry.path for entry in record.mags if entry.mag == mag and entry.path), None)
        if record is not None
        else None
    )
    if listed is not None and (
        store_at(plain_name(layer.mags[mag])).real() == store_at(folder).real()
    ):
        return listed
    default = f"{dataset}/{layer.name}/{basename(folder)}"
    inside = [
        path
        for path in (folder, default)
        if root_of(layer).outside(path) is None
        or (path == default and store_at(path).real() == store_at(folder).real())
    ]
    return f"./{relpath(inside[0], dataset)}" if inside else folder


def check_no_overlap(
    layer: Image, source: Volume, mags: Sequence[Mag], folders: Sequence[str]
) -> None:
    """Raise FormatError if paths in the JSON would make a new mag overwrite other data."""
    known = {source.name: source.box.mag} | {
        folder: mag for mag, folder in layer.mags.items() if mag not in mags
    }
    others = [
        store_at(plain_name(folder)).real()
        for folder in known
        if is_remote(folder) is is_bucket(folders[0])
    ]
    for number, folder in enumerate(folders):
        real = store_at(folder).real()
        for other in others + [store_at(before).real() for before in folders[:number]]:
            if is_below(real, other) or is_below(other, real):
                raise FormatError(
                    f"{folder}: mag {mags[number]} would overwrite {other}; the paths in the JSON "
                    "overlap"
                )


def mag_folder(destination: Destination) -> str:
    """Return the folder of the mag for a destination that is a dataset, a layer or a mag."""
    folder = target_path(destination.url)
    mag = mag_from_name(basename(folder))
    if destination.layer is None and mag is not None and read_datasource(folder) is None:
        if destination.mag is not None and destination.mag != mag:
            raise ValueError(
                f"{folder}: is mag {mag}, but the voxels to write are mag {destination.mag}"
            )
        return folder
    name, datasource = (destination.mag or MAG_1).name, read_datasource(folder)
    if destination.layer is not None:
        above = [] if datasource is not None else [dirname(folder), dirname(dirname(folder))]
        outer = next((path for path in above if path and read_datasource(path) is not None), None)
        if outer is not None:  # a dataset must not be nested in a layer or mag of another one
            raise ValueError(
                f"{folder}: is inside the dataset {outer}, but layer= needs a dataset as the "
                f"target: pass {outer}, or leave layer= out"
            )
        if datasource is None or datasource.layer(destination.layer) is None:
            check_layer_name(destination.layer)
        return f"{folder}/{destination.layer}/{name}"
    if datasource is None and read_datasource(dirname(folder)) is not None:
        return f"{folder}/{name}"
    if datasource is None and read_datasource(dirname(dirname(folder))) is not None:
        raise ValueError(
            f"{folder}: is inside a layer of the dataset {dirname(dirname(folder))}; name a mag of "
            f"the layer, such as {dirname(folder)}/{name}"
        )
    layer = destination.source_layer or destination.category or destination.guessed_category
    if destination.source_layer and (datasource is None or datasource.layer(layer) is None):
        check_layer_name(layer)
    return f"{folder}/{layer}/{name}"
