"""Functions on files by path: on disk, or in a zip (this only for reading). Functions
named after those of ``os`` behave like them.

Code above ``store`` reaches files through stores, which call these functions.
"""

from __future__ import annotations

import contextlib
import os
import stat as modes
from typing import TYPE_CHECKING, BinaryIO

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.model.store import FileState
from wkwdask.store import local
from wkwdask.store.local import LocalFileSystem, LocalOutput
from wkwdask.store.lru import forget_open
from wkwdask.store.paths import (
    TRANSIENT_CODES,
    ZIP,
    check_no_bucket,
    dirname,
    is_on_disk,
    join,
    relpath,
)
from wkwdask.store.zipped import ZipFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from wkwdask.model.store import OpenFile, StoredEntry

_REMOVE_ATTEMPTS = 5
KEPT_PREFIX = ".nfs"
"""Begin of the names of removed files that are still open, on NFS."""
_LOCAL_FILES = LocalFileSystem()


def _system(path: str) -> LocalFileSystem | ZipFileSystem:
    return _LOCAL_FILES if is_on_disk(path) else _virtual(path)


def _os(path: str) -> ZipFileSystem | ModuleType:
    """Return the object that has the functions of ``os`` for a path."""
    return os if is_on_disk(path) else _virtual(path)


def _virtual(path: str) -> ZipFileSystem:
    """Return the file system of a path that is not one of the operating system."""
    if ZIP not in path:
        check_no_bucket(path)
        raise UnsupportedError(f"{path}: remote locations are read-only")
    return _ZIP_FILES


# ------------------------------------------------------------------------------------------------
# reading


def open_file(path: str) -> OpenFile:
    """Open a regular file for reading; raises the errors of ``os.open``."""
    return _system(path).open(path)


def read_whole(path: str, largest: int) -> bytes:
    """Read a regular file of at most ``largest`` bytes; raises the errors of ``os.open``."""
    return _system(path).read_whole(path, largest)


def open_stream(path: str) -> BinaryIO:
    return open(path, "rb") if is_on_disk(path) else _virtual(path).open_stream(path)


def read_bytes(path: str) -> bytes:
    with open_stream(path) as file:
        return file.read()


def check_content(path: str) -> None:
    """Raise CorruptError if a file in a zip contradicts the checksum that the zip states; other
    files have none."""
    if ZIP in path:
        _ZIP_FILES.check_content(path)


def stat(path: str) -> os.stat_result:
    return _os(path).stat(path)


def lstat(path: str) -> os.stat_result:
    return _os(path).stat(path, follow_symlinks=False)


def state_of(path: str) -> FileState | None:
    """Return size and modification time of a regular file; None if it is absent."""
    try:
        status = stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileState(status.st_size, status.st_mtime_ns) if modes.S_ISREG(status.st_mode) else None


def states_in(folder: str, names: Iterable[str]) -> list[FileState | None]:
    """Return the states of files of a folder as :func:`state_of` does."""
    if not is_on_disk(folder):
        return [state_of(f"{folder}/{name}") for name in names]
    prefix, status_of = f"{folder}/", os.stat
    states: list[FileState | None] = []
    for name in names:  # without calls: there may be millions of names
        try:
            status = status_of(prefix + name)
        except (FileNotFoundError, NotADirectoryError):
            states.append(None)
        else:
            states.append(
                FileState(status.st_size, status.st_mtime_ns)
                if modes.S_ISREG(status.st_mode)
                else None
            )
    return states


def read_small(
    folder: str, names: Iterable[str], max_nbytes: int, memory: memoryview
) -> list[tuple[int, int]]:
    """Read small files of a folder into memory, one after another, until it is full; return
    (offset, size) of each.

    Files larger than ``max_nbytes`` are cut. For special sizes see
    :data:`wkwdask.store.local.ABSENT`. The folder must exist.
    """
    return _system(folder).read_small(folder, names, max_nbytes, memory)


def _mode(path: str, *, follow: bool = True) -> int:
    """Return the mode of a file or folder, 0 if it is absent; raises the error of a disk or server
    that does not answer."""
    try:
        return _os(path).stat(path, follow_symlinks=follow).st_mode
    except FormatError:  # of a zip: nothing in it can be looked up
        raise
    except OSError as error:
        if error.errno in TRANSIENT_CODES:
            raise
        return 0
    except ValueError:
        return 0


def exists(path: str) -> bool:
    """Check whether a path exists; false for a dangling symbolic link."""
    return bool(_mode(path))


def lexists(path: str) -> bool:
    """Check whether a path exists; true for a dangling symbolic link."""
    return bool(_mode(path, follow=False))


def isdir(path: str) -> bool:
    return modes.S_ISDIR(_mode(path))


def isfile(path: str) -> bool:
    return modes.S_ISREG(_mode(path))


def islink(path: str) -> bool:
    return modes.S_ISLNK(_mode(path, follow=False))


def samefile(first: str, second: str) -> bool:
    return _system(first) is _system(second) and os.path.samestat(stat(first), stat(second))


def scandir(path: str) -> contextlib.AbstractContextManager[Iterator[StoredEntry]]:
    return _os(path).scandir(path)


def listdir(path: str) -> list[str]:
    with scandir(path) as entries:
        return [entry.name for entry in entries]


