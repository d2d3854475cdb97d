"""What a job changes in the ``info`` of a precomputed volume once its scales are there."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from wkwdask.errors import MissingError
from wkwdask.formats.format import LevelRemoval, MetadataEdit
from wkwdask.formats.precomputed.info import FILE_NAME, PROVENANCE_FILE_NAME, parse_info, with_scales, without_scales
from wkwdask.model.json_text import format_json
from wkwdask.store import files
from wkwdask.store.locks import locked_file, remove_dead_lock, update_json
from wkwdask.store.lru import LruCache
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.paths import dirname
from wkwdask.store.store import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.formats.precomputed.info import Scale, VolumeInfo
    from wkwdask.model.store import Store


_LARGEST_INFO = 64 << 20


_infos: LruCache[VolumeInfo] = LruCache(16)


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


def find_info(folder: str) -> VolumeInfo | None:
    """Read the ``info`` of a local folder, None where there is none."""
    try:
        return read_info(FolderStore(folder))
    except MissingError:
        return None


def update_info(folder: str, change: Callable[[dict[str, Any]], dict[str, Any]], new: dict[str, Any] | None = None) -> None:
    """Change the ``info`` of a volume; it appears whole, and no process that honours the lock overwrites what another one wrote."""

    def read() -> dict[str, Any] | None:
        info = find_info(folder)
        return None if info is None else info.document

    update_json(f"{folder}/{FILE_NAME}", read, change, format_json, new)


@dataclass(frozen=True, slots=True)
class InfoEdit(MetadataEdit):
    """What ``info`` is to say once the scales are there."""

    kind: ClassVar[str] = "precomputed info"
    folder_names: ClassVar[tuple[str, ...]] = ("folder",)
    folder: str
    scales: tuple[Scale, ...]
    """The scales; one that is there with the same key is replaced."""
    new: dict[str, Any]
    """What ``info`` says apart from them where it is made, because there is none yet."""
    provenance: dict[str, Any]
    """What ``provenance`` says where it is not there yet."""

    def apply(self) -> None:
        update_info(self.folder, lambda document: with_scales(document, self.scales), self.new)
        path = f"{self.folder}/{PROVENANCE_FILE_NAME}"
        if files.lexists(path):
            remove_dead_lock(path)
            return
        with locked_file(path, f"making of {path}"):
            files.remove_temporaries(self.folder, PROVENANCE_FILE_NAME)  # whoever wrote one held this lock, and is dead
            if not files.lexists(path):
                publish_bytes(path, format_json(self.provenance).encode())

    def check_writable(self) -> None:
        changed = dirname(files.realpath(f"{self.folder}/{FILE_NAME}"))
        if files.isdir(changed) and not files.is_writable(changed):
            raise PermissionError(errno.EACCES, f"the volume's {FILE_NAME} could not be updated", changed)

    def check_current(self) -> None:
        """Make sure that nobody made the volume meanwhile with values of another type."""
        current = find_info(self.folder)
        if current is None:
            return
        found = (current.type, current.dtype.name, current.num_channels)
        ours = (self.new["type"], self.new["data_type"], self.new["num_channels"])
        if found != ours:
            raise ValueError(f"{self.folder}/{FILE_NAME}: type, data_type and num_channels are {found}, those of the scale that was written {ours}")

    def to_json(self) -> dict[str, Any]:
        document = with_scales(self.new, self.scales)
        return {"kind": self.kind, "folder": self.folder, "info": document, "provenance": self.provenance}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> InfoEdit:
        info = parse_info(format_json(value["info"]), value["folder"])
        return cls(value["folder"], info.scales, {**value["info"], "scales": []}, value["provenance"])


class InfoRemoval(LevelRemoval):
    """Scales that ``info`` is to forget."""

    __slots__ = ()
    kind = "removal of precomputed scales"

    def apply(self) -> None:
        if files.exists(f"{self.folder}/{FILE_NAME}"):
            update_info(self.folder, lambda document: without_scales(document, self.keys))
