"""Resolve a path to a dataset, a layer or a mag, and find its record in
``datasource-properties.json``.

A dataset with a JSON is opened without listing folders. Layers stored as Zarr or N5, as the
webknossos library writes them, take paths and boxes of their mags from the JSON too.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from wkwdask.errors import CorruptError, FormatError, MissingError, UnsupportedError
from wkwdask.formats.array_images import array_level
from wkwdask.formats.axes import axes_of
from wkwdask.formats.container import check_level_alone, is_bare
from wkwdask.formats.edits import Edits
from wkwdask.formats.marks import HEADER_NAME
from wkwdask.formats.registry import format_named
from wkwdask.formats.webknossos.datasource import FILE_NAME, DataSource, LayerRecord
from wkwdask.formats.webknossos.document import (
    check_datasource_writable,
    dataset_above,
    folders_of_mags,
    read_datasource,
)
from wkwdask.formats.webknossos.layer_edit import LargestIdEdit, MagRemoval
from wkwdask.formats.wkw.array import filled_box, open_mag
from wkwdask.formats.wkw.folder import files_extent
from wkwdask.formats.wkw.layout import header_of, is_wkw
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag, mag_order
from wkwdask.model.image import Image, Level, ResolvedUrl
from wkwdask.model.levels import is_whole_number, lengths_in
from wkwdask.model.placement import job_in, plain_name
from wkwdask.model.stored_array import box_of_files
from wkwdask.store.documents import remove_document
from wkwdask.store.paths import (
    any_path,
    basename,
    dirname,
    is_bucket,
    is_remote,
    stated_path,
)
from wkwdask.store.records import PROVENANCE_NAME, is_complete
from wkwdask.store.store import check_folder, store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.format import ArrayFormat
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.store import Store, StoredEntry
    from wkwdask.model.stored_array import StoredArray


# files that cover more than this many times the box are searched for blocks of zeros
_SPARSE_RATIO = 2


@dataclass(frozen=True, slots=True)
class DatasetLayer:
    """Dataset of a layer, and its record in the JSON; a :class:`Container`."""

    holds_layers: ClassVar[bool] = True
    dataset_folder: str | None = None
    """Folder of ``datasource-properties.json``; None if there is none."""
    datasource: DataSource | None = None
    record: LayerRecord | None = None
    """Record of this layer; None if the JSON does not list it."""

    @property
    def data_format(self) -> str:
        """Storage format of the layer, as the JSON names it."""
        return "wkw" if self.record is None else self.record.data_format

    @property
    def image_files(self) -> tuple[str, ...]:
        return (FILE_NAME, *self._files_of_arrays)

    @property
    def _files_of_arrays(self) -> tuple[str, ...]:
        """Documents of the format of the layer, beside the JSON of the dataset."""
        is_other = self.data_format != "wkw" and self.data_format in STORED_IN
        return format_named(STORED_IN[self.data_format]).container.image_files if is_other else ()

    def lists(self, path: str) -> bool:
        """Return whether the JSON of a dataset lists a folder as a Zarr or N5 layer, or as a mag of
        such a layer."""
        return find_listed_arrays(path) is not None

    def outermost(self, folder: str) -> str:
        return folder

    def around(self, folder: str) -> str | None:
        return next(
            (path for path in (folder, dirname(folder)) if store_at(path).is_file(FILE_NAME)), None
        )

    def root_of(self, image: Image) -> str | None:
        """Return the dataset of a layer, even if its JSON does not list the layer; None without a
        JSON."""
        return (
            self.dataset_folder if self.dataset_folder is not None else dataset_above(image.folder)
        )

    def readable(self, image: Image) -> Image:
        """Return the image that reads the layer: its arrays if it is not stored as WKW."""
        return open_arrays(image) if is_arrays_layer(image) else image

    def with_all_files(self, volume: StoredArray) -> StoredArray:
        """Return a mag with the box of all stored voxels: a mag that is replaced must keep voxels
        outside of the layer's box."""
        if not is_wkw(volume):
            # an array begins at voxel 0, and in a bucket each absent file costs a request
            box = box_of_files(volume) if is_bucket(volume.name) else volume.extent
            return volume.cropped(volume.box.union(box))
        stored = files_extent(volume.folder, header_of(volume), volume.box.mag)
        # few files, mostly zeros: worth reading their jump tables
        is_mostly_outside = stored.volume > _SPARSE_RATIO * volume.box.volume
        return volume.cropped(filled_box(volume) if is_mostly_outside else volume.box.union(stored))

    def partial_write_edit(self, image: Image) -> MetadataEdit | None:
        return (
            LargestIdEdit(self.dataset_folder, image.name)
            if self.dataset_folder is not None and image.category == "segmentation"
            else None
        )

    def why_not_removable(self, image: Image) -> str:
        del image
        return (
            ""
            if self.data_format in STORED_IN
            else f"the layer is stored as {self.data_format}, which is not supported"
        )

    def check_removable(self, image: Image, folder: str) -> str:
        """Return the real folder of a mag; raises UnsupportedError if it lies outside of the
        dataset or another layer lists it."""
        if self.dataset_folder is not None:
            check_datasource_writable(self.dataset_folder)
        real = check_level_alone(
            image,
            folder,
            stored_format(image).level_folders,
            "wkwdask dataset remove-layer removes the layer from the JSON and keeps its files",
        )
        for other in other_layers_with(image, real):
            raise UnsupportedError(
                f"{real}: layer {other} lists this mag too; remove it from the JSON of one of them "
                "first"
            )
        return real

    def removal_edit(self, image: Image, levels: Sequence[Level]) -> MetadataEdit | None:
        """Return the edit that removes mags from the JSON, and a layer with its last mag."""
        if self.dataset_folder is None or self.record is None:
            return None
        mags = tuple(level.mag for level in levels if level.mag is not None)
        beside = [
            replace(level, key=basename(level.folder))
            for level in levels
            if is_arrays_layer(image) and dirname(level.folder) == image.folder
        ]
        return Edits.of(
            stored_format(image).container.removal_edit(image, beside) if beside else None,
            MagRemoval(self.dataset_folder, image.name, mags),
        )

    def remove_image_files(self, folder: str) -> None:
        # Checked again under the lock: another job may add a layer in the meantime.
        def lists_nothing() -> bool:
            datasource = read_datasource(folder)
            return datasource is not None and not datasource.document.get("dataLayers")

        if self._files_of_arrays:
            format_named(STORED_IN[self.data_format]).container.remove_image_files(folder)
        # in a bucket, removed mags stay for a while, and by the JSON clean knows where they are
        if not is_bucket(folder) and is_bare(folder, (FILE_NAME,)):
            remove_document(store_at(folder), FILE_NAME, lists_nothing, f"rm of {folder}")


