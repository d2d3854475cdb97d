"""Files by path, on a file system or in memory: functions named as those of ``os`` do the same with both.

All else in the package that touches files calls these functions, or a store made of them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import math
import os
import re
import secrets
import stat as modes
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from wkwdask.errors import CorruptError, MissingError
from wkwdask.model.store import FileState
from wkwdask.store.local import LocalFile, LocalFileSystem, LocalOutput
from wkwdask.store.memory import MEMORY_FILES, MemoryFile, MemoryFileSystem, MemoryOutput
from wkwdask.store.paths import dirname, is_memory, join, relpath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States
    from wkwdask.model.store import StoredEntry

TEMPORARY_SUFFIX = ".wkwdask-tmp"
_REMOVE_ATTEMPTS = 5
_LOCAL_FILES = LocalFileSystem()
OpenFile = LocalFile | MemoryFile
Output = LocalOutput | MemoryOutput


def _system(path: str) -> LocalFileSystem | MemoryFileSystem:
    """Return the file system of a path."""
    return MEMORY_FILES if is_memory(path) else _LOCAL_FILES


def _os(path: str) -> MemoryFileSystem | ModuleType:
    """Return what has the functions of ``os`` for a path."""
    return MEMORY_FILES if is_memory(path) else os


# ------------------------------------------------------------------------------------------------ reading


def open_file(path: str) -> OpenFile:
    """Open a regular file for reading; errors are those of ``os.open``."""
    return _system(path).open(path)


def open_stream(path: str) -> BinaryIO:
    """Open a file as a stream of bytes."""
    return MEMORY_FILES.open_stream(path) if is_memory(path) else open(path, "rb")


def read_bytes(path: str) -> bytes:
    """Read a whole file."""
    with open_stream(path) as file:
        return file.read()


def read_array(path: str, dtype: npt.DTypeLike, count: int = -1, offset: int = 0) -> npt.NDArray[Any]:
    """Read values from a byte of a file on, at most so many."""
    kind = np.dtype(dtype)
    with open_file(path) as file:
        there = max(0, file.nbytes - offset) // kind.itemsize
        out = np.empty(there if count < 0 else min(count, there), kind)
        file.read_into(out.view(np.uint8), offset)
    return out


def map_array(path: str, dtype: npt.DTypeLike, offset: int, shape: tuple[int, ...], order: Literal["C", "F"] = "C") -> npt.NDArray[Any]:
    """Map an array of a file into memory."""
    if not is_memory(path):
        return np.memmap(path, dtype, "r", offset, shape, order)
    return read_array(path, dtype, math.prod(shape), offset).reshape(shape, order=order)


def has_magic(path: str) -> bool:
    """Check whether a path holds wildcards."""
    return glob.has_magic(path)


def matching(pattern: str) -> list[str]:
    """List the paths that match a pattern with wildcards; ``**`` stands for any folders."""
    if not is_memory(pattern):
        return glob.glob(pattern, recursive=True)
    start = pattern[: re.search(r"[*?[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    matches = re.compile("/".join(".*" if part == "**" else fnmatch.translate(part)[4:-3] for part in pattern.split("/"))).fullmatch
    return [path for folder, folders, names in walk(start) for path in (f"{folder}/{name}" for name in folders + names) if matches(path)]


def stat(path: str) -> os.stat_result:
    """Return the inode, size, mode and times of a file or folder."""
    return _os(path).stat(path)


def lstat(path: str) -> os.stat_result:
    """Return the inode, size, mode and times of a file, folder or symbolic link."""
    return _os(path).stat(path, follow_symlinks=False)


def state_of(path: str) -> FileState | None:
    """Return what changes when a regular file is replaced, None where there is none."""
    try:
        status = stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileState(status.st_size, status.st_mtime_ns) if modes.S_ISREG(status.st_mode) else None


def file_states(indices: Iterable[Vec3], path_of: Callable[[Vec3], str]) -> States:
    """Look at files, one ``stat`` each; absent ones are left out."""
    found = ((index, state_of(path_of(index))) for index in indices)
    return np.array([(*index, *state) for index, state in found if state is not None], np.int64).reshape(-1, 5)


def read_small(folder: str, names: Iterable[str], most_nbytes: int, memory: memoryview) -> list[tuple[int, int]]:
    """Read files below a folder into memory until it is full; gives the place and size of each, see :data:`wkwdask.store.local.ABSENT`.

    Files that are larger than expected are cut. The folder itself must exist, and stay in its place where files are absent.
    """
    return _system(folder).read_small(folder, names, most_nbytes, memory)


def _mode(path: str, *, follow: bool = True) -> int:
    try:
        return _os(path).stat(path, follow_symlinks=follow).st_mode
    except (OSError, ValueError):
        return 0


def exists(path: str) -> bool:
    """Check whether a path names something; a symbolic link to nothing does not."""
    return bool(_mode(path))


def lexists(path: str) -> bool:
    """Check whether a path names something, be it a symbolic link to nothing."""
    return bool(_mode(path, follow=False))


def isdir(path: str) -> bool:
    """Check whether a path names a folder."""
    return modes.S_ISDIR(_mode(path))


def isfile(path: str) -> bool:
    """Check whether a path names a regular file."""
    return modes.S_ISREG(_mode(path))


def islink(path: str) -> bool:
    """Check whether a path names a symbolic link."""
    return modes.S_ISLNK(_mode(path, follow=False))


def getsize(path: str) -> int:
    """Return the size of a file [bytes]."""
    return stat(path).st_size


def samefile(first: str, second: str) -> bool:
    """Check whether two paths name the same file or folder."""
    return is_memory(first) == is_memory(second) and os.path.samestat(stat(first), stat(second))


def scandir(path: str) -> contextlib.AbstractContextManager[Iterator[StoredEntry]]:
    """List a folder, as ``os.scandir``."""
    return _os(path).scandir(path)


def listdir(path: str) -> list[str]:
    """List the names in a folder."""
    with scandir(path) as entries:
        return [entry.name for entry in entries]


def walk(path: str, *, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Go through a folder and all below, as ``os.walk``; symbolic links are not followed."""
    try:
        with scandir(path) as scanned:
            entries = list(scanned)
    except OSError:
        return
    folders = [entry.name for entry in entries if entry.is_dir()]
    names = [entry.name for entry in entries if not entry.is_dir()]
    if topdown:
        yield path, folders, names
    for name in folders:
        below = join(path, name)
        if not islink(below):
            yield from walk(below, topdown=topdown)
    if not topdown:
        yield path, folders, names


