"""Buffer for a new file that is written front to back: few large writes are much faster than many
small ones."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.array_types import ByteArray
    from wkwdask.model.store import NewFile, StoredFile

MEMORY_NBYTES = 8 << 20  # buffer of an open file

_REPEATED_NBYTES = 1 << 18
_DIRECT_NBYTES = 1 << 20  # larger data are written without a copy in the buffer
_ALIGNMENT = 64  # of pieces: a cache line
_MAX_FREE = 16  # buffers that are kept for the next files: fresh memory costs page faults
_free: list[ByteArray] = []


class FileBuffer:
    """Buffer that collects bytes and writes them in large pieces; without a file it only counts
    them.

    ``offset`` is that of the first byte in the file. With ``has_checksum``, ``checksum`` is the
    CRC-32 of all written bytes.
    """

    def __init__(
        self,
        open_file: Callable[[], NewFile] | None,
        offset: int = 0,
        *,
        has_checksum: bool = False,
    ) -> None:
        self._open_file = open_file
        self._offset = offset
        self._has_checksum = has_checksum
        self.checksum = 0
        self._used = 0
        self._memory = _borrow_memory()
        self._file: NewFile | None = None

    @property
    def end(self) -> int:
        """Offset of the next byte in the file."""
        return self._offset + self._used

    @property
    def buffered_nbytes(self) -> int:
        """Number of bytes that are not yet written."""
        return self._used

    @property
    def file(self) -> NewFile:
        """New file, created on first use."""
        if self._file is None:
            assert self._open_file is not None
            self._file = self._open_file()
        return self._file

    def reserve(self, nbytes: int, min_nbytes: int | None = None) -> ByteArray:
        """Return memory for the next ``nbytes`` bytes, or for fewer but at least ``min_nbytes``;
        :meth:`advance` reports how many were filled."""
        min_nbytes = nbytes if min_nbytes is None else min_nbytes
        if self._used + min_nbytes > self._memory.size:
            self.flush()
            if min_nbytes > self._memory.size:
                self._memory = np.empty(min_nbytes, np.uint8)
        return self._memory[self._used : self._used + nbytes]

    def advance(self, nbytes: int) -> None:
        """Count bytes that were filled in."""
        self._used += nbytes

    def append(self, data: ByteArray) -> None:
        """Append some bytes."""
        if data.size >= _DIRECT_NBYTES and not self._has_checksum and self._open_file is not None:
            self.flush()
            self.file.write(data, self._offset)
            self._offset += data.size
            return
        while data.size:
            room = self.reserve(data.size, 1)
            room[...] = data[: room.size]
            self.advance(room.size)
            data = data[room.size :]

    def repeat(self, data: ByteArray, count: int) -> None:
        """Append the same bytes several times."""
        per_piece = max(1, _REPEATED_NBYTES // max(1, data.size))
        piece = np.tile(data, min(count, per_piece))
        while count > 0:
            now = min(count, per_piece)
            self.append(piece[: now * data.size])
            count -= now

    def copy(self, source: StoredFile, offset: int, nbytes: int) -> None:
        """Append a byte range of an open file."""
        while nbytes:
            room = self.reserve(nbytes, 1)
            source.read_into(room, offset)
            self.advance(room.size)
            offset, nbytes = offset + room.size, nbytes - room.size

    def flush(self) -> None:
        """Write the buffered bytes."""
        if self._used:
            if self._has_checksum:
                self.checksum = zlib.crc32(self._memory[: self._used].data, self.checksum)
            if self._open_file is not None:
                self.file.write(self._memory[: self._used], self._offset)
            self._offset += self._used
            self._used = 0

    def close(self) -> NewFile:
        """Write the last bytes and return the file, which is still to be published."""
        self.flush()
        self.release()
        return self.file

    def discard(self) -> None:
        """Remove the file."""
        self.release()
        if self._file is not None:
            self._file.discard()

    def release(self) -> None:
        """Keep the memory for the next files."""
        _return_memory(self._memory)
        self._memory = np.empty(0, np.uint8)


class MemoryBuffer(FileBuffer):
    """Buffer that keeps all bytes in memory."""

    def __init__(self) -> None:
        super().__init__(None)

    @property
    def data(self) -> ByteArray:
        """All bytes, valid until :meth:`release`."""
        return self._memory[: self._used]

    def reserve(self, nbytes: int, min_nbytes: int | None = None) -> ByteArray:
        del min_nbytes
        if self._used + nbytes > self._memory.size:
            memory = np.empty(max(2 * self._memory.size, self._used + nbytes), np.uint8)
            memory[: self._used] = self.data
            self.release()
            self._memory = memory
        return self._memory[self._used : self._used + nbytes]

    def flush(self) -> None:
        """Keep the bytes."""


class Arena:
    """Memory from which chunks reserve pieces, and which is released as a whole."""

    def __init__(self) -> None:
        self._memories: list[ByteArray] = []
        self._used = 0

    def reserve(self, nbytes: int) -> ByteArray:
        """Return memory for a chunk, valid until :meth:`release`."""
        if nbytes > MEMORY_NBYTES:
            return np.empty(nbytes, np.uint8)
        if not self._memories or self._used + nbytes > MEMORY_NBYTES:
            self._memories.append(_borrow_memory())
            self._used = 0
        piece = self._memories[-1][self._used : self._used + nbytes]
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return piece

    def release(self) -> None:
        """Keep the memory for the next files."""
        while self._memories:
            _return_memory(self._memories.pop())


def _return_memory(memory: ByteArray) -> None:
    if memory.size == MEMORY_NBYTES and len(_free) < _MAX_FREE:
        _free.append(memory)


def _borrow_memory() -> ByteArray:
    try:
        return _free.pop()
    except IndexError:
        # not asked for before, since another thread could take the last one in between
        return np.empty(MEMORY_NBYTES, np.uint8)
