"""Zarr as people name it: from a URL or folder to the layers in it, each an OME-NGFF image with its resolutions, or one array."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.errors import CorruptError, MissingError, UnsupportedError, WkwDaskError
from wkwdask.formats.leveled import array_image, array_level
from wkwdask.formats.precomputed.layer import holds_wkw, is_wkw_itself
from wkwdask.formats.zarr.array import RECORDS, read_document, zarr_array
from wkwdask.formats.zarr.memory_files import zarr_place
from wkwdask.formats.zarr.ngff import NgffImage, axes_of, check_version, parse_image, place_levels
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.extras import need
from wkwdask.model.image import Image, Level
from wkwdask.model.levels import Lengths, mag_of
from wkwdask.model.parsing import reading, reason_of
from wkwdask.model.stored_array import StoredArray
from wkwdask.store import files
from wkwdask.store.paths import basename, is_remote, local_path
from wkwdask.store.store import open_store, trusting
from wkwdask.store.url_name import UrlName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wkwdask.geometry.mag import Vec3

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
    group = _open(location)
    image = None if group is None or hasattr(group, "shape") else parse_image(dict(group.attrs), location)
    return image is not None and {"x", "y", "z"} <= set(image.axes)


def is_level(path: str | os.PathLike[str]) -> bool:
    """Tell whether a local Zarr array is one that an OME-NGFF image above it lists."""
    folder, _, name = location_of(path).rpartition("/")
    above = _image_above(f"{folder}/{name}")
    return above is not None and any(level.key == name for level in above.levels)


def find_zarr_layers(url: str | os.PathLike[str]) -> tuple[Image, ...]:
    """Find what a Zarr array or group holds."""
    location = location_of(url)
    open_store(location)  # names the driver that is not installed
    item = _open(location)
    if item is None:
        raise MissingError(f"{location}: no Zarr array or group here")
    name = basename(location)
    if not hasattr(item, "shape"):
        found = tuple(_of_group(item, location, name, 0))
        if not found:
            raise MissingError(f"{location}: a Zarr group without arrays that can be listed; name one of them")
        return found
    above = _image_above(location)
    if above is not None and any(level.key == name for level in above.levels):
        return (replace(above, key=name),)
    return (_of_array(item, location, name),)


def _open(location: str) -> Any:
    """Open an array or group, None where there is none."""
    zarr = need("zarr", location, "zarr")
    place, options = zarr_place(location)
    try:
        return zarr.open(place, mode="r", **options)
    except FileNotFoundError:
        return None
    except (ModuleNotFoundError, MemoryError):
        raise
    except Exception as error:
        raise CorruptError(f"{location}: not readable as Zarr array or group: {error or type(error).__name__}") from error


def _image_above(location: str) -> Image | None:
    """Open the image that an array is a level of, None where there is none."""
    folder = location.rpartition("/")[0]
    if is_remote(location) or not any(files.isfile(f"{folder}/{name}") for name in _RECORDS):
        return None
    try:
        group = _open(folder)
        image = None if group is None or hasattr(group, "shape") else parse_image(dict(group.attrs), folder)
    except (CorruptError, UnsupportedError):
        return None
    return None if image is None else _of_image(group, image, folder, basename(folder))


def _of_group(group: Any, location: str, name: str, depth: int) -> Iterator[Image]:
    """Go through the layers of a group."""
    try:
        image = parse_image(dict(group.attrs), location)
    except UnsupportedError as error:
        if not depth:
            raise
        yield array_image(FORMAT, location, name, [Level("", location, problem=str(error), error=UnsupportedError)])
        return
    if image is not None:
        yield _of_image(group, image, location, name)
        return
    for key, item in members_of(group, location):
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
    if hasattr(item, "shape"):
        if item.ndim > 1 and np.dtype(item.dtype).kind in _KINDS:
            yield _of_array(item, location, name)
    elif depth < _DEEPEST:
        yield from _of_group(item, location, name, depth + 1)


def members_of(group: Any, location: str) -> list[tuple[str, Any]]:
    """List what a group holds by name: arrays, groups, and errors in place of those that cannot be read."""
    if is_remote(location):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # files of other formats beside the arrays
                return sorted(((str(key), item) for key, item in group.members()), key=lambda member: member[0])
        except Exception:  # of stores that cannot be listed, each raises its own
            return []
    found: list[tuple[str, Any]] = []
    for name in sorted(files.listdir(location)):
        if any(files.isfile(f"{location}/{name}/{record}") for record in _RECORDS):
            try:
                found.append((name, _open(f"{location}/{name}")))
            except CorruptError as error:
                found.append((name, error))
    return found


def _of_image(group: Any, image: NgffImage, location: str, name: str) -> Image:
    """Make the layer of an image; an array that cannot be used leaves the others alone."""
    arrays: list[tuple[Any, str]] = []
    kept, odd = [], []
    for level in image.levels:
        try:
            item = group[level.path]
            arrays.append((item, axes_of(item.shape, image.axes or names_of(item) or "tczyx"[-item.ndim :], f"{location}/{level.path}")))
            kept.append(level)
        except (KeyError, FileNotFoundError):
            odd.append(
                Level(level.path, f"{location}/{level.path}", problem=f"{location}/{level.path}: not found, though the image lists it", error=MissingError)
            )
        except UnsupportedError as error:
            odd.append(Level(level.path, f"{location}/{level.path}", problem=str(error), error=UnsupportedError))
        except (ModuleNotFoundError, OSError):
            raise
        except Exception as error:  # what zarr-python raises of metadata that it does not take, and of paths out of the group
            odd.append(
                Level(level.path, f"{location}/{level.path}", problem=f"{location}/{level.path}: not readable as array: {reason_of(error)}", error=CorruptError)
            )
    used = NgffImage(image.axes, image.units, tuple(kept), image.is_labels)
    places = place_levels(used, [letters for _, letters in arrays], [item.shape for item, _ in arrays]) if kept else []
    base = (_written_here(dict(arrays[0][0].attrs)).mag if arrays else None) or MAG_1
    levels = [
        _level(item, letters, f"{location}/{level.path}", level.path, _At(_times(place.mag, base), place.lengths_nm, place.offset))
        for level, (item, letters), place in zip(kept, arrays, places, strict=True)
    ]
    return array_image(FORMAT, location, name, [*levels, *odd], category="segmentation" if image.is_labels else None)


def _times(mag: Mag | None, base: Mag) -> Mag | None:
    """Give the mag of an array, where the finest one says that it is another mag than 1, as exports of a part of a pyramid do."""
    return None if mag is None else mag_of([float(a * b) for a, b in zip(mag.factors, base.factors, strict=True)])


def _of_array(item: Any, location: str, name: str) -> Image:
    """Make the layer of one array, with what its attributes say of its place."""
    attributes = dict(item.attrs)
    letters = axes_of(item.shape, names_of(item) or (), location)
    return array_image(FORMAT, location, name, [_level(item, letters, location, "", _written_here(attributes))], "")


def open_zarr_volume(location: str, axes: Callable[[Sequence[int], Sequence[str] | None], str]) -> StoredArray:
    """Open one array, whose axes are those that a function makes of its shape and the names that it has; errors as for :func:`find_zarr_layers`."""
    if is_remote(location):
        raise UnsupportedError(f"{location}: only local paths can be opened")
    item = _open(location)
    if item is None or not hasattr(item, "shape"):
        check_version({} if item is None else dict(item.attrs), location)
        raise MissingError(f"{location}: no Zarr array here")
    level = _level(item, axes(item.shape, names_of(item)), location, "", _At(MAG_1, None, (0, 0, 0)))
    volume = level.open()
    assert isinstance(volume, StoredArray)
    return volume


def names_of(item: Any) -> list[str] | None:
    """Read the names of an array's axes: ``dimension_names`` of version 3, ``_ARRAY_DIMENSIONS`` of xarray."""
    names = getattr(item.metadata, "dimension_names", None) or dict(item.attrs).get("_ARRAY_DIMENSIONS")
    return list(names) if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names) else None


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