STORED_IN = {
    "wkw": "webknossos",
    "zarr3": "zarr",
    "zarr": "zarr",
    "n5": "n5",
    "neuroglancerPrecomputed": "precomputed",
}
"""Formats of layers, by their names in the JSON (``dataFormat``)."""


def stored_format(layer: Image) -> ArrayFormat:
    """Return the format of the files of a layer."""
    check_supported(layer)
    return format_named(STORED_IN[dataset_of(layer).data_format])


def dataset_of(image: Image) -> DatasetLayer:
    """Return the dataset of a layer."""
    if not isinstance(image.container, DatasetLayer):
        raise TypeError(f"{image.folder}: is no layer of a dataset")
    return image.container


def record_of(layer: Image) -> LayerRecord:
    """Return the record of a layer that the JSON of its dataset lists."""
    record = dataset_of(layer).record
    if record is None:
        raise MissingError(f"{layer.folder}: this layer is not in the JSON")
    return record


def other_layers_with(layer: Image, folder: str) -> list[str]:
    """Return the names of other layers of a dataset that list the mag in a folder."""
    dataset, real = dataset_of(layer), store_at(folder).real()
    if dataset.datasource is None:
        return []
    others = [
        listed_layer(str(dataset.dataset_folder), dataset.datasource, record)
        for record in dataset.datasource.layers
    ]
    return [
        other.name
        for other in others
        if other.name != layer.name
        and any(
            not is_remote(path) and store_at(path).real() == real for path in other.mags.values()
        )
    ]


def make_layer(
    folder: str,
    name: str,
    dataset_folder: str | None = None,
    datasource: DataSource | None = None,
    *,
    allow_external: bool = False,
) -> Image:
    """Return the image of a folder of mags, with its record if the JSON lists it."""
    layer = _image(
        folder,
        name,
        DatasetLayer(
            dataset_folder, datasource, None if datasource is None else datasource.layer(name)
        ),
    )
    return with_external(layer) if allow_external else layer


