"""Where the files of a volume are: a local folder, or a place that fsspec reads (http, s3, gs...). An absent file is None, every other trouble an error.

Remote places are only ever read. Stores hold no open file or connection and are small to pickle.
"""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import stat
import time
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Self

from wkwdask.errors import CorruptError, MissingError, TruncatedError, UnsupportedError
from wkwdask.model.extras import need
from wkwdask.store.credentials import access_options
from wkwdask.store.local import is_remote, local_path
from wkwdask.store.lru import Lru
from wkwdask.store.refused import is_refused, warn_of_refused

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

_DRIVERS = {"http": "aiohttp", "https": "aiohttp", "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
"""Which package reads a protocol; fsspec itself has all others that are tried."""
_CONTACT_SECONDS = 5.0  # within which a server must answer for the first time
_PAUSES = (0.2, 1.0)  # before a remote read is tried once more [s]
_REMOTE_FILES = 32
_REMOTE_GAP_NBYTES = 128 << 10  # unread bytes that cost less than another request
_LOCAL_GAP_NBYTES = 4 << 10
_REMOTE_BATCH_NBYTES = 8 << 20
_LOCAL_BATCH_NBYTES = 512 << 10  # larger ones save no time, and are copied once more


class StoredFile(Protocol):
    """One file that is open for reading; a context manager."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def nbytes(self) -> int | None:
        """Its size, None where nobody has said it."""

    @property
    def state(self) -> Hashable:
        """What changes when it is replaced."""

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Read byte ranges, each from its start up to its stop; None where the file is absent, as one of a remote store may turn out to be."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Store(Protocol):
    """A folder of files."""

    @property
    def url(self) -> str:
        """Where it is, for tokens and errors."""

    @property
    def opening(self) -> str:
        """What is known of its files is known of this: the folder, or one opening of a remote place."""

    @property
    def is_local(self) -> bool:
        """Whether files can be listed and looked at."""

    @property
    def files_at_once(self) -> int:
        """How many files are best read in one call."""

    @property
    def gap_nbytes(self) -> int:
        """Up to which gap two ranges are better read as one."""

    @property
    def batch_nbytes(self) -> int:
        """How many bytes are best read as one."""

    def path_of(self, name: str) -> str:
        """Say where a file is, by its name inside the folder."""

    def open(self, name: str) -> StoredFile | None:
        """Open a file, None where it is known to be absent."""

    def read_whole(self, names: Sequence[str], largest: int) -> list[bytes | None]:
        """Read several files, None for each that is absent."""


def open_store(location: str | os.PathLike[str]) -> LocalStore | RemoteStore:
    """Give the store of a path or URL."""
    text = os.fspath(location)
    if not is_remote(text):
        return LocalStore(local_path(text))
    store = RemoteStore(text.rstrip("/"))
    store.check_driver()
    return store


def remote_options(location: str) -> dict[str, Any]:
    """Return the arguments by which zarr-python opens a location, after a remote server has answered."""
    store = open_store(location)
    if isinstance(store, LocalStore):
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
    return replace(store, witness=name) if isinstance(store, RemoteStore) else store


# ------------------------------------------------------------------------------------------------ local


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A folder on a local or shared file system."""

    folder: str
    """The folder."""

    @property
    def url(self) -> str:
        """The folder."""
        return self.folder

    @property
    def opening(self) -> str:
        """The folder."""
        return self.folder

    @property
    def is_local(self) -> bool:
        """Files can be listed and looked at."""
        return True

    @property
    def files_at_once(self) -> int:
        """Files are read one after the other, so that one is held in memory."""
        return 1

    @property
    def gap_nbytes(self) -> int:
        """Up to which gap two ranges are better read as one."""
        return _LOCAL_GAP_NBYTES

    @property
    def batch_nbytes(self) -> int:
        """How many bytes are best read as one."""
        return _LOCAL_BATCH_NBYTES

    def path_of(self, name: str) -> str:
        """Say where a file is."""
        return f"{self.folder}/{name}"

    def open(self, name: str) -> LocalFile | None:
        """Open a file, see :class:`Store`."""
        path = f"{self.folder}/{name}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place is not waited for
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(path):
                raise MissingError(f"{path}: a symbolic link to a file that is not there") from None
            return None
        except ValueError as error:  # NUL bytes, half a surrogate pair
            raise CorruptError(f"{self.folder}: no file can have the name {name!r}: {error}") from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise CorruptError(f"{path}: not a regular file")
        except BaseException:
            os.close(fd)
            raise
        return LocalFile(path, fd, status)

    def read_whole(self, names: Sequence[str], largest: int) -> list[bytes | None]:
        """Read several files, see :class:`Store`."""
        return [self._read_one(name, largest) for name in names]

    def _read_one(self, name: str, largest: int) -> bytes | None:
        file = self.open(name)
        if file is None:
            return None
        with file:
            if file.nbytes > largest:
                raise CorruptError(f"{file.name}: has {file.nbytes} bytes, expected at most {largest}")
            return file.read([(0, file.nbytes)])[0]


class LocalFile:
    """A local file that is open for reading."""

    __slots__ = ("_fd", "name", "nbytes", "state")

    def __init__(self, path: str, fd: int, status: os.stat_result) -> None:
        self.name = path
        self.nbytes: int = status.st_size
        self.state = (status.st_ino, status.st_mtime_ns, status.st_size)
        self._fd = fd

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read byte ranges, see :class:`StoredFile`."""
        return [self._read_one(start, stop) for start, stop in ranges]

    def _read_one(self, start: int, stop: int) -> bytes:
        if stop > self.nbytes:  # memory is not taken on the word of a broken table
            raise TruncatedError(f"{self.name}: ends at byte {self.nbytes}, expected {stop - start} bytes from byte {start} on")
        data = os.pread(self._fd, stop - start, start)
        while len(data) < stop - start:
            more = os.pread(self._fd, stop - start - len(data), start + len(data))
            if not more:
                raise TruncatedError(f"{self.name}: ends at byte {start + len(data)}, expected {stop - start} bytes from byte {start} on")
            data += more
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


# ------------------------------------------------------------------------------------------------ remote


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """A place that fsspec reads. What is read through one store is taken to stay as it is."""

    root: str
    """Its URL."""
    session: str = field(default_factory=lambda: secrets.token_hex(8), compare=False, repr=False)
    """Another one for each opening, so that tables that were kept of an earlier one are not believed."""
    witness: str | None = None
    """What must be readable for refused files to count as absent, see :func:`trusting`; None where they are errors."""

    @property
    def url(self) -> str:
        """Its URL."""
        return self.root

    @property
    def opening(self) -> str:
        """Another one for each opening."""
        return self.session

    @property
    def is_local(self) -> bool:
        """Files cannot be listed."""
        return False

    @property
    def files_at_once(self) -> int:
        """Several requests run at once."""
        return _REMOTE_FILES

    @property
    def gap_nbytes(self) -> int:
        """Up to which gap two ranges are better read as one."""
        return _REMOTE_GAP_NBYTES

    @property
    def batch_nbytes(self) -> int:
        """How many bytes are best read as one."""
        return _REMOTE_BATCH_NBYTES

    def path_of(self, name: str) -> str:
        """Say where a file is; ``..`` in a name leads out of the folder as in any URL."""
        protocol, _, rest = self.root.partition("://")
        if protocol in ("http", "https"):  # there these two would end the path
            name = name.replace("#", "%23").replace("?", "%3F")
        if ".." not in name.split("/"):
            return f"{self.root}/{name}"
        return f"{protocol}://{posixpath.normpath(f'{rest}/{name}')}"

    def check_driver(self) -> None:
        """Make sure that there is a driver for the URL."""
        self.file_system()

    def file_system(self) -> Any:
        """Give fsspec's file system, which fsspec keeps for each process and thread."""
        fsspec: Any = import_module("fsspec")  # it takes a while, and local files do without
        protocol = self.root.partition("://")[0]
        if protocol in _DRIVERS:
            need(_DRIVERS[protocol], self.root, "remote")
        try:
            return fsspec.filesystem(protocol, **access_options(protocol))
        except (ImportError, TypeError, ValueError) as error:  # some drivers want to know more than a URL says
            raise UnsupportedError(f"{self.root}: cannot be read: {error}") from None

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

    def fetch(self, paths: list[str], starts: Sequence[int | None], stops: Sequence[int | None]) -> list[bytes | None]:
        """Read ranges of files, all at once, None for each file that is absent; what fails is tried again."""
        found = self._found(paths, starts, stops)
        refused = [path for path, data in zip(paths, found, strict=True) if is_refused(data)]
        is_absent = bool(refused) and self._gives_witness()
        if is_absent:
            warn_of_refused(self.root, refused[0], self.witness)
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
        server = "/".join(self.root.split("/")[:3])
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

    def _gives_witness(self) -> bool:
        """Tell whether the server gives, now, after it has refused something, what it gave before."""
        return self.witness is not None and isinstance(self._found([self.path_of(self.witness)], [None], [None])[0], bytes)


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
        return self.store.session

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to close."""
