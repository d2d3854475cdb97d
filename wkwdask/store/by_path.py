"""Functions on files and folders by path, built of those in ``files``."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import math
import os
import re
import secrets
import stat as modes
import tempfile
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wkwdask.errors import CorruptError, MissingError, UnsupportedError
from wkwdask.store import files
from wkwdask.store.leases import check_copies
from wkwdask.store.objects import object_store
from wkwdask.store.objects.new_objects import MEMORY_NBYTES
from wkwdask.store.objects.remote import RemoteStore
from wkwdask.store.paths import TEMPORARY_SUFFIX, dirname, is_on_disk, is_remote, split
from wkwdask.store.store import store_at
from wkwdask.store.zipped import forget_zip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States
    from wkwdask.model.store import OpenFile, Output, Store


_PIECE_NBYTES = 8 << 20
_AHEAD_NBYTES = 64 << 10  # of a file in a bucket, which come with its size


def has_magic(path: str) -> bool:
    return glob.has_magic(path)


def matching(pattern: str) -> list[str]:
    """List the paths that match a pattern, by the rules of ``glob``: ``**`` matches any number of
    folders, and wildcards match no leading dot."""
    if is_on_disk(pattern):
        return glob.glob(pattern, recursive=True)
    start = pattern[: re.search(r"[*?[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    parts = pattern[len(start) + 1 :].split("/")
    below = (
        f"{folder}/{name}"
        for folder, folders, names in files.walk(start)
        for name in folders + names
    )
    return [path for path in below if _matches(path[len(start) + 1 :].split("/"), parts)]


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Check whether the names of a path match the parts of a pattern."""
    if not parts:
        return not names
    is_shown = bool(names) and (parts[0].startswith(".") or not names[0].startswith("."))
    if parts[0] == "**":
        return _matches(names, parts[1:]) or (is_shown and _matches(names[1:], parts))
    return is_shown and fnmatch.fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])


def read_array(
    path: str, dtype: npt.DTypeLike, count: int = -1, offset: int = 0
) -> npt.NDArray[Any]:
    """Read an array from a byte offset, with at most ``count`` values."""
    value_type = np.dtype(dtype)
    with _opened(path) as file:
        available = max(0, file.nbytes - offset) // value_type.itemsize
        out = np.empty(available if count < 0 else min(count, available), value_type)
        file.read_into(out.view(np.uint8), offset)
    return out


def _opened(path: str) -> OpenFile:
    """Open a file on a file system or in a bucket."""
    if not is_remote(path):
        return files.open_file(path)
    folder, name = split(path)
    (file,) = store_at(folder).open_heads([name], _AHEAD_NBYTES)
    if file is None:
        raise MissingError(f"{path}: not found")
    return file


def have_equal_content(first: str, second: str) -> bool:
    """Check whether two files hold the same bytes, reading a piece of each at a time."""
    with _opened(first) as a, _opened(second) as b:
        ends = range(_PIECE_NBYTES, a.nbytes + _PIECE_NBYTES, _PIECE_NBYTES)
        return a.nbytes == b.nbytes and all(
            a.read([piece]) == b.read([piece])
            for piece in ((end - _PIECE_NBYTES, min(end, a.nbytes)) for end in ends)
        )


def map_array(
    path: str,
    dtype: npt.DTypeLike,
    offset: int,
    shape: tuple[int, ...],
    order: Literal["C", "F"] = "C",
) -> npt.NDArray[Any]:
    """Map an array of a file into memory."""
    if is_on_disk(path):
        return np.memmap(path, dtype, "r", offset, shape, order)
    return read_array(path, dtype, math.prod(shape), offset).reshape(shape, order=order)


def count_tree(folder: str) -> tuple[int, int]:
    """Count the files in a folder tree and their bytes, without following symbolic links."""
    if is_remote(folder):
        entries = (
            entry for above, _, _ in store_at(folder).walk() for entry in store_at(above).scandir()
        )
        sizes = [entry.stat().st_size for entry in entries if entry.is_file()]
        return len(sizes), sum(sizes)
    count, nbytes = 0, 0
    for path, _, names in files.walk(folder):
        count += len(names)
        nbytes += sum(files.lstat(f"{path}/{name}").st_size for name in names)
    return count, nbytes


def missing_folders(path: str) -> list[str]:
    """Return the folders that :meth:`Store.make` would create for a path, outermost first; none in
    a bucket, which has no folders."""
    if is_remote(path):
        return []
    missing = []
    while not files.exists(path) and path != dirname(path):
        missing.append(path)
        path = dirname(path)
    return missing[::-1]


def remove_empty(folders: Sequence[str]) -> None:
    """Remove folders that are empty, the last one first; a bucket has none."""
    for folder in reversed([folder for folder in folders if not is_remote(folder)]):
        with contextlib.suppress(OSError):  # it is not empty, or absent
            files.rmdir(folder)


