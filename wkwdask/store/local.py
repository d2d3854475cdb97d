"""Files on a local or shared file system: positioned reads, and writes that appear whole or not at all.

Nothing is mapped into memory: a file that shrinks under a mapping ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import filecmp
import os
import secrets
import shutil
import stat
import sys
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError, MissingError, TruncatedError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import numpy.typing as npt

TEMPORARY_SUFFIX = ".wkwdask-tmp"
_REMOVE_ATTEMPTS = 5
_MODE = 0o666  # less the umask; setgid folders and default ACLs apply
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_WRITE_BACK_NBYTES = 1 << 20
_SYNC_FILE_RANGE_WRITE = 2
_COPIED_NBYTES = 8 << 20
_OTHER_FORMATS = ("n5://", "zarr://", "zarr2://", "zarr3://")
_CANNOT_COPY = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform.startswith("linux") else None


def local_path(url: str | os.PathLike[str]) -> str:
    """Turn what a user names into a local path."""
    text = os.fspath(url)
    if not text:
        raise ValueError("a path is empty")  # it would mean the current folder
    if not _is_path(text):
        raise ValueError(f"{text!r}: not a valid path: it holds a NUL byte or half of a character")
    if text.startswith(_OTHER_FORMATS):
        raise UnsupportedError(f"{text}: this works on WKW; convert() (wkwdask convert) makes WKW of other formats")
    if is_remote(text):
        raise UnsupportedError(
            f"{text}: only local paths and file:// URLs can be opened without the format; of others name it: precomputed://{text}, zarr://{text} or n5://{text}"
        )
    text = os.path.expanduser(text.removeprefix("file://"))
    path = os.path.abspath(text)
    if ".." in text.split("/"):
        real = os.path.realpath(text)
        return path if real == os.path.realpath(path) else real  # ".." behind a link is the folder above what the link leads to
    return path


def check_regular(path: str) -> None:
    """Make sure that something is a file whose end is reached by reading it: no pipe, no device."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise MissingError(f"{path}: not found") from None
    if not stat.S_ISREG(mode):
        raise CorruptError(f"{path}: not a regular file")


def _is_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def is_remote(url: str) -> bool:
    """Tell whether a path or URL is not on a local or shared file system."""
    return "://" in url and not url.startswith("file://")


def pread_into(fd: int, buffer: npt.NDArray[np.uint8], offset: int, source: str) -> None:
    """Fill a buffer from a file."""
    view = memoryview(buffer.data)
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], offset + done)
        if count == 0:
            raise TruncatedError(f"{source}: ends at byte {offset + done}, expected {len(view) - done} more bytes")
        done += count


class NewFile:
    """A file that is written under a temporary name and appears under its own when it is complete."""

    def __init__(self, path: str, temporary_folder: str | None = None, *, flush: bool = True) -> None:
        self.path = path
        self._flush = flush
        folder, name = os.path.split(path)
        self._folder = folder or "."
        if temporary_folder is None or os.stat(temporary_folder).st_dev != os.stat(self._folder).st_dev:  # a folder of a mag may be a link to another disk
            temporary_folder = self._folder
        self._temporary = os.path.join(temporary_folder, f".{name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
        self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)

    def write(self, data: bytes | npt.NDArray[np.uint8] | memoryview, offset: int) -> None:
        """Write bytes at a place."""
        view = memoryview(data.data if isinstance(data, np.ndarray) else data).cast("B")
        while view:
            try:
                count = os.pwrite(self._fd, view, offset)
            except OSError as error:  # a full disk or quota: say where
                raise OSError(error.errno, os.strerror(error.errno or 0), self.path) from None
            if self._flush:
                _start_writing_back(self._fd, offset, count)
            view, offset = view[count:], offset + count

    def copy_from(self, fd: int, nbytes: int, source: str) -> None:
        """Write the first bytes of an open file, inside the system where it can do that."""
        done, copy = 0, _copy_range
        while done < nbytes:
            try:
                count = copy(fd, self._fd, min(_COPIED_NBYTES, nbytes - done), done)
            except OSError as error:
                if copy is _copy_range and error.errno in _CANNOT_COPY:
                    copy = _read_and_write
                    continue
                raise OSError(error.errno, os.strerror(error.errno or 0), self.path) from None
            if not count and copy is _copy_range:  # some file systems say nothing and do nothing
                copy = _read_and_write
                continue
            if not count:
                raise TruncatedError(f"{source}: ends at byte {done}, expected {nbytes} bytes")
            if self._flush:
                _start_writing_back(self._fd, done, count)
            done += count

    def open_written(self) -> int:
        """Open what was written so far for reading; the caller closes it."""
        return os.open(self._temporary, os.O_RDONLY | os.O_CLOEXEC)

    def start_writing_back(self, nbytes: int) -> None:
        """Let the disk begin with the first bytes, of a file that is flushed together with others later."""
        if _sync_file_range is not None:
            _sync_file_range(self._fd, ctypes.c_int64(0), ctypes.c_int64(nbytes), _SYNC_FILE_RANGE_WRITE)

    def sync(self) -> None:
        """Flush it to disk now, so that :meth:`publish` need not."""
        if self._flush:
            os.fsync(self._fd)
            self._flush = False

    def set_nbytes(self, nbytes: int) -> None:
        """Set the length; bytes that were never written are zero."""
        os.ftruncate(self._fd, nbytes)

    def publish(self, *, flush_folder: bool = True, keep_equal: bool = False) -> None:
        """Give the file its name."""
        if keep_equal and os.path.exists(self.path) and filecmp.cmp(self._temporary, self.path, shallow=False):
            self.discard()
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                inherit_permissions(self._fd, os.stat(self.path))
            if self._flush:
                os.fsync(self._fd)
            self._close()
            os.replace(self._temporary, self.path)
        except BaseException:
            self.discard()
            raise
        if self._flush and flush_folder:
            fsync_folder(self._folder)

    def discard(self) -> None:
        """Remove the temporary file."""
        self._close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1  # first of all: Ctrl-C may come between any two steps, and a number that was closed may be somebody else's by then
        if fd >= 0:
            os.close(fd)


