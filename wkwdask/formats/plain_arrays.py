"""Arrays that may have no position in space, like those of HDF5 files: Zarr arrays outside of
OME-NGFF images and datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.formats.n5.layer import NAME as N5
from wkwdask.formats.registry import format_of
from wkwdask.formats.zarr.layer import NAME, PREFIX, find_zarr_layers, image_of_level, is_image

if TYPE_CHECKING:
    from wkwdask.formats.format import Url
    from wkwdask.model.image import Image


def contains_plain_arrays(url: object) -> bool:
    """Return whether a local path contains arrays that may have no position in space, and neither
    names their format nor belongs to a dataset."""
    its_format = format_of(url)
    return its_format is not None and its_format.url_name is NAME and not NAME.is_in(url)


def format_with_axes(url: object) -> str | None:
    """Return the name of the format of a path or URL if one of its arrays can be converted with
    axes that the user states."""
    its_format = format_of(url)
    return its_format.name if its_format is not None and its_format.url_name in (NAME, N5) else None


def has_axes(url: Url) -> bool:
    """Return whether the documents at such a path describe an image and the axes of its arrays."""
    return is_image(url)


def is_placed(url: Url) -> bool:
    """Return whether the arrays at a path are levels of an image with a position in space: the URL
    names the format, or the path is an image or a level of one."""
    return NAME.is_in(url) or is_image(url) or image_of_level(NAME.location(url)) is not None


def images_at(path: str) -> tuple[Image, ...]:
    """Return the Zarr images at a path, and arrays outside of images."""
    return find_zarr_layers(PREFIX + path)
