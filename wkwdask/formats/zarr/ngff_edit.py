"""Edits of the metadata of an OME-NGFF image, made when a job publishes or removes arrays."""

from __future__ import annotations

import copy
import errno
import json
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from wkwdask.errors import CorruptError, FormatError
from wkwdask.formats.edits import DocumentEdit, LevelRemoval, check_listed
from wkwdask.formats.marks import is_view
from wkwdask.formats.zarr.coordinate_systems import (
    check_unreferenced,
    in_style_of,
    intrinsic_axes,
    parse_placed,
)
from wkwdask.formats.zarr.documents import FILE_NAME, format_document, group_document
from wkwdask.formats.zarr.extensions import check_members
from wkwdask.formats.zarr.ngff import (
    LABELS,
    check_version,
    image_attributes,
    is_valid_entry,
    label_attributes,
    merge_entries,
    ome_of,
    stated_version,
    zarr_format_of,
)
from wkwdask.formats.zarr.ngff_copy import moved_entry
from wkwdask.model.json_text import parse_object
from wkwdask.model.placement import placed_name, plain_name
from wkwdask.store.documents import (
    create_document,
    is_locked,
    read_documents,
    read_object,
    update_json,
)
from wkwdask.store.paths import basename, dirname, split, stated_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_ATTRIBUTES, _GROUP = ".zattrs", ".zgroup"
_MAX_NBYTES = 64 << 20
# of zarr-python: a file of version 2, a key of the group's document of version 3
_CONSOLIDATED, _CONSOLIDATED_KEY = ".zmetadata", "consolidated_metadata"


def read_attributes(folder: str) -> tuple[int, dict[str, Any]] | None:
    """Read the Zarr version and the attributes of a local group, or None."""
    document = _read(folder, FILE_NAME)
    if document is not None:
        if document.get("node_type") != "group" or not isinstance(
            document.get("attributes", {}), dict
        ):
            raise CorruptError(
                f"{folder}/{FILE_NAME}: expected a group, found node_type "
                f"{document.get('node_type')!r}"
            )
        check_members(document, f"{folder}/{FILE_NAME}")
        return 3, document.get("attributes", {})
    if _read(folder, _GROUP) is not None:
        return 2, _read(folder, _ATTRIBUTES) or {}
    return None


def _read(folder: str, name: str) -> dict[str, Any] | None:
    store = store_at(folder)
    (raw,) = read_documents(store, [name], _MAX_NBYTES)
    return None if raw is None else parse_object(raw, store.path_of(name))


def find_image(attributes: dict[str, Any], folder: str) -> tuple[str, dict[str, Any]] | None:
    """Return the OME-NGFF version and the first ``multiscales`` entry of attributes, which callers
    may change in place, or None."""
    check_version(attributes, folder)
    if "multiscales" not in ome_of(attributes):
        return None
    images = ome_of(attributes)["multiscales"]
    if (
        not isinstance(images, list)
        or not images
        or not isinstance(images[0], dict)
        or not isinstance(images[0].get("datasets"), list)
    ):
        raise CorruptError(f"{folder}: multiscales: expected a list of objects with datasets")
    if "coordinateSystems" in images[0] and images[0]["datasets"]:
        parse_placed(images[0], f"{folder}: multiscales[0]")
    for number, entry in enumerate(images[0]["datasets"]):
        if not is_valid_entry(entry):
            raise CorruptError(
                f"{folder}: multiscales[0].datasets[{number}]: expected a path and "
                f"transformations, found {json.dumps(entry)[:80]}"
            )
    return stated_version(attributes), images[0]


def read_image(folder: str) -> tuple[str, dict[str, Any]] | None:
    """Read the OME-NGFF version and the ``multiscales`` entry of a local group, or None."""
    stored = read_attributes(folder)
    return None if stored is None else find_image(stored[1], folder)