def listed_layer(
    dataset_folder: str, datasource: DataSource, record: LayerRecord, folder: str | None = None
) -> Image:
    """Return the image of a layer that the JSON lists; mags without a path are in the folder named
    after the layer."""
    return _image(
        folder or f"{dataset_folder}/{record.name}",
        record.name,
        DatasetLayer(dataset_folder, datasource, record),
    )


def _image(folder: str, name: str, layer: DatasetLayer) -> Image:
    category = None if layer.record is None else layer.record.category
    voxel_size = None if layer.datasource is None else layer.datasource.voxel_size_nm
    document = "" if layer.dataset_folder is None else f"{layer.dataset_folder}/{FILE_NAME}"
    return Image(
        layer.data_format,
        folder,
        name,
        partial(_levels, folder, name, layer),
        None,
        category,
        voxel_size,
        "mag",
        layer,
        document=document,
        stated_box=None if layer.record is None else layer.record.bounding_box,
        needs_files=True,
    )


def _levels(layer_folder: str, name: str, layer: DatasetLayer) -> Iterator[Level]:
    """Yield the mags: those that the JSON lists, or else the subfolders that contain a mag."""
    if layer.record is not None:
        folders = folders_of_mags(layer_folder, str(layer.dataset_folder), layer.record)
        for listed in layer.record.mags:
            folder = folders[listed.mag]
            if is_remote(str(layer.dataset_folder)) and not is_remote(folder):
                # a remote file must not choose which local files are read
                problem = (
                    f"{layer.dataset_folder}/{FILE_NAME}: mag {listed.mag} of layer {name} is at "
                    f"the local path {folder}, which is not followed"
                )
                yield Level(
                    listed.mag.name,
                    folder,
                    mag=listed.mag,
                    problem=problem,
                    error=UnsupportedError,
                    stated=listed.path,
                )
            else:
                yield replace(
                    _level(layer_folder, name, layer, listed.mag, folder), stated=listed.path
                )
        return
    for mag, folder in mags_in(layer_folder, placed=False).items():
        yield _level(layer_folder, name, layer, mag, folder)


def mags_in(layer_folder: str, *, placed: bool = True) -> dict[Mag, str]:
    """Return the folders of the mags in a folder, finest first; with ``placed``, also of those
    whose names contain their jobs: of a mag, the last one that is complete."""
    found: dict[Mag, tuple[float, str]] = {}
    for entry in store_at(layer_folder).scandir():
        mag = mag_from_name(plain_name(entry.name) if placed else entry.name)
        store, time = store_at(entry.path), 0.0
        if mag is None or not (_has_header(store) or _leads_nowhere(entry)):
            continue
        if job_in(entry.name):
            if not is_complete(entry.path):
                continue
            time = store.written_at(PROVENANCE_NAME) or 0.0
        found[mag] = max(found.get(mag, (-1.0, "")), (time, entry.path))
    return {mag: found[mag][1] for mag in sorted(found, key=mag_order)}


def _has_header(store: Store) -> bool:
    """Return whether a folder has a header, or hides it: then opening its mag is an error, and no
    coarser mag replaces it."""
    if store.is_file(HEADER_NAME):
        return True
    if not store.is_remote:  # buckets that may not be listed refuse absent files
        try:
            store.status(HEADER_NAME)
        except PermissionError:
            return True
        except OSError:
            return False
    return False


def _leads_nowhere(entry: StoredEntry) -> bool:
    """Return whether a link leads to a missing folder: its mag is listed, and cannot be opened."""
    return entry.is_symlink() and not store_at(entry.path).exists()


def mag_from_name(name: str) -> Mag | None:
    """Parse the name of a folder as a mag; None if it is not one."""
    try:
        return Mag.parse(name)
    except ValueError:
        return None


def _level(layer_folder: str, name: str, layer: DatasetLayer, mag: Mag, folder: str) -> Level:
    return Level(mag.name, folder, partial(_open_mag, layer_folder, name, layer, mag, folder), mag)