def scratch_folder(purpose: str) -> str:
    """Return a private folder for temporary files of this machine, the same one for each call with
    the same purpose."""
    digest = blake2b(purpose.encode(errors="surrogateescape"), digest_size=8).hexdigest()
    folder = f"{tempfile.gettempdir()}/wkwdask-{os.getuid()}-{digest}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not modes.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EACCES, "is not a private folder of this user", folder)
    return folder


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a context with a private folder for temporary files of this machine, removed when it
    ends."""
    return tempfile.TemporaryDirectory()


def upload(path: str, store: Store, name: str) -> None:
    """Store a file as an object of a bucket, given as a snapshot; raises Conflict if the object has
    changed since then."""
    assert isinstance(store, RemoteStore)
    with files.open_stream(path) as file:
        is_large = files.stat(path).st_size > MEMORY_NBYTES
        store.publish(name, file if is_large else file.read())
    forget_zip(store.path_of(name))


def is_too_large(url: str, nbytes: int) -> bool:
    """Check whether a server stores no new object of a size on condition."""
    is_s3 = object_store.PROTOCOLS.get(url.partition("://")[0]) == "S3"
    return is_s3 and nbytes > object_store.LARGEST_NBYTES


def check_object_nbytes(url: str, nbytes: int, what: str, remedy: str) -> None:
    """Raise UnsupportedError if a new object of a bucket would be larger than the server stores on
    condition; ``what`` has that size. Asked before the work begins."""
    if is_too_large(url, nbytes):
        raise UnsupportedError(
            f"{url}: {what} {nbytes} bytes, and S3 stores at most {object_store.LARGEST_NBYTES} "
            f"bytes on condition that no other process has written them; {remedy}"
        )


def copy_objects(source: str, target: str, names: Sequence[str]) -> None:
    """Copy objects from one folder of a bucket to another by its server; those that exist there
    stay."""
    store = store_at(target)
    assert isinstance(store, RemoteStore)
    check_copies(target)
    store.copy(source, names)


def real_target(path: str) -> str:
    """Return the real path of a folder to write, existing or new; raises MissingError where a link
    on the way leads nowhere."""
    if is_remote(path):
        return path
    above = path
    while not files.exists(above) and above != dirname(above):
        files.check_folder_link(above)
        above = dirname(above)
    return files.realpath(path)


def publish_folder(staged: str, target: str) -> None:
    """Move a complete folder to its final path, replacing the folder there; the caller flushes the
    folder above."""
    # If two names cannot be swapped, the old folder is parked while the new one takes its name. A
    # process may be killed after each rename. The parked folder has a fixed name, so that a
    # repeated call finds it and continues with the next rename.
    parked = f"{staged}.old"
    if files.lexists(target) and not files.lexists(parked):
        if files.exchange(staged, target):
            return
        files.rename(target, parked)
    files.rename(staged, target)
    if files.lexists(parked):
        files.rename(parked, staged)


def remove_temporaries(folder: str, name: str) -> None:
    """Remove temporary files of killed writers. The caller makes sure that nobody writes the file
    now."""
    with files.scandir(folder) as entries:
        leftovers = [
            entry.path
            for entry in entries
            if entry.name.startswith(f".{name}.") and entry.name.endswith(TEMPORARY_SUFFIX)
        ]
    for path in leftovers:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(path)


def delete_tree(folder: str) -> tuple[int, int]:
    """Delete a folder tree, without following symbolic links; return the number of files and bytes.
    An absent folder is not an error. Files that NFS keeps until they are closed stay."""
    count, nbytes = 0, 0
    with contextlib.suppress(FileNotFoundError):
        with files.scandir(folder) as scanned:
            entries = [entry for entry in scanned if not entry.name.startswith(files.KEPT_PREFIX)]
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below = delete_tree(entry.path)
                count, nbytes = count + below[0], nbytes + below[1]
                continue
            with contextlib.suppress(FileNotFoundError):
                size = entry.stat(follow_symlinks=False).st_size
                files.unlink(entry.path)
                count, nbytes = count + 1, nbytes + size
        try:
            files.rmdir(folder)
        except OSError:
            if not files.is_kept(folder):
                raise
    return count, nbytes


def file_states(indices: Iterable[Vec3], path_of: Callable[[Vec3], str]) -> States:
    """Stat files one by one, skipping absent ones."""
    states = ((index, files.state_of(path_of(index))) for index in indices)
    return np.array(
        [(*index, *state) for index, state in states if state is not None], np.int64
    ).reshape(-1, 5)


def check_regular(path: str) -> None:
    """Raise an error unless a path is a regular file. Reading a pipe or device might never end."""
    try:
        mode = files.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise MissingError(f"{path}: not found") from None
    if not modes.S_ISREG(mode):
        raise CorruptError(f"{path}: not a regular file")


def unnamed_file(folder: str | None = None) -> tuple[Output, OpenFile]:
    """Create a file without a name in a folder, by default the system's temporary one, open for
    writing and reading. It is deleted when both are closed."""
    path = f"{folder or tempfile.gettempdir()}/.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    output = files.create(path)
    try:
        return output, files.open_file(path)
    finally:
        files.unlink(path)
