"""Scratch files of named arrays: compressed, each with a checksum, and described by an index.

A file holds the arrays one after another, then the index as JSON, then a footer. It is written at
once, so half a file is never seen; damage raises :class:`CorruptError`.
"""

from __future__ import annotations

import json
import math
import zlib
from typing import TYPE_CHECKING, Any

import lz4.block
import numpy as np

from wkwdask.errors import CorruptError, MissingError
from wkwdask.model.parsing import reading
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wkwdask.array_types import AnyArray
    from wkwdask.model.store import OpenFile

_MAGIC = b"ARRAYS01"
_AHEAD_NBYTES = 1 << 20  # of a file in a bucket, which come with its size
_FOOTER_NBYTES = 24  # bytes of the index and its CRC-32 as int64, magic


def format_arrays(arrays: Iterable[tuple[str, AnyArray]], record: dict[str, Any]) -> bytes:
    """Return the bytes of a file of arrays, in C order, and of a record that JSON can hold.

    Examples
    --------
    >>> data = format_arrays([("sizes", np.arange(3))], {"block": [0, 0, 1]})
    >>> data[-8:]
    b'ARRAYS01'
    """
    return b"".join(pieces(arrays, record))


def pieces(arrays: Iterable[tuple[str, AnyArray]], record: dict[str, Any]) -> Iterator[bytes]:
    """Yield the bytes of a file piece by piece; the record is read when all arrays are written."""
    entries, offset = {}, 0
    for name, array in arrays:
        values = np.ascontiguousarray(array)
        blob = lz4.block.compress(values.reshape(-1).view(np.uint8), store_size=True)
        entries[name] = [offset, len(blob), zlib.crc32(blob), values.dtype.str, values.shape]
        yield blob
        offset += len(blob)
    index = json.dumps({"record": record, "arrays": entries}).encode()
    yield index
    yield np.array([len(index), zlib.crc32(index)], "<i8").tobytes()
    yield _MAGIC


class ArraysFile:
    """File of arrays, on a disk open for no longer than a read. Its index is read at once."""

    def __init__(self, folder: str, name: str) -> None:
        self._store, self._name = store_at(folder), name
        self._opened: OpenFile | None = None
        self.path = self._store.path_of(name)
        with self._open() as file:
            end = file.nbytes - _FOOTER_NBYTES
            footer = self._read(file, end, _FOOTER_NBYTES) if end >= 0 else bytes(_FOOTER_NBYTES)
            nbytes, checksum = np.frombuffer(footer, "<i8", 2).tolist()
            if not footer.endswith(_MAGIC) or not 0 <= nbytes <= end:
                raise CorruptError(f"{self.path}: {file.nbytes} bytes have no valid footer")
            begin = end - nbytes
            index = self._read(file, begin, nbytes)
        if zlib.crc32(index) != checksum:
            raise CorruptError(f"{self.path}: the index at byte {begin} is damaged")
        with reading(self.path, "index"):
            parsed = json.loads(index)
            self.record: dict[str, Any] = parsed["record"]
            self._entries: dict[str, list[Any]] = parsed["arrays"]

    @property
    def digest(self) -> int:
        """Checksum of all arrays; the record does not count."""
        return zlib.crc32(json.dumps(self._entries).encode())

    def _open(self) -> OpenFile:
        if self._opened is not None:
            return self._opened
        (file,) = self._store.open_heads([self._name], _AHEAD_NBYTES)
        if file is None:
            raise MissingError(f"{self.path}: not found")
        if self._store.is_remote:  # without a descriptor
            self._opened = file
        return file

    def _read(self, file: OpenFile, offset: int, nbytes: int) -> bytes:
        data = file.read_some(nbytes, offset)
        if len(data) != nbytes:
            raise CorruptError(f"{self.path}: ends before byte {offset + nbytes}")
        return data

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read(self, name: str) -> AnyArray:
        """Read an array and compare its checksum."""
        offset, nbytes, checksum, dtype, shape = self._entries[name]
        with self._open() as file:
            data = self._read(file, offset, nbytes)
        if zlib.crc32(data) != checksum:
            raise CorruptError(f"{self.path}: {name} at byte {offset} is damaged")
        values = np.empty(math.prod(shape), dtype)
        if values.size:
            values[:] = np.frombuffer(lz4.block.decompress(data), dtype)
        return values.reshape(shape)

    def check(self) -> None:
        """Read all arrays; raises CorruptError for damage."""
        for name in self._entries:
            self.read(name)
