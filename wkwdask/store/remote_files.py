"""Functions on remote files by URL, with the names and errors of ``os``. Everything that writes is
an error."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import time
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn

from wkwdask.errors import UnsupportedError
from wkwdask.store.access import access_of
from wkwdask.store.credentials import environment
from wkwdask.store.lru import LruCache
from wkwdask.store.remote import OpenRemoteFile, RemoteEntry, RemoteStore, for_all, remote_status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LARGEST_DOCUMENT_NBYTES = 64 << 20  # unpacked: a server may send a small gzip stream of a huge one
_HEAD_NBYTES = 64 << 10
_TRUSTED_SECONDS = 2.0
_LARGEST_KEPT_NBYTES = 1 << 20


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
        """Read a file. Small, absent and refused files are trusted for a moment, because one
        opening needs them several times."""
        data = (_recent_of(path) or _request(path, largest)).data
        if isinstance(data, PermissionError):
            raise data.with_traceback(None)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return data

    def read_ahead(self, paths: Sequence[str]) -> None:
        """Request files at the same time that are read a moment later."""
        for_all(lambda path: _recent_of(path) or _request(path, _LARGEST_DOCUMENT_NBYTES), paths)

    def open_stream(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read_whole(path, _LARGEST_DOCUMENT_NBYTES))

    def stat(self, path: str, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the size of a file. A prefix of other files is a folder, if the server can list
        them."""
        store = _store(path)
        try:
            return remote_status(store.client.size(path, store.access))
        except FileNotFoundError:
            if store.names():
                return remote_status(None)
            raise

    def mode(self, path: str) -> int:
        """Return the mode of a file or folder, 0 if it is absent or refused; other errors are
        raised."""
        recent = _recent_of(path)
        if recent is not None:
            return remote_status(0).st_mode if isinstance(recent.data, bytes) else 0
        try:
            return self.stat(path).st_mode
        except (FileNotFoundError, PermissionError):
            return 0

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[RemoteEntry]]:
        store = _store(path)
        yield (
            RemoteEntry(name, f"{path}/{name}", nbytes)
            for name, nbytes in store.client.names(path, store.access)
        )

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


class _Recent(NamedTuple):
    """A file that was read a moment ago."""

    read: float
    """Time when it was read [s]."""
    data: bytes | PermissionError | None
    """Content, the error of a refused file, or None for an absent file."""


_recent: LruCache[_Recent] = LruCache(64)


def _recent_of(path: str) -> _Recent | None:
    recent = _recent.get((path, access_of(path), environment()))
    return (
        recent if recent is not None and time.monotonic() - recent.read < _TRUSTED_SECONDS else None
    )


def _request(path: str, largest: int) -> _Recent:
    folder, _, name = path.rpartition("/")
    data: bytes | PermissionError | None
    try:
        (data,) = _store(folder).read_whole([name], largest)
    except PermissionError as error:
        data = error
    recent = _Recent(time.monotonic(), data)
    if not isinstance(data, bytes) or len(data) <= _LARGEST_KEPT_NBYTES:
        _recent.put((path, access_of(path), environment()), recent)
    return recent


def _store(folder: str) -> RemoteStore:
    return RemoteStore(folder, access=access_of(folder))


REMOTE_FILES = RemoteFileSystem()
