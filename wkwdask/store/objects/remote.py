"""Remote locations: web servers and buckets, and the protocols that fsspec reads. Read-only, and
anonymous without credentials.

A refused file (403) is an error, unless a witness file proves that the server refuses absent files
only, see ``store.with_witness``. Documents that are read together are witnesses for each other.
"""

from __future__ import annotations

import errno
import io
import logging
import math
import os
import posixpath
import secrets
import stat
import threading
import time
import warnings
import zlib
from collections import deque
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, NoReturn, Self

from wkwdask.errors import (
    AccessWarning,
    CorruptError,
    MissingError,
    TruncatedError,
    UnsupportedError,
)
from wkwdask.model.store import Capabilities, FileState
from wkwdask.store.daemon_threads import DaemonThreads
from wkwdask.store.lru import LruCache
from wkwdask.store.objects import fsspec_files, object_store
from wkwdask.store.objects.access import Access, access_of
from wkwdask.store.objects.credentials import environment
from wkwdask.store.objects.object_store import Answer, Request
from wkwdask.store.paths import check_has_no_password

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from types import ModuleType

    import numpy as np
    import numpy.typing as npt

    from wkwdask.model.store import Item, Result, StoredEntry

_logger = logging.getLogger(__name__)
_REQUESTS_AT_ONCE = 32
_SIZES_AT_ONCE = 1 << 14
LARGEST_DOCUMENT_NBYTES = 64 << 20  # unpacked: a server may send a small gzip stream of a huge one
_TRUSTED_SECONDS = 2.0
_LARGEST_KEPT_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """Name in a remote folder, see :class:`wkwdask.model.store.StoredEntry`."""

    name: str
    path: str
    nbytes: int | None
    """Size of a file, None for a folder."""

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self.nbytes is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self.nbytes is not None

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return remote_status(self.nbytes)


def remote_status(nbytes: int | None) -> os.stat_result:
    """Return the status of a file of some size, or of a folder (None)."""
    mode = stat.S_IFDIR | 0o555 if nbytes is None else stat.S_IFREG | 0o444
    return os.stat_result(
        (mode, 0, 0, 1, 0, 0, nbytes or 0, 0, 0, 0),
        dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), 0),
    )


