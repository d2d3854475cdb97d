"""The ``info`` of a precomputed volume as a file: reading it, once for each of its states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.errors import MissingError
from wkwdask.formats.precomputed.info import FILE_NAME, parse_info
from wkwdask.store.lru import Lru

if TYPE_CHECKING:
    from wkwdask.formats.precomputed.info import VolumeInfo
    from wkwdask.model.store import Store

_LARGEST_INFO = 64 << 20


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
