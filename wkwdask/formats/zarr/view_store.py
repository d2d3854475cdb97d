"""A zarr store that holds nothing: layers as OME-NGFF pyramids, whose chunks are decoded when they are asked for. Needs zarr."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

    from wkwdask.formats.zarr.views import VirtualGroup


class ViewStore(Store):  # type: ignore[misc, unused-ignore]
    """A store to read from; picklable, and it holds no open file."""

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, group: VirtualGroup, name: str, *, read_only: bool = True) -> None:
        super().__init__(read_only=True)
        del read_only
        self._group, self._name = group, name

    def with_read_only(self, read_only: bool = False) -> ViewStore:
        if not read_only:
            raise ValueError(f"{self}: cannot be written")
        return self

    def __eq__(self, value: object) -> bool:
        return isinstance(value, ViewStore) and (value._name, value._group) == (self._name, self._group)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"zarr view of {self._name}"

    def __repr__(self) -> str:
        return f"<ViewStore of {self._name}>"

    def __getstate__(self) -> tuple[VirtualGroup, str]:
        return self._group, self._name

    def __setstate__(self, state: tuple[VirtualGroup, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _read(self, key: str) -> Any:
        """Give the content of a key, bytes or an array; None where there is none."""
        document = self._group.documents.get(key)
        if document is not None:
            return document
        path, _, chunk = key.rpartition("/c/")
        array = self._group.arrays.get(path)
        return None if array is None else array.read(f"c/{chunk}")

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Give the bytes of a document or chunk; None for a chunk of zeros."""
        found = self._read(key) if key in self._group.documents else await asyncio.to_thread(self._read, key)
        if found is None:
            return None
        buffer = prototype.buffer.from_bytes(found) if isinstance(found, bytes) else prototype.buffer.from_array_like(found.reshape(-1).view("B"))
        if isinstance(byte_range, RangeByteRequest):
            return buffer[byte_range.start : byte_range.end]
        if isinstance(byte_range, OffsetByteRequest):
            return buffer[byte_range.offset :]
        if isinstance(byte_range, SuffixByteRequest):
            return buffer[max(0, len(buffer) - byte_range.suffix) :]
        return buffer

    async def get_partial_values(self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]) -> list[Buffer | None]:
        return list(await asyncio.gather(*(self.get(key, prototype, byte_range) for key, byte_range in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Tell whether there is a document or a chunk that is not all zero."""
        return key in self._group.documents or await asyncio.to_thread(self._read, key) is not None

    async def set(self, key: str, value: Buffer) -> None:
        raise ValueError(f"{self}: cannot be written")

    async def delete(self, key: str) -> None:
        raise ValueError(f"{self}: cannot be written")

    async def list(self) -> AsyncIterator[str]:
        """List the documents; which chunks are zero is not known before they are read."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self._group.documents:
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        folder = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        for name in dict.fromkeys(key[len(folder) :].partition("/")[0] for key in self._group.documents if key.startswith(folder)):
            yield name