class RemoteListing:
    """Files below a URL: sizes by name, and entries by folder."""

    def __init__(self, url: str, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.folders: dict[str, list[RemoteEntry]] = {"": []}
        for name, nbytes in sizes.items():
            self._add(url, name, nbytes)

    def _add(self, url: str, name: str, nbytes: int | None) -> None:
        folder, _, last = name.rpartition("/")
        if folder not in self.folders:
            self.folders[folder] = []
            self._add(url, folder, None)
        self.folders[folder].append(RemoteEntry(last, f"{url}/{name}", nbytes))


class Recent(NamedTuple):
    """A remote file that was read a moment ago."""

    read: float
    """Time when it was read [s]."""
    data: bytes | PermissionError | None
    """Content, the error of a refused file, or None for an absent file."""


_recent: LruCache[Recent] = LruCache(64)


def recent_of(url: str) -> Recent | None:
    """Return a file that was read a moment ago, because one opening needs it several times."""
    recent = _recent.get((url, access_of(url), environment()))
    is_trusted = recent is not None and time.monotonic() - recent.read < _TRUSTED_SECONDS
    return recent if is_trusted else None


def remember(url: str, data: bytes | PermissionError | None) -> Recent:
    """Remember what the server said of a file, unless the file is large."""
    recent = Recent(time.monotonic(), data)
    if not isinstance(data, bytes) or len(data) <= _LARGEST_KEPT_NBYTES:
        _recent.put((url, access_of(url), environment()), recent)
    return recent


_UNLISTED = Capabilities(lists=False, states=False)
_LISTED = Capabilities(lists=True, states=False)


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """Remote location, see :class:`wkwdask.model.store.Store`. Files are assumed not to change
    while a store is in use."""

    url: str
    opening: str = field(default_factory=lambda: secrets.token_hex(8), compare=False, repr=False)
    """Random key of one opening. Caches of tables contain it, so a later opening reads the tables
    again."""
    witness: tuple[str, str] | None = None
    """Folder URL and name of a file that must stay readable for refused files to count as absent;
    None if refusals are errors."""
    access: Access = field(default_factory=Access)
    listing: RemoteListing | None = field(default=None, compare=False, repr=False)
    """Files of the location, None if unknown."""
    is_remote: ClassVar = True
    folders: ClassVar = None
    files_at_once: ClassVar = _REQUESTS_AT_ONCE
    # reading this many unused bytes costs less than another request
    gap_nbytes: ClassVar = 128 << 10
    batch_nbytes: ClassVar = 8 << 20

    def __post_init__(self) -> None:
        check_has_no_password(self.url)

    @property
    def client(self) -> ModuleType:
        """Module that reads the protocol."""
        return (
            object_store if self.url.partition("://")[0] in object_store.PROTOCOLS else fsspec_files
        )

    def path_of(self, name: str) -> str:
        """Return the URL of a file; ``..`` in a name leads out of the folder, as in any URL."""
        protocol, _, rest = self.url.partition("://")
        if object_store.PROTOCOLS.get(protocol) == "HTTP":  # "#" and "?" would end the path
            name = object_store.quoted(name)
        if ".." not in name.split("/"):
            return f"{self.url}/{name}"
        return f"{protocol}://{posixpath.normpath(f'{rest}/{name}')}"

    def open(self, name: str, ahead_nbytes: int = 0) -> RemoteFile | AheadFile:
        return (
            AheadFile(self, name, ahead_nbytes)
            if ahead_nbytes
            else RemoteFile(self, self.path_of(name))
        )

    def open_heads(self, names: Sequence[str], nbytes: int) -> list[OpenRemoteFile | None]:
        """Open files and read the first ``nbytes`` bytes of each, in one request for each file;
        None for absent ones."""
        paths = [self.path_of(name) for name in names]
        found = self._answers([Request(path, 0, nbytes) for path in paths])
        return [
            None if answer is None else self._opened(path, answer)
            for path, answer in zip(paths, found, strict=True)
        ]

    def _opened(self, path: str, answer: Answer) -> OpenRemoteFile:
        size: int = self.client.size(path, self.access) if answer.nbytes is None else answer.nbytes
        encoding = "gzip" if answer.encoding == "gzip" and answer.data[:2] == b"\x1f\x8b" else ""
        return OpenRemoteFile(self, path, answer.data, size, answer.etag, encoding)

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], at_once: int
    ) -> Iterator[Result]:
        """Call a function ahead on threads. It must not call this method itself: it would wait for
        a thread that waits for it."""
        return (
            _ahead(function, items, at_once) if self.client.IS_CONCURRENT else map(function, items)
        )

    def read_whole(self, names: Sequence[str], largest: int) -> list[bytes | None]:
        paths = [self.path_of(name) for name in names]
        found = self._answers([Request(path, largest=largest) for path in paths])
        return [
            None if answer is None else _whole(answer, path, largest)
            for path, answer in zip(paths, found, strict=True)
        ]

    def names(self, folder: str = "") -> list[str]:
        """List the names in the folder; empty if it cannot be listed."""
        url = self.path_of(folder) if folder else self.url
        try:
            return sorted(name for name, _ in self.client.names(url, self.access))
        except (NotImplementedError, OSError, ValueError):
            return []

    def walk(self, folder: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        url = self.real(folder)
        try:
            found = list(self.client.names(url, self.access))
        except (NotImplementedError, OSError, ValueError):
            return
        folders = [name for name, nbytes in found if nbytes is None]
        yield url, folders, [name for name, nbytes in found if nbytes is not None]
        for name in folders:
            yield from self.walk(f"{folder}/{name}" if folder else name)

    def open_stream(self, name: str = "") -> BinaryIO:
        return io.BytesIO(self.read_recent(name, LARGEST_DOCUMENT_NBYTES))

    def read_recent(self, name: str, largest: int) -> bytes:
        """Read a file. Small, absent and refused files are trusted for a moment, because one
        opening needs them several times."""
        url = self.real(name)
        data = (recent_of(url) or self.request_recent(name, largest)).data
        if isinstance(data, PermissionError):
            raise data.with_traceback(None)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
        return data

    def read_document(self, name: str, largest: int) -> bytes | None:
        try:
            return self.read_recent(name, largest)
        except FileNotFoundError:
            return None

    def read_ahead(self, names: Iterable[str]) -> None:
        for_all(
            lambda name: (
                recent_of(self.real(name)) or self.request_recent(name, LARGEST_DOCUMENT_NBYTES)
            ),
            list(dict.fromkeys(names)),
        )

    def request_recent(self, name: str, largest: int) -> Recent:
        """Read a file, or the file that the store itself is, and remember it."""
        url = self.real(name)
        try:
            (answer,) = self._answers([Request(url, largest=largest)])
        except PermissionError as error:
            return remember(url, error)
        return remember(url, None if answer is None else _whole(answer, url, largest))

    @property
    def can(self) -> Capabilities:
        return _LISTED if self.listing is not None else _UNLISTED

    def real(self, name: str = "") -> str:
        return self.path_of(name) if name else self.url

    def link_target(self, name: str = "") -> None:
        """Return None: a server has no symbolic links."""
        del name

    def exists(self, name: str = "") -> bool:
        return bool(self.mode(name))

    is_taken = exists

    def is_folder(self, name: str = "") -> bool:
        return stat.S_ISDIR(self.mode(name))

    def is_file(self, name: str = "") -> bool:
        return stat.S_ISREG(self.mode(name))

    def is_writable(self, name: str = "") -> bool:
        del name
        return False

    def mode(self, name: str = "") -> int:
        """Return the mode of a file or folder, 0 if it is absent or refused; other errors are
        raised."""
        url = self.real(name)
        recent = recent_of(url)
        if recent is not None:
            return remote_status(0).st_mode if isinstance(recent.data, bytes) else 0
        try:
            return self.status(name).st_mode
        except (FileNotFoundError, PermissionError):
            return 0

    def status(self, name: str = "", *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the size of a file. A prefix of other files is a folder, if the server can list
        them."""
        try:
            return remote_status(self.client.size(self.real(name), self.access))
        except FileNotFoundError:
            if self.names(name):
                return remote_status(None)
            raise

    def with_listing(self, names: Iterable[Sequence[str]]) -> RemoteStore:
        try:
            sizes = dict(self.client.walk(self.url, self.access))
        except UnsupportedError:
            sizes = self._sizes(names)
        return replace(self, listing=RemoteListing(self.url, sizes))

    def _sizes(self, names: Iterable[Sequence[str]]) -> dict[str, int]:
        """Ask for the sizes of files by all their possible names."""
        sizes: dict[str, int] = {}
        remaining = iter(names)
        while batch := list(islice(remaining, _SIZES_AT_ONCE)):
            for position in range(max(map(len, batch))):
                asked = [
                    variants[position]
                    for variants in batch
                    if position < len(variants) and not sizes.keys() & set(variants[:position])
                ]
                found = for_all(self._size_or_error, asked)
                refused = [
                    name
                    for name, size in zip(asked, found, strict=True)
                    if isinstance(size, PermissionError)
                ]
                is_absent = (
                    bool(refused) and self.witness is not None and self._can_read(*self.witness)
                )
                for name, size in zip(asked, found, strict=True):
                    if isinstance(size, int):
                        sizes[name] = size
                    elif not isinstance(size, FileNotFoundError) and not (
                        is_absent and isinstance(size, PermissionError)
                    ):
                        raise size
        return sizes

    def _size_or_error(self, name: str) -> int | Exception:
        try:
            size: int = self.client.size(self.path_of(name), self.access)
        except Exception as error:  # each is raised, or counts as absent, when all are known
            return error
        return size

    def check_content(self, name: str = "") -> None:
        """Do nothing: no checksum is known."""

    def scandir(self, folder: str = "") -> Iterator[StoredEntry]:
        url = self.real(folder)
        for name, nbytes in self.client.names(url, self.access):
            yield RemoteEntry(name, f"{url}/{name}", nbytes)

    def entries(self, folder: str = "") -> Iterator[StoredEntry]:
        """List a folder; raises UnsupportedError if the files are unknown."""
        if self.listing is None:
            raise UnsupportedError(f"{self.path_of(folder)}: remote files cannot be listed")
        yield from self.listing.folders.get(folder, ())

    def states(self, names: Iterable[str]) -> list[FileState | None]:
        """Return the sizes of files; raises UnsupportedError if the files are unknown."""
        if self.listing is None:
            raise UnsupportedError(f"{self.url}: remote files cannot be inspected")
        sizes = self.listing.sizes
        return [FileState(sizes[name], 0) if name in sizes else None for name in names]

    def _only_read(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError(f"{self.url}: remote locations are read-only")

    new_file = put = delete = make = new_files = delete_folder = read_small = _only_read

    def at(self, url: str) -> RemoteStore:
        return replace(self, url=url, witness=None, listing=None)

    def below(self, name: str) -> RemoteStore:
        return replace(self, url=self.path_of(name), listing=None)

    def fetch(self, requests: Sequence[Request]) -> list[bytes | None]:
        """Read byte ranges of files concurrently; None for each absent file."""
        return [None if answer is None else answer.data for answer in self._answers(requests)]

    def _answers(self, requests: Sequence[Request]) -> list[Answer | None]:
        # The witness is read after the refusal. If it were read before, credentials could expire in
        # between, and existing files would count as absent.
        found = (
            for_all(self._answer_or_error, requests)
            if self.client.IS_CONCURRENT
            else list(map(self._answer_or_error, requests))
        )
        refused = [
            request.url
            for request, answer in zip(requests, found, strict=True)
            if isinstance(answer, PermissionError)
        ]
        witness = (
            self.witness
            if self.witness is not None or not refused
            else _witness_among(requests, found)
        )
        is_absent = bool(refused) and witness is not None and self._can_read(*witness)
        if is_absent and witness is not None:
            warn_of_refused(witness[0], refused[0], witness[1])
        return [
            None if is_absent and isinstance(answer, PermissionError) else _existing(answer)
            for answer in found
        ]

    def _answer_or_error(self, request: Request) -> Answer | Exception:
        if _logger.isEnabledFor(logging.DEBUG):
            # a query may be a signature
            _logger.debug(
                "read %s, bytes %s to %s",
                request.url.partition("?")[0],
                request.start,
                request.stop,
            )
        try:
            answer: Answer = self.client.read(request, self.access)
        except Exception as error:  # each is raised, or counts as absent, when all are known
            return error
        return answer

    def _can_read(self, root: str, name: str) -> bool:
        """Check whether the server still returns a file after it has refused another one. Threads
        that ask at the same time share the next request."""
        url, refused = replace(self, url=root).path_of(name), time.monotonic()
        (proof,) = _proofs.get_or_make([(url, self.access)], lambda _: [_Proof()])
        with proof.lock:
            if proof.asked <= refused:
                proof.asked = time.monotonic()
                proof.is_readable = isinstance(self._answer_or_error(Request(url)), Answer)
            return proof.is_readable


class _Proof:
    """Result of the last request for a witness."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = -math.inf
        """Time of the request [s]."""
        self.is_readable = False


_proofs: LruCache[_Proof] = LruCache(1024)


def _witness_among(
    requests: Sequence[Request], found: Sequence[Answer | Exception]
) -> tuple[str, str] | None:
    """Return a file that was read whole together with refused ones, None if there is none."""
    urls = (
        request.url
        for request, answer in zip(requests, found, strict=True)
        if request.start is None and isinstance(answer, Answer)
    )
    return next(((folder, name) for folder, _, name in (url.rpartition("/") for url in urls)), None)


def _existing(answer: Answer | Exception) -> Answer | None:
    """Return an answer, None for an absent file; any other error is raised."""
    if isinstance(answer, FileNotFoundError) and not isinstance(answer, MissingError):
        # MissingError: the bucket is missing
        return None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _whole(answer: Answer, path: str, largest: int) -> bytes:
    """Return the content of a whole file; servers send stored gzip streams with
    ``Content-Encoding``."""
    data = answer.data
    if answer.encoding == "gzip" and data[:2] == b"\x1f\x8b":
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, largest + 1)
        except zlib.error as error:
            raise CorruptError(
                f"{path}: byte 0: expected a gzip stream of {len(answer.data)} bytes, as the "
                f"server says: {error}"
            ) from None
    if len(data) > largest:
        raise CorruptError(f"{path}: has {len(data)} bytes, expected at most {largest}")
    return data


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Remote file, see :class:`wkwdask.model.store.StoredFile`."""

    store: RemoteStore
    name: str
    head: bytes = field(default=b"", repr=False)
    """First bytes of the file, which are not requested again."""
    nbytes: int | None = None
    etag: str | None = None
    """State of the file when it was opened; a file that was replaced since then is an error. None
    if nothing was read yet."""

    @property
    def state(self) -> str:
        """Key of the opening that the file belongs to."""
        return self.store.opening

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Read byte ranges, see :class:`StoredFile`. For a range beyond the end, some servers
        report an error and some return nothing."""
        known = len(self.head)
        found = iter(
            self.store.fetch(
                [
                    Request(self.name, max(start, known), stop, self.etag)
                    for start, stop in ranges
                    if stop > known
                ]
            )
        )
        out = []
        for start, stop in ranges:
            rest = b"" if stop <= known else next(found)
            if rest is None:
                return None
            data = self.head[start:stop] + rest
            if len(data) > stop - start:
                what = f"requested {stop - start} bytes at byte {start}, got {len(data)}"
                raise UnsupportedError(
                    f"{self.name}: {what}: the server does not support range requests"
                )
            if len(data) < stop - start:
                raise TruncatedError(
                    f"{self.name}: ends at byte {start + len(data)}, expected {stop - start} bytes "
                    f"from byte {start} on"
                )
            out.append(data)
        return out

    def read_end(self, nbytes: int) -> bytes | None:
        return self.store.fetch([Request(self.name, -nbytes, None, self.etag)])[0]

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        """Fill memory with the bytes at an offset; False if the file is absent."""
        found = self.read([(offset, offset + memory.nbytes)])
        if found is not None:
            memoryview(memory.data)[:] = found[0]
        return found is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


@dataclass(frozen=True, slots=True)
class OpenRemoteFile(RemoteFile):
    """Remote file whose size and first bytes are known, see
    :class:`wkwdask.model.store.OpenFile`."""

    nbytes: int = 0
    encoding: str = ""
    """``Content-Encoding`` in which the whole file is stored, empty for none."""
    descriptor: ClassVar[None] = None

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for start, stop in ranges:
            if stop > self.nbytes:
                # checked before it is requested: a damaged table may ask for terabytes
                raise TruncatedError(
                    f"{self.name}: ends at byte {self.nbytes}, expected {stop - start} bytes from "
                    f"byte {start} on"
                )
        found = RemoteFile.read(self, ranges)
        if found is None:
            raise MissingError(f"{self.name}: not found, though it existed a moment ago")
        return found

    def read_end(self, nbytes: int) -> bytes:
        return self.read([(max(0, self.nbytes - nbytes), self.nbytes)])[0]

    def read_some(self, nbytes: int, offset: int) -> bytes:
        """Read bytes at an offset; fewer at the end of the file."""
        return self.read([(min(offset, self.nbytes), min(offset + nbytes, self.nbytes))])[0]

    def read_ranges(self, ranges: npt.NDArray[np.int64], memory: npt.NDArray[np.uint8]) -> None:
        """Read many ranges concurrently; each row is (offset in file, offset in memory, length)."""
        rows, view = ranges.tolist(), memoryview(memory.data)
        for (_, start, length), data in zip(
            rows, self.read([(offset, offset + length) for offset, _, length in rows]), strict=True
        ):
            view[start : start + length] = data

    def close(self) -> None:
        """There is nothing to close."""


class AheadFile:
    """Remote file that is needed almost whole. The first read requests its first bytes, which are
    all bytes of a small file."""

    nbytes = None

    def __init__(self, store: RemoteStore, key: str, ahead_nbytes: int) -> None:
        self._store, self._key, self._ahead_nbytes = store, key, ahead_nbytes
        self._opened: list[OpenRemoteFile | None] = []
        self.name, self.state = store.path_of(key), store.opening

    def _file(self) -> OpenRemoteFile | None:
        if not self._opened:  # a cached_property would make threads wait for each other
            self._opened = self._store.open_heads([self._key], self._ahead_nbytes)
        return self._opened[0]

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        file = self._file()
        return None if file is None else file.read(ranges)

    def read_end(self, nbytes: int) -> bytes | None:
        file = self._file()
        return None if file is None else file.read_end(nbytes)

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        file = self._file()
        return file is not None and file.read_into(memory, offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


_warned_locations: LruCache[bool] = LruCache(1024)
"""Locations for which a warning about refused files was issued."""


def warn_of_refused(location: str, path: str, witness: str) -> None:
    """Warn, once per location and process, that refused files are read as absent."""
    if not _warned_locations.get(location):
        _warned_locations.put(location, True)
        note = (
            f"the server refuses files (403 Forbidden), for example {path}, while {witness} is "
            "readable: they are treated as absent, and read as zeros"
        )
        warnings.warn(f"{location}: {note}", AccessWarning, stacklevel=2)


# ------------------------------------------------------------------------------------------------
# threads


_pools: dict[str, DaemonThreads] = {}
"""Threads that all reads of the process share: those for files wait for those for single
requests."""


def _threads(kind: str) -> DaemonThreads:
    return _pools.get(kind) or _pools.setdefault(
        kind, DaemonThreads(f"wkwdask-{kind}", _REQUESTS_AT_ONCE)
    )


def for_all(function: Any, items: Sequence[Any]) -> list[Any]:
    """Call a function that makes one request for all items. All calls end before an error is
    raised, except when the main thread is interrupted."""
    if len(items) < 2 and threading.current_thread() is not threading.main_thread():
        # a request itself cannot be interrupted
        return list(map(function, items))
    calls = [_threads("request").submit(function, item) for item in items]
    wait(calls)
    return [call.result() for call in calls]


def _ahead(
    function: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> Iterator[Result]:
    """Yield the results of a function in order, while it is called for the next items."""
    pending: deque[Future[Result]] = deque()
    is_interrupted = False
    try:
        for item in items:
            pending.append(_threads("file").submit(function, item))
            if len(pending) >= at_once or pending[0].done():
                # at most one, so that the number of calls ahead grows while results are slow
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        running = [future for future in pending if not future.cancel()]
        if not is_interrupted:  # else no request outlives the read
            wait(running)


def _start_again() -> None:
    global _proofs
    _pools.clear()
    _proofs = LruCache(1024)


os.register_at_fork(after_in_child=_start_again)
