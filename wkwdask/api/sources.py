"""What a conversion starts from: a layer with mags in whatever format, or images and arrays that only say how large they are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wkwdask.errors import MissingError, UnsupportedError
from wkwdask.formats.opening import find
from wkwdask.formats.pictures.foreign import HDF5_SUFFIXES
from wkwdask.formats.registry import fallback, format_of, holds_plain_arrays
from wkwdask.store import files
from wkwdask.store.paths import is_remote, local_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.model.image import Found, Image

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def find_layers(source: Paths, *, whole_images: bool = True) -> Found | None:
    """Find the layers with mags that a source is; None where it is images or an array."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    its_format = format_of(source)
    if holds_plain_arrays(source):
        return find(source) if whole_images and its_format is not None and its_format.is_placed(source) else None
    if its_format not in (None, fallback()):
        return find(source)
    try:
        found = find(source)
    except (MissingError, UnsupportedError, NotADirectoryError):
        return None
    return found if found.layers or found.odd else None


def find_source(source: Paths, *, whole_images: bool = True) -> Found | None:
    """Find the layers with mags that a source is, arrays in Zarr among them; None where it is images or an array in a file."""
    if not isinstance(source, (str, os.PathLike)) or (not whole_images and holds_plain_arrays(source)):
        return None
    text = os.fspath(source)
    file, colon, _ = text.rpartition(":")
    if colon and file.lower().endswith(HDF5_SUFFIXES) and files.exists(local_path(file)):
        return None
    try:
        return find(source)
    except (MissingError, NotADirectoryError):
        if not is_remote(text) and (files.exists(local_path(text)) or (files.has_magic(text) and files.matching(local_path(text)))):
            return None
        raise


def choose_layer_of(found: Found, layer: str | None) -> tuple[Image, str | None]:
    """Choose the layer that becomes WKW or images: that of the name which a new layer gets, if there is one, else the only one."""
    if any(one.container is not None for one in found.layers):
        chosen = found.choose(layer)
        return chosen, layer or chosen.name
    return found.choose(layer if any(one.name == layer for one in found.layers) else None), None if layer is None else layer.rpartition("/")[2]
