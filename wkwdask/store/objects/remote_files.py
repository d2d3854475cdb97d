"""Functions on remote files by URL, with the names and errors of ``os``. Everything that writes is
an error."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from wkwdask.errors import UnsupportedError
from wkwdask.store.objects.access import access_of
from wkwdask.store.objects.remote import OpenRemoteFile, RemoteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.model.store import StoredEntry

_HEAD_NBYTES = 64 << 10


class RemoteFileSystem:
    """Read-only functions of ``os`` and :class:`wkwdask.store.local.LocalFileSystem`."""

    def open(self, path: str) -> OpenRemoteFile:
        """Open a file; raises FileNotFoundError if it is absent."""
        folder, _, name = path.rpartition("/")
        (file,) = _store(folder).open_heads([name], _HEAD_NBYTES)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file

    def read_whole(self, path: str, largest: int) -> bytes:
        folder, _, name = path.rpartition("/")
        return _store(folder).read_recent(name, largest)

    def open_stream(self, path: str) -> BinaryIO:
        folder, _, name = path.rpartition("/")
        return _store(folder).open_stream(name)

    def stat(self, path: str, *, follow_symlinks: bool = True) -> os.stat_result:
        return _store(path).status()

    def mode(self, path: str) -> int:
        return _store(path).mode()

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[StoredEntry]]:
        yield _store(path).scandir()

    def realpath(self, path: str) -> str:
        return path

    def readlink(self, path: str) -> str:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)

    def is_writable(self, path: str) -> bool:
        return False

    def _only_read(self, path: str, *_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError(f"{path}: remote locations are read-only")

    create = mkdir = rmdir = unlink = remove_tree = replace = exchange = link = symlink = (
        set_permissions
    ) = fsync = guarded = free = read_small = _only_read


def _store(folder: str) -> RemoteStore:
    return RemoteStore(folder, access=access_of(folder))


REMOTE_FILES = RemoteFileSystem()
