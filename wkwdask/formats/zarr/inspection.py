"""Faults of the documents of Zarr groups and images: two versions side by side, consolidated
metadata, and levels that contradict each other. Never writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, UnsupportedError
from wkwdask.formats.array_images import place_fault
from wkwdask.formats.zarr.documents import FILE_NAME, array_record
from wkwdask.formats.zarr.layer import read_node
from wkwdask.formats.zarr.ngff import parse_image
from wkwdask.model.faults import Fault
from wkwdask.model.json_text import parse_object
from wkwdask.model.placement import job_in
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wkwdask.formats.zarr.layer import Node
    from wkwdask.formats.zarr.ngff import NgffImage, NgffLevel

_ATTRIBUTES, _CONSOLIDATED = ".zattrs", ".zmetadata"
_V2_DOCUMENTS = (".zarray", ".zgroup", _ATTRIBUTES)
# Fields of a document that consolidated metadata must repeat; software writes others, such as
# codecs, in several equivalent forms.
_COMPARED = (
    "node_type",
    "shape",
    "chunks",
    "chunk_grid",
    "dtype",
    "data_type",
    "dimension_separator",
    "attributes",
)


def document_faults(folder: str) -> Iterator[Fault]:
    """Yield the faults of the documents of a local group or array, and of the arrays of an
    image."""
    group = read_node(folder) if store_at(folder).is_folder() else None
    if group is None:
        return
    yield from _two_versions(folder)
    if group.is_array:
        return
    yield from _consolidated_faults(group, folder)
    image = parse_image(group.attributes, folder)
    if image is None:
        if "multiscales" in _inner(group.attributes):
            yield Fault(
                "image.broken",
                _attributes_path(group),
                "multiscales without an axes list or the paths of datasets",
                "an OME-NGFF image",
            )
        return
    arrays = {}
    for level in image.levels:
        if store_at(folder).is_folder(level.path):
            yield from _two_versions(f"{folder}/{level.path}")
        try:
            node = group.member(level.path)
        except (CorruptError, UnsupportedError):
            continue  # a fault of the level
        if node is not None and node.is_array:
            arrays[level.path] = node
    yield from _image_faults(group, image, arrays)
    yield from _unlisted_arrays(group, folder, next(iter(arrays.values()), None))


def _inner(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = attributes.get("ome")
    return inner if isinstance(inner, dict) else attributes


def _attributes_path(node: Node) -> str:
    """Return the document with the attributes of an array or group."""
    return node.path if node.record == FILE_NAME else node.store.path_of(_ATTRIBUTES)


def _read(path: str) -> dict[str, Any] | None:
    """Read a document; None if it is missing or broken."""
    try:
        with store_at(path).open_stream() as file:
            return parse_object(file.read(), path)
    except (OSError, CorruptError):
        return None


# ------------------------------------------------------------------------------------------------
# two versions


def _two_versions(folder: str) -> Iterator[Fault]:
    """Yield a fault if a folder has documents of both versions of Zarr."""
    newer, older = (
        _read(f"{folder}/{FILE_NAME}"),
        [name for name in _V2_DOCUMENTS if store_at(folder).is_file(name)],
    )
    if newer is None or not older:
        return
    path, names = f"{folder}/{older[-1]}", ", ".join(older)
    array, attributes = _read(f"{folder}/.zarray") or {}, _read(f"{folder}/{_ATTRIBUTES}") or {}
    images = [
        _image_of(described, folder) for described in (newer.get("attributes") or {}, attributes)
    ]
    if array and array.get("shape") != newer.get("shape"):
        yield Fault(
            "document.differs",
            f"{folder}/.zarray",
            f"shape {array.get('shape')}",
            f"{newer.get('shape')}, as in {FILE_NAME} beside it",
        )
    elif None not in images and images[0] != images[1]:
        yield Fault(
            "document.differs", path, "other multiscales", f"those of {FILE_NAME} beside it"
        )
    else:
        yield Fault(
            "document.twice", path, f"{names} and {FILE_NAME}", "the documents of one version"
        )


def _image_of(attributes: Any, folder: str) -> NgffImage | None:
    try:
        return parse_image(attributes, folder)
    except UnsupportedError:
        return None


# ------------------------------------------------------------------------------------------------
# consolidated metadata


def _consolidated_faults(group: Node, folder: str) -> Iterator[Fault]:
    """Yield the differences of consolidated metadata from the documents below a group."""
    if group.record == FILE_NAME:
        path = group.path
        stored = (group.document.get("consolidated_metadata") or {}).get("metadata")
        listed = (
            {f"{key}/{FILE_NAME}": document for key, document in stored.items()}
            if isinstance(stored, dict)
            else {}
        )
    else:
        path = f"{folder}/{_CONSOLIDATED}"
        stored = (_read(path) or {}).get("metadata")
        listed = stored if isinstance(stored, dict) else {}
    for name, document in sorted(listed.items()):
        actual = _read(f"{folder}/{name}")
        if actual is None:
            yield Fault("document.consolidated", path, f"lists {name}", "a document that exists")
        elif isinstance(document, dict):
            compared = (
                [key for key in _COMPARED if key in document and key in actual]
                if not name.endswith(_ATTRIBUTES)
                else sorted({*document, *actual})
            )
            different = [
                key for key in compared if _text(document.get(key)) != _text(actual.get(key))
            ]
            if different:
                yield Fault(
                    "document.consolidated",
                    path,
                    f"other values of {', '.join(different)} for {name}",
                    f"those of {folder}/{name}",
                )
    if listed:
        for name in store_at(folder).names():
            record = array_record(f"{folder}/{name}") if store_at(folder).is_folder(name) else None
            if record is not None and record[len(folder) + 1 :] not in listed:
                yield Fault(
                    "document.consolidated",
                    path,
                    f"does not list {record[len(folder) + 1 :]}",
                    "all arrays of the group",
                )


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


# ------------------------------------------------------------------------------------------------
# levels


def _image_faults(group: Node, image: NgffImage, arrays: Mapping[str, Node]) -> Iterator[Fault]:
    """Yield the faults of the levels of an image: their order, and contradictions of the finest
    one."""
    path = _attributes_path(group)
    listed = [
        str(entry["path"]) for entry in _inner(group.attributes)["multiscales"][0]["datasets"]
    ]
    finest_first = [level.path for level in image.levels]
    if listed != finest_first:
        yield Fault(
            "image.order",
            path,
            f"datasets {', '.join(listed)}",
            f"{', '.join(finest_first)}, by their scales",
        )
    present = [level for level in image.levels if level.path in arrays]
    for level in present:
        node = arrays[level.path]
        if image.axes and len(node.shape) != len(image.axes):
            yield Fault(
                "level.axes",
                node.path,
                f"{len(node.shape)} axes",
                f"{len(image.axes)}, as {path} states",
            )
        elif (
            image.axes
            and level is not present[0]
            and len(arrays[present[0].path].shape) == len(node.shape)
        ):
            yield from _contradictions(
                path, image.axes, (present[0], arrays[present[0].path]), (level, node)
            )


def _contradictions(
    path: str,
    axes: tuple[str | None, ...],
    finest: tuple[NgffLevel, Node],
    level: tuple[NgffLevel, Node],
) -> Iterator[Fault]:
    """Yield the contradictions of a level with the finest one: other lengths of an axis that is not
    in space, or another place in space."""
    unknown = (0.0,) * len(axes)
    scales, shifts = (
        [each.scale or unknown for each, _ in (finest, level)],
        [each.translation or unknown for each, _ in (finest, level)],
    )
    for n, axis in enumerate(axes):
        length, first_length = level[1].shape[n], finest[1].shape[n]
        if axis not in ("x", "y", "z"):
            if length != first_length:
                yield Fault(
                    "level.axes",
                    level[1].path,
                    f"{length} values along {axis}",
                    f"{first_length}, as {finest[1].path} states",
                )
        elif (
            all(len(values) == len(axes) for values in (*scales, *shifts))
            and min(scales[0][n], scales[1][n]) > 0
        ):
            fault = place_fault(
                (first_length, scales[0][n], shifts[0][n]), (length, scales[1][n], shifts[1][n])
            )
            if fault is not None:
                kind, found, expected = fault
                yield Fault(kind, path, f"{level[0].path}: {found} along {axis}", expected)


def _unlisted_arrays(group: Node, folder: str, first: Node | None) -> Iterator[Fault]:
    """Yield the arrays in the folder of an image that no entry of it lists, except coordinates and
    others with fewer axes."""
    images = _inner(group.attributes)["multiscales"]
    datasets = [
        entry
        for image in images
        if isinstance(image, dict) and isinstance(image.get("datasets"), list)
        for entry in image["datasets"]
    ]
    listed = {str(entry.get("path")) for entry in datasets if isinstance(entry, dict)}
    tails = sorted({tail for _, slash, tail in (path.partition("/") for path in listed) if slash})
    for name in (
        path
        for member in store_at(folder).names()
        for path in (member, *(f"{member}/{tail}" for tail in tails))
    ):
        if name in listed or name.startswith(".") or job_in(name.partition("/")[0]):
            continue  # the last are levels of jobs that run, or that `clean` removes
        if array_record(f"{folder}/{name}") is None:
            continue
        try:
            node = read_node(f"{folder}/{name}")
            is_level = node is not None and (first is None or len(node.shape) == len(first.shape))
        except (CorruptError, UnsupportedError):
            is_level = True
        if is_level:
            yield Fault(
                "level.unlisted",
                f"{folder}/{name}",
                "an array",
                f"one of {', '.join(sorted(listed))}",
            )
