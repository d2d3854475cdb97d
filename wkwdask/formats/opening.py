"""From what a user names to an image and a level of it, whatever the format."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.registry import fallback, format_of, formats
from wkwdask.store.lru import Lru
from wkwdask.store.paths import anchored, is_remote, local_path
from wkwdask.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.format import ArrayFormat
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Found, Image
    from wkwdask.model.volume import StoredVolume

_LARGEST_RECORD = 16 << 20
_REMOTE_SECONDS = 60.0  # for which the records of a remote volume are believed between two reads


def find(url: str | os.PathLike[str], chunk_size: Sequence[int] | None = None) -> Found:
    """Find out what a path or URL is."""
    found = format_of(url) or fallback()
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
) -> tuple[Image, StoredVolume]:
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


def left_out(image: Image) -> str:
    """Say which levels of an image have no mag or cannot be read."""
    left = [f"{level.key!r} ({level.problem or 'no mag'})" for level in image.levels if level.problem or level.mag is None]
    return f"levels that are left out: {', '.join(left)}" if left else ""


_recent: Lru[tuple[StoredVolume, float]] = Lru(64)
_known: Lru[ArrayFormat] = Lru(1024)
"""Formats that remember levels themselves, so that nobody looks for files of all other formats before each reading."""


def recent_stored(url: str | os.PathLike[str], layer: str | None = None, mag: Mag | str | None = None, *, anew: bool = False) -> StoredVolume:
    """Open the level that a user names, or give it again without reading any record, as long as none of them has changed."""
    path = os.fspath(url)
    key = (anchored(path), layer, mag)
    kept = _recent.get(key)
    if kept is not None and not anew and _is_fresh(*kept):
        return kept[0]
    if kept is None:
        its_format = _known.get(key) or format_of(url) or fallback()
        try:
            remembered = its_format.recent(url, layer, mag, anew=anew)
        except (MissingError, UnsupportedError):  # a layer of a dataset may be stored in another format, and what was there may be something else now
            _known.discard(key)
            return open_stored(url, layer, mag)[1]
        if remembered is not None:
            _known.put(key, its_format)
            return remembered
    _recent.discard(key)
    chosen, volume = open_stored(url, layer, mag)
    if chosen.container is None and (mag is not None or is_remote(volume.name) or chosen.key is not None):
        _recent.put(key, (volume, time.monotonic()))
    return volume


def _is_fresh(volume: StoredVolume, opened: float) -> bool:
    """Tell whether the record of a volume is still the one that it was opened by; that of a remote one is believed for a while."""
    return time.monotonic() - opened < _REMOTE_SECONDS if is_remote(volume.name) else volume.is_unchanged()
