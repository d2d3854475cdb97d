"""A read-only zarr store without files: layers as OME-NGFF images whose chunks are decoded on
request. Imports zarr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from wkwdask.formats.zarr.library_store import ReadOnlyStore, in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

    from wkwdask.formats.as_zarr.wkw_view import VirtualGroup


class ViewStore(ReadOnlyStore):
    """Read-only store over a :class:`VirtualGroup`; picklable, without open files."""

    def __init__(self, group: VirtualGroup, name: str, *, read_only: bool = True) -> None:
        super().__init__(read_only=True)
        del read_only
        self._group, self._name = group, name

    def with_read_only(self, read_only: bool = False) -> ViewStore:
        if not read_only:
            raise ValueError(f"{self}: cannot be written")
        return self

    def __eq__(self, value: object) -> bool:
        return isinstance(value, ViewStore) and (value._name, value._group) == (
            self._name,
            self._group,
        )

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
        """Return the content of a key, as bytes or an array, or None."""
        document = self._group.documents.get(key)
        if document is not None:
            return document
        path, _, chunk = key.rpartition("/c/")
        array = self._group.arrays.get(path)
        return None if array is None else array.read(f"c/{chunk}")

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        # documents are in memory; a chunk is read and decoded in a thread, not in zarr's event loop
        content = (
            self._read(key) if key in self._group.documents else await in_thread(self._read, key)
        )
        if content is None:
            return None
        buffer = (
            prototype.buffer.from_bytes(content)
            if isinstance(content, bytes)
            else prototype.buffer.from_array_like(content.reshape(-1).view("B"))
        )
        if isinstance(byte_range, RangeByteRequest):
            return buffer[byte_range.start : byte_range.end]
        if isinstance(byte_range, OffsetByteRequest):
            return buffer[byte_range.offset :]
        if isinstance(byte_range, SuffixByteRequest):
            return buffer[max(0, len(buffer) - byte_range.suffix) :]
        return buffer

    async def exists(self, key: str) -> bool:
        """Return whether a document exists, or a chunk is not all zero."""
        return key in self._group.documents or await in_thread(self._read, key) is not None

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """List the documents only: whether a chunk is zero is not known before it is read."""
        for key in self._group.documents:
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        folder = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        for name in dict.fromkeys(
            key[len(folder) :].partition("/")[0]
            for key in self._group.documents
            if key.startswith(folder)
        ):
            yield name
