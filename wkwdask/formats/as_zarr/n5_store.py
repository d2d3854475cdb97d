"""Read-only zarr store over N5 data: each ``zarr.json`` is derived from the ``attributes.json`` on
request. Imports zarr."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import WrapperStore

from wkwdask.formats.as_zarr.n5_view import (
    declared_axis_names,
    n5_array_document,
    n5_group_document,
)
from wkwdask.formats.n5.attributes import FILE_NAME, is_dataset, parse_dataset
from wkwdask.formats.n5.layer import location_of
from wkwdask.formats.zarr.documents import FILE_NAME as ZARR_NAME
from wkwdask.formats.zarr.library_store import library_store
from wkwdask.model.json_text import parse_object
from wkwdask.store.store import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator

    from zarr.abc.store import ByteRequest, Store
    from zarr.core.buffer import Buffer, BufferPrototype

    from wkwdask.model.json_text import JsonObject

_ZARR_2 = (".zarray", ".zgroup", ".zattrs", ".zmetadata")


def open_n5_store(url: str | os.PathLike[str]) -> N5Store:
    """Open a store; see :func:`wkwdask.api.zarr_views.n5_store`."""
    return N5Store(library_store(open_store(location_of(url))))


class N5Store(WrapperStore[Any]):
    """N5 data under the keys of Zarr v3. Blocks need no translation: their keys are those of the
    chunk key encoding ``v2`` with ``/``."""

    def _with_store(self, store: Store) -> N5Store:
        return type(self)(store)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        prototype = prototype or default_buffer_prototype()
        name = key.rpartition("/")[2]
        if name in _ZARR_2:
            return None
        if name != ZARR_NAME:
            block: Buffer | None = await self._store.get(key, prototype, byte_range)
            return block
        document = await self._document(key.removesuffix(ZARR_NAME))
        return (
            None if document is None else prototype.buffer.from_bytes(json.dumps(document).encode())
        )

    async def _document(self, prefix: str) -> JsonObject | None:
        """Return the ``zarr.json`` of a group or dataset, or None. A non-empty folder without
        attributes is a group, unless it contains blocks."""
        attributes = await self._attributes(prefix)
        if attributes is not None and is_dataset(attributes):
            source = f"{prefix}{FILE_NAME}"
            dataset = parse_dataset(attributes, source)
            return n5_array_document(dataset, source, axes=declared_axis_names(dataset))
        if attributes is None:
            above = prefix.rstrip("/").rpartition("/")[0]
            parent = await self._attributes(f"{above}/" if above else "") if prefix else None
            if (parent is not None and is_dataset(parent)) or await self._is_empty(prefix):
                return None
        return n5_group_document(attributes)

    async def _attributes(self, prefix: str) -> JsonObject | None:
        raw = await self._store.get(f"{prefix}{FILE_NAME}", default_buffer_prototype())
        return None if raw is None else parse_object(raw.to_bytes(), f"{prefix}{FILE_NAME}")

    async def _is_empty(self, prefix: str) -> bool:
        """Return whether a folder is empty or cannot be listed."""
        if self._store.supports_listing:
            async for _ in self._store.list_dir(prefix):
                return False
        return True

    async def exists(self, key: str) -> bool:
        name = key.rpartition("/")[2]
        if name in _ZARR_2:
            return False
        if name != ZARR_NAME:
            return bool(await self._store.exists(key))
        return await self._document(key.removesuffix(ZARR_NAME)) is not None

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        async for key in self._store.list_prefix(prefix):
            name = key.rpartition("/")[2]
            if name == FILE_NAME:
                yield f"{key.removesuffix(FILE_NAME)}{ZARR_NAME}"
            elif name != ZARR_NAME:
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        async for name in self._store.list_dir(prefix):
            if name == FILE_NAME:
                yield ZARR_NAME
            elif name != ZARR_NAME:
                yield name