def _parents_of_mags(dataset_folder: str, record: LayerRecord) -> set[str]:
    """Return the folders that contain the mags of a layer that the JSON lists. No file is looked
    for, because a dataset can have many layers."""
    stated = {listed.path for listed in record.mags}
    return {
        f"{dataset_folder}/{record.name}"
        if path is None
        else dirname(stated_path(dataset_folder, path))
        for path in stated
    }


def _open_mag(
    layer_folder: str, name: str, layer: DatasetLayer, mag: Mag, folder: str
) -> StoredArray:
    check_supported(make_layer(layer_folder, name, layer.dataset_folder, layer.datasource))
    return open_mag(
        any_path(folder), None if layer.record is None else layer.record.bounding_box, mag
    )


def with_folders(layer: Image, folders: dict[Mag, str]) -> Image:
    """Return a layer with other mags than its JSON lists."""
    return replace(
        layer,
        list_levels=lambda: [
            _level(layer.folder, layer.name, dataset_of(layer), mag, folder)
            for mag, folder in folders.items()
        ],
    )


def read_ahead(path: str) -> None:
    """Request the documents of a remote mag, layer or dataset at the same time, whichever it is."""
    # nothing is above the root of a server, which is its own parent
    above = {dirname(dirname(path)): "../../", dirname(path): "../", path: ""}
    store_at(path).read_ahead([HEADER_NAME, *(f"{up}{FILE_NAME}" for up in above.values())])


def locate(url: str | os.PathLike[str], *, allow_external: bool = False) -> ResolvedUrl:
    """Resolve a path to a dataset, a layer or one mag."""
    path = any_path(url)
    located = find_listed_arrays(path) or _locate(path)
    return (
        replace(located, layers=tuple(map(with_external, located.layers)))
        if allow_external
        else located
    )


def find_listed_arrays(path: str) -> ResolvedUrl | None:
    """Resolve a path or URL that the JSON of a dataset lists as a Zarr or N5 layer, or as a mag of
    such a layer; None if no JSON lists it."""
    for layer, folder in _layers_around(path):
        if not is_arrays_layer(layer):
            continue
        real = store_at(path).real()
        mag = next(
            (
                mag
                for mag, listed in layer.mags.items()
                if path == plain_name(listed) or store_at(listed).real() == real
            ),
            None,
        )
        if mag is not None or folder == path:
            return ResolvedUrl(path, (layer,), mag)
    return None


def layer_around(path: str, name: str | None = None) -> Image | None:
    """Return the listed layer that a path names or lies in; ``name`` is that of a layer of the
    dataset in a path."""
    datasource = None if name is None else read_datasource(path)
    record = None if datasource is None else datasource.layer(str(name))
    if datasource is not None and record is not None:
        return listed_layer(path, datasource, record)
    return next((layer for layer, _ in _layers_around(path)), None)


def _layers_around(path: str) -> Iterator[tuple[Image, str]]:
    """Yield the listed layers whose folder is a path or the folder above it, with that folder."""
    parent = dirname(path)
    for dataset, folder in ((parent, path), (dirname(parent), parent)):
        datasource = read_datasource(dataset)
        layer = None if datasource is None else layer_in(dataset, datasource, folder)
        if layer is not None:
            yield layer, folder


def with_external(layer: Image) -> Image:
    """Return a layer whose files outside of the dataset may be written."""
    return replace(layer, allow_external=True)


def _locate(path: str) -> ResolvedUrl:
    datasource = read_datasource(path)
    if datasource is not None and (datasource.layers or datasource.invalid_layers):
        layers = tuple(listed_layer(path, datasource, record) for record in datasource.layers)
        return ResolvedUrl(path, layers, invalid_layers=datasource.invalid_layers)
    if store_at(path).is_file(HEADER_NAME):
        return _locate_mag(path)
    listed = listed_mag(path) if is_remote(path) else None
    if listed is not None:  # its folder has a name that contains its job
        return ResolvedUrl(path, listed[:1], listed[1])
    layer = _layer_above(path)
    if dataset_of(layer).record is not None or (store_at(path).is_folder() and layer.mags):
        return ResolvedUrl(path, (layer,))
    if datasource is not None:
        return ResolvedUrl(path, ())
    if is_remote(path):
        with contextlib.suppress(FileNotFoundError):
            store_at(path).open_stream(FILE_NAME)  # raises the error of a refused file
    else:
        check_folder(path)
    raise MissingError(
        f"{path}: no dataset ({FILE_NAME}), no layer (subfolders such as 1 or 2-2-1) and no mag "
        f"({HEADER_NAME}) here"
    )