def numbered(folder: str, prefix: str, suffix: str = "") -> Iterator[tuple[int, str]]:
    """List entries named by a number, such as ``z12`` or ``x3.wkw``, in no order; an absent folder has none."""
    try:
        with scandir(folder) as entries:
            for entry in entries:
                digits = entry.name[len(prefix) : len(entry.name) - len(suffix)]
                if entry.name == f"{prefix}{digits}{suffix}" and digits.isdecimal() and digits.isascii() and str(int(digits)) == digits:
                    yield int(digits), entry.path
    except (FileNotFoundError, NotADirectoryError):
        return


def realpath(path: str) -> str:
    """Return the absolute path without symbolic links."""
    return MEMORY_FILES.realpath(path) if is_memory(path) else os.path.realpath(path)


def readlink(path: str) -> str:
    """Read where a symbolic link leads."""
    return _os(path).readlink(path)


def is_writable(path: str) -> bool:
    """Check whether this user may write a file or into a folder."""
    return MEMORY_FILES.is_writable(path) if is_memory(path) else os.access(path, os.W_OK)


def free(path: str) -> tuple[int, int | None]:
    """Return how many bytes and files the file system of a path can still take; None where it does not limit the files."""
    return _system(path).free(path)


def check_regular(path: str) -> None:
    """Make sure that something is a file whose end is reached by reading it: no pipe, no device."""
    try:
        mode = stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise MissingError(f"{path}: not found") from None
    if not modes.S_ISREG(mode):
        raise CorruptError(f"{path}: not a regular file")


def count_files(paths: Iterable[str]) -> tuple[int, int]:
    """Count the existing ones of some files, and their bytes."""
    files = nbytes = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            nbytes += stat(path).st_size
            files += 1
    return files, nbytes


def count_tree(folder: str) -> tuple[int, int]:
    """Count the files in a folder and their bytes; symbolic links are not followed."""
    files, nbytes = 0, 0
    for path, _, names in walk(folder):
        files += len(names)
        nbytes += sum(lstat(f"{path}/{name}").st_size for name in names)
    return files, nbytes


# ------------------------------------------------------------------------------------------------ writing


