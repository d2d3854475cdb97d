"""The ``info`` of a precomputed volume as a file: reading it, and looking whether it is still the one that was read."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import MissingError
from wkwdask.formats.precomputed.info import FILE_NAME, parse_info
from wkwdask.store import files
from wkwdask.store.lru import Lru

if TYPE_CHECKING:
    from wkwdask.formats.precomputed.info import VolumeInfo
    from wkwdask.model.store import Store

_LARGEST_INFO = 64 << 20


@dataclass(frozen=True, slots=True)
class Opened:
    """What says that a scale is still the one that was opened, of a local volume."""

    info: tuple[int, int, int]
    """Inode, time and size of ``info``."""
    folder: int | None
    """Inode of the scale's folder, None where it was absent."""


def look(store: Store, key: str) -> Opened | None:
    """Look at what says that a scale of a local volume is the one that was opened; None where its ``info`` is absent."""
    try:
        status = files.stat(store.path_of(FILE_NAME))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Opened((status.st_ino, status.st_mtime_ns, status.st_size), folder_state(store, key))


def folder_state(store: Store, key: str) -> int | None:
    """Give the inode of a scale's folder, None where it is absent."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return files.stat(store.path_of(key)).st_ino
    return None


_infos: Lru[VolumeInfo] = Lru(16)


def info_of(store: Store, state: tuple[int, int, int]) -> VolumeInfo:
    """Read the ``info`` of a local volume once for each state of the file."""
    key = (store.url, state)
    info = _infos.get(key)
    if info is None:
        info = read_info(store)
        _infos.put(key, info)
    return info


def read_info(store: Store) -> VolumeInfo:
    """Read the ``info`` of a volume; it may be one that only says where the volume is instead."""
    path = store.path_of(FILE_NAME)
    (raw,) = store.read_whole([FILE_NAME], _LARGEST_INFO)
    if raw is None:
        raise MissingError(f"{path}: not found: no Neuroglancer precomputed volume here")
    return parse_info(raw, path)
