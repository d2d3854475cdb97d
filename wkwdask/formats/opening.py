"""From what a user names to the image that is read, and to the place where levels are written, whatever the format."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.registry import default_format, format_named, format_of, formats
from wkwdask.formats.webknossos.dataset import metadata_paths, read_datasource, with_external
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.store import files
from wkwdask.store.lru import LruCache
from wkwdask.store.paths import anchored, is_remote, local_path
from wkwdask.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.formats.format import ArrayFormat
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image, ResolvedUrl
    from wkwdask.model.options import StorageOptions
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.target_image import Destination, TargetImage
    from wkwdask.model.volume import Volume

_LARGEST_RECORD = 16 << 20
_REMOTE_SECONDS = 60.0  # for which the records of a remote volume are believed between two reads


def find(url: str | os.PathLike[str], chunk_size: Sequence[int] | None = None) -> ResolvedUrl:
    """Find out what a path or URL is."""
    found = format_of(url) or default_format()
    if chunk_size is not None and not found.has_chunk_sizes:
        kinds = " or ".join(one.name for one in formats() if one.has_chunk_sizes)
        raise ValueError(f"{os.fspath(url)}: chunk_size= chooses among those of a {kinds} volume, which this is not")
    return found.find(url, chunk_size)


def check_names_format(url: str | os.PathLike[str]) -> None:
    """Refuse a URL of a web server without the name of a format, and say which one it has, if the server does."""
    text = os.fspath(url)
    if not text.startswith(("http://", "https://")):
        return
    with contextlib.suppress(OSError, FormatError, ModuleNotFoundError):  # where nothing answers, or no driver can ask, all formats are named
        store = open_store(text)
        for one in formats():
            if one.documents and any(data is not None for data in store.read_whole(one.documents, _LARGEST_RECORD)):
                raise UnsupportedError(f"{text}: this is a volume of the format {one.name}; name it as {one.name}://{text}")
    local_path(text)  # names all of them


def open_stored(
    url: str | os.PathLike[str], layer: str | None = None, mag: Mag | str | None = None, chunk_size: Sequence[int] | None = None
) -> tuple[Image, StoredArray]:
    """Open the level that a user names."""
    return find(url, chunk_size).open(layer, mag)


def is_readable(layer: Image, mag: Mag) -> bool:
    """Tell whether a mag can be opened and has files."""
    with contextlib.suppress(MissingError, ModuleNotFoundError, FormatError, UnsupportedError):
        return layer.volume(mag).has_shards()
    return False


def local_mags(image: Image) -> list[Mag]:
    """List the mags of an image that can be read; those of a dataset in WKW that are elsewhere cannot."""
    return [mag for mag, folder in image.mags.items() if image.container is None or not is_remote(folder)]


def describe_unusable_levels(image: Image) -> str:
    """Say which levels of an image have no mag or cannot be read."""
    left = [f"{level.key!r} ({level.problem or 'no mag'})" for level in image.levels if level.problem or level.mag is None]
    return f"levels that are left out: {', '.join(left)}" if left else ""


class _Recent(NamedTuple):
    """A volume that was opened, when, and what shows that it is still the one that is meant."""

    volume: StoredArray
    opened: float
    stamps: dict[str, tuple[int, int, int] | None]
    """States of the records of a dataset that lead to it."""

    def is_fresh(self) -> bool:
        """Tell whether no record has changed; that of a remote volume is believed for a while."""
        if self.stamps:
            return all(_stamp(record) == stamp for record, stamp in self.stamps.items())
        return time.monotonic() - self.opened < _REMOTE_SECONDS if is_remote(self.volume.name) else self.volume.identity.is_unchanged()


_recent: LruCache[_Recent] = LruCache(128)


def open_cached(url: str | os.PathLike[str], layer: str | None = None, mag: Mag | str | None = None, *, refresh: bool = False) -> StoredArray:
    """Open the level that a user names, or give it again without reading any record, as long as none of them has changed."""
    key = (anchored(os.fspath(url)), layer, mag)
    kept = _recent.get(key)
    if kept is not None and not refresh and kept.is_fresh():
        return kept.volume
    _recent.discard(key)
    found = find(url)
    chosen, volume = found.open(layer, mag)
    listed = found.pick(layer)
    if listed.container is None:
        is_one, records = mag is not None or is_remote(volume.name) or chosen.key is not None, []
    else:  # of a layer the finest mag with files is meant, and another one may become that
        is_one, records = (found.mag is not None or mag is not None) and chosen is listed, metadata_paths(found, listed, volume)
    if is_one:
        _recent.put(key, _Recent(volume, time.monotonic(), {record: _stamp(record) for record in records}))
    return volume


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = files.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


EXPORTED = (".tif", ".tiff", ".npy", ".zarr")
"""Endings of files of images or arrays that are written."""


def format_of_target(url: object) -> ArrayFormat:
    """Find the format that is written to a target: the one that it is named as, else the one of datasets."""
    return next((one for one in formats() if one.names_target(url)), default_format())


def target_for(wanted: Destination) -> TargetImage:
    """Find out what is where a user wants levels."""
    return format_of_target(wanted.url).place(wanted)


def target_in(image: Image, allow_external: bool) -> TargetImage:
    """Give the place where levels of an image that is there are made from one of its levels."""
    return format_of_image(image).target_in(image, allow_external=allow_external)


def open_in_place(url: str | os.PathLike[str], mag: Mag | None, *, allow_external: bool) -> tuple[Image, StoredArray]:
    """Open the level that is written in its place, where links lead it out of its dataset only where that is allowed."""
    image, volume = open_stored(url, None, mag)
    return with_external(image) if image.container is not None and allow_external else image, volume


def format_of_image(image: Image) -> ArrayFormat:
    """Give the format of an image; that of a layer is the format of its dataset, however the files are stored."""
    return default_format() if image.container is not None else format_named(image.format)


def check_target_name(url: str | os.PathLike[str]) -> None:
    """Refuse a target that is named as a format which it would not get."""
    text = os.fspath(url)
    if text.lower().endswith(EXPORTED) or read_datasource(local_path(url)) is not None:
        return
    for one in formats():
        if one.ending and any(part.lower().endswith(one.ending) for part in text.split("/")):
            raise ValueError(f"{text}: is named as {one.options.title}, which {one.name}://{text} writes; give what becomes WKW or images another name")


def options_of(url: str | os.PathLike[str]) -> type[StorageOptions]:
    """Give the record of what the format of an image that is there can be told."""
    return (format_of(url) or default_format()).options


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
    volume = image.volume(mag or found.mag or default(image))
    if image.container is not None and not volume.has_shards():  # elsewhere an array without files is known to be all zero
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
