"""Zarr as people name it: from a URL or folder to the layers in it, each an OME-NGFF image with its resolutions, or one array."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.errors import CorruptError, MissingError, UnsupportedError, WkwDaskError
from wkwdask.formats.leveled import array_image, array_level
from wkwdask.formats.precomputed.layer import holds_wkw, is_wkw_itself
from wkwdask.formats.zarr.array import zarr_array
from wkwdask.formats.zarr.ngff import NgffImage, axes_of, check_version, parse_image, place_levels
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.image import Image, Level
from wkwdask.model.json_text import parse_object
from wkwdask.model.levels import Lengths, mag_of
from wkwdask.model.parsing import reading, reason_of
from wkwdask.store import files
from wkwdask.store.paths import UrlName, basename, is_remote, is_valid_path, local_path
from wkwdask.store.remote import RemoteStore
from wkwdask.store.store import open_store, trusting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.store import Store
    from wkwdask.model.stored_array import StoredArray


_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_LARGEST_DOCUMENT = 64 << 20
_NAMES = ("dimension_names", "_ARRAY_DIMENSIONS")  # of version 3, of xarray


@dataclass(frozen=True, slots=True)
class Node:
    """An array or a group."""

    store: Store
    """Its folder."""
    record: str
    """The file that describes it."""
    document: dict[str, Any]
    """What that says."""
    attributes: dict[str, Any]
    """Its attributes."""
    listed: tuple[str, ...]
    """Members of a group by consolidated metadata."""

    @property
    def is_array(self) -> bool:
        """Whether it is an array."""
        return self.record == ".zarray" or self.document.get("node_type") == "array"

    @property
    def path(self) -> str:
        """Path or URL of the file that describes it."""
        return self.store.path_of(self.record)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the array."""
        with reading(self.path, "Zarr array or group"):
            shape = self.document["shape"]
            if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
                raise CorruptError(f"{self.path}: shape: expected lengths, found {shape!r}")
            return tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Type of its values, None where they are no numbers."""
        said = self.document.get("dtype" if self.record == ".zarray" else "data_type")
        try:
            return np.dtype(said) if isinstance(said, str) else None
        except (TypeError, UnicodeEncodeError):
            return None

    @property
    def said_dtype(self) -> str:
        """What the document calls the type of its values."""
        said = self.document.get("dtype" if self.record == ".zarray" else "data_type")
        return str(said.get("name", said) if isinstance(said, dict) else said)

    @property
    def names(self) -> list[str] | None:
        """The names of its axes: ``dimension_names`` of version 3, ``_ARRAY_DIMENSIONS`` of xarray."""
        names = self.document.get(_NAMES[0]) or self.attributes.get(_NAMES[1])
        return list(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None

    def member(self, key: str) -> Node | None:
        """Read what a group holds by a name, None where there is nothing."""
        if key.startswith("/") or ".." in key.split("/") or not is_valid_path(key):
            raise CorruptError(f"{self.store.url}: expected a path inside of the group, found {key!r}")
        return read_node(self.store.path_of(key))


def read_node(location: str) -> Node | None:
    """Read an array or group, None where there is none."""
    store = open_store(location)
    (first,) = store.read_whole(_DOCUMENTS[:1], _LARGEST_DOCUMENT)
    if first is not None:
        document = _parsed(first, store, "zarr.json")
        if document.get("zarr_format") != 3 or document.get("node_type") not in ("array", "group"):
            what = f"zarr_format {document.get('zarr_format')!r}, node_type {document.get('node_type')!r}"
            raise CorruptError(f"{store.path_of('zarr.json')}: not readable as Zarr array or group: expected an array or a group of version 3, found {what}")
        inside = (document.get("consolidated_metadata") or {}).get("metadata")
        return Node(trusting(store, "zarr.json"), "zarr.json", document, _object(document.get("attributes"), store, "zarr.json"), _members(inside))
    for record, raw in zip(_DOCUMENTS[1:3], store.read_whole(_DOCUMENTS[1:3], _LARGEST_DOCUMENT), strict=True):
        if raw is not None:
            trusted = trusting(store, record)
            attributes, listing = trusted.read_whole(_DOCUMENTS[3:], _LARGEST_DOCUMENT)
            listed = {} if listing is None else _parsed(listing, store, ".zmetadata").get("metadata")
            names = [name.rpartition("/")[0] for name in listed] if isinstance(listed, dict) else []
            found = {} if attributes is None else _parsed(attributes, store, ".zattrs")
            return Node(trusted, record, _parsed(raw, store, record), found, _members(dict.fromkeys(names)))
    return None


def _parsed(raw: bytes, store: Store, name: str) -> dict[str, Any]:
    try:
        return parse_object(raw, store.path_of(name))
    except CorruptError as error:
        raise CorruptError(f"{store.url}: not readable as Zarr array or group: {error}") from None


def _object(value: Any, store: Store, name: str) -> dict[str, Any]:
    if not isinstance(value, (dict, type(None))):
        raise CorruptError(f"{store.path_of(name)}: attributes: expected an object, found {type(value).__name__}")
    return value or {}


def _members(found: Any) -> tuple[str, ...]:
    """Take the names right in a group."""
    return tuple(sorted(name for name in found if name and "/" not in name)) if isinstance(found, dict) else ()


PREFIX = "zarr://"
FORMAT = "zarr"
NAME = UrlName((PREFIX, "zarr2://", "zarr3://"), ("zarr", "zarr2", "zarr3"))
stripped, is_named_zarr, location_of = NAME.stripped, NAME.is_in, NAME.location
_RECORDS = ("zarr.json", ".zarray", ".zgroup")
_DEEPEST = 6
_KINDS = "biuf"
_LARGEST = 1 << 53


def is_zarr(url: object) -> bool:
    """Tell whether something is a Zarr array or group: by its name, or a local folder by what it holds; one with WKW in it is not."""
    if is_named_zarr(url):
        return True
    if not isinstance(url, (str, os.PathLike)) or not os.fspath(url) or is_remote(os.fspath(url)):
        return False
    path = local_path(url)
    if files.isfile(f"{path}/.zarray"):  # whose many folders are not looked at
        return not is_wkw_itself(path)
    return any(files.isfile(f"{path}/{name}") for name in _RECORDS) and not holds_wkw(path)


def is_plain_zarr(url: object) -> bool:
    """Tell whether something is a Zarr array or group that is named by its path alone, as any array in a folder."""
    return not is_named_zarr(url) and is_zarr(url)


def is_image(path: str | os.PathLike[str]) -> bool:
    """Tell whether a local Zarr group says that it is an OME-NGFF image, and along which axes its arrays lie."""
    location = location_of(path)
    group = read_node(location)
    image = None if group is None or group.is_array else parse_image(group.attributes, location)
    return image is not None and {"x", "y", "z"} <= set(image.axes)


def is_level(path: str | os.PathLike[str]) -> bool:
    """Tell whether a local Zarr array is one that an OME-NGFF image above it lists."""
    folder, _, name = location_of(path).rpartition("/")
    above = _image_above(f"{folder}/{name}")
    return above is not None and any(level.key == name for level in above.levels)


def find_zarr_layers(url: str | os.PathLike[str]) -> tuple[Image, ...]:
    """Find what a Zarr array or group holds."""
    location = location_of(url)
    item = read_node(location)
    if item is None:
        raise MissingError(f"{location}: no Zarr array or group here")
    name = basename(location)
    if not item.is_array:
        found = tuple(_of_group(item, location, name, 0))
        if not found:
            raise MissingError(f"{location}: a Zarr group without arrays that can be listed; name one of them")
        return found
    above = _image_above(location)
    if above is not None and any(level.key == name for level in above.levels):
        return (replace(above, key=name),)
    return (_of_array(item, location, name),)


def _image_above(location: str) -> Image | None:
    """Open the image that an array is a level of, None where there is none."""
    folder = location.rpartition("/")[0]
    if is_remote(location) or not any(files.isfile(f"{folder}/{name}") for name in _RECORDS):
        return None
    try:
        group = read_node(folder)
        image = None if group is None or group.is_array else parse_image(group.attributes, folder)
    except (CorruptError, UnsupportedError):
        return None
    return None if group is None or image is None else _of_image(group, image, folder, basename(folder))


def _of_group(group: Node, location: str, name: str, depth: int) -> Iterator[Image]:
    """Go through the layers of a group."""
    try:
        image = parse_image(group.attributes, location)
    except UnsupportedError as error:
        if not depth:
            raise
        yield array_image(FORMAT, location, name, [Level("", location, problem=str(error), error=UnsupportedError)])
        return
    if image is not None:
        yield _of_image(group, image, location, name)
        return
    for key, item in _members_of(group, location):
        place, below = f"{location}/{key}", f"{name}/{key}" if depth else key
        try:
            with reading(place, "Zarr array or group"):
                layers = tuple(_of_member(item, place, below, depth))
        except WkwDaskError as error:  # it leaves the others alone
            layers = (array_image(FORMAT, place, below, [Level("", place, problem=str(error), error=type(error))]),)
        yield from layers


def _of_member(item: Any, location: str, name: str, depth: int) -> Iterator[Image]:
    if isinstance(item, CorruptError):
        raise item
    if item.is_array:
        if len(item.shape) > 1 and item.dtype is not None and item.dtype.kind in _KINDS:
            yield _of_array(item, location, name)
    elif depth < _DEEPEST:
        yield from _of_group(item, location, name, depth + 1)


def _members_of(group: Node, location: str) -> list[tuple[str, Any]]:
    """List what a group holds by name: arrays, groups, and errors in place of those that cannot be read."""
    store = group.store
    names = (group.listed or store.names()) if isinstance(store, RemoteStore) else sorted(files.listdir(location))
    found: list[tuple[str, Any]] = []
    for name in names:
        item: Node | CorruptError | None
        try:
            item = group.member(name) if is_remote(location) or files.isdir(f"{location}/{name}") else None
        except CorruptError as error:
            item = error
        if item is not None:
            found.append((name, item))
    return found


def _of_image(group: Node, image: NgffImage, location: str, name: str) -> Image:
    """Make the layer of an image; an array that cannot be used leaves the others alone."""
    arrays: list[tuple[Node, str]] = []
    kept, odd = [], []
    for level in image.levels:
        try:
            item = group.member(level.path)
            if item is None or not item.is_array:
                raise KeyError
            arrays.append((item, axes_of(item.shape, image.axes or item.names or "tczyx"[-len(item.shape) :], f"{location}/{level.path}")))
            kept.append(level)
        except (KeyError, FileNotFoundError):
            odd.append(
                Level(level.path, f"{location}/{level.path}", problem=f"{location}/{level.path}: not found, though the image lists it", error=MissingError)
            )
        except UnsupportedError as error:
            odd.append(Level(level.path, f"{location}/{level.path}", problem=str(error), error=UnsupportedError))
        except CorruptError as error:
            odd.append(
                Level(level.path, f"{location}/{level.path}", problem=f"{location}/{level.path}: not readable as array: {reason_of(error)}", error=CorruptError)
            )
    used = NgffImage(image.axes, image.units, tuple(kept), image.is_labels)
    places = place_levels(used, [letters for _, letters in arrays], [item.shape for item, _ in arrays]) if kept else []
    base = (_written_here(arrays[0][0].attributes).mag if arrays else None) or MAG_1
    levels = [
        _level(item, letters, f"{location}/{level.path}", level.path, _At(_times(place.mag, base), place.lengths_nm, place.offset))
        for level, (item, letters), place in zip(kept, arrays, places, strict=True)
    ]
    return array_image(FORMAT, location, name, [*levels, *odd], category="segmentation" if image.is_labels else None)


def _times(mag: Mag | None, base: Mag) -> Mag | None:
    """Give the mag of an array, where the finest one says that it is another mag than 1, as exports of a part of a pyramid do."""
    return None if mag is None else mag_of([float(a * b) for a, b in zip(mag.factors, base.factors, strict=True)])


def _of_array(item: Node, location: str, name: str) -> Image:
    """Make the layer of one array, with what its attributes say of its place."""
    letters = axes_of(item.shape, item.names or (), location)
    return array_image(FORMAT, location, name, [_level(item, letters, location, "", _written_here(item.attributes))], "")


def open_zarr_volume(location: str, axes: Callable[[Sequence[int], Sequence[str] | None], str]) -> StoredArray:
    """Open one array, whose axes are those that a function makes of its shape and the names that it has; errors as for :func:`find_zarr_layers`."""
    if is_remote(location):
        raise UnsupportedError(f"{location}: only local paths can be opened")
    item = read_node(location)
    if item is None or not item.is_array:
        check_version({} if item is None else item.attributes, location)
        raise MissingError(f"{location}: no Zarr array here")
    level = _level(item, axes(item.shape, item.names), location, "", _At(MAG_1, None, (0, 0, 0)))
    return level.open()


class _At(NamedTuple):
    mag: Mag | None
    lengths_nm: Lengths | None
    offset: Vec3


def _written_here(attributes: dict[str, Any]) -> _At:
    """Read what an export of a mag says of it."""
    try:
        x, y, z = (float(length) for length in attributes["voxel_size_nm"])
        lengths: Lengths | None = (x, y, z) if min(x, y, z) > 0 else None
    except (KeyError, TypeError, ValueError):
        lengths = None
    try:
        mag = Mag.parse(attributes["mag"])
    except (KeyError, TypeError, ValueError):
        mag = MAG_1
    try:
        return _At(mag, lengths, vec3(attributes["offset_vx"]))
    except (KeyError, TypeError, ValueError):
        return _At(mag, lengths, (0, 0, 0))


def _level(item: Node, letters: str, location: str, key: str, at: _At) -> Level:
    """Describe an array that is open."""
    mag = at.mag
    if item.dtype is None or item.dtype.kind not in _KINDS:
        return Level(key, location, mag=mag, problem=f"{location}: holds {item.said_dtype}, expected whole or real numbers", error=UnsupportedError)
    if max(item.shape, default=0) > _LARGEST:
        return Level(key, location, mag=mag, problem=f"{location}: shape: expected lengths of at most 2^53, found {item.shape}", error=UnsupportedError)
    try:
        volume = zarr_array(item.store, item.record, item.document, letters)
    except NotImplementedError as error:
        return Level(key, location, mag=mag, problem=f"{location}: {error}", error=UnsupportedError)
    except (ModuleNotFoundError, OSError, WkwDaskError):
        raise
    except Exception as error:  # what zarr-python raises of metadata that it does not take
        return Level(key, location, mag=mag, problem=f"{item.path}: cannot be read: {reason_of(error)}", error=CorruptError)
    return array_level(key, replace(volume, mag=mag or MAG_1, lengths_nm=at.lengths_nm), mag, at.offset)
