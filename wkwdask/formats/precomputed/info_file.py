"""Read and update the ``info`` file of a precomputed volume. Each update is atomic; concurrent
wkwdask processes are serialised by a lock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from wkwdask.errors import MissingError
from wkwdask.formats.edits import DocumentEdit, LevelRemoval, check_listed
from wkwdask.formats.mesh_folders import warn_of_meshes
from wkwdask.formats.precomputed.info import (
    FILE_NAME,
    PROVENANCE_FILE_NAME,
    base_resolution,
    parse_info,
    with_scales,
    without_scales,
)
from wkwdask.model.json_text import format_json
from wkwdask.model.placement import placed_name, plain_name
from wkwdask.store.documents import (
    check_replaceable,
    create_document,
    read_documents,
    update_json,
)
from wkwdask.store.lru import LruCache
from wkwdask.store.paths import is_bucket, is_remote, stated_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.formats.precomputed.info import Scale, VolumeInfo
    from wkwdask.model.store import Store


_MAX_INFO_NBYTES = 64 << 20

_infos: LruCache[VolumeInfo] = LruCache(16)


def cached_info(store: Store, state: tuple[int, int, int]) -> VolumeInfo:
    """Return the ``info`` of a local volume, cached for each state (inode, time, size) of the
    file."""
    key = (store.url, state)
    info = _infos.get(key)
    if info is None:
        info = read_info(store)
        _infos.put(key, info)
    return info


def read_info(store: Store) -> VolumeInfo:
    """Read the ``info`` of a volume without following its redirect."""
    path = store.path_of(FILE_NAME)
    (raw,) = read_documents(store, [FILE_NAME], _MAX_INFO_NBYTES)
    if raw is None:
        raise MissingError(f"{path}: not found: no Neuroglancer precomputed volume here")
    return parse_info(raw, path)


def find_info(folder: str) -> VolumeInfo | None:
    """Read the ``info`` of a folder, or return None if there is none."""
    return info_in(store_at(folder))


def info_in(store: Store) -> VolumeInfo | None:
    """Read the ``info`` of a volume, or return None if there is none."""
    try:
        return read_info(store)
    except MissingError:
        return None


def update_info(
    folder: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    new: dict[str, Any] | None = None,
) -> None:
    """Apply ``change`` to the JSON of a volume, or to ``new`` if there is no ``info`` yet."""

    update_json(store_at(folder), FILE_NAME, change, new, parse=_parse_document)


def _parse_document(raw: bytes, path: str) -> dict[str, Any]:
    return parse_info(raw, path).document


def named_meshes(folder: str, info: VolumeInfo) -> str | None:
    """Return the folder of the meshes that ``info`` in a folder names, None if it names none; a
    remote file must not name a local folder."""
    name = info.document.get("mesh")
    if not isinstance(name, str) or not name:
        return None
    path = stated_path(folder, name)
    return None if is_remote(folder) and not is_remote(path) else path


@dataclass(frozen=True, slots=True)
class InfoEdit(DocumentEdit):
    """Addition of scales to ``info``, applied once their files are complete."""

    kind: ClassVar[str] = "precomputed info"
    folder_names: ClassVar[tuple[str, ...]] = ("folder",)
    folder: str
    scales: tuple[Scale, ...]
    """Scales to add; existing scales with their keys are replaced."""
    new: dict[str, Any]
    """JSON of a new ``info`` without scales, used if there is none yet."""
    provenance: dict[str, Any]
    """JSON of a new ``provenance`` file, used if there is none yet."""
    listed: tuple[str | None, ...] | None = None
    """Folder of each scale in the ``info`` that the job was planned on, None where that does not
    matter."""

    def apply(self) -> None:
        # in a bucket, each look at a file is a request
        if not is_bucket(self.folder) or find_info(self.folder) is None:
            provenance = format_json(self.provenance).encode()
            create_document(store_at(self.folder), PROVENANCE_FILE_NAME, provenance)
        update_info(self.folder, lambda document: with_scales(document, self.scales), self.new)

    def with_maxima(self, maxima: tuple[int | None, ...], *, is_new_content: bool) -> InfoEdit:
        """Return the same edit; warn if meshes are those of voxels that are replaced."""
        del maxima
        info = find_info(self.folder) if is_new_content else None
        finest = None if info is None else base_resolution(info)
        if info is not None and any(scale.resolution == finest for scale in self.scales):
            warn_of_meshes(named_meshes(self.folder, info))
        return self

    def joined(self, other: InfoEdit) -> InfoEdit:
        return replace(self, scales=(*self.scales, *other.scales))

    @property
    def names_places(self) -> bool:
        return True

    def placed(self, job: str, listed: tuple[str | None, ...] | None) -> InfoEdit:
        scales = [replace(scale, key=placed_name(scale.key, job)) for scale in self.scales]
        return replace(self, scales=tuple(scales), listed=listed)

    def listed_now(self) -> tuple[str | None, ...]:
        return self._listed_in(find_info(self.folder))

    def _listed_in(self, info: VolumeInfo | None) -> tuple[str | None, ...]:
        stored = () if info is None else info.document.get("scales", ())
        known = [entry["key"] for entry in stored if isinstance(entry, dict) and "key" in entry]
        plain = {plain_name(key): stated_path(self.folder, key) for key in known}
        return tuple(plain.get(plain_name(scale.key)) for scale in self.scales)

    def check_writable(self) -> None:
        check_replaceable(store_at(self.folder), FILE_NAME, "volume")

    def check_current(self) -> None:
        """Raise ValueError if another process has created the volume with a different type since
        the job was planned."""
        current = find_info(self.folder)
        check_listed(self.listed, self._listed_in(current))
        if current is None:
            return
        layout = (current.type, current.dtype.name, current.num_channels)
        ours = (self.new["type"], self.new["data_type"], self.new["num_channels"])
        if layout != ours:
            raise ValueError(
                f"{self.folder}/{FILE_NAME}: type, data_type and num_channels are {layout}, but "
                f"{ours} for the new scale"
            )

    def to_json(self) -> dict[str, Any]:
        document = with_scales(self.new, self.scales)
        return {
            "kind": self.kind,
            "folder": self.folder,
            "info": document,
            "provenance": self.provenance,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> InfoEdit:
        info = parse_info(format_json(value["info"]), value["folder"])
        return cls(
            value["folder"], info.scales, {**value["info"], "scales": []}, value["provenance"]
        )


class InfoRemoval(LevelRemoval):
    __slots__ = ()
    kind = "removal of precomputed scales"

    @property
    def names_places(self) -> bool:
        return True

    def apply(self) -> None:
        if store_at(self.folder).exists(FILE_NAME):
            update_info(self.folder, self._without)

    def _without(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a document without the scales; meshes go with the last one."""
        left = without_scales(document, self.keys)
        gone = () if left["scales"] else ("mesh", "segment_properties")
        return {name: value for name, value in left.items() if name not in gone}
