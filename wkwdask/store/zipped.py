"""Files in zips, read in place: paths such as ``/folder/em.ozx|zip:/0/zarr.json``, with zips on
disk, in memory, on a server or in another zip.

A zip is a read-only file system: :mod:`wkwdask.store.files` calls it for such paths, and every
format opens zips through the usual stores. Stored members are read by ranges. Compressed members
are unpacked once, at most to the size that the central directory states.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import time
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from wkwdask.errors import CorruptError, UnsupportedError
from wkwdask.store.local import ABSENT, FolderFile, check_size
from wkwdask.store.lru import LruCache
from wkwdask.store.objects.access import access_of
from wkwdask.store.objects.remote import RemoteStore
from wkwdask.store.paths import ZIP, is_served, os_error
from wkwdask.store.zip_directory import (
    DEFLATED,
    LOCAL_HEADER,
    LOCAL_SIGNATURE,
    STORED,
    Member,
    ZipDirectory,
    read_directory,
)
from wkwdask.store.zip_members import (
    BytesSource,
    Source,
    ZipEntry,
    ZippedFile,
    read_range,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wkwdask.model.store import StoredFile

_KEPT_NBYTES = 128 << 20  # of unpacked members, and small members of zips on servers
# generous length of the extra field of a local header, so that a whole member is one read
_SLACK_NBYTES = 256
_OPEN_MEMBERS = 1 << 22  # of all zips that are kept open
_LEAST_WEIGHT = 1 << 16  # so that at most 64 zips are open
# small files of a zip on a server are kept: mostly documents, which are read at each opening
_DOCUMENT_NBYTES = 64 << 10
_CHECKED_NBYTES = 16 << 20  # that are read at once to check a file
_REMOTE_SECONDS = 60.0  # how long the directory of a zip on a server is trusted


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
        """Return the status of a member or folder, with another inode once the zip was replaced;
        the root has the size of the zip."""
        inode = int.from_bytes(
            blake2b(f"{self.state}{key}".encode(), digest_size=7).digest(), "little"
        )
        mode, nbytes = (
            (stat.S_IFDIR | 0o555, 0 if key else self.state[2])
            if member is None
            else (stat.S_IFREG | 0o444, member.nbytes)
        )
        mtime_ns = self.state[1]
        seconds = mtime_ns / 1e9
        times = {
            "st_atime": seconds,
            "st_mtime": seconds,
            "st_ctime": seconds,
            **dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), mtime_ns),
        }
        return os.stat_result(
            (mode, inode, 0, 1, os.getuid(), os.getgid(), nbytes, *[mtime_ns // 10**9] * 3), times
        )


class ZipFileSystem:
    """Members of zips, with the functions of ``os`` and
    :class:`wkwdask.store.local.LocalFileSystem` that read."""

    def __init__(
        self,
        open_file: Callable[[str], FolderFile],
        stat_of: Callable[[str], os.stat_result],
        realpath: Callable[[str], str],
    ) -> None:
        self._open_file, self._stat_of, self._realpath = open_file, stat_of, realpath

    # --------------------------------------------------------------------------------------------
    # reading

    def open(self, path: str) -> ZippedFile:
        opened, key, member = self._file(path)
        if member.method == STORED:
            return ZippedFile(
                path,
                opened.status(key, member),
                opened.file,
                self._data_offset(path, opened, key, member),
            )
        return ZippedFile(
            path, opened.status(key, member), self._unpacked(path, opened, key, member), 0
        )

    def read_whole(self, path: str, largest: int) -> bytes:
        opened, key, member = self._file(path)
        kept = _kept.get((opened.opened, path))
        if isinstance(kept, BytesSource) and len(kept.data) <= largest:
            return kept.data
        if member.nbytes > largest or member.method != STORED:
            file = self.open(path)
            check_size(file, largest)
            return file.read([(0, file.nbytes)])[0]
        # Local header and data in one read. The length of the extra field of the local header is
        # only known from that header.
        length = LOCAL_HEADER.size + member.name_nbytes + _SLACK_NBYTES + member.nbytes
        raw = read_range(
            opened.file, member.offset, min(member.offset + length, opened.directory.start)
        )
        start = self._remember_data_offset(path, opened, key, member, raw) - member.offset
        data = raw[start : start + member.nbytes]
        if len(data) < member.nbytes:
            data = read_range(
                opened.file, member.offset + start, member.offset + start + member.nbytes
            )
        _check_crc(path, zlib.crc32(data), member)
        if opened.is_on_server and len(data) <= _DOCUMENT_NBYTES:
            _kept.put((opened.opened, path), BytesSource(data))
        return data

    def check_content(self, path: str) -> None:
        """Raise CorruptError if the content of a file contradicts its checksum."""
        _, _, member = self._file(path)
        crc = 0
        with self.open(path) as file:
            for first in range(0, file.nbytes, _CHECKED_NBYTES):
                crc = zlib.crc32(file.read_some(_CHECKED_NBYTES, first), crc)
        _check_crc(path, crc, member)

    def open_stream(self, path: str) -> BinaryIO:
        _, _, member = self._file(path)
        return io.BytesIO(self.read_whole(path, member.nbytes))

    def read_small(
        self, folder: str, names: Iterable[str], max_nbytes: int, memory: memoryview
    ) -> list[tuple[int, int]]:
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
            raise os_error(
                errno.ENOTDIR if above in opened.directory.members else errno.ENOENT, path
            )
        return opened.status(key, member)

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[ZipEntry]]:
        opened, key = self._find(path)
        if key not in opened.directory.folders:
            raise os_error(errno.ENOTDIR if key in opened.directory.members else errno.ENOENT, path)
        folder = path.rstrip("/")
        yield (
            ZipEntry(name, f"{folder}/{name}", is_folder, self.stat)
            for name, is_folder in opened.directory.folders[key].items()
        )

    def realpath(self, path: str) -> str:
        archive, _, inside = path.rpartition(ZIP)
        return f"{archive if _is_on_server(archive) else self._realpath(archive)}{ZIP}{inside}"

    def readlink(self, path: str) -> str:
        raise os_error(errno.EINVAL, path)

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
                opened = _OpenZip(
                    file, directory, (0, 0, directory.nbytes), time.monotonic(), is_on_server=True
                )
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
            raise os_error(
                errno.ENOTDIR
                if key.rpartition("/")[0] in opened.directory.members
                else errno.ENOENT,
                path,
            )
        if member.is_encrypted or member.method not in (STORED, DEFLATED):
            what = (
                "is encrypted"
                if member.is_encrypted
                else f"is compressed by method {member.method}"
            )
            raise UnsupportedError(f"{path}: {what}, expected a file that is stored or deflated")
        return opened, key, member

    def _data_offset(self, path: str, opened: _OpenZip, key: str, member: Member) -> int:
        """Return where the data of a member begin: after its local header, whose extra field can
        differ from that in the central directory."""
        offset = opened.directory.data_offsets.get(key)
        if offset is None:
            raw = read_range(
                opened.file,
                member.offset,
                min(member.offset + LOCAL_HEADER.size, opened.directory.start),
            )
            offset = self._remember_data_offset(path, opened, key, member, raw)
        return offset

    def _remember_data_offset(
        self, path: str, opened: _OpenZip, key: str, member: Member, raw: bytes
    ) -> int:
        if raw[:4] != LOCAL_SIGNATURE or len(raw) < LOCAL_HEADER.size:
            raise CorruptError(
                f"{path}: expected a local header at byte {member.offset} of the zip, found "
                f"{raw[:4].hex() or 'its end'}"
            )
        *_, name_nbytes, extra_nbytes = LOCAL_HEADER.unpack_from(raw)
        offset: int = member.offset + LOCAL_HEADER.size + name_nbytes + extra_nbytes
        if offset + member.packed_nbytes > opened.directory.start:
            raise CorruptError(
                f"{path}: its {member.packed_nbytes} bytes from byte {offset} of the zip on reach "
                "into the central directory"
            )
        opened.directory.data_offsets[key] = offset
        return offset

    def _unpacked(self, path: str, opened: _OpenZip, key: str, member: Member) -> Source:
        """Return the unpacked data of a compressed member, from a cache."""
        source = _kept.get((opened.opened, path))
        if source is None:
            source = unpack(path, opened.file, self._data_offset(path, opened, key, member), member)
            _kept.put((opened.opened, path), source)
        return source

    # --------------------------------------------------------------------------------------------
    # not writing

    def _only_read(self, path: str, *_: object, **__: object) -> NoReturn:
        archive = path.rpartition(ZIP)[0]
        raise UnsupportedError(
            f"{archive}: a zip is read-only; write to a folder, such as image.ome.zarr, and "
            "convert() that to a new .ozx"
        )

    create = mkdir = rmdir = unlink = remove_tree = replace = exchange = link = set_permissions = (
        free
    ) = fsync = guarded = is_writable = _only_read

    def symlink(self, target: str, path: str) -> NoReturn:
        self._only_read(path)


def _check_crc(path: str, crc: int, member: Member) -> None:
    if crc != member.crc:
        raise CorruptError(
            f"{path}: has the checksum {crc:08x}, expected {member.crc:08x} according to the zip"
        )


def forget_zip(archive: str) -> None:
    """Forget the directory of a zip on a server that this process has replaced."""
    _zips.discard(archive)


def _is_on_server(archive: str) -> bool:
    return is_served(archive) and ZIP not in archive


_zips: LruCache[_OpenZip] = LruCache(
    _OPEN_MEMBERS, lambda opened: max(_LEAST_WEIGHT, len(opened.directory.members))
)
_kept: LruCache[Source] = LruCache(
    _KEPT_NBYTES, lambda source: len(source.data) if isinstance(source, BytesSource) else 1 << 20
)
