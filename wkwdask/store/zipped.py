"""Files in zips, read in place: paths such as ``/folder/em.ozx|zip:/0/zarr.json``, with zips on disk, in memory, on a server or in another zip.

A zip is a read-only file system: :mod:`wkwdask.store.files` calls it for such paths, and every format opens zips through the usual stores. Stored members
are read by ranges. Compressed members are unpacked once, at most to the size that the central directory states.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import tempfile
import time
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, BinaryIO, NoReturn, Protocol

from wkwdask.errors import CorruptError, TruncatedError, UnsupportedError
from wkwdask.store.access import access_of
from wkwdask.store.local import ABSENT, LocalFile, OpenFile, check_size
from wkwdask.store.lru import LruCache
from wkwdask.store.paths import ZIP, is_served
from wkwdask.store.remote import RemoteStore
from wkwdask.store.zip_directory import DEFLATED, LOCAL_HEADER, LOCAL_SIGNATURE, STORED, Member, ZipDirectory, read_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from wkwdask.model.store import StoredFile

_MEMORY_NBYTES = 64 << 20  # a larger unpacked member goes to a temporary file
_KEPT_NBYTES = 128 << 20  # of unpacked members, and small members of zips on servers
_MAX_RATIO = 200  # blocks and skeletons compress by about 100 at most; a higher ratio above _MEMORY_NBYTES is a zip bomb
_SLACK_NBYTES = 256  # generous length of the extra field of a local header, so that a whole member is one read
_OPEN_ZIPS = 16
_PIECE_NBYTES = 1 << 20
_DOCUMENT_NBYTES = 64 << 10  # small files of a zip on a server are kept: mostly documents, which are read at each opening
_REMOTE_SECONDS = 60.0  # how long the directory of a zip on a server is trusted


class _Source(Protocol):
    """Open file that several threads read."""

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None: ...
    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool: ...


class _Bytes:
    """Unpacked member in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.data[start:stop] for start, stop in ranges]

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        memoryview(memory.data)[:] = self.data[offset : offset + memory.nbytes]
        return True


class ZippedFile(OpenFile):
    """Member of a zip, see :class:`wkwdask.model.store.StoredFile`."""

    __slots__ = ("_source", "_start")

    def __init__(self, path: str, status: os.stat_result, source: _Source, start: int) -> None:
        super().__init__(path, status)
        self._source, self._start = source, start

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for start, stop in ranges:
            self._check_end(start, stop - start)
        found = self._source.read([(self._start + start, self._start + stop) for start, stop in ranges])
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name)
        return found

    def _read_one(self, start: int, stop: int) -> bytes:
        return self.read([(start, stop)])[0]

    def read_some(self, nbytes: int, offset: int) -> bytes:
        stop = min(offset + nbytes, self.nbytes)
        return self._read_one(offset, stop) if stop > offset else b""

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        self._check_end(offset, memory.nbytes)
        return self._source.read_into(memory, self._start + offset)

    def _check_end(self, offset: int, nbytes: int) -> None:
        if offset + nbytes > self.nbytes:  # checked before allocating: a damaged table may ask for terabytes
            raise TruncatedError(f"{self.name}: ends at byte {self.nbytes}, expected {nbytes} bytes from byte {offset} on")

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