def _copy_range(source: int, target: int, nbytes: int, offset: int) -> int:
    """Copy bytes of one file to the same place of another without reading them here."""
    if not hasattr(os, "copy_file_range"):
        return _read_and_write(source, target, nbytes, offset)
    return os.copy_file_range(source, target, nbytes, offset, offset)


def _read_and_write(source: int, target: int, nbytes: int, offset: int) -> int:
    return os.pwrite(target, os.pread(source, nbytes, offset), offset)


def _start_writing_back(fd: int, offset: int, nbytes: int) -> None:
    """Let the disk begin with what was just written, so that the flush at the end of a large file does not wait for all of it."""
    if nbytes >= _WRITE_BACK_NBYTES and _sync_file_range is not None:
        _sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(nbytes), _SYNC_FILE_RANGE_WRITE)


def publish_bytes(path: str, data: bytes) -> None:
    """Write a small file that appears whole."""
    file = NewFile(path)
    try:
        file.write(data, 0)
    except BaseException:
        file.discard()
        raise
    file.publish()


def remove_file(path: str) -> None:
    """Remove a file for good; that it is gone already is fine."""
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    fsync_folder(os.path.dirname(path))


def remove_temporaries(folder: str, name: str) -> None:
    """Remove what killed writers of a file left; only where nobody can be writing it now."""
    with os.scandir(folder) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(f".{name}.") and entry.name.endswith(TEMPORARY_SUFFIX)]
    for path in left:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def inherit_permissions(new: int | str, old: os.stat_result) -> None:
    """Give a file or folder the mode and group of the one that it replaces, as far as this user may."""
    with contextlib.suppress(PermissionError):
        os.chown(new, -1, old.st_gid)
    os.chmod(new, old.st_mode & 0o7777)


def fsync_folder(folder: str) -> None:
    """Make renames in a folder last, where the file system lets folders be flushed."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)


def publish_folder(staged: str, target: str) -> None:
    """Put a complete folder in the place of another, or in a free place.

    Notes
    -----
    One ``renameat2(RENAME_EXCHANGE)`` where the system has it. Else two renames: the old content goes to ``staged + ".old"`` first, so
    that the same call can be made again after an interruption between them.
    """
    parked = f"{staged}.old"
    if os.path.lexists(target) and not os.path.lexists(parked):
        if exchange(staged, target):
            fsync_folder(os.path.dirname(target))
            return
        os.rename(target, parked)
    os.rename(staged, target)
    if os.path.lexists(parked):
        os.rename(parked, staged)
    fsync_folder(os.path.dirname(target))


def exchange(first: str, second: str) -> bool:
    """Swap two names in one step; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), second)


def make_folders_below(folder: str, path: str) -> None:
    """Make the folders of a path below a folder that must be there."""
    made = folder
    for name in os.path.relpath(path, folder).split(os.sep):
        made = os.path.join(made, name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(made)


def count_files(paths: Iterable[str]) -> tuple[int, int]:
    """Count those of some files that are there, and their bytes."""
    files = nbytes = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            nbytes += os.stat(path).st_size
            files += 1
    return files, nbytes


def remove_tree(folder: str) -> None:
    """Remove a folder and all in it; that it is gone already is fine, and so is somebody who still writes into it."""
    for attempt in range(_REMOVE_ATTEMPTS):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            if not os.path.lexists(folder):
                return
        except OSError:
            if attempt == _REMOVE_ATTEMPTS - 1:
                raise


def delete_tree(folder: str) -> tuple[int, int]:
    """Delete a folder and all in it, but nothing that a symbolic link points to; what is gone already is fine."""
    files, nbytes = 0, 0
    with contextlib.suppress(FileNotFoundError):
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                below = delete_tree(entry.path)
                files, nbytes = files + below[0], nbytes + below[1]
                continue
            with contextlib.suppress(FileNotFoundError):
                size = entry.stat(follow_symlinks=False).st_size
                os.unlink(entry.path)
                files, nbytes = files + 1, nbytes + size
        os.rmdir(folder)
    return files, nbytes


def count_tree(folder: str) -> tuple[int, int]:
    """Count the files in a folder and their bytes; symbolic links are not followed."""
    files, nbytes = 0, 0
    for path, _, names in os.walk(folder):
        files += len(names)
        nbytes += sum(os.lstat(f"{path}/{name}").st_size for name in names)
    return files, nbytes


def numbered(folder: str | Path, prefix: str, suffix: str = "") -> Iterator[tuple[int, str]]:
    """List entries named by a number, such as ``z12`` or ``x3.wkw``, in no order; an absent folder has none."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                digits = entry.name[len(prefix) : len(entry.name) - len(suffix)]
                if entry.name == f"{prefix}{digits}{suffix}" and digits.isdecimal() and digits.isascii() and str(int(digits)) == digits:
                    yield int(digits), entry.path
    except (FileNotFoundError, NotADirectoryError):
        return
