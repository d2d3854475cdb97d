"""Levels that are opened once and read many times, with the states of the documents that describe
them: a changed document opens the level again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.formats.opening import find
from wkwdask.formats.registry import format_named
from wkwdask.formats.webknossos.dataset import metadata_paths
from wkwdask.store.objects.remote import last_change
from wkwdask.store.paths import dirname, is_remote, split
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wkwdask.formats.format import Url
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image, ResolvedUrl
    from wkwdask.model.store import Store
    from wkwdask.model.stored_array import StoredArray

_REMOTE_SECONDS = 60.0  # how long the documents of a remote volume are trusted between two reads
# A document that changed a moment ago may change again without another time or size.
_SETTLED_SECONDS = 2.0

_Stamp = tuple[int, int, int] | None
"""Inode, time [ns] and size of a document; None if it does not exist."""


@dataclass(frozen=True, slots=True)
class OpenLevel:
    """Opened level, with the states of the documents that describe it."""

    volume: StoredArray
    name: Mag | str | None
    """Mag or key that names the level in its image; None if the path does."""
    documents: tuple[tuple[Store, str], ...] | None
    """Documents, existing or missing, each as a folder and a name; none for a remote level. None if
    other files, too, decide which level is meant."""
    stamps: tuple[_Stamp, ...]
    """States of the documents."""
    is_proven: bool
    """Whether the documents had these states before they were read, and had settled."""
    opened: float
    """Monotonic time of the opening [s]."""
    change: int
    """Last change of this process in a bucket, before which the level was opened."""

    def is_current(self) -> bool:
        """Return whether no document has changed; those of remote levels are trusted for a
        minute."""
        if self.documents is None:
            return False
        if self.volume.store.is_remote:
            return time.monotonic() - self.opened < _REMOTE_SECONDS and self.change == last_change()
        return self.is_proven and _stamps(self.documents) == self.stamps

    def can_prove(self) -> bool:
        """Return whether the next opening reads the documents in the states that this one found."""
        return (
            self.documents is not None
            and _have_settled(self.stamps)
            and _stamps(self.documents) == self.stamps
        )


def open_again(
    url: Url,
    layer: str | None,
    mag: Mag | str | None,
    index: Mapping[str, int] | None,
    last: OpenLevel | None,
    *,
    refresh: bool = False,
) -> OpenLevel:
    """Return the last opening of a level if it is current, else open the level.

    The first opening finds the documents and records their states afterwards. Only the next
    opening can prove that these are the states which it read.
    """
    if last is not None and not refresh and last.is_current():
        return last
    can_prove = last is not None and last.can_prove()
    change = last_change()
    resolved = find(url, index=index)
    image, volume = resolved.open(layer, mag)
    documents = _documents(resolved, layer, mag, image, volume)
    is_proven = can_prove and last is not None and documents == last.documents
    stamps = last.stamps if last is not None and is_proven else _stamps(documents or ())
    name = mag if mag is not None else _name_of(resolved, image, volume)
    return OpenLevel(volume, name, documents, stamps, is_proven, time.monotonic(), change)


def _name_of(resolved: ResolvedUrl, image: Image, volume: StoredArray) -> Mag | str | None:
    """Return the mag or key of an opened level; None if the path names it."""
    if resolved.mag is not None or image.key is not None:
        return None
    if image.is_layer:
        return volume.mag
    level = image.level_of(volume)
    if level is None or (level.mag is not None and image.find(level.mag) is level):
        return volume.mag
    return level.key


def _documents(
    resolved: ResolvedUrl,
    layer: str | None,
    mag: Mag | str | None,
    image: Image,
    volume: StoredArray,
) -> tuple[tuple[Store, str], ...] | None:
    """Return the documents that determine which level a user names and how it is stored; None if
    that depends on other files, too."""
    listed = resolved.choose_listed(layer)
    documents = [volume.identity.document]
    if listed.is_layer:
        # Without a mag, a layer opens the finest mag that has files.
        if mag is None and resolved.mag is None:
            return None
        paths = [path for path in metadata_paths(resolved, listed) if not is_remote(path)]
        return () if volume.store.is_remote else (*documents, *map(_document, paths))
    if volume.store.is_remote:
        return ()
    if mag is None and image.key is None and not _is_finest(image, volume, layer):
        return None
    its_format = format_named(image.format)
    folder = image.folder
    for _ in range(its_format.documents_above + 1):
        documents += [(store_at(folder), name) for name in its_format.documents_in(folder)]
        folder = dirname(folder)
    if image.document:
        documents.append(_document(image.document))
    if any(level.stated is None for level in image.levels):
        documents.append((store_at(image.folder), ""))  # its time changes with the names in it
    return tuple({(store.url, name): (store, name) for store, name in documents}.values())


def _is_finest(image: Image, volume: StoredArray, layer: str | None) -> bool:
    """Return whether a level stays the finest written one of the image that a path means, as long
    as no document changes."""
    if next(iter(image.mags.values()), None) != volume.name or (image.root and layer is None):
        return False
    if all(level.stated is not None for level in image.levels):
        return True
    known = {level.folder for level in image.levels}
    return all(
        entry.path in known or not entry.is_dir() for entry in store_at(image.folder).entries()
    )


def _document(path: str) -> tuple[Store, str]:
    folder, name = split(path)
    return store_at(folder), name


def _stamps(documents: tuple[tuple[Store, str], ...]) -> tuple[_Stamp, ...]:
    return tuple([_stamp(store, name) for store, name in documents])


def _stamp(store: Store, name: str) -> _Stamp:
    try:
        status = store.status(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _have_settled(stamps: tuple[_Stamp, ...]) -> bool:
    newest = max((stamp[1] for stamp in stamps if stamp is not None), default=0)
    return newest < (time.time() - _SETTLED_SECONDS) * 1e9
