"""Read-only stores of zarr-python over local, memory, zipped and remote folders. Imports zarr."""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store
from zarr.storage import FsspecStore, LocalStore, ObjectStore

from wkwdask.store.objects import object_store
from wkwdask.store.objects.remote import RemoteStore
from wkwdask.store.paths import is_on_disk, relpath
from wkwdask.store.store import FolderStore, store_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

    from wkwdask.model.store import Store as Folder


_THREADS = 16  # more than the requests that zarr-python makes at the same time
_pools: list[ThreadPoolExecutor] = []
"""Threads that read chunks. A read by zarr-python waits for the threads of its event loop, so it
must not occupy them."""
os.register_at_fork(after_in_child=_pools.clear)


async def in_thread(function: Any, *arguments: Any) -> Any:
    """Call a function outside of zarr's event loop."""
    if not _pools:
        _pools.append(ThreadPoolExecutor(_THREADS, thread_name_prefix="wkwdask-zarr-view"))
    return await asyncio.get_running_loop().run_in_executor(_pools[0], function, *arguments)


def library_store(store: Folder) -> Any:
    """Return the store of zarr-python for a folder."""
    if isinstance(store, RemoteStore):
        if store.client is object_store:
            return ObjectStore(object_store.store_of(store.url, store.access), read_only=True)
        return FsspecStore.from_url(store.url, read_only=True)
    return (
        LocalStore(store.url, read_only=True) if is_on_disk(store.url) else _FilesStore(store.url)
    )


class ReadOnlyStore(Store):  # type: ignore[misc, unused-ignore]
    """Base of stores that cannot be written."""

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return list(
            await asyncio.gather(
                *(self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
            )
        )

    async def set(self, key: str, value: Buffer) -> None:
        raise ValueError(f"{self}: cannot be written")

    async def delete(self, key: str) -> None:
        raise ValueError(f"{self}: cannot be written")

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key


class _FilesStore(ReadOnlyStore):
    """Files below a folder in memory or in a zip, which zarr-python itself cannot open."""

    def __init__(self, folder: str, *, read_only: bool = True) -> None:
        super().__init__(read_only=True)
        del read_only
        self._folder = folder

    def __eq__(self, value: object) -> bool:
        return isinstance(value, _FilesStore) and value._folder == self._folder

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self._folder

    def _read(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        """Return the bytes of a file, None if it is absent; any other error is raised, since
        zarr-python reads absent chunks as the fill value."""
        store = FolderStore(self._folder)
        if byte_range is None:
            return store.read_whole([key], sys.maxsize)[0]  # which compares the checksum in a zip
        file = store.open(key)
        if file is None:
            return None
        with file:
            if isinstance(byte_range, RangeByteRequest):
                return file.read_some(byte_range.end - byte_range.start, byte_range.start)
            if isinstance(byte_range, OffsetByteRequest):
                return file.read_some(max(0, file.nbytes - byte_range.offset), byte_range.offset)
            return file.read_end(byte_range.suffix)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        data = await in_thread(self._read, key, byte_range)
        return None if data is None else prototype.buffer.from_bytes(data)

    async def exists(self, key: str) -> bool:
        return bool(await in_thread(FolderStore(self._folder).is_file, key))

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for folder, _, names in store_at(self._folder).walk():
            for name in names:
                key = relpath(f"{folder}/{name}", self._folder)
                if key.startswith(prefix):
                    yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in store_at(f"{self._folder}/{prefix}".rstrip("/")).names():
            yield name