def _locate_mag(path: str) -> ResolvedUrl:
    """Find the layer of a mag's folder: by the paths in the JSON of its layer or dataset, or else
    by the names of the folders."""
    listed = listed_mag(path)
    if listed is not None:
        return ResolvedUrl(path, listed[:1], listed[1])
    parent = dirname(path)
    layer = _layer_above(parent)
    mag = mag_from_name(basename(path)) or MAG_1
    if (
        dataset_of(layer).record is not None
        and mag not in layer.mags
        and mag.name == basename(path)
    ):
        return ResolvedUrl(path, (with_folders(layer, {**layer.mags, mag: path}),), mag)
    return ResolvedUrl(
        path, (with_folders(make_layer(parent, basename(parent)), {mag: path}),), mag
    )


def listed_mag(path: str) -> tuple[Image, Mag] | None:
    """Find the layer and the mag of a folder that a JSON in the parent folder, or above it,
    lists."""
    parent, real = dirname(path), store_at(path).real()
    for dataset in (parent, dirname(parent)):
        datasource = read_datasource(dataset)
        if datasource is None:
            continue
        for record in datasource.layers:
            if is_remote(path) and parent not in _parents_of_mags(dataset, record):
                continue
            layer = listed_layer(dataset, datasource, record)
            for mag, folder in layer.mags.items():
                if path in (folder, plain_name(folder)) or store_at(folder).real() == real:
                    return layer, mag
    return None


def _layer_above(path: str) -> Image:
    """Return the layer of a folder, with its record if a JSON in the folder or above it lists
    it."""
    for folder in (path, dirname(path)):
        datasource = read_datasource(folder)
        layer = layer_in(folder, datasource, path) if datasource is not None else None
        if layer is not None:
            return layer
    return make_layer(path, basename(path))


def layer_in(dataset_folder: str, datasource: DataSource, layer_folder: str) -> Image | None:
    """Find the layer whose mags are in a folder: by the paths in the JSON, because layers can be
    renamed, or else by the name of the folder."""
    real = store_at(layer_folder).real()
    for record in datasource.layers:
        parents = _parents_of_mags(dataset_folder, record)
        if any(
            is_remote(folder) is is_remote(real) and store_at(folder).real() == real
            for folder in parents
        ):
            return listed_layer(dataset_folder, datasource, record, layer_folder)
    record_of_name = datasource.layer(basename(layer_folder))
    return (
        None
        if record_of_name is None
        else listed_layer(dataset_folder, datasource, record_of_name, layer_folder)
    )


def metadata_paths(resolved: ResolvedUrl, layer: Image) -> list[str]:
    """Return the metadata files, existing or missing, that determine how a path is resolved."""
    layer_folder = resolved.path if resolved.mag is None else dirname(resolved.path)
    folders = [
        layer_folder,
        dirname(layer_folder),
        dataset_of(layer).dataset_folder or layer_folder,
    ]
    return [f"{folder}/{FILE_NAME}" for folder in dict.fromkeys(folders)]


def is_arrays_layer(layer: Image) -> bool:
    """Return whether the JSON lists a layer as arrays of another format than WKW."""
    return layer.is_layer and dataset_of(layer).data_format in STORED_IN.keys() - {"wkw"}


def check_supported(layer: Image) -> None:
    """Raise UnsupportedError for a layer of a dataset whose format is unknown."""
    stored = dataset_of(layer).data_format if layer.is_layer else "wkw"
    if stored not in STORED_IN:
        raise UnsupportedError(
            f"{layer.folder}: layer {layer.name} is stored as {stored}, only WKW, Zarr, N5 and "
            "Neuroglancer precomputed can be opened in a dataset"
        )


def open_arrays(layer: Image) -> Image:
    """Return a layer that is stored as arrays of another format than WKW, for reading and
    writing."""
    return replace(
        layer,
        format=stored_format(layer).name,
        list_levels=lambda: sorted(_open_arrays(layer), key=lambda level: bool(level.problem)),
        needs_files=False,
    )