def update_attributes(
    folder: str, zarr_format: int, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Change the attributes of a group atomically; create the group if it is missing."""
    store = store_at(folder)
    store.make()
    path = f"{folder}/{FILE_NAME if zarr_format == 3 else _ATTRIBUTES}"

    def changed(document: dict[str, Any]) -> dict[str, Any]:
        if zarr_format == 3:
            attributes = document.get("attributes", {})
            if not isinstance(attributes, dict):
                raise CorruptError(
                    f"{path}: attributes: expected an object, found {json.dumps(attributes)[:80]}"
                )
            after = {**document, "attributes": change(copy.deepcopy(attributes))}
            after.pop(_CONSOLIDATED_KEY, None)  # it describes the group before this edit
            return after
        return change(copy.deepcopy(document))

    if zarr_format == 2:
        create_document(store, _GROUP, format_document({"zarr_format": 2}).encode())
    new = group_document({}) if zarr_format == 3 else {}
    update_json(store, basename(path), changed, new, format_document=format_document)


def drop_consolidated(folder: str) -> None:
    """Remove the consolidated metadata of a group and of the groups above it: they describe arrays
    that are about to change, and readers believe them."""
    for group, document in _groups_from(folder):
        store = store_at(group)
        # the lock is that of an edit that was killed
        if _has_consolidated(group, document) or is_locked(store, FILE_NAME):
            change = partial(_without_consolidated, store.path_of(FILE_NAME))
            update_json(store, FILE_NAME, change, format_document=format_document)
        store.delete(_CONSOLIDATED)


def _without_consolidated(path: str, document: dict[str, Any]) -> dict[str, Any]:
    return (
        document
        if is_view(path)
        else {key: value for key, value in document.items() if key != _CONSOLIDATED_KEY}
    )


def check_consolidated(folder: str) -> None:
    """Raise PermissionError if consolidated metadata cannot be removed."""
    for group, document in _groups_from(folder):
        store = store_at(group)
        if not store.is_writable() and (
            _has_consolidated(group, document) or store.is_taken(_CONSOLIDATED)
        ):
            raise PermissionError(
                errno.EACCES, "the consolidated metadata of the group could not be removed", group
            )


def _groups_from(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a folder and those above it, up to the first one that is no group, each with its
    ``zarr.json``, which is empty in a group of Zarr v2."""
    while basename(folder):
        document = read_object(store_at(folder), FILE_NAME) or {}
        if document.get("node_type") != "group" and not store_at(folder).is_file(_GROUP):
            return
        yield folder, document
        folder = dirname(folder)


def _has_consolidated(group: str, document: dict[str, Any]) -> bool:
    """Return whether the ``zarr.json`` of a group has consolidated metadata of other software;
    those of a view describe WKW layers."""
    return _CONSOLIDATED_KEY in document and not is_view(f"{group}/{FILE_NAME}")


@dataclass(frozen=True, slots=True)
class ArrayEdit(DocumentEdit):
    """Change of how a single array is stored, which no document of another folder may
    contradict."""

    kind: ClassVar[str] = "zarr array"
    folder_names: ClassVar[tuple[str, ...]] = ("above",)
    above: str
    """Folder above the array, perhaps a group."""

    def check_writable(self) -> None:
        check_consolidated(self.above)

    def make_room(self) -> None:
        drop_consolidated(self.above)

    def apply(self) -> None:
        drop_consolidated(self.above)


@dataclass(frozen=True, slots=True)
class NgffEdit(DocumentEdit):
    """Addition of arrays to the metadata of an image, and of a label image to the list of its
    ``labels`` group."""

    kind: ClassVar[str] = "ome-ngff"
    folder_names: ClassVar[tuple[str, ...]] = ("folder",)
    folder: str
    version: str
    image: dict[str, Any]
    """Entry of ``multiscales`` with the new arrays only; one with the path of an existing array
    replaces it."""
    is_label: bool
    rgb: Sequence[float] | None
    """Lowest and highest value of RGB channels."""
    copied: dict[str, Any] | None = None
    """Attributes of a group that is a copy, if it is new."""
    listed: tuple[str | None, ...] | None = None
    """Folder of each array in the document that the job was planned on, None where that does not
    matter."""

    @property
    def new_attributes(self) -> dict[str, Any]:
        """Attributes of a new group."""
        return self.copied or image_attributes(
            self.image, version=self.version, is_label=self.is_label, rgb=self.rgb
        )

    @property
    def _zarr_format(self) -> int:
        return zarr_format_of(self.version)

    def joined(self, other: NgffEdit) -> NgffEdit:
        entries = [*self.image["datasets"], *other.image["datasets"]]
        return replace(self, image={**self.image, "datasets": entries})

    @property
    def names_places(self) -> bool:
        return True

    def placed(self, job: str, listed: tuple[str | None, ...] | None) -> NgffEdit:
        def named(image: dict[str, Any]) -> dict[str, Any]:
            entries = [
                moved_entry(entry, placed_name(entry["path"], job), ())
                for entry in image["datasets"]
            ]
            return {**image, "datasets": entries}

        copied = copy.deepcopy(self.copied)
        if copied is not None:
            found = find_image(copied, self.folder)
            if found is not None:
                found[1].update(named(found[1]))
        return replace(self, image=named(self.image), copied=copied, listed=listed)

    def check_writable(self) -> None:
        DocumentEdit.check_writable(self)
        check_consolidated(self.folder)

    def make_room(self) -> None:
        drop_consolidated(self.folder)

    def apply(self) -> None:
        # Outer groups come first, so that the path from the image to the label image exists once
        # the label image is written.
        above, name = split(self.folder)
        if basename(above) == LABELS:
            update_attributes(dirname(above), self._zarr_format, lambda attributes: attributes)
            update_attributes(
                above, self._zarr_format, lambda attributes: self._with_label(attributes, name)
            )
        update_attributes(self.folder, self._zarr_format, self._with_arrays)

    def _with_arrays(self, attributes: dict[str, Any]) -> dict[str, Any]:
        existing = find_image(attributes, self.folder)
        if existing is None:
            return {**attributes, **self.new_attributes}
        image = existing[1]
        new = (
            [in_style_of(entry, image) for entry in self.image["datasets"]]
            if "coordinateSystems" in image
            else self.image["datasets"]
        )
        image["datasets"] = merge_entries(image["datasets"], new)
        places = {plain_name(entry["path"]): entry["path"] for entry in new}
        for further in _further_images(attributes):
            further["datasets"] = [
                _at_place(entry, places.get(plain_name(entry["path"]), entry["path"]))
                for entry in further["datasets"]
            ]
        return attributes

    def _with_label(self, attributes: dict[str, Any], name: str) -> dict[str, Any]:
        inner = attributes.get("ome", {}) if self._zarr_format == 3 else attributes
        listed = inner.get("labels", []) if isinstance(inner, dict) else None
        if not isinstance(listed, list):
            raise CorruptError(f"{dirname(self.folder)}: labels: expected a list of names")
        names = [*listed, *([] if name in listed else [name])]
        return {**attributes, **label_attributes(names, self.version)}

    def listed_now(self) -> tuple[str | None, ...]:
        return self._listed_in(read_attributes(self.folder))

    def _listed_in(self, stored: tuple[int, dict[str, Any]] | None) -> tuple[str | None, ...]:
        image = None if stored is None else find_image(stored[1], self.folder)
        paths = [] if image is None else [entry["path"] for entry in image[1]["datasets"]]
        plain = {plain_name(path): stated_path(self.folder, path) for path in paths}
        return tuple(plain.get(plain_name(entry["path"])) for entry in self.image["datasets"])

    def check_current(self) -> None:
        stored = read_attributes(self.folder)
        check_listed(self.listed, self._listed_in(stored))
        if stored is None:
            return
        if stored[0] != self._zarr_format:
            raise FormatError(
                f"{self.folder}: is a group of Zarr {stored[0]}, expected Zarr "
                f"{self._zarr_format}, which OME-NGFF {self.version} needs"
            )
        existing = find_image(stored[1], self.folder)
        if existing is None:
            return
        if existing[0] != self.version:
            raise FormatError(
                f"{self.folder}: is an image of OME-NGFF {existing[0]}, expected {self.version}; "
                "ngff= chooses the version"
            )
        stated = stated_axes(existing[1], self.folder)
        axes, ours = (
            json.dumps(each, sort_keys=True)
            for each in (stated, stated_axes(self.image, self.folder))
        )
        if axes != ours:
            names = (
                [axis.get("name") for axis in stated if isinstance(axis, dict)]
                if isinstance(stated, list)
                else []
            )
            in_our_order = [name for name in names if name in ("x", "y", "z")] == ["z", "y", "x"]
            remedy = (
                ""
                if in_our_order
                else "; wkwdask convert stores it as a new image, to which arrays can be added"
            )
            raise FormatError(
                f"{self.folder}: the axes of the image are {axes}, those of the new arrays "
                f"{ours}{remedy}"
            )


def stated_axes(image: Mapping[str, Any], folder: str) -> Any:
    """Return the axes of an entry of ``multiscales``, which new arrays must share."""
    return (
        intrinsic_axes(image, f"{folder}: multiscales[0]")
        if "coordinateSystems" in image and image["datasets"]
        else image.get("axes")
    )


class NgffRemoval(LevelRemoval):
    __slots__ = ()
    kind = "removal of ome-ngff arrays"

    @property
    def names_places(self) -> bool:
        return True

    def check_unreferenced(self) -> None:
        """Raise CorruptError if arrays stay, and a transformation of the image refers to one that
        is removed."""
        existing = read_image(self.folder)
        if existing is not None and any(
            entry["path"] not in self.keys for entry in existing[1]["datasets"]
        ):
            check_unreferenced(existing[1], self.keys, f"{self.folder}: multiscales[0]")

    def apply(self) -> None:
        drop_consolidated(self.folder)
        stored = read_attributes(self.folder)
        if stored is not None and find_image(stored[1], self.folder) is not None:
            update_attributes(self.folder, stored[0], self._without_arrays)
        self._unlist_label()

    def _unlist_label(self) -> None:
        """Remove a label image without arrays from the list of its ``labels`` group."""
        above, name = split(self.folder)
        image, group = (
            read_image(self.folder),
            read_attributes(above) if basename(above) == LABELS else None,
        )
        if (
            group is not None
            and image is not None
            and not image[1]["datasets"]
            and name in _listed_labels(group[1])
        ):
            update_attributes(above, group[0], partial(_without_label, name=name))

    def _without_arrays(self, attributes: dict[str, Any]) -> dict[str, Any]:
        existing = find_image(attributes, self.folder)
        if existing is not None:
            further = _further_images(attributes)
            for image in (existing[1], *further):
                image["datasets"] = [
                    entry for entry in image["datasets"] if entry["path"] not in self.keys
                ]
            for image in further:
                if not image["datasets"]:
                    ome_of(attributes)["multiscales"].remove(image)
        return attributes


def _at_place(entry: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the dataset entry of an array that is at another path now."""
    has_place = bool(entry.get("coordinateTransformations"))
    return moved_entry(entry, path, ()) if has_place else {**entry, "path": path}


def _further_images(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the valid entries of ``multiscales`` after the first, which other software may read:
    they may list the same arrays."""
    return [
        image
        for image in ome_of(attributes)["multiscales"][1:]
        if isinstance(image, dict)
        and isinstance(image.get("datasets"), list)
        and all(map(is_valid_entry, image["datasets"]))
    ]


def _listed_labels(attributes: Mapping[str, Any]) -> list[Any]:
    listed = ome_of(attributes).get("labels")
    return listed if isinstance(listed, list) else []


def _without_label(attributes: dict[str, Any], name: str) -> dict[str, Any]:
    rest = [other for other in _listed_labels(attributes) if other != name]
    inner = {**ome_of(attributes), "labels": rest}
    return {**attributes, "ome": inner} if "ome" in attributes else inner
