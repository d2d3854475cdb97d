"""Where the files of a volume are: a local folder, or a place that fsspec reads (http, s3, gs...). An absent file is None, every other trouble an error.

Remote places are only ever read. Stores hold no open file or connection and are small to pickle.
"""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import time
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from wkwdask.errors import CorruptError, FormatError, MissingError, TruncatedError, UnsupportedError
from wkwdask.model.extras import need
from wkwdask.store import files
from wkwdask.store.credentials import access_options
from wkwdask.store.lru import Lru
from wkwdask.store.new_files import NewFile, NewFiles, publish_bytes
from wkwdask.store.paths import dirname, is_remote, local_path
from wkwdask.store.refused import is_refused, warn_of_refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from wkwdask.model.store import FileState, Store, StoredEntry
    from wkwdask.store.files import OpenFile

_DRIVERS = {"http": "aiohttp", "https": "aiohttp", "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
"""Which package reads a protocol; fsspec itself has all others that are tried."""
_CONTACT_SECONDS = 5.0  # within which a server must answer for the first time
_PAUSES = (0.2, 1.0)  # before a remote read is tried once more [s]


def open_store(location: str | os.PathLike[str]) -> FolderStore | RemoteStore:
    """Give the store of a path or URL."""
    text = os.fspath(location)
    if not is_remote(text):
        return FolderStore(local_path(text))
    store = RemoteStore(text.rstrip("/"))
    store.file_system()  # there is a driver for the URL
    return store


def remote_options(location: str) -> dict[str, Any]:
    """Return the arguments by which zarr-python opens a location, after a remote server has answered."""
    store = open_store(location)
    if isinstance(store, FolderStore):
        return {}
    path = store.path_of("zarr.json")
    unreached = store.contact(store.file_system(), path)
    if unreached is not None:
        _checked(unreached, path)
    options = access_options(location.partition("://")[0])
    return {"storage_options": options} if options else {}


def trusting(store: Store, name: str) -> Store:
    """Give a store in which files that a server refuses to give (403) count as absent, as long as it gives a certain one.

    Buckets whose readers may not list them answer 403 where a file is absent. If access as such was lost, as by credentials that expire, that file is refused
    as well, and what was asked for stays an error.
    """
    return replace(store, witness=(store.url, name)) if isinstance(store, RemoteStore) else store


# ------------------------------------------------------------------------------------------------ files


@dataclass(frozen=True, slots=True)
class FolderStore:
    """A folder on a file system or in memory."""

    url: str
    """The folder."""
    is_local: ClassVar = True
    files_at_once: ClassVar = 1  # they are read one after the other, so that one is held in memory
    gap_nbytes: ClassVar = 4 << 10
    batch_nbytes: ClassVar = 512 << 10  # larger ones save no time, and are copied once more

    @property
    def opening(self) -> str:
        """The folder."""
        return self.url

    def path_of(self, name: str) -> str:
        """Say where a file is."""
        return f"{self.url}/{name}"

    def open(self, name: str) -> OpenFile | None:
        """Open a file, see :class:`wkwdask.model.store.Store`."""
        path = f"{self.url}/{name}"
        try:
            return files.open_file(path)
        except (FileNotFoundError, NotADirectoryError):
            if files.islink(path):
                raise MissingError(f"{path}: a symbolic link to a file that is not there") from None
            return None
        except ValueError as error:  # NUL bytes, half a surrogate pair
            if isinstance(error, FormatError):
                raise
            raise CorruptError(f"{self.url}: no file can have the name {name!r}: {error}") from None

    def read_whole(self, names: Sequence[str], largest: int) -> list[bytes | None]:
        """Read several files, see :class:`wkwdask.model.store.Store`."""
        return [self._read_one(name, largest) for name in names]

    def _read_one(self, name: str, largest: int) -> bytes | None:
        file = self.open(name)
        if file is None:
            return None
        with file:
            if file.nbytes > largest:
                raise CorruptError(f"{file.name}: has {file.nbytes} bytes, expected at most {largest}")
            return file.read([(0, file.nbytes)])[0]

    def entries(self, folder: str = "") -> Iterator[StoredEntry]:
        """List a folder, see :class:`wkwdask.model.store.Store`."""
        try:
            with files.scandir(self.path_of(folder) if folder else self.url) as entries:
                yield from entries
        except (FileNotFoundError, NotADirectoryError):
            path = self.path_of(folder) if folder else self.url
            if files.islink(path) and not files.exists(path):
                raise MissingError(f"{path}: a symbolic link to a folder that is not there") from None

    def states(self, names: Iterable[str]) -> list[FileState | None]:
        """Return the states of files, None for each that is absent."""
        return [files.state_of(self.path_of(name)) for name in names]

    def new_file(self, name: str, temporary_folder: str | None = None, *, flush: bool = True) -> NewFile:
        """Begin a file; its folder is made."""
        path = self.path_of(name)
        files.make_folders_below(self.url, dirname(path))
        return NewFile(path, temporary_folder, flush=flush)

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, which appears whole."""
        files.make_folders_below(self.url, dirname(self.path_of(name)))
        publish_bytes(self.path_of(name), data)

    def delete(self, name: str) -> None:
        """Delete a file for good; an absent one is no error."""
        files.remove_file(self.path_of(name))

    def at(self, url: str) -> FolderStore:
        """Return the store of another folder."""
        return FolderStore(url)

    def below(self, name: str) -> FolderStore:
        """Return the store of a folder inside of this one."""
        return FolderStore(self.path_of(name))

    def make(self) -> None:
        """Make the folder."""
        files.makedirs(self.url)

    def new_files(self, temporary_folder: str) -> NewFiles:
        """Begin many small files; their folders are made."""
        return NewFiles(self.url, temporary_folder)

    def delete_folder(self, name: str) -> None:
        """Delete a folder and all in it; an absent one is no error."""
        files.remove_tree(self.path_of(name))


# ------------------------------------------------------------------------------------------------ remote


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """A place that fsspec reads. What is read through one store is taken to stay as it is."""

    url: str
    """Its URL."""
    opening: str = field(default_factory=lambda: secrets.token_hex(8), compare=False, repr=False)
    """Another one for each opening, so that tables that were kept of an earlier one are not believed."""
    witness: tuple[str, str] | None = None
    """URL of the folder and name of what must be readable for refused files to count as absent, see :func:`trusting`; None where they are errors."""
    is_local: ClassVar = False
    files_at_once: ClassVar = 32
    gap_nbytes: ClassVar = 128 << 10  # unread bytes that cost less than another request
    batch_nbytes: ClassVar = 8 << 20

    def path_of(self, name: str) -> str:
        """Say where a file is; ``..`` in a name leads out of the folder as in any URL."""
        protocol, _, rest = self.url.partition("://")
        if protocol in ("http", "https"):  # there these two would end the path
            name = name.replace("#", "%23").replace("?", "%3F")
        if ".." not in name.split("/"):
            return f"{self.url}/{name}"
        return f"{protocol}://{posixpath.normpath(f'{rest}/{name}')}"

    def file_system(self) -> Any:
        """Give fsspec's file system, which fsspec keeps for each process and thread."""
        fsspec: Any = import_module("fsspec")  # it takes a while, and local files do without
        protocol = self.url.partition("://")[0]
        if protocol in _DRIVERS:
            need(_DRIVERS[protocol], self.url, "remote")
        try:
            return fsspec.filesystem(protocol, **access_options(protocol))
        except (ImportError, TypeError, ValueError) as error:  # some drivers want to know more than a URL says
            raise UnsupportedError(f"{self.url}: cannot be read: {error}") from None

    def open(self, name: str) -> RemoteFile:
        """Give a file, which may turn out to be absent when it is read."""
        return RemoteFile(self, self.path_of(name))

    def read_whole(self, names: Sequence[str], largest: int) -> list[bytes | None]:
        """Read several files, see :class:`Store`."""
        paths = [self.path_of(name) for name in names]
        found = self.fetch(paths, [None] * len(paths), [None] * len(paths))
        for path, data in zip(paths, found, strict=True):
            if data is not None and len(data) > largest:
                raise CorruptError(f"{path}: has {len(data)} bytes, expected at most {largest}")
        return found

    def names(self) -> list[str]:
        """List what is in the place, nothing where that cannot be known."""
        try:
            return sorted({str(path).rstrip("/").rpartition("/")[2] for path in self.file_system().ls(self.url, detail=False)})
        except Exception:  # of places that cannot be listed, each raises its own
            return []

    def entries(self, folder: str = "") -> Iterator[StoredEntry]:
        """Files cannot be listed."""
        raise UnsupportedError(f"{self.path_of(folder)}: remote files cannot be listed")

    def states(self, names: Iterable[str]) -> list[FileState | None]:
        """Files cannot be inspected."""
        raise UnsupportedError(f"{self.url}: remote files cannot be inspected")

    def _only_read(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError(f"{self.url}: remote places are only read")

    new_file = put = delete = make = new_files = delete_folder = _only_read

    def at(self, url: str) -> RemoteStore:
        """Return the store of another URL of the same place."""
        return replace(self, url=url, witness=None)

    def below(self, name: str) -> RemoteStore:
        """Return the store of a folder inside of this one."""
        return replace(self, url=self.path_of(name))

    def fetch(self, paths: list[str], starts: Sequence[int | None], stops: Sequence[int | None]) -> list[bytes | None]:
        """Read ranges of files, all at once, None for each file that is absent; what fails is tried again."""
        found = self._found(paths, starts, stops)
        refused = [path for path, data in zip(paths, found, strict=True) if is_refused(data)]
        is_absent = bool(refused) and self.witness is not None and self._gives(*self.witness)
        if is_absent and self.witness is not None:
            warn_of_refused(self.witness[0], refused[0], self.witness[1])
        return [None if is_absent and is_refused(data) else _checked(data, path) for path, data in zip(paths, found, strict=True)]

    def _found(self, paths: list[str], starts: Sequence[int | None], stops: Sequence[int | None]) -> list[bytes | Exception]:
        """Read ranges of files, all at once, or give the errors."""
        fs = self.file_system()
        unreached = self.contact(fs, paths[0])
        if unreached is not None:
            return [unreached] * len(paths)
        found = (
            fs.cat_ranges(paths, list(starts), list(stops), on_error="return") if len(paths) > 1 else [_caught(lambda: _cat(fs, paths[0], starts[0], stops[0]))]
        )
        out: list[bytes | Exception] = []
        for path, start, stop, data in zip(paths, starts, stops, found, strict=True):
            for pause in _PAUSES:
                if not _is_passing(data):
                    break
                time.sleep(pause)
                data = _caught(lambda path=path, start=start, stop=stop: _cat(fs, path, start, stop))  # type: ignore[misc]
            out.append(data)
        return out

    def contact(self, fs: Any, path: str) -> Exception | None:
        """Make sure, once in each process, that a server answers at all: drivers try for minutes. None where it does, else the error."""
        server = "/".join(self.url.split("/")[:3])
        if not getattr(fs, "async_impl", False) or _reached.get(server):
            return None
        end = time.monotonic() + _CONTACT_SECONDS
        for pause in (*_PAUSES, 0.0):
            found = _caught(lambda: _cat_within(fs, path, end - time.monotonic()))
            if _is_answer(found):
                _reached.put(server, True)
                return None
            if time.monotonic() + pause >= end:
                break
            time.sleep(pause)
        if isinstance(found, TimeoutError):
            return TimeoutError(f"no answer from {server} within {_CONTACT_SECONDS:g} seconds")
        return found if isinstance(found, Exception) else None

    def _gives(self, root: str, name: str) -> bool:
        """Check whether the server gives, now, after it has refused something, what it gave before."""
        return isinstance(self._found([replace(self, url=root).path_of(name)], [None], [None])[0], bytes)


_reached: Lru[bool] = Lru(256)
"""Servers that have answered in this process."""


def _cat(fs: Any, path: str, start: int | None, stop: int | None) -> bytes:
    data: bytes = fs.cat_file(path, start=start, end=stop)
    return data


def _cat_within(fs: Any, path: str, seconds: float) -> bytes:
    """Read one byte of a file, or give up."""
    fsspec_asyn: Any = import_module("fsspec.asyn")
    data: bytes = fsspec_asyn.sync(fs.loop, fs._cat_file, path, start=0, end=1, timeout=max(seconds, 0.1))
    return data


def _is_answer(found: bytes | Exception) -> bool:
    """Tell whether a server answered, if only that there is no such file."""
    is_status = any(isinstance(getattr(found, name, None), int) for name in ("status", "code"))
    return not isinstance(found, Exception) or is_status or is_refused(found) or isinstance(found, FileNotFoundError | NotImplementedError | ValueError)


def _caught(read: Callable[[], bytes]) -> bytes | Exception:
    try:
        return read()
    except Exception as error:  # drivers raise errors of many libraries
        return error


def _is_passing(found: object) -> bool:
    """Tell whether trying again may help."""
    return (
        isinstance(found, Exception)
        and not _is_beyond_end(found)
        and not is_refused(found)
        and not isinstance(found, (FileNotFoundError, NotImplementedError, ModuleNotFoundError))
    )


def _is_beyond_end(error: Exception) -> bool:
    """Tell whether a server says that a range begins beyond the end of a file."""
    status = error.status if hasattr(error, "status") else getattr(error, "code", None)
    return status == 416 or "InvalidRange" in str(error)


def _checked(found: bytes | Exception, path: str) -> bytes | None:
    if isinstance(found, FileNotFoundError):
        return None
    if isinstance(found, Exception) and _is_beyond_end(found):
        return b""
    if isinstance(found, Exception):
        code = errno.EACCES if is_refused(found) else getattr(found, "errno", None) or errno.EIO
        raise OSError(code, f"cannot be read: {found or type(found).__name__}", path) from found
    return found


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a remote store."""

    store: RemoteStore
    """The store."""
    name: str
    """Its URL."""

    @property
    def nbytes(self) -> None:
        """Nobody has said its size."""
        return

    @property
    def state(self) -> str:
        """The opening that it belongs to."""
        return self.store.opening

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Read byte ranges, see :class:`StoredFile`; where one begins beyond the end, some servers say so and some give nothing."""
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        found = self.store.fetch([self.name] * len(ranges), starts, stops)
        out = []
        for (start, stop), data in zip(ranges, found, strict=True):
            if data is None:
                return None
            if len(data) > stop - start:
                what = f"asked for {stop - start} bytes from byte {start} on, got {len(data)}"
                raise UnsupportedError(f"{self.name}: {what}: the server does not serve ranges of bytes")
            if len(data) < stop - start:
                raise TruncatedError(f"{self.name}: ends at byte {start + len(data)}, expected {stop - start} bytes from byte {start} on")
            out.append(data)
        return out

    def read_end(self, nbytes: int) -> bytes | None:
        """Read the last bytes, see :class:`StoredFile`."""
        return self.store.fetch([self.name], [-nbytes], [None])[0]

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        """Fill memory from a byte on; False where the file is absent."""
        found = self.read([(offset, offset + memory.nbytes)])
        if found is not None:
            memoryview(memory.data)[:] = found[0]
        return found is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to close."""