def _open_arrays(layer: Image) -> Iterator[Level]:
    record, stored = record_of(layer), stored_format(layer)
    for level in layer.levels:
        mag = level.mag
        if level.problem or mag is None:
            yield level
            continue
        size = None if layer.voxel_size_nm is None else lengths_in(mag, layer.voxel_size_nm)
        source = f"{dataset_of(layer).dataset_folder}/{FILE_NAME}: layer {layer.name}, mag {mag}"
        item = _mag_entry(record, mag)
        try:
            volume = stored.open_listed(level.folder, partial(_axes, record, item, source))
            volume = replace(
                volume,
                mag=mag,
                lengths_nm=size,
                channels=_channels(record, item, volume.num_channels, source),
            )
            box = record.bounding_box.in_mag(mag).intersection(volume.extent)
            opened = array_level(mag.name, volume.cropped(box), mag)
            yield replace(opened, stated=level.stated)
        except (FormatError, OSError, ModuleNotFoundError, UnsupportedError) as error:
            yield replace(level, opener=None, problem=str(error), error=type(error))


def _mag_entry(record: LayerRecord, mag: Mag) -> JsonObject:
    """Return the entry of a mag in the JSON, or an empty dict."""
    items = record.entry.get("mags")
    return (
        next((item for item in items if Mag.parse(item["mag"]) == mag), {})
        if isinstance(items, list)
        else {}
    )


_REMEDY = "axisOrder in the entry of the mag states the dimension of each of x, y, z and c"


def _axes(
    record: LayerRecord,
    item: JsonObject,
    source: str,
    shape: Sequence[int],
    names: Sequence[str | None],
) -> str:
    """Return the letters of the axes of a mag's array: by ``axisOrder``, or else by the names in
    the array, or else in the order c, x, y, z.

    ``axisOrder`` maps each axis to its index in ``shape`` (Zarr) or ``dimensions`` (N5). A channel
    axis that it does not list comes first.
    """
    order = item.get("axisOrder")
    if order is None:
        usual = {2: "xy", 3: "xyz", 4: "cxyz", 5: "tczyx"}.get(len(shape), "")
        return axes_of(names, shape, source, usual=usual, remedy=_REMEDY)
    if (
        not isinstance(order, dict)
        or not {"x", "y"} <= set(order)
        or not all(map(is_whole_number, order.values()))
    ):
        raise CorruptError(
            f"{source}: axisOrder: expected the index of a dimension for each of x, y and z, found "
            f"{json.dumps(order)[:80]}"
        )
    places = {letter: int(index) for letter, index in order.items()}
    if record.num_channels == 1 and len(places) == len(shape) + 1 and "c" in places:
        # the array has no axis for its one channel
        channel = places.pop("c")
        places = {letter: index - (index > channel) for letter, index in places.items()}
    extra = record.entry.get("additionalAxes")
    for axis in extra if isinstance(extra, list) else ():
        if isinstance(axis, dict) and is_whole_number(axis.get("index")):
            places.setdefault(str(axis.get("name")), int(axis["index"]))
    if len(set(places.values())) != len(places) or not all(
        0 <= index < len(shape) for index in places.values()
    ):
        raise CorruptError(
            f"{source}: axisOrder: expected the index of one of {len(shape)} dimensions for each "
            f"axis, found {json.dumps(order)[:80]}"
        )
    letters = {index: letter for letter, index in places.items()}
    rest = [index for index in range(len(shape)) if index not in letters]
    if rest and "c" not in places and "z" in places:
        letters[rest[0]] = "c"
    return axes_of(
        [letters.get(index) for index in range(len(shape))], shape, source, usual="", remedy=_REMEDY
    )


def _channels(
    record: LayerRecord, item: JsonObject, stored: int, source: str
) -> tuple[int, int] | None:
    """Return the first channel of an array that belongs to a layer, and the number of channels;
    None for all channels."""
    first = item.get("channelIndex") or 0
    is_stated = (
        record.entry.get("numChannels") is not None
        or record.num_channels > 1
        or "channelIndex" in item
    )
    count = record.num_channels if is_stated else stored
    if not is_whole_number(first) or not 0 <= first <= stored - count:
        raise CorruptError(
            f"{source}: expected channels {first!r} to {first!r} + {count} by channelIndex and "
            f"numChannels, found {stored} in the array"
        )
    return None if (first, count) == (0, stored) else (int(first), count)