def _level(item: Any, letters: str, location: str, key: str, at: _At) -> Level:
    """Describe an array that is open."""
    mag = at.mag
    dtype = np.dtype(item.dtype)
    if dtype.kind not in _KINDS:
        return Level(key, location, mag=mag, problem=f"{location}: holds {dtype}, expected whole or real numbers", error=UnsupportedError)
    if max(item.shape, default=0) > _LARGEST:
        return Level(key, location, mag=mag, problem=f"{location}: shape: expected lengths of at most 2^53, found {tuple(item.shape)}", error=UnsupportedError)
    store = open_store(location)
    found = ((name, read_document(trusting(store, name), name)) for name in RECORDS)
    record, document = next(((name, document) for name, document in found if document is not None), ("", None))
    if document is None:
        return Level(key, location, mag=mag, problem=f"{location}: not found, though the group lists it", error=MissingError)
    try:
        volume = zarr_array(trusting(store, record), record, document, letters)
    except NotImplementedError as error:
        return Level(key, location, mag=mag, problem=f"{location}: {error}", error=UnsupportedError)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Level(key, location, mag=mag, problem=f"{location}/{record}: cannot be read: {reason_of(error)}", error=CorruptError)
    return array_level(key, replace(volume, mag=mag or MAG_1, lengths_nm=at.lengths_nm), mag, at.offset)
