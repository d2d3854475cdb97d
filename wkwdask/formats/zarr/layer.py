"""Images of a Zarr array or group: from a path or URL to OME-NGFF images with their levels, and to
single arrays."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import (
    BoundsError,
    CorruptError,
    FormatError,
    MissingError,
    UnsupportedError,
    WkwDaskError,
)
from wkwdask.formats.array_images import ArrayGeometry, array_image, array_level, images_below
from wkwdask.formats.axes import axes_of, axis_letter, names_in, positions_along
from wkwdask.formats.marks import contains_wkw, is_mag_or_dataset
from wkwdask.formats.zarr.array import zarr_array
from wkwdask.formats.zarr.coordinate_systems import describe_scene, scene_paths
from wkwdask.formats.zarr.documents import FILE_NAME, INNER_BOX
from wkwdask.formats.zarr.extensions import check_members
from wkwdask.formats.zarr.ngff import (
    LABELS,
    NgffImage,
    NgffLevel,
    check_version,
    parse_image,
    place_levels,
)
from wkwdask.formats.zarr.ngff_copy import NgffGroup
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.image import Image, Level
from wkwdask.model.json_text import parse_object
from wkwdask.model.levels import Lengths, mag_from_ratio, ratio_of
from wkwdask.model.parsing import reading, reason_of
from wkwdask.model.placement import job_in
from wkwdask.store.documents import read_documents
from wkwdask.store.objects.remote import RemoteStore
from wkwdask.store.paths import UrlName, basename, dirname, is_below, is_remote, is_valid_path
from wkwdask.store.store import open_store, store_at, with_witness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wkwdask.formats.format import Url
    from wkwdask.model.json_text import JsonObject
    from wkwdask.model.store import Store
    from wkwdask.model.stored_array import StoredArray


_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_MAX_DOCUMENT_NBYTES = 64 << 20
_USUAL_AXES = "tczyx"


@dataclass(frozen=True, slots=True)
class Node:
    """Metadata of a Zarr array or group of version 2 or 3."""

    store: Store
    record: str
    """Name of the file that describes it: ``zarr.json``, ``.zarray`` or ``.zgroup``."""
    document: JsonObject
    attributes: JsonObject
    listed: tuple[str, ...]
    """Members of a group according to its consolidated metadata; the only listing of most remote
    groups."""

    @property
    def is_array(self) -> bool:
        return self.record == ".zarray" or self.document.get("node_type") == "array"

    @property
    def path(self) -> str:
        """Path or URL of the file that describes it."""
        return self.store.path_of(self.record)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array in stored axis order; raises CorruptError if the document has none."""
        with reading(self.path, "Zarr array or group"):
            shape = self.document["shape"]
            if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
                raise CorruptError(f"{self.path}: shape: expected lengths, found {shape!r}")
            return tuple(shape)

    @property
    def declared_dtype(self) -> Any:
        """Data type as the document states it: a string, or an object for types of extensions."""
        return self.document.get("dtype" if self.record == ".zarray" else "data_type")

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Data type, or None if it is not numeric."""
        try:
            dtype = np.dtype(self.declared_dtype) if isinstance(self.declared_dtype, str) else None
        except (TypeError, UnicodeEncodeError):
            return None
        return dtype if dtype is not None and dtype.kind in _NUMERIC_KINDS else None

    @property
    def names(self) -> list[str | None]:
        """Axis names: ``dimension_names`` of version 3, else ``_ARRAY_DIMENSIONS`` of xarray; empty
        if it has neither."""
        names = names_in(self.document.get("dimension_names"))
        return names if any(names) else names_in(self.attributes.get("_ARRAY_DIMENSIONS"))

    def axes(
        self, names: Sequence[str | None], location: str, index: Mapping[str, int]
    ) -> tuple[str, tuple[int, ...]]:
        """Return the letter of each axis by the names that an image states, else by those of the
        array, else by the usual order; and the index along each axis without a letter."""
        rank, named, shape = len(self.shape), names or self.names, self.shape
        extra = max(0, rank - len(_USUAL_AXES))
        has_usual = rank > 1 and shape[:extra] == (1,) * extra
        usual = "-" * extra + _USUAL_AXES[-rank:] if has_usual else ""
        letters = axes_of(named, shape, location, usual=usual, index=index)
        return letters, positions_along(letters, named, shape, location, usual=usual, index=index)

    def member(self, key: str) -> Node | None:
        """Read a member of a group, or None."""
        path = self.store.below(key).url if is_valid_path(key) else "no file"
        if not is_below(path, self.store.url):
            raise CorruptError(
                f"{self.store.url}/{self.attributes_name}: expected a path inside the group, found "
                f"{key!r}, which leads to {path}"
            )
        return read_node(path)

    @property
    def attributes_name(self) -> str:
        """Name of the file with its attributes."""
        return FILE_NAME if self.record == FILE_NAME else ".zattrs"


def read_node(location: str) -> Node | None:
    """Read the metadata of an array or group, or None."""
    store = open_store(location)
    try:
        (first,) = read_documents(store, _DOCUMENTS[:1], _MAX_DOCUMENT_NBYTES)
        others = (
            [None] * 4
            if first is not None
            else read_documents(store, _DOCUMENTS[1:], _MAX_DOCUMENT_NBYTES)
        )
    except PermissionError:
        # version 2 has no zarr.json, and a server may refuse absent files, which a readable one
        # proves
        first, *others = read_documents(store, _DOCUMENTS, _MAX_DOCUMENT_NBYTES)
    if first is not None:
        document = _parse_document(first, store, "zarr.json")
        if document.get("zarr_format") != 3 or document.get("node_type") not in ("array", "group"):
            what = (
                f"zarr_format {document.get('zarr_format')!r}, node_type "
                f"{document.get('node_type')!r}"
            )
            raise CorruptError(
                f"{store.path_of('zarr.json')}: not readable as Zarr array or group: expected an "
                f"array or a group of version 3, found {what}"
            )
        check_members(document, store.path_of("zarr.json"))
        inside = (document.get("consolidated_metadata") or {}).get("metadata")
        return Node(
            with_witness(store, "zarr.json"),
            "zarr.json",
            document,
            _checked_attributes(document.get("attributes"), store, "zarr.json"),
            _direct_members(inside),
        )
    array, group, attributes, listing = others
    for record, raw in ((".zarray", array), (".zgroup", group)):
        if raw is not None:
            listed = (
                {}
                if listing is None
                else _parse_document(listing, store, ".zmetadata").get("metadata")
            )
            members = _direct_members(
                {name.rpartition("/")[0]: None for name in listed}
                if isinstance(listed, dict)
                else None
            )
            parsed = {} if attributes is None else _parse_document(attributes, store, ".zattrs")
            return Node(
                with_witness(store, record),
                record,
                _parse_document(raw, store, record),
                parsed,
                members,
            )
    return None


def _parse_document(raw: bytes, store: Store, name: str) -> JsonObject:
    try:
        return parse_object(raw, store.path_of(name))
    except CorruptError as error:
        raise CorruptError(f"{store.url}: not readable as Zarr array or group: {error}") from None


def _checked_attributes(value: Any, store: Store, name: str) -> JsonObject:
    if not isinstance(value, (dict, type(None))):
        raise CorruptError(
            f"{store.path_of(name)}: attributes: expected an object, found {type(value).__name__}"
        )
    return value or {}


def _direct_members(listed: Any) -> tuple[str, ...]:
    """Return the direct members among the paths of consolidated metadata."""
    return (
        tuple(sorted(name for name in listed if name and "/" not in name))
        if isinstance(listed, dict)
        else ()
    )


PREFIX = "zarr://"
FORMAT = "zarr"
NAME = UrlName(
    (PREFIX, "zarr2://", "zarr3://"), ("zarr", "zarr2", "zarr3"), ".zarr", target_suffix=".ome.zarr"
)
location_of = NAME.location
_MAX_DEPTH = 6
_NUMERIC_KINDS = "biuf"
_MAX_AXIS_LENGTH = 1 << 53  # exact as a double, which JSON readers use


def names_zarr2(url: str) -> bool:
    """Check whether the URL of a target asks for version 2 of Zarr.

    Examples
    --------
    >>> names_zarr2("zarr2://em"), names_zarr2("s3://bucket/em|zarr2:"), names_zarr2("zarr://em")
    (True, True, False)
    """
    return "zarr2://" in url or url.endswith(("|zarr2:", "|zarr2"))


def is_zarr(path: str) -> bool:
    """Return whether a local folder is a Zarr array or group. A folder with WKW in it is not: its
    ``zarr.json`` is a view."""
    if store_at(path).is_file(".zarray"):
        # its folders hold chunks, and may be very many, so they are not searched for WKW
        return not is_mag_or_dataset(path)
    return any(store_at(path).is_file(name) for name in _DOCUMENTS[:3]) and not contains_wkw(path)


def is_image(url: Url) -> bool:
    """Return whether a Zarr group is an OME-NGFF image with the axes x, y and z."""
    location = location_of(url)
    group = read_node(location)
    image = None if group is None or group.is_array else parse_image(group.attributes, location)
    return image is not None and {"x", "y", "z"} <= set(image.axes)


def find_zarr_layers(url: Url) -> tuple[Image, ...]:
    """Return the images of a Zarr array or group; raises MissingError if there is none.

    The details of an OME-NGFF image are a :class:`wkwdask.formats.zarr.ngff_copy.NgffGroup`, those
    of an array are its attributes.
    """
    location = location_of(url)
    node = read_node(location)
    if node is None:
        raise MissingError(f"{location}: no Zarr array or group here")
    name = basename(location)
    if node.is_array:
        return (image_of_level(location) or _image_from_array(node, location, name),)
    images = images_below(location, _images_in_group(node, location, name, 0))
    if not images:
        raise MissingError(
            f"{location}: a Zarr group without arrays that can be listed; name one of them"
        )
    return images


def image_of_labels(folder: str) -> str:
    """Return the local folder of the image to which labels belong, or the folder itself if it is in
    no ``labels``."""
    above = dirname(dirname(folder))
    return (
        above
        if basename(dirname(folder)) == LABELS
        and any(store_at(above).is_file(document) for document in _DOCUMENTS[:4])
        else folder
    )


def image_of_level(location: str) -> Image | None:
    """Return the local OME-NGFF image that lists an array, with that array as its selected level,
    or None."""
    folder, _, name = location.rpartition("/")
    if is_remote(location) or not any(
        store_at(folder).is_file(document) for document in _DOCUMENTS[:3]
    ):
        return None
    try:
        group = read_node(folder)
        image = None if group is None or group.is_array else parse_image(group.attributes, folder)
    except (CorruptError, UnsupportedError):
        return None
    if group is None or image is None or all(level.path != name for level in image.levels):
        return None
    return replace(_image_from_ngff(group, image, folder, basename(folder)), key=name)


def _images_in_group(group: Node, location: str, name: str, depth: int) -> Iterator[Image]:
    """Yield the images of a group and the groups below it; an image that cannot be read keeps its
    error."""
    try:
        image = parse_image(group.attributes, location)
    except UnsupportedError as error:
        if not depth:
            raise
        yield array_image(
            FORMAT,
            location,
            name,
            [Level("", location, problem=str(error), error=UnsupportedError)],
        )
        return
    if image is not None:
        yield _image_from_ngff(group, image, location, name)
        return
    store = group.store
    names = (
        (
            group.listed
            or scene_paths(_scene_of(group))
            # in a bucket, levels that were removed stay for a while
            or [key for key in store.names() if not job_in(key)]
        )
        if isinstance(store, RemoteStore)
        else sorted(store_at(location).names())
    )
    for key in names:
        member_location, member_name = f"{location}/{key}", f"{name}/{key}" if depth else key
        try:
            with reading(member_location, "Zarr array or group"):
                layers = tuple(_images_in_member(group, key, member_location, member_name, depth))
        except WkwDaskError as error:
            layers = (
                array_image(
                    FORMAT,
                    member_location,
                    member_name,
                    [Level("", member_location, problem=str(error), error=type(error))],
                ),
            )
        yield from layers


def _scene_of(group: Node) -> Any:
    """Return the scene of a group (OME-NGFF 0.6, "scene" metadata), or None."""
    ome = group.attributes.get("ome")
    return ome.get("scene") if isinstance(ome, dict) else None


def coordinate_notes(location: str) -> tuple[str, ...]:
    """Return the coordinate system of an image, or the transformations of a scene, in a line
    each."""
    node = read_node(location)
    if node is None or node.is_array:
        return ()
    scene = _scene_of(node)
    if scene is not None:
        return tuple(
            f"scene: {line} (not applied)" for line in describe_scene(scene, f"{node.path}: scene")
        )
    image = parse_image(node.attributes, location)
    if image is None:
        return ()
    return (
        *(() if image.system is None else (f"coordinate system {image.system!r}",)),
        *(f"not applied: {text}" for text in image.ignored),
    )


def _images_in_member(
    group: Node, key: str, location: str, name: str, depth: int
) -> Iterator[Image]:
    node = group.member(key) if is_remote(location) or store_at(location).is_folder() else None
    if node is not None and node.is_array:
        if len(node.shape) > 1 and node.dtype is not None:
            yield _image_from_array(node, location, name)
    elif node is not None and depth < _MAX_DEPTH:
        yield from _images_in_group(node, location, name, depth + 1)


def _image_from_ngff(
    group: Node,
    image: NgffImage,
    location: str,
    name: str,
    index: Mapping[str, int] | None = None,
) -> Image:
    """Return an OME-NGFF image, at an index along further axes; a level that cannot be read keeps
    its error."""
    arrays: dict[str, tuple[Node, str, tuple[int, ...]]] = {}
    broken: dict[str, Exception] = {}

    def folder_of(path: str) -> str:
        return group.store.below(path).url if is_valid_path(path) else f"{location}/{path!r}"

    def read(level: NgffLevel) -> Node | Exception | None:
        try:
            return group.member(level.path)
        except (FileNotFoundError, WkwDaskError) as error:
            return error

    for level, node in zip(
        image.levels, group.store.map(read, image.levels, group.store.files_at_once), strict=True
    ):
        array_location = folder_of(level.path)
        try:
            if isinstance(node, Exception):
                raise node
            if node is None or not node.is_array:
                raise KeyError
            arrays[level.path] = (node, *node.axes(image.axes, array_location, index or {}))
        except (KeyError, FileNotFoundError):
            broken[level.path] = MissingError(
                f"{array_location}: not found, though the image lists it"
            )
        except CorruptError as corrupt:
            broken[level.path] = CorruptError(
                f"{array_location}: not readable as array: {reason_of(corrupt)}"
            )
        except (BoundsError, UnsupportedError, ValueError) as refused:
            broken[level.path] = refused
    default_axes = next(
        (letters for _, letters, _ in arrays.values()),
        "".join(map(axis_letter, map(str, image.axes))),
    )
    axes = [
        arrays[level.path][1] if level.path in arrays else default_axes for level in image.levels
    ]
    shapes = [
        arrays[level.path][0].shape if level.path in arrays else None for level in image.levels
    ]
    geometries = dict(
        zip((level.path for level in image.levels), place_levels(image, axes, shapes), strict=True)
    )
    base = _exported_base(
        {path: (node, geometries[path].mag) for path, (node, *_) in arrays.items()}
    )
    levels = []
    for path, geometry in geometries.items():
        mag = (
            None
            if geometry.mag is None
            else mag_from_ratio([a * b for a, b in zip(geometry.mag.factors, base, strict=True)])
        )
        if path in broken:
            levels.append(
                Level(
                    path,
                    folder_of(path),
                    None,
                    mag,
                    geometry.lengths_nm,
                    str(broken[path]),
                    type(broken[path]),
                    stated=path,
                )
            )
        else:
            node, _, positions = arrays[path]
            geometry = geometry._replace(mag=mag, positions=positions)
            levels.append(replace(_level(node, folder_of(path), path, geometry), stated=path))
    opened = array_image(
        FORMAT, location, name, levels, category="segmentation" if image.is_labels else None
    )
    texts = "; ".join(image.ignored)
    system = "" if image.system is None else f"opens in the coordinate system {image.system!r}; "
    ignored = f"{location}: {system}not applied: {texts}" if texts else ""
    return replace(
        opened,
        details=NgffGroup(group.attributes, image.axes, ignored),
        document=group.store.path_of(group.attributes_name),
        at_index=partial(_image_from_ngff, group, image, location, name),
    )


def _exported_base(arrays: Mapping[str, tuple[Node, Mag | None]]) -> Lengths:
    """Return the mag of the finest level: it is not 1 if only coarser mags of a layer were
    exported, whose arrays state their mags."""
    for node, mag in arrays.values():
        stated = _exported_geometry(node, "").mag
        if "mag" in node.attributes and stated is not None and mag is not None:
            return ratio_of(stated.factors, mag.factors)
    return 1.0, 1.0, 1.0


def _image_from_array(
    node: Node, location: str, name: str, index: Mapping[str, int] | None = None
) -> Image:
    """Return one array as an image, placed by its attributes, at an index along further axes; an
    array with unsupported axes keeps its error."""
    try:
        letters, positions = node.axes((), location, index or {})
        geometry = _exported_geometry(node, letters)._replace(positions=positions)
        level = _level(node, location, "", geometry)
    except FormatError:
        raise
    except (BoundsError, UnsupportedError, ValueError) as error:
        level = Level("", location, mag=MAG_1, problem=str(error), error=type(error))
    image = array_image(FORMAT, location, name, [level], "")
    return replace(image, at_index=partial(_image_from_array, node, location, name))


def open_zarr_volume(
    location: str, axes: Callable[[Sequence[int], Sequence[str | None]], str]
) -> StoredArray:
    """Open one array; ``axes`` returns a letter for each axis from the shape and the axis names,
    which may be empty."""
    node = read_node(location)
    if node is None or not node.is_array:
        check_version({} if node is None else node.attributes, location)
        raise MissingError(f"{location}: no Zarr array here")
    return _level(
        node, location, "", ArrayGeometry(axes(node.shape, node.names), MAG_1, None, (0, 0, 0))
    ).open()


def _exported_geometry(node: Node, axes: str) -> ArrayGeometry:
    """Parse the attributes that exports of wkwdask have; malformed ones are ignored."""
    attributes = node.attributes
    geometry = ArrayGeometry(axes, MAG_1, None, (0, 0, 0))
    malformed = (KeyError, TypeError, ValueError)
    with suppress(*malformed):
        x, y, z = (float(length) for length in attributes["voxel_size_nm"])
        geometry = geometry._replace(lengths_nm=(x, y, z) if min(x, y, z) > 0 else None)
    with suppress(*malformed):
        geometry = geometry._replace(mag=Mag.parse(attributes["mag"]))
    with suppress(*malformed):
        geometry = geometry._replace(offset=vec3(attributes["offset_vx"]))
    return geometry


def _inner_box(node: Node, extent: BoundingBox) -> BoundingBox | None:
    """Parse the box of the voxels in an array that begins before them; None if they fill the array,
    or the attribute is malformed."""
    with suppress(TypeError, ValueError):
        x, y, z, width, height, depth = node.attributes.get(INNER_BOX, ())
        box = BoundingBox(vec3((x, y, z)), vec3((width, height, depth)), extent.mag)
        return box if extent.contains(box) and not box.is_empty else None
    return None


def _level(node: Node, location: str, key: str, geometry: ArrayGeometry) -> Level:
    """Return an array as a level; an unsupported or damaged array keeps its error."""
    error: Exception
    if node.dtype is None:
        declared = node.declared_dtype
        name = declared.get("name", declared) if isinstance(declared, dict) else declared
        error = UnsupportedError(f"{location}: holds {name}, expected integers or real numbers")
    elif max(node.shape, default=0) > _MAX_AXIS_LENGTH:
        error = UnsupportedError(
            f"{location}: shape: expected lengths of at most 2^53, found {node.shape}"
        )
    else:
        try:
            volume = zarr_array(
                node.store, node.record, node.document, geometry.axes, geometry.positions
            )
            volume = replace(volume, mag=geometry.mag or MAG_1, lengths_nm=geometry.lengths_nm)
            volume = replace(volume, crop=_inner_box(node, volume.extent))
            return replace(
                array_level(key, volume, geometry.mag, geometry.offset), details=node.attributes
            )
        except NotImplementedError as unknown:
            error = UnsupportedError(f"{location}: {unknown}")
        except (ModuleNotFoundError, OSError, WkwDaskError):
            raise
        except Exception as failure:
            # zarr-python raises many kinds of errors for metadata that it does not accept
            error = CorruptError(f"{node.path}: cannot be read: {reason_of(failure)}")
    return Level(key, location, mag=geometry.mag, problem=str(error), error=type(error))