def walk(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder tree like ``os.walk``, without following symbolic links; raises the error of a
    disk or server that does not answer."""
    try:
        with scandir(path) as scanned:
            entries = list(scanned)
    except OSError as error:
        if error.errno in TRANSIENT_CODES:
            raise
        return
    folders = [entry.name for entry in entries if entry.is_dir()]
    names = [entry.name for entry in entries if not entry.is_dir()]
    yield path, folders, names
    for name in folders:
        below = join(path, name)
        if not islink(below):
            yield from walk(below)


def realpath(path: str) -> str:
    return os.path.realpath(path) if is_on_disk(path) else _virtual(path).realpath(path)


def predates_boot(path: str) -> bool:
    """Return whether a file is on a disk of this machine and was last written before the machine
    was started; False in doubt."""
    return is_on_disk(path) and local.predates_boot(path)


def readlink(path: str) -> str:
    return _os(path).readlink(path)


def is_writable(path: str) -> bool:
    """Check whether this user may write a file, or into a folder."""
    return os.access(path, os.W_OK) if is_on_disk(path) else _virtual(path).is_writable(path)


def free(path: str) -> tuple[int, int | None]:
    """Return the free bytes and the free inodes of a file system; None in place of unlimited
    inodes."""
    return _system(path).free(path)


def can_share_blocks(folder: str) -> bool:
    """Return whether copies of files in a file system need no space."""
    return is_on_disk(folder) and local.can_share_blocks(folder)


# ------------------------------------------------------------------------------------------------
# writing


def create(path: str, *, exclusive: bool = True, append: bool = False) -> LocalOutput:
    return _system(path).create(path, exclusive=exclusive, append=append)


def create_unnamed(folder: str) -> LocalOutput | None:
    """Create a file without a name, to be linked when it is complete.

    Return None if the file system of the folder does not support it.
    """
    return _LOCAL_FILES.create_unnamed(folder) if is_on_disk(folder) else None


def mkdir(path: str) -> None:
    _os(path).mkdir(path)


def makedirs(path: str) -> None:
    """Create a folder and those above it, whose names then survive a power failure."""
    try:
        mkdir(path)
    except FileNotFoundError:
        if dirname(path) == path:
            raise
        makedirs(dirname(path))
        makedirs(path)
    except OSError:
        check_folder_link(path)
        if not isdir(path):
            raise
    else:
        with contextlib.suppress(PermissionError):  # of a folder that cannot be listed
            fsync(dirname(path) or ".")


def check_folder_link(path: str) -> None:
    """Raise MissingError for a dangling link in place of a folder."""
    if islink(path) and not exists(path):
        raise MissingError(
            f"{path}: a symbolic link to {readlink(path)}, which does not exist; create that "
            "folder, or remove the link"
        )


def make_folders_below(folder: str, path: str) -> None:
    """Create the folders of a path below an existing folder."""
    current = folder
    for name in relpath(path, folder).split("/"):
        current = join(current, name)
        with contextlib.suppress(FileExistsError):
            mkdir(current)


def rmdir(path: str) -> None:
    _os(path).rmdir(path)


def unlink(path: str) -> None:
    forget_open(path)
    _os(path).unlink(path)


def rename(old: str, new: str) -> None:
    """Rename a file or folder, replacing a file or an empty folder of the new name."""
    forget_open(old)
    forget_open(new)
    renamed = lstat(old)
    try:
        _os(old).replace(old, new)
    except OSError:
        if not _is_named(renamed, new):
            raise


def exchange(first: str, second: str) -> bool:
    """Swap two names atomically; False if the system cannot."""
    forget_open(first)
    forget_open(second)
    moved = lstat(first)
    try:
        return _system(first).exchange(first, second)
    except OSError:
        if not _is_named(moved, second):
            raise
        return True


def _is_named(status: os.stat_result, path: str) -> bool:
    """Check whether a file or folder has got a name: a server may have done what it reports as
    failed, because it lost a reply and was asked again."""
    try:
        return os.path.samestat(status, lstat(path))
    except OSError:
        return False


def link(old: str, new: str) -> None:
    _os(old).link(old, new)


def symlink(target: str, path: str) -> None:
    """Create a symbolic link; an equal one is not an error."""
    try:
        _os(path).symlink(target, path)
    except OSError:
        if not islink(path) or readlink(path) != target:
            raise


def inherit_permissions(path: str, like: os.stat_result) -> None:
    """Copy mode and group of a replaced file or folder, if this user may."""
    _system(path).set_permissions(path, like)


def fsync(path: str) -> None:
    _system(path).fsync(path)


def guarded(path: str) -> contextlib.AbstractContextManager[None]:
    """Hold an exclusive lock on a file, if the file system supports it. The last holder removes the
    file."""
    return _system(path).guarded(path)


def remove_file(path: str) -> None:
    """Remove a file and flush the removal; an absent file is not an error."""
    try:
        unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    fsync(dirname(path))


def remove_tree(folder: str) -> None:
    """Remove a folder tree; an absent one is not an error. Retried, since another process may still
    write into the tree or remove it too. Files that NFS keeps until they are closed stay."""
    forget_open(folder)
    for attempt in range(_REMOVE_ATTEMPTS):
        try:
            _system(folder).remove_tree(folder)
        except OSError:
            if is_kept(folder):
                return
            if attempt == _REMOVE_ATTEMPTS - 1 and lexists(folder):
                raise
        if not lexists(folder):
            return


def is_kept(folder: str) -> bool:
    """Check whether a folder that cannot be removed holds only files that NFS keeps, because a
    process has opened them before they were removed."""
    names = [name for _, _, names in walk(folder) for name in names]
    return bool(names) and all(name.startswith(KEPT_PREFIX) for name in names)


_ZIP_FILES = ZipFileSystem(open_file, stat, realpath)  # type: ignore[arg-type]  # zips on servers are opened by their URL
