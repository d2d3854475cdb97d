"""Read-only stores of zarr-python over local, memory and remote folders. Imports zarr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore

from wkwdask.store import files, object_store
from wkwdask.store.paths import is_memory, relpath
from wkwdask.store.remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.model.store import Store


def library_store(store: Store) -> Any:
    """Return the store of zarr-python for a folder."""
    if isinstance(store, RemoteStore):
        if store.client is object_store:
            return ObjectStore(object_store.store_of(store.url, store.access), read_only=True)
        return FsspecStore.from_url(store.url, read_only=True)
    if is_memory(store.url):
        return MemoryStore(_FolderMapping(store.url), read_only=True)  # type: ignore[arg-type, unused-ignore]
    return LocalStore(store.url, read_only=True)


class _FolderMapping(Mapping[str, Any]):
    """Files below a ``memory://`` folder, as the mapping from keys to buffers that zarr's ``MemoryStore`` expects."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __getitem__(self, key: str) -> Any:
        try:
            return default_buffer_prototype().buffer.from_bytes(files.read_bytes(f"{self._folder}/{key}"))
        except OSError:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        return files.isfile(f"{self._folder}/{key}")

    def __iter__(self) -> Iterator[str]:
        return (relpath(f"{folder}/{name}", self._folder) for folder, _, names in files.walk(self._folder) for name in names)

    def __len__(self) -> int:
        return files.count_tree(self._folder)[0]
