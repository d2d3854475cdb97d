"""Files on a local or shared file system: fast reads, durable writes.

Files are never memory-mapped here: a file that shrinks under a mapping kills the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from wkwdask.errors import CorruptError, MissingError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wkwdask.array_types import ByteArray, IntArray
    from wkwdask.model.store import StoredFile

_MODE = 0o666  # less the umask; setgid folders and default ACLs apply
# O_PATH needs search permission only, not read permission
_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# fails on a symbolic link, does not wait for the writer of a pipe
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
ABSENT, OPEN_SEPARATELY = -1, 0
"""Special sizes in a batch read: the file is absent, or must be opened by itself (empty, no regular
file, a link, or not readable)."""
_AT_FDCWD = -100  # fcntl.h: relative paths start at the current folder
_RENAME_EXCHANGE = 2  # renameat2(2)
_WRITE_BACK_NBYTES = 1 << 20
_SYNC_FILE_RANGE_WRITE = 2  # sync_file_range(2)
_COPIED_NBYTES = 8 << 20
_FICLONE = 0x40049409  # ioctl_ficlone(2)
_COPIED_ON_TRIAL = 4096
_CANNOT_COPY = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
_sync_file_range = (
    getattr(ctypes.CDLL(None), "sync_file_range", None)
    if sys.platform.startswith("linux")
    else None
)


class FolderFile(ABC):
    """File of a folder, open for reading, see :class:`wkwdask.model.store.OpenFile`."""

    __slots__ = ("name", "nbytes", "status")

    def __init__(self, path: str, status: os.stat_result) -> None:
        self.name = path
        self.status = status
        self.nbytes: int = status.st_size

    @property
    def state(self) -> tuple[int, int, int]:
        """Inode, modification time [ns] and size [bytes]."""
        return self.status.st_ino, self.status.st_mtime_ns, self.nbytes

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self._read_one(start, stop) for start, stop in ranges]

    def _read_one(self, start: int, stop: int) -> bytes:
        if stop > self.nbytes:  # checked before allocating: a damaged table may ask for terabytes
            raise TruncatedError(
                f"{self.name}: ends at byte {self.nbytes}, expected {stop - start} bytes from byte "
                f"{start} on"
            )
        data = self.read_some(stop - start, start)
        while len(data) < stop - start:
            more = self.read_some(stop - start - len(data), start + len(data))
            if not more:
                raise TruncatedError(
                    f"{self.name}: ends at byte {start + len(data)}, expected {stop - start} bytes "
                    f"from byte {start} on"
                )
            data += more
        return data

    @property
    def descriptor(self) -> int | None:
        """File descriptor for compiled loops; None for a file in memory."""
        return None

    @abstractmethod
    def read_some(self, nbytes: int, offset: int) -> bytes:
        """Read bytes at an offset; fewer at the end of the file."""

    def read_end(self, nbytes: int) -> bytes:
        """Read the last bytes; fewer if the file is shorter."""
        return self._read_one(max(0, self.nbytes - nbytes), self.nbytes)

    @abstractmethod
    def read_into(self, memory: ByteArray, offset: int) -> bool:
        """Fill memory with the bytes at an offset."""

    def read_ranges(self, ranges: IntArray, memory: ByteArray) -> None:
        """Read many ranges; each row is (offset in file, offset in memory, length)."""
        for offset, start, length in ranges.tolist():
            self.read_into(memory[start : start + length], offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...


def check_size(file: FolderFile, largest: int) -> None:
    """Raise CorruptError for a file larger than ``largest`` bytes."""
    if file.nbytes > largest:
        raise CorruptError(f"{file.name}: has {file.nbytes} bytes, expected at most {largest}")


class LocalFile(FolderFile):
    __slots__ = ("_fd",)

    def __init__(self, path: str, fd: int) -> None:
        self._fd = fd
        super().__init__(path, os.fstat(fd))

    @property
    def descriptor(self) -> int:
        return self._fd

    def read_some(self, nbytes: int, offset: int) -> bytes:
        return os.pread(self._fd, nbytes, offset)

    def read_into(self, memory: ByteArray, offset: int) -> bool:
        view, done = memoryview(memory.data), 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], offset + done)
            if count == 0:
                raise TruncatedError(
                    f"{self.name}: ends at byte {offset + done}, expected {len(view) - done} more "
                    "bytes"
                )
            done += count
        return True

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class LocalOutput:
    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def append(self, data: bytes | memoryview) -> int:
        """Write bytes at the end of a file opened for appending; return the number of bytes
        written."""
        try:
            return os.write(self._fd, data)
        except OSError as error:  # a full disk or quota, whose error has no name
            raise OSError(error.errno, error.strerror, self._path) from None

    def write(self, data: memoryview, offset: int, *, flush: bool = False) -> None:
        """Write bytes at an offset. With ``flush``, write-back to disk starts at once."""
        while data:
            count = os.pwrite(self._fd, data, offset)
            if flush and count >= _WRITE_BACK_NBYTES:
                self.start_writing_back(count, offset)
            data, offset = data[count:], offset + count

    def copy_from(self, source: StoredFile, nbytes: int, *, flush: bool) -> None:
        """Write the first bytes of an open file, inside the kernel if possible."""
        done = 0
        while done < nbytes:
            part_nbytes = min(_COPIED_NBYTES, nbytes - done)
            count = (
                self._copy_range(source, part_nbytes, done) if isinstance(source, LocalFile) else 0
            )
            if not count:
                parts = source.read([(done, done + part_nbytes)])
                if parts is None:
                    raise MissingError(f"{source.name}: not found")
                self.write(memoryview(parts[0]), done)
                count = part_nbytes
            if flush and count >= _WRITE_BACK_NBYTES:
                self.start_writing_back(count, done)
            done += count

    def _copy_range(self, source: LocalFile, nbytes: int, offset: int) -> int:
        """Copy bytes inside the kernel; return 0 if the file systems do not support it, or the
        source has ended."""
        if not hasattr(os, "copy_file_range"):
            return 0
        try:
            return os.copy_file_range(source._fd, self._fd, nbytes, offset, offset)
        except OSError as error:
            if error.errno in _CANNOT_COPY:
                return 0
            raise

    def start_writing_back(self, nbytes: int, offset: int = 0) -> None:
        """Start writing bytes to disk, to shorten a later flush."""
        if _sync_file_range is not None:
            _sync_file_range(
                self._fd, ctypes.c_int64(offset), ctypes.c_int64(nbytes), _SYNC_FILE_RANGE_WRITE
            )

    def sync(self) -> None:
        os.fsync(self._fd)

    def set_nbytes(self, nbytes: int) -> None:
        os.ftruncate(self._fd, nbytes)

    def set_permissions(self, like: os.stat_result) -> None:
        _set_permissions(self._fd, like)

    def status(self) -> os.stat_result:
        return os.fstat(self._fd)

    def link(self, path: str) -> bool | None:
        """Name a file without a name; False if the name is taken, None if the system cannot."""
        try:
            # linkat(2) follows this link only with a descriptor, which an absolute path ignores.
            os.link(f"/proc/self/fd/{self._fd}", path, src_dir_fd=self._fd)
        except OSError as error:
            # a server that lost a reply may have made the name
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(self.status(), os.stat(path)):
                    return True
            return False if isinstance(error, FileExistsError) else None
        return True

    def close(self) -> None:
        # Forget the descriptor before closing it. In the other order, after a Ctrl-C in between, a
        # second close could close another file of the same number.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def can_share_blocks(folder: str) -> bool:
    """Check whether copies of files share their blocks, as on Btrfs and some XFS, by copying a file
    without a name."""
    try:
        with (
            tempfile.TemporaryFile(dir=folder) as source,
            tempfile.TemporaryFile(dir=folder) as copy,
        ):
            source.write(bytes(_COPIED_ON_TRIAL))
            source.flush()
            fcntl.ioctl(copy, _FICLONE, source.fileno())
    except OSError:
        return False
    return True


class LocalFileSystem:
    def open(self, path: str) -> LocalFile:
        # O_NONBLOCK: opening a pipe does not wait for its writer
        file = LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        if not stat.S_ISREG(file.status.st_mode):
            file.close()
            raise CorruptError(f"{path}: not a regular file")
        return file

    def read_whole(self, path: str, largest: int) -> bytes:
        """Read a whole file with as few calls as possible; other errors than those of ``os.open``
        are those of :class:`LocalFile`."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            nbytes = status.st_size
            if stat.S_ISREG(status.st_mode) and nbytes <= largest:
                data = os.pread(fd, nbytes, 0)
                if len(data) == nbytes:
                    return data
        finally:
            os.close(fd)
        with self.open(path) as file:
            check_size(file, largest)
            return file.read([(0, file.nbytes)])[0]

    def create(self, path: str, *, exclusive: bool = True, append: bool = False) -> LocalOutput:
        flags = (
            os.O_WRONLY
            | os.O_CREAT
            | os.O_CLOEXEC
            | (os.O_EXCL if exclusive else 0)
            | (os.O_APPEND if append else 0)
        )
        return LocalOutput(path, os.open(path, flags, _MODE))

    def create_unnamed(self, folder: str) -> LocalOutput | None:
        """Create a file without a name, which is deleted unless it is linked.

        Return None if the file system does not support it.
        """
        try:
            fd = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, _MODE)
        except (AttributeError, OSError):  # no such flag on this system
            return None
        return LocalOutput(folder, fd)

    def read_small(
        self, folder: str, names: Iterable[str], max_nbytes: int, memory: memoryview
    ) -> list[tuple[int, int]]:
        places, end = [], 0
        parent = os.open(folder, _FOLDER_FLAGS)
        try:
            for name in names:
                size = _read_small(parent, name, memory[end : end + max_nbytes])
                places.append((end, size))
                end += max(size, 0)
                if end + max_nbytes > len(memory):
                    break
            if all(size != ABSENT for _, size in places) or os.path.samestat(
                os.fstat(parent), os.stat(folder)
            ):
                return places
        finally:
            os.close(parent)
        # The folder was replaced during the read, and the old one may be half deleted: files that
        # are absent in it may exist in the new one.
        return [(offset, OPEN_SEPARATELY if size == ABSENT else size) for offset, size in places]

    def remove_tree(self, path: str) -> None:
        """Remove as much as possible of a folder tree; raises the first error."""
        errors: list[BaseException] = []
        if sys.version_info >= (3, 12):
            shutil.rmtree(path, onexc=lambda _, __, error: errors.append(error))
        else:
            shutil.rmtree(path, onerror=lambda _, __, error: errors.append(error[1]))
        if errors:
            raise errors[0]

    def exchange(self, first: str, second: str) -> bool:
        if not sys.platform.startswith("linux"):
            return False
        try:
            renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        except (AttributeError, OSError):
            return False
        if (
            renameat2(
                _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
            )
            == 0
        ):
            return True
        code = ctypes.get_errno()
        if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            return False
        raise OSError(code, os.strerror(code), second)

    def set_permissions(self, path: str, like: os.stat_result) -> None:
        _set_permissions(path, like)

    def free(self, path: str) -> tuple[int, int | None]:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None

    def fsync(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
                raise
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def guarded(self, path: str) -> Iterator[None]:
        fd = _open_locked(path)
        try:
            yield
        finally:
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            finally:
                os.close(fd)


def _open_locked(path: str) -> int:
    """Create and lock a file; return its descriptor, which keeps the lock until it is closed."""
    while True:
        # NFS implements flock as a write lock on the server, which needs a file open for writing.
        fd = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _MODE
        )
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX)
            # The previous holder unlinks the file before it unlocks. A lock on an unlinked file
            # excludes nobody: check that the path still names this file.
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _read_small(parent: int, name: str, memory: memoryview) -> int:
    """Read a file up to the length of the memory; return its size."""
    try:
        file = os.open(name, _FILE_FLAGS, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError:
        return OPEN_SEPARATELY
    try:
        return os.preadv(file, [memory], 0)
    except OSError:
        return OPEN_SEPARATELY
    finally:
        os.close(file)


def _set_permissions(target: int | str, like: os.stat_result) -> None:
    with contextlib.suppress(PermissionError):
        os.chown(target, -1, like.st_gid)
    os.chmod(target, like.st_mode & 0o7777)


_DISK_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "reiserfs"}
)
"""File systems that one machine at a time can write to."""
_BOOT_MARGIN_SECONDS = 1.0


def file_system(path: str, mounts: str = "/proc/self/mounts") -> str:
    """Return the type of the file system that holds a path, such as ext4 or nfs; empty if
    unknown."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split() for line in file]
    except OSError:
        return ""
    real = os.path.realpath(path)
    mount, mount_kind = "", ""
    for _, escaped, kind, *_ in lines:
        folder = escaped.replace("\\040", " ")
        is_inside = folder == "/" or real == folder or real.startswith(f"{folder}/")
        if is_inside and len(folder) >= len(mount):
            # the longest mount point wins; of two mounts on one folder, the later one is visible
            mount, mount_kind = folder, kind
    return mount_kind


def predates_boot(path: str) -> bool:
    """Return whether a file is on a disk of this machine and was last written before the machine
    was started, so that its writer has ended."""
    try:
        started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return (
            os.lstat(path).st_mtime < started - _BOOT_MARGIN_SECONDS
            and file_system(path) in _DISK_FILE_SYSTEMS
        )
    except (AttributeError, OSError):
        # no such clock on this system, or the file was removed just now
        return False
