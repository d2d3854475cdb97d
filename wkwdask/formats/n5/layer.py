"""Images of an N5 container, group or dataset: from a path or URL to single datasets, and to groups
of one volume at several mags."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from wkwdask.errors import (
    CorruptError,
    FormatError,
    MissingError,
    ReplacedError,
    UnsupportedError,
    WkwDaskError,
)
from wkwdask.formats.array_images import array_image, array_level, images_below
from wkwdask.formats.marks import contains_wkw, is_mag_or_dataset
from wkwdask.formats.n5.array import n5_array, read_attributes, read_documents
from wkwdask.formats.n5.attributes import (
    FILE_NAME,
    N5Dataset,
    axis_names,
    group_factors,
    is_dataset,
    is_inside,
    level_attributes,
    level_names,
    level_number,
    parse_dataset,
)
from wkwdask.formats.n5.big_data_viewer import (
    has_path_of_time_point,
    is_time_point,
    lacks_unit,
    size_in_xml,
)
from wkwdask.formats.n5.placement import LevelMetadata, place_levels
from wkwdask.formats.publication import read_publication
from wkwdask.formats.record_paths import RecordPaths, job_folders
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.model.image import Image, Level
from wkwdask.model.json_text import parse_object
from wkwdask.store.paths import UrlName, basename, dirname, stated_path
from wkwdask.store.store import check_folder, open_store, store_at, with_witness

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.store import Store
    from wkwdask.model.stored_array import StoredArray

PREFIX = "n5://"
FORMAT = "n5"
NAME = UrlName((PREFIX,), ("n5",), ".n5")
stripped, location_of = NAME.stripped, NAME.location
INHERITED_FROM = 3
"""Number of folders above a group whose attributes are inherited."""
_MAX_LEVELS = 64
_LEVELS_AT_ONCE = 4  # documents of a remote group that are requested at the same time
_MAX_DEPTH = 12
_MAX_GROUPS = 100_000


def is_n5(path: str) -> bool:
    """Return whether a local folder is an N5 container, group or dataset; one with WKW in it is
    not."""
    is_level = store_at(path).is_file(f"s0/{FILE_NAME}")
    if not (is_level or store_at(path).is_file(FILE_NAME)):
        return _is_bare_group(path)
    if is_mag_or_dataset(path):
        return False
    try:
        document = read_attributes(open_store(path)) or {}
    except FormatError:
        return path.endswith(".n5")
    if is_dataset(document):
        # its folders hold blocks, and may be very many, so they are not searched for WKW
        return True
    is_named = path.endswith(".n5") or ".n5/" in path
    return (
        is_level or "n5" in document or bool(level_names(document)) or is_named
    ) and not contains_wkw(path)


def _is_bare_group(path: str) -> bool:
    """Return whether a local folder is a container without attributes, named ``.n5``, or a group in
    it that has nothing but folders and hidden files."""
    if path.endswith(".n5"):
        return store_at(path).is_folder() and not contains_wkw(path)
    if ".n5/" not in path or not store_at(path).is_folder():
        return False
    return all(
        entry.is_dir() or entry.name.startswith(".") for entry in store_at(path).entries()
    ) and not contains_wkw(path)


def outermost_group(folder: str) -> str:
    """Return the outermost container or group with attributes on the path of a local folder, or the
    folder itself."""
    found = above = folder
    while dirname(above) != above:
        above = dirname(above)
        if above.endswith(".n5") or store_at(above).is_file(FILE_NAME):
            found = above
    return found


def find_n5_layers(url: str | os.PathLike[str]) -> tuple[Image, ...]:
    """Return the images of an N5 container, group or dataset; raises MissingError if there is
    none."""
    location = location_of(url)
    store = open_store(location)
    document = read_attributes(store)
    if document is not None and is_dataset(document):
        return (_dataset_image(store, location, document),)
    layer = _group_image(store, document or {}, basename(location))
    if layer is not None:
        return (layer,)
    if not store.can.states:
        raise MissingError(
            f"{location}: no N5 dataset here, and no group with levels s0, s1...; name one, since "
            "remote folders cannot be listed"
        )
    check_folder(location)
    layers = images_below(location, _walk(location))
    if not layers:
        raise MissingError(
            f"{location}: no N5 dataset found here or below: no {FILE_NAME} has dimensions"
        )
    return layers


def open_n5_volume(
    location: str, axes: Callable[[Sequence[int], Sequence[str | None]], str]
) -> StoredArray:
    """Open one dataset; ``axes`` returns a letter for each axis from the shape and the axis names,
    which may be empty."""
    store = open_store(location)
    document = read_attributes(store)
    if document is None or not is_dataset(document):
        raise MissingError(f"{location}: no N5 dataset here")
    dataset = parse_dataset(document, store.path_of(FILE_NAME))
    letters = axes(dataset.dimensions, axis_names(document, dataset.dimensions))
    return n5_array(with_witness(store, FILE_NAME), dataset, letters)


def _dataset_image(store: Store, location: str, document: JsonObject) -> Image:
    """Return the image of a dataset: the group above it with the dataset selected if the dataset is
    a level of that group, else the dataset alone."""
    folder, _, name = location.rpartition("/")
    if level_number(name) is not None and folder and not folder.endswith(":/"):
        above = with_witness(open_store(folder), f"{name}/{FILE_NAME}")
        layer = _group_image(
            above, read_attributes(above) or {}, basename(folder), {name: document}
        )
        if layer is not None and any(level.key == name for level in layer.levels):
            return replace(layer, key=name)
    return _image_from_datasets(
        store, [("", parse_dataset(document, store.path_of(FILE_NAME)))], {}, name
    )


def _group_image(
    store: Store,
    group: JsonObject,
    name: str,
    known: Mapping[str, JsonObject] = MappingProxyType({}),
) -> Image | None:
    """Return the image of a group with levels, or None. A level that cannot be read keeps its
    error; if none can be read, the first error is raised."""
    datasets: list[tuple[str, N5Dataset | WkwDaskError]] = []
    for level, document in _level_documents(store, group, known):
        if isinstance(document, WkwDaskError):
            datasets.append((level, document))
        elif is_dataset(document):
            try:
                datasets.append(
                    (level, parse_dataset(document, store.path_of(f"{level}/{FILE_NAME}")))
                )
            except (FormatError, UnsupportedError) as error:
                datasets.append((level, error))
    if all(isinstance(dataset, MissingError) for _, dataset in datasets):
        # the levels of a removal that was killed, or none at all
        return None
    return _image_from_datasets(store, datasets, group, name)


def _level_documents(
    store: Store, group: JsonObject, known: Mapping[str, JsonObject]
) -> Iterator[tuple[str, JsonObject | WkwDaskError]]:
    """Yield the attributes of levels in their order, or their error: those in ``multiscales``, else
    the folders ``s0``, ``s1``..."""
    # A remote group cannot be listed. So it is probed for as many levels as it has factors, or up
    # to the first missing number.
    stated, count = level_names(group), len(group_factors(group))
    listed = stated
    if not any(map(is_inside, stated)):
        listed = [*(_level_folders(store.url) if store.can.states else ()), *stated]
    names = listed or [
        f"s{number}" for number in range(0 if store.can.states else count or _MAX_LEVELS)
    ]
    at_once, read = _LEVELS_AT_ONCE if store.is_remote else 1, dict[str, bytes | None]()
    for n, name in enumerate(names):
        if not is_inside(name):
            path = f"{store.path_of(FILE_NAME)}: multiscales[0].datasets"
            yield (
                name,
                CorruptError(
                    f"{path}: expected a path inside the group, found {name!r}, which leads to "
                    f"{stated_path(store.url, name)}"
                ),
            )
            continue
        try:
            if name not in known and name not in read:
                batch = [
                    each for each in names[n : n + at_once] if each not in known and is_inside(each)
                ]
                read |= zip(batch, read_documents(store, batch), strict=True)
            raw = read.get(name)
            document = (
                known.get(name)
                if raw is None
                else parse_object(raw, store.path_of(f"{name}/{FILE_NAME}"))
            )
        except FormatError as error:
            yield name, error
            continue
        if document is not None:
            store = with_witness(store, f"{name}/{FILE_NAME}")
            yield name, document
        elif name in stated:
            yield name, MissingError(f"{store.path_of(name)}: not found, though the image lists it")
        elif (
            not listed
            and not count
            and not any(raw is not None and names.index(other) > n for other, raw in read.items())
        ):
            return


def group_levels(store: Store) -> Iterator[tuple[str, LevelMetadata]]:
    """Yield the names of the readable levels of a group in their order, and what their attributes
    state."""
    for name, document in _level_documents(store, read_attributes(store) or {}, {}):
        if isinstance(document, WkwDaskError) or not is_dataset(document):
            continue
        with contextlib.suppress(FormatError, UnsupportedError):
            yield name, read_level(store, name)


def read_level(store: Store, name: str) -> LevelMetadata:
    """Return what the attributes of a level and its group state."""
    own, attributes = (
        read_attributes(store, name) or {},
        group_attributes(store, read_attributes(store) or {}),
    )
    dataset = parse_dataset(own, store.path_of(f"{name}/{FILE_NAME}"))
    return LevelMetadata.of(
        name, dataset, level_attributes(own, attributes, name), attributes, store.url
    )


def _level_folders(folder: str) -> list[str]:
    try:
        numbers = [(level_number(name), name) for name in store_at(folder).names()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        name for _, name in sorted((number, name) for number, name in numbers if number is not None)
    ]


def _image_from_datasets(
    store: Store,
    datasets: Sequence[tuple[str, N5Dataset | WkwDaskError]],
    group: JsonObject,
    name: str,
) -> Image:
    """Return the image of datasets. A dataset with an error keeps it; if none can be read, the
    first error is raised."""
    attributes = group_attributes(store, group)
    readable = {key: dataset for key, dataset in datasets if isinstance(dataset, N5Dataset)}
    described = [
        (
            key,
            readable.get(key),
            level_attributes(readable[key].document if key in readable else {}, attributes, key),
        )
        for key, _ in datasets
    ]
    levels, listed = [], set(level_names(group))
    for (key, dataset), geometry in zip(
        datasets, place_levels(described, attributes, store.url), strict=True
    ):
        folder, stated = store.below(key).url if key else store.url, key if key in listed else None
        if isinstance(geometry, UnsupportedError):
            levels.append(
                Level(key, folder, problem=str(geometry), error=UnsupportedError, stated=stated)
            )
            continue
        if isinstance(dataset, WkwDaskError):
            levels.append(
                Level(
                    key,
                    folder,
                    None,
                    geometry.mag,
                    geometry.lengths_nm,
                    str(dataset),
                    type(dataset),
                    stated=stated,
                )
            )
            continue
        volume = n5_array(
            with_witness(store.below(key) if key else store, FILE_NAME),
            dataset,
            geometry.axes,
            geometry.mag or MAG_1,
            geometry.lengths_nm,
        )
        level = replace(array_level(key, volume, geometry.mag, geometry.offset), stated=stated)
        levels.append(
            replace(level, opener=partial(_open_numbered, store.url, level))
            if key and store.can.states
            else level
        )
    if all(level.problem for level in levels):
        # raises its error
        next((level for level in levels if level.error is not MissingError), levels[0]).open()
    image = array_image(FORMAT, store.url, name, levels, "" if datasets[0][0] == "" else None)
    return replace(image, document=store.path_of(FILE_NAME))


def _open_numbered(group: str, level: Level) -> StoredArray:
    """Open a level of a group; raises ReplacedError while a job renames the levels."""
    for root, _ in job_folders(group):
        publication = read_publication(RecordPaths(root))
        if publication is not None and publication.edit is not None and publication.edit.makes_room:
            advice = (
                "open it in a moment, or repeat the call that was killed while it renamed them "
                "(wkwdask status names it)"
            )
            raise ReplacedError(f"{group}: its levels are being renamed; {advice}")
    return level.open()


def group_attributes(store: Store, group: JsonObject) -> JsonObject:
    """Return the attributes of a group over those that it inherits; the voxel size of a time point
    of BigDataViewer is that of its XML."""
    inherited = inherited_attributes(store)
    attributes = {**inherited, **group}
    if lacks_unit(attributes) and is_time_point(store.url, inherited):
        return {**attributes, **(size_in_xml(store.url) or {"units": None})}
    return attributes


def unknown_size_note(image: Image) -> str:
    """Return a note if the voxel size of an image is unknown, because BigDataViewer states it in an
    XML that is missing; else an empty text."""
    if (
        image.key == ""
        or image.voxel_size_nm is not None
        or not has_path_of_time_point(image.folder)
    ):
        return ""
    store = open_store(image.folder)
    attributes = group_attributes(store, read_attributes(store) or {})
    if attributes.get("units", "") is not None or "resolution" not in attributes:
        return ""
    stated = f"{store.path_of(FILE_NAME)}: resolution {attributes['resolution']} has no unit"
    return (
        f"{stated}, and no XML of BigDataViewer beside the container states the voxel size of the "
        "setup: it is unknown; add the XML, or give voxel_size="
    )


def inherited_attributes(store: Store) -> JsonObject:
    """Merge the attributes of the folders above a group, up to the root of the container or an
    unreadable folder."""
    folder, documents = store.url, []
    for _ in range(1 if store.is_remote else INHERITED_FROM):
        folder, _, _ = folder.rpartition("/")
        if not folder or folder.endswith((":", ":/")):
            break
        try:
            document = read_attributes(open_store(folder))
        except (CorruptError, OSError):
            break
        if document is None:
            continue
        documents.append(
            {
                key: value
                for key, value in document.items()
                if key not in ("dimensions", "blockSize", "dataType", "compression", "multiscales")
            }
        )
        if "n5" in document:
            break
    merged: JsonObject = {}
    for document in reversed(documents):
        merged.update(document)
    return merged


def _walk(root: str) -> Iterator[Image]:
    """Yield the images of a local container, depth first. Broken ones are skipped; if all are
    broken, the first error is raised."""
    waiting, num_groups, problems, count = [("", 0)], 0, [], 0
    while waiting:
        key, depth = waiting.pop()
        folder = f"{root}/{key}" if key else root
        num_groups += 1
        if num_groups > _MAX_GROUPS:
            raise UnsupportedError(f"{root}: more than {_MAX_GROUPS} groups; name one of them")
        store = open_store(folder)
        try:
            document = read_attributes(store) or {}
            layer = (
                _image_from_datasets(
                    store, [("", parse_dataset(document, f"{folder}/{FILE_NAME}"))], {}, key
                )
                if is_dataset(document)
                else None
            )
            layer = layer or _group_image(store, document, key)
        except (FormatError, UnsupportedError) as error:
            problems.append(error)
            continue
        if layer is not None:
            count += 1
            yield layer
        elif depth < _MAX_DEPTH:
            below = sorted(
                name
                for name in store_at(folder).names()
                if not name.startswith(".") and store_at(folder).is_folder(name)
            )
            waiting += [(f"{key}/{name}" if key else name, depth + 1) for name in reversed(below)]
    if not count and problems:
        raise problems[0]