def create(path: str, *, exclusive: bool = True, append: bool = False) -> Output:
    """Open a file for writing, which is made where it is absent."""
    return _system(path).create(path, exclusive=exclusive, append=append)


def unnamed_file(folder: str) -> tuple[Output, OpenFile]:
    """Open a new file of a folder for writing and reading, which goes when both are closed."""
    path = f"{folder}/.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    output = create(path)
    try:
        return output, open_file(path)
    finally:
        unlink(path)


def mkdir(path: str) -> None:
    """Make a folder."""
    _os(path).mkdir(path)


def makedirs(path: str) -> None:
    """Make a folder and those above it; existing ones are fine."""
    try:
        mkdir(path)
    except FileNotFoundError:
        if dirname(path) == path:
            raise
        makedirs(dirname(path))
        makedirs(path)
    except OSError:
        if not isdir(path):
            raise


def make_folders_below(folder: str, path: str) -> None:
    """Make the folders of a path below a folder that exists."""
    made = folder
    for name in relpath(path, folder).split("/"):
        made = join(made, name)
        with contextlib.suppress(FileExistsError):
            mkdir(made)


def rmdir(path: str) -> None:
    """Remove an empty folder."""
    _os(path).rmdir(path)


def unlink(path: str) -> None:
    """Remove a file or symbolic link."""
    _os(path).unlink(path)


def rename(old: str, new: str) -> None:
    """Rename a file or folder; a file or empty folder of the new name is replaced."""
    _os(old).replace(old, new)


def exchange(first: str, second: str) -> bool:
    """Swap two names in one step; False where the system cannot."""
    return _system(first).exchange(first, second)


def link(old: str, new: str) -> None:
    """Give a file a second name."""
    _os(old).link(old, new)


def symlink(target: str, path: str) -> None:
    """Make a symbolic link."""
    _os(path).symlink(target, path)


def inherit_permissions(path: str, like: os.stat_result) -> None:
    """Give a file or folder the mode and group of the one that it replaces, as far as this user may."""
    _system(path).set_permissions(path, like)


def fsync(path: str) -> None:
    """Make a file last, or the renames in a folder."""
    _system(path).fsync(path)


def guarded(path: str) -> contextlib.AbstractContextManager[None]:
    """Let one process at a time hold a file, where the file system can do that; the file goes with the last who holds it."""
    return _system(path).guarded(path)


def publish_folder(staged: str, target: str) -> None:
    """Put a complete folder in the place of another, or in a free place.

    Notes
    -----
    One ``renameat2(RENAME_EXCHANGE)`` where the system has it. Else two renames: the old content goes to ``staged + ".old"`` first, so
    that the same call can be made again after an interruption between them.
    """
    parked = f"{staged}.old"
    if lexists(target) and not lexists(parked):
        if exchange(staged, target):
            fsync(dirname(target))
            return
        rename(target, parked)
    rename(staged, target)
    if lexists(parked):
        rename(parked, staged)
    fsync(dirname(target))


def remove_file(path: str) -> None:
    """Remove a file for good; an absent one is fine."""
    try:
        unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    fsync(dirname(path))


def remove_temporaries(folder: str, name: str) -> None:
    """Remove what killed writers of a file left; only where nobody can be writing it now."""
    with scandir(folder) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(f".{name}.") and entry.name.endswith(TEMPORARY_SUFFIX)]
    for path in left:
        with contextlib.suppress(FileNotFoundError):
            unlink(path)


def remove_tree(folder: str) -> None:
    """Remove a folder and all in it; an absent one is fine, and so is somebody who still writes into it."""
    for attempt in range(_REMOVE_ATTEMPTS):
        try:
            _system(folder).remove_tree(folder)
        except FileNotFoundError:
            if not lexists(folder):
                return
        except OSError:
            if attempt == _REMOVE_ATTEMPTS - 1:
                raise


def delete_tree(folder: str) -> tuple[int, int]:
    """Delete a folder and all in it, but nothing that a symbolic link points to; an absent one is fine."""
    files, nbytes = 0, 0
    with contextlib.suppress(FileNotFoundError):
        with scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                below = delete_tree(entry.path)
                files, nbytes = files + below[0], nbytes + below[1]
                continue
            with contextlib.suppress(FileNotFoundError):
                size = entry.stat(follow_symlinks=False).st_size
                unlink(entry.path)
                files, nbytes = files + 1, nbytes + size
        rmdir(folder)
    return files, nbytes
