"""Open members of zips: stored ones are sections of the zip, compressed ones are unpacked, at most
to the size that the central directory states."""

from __future__ import annotations

import errno
import os
import tempfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.store.local import FolderFile, LocalFile
from wkwdask.store.paths import os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wkwdask.array_types import ByteArray
    from wkwdask.model.store import StoredFile
    from wkwdask.store.zip_directory import Member

_MEMORY_NBYTES = 64 << 20  # a larger unpacked member goes to a temporary file
# blocks and skeletons compress by about 100 at most; a higher ratio above _MEMORY_NBYTES is a zip
# bomb
_MAX_RATIO = 200
_PIECE_NBYTES = 1 << 20


class Source(Protocol):
    """Open file that several threads read."""

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None: ...
    def read_into(self, memory: ByteArray, offset: int) -> bool: ...


class BytesSource:
    """Content of a member in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.data[start:stop] for start, stop in ranges]

    def read_into(self, memory: ByteArray, offset: int) -> bool:
        memoryview(memory.data)[:] = self.data[offset : offset + memory.nbytes]
        return True


class ZippedFile(FolderFile):
    """Member of a zip, see :class:`wkwdask.model.store.StoredFile`."""

    __slots__ = ("_source", "_start")

    def __init__(self, path: str, status: os.stat_result, source: Source, start: int) -> None:
        super().__init__(path, status)
        self._source, self._start = source, start

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for start, stop in ranges:
            self._check_end(start, stop - start)
        found = self._source.read(
            [(self._start + start, self._start + stop) for start, stop in ranges]
        )
        if found is None:
            raise os_error(errno.ENOENT, self.name)
        return found

    def _read_one(self, start: int, stop: int) -> bytes:
        return self.read([(start, stop)])[0]

    def read_some(self, nbytes: int, offset: int) -> bytes:
        stop = min(offset + nbytes, self.nbytes)
        return self._read_one(offset, stop) if stop > offset else b""

    def read_into(self, memory: ByteArray, offset: int) -> bool:
        self._check_end(offset, memory.nbytes)
        return self._source.read_into(memory, self._start + offset)

    def _check_end(self, offset: int, nbytes: int) -> None:
        if offset + nbytes > self.nbytes:
            # checked before allocating: a damaged table may ask for terabytes
            raise TruncatedError(
                f"{self.name}: ends at byte {self.nbytes}, expected {nbytes} bytes from byte "
                f"{offset} on"
            )

    def close(self) -> None:
        """The zip stays open, for other members."""


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """Name in a folder, see :class:`wkwdask.model.store.StoredEntry`."""

    name: str
    path: str
    _is_folder: bool
    _stat: Callable[[str], os.stat_result]

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is_folder

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return not self._is_folder

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._stat(self.path)


def unpack(path: str, file: StoredFile, start: int, member: Member) -> Source:
    """Unpack a compressed member whose data begin at an offset."""
    max_nbytes = _MEMORY_NBYTES + _MAX_RATIO * member.packed_nbytes
    if member.nbytes > max_nbytes:
        raise CorruptError(
            f"{path}: unpacks from {member.packed_nbytes} to {member.nbytes} bytes, expected at "
            f"most {max_nbytes}"
        )
    pieces = _unpack(path, file, start, member)
    if member.nbytes <= _MEMORY_NBYTES:
        return BytesSource(b"".join(pieces))
    # Read by position, not through Python's file object: forked processes would share its position.
    with tempfile.TemporaryFile() as unpacked:
        for piece in pieces:
            unpacked.write(piece)
        unpacked.flush()
        return LocalFile(path, os.dup(unpacked.fileno()))


def read_range(file: StoredFile, start: int, stop: int) -> bytes:
    """Read a range of a zip; raises FileNotFoundError if it was removed from its server."""
    found = file.read([(start, stop)]) if stop > start else [b""]
    if found is None:
        raise os_error(errno.ENOENT, file.name)
    return found[0]


def _unpack(path: str, file: StoredFile, start: int, member: Member) -> Iterator[bytes]:
    """Yield the unpacked bytes of a member, at most as many as the central directory states."""
    unpacker, crc, left = zlib.decompressobj(-zlib.MAX_WBITS), 0, member.nbytes
    for offset in range(0, member.packed_nbytes, _PIECE_NBYTES):
        packed = read_range(
            file, start + offset, start + min(offset + _PIECE_NBYTES, member.packed_nbytes)
        )
        while not unpacker.eof:
            try:
                piece = unpacker.decompress(packed, min(left + 1, _PIECE_NBYTES))
            except zlib.error as error:
                raise CorruptError(f"{path}: not readable as deflated data: {error}") from None
            left, crc, packed = left - len(piece), zlib.crc32(piece, crc), unpacker.unconsumed_tail
            if left < 0:
                raise CorruptError(
                    f"{path}: unpacks to more than {member.nbytes} bytes, which the zip states"
                )
            if not piece and not packed:
                break  # the next packed bytes are needed
            yield piece
    if left or not unpacker.eof or crc != member.crc:
        raise CorruptError(
            f"{path}: unpacks to {member.nbytes - left} bytes with the checksum {crc:08x}, "
            f"expected {member.nbytes} with {member.crc:08x}"
        )