@dataclass(frozen=True, slots=True)
class _OpenZip:
    file: StoredFile
    directory: ZipDirectory
    state: tuple[int, int, int]
    """Inode, modification time [ns] and size of the zip."""
    opened: float
    """Time of opening [s], which names this opening in the cache."""
    is_on_server: bool = False

    def status(self, key: str, member: Member | None) -> os.stat_result:
        """Return the status of a member or folder, with another inode once the zip was replaced; the root has the size of the zip."""
        inode = int.from_bytes(blake2b(f"{self.state}{key}".encode(), digest_size=7).digest(), "little")
        mode, nbytes = (stat.S_IFDIR | 0o555, 0 if key else self.state[2]) if member is None else (stat.S_IFREG | 0o444, member.nbytes)
        mtime_ns = self.state[1]
        seconds = mtime_ns / 1e9
        times = {"st_atime": seconds, "st_mtime": seconds, "st_ctime": seconds, **dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), mtime_ns)}
        return os.stat_result((mode, inode, 0, 1, os.getuid(), os.getgid(), nbytes, *[mtime_ns // 10**9] * 3), times)


class ZipFileSystem:
    """Members of zips, with the functions of ``os`` and :class:`wkwdask.store.local.LocalFileSystem` that read."""

    def __init__(self, open_file: Callable[[str], OpenFile], stat_of: Callable[[str], os.stat_result], realpath: Callable[[str], str]) -> None:
        self._open_file, self._stat_of, self._realpath = open_file, stat_of, realpath

    # -------------------------------------------------------------------------------------------- reading

    def open(self, path: str) -> ZippedFile:
        opened, key, member = self._file(path)
        if member.method == STORED:
            return ZippedFile(path, opened.status(key, member), opened.file, self._data_offset(path, opened, key, member))
        return ZippedFile(path, opened.status(key, member), self._unpacked(path, opened, key, member), 0)

    def read_whole(self, path: str, largest: int) -> bytes:
        opened, key, member = self._file(path)
        kept = _kept.get((opened.opened, path))
        if isinstance(kept, _Bytes) and len(kept.data) <= largest:
            return kept.data
        if member.nbytes > largest or member.method != STORED:
            file = self.open(path)
            check_size(file, largest)
            return file.read([(0, file.nbytes)])[0]
        # Local header and data in one read. The length of the extra field of the local header is only known from that header.
        length = LOCAL_HEADER.size + member.name_nbytes + _SLACK_NBYTES + member.nbytes
        raw = _read(opened.file, member.offset, min(member.offset + length, opened.directory.start))
        start = self._remember_data_offset(path, opened, key, member, raw) - member.offset
        data = raw[start : start + member.nbytes]
        if len(data) < member.nbytes:
            data = _read(opened.file, member.offset + start, member.offset + start + member.nbytes)
        if zlib.crc32(data) != member.crc:
            raise CorruptError(f"{path}: has the checksum {zlib.crc32(data):08x}, expected {member.crc:08x} according to the zip")
        if opened.is_on_server and len(data) <= _DOCUMENT_NBYTES:
            _kept.put((opened.opened, path), _Bytes(data))
        return data

    def open_stream(self, path: str) -> BinaryIO:
        _, _, member = self._file(path)
        return io.BytesIO(self.read_whole(path, member.nbytes))

    def read_small(self, folder: str, names: Iterable[str], max_nbytes: int, memory: memoryview) -> list[tuple[int, int]]:
        places, end = [], 0
        for name in names:
            try:
                with self.open(f"{folder}/{name}") as file:
                    data = file.read_some(max_nbytes, 0)
            except FileNotFoundError:
                places.append((end, ABSENT))
                continue
            memory[end : end + len(data)] = data
            places.append((end, len(data)))
            end += len(data)
            if end + max_nbytes > len(memory):
                break
        return places

    def stat(self, path: str, *, follow_symlinks: bool = True) -> os.stat_result:
        opened, key = self._find(path)
        member = opened.directory.members.get(key)
        if member is None and key not in opened.directory.folders:
            above = key.rpartition("/")[0]
            raise _error(errno.ENOTDIR if above in opened.directory.members else errno.ENOENT, path)
        return opened.status(key, member)

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[ZipEntry]]:
        opened, key = self._find(path)
        if key not in opened.directory.folders:
            raise _error(errno.ENOTDIR if key in opened.directory.members else errno.ENOENT, path)
        folder = path.rstrip("/")
        yield (ZipEntry(name, f"{folder}/{name}", is_folder, self.stat) for name, is_folder in opened.directory.folders[key].items())

    def realpath(self, path: str) -> str:
        archive, _, inside = path.rpartition(ZIP)
        return f"{archive if _is_on_server(archive) else self._realpath(archive)}{ZIP}{inside}"

    def readlink(self, path: str) -> str:
        raise _error(errno.EINVAL, path)

    def comment(self, path: str) -> bytes:
        """Return the comment of the zip of a path."""
        return self._find(path)[0].directory.comment

    def _find(self, path: str) -> tuple[_OpenZip, str]:
        """Return the zip of a path, opened, and the name of the member."""
        archive, _, inside = path.rpartition(ZIP)
        key = inside.strip("/")
        if _is_on_server(archive):
            opened = _zips.get(archive)
            if opened is None or time.monotonic() - opened.opened > _REMOTE_SECONDS:
                folder, _, name = archive.rpartition("/")
                file: StoredFile = RemoteStore(folder, access=access_of(folder)).open(name)
                directory = read_directory(file)
                directory.infer_data_offsets()
                opened = _OpenZip(file, directory, (0, 0, directory.nbytes), time.monotonic(), is_on_server=True)
                _zips.put(archive, opened)
            return opened, key
        status = self._stat_of(archive)
        state = status.st_ino, status.st_mtime_ns, status.st_size
        opened = _zips.get(archive)
        if opened is None or opened.state != state:
            file = self._open_file(archive)
            opened = _OpenZip(file, read_directory(file), file.state, time.monotonic())
            _zips.put(archive, opened)
        return opened, key

    def _file(self, path: str) -> tuple[_OpenZip, str, Member]:
        opened, key = self._find(path)
        member = opened.directory.members.get(key)
        if member is None:
            if key in opened.directory.folders:
                raise CorruptError(f"{path}: not a regular file")
            raise _error(errno.ENOTDIR if key.rpartition("/")[0] in opened.directory.members else errno.ENOENT, path)
        if member.is_encrypted or member.method not in (STORED, DEFLATED):
            what = "is encrypted" if member.is_encrypted else f"is compressed by method {member.method}"
            raise UnsupportedError(f"{path}: {what}, expected a file that is stored or deflated")
        return opened, key, member

    def _data_offset(self, path: str, opened: _OpenZip, key: str, member: Member) -> int:
        """Return where the data of a member begin: after its local header, whose extra field can differ from that in the central directory."""
        offset = opened.directory.data_offsets.get(key)
        if offset is None:
            raw = _read(opened.file, member.offset, min(member.offset + LOCAL_HEADER.size, opened.directory.start))
            offset = self._remember_data_offset(path, opened, key, member, raw)
        return offset

    def _remember_data_offset(self, path: str, opened: _OpenZip, key: str, member: Member, raw: bytes) -> int:
        if raw[:4] != LOCAL_SIGNATURE or len(raw) < LOCAL_HEADER.size:
            raise CorruptError(f"{path}: expected a local header at byte {member.offset} of the zip, found {raw[:4].hex() or 'its end'}")
        *_, name_nbytes, extra_nbytes = LOCAL_HEADER.unpack_from(raw)
        offset: int = member.offset + LOCAL_HEADER.size + name_nbytes + extra_nbytes
        if offset + member.packed_nbytes > opened.directory.start:
            raise CorruptError(f"{path}: its {member.packed_nbytes} bytes from byte {offset} of the zip on reach into the central directory")
        opened.directory.data_offsets[key] = offset
        return offset

    def _unpacked(self, path: str, opened: _OpenZip, key: str, member: Member) -> _Source:
        """Return the unpacked data of a compressed member, from a cache."""
        cached = _kept.get((opened.opened, path))
        if cached is not None:
            return cached
        max_nbytes = _MEMORY_NBYTES + _MAX_RATIO * member.packed_nbytes
        if member.nbytes > max_nbytes:
            raise CorruptError(f"{path}: unpacks from {member.packed_nbytes} to {member.nbytes} bytes, expected at most {max_nbytes}")
        start = self._data_offset(path, opened, key, member)
        pieces = _unpack(path, opened.file, start, member)
        source: _Source
        if member.nbytes <= _MEMORY_NBYTES:
            source = _Bytes(b"".join(pieces))
        else:
            # Read by position, not through Python's file object: forked processes would share its position.
            with tempfile.TemporaryFile() as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                source = LocalFile(path, os.dup(file.fileno()))
        _kept.put((opened.opened, path), source)
        return source

    # -------------------------------------------------------------------------------------------- not writing

    def _only_read(self, path: str, *_: object, **__: object) -> NoReturn:
        archive = path.rpartition(ZIP)[0]
        raise UnsupportedError(f"{archive}: a zip is read-only; write to a folder, such as image.ome.zarr, and convert() that to a new .ozx")

    create = mkdir = rmdir = unlink = remove_tree = replace = exchange = link = set_permissions = free = fsync = guarded = is_writable = _only_read

    def symlink(self, target: str, path: str) -> NoReturn:
        self._only_read(path)


def _is_on_server(archive: str) -> bool:
    return is_served(archive) and ZIP not in archive


def _read(file: StoredFile, start: int, stop: int) -> bytes:
    found = file.read([(start, stop)]) if stop > start else [b""]
    if found is None:
        raise _error(errno.ENOENT, file.name)
    return found[0]


def _unpack(path: str, file: StoredFile, start: int, member: Member) -> Iterator[bytes]:
    """Yield the unpacked bytes of a member, at most as many as the central directory states."""
    unpacker, crc, left = zlib.decompressobj(-zlib.MAX_WBITS), 0, member.nbytes
    for offset in range(0, member.packed_nbytes, _PIECE_NBYTES):
        packed = _read(file, start + offset, start + min(offset + _PIECE_NBYTES, member.packed_nbytes))
        while packed and not unpacker.eof:
            try:
                piece = unpacker.decompress(packed, min(left + 1, _PIECE_NBYTES))
            except zlib.error as error:
                raise CorruptError(f"{path}: not readable as deflated data: {error}") from None
            left, crc, packed = left - len(piece), zlib.crc32(piece, crc), unpacker.unconsumed_tail
            if left < 0:
                raise CorruptError(f"{path}: unpacks to more than {member.nbytes} bytes, which the zip states")
            if not piece and not packed:
                break
            yield piece
    if left or not unpacker.eof or crc != member.crc:
        raise CorruptError(f"{path}: unpacks to {member.nbytes - left} bytes with the checksum {crc:08x}, expected {member.nbytes} with {member.crc:08x}")


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


_zips: LruCache[_OpenZip] = LruCache(_OPEN_ZIPS)
_kept: LruCache[_Source] = LruCache(_KEPT_NBYTES, lambda source: len(source.data) if isinstance(source, _Bytes) else 1 << 20)
