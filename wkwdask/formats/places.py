"""From what a user names to the image that a job reads, and to the place where it writes levels, whatever the format."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wkwdask.errors import MissingError
from wkwdask.formats.opening import find, open_stored
from wkwdask.formats.registry import fallback, format_named, format_of, formats
from wkwdask.formats.webknossos.dataset import read_datasource, with_external
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.store.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.formats.format import ArrayFormat
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image
    from wkwdask.model.options import StorageOptions
    from wkwdask.model.place import Destination, Place
    from wkwdask.model.volume import StoredVolume, Volume

EXPORTED = (".tif", ".tiff", ".npy", ".zarr")
"""Endings of files of images or arrays that are written."""


def format_of_target(url: object) -> ArrayFormat:
    """Find the format that is written to a target: the one that it is named as, else the one of datasets."""
    return next((one for one in formats() if one.names_target(url)), fallback())


def place_for(wanted: Destination) -> Place:
    """Find out what is where a user wants levels."""
    return format_of_target(wanted.url).place(wanted)


def place_in(image: Image, allow_external: bool) -> Place:
    """Give the place where levels of an image that is there are made from one of its levels."""
    return format_of_image(image).place_in(image, allow_external=allow_external)


def open_living(url: str | os.PathLike[str], mag: Mag | None, *, allow_external: bool) -> tuple[Image, StoredVolume]:
    """Open the level that is written in its place, where links lead it out of its dataset only where that is allowed."""
    image, volume = open_stored(url, None, mag)
    return with_external(image) if image.container is not None and allow_external else image, volume


def format_of_image(image: Image) -> ArrayFormat:
    """Give the format of an image; that of a layer is the format of its dataset, however the files are stored."""
    return fallback() if image.container is not None else format_named(image.format)


def check_named(url: str | os.PathLike[str]) -> None:
    """Refuse a target that is named as a format which it would not get."""
    text = os.fspath(url)
    if text.lower().endswith(EXPORTED) or read_datasource(local_path(url)) is not None:
        return
    for one in formats():
        if one.ending and any(part.lower().endswith(one.ending) for part in text.split("/")):
            raise ValueError(f"{text}: is named as {one.options.title}, which {one.name}://{text} writes; give what becomes WKW or images another name")


def options_of(url: str | os.PathLike[str]) -> type[StorageOptions]:
    """Give the record of what the format of an image that is there can be told."""
    return (format_of(url) or fallback()).options


def open_source(
    url: str | os.PathLike[str], name: str | None, mag: Mag | str | None, option: str, default: Callable[[Image], Mag | None] = lambda _: None,
    *, allow_external: bool = False,
) -> tuple[Image, Volume]:  # fmt: skip
    """Open the level that others are made from."""
    found = find(url)
    if mag is not None and found.mag not in (None, mag):
        raise ValueError(f"{os.fspath(url)}: is mag {found.mag}, but {option}= says {mag}")
    image = found.choose(name)
    if image.container is not None and allow_external:
        image = with_external(image)
    volume: Volume = image.volume(mag or found.mag or default(image))
    if not volume.has_shards():
        raise MissingError(f"{volume.name}: the mag has no data files")
    return image, volume


def default_method(image: Image, source: Volume) -> str:
    """Choose how a window becomes a voxel, by what the image is: what users of its format are used to."""
    category = format_of_image(image).category_of(image, source)
    if category is None:
        raise ValueError(
            f"{image.folder}: no datasource-properties.json says what kind of layer this is; give method= (median or mean for images, mode for labels)"
        )
    return format_of_image(image).default_method(category)


def image_box(image: Image, source: Volume) -> BoundingBox:
    """Give where an image has data, as it says or as one of its levels does [voxels of mag 1]."""
    return image.container.record.bounding_box if image.container is not None and image.container.record is not None else source.box.in_mag(MAG_1)


def aligned_mags(image: Image, align_with: str | bool) -> list[Mag]:
    """List the mags of the other images beside one that a ladder follows."""
    if align_with is False or image.container is None:
        return []
    others = [] if image.container.datasource is None else [other for other in image.container.datasource.layers if other.name != image.name]
    if align_with is not True:
        others = [other for other in others if other.name == align_with]
        if not others:
            raise MissingError(f"{image.container.dataset_folder or image.folder}: no other layer {align_with!r} to align with")
    return [entry.mag for other in others for entry in other.mags]
