"""Remote locations: web servers and buckets, and the protocols that fsspec reads, anonymous without
credentials. Only buckets are written.

A refused file (403) is an error, unless a witness file proves that the server refuses absent files
only, see ``store.with_witness``. Documents that are read together are witnesses for each other.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import logging
import math
import os
import secrets
import threading
import time
import warnings
import zlib
from collections import deque
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, Self

from wkwdask.errors import (
    AccessWarning,
    CorruptError,
    MissingError,
    TruncatedError,
    UnsupportedError,
)
from wkwdask.model.store import Capabilities, Conflict, Expected, FileState, State
from wkwdask.store.daemon_threads import DaemonThreads
from wkwdask.store.looks import look_began
from wkwdask.store.lru import LruCache
from wkwdask.store.objects import fsspec_files, memory_bucket, object_store, writing
from wkwdask.store.objects.access import Access, access_of
from wkwdask.store.objects.credentials import environment
from wkwdask.store.objects.entries import RemoteEntry, RemoteListing, remote_status
from wkwdask.store.objects.new_objects import NewObject, NewObjects
from wkwdask.store.objects.object_store import Answer, Request
from wkwdask.store.objects.seen import SeenObjects
from wkwdask.store.paths import CLOCK_PREFIX, check_has_no_password, is_bucket, normpath, os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
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
_MOST_KEPT_NAMES = 1 << 10


Names = list[tuple[str, "int | None"]]
"""Names in a folder with the sizes of files, None for folders."""


class Recent(NamedTuple):
    """A remote file or folder that was read a moment ago."""

    read: float
    """Time when it was read [s]."""
    data: bytes | PermissionError | Names | None
    """Content, names in a folder, the error of a refused file, or None for an absent file."""
    state: State | None = None
    """State of an object in a bucket, if it was read."""

    @property
    def content(self) -> bytes | None:
        """Content of a file, None for an absent one; the error of a refused file is raised."""
        if isinstance(self.data, PermissionError):
            raise self.data.with_traceback(None)
        return self.data if isinstance(self.data, bytes) else None


_recent: LruCache[Recent] = LruCache(64)
_stored: LruCache[tuple[float, FileState]] = LruCache(1 << 14)
"""New objects of this process, whose states are asked for just after they were stored: with the
time [s]."""


def recent_of(url: str) -> Recent | None:
    """Return a file or a folder (whose URL ends with a slash) that was read a moment ago, because
    one opening needs it several times; in a look, the file may be known from a listing."""
    if _RECORDS in url:
        return None
    return _recent_answer(url) or (None if look_began() is None else _absent_by_listing(url))


def _recent_answer(url: str) -> Recent | None:
    recent = _recent.get((url, access_of(url), environment()))
    if recent is None or time.monotonic() - recent.read >= _TRUSTED_SECONDS:
        return None
    return recent if recent.read >= (look_began() or 0.0) else None


def _listed_above(url: str) -> dict[str, int | None] | None:
    """Return what a look has listed in the folder around a file or folder; None if it has not."""
    if look_began() is None or _RECORDS in url:
        return None
    listed = _recent_answer(f"{url.rpartition('/')[0]}/")
    return dict(listed.data) if listed is not None and isinstance(listed.data, list) else None


def is_known_absent(url: str) -> bool:
    """Check whether a look has listed a folder above a file, or its own, without it."""
    return look_began() is not None and _absent_by_listing(url) is not None


def _absent_by_listing(url: str) -> Recent | None:
    """Return the answer for a name that is absent because a recent listing of a folder above lacks
    it; None if none does."""
    above, _, name = url.rstrip("/").rpartition("/")
    while is_bucket(above) and not above.endswith("/"):
        listed = _recent_answer(f"{above}/")
        if listed is not None and isinstance(listed.data, list):
            is_absent = name not in dict(listed.data)
            return Recent(listed.read, [] if url.endswith("/") else None) if is_absent else None
        above, _, name = above.rpartition("/")
    return None


def remember(
    url: str, data: bytes | PermissionError | Names | None, state: State | None = None
) -> Recent:
    """Remember what the server said of a file, or of a folder (whose URL ends with a slash), unless
    it is large."""
    recent = Recent(time.monotonic(), data, state)
    largest = _MOST_KEPT_NAMES if isinstance(data, list) else _LARGEST_KEPT_NBYTES
    if not isinstance(data, (bytes, list)) or len(data) <= largest:
        _recent.put((url, access_of(url), environment()), recent)
    return recent


_UNLISTED = Capabilities(lists=False, states=False)
_LISTED = Capabilities(lists=True, states=False)
_RECORDS = "/.wkwdask"
"""Begin of the names of records of jobs, which other processes change at any time."""


_num_changes = itertools.count(1)
_last_change = 0
_forgetting = threading.Lock()


def last_change() -> int:
    """Return the number of the last change that this process made in any bucket."""
    return _last_change


def forget(url: str, stored: int | None = None) -> None:
    """Forget a file that this process has changed, that the folders around it were absent, and
    what they held. In a look, listings stay known with a file that was ``stored``, given by its
    size."""
    global _last_change
    _last_change = next(_num_changes)
    key = (access_of(url), environment())
    _recent.discard((f"{url}/", *key))
    _stored.discard(url)
    nbytes = stored
    stays_known = stored is not None and look_began() is not None
    with _forgetting:
        while not url.endswith(":/"):
            _recent.discard((url, *key))
            url, _, name = url.rpartition("/")
            listed = _recent.get((f"{url}/", *key)) if stays_known else None
            if listed is None or not isinstance(listed.data, list):
                _recent.discard((f"{url}/", *key))
            else:
                names = {**dict(listed.data), name: nbytes}
                _recent.put((f"{url}/", *key), listed._replace(data=list(names.items())))
            nbytes = None  # of the folders


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """Remote location, see :class:`wkwdask.model.store.Store`. Files are assumed not to change
    while a store is in use, but for those of jobs in buckets."""

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
    seen: SeenObjects | None = field(default=None, compare=False, repr=False)
    """Objects as they were first seen, see :meth:`snapshot`."""
    is_remote: ClassVar = True
    folders: ClassVar = None
    files_at_once: ClassVar = _REQUESTS_AT_ONCE
    # reading this many unused bytes costs less than another request
    gap_nbytes: ClassVar = 128 << 10
    batch_nbytes: ClassVar = 8 << 20

    def __post_init__(self) -> None:
        check_has_no_password(self.url)

    @property
    def client(self) -> Any:
        """Functions that read the protocol."""
        return self._module if self.seen is None else self.seen

    @property
    def _module(self) -> ModuleType:
        protocol = self.url.partition("://")[0]
        if protocol == memory_bucket.PROTOCOL:
            return memory_bucket
        return object_store if protocol in object_store.PROTOCOLS else fsspec_files

    def path_of(self, name: str) -> str:
        """Return the URL of a file; ``..`` in a name can lead out of the folder, but not out of the
        host or bucket."""
        protocol = self.url.partition("://")[0]
        if object_store.PROTOCOLS.get(protocol) == "HTTP":  # "#" and "?" would end the path
            name = object_store.quoted(name)
        path = f"{self.url}/{name}"
        return normpath(path) if ".." in name.split("/") else path

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

    def read_known(
        self, names: Sequence[str], largest: int, *, is_fresh: bool = False
    ) -> list[Recent]:
        """Read whole documents, unless they are known from a moment ago and need not be fresh."""
        found = {name: None if is_fresh else recent_of(self.path_of(name)) for name in names}
        asked = [name for name, recent in found.items() if recent is None]
        requests = [Request(self.path_of(name), largest=largest) for name in asked]
        for name, answer in zip(asked, self._answers(requests), strict=True):
            found[name] = _remembered(self.path_of(name), answer, largest)
        return [recent for name in names if (recent := found[name]) is not None]

    def names(self, folder: str = "") -> list[str]:
        """List the names in the folder; empty on a web server, which has no listing."""
        return sorted(name for name, _ in self._listed(folder))

    def _listed(self, folder: str) -> Names:
        """List a folder. That of a bucket is trusted for a moment, until this process changes it: a
        job asks for the same names many times. Its own folder is listed each time."""
        url = self.real(folder)
        if not is_bucket(self.url):
            with contextlib.suppress(NotImplementedError, OSError, ValueError):
                return list(self.client.names(url, self.access))
            return []
        recent = recent_of(f"{url}/")
        if recent is not None and isinstance(recent.data, list):
            return recent.data
        change, found = last_change(), list(self.client.names(url, self.access))
        if change == last_change():  # no other thread has changed it meanwhile
            remember(f"{url}/", found)
        return found

    def walk(self, folder: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        found: Names = []
        try:
            found = self.client.names(self.real(folder), self.access)
        except (NotImplementedError, OSError, ValueError):
            if is_bucket(self.url):  # a refusal or an outage must not look like an empty folder
                raise
        folders = [name for name, nbytes in found if nbytes is None]
        files = [name for name, nbytes in found if nbytes is not None]
        yield self.real(folder), folders, files
        for name in folders:
            yield from self.walk(f"{folder}/{name}" if folder else name)

    def all_names(self) -> list[str]:
        """List the names of all objects below a location in a bucket."""
        return [name for name, _ in self.client.walk(self.url, self.access)]

    def open_stream(self, name: str = "") -> BinaryIO:
        return io.BytesIO(self.read_recent(name, LARGEST_DOCUMENT_NBYTES))

    def read_recent(self, name: str, largest: int) -> bytes:
        """Read a file. Small, absent and refused files are trusted for a moment, because one
        opening needs them several times."""
        url = self.real(name)
        data = (recent_of(url) or self.request_recent(name, largest)).content
        if data is None:
            raise os_error(errno.ENOENT, url)
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
        return _remembered(url, answer, largest)

    @property
    def can(self) -> Capabilities:
        can = _LISTED if self.listing is not None else _UNLISTED
        return can._replace(writes=True, compares=True) if is_bucket(self.url) else can

    def real(self, name: str = "") -> str:
        return self.path_of(name) if name else self.url

    def link_target(self, name: str = "") -> None:
        """Return None: a server has no symbolic links."""
        del name

    def exists(self, name: str = "") -> bool:
        return bool(self.mode(name))

    is_taken = exists

    def is_folder(self, name: str = "") -> bool:
        if self._is_there(name) is not False:
            return False
        url = self.real(name)
        return url.rpartition("/")[2] in (_listed_above(url) or ()) or bool(self._listed(name))

    def is_file(self, name: str = "") -> bool:
        return self._is_there(name) is True

    def _is_there(self, name: str) -> bool | None:
        """Check whether a file exists, None if the server does not say; an absent one is trusted
        for a moment."""
        url = self.real(name)
        recent = recent_of(url)
        if recent is not None:
            return None if isinstance(recent.data, PermissionError) else recent.data is not None
        listed = _listed_above(url)
        if listed is not None:
            return listed.get(url.rpartition("/")[2]) is not None
        try:
            self.client.size(url, self.access)
        except FileNotFoundError:
            remember(url, None)
            return False
        except PermissionError:
            return None
        return True

    def is_writable(self, name: str = "") -> bool:
        """Check whether files may be written; whether this user may is known from the first one."""
        del name
        return is_bucket(self.url)

    def mode(self, name: str = "") -> int:
        """Return the mode of a file or folder, 0 if it is absent or refused; other errors are
        raised."""
        if self.is_file(name):
            return remote_status(0).st_mode
        with contextlib.suppress(PermissionError):  # of a user who may read, but not list
            if self.is_folder(name):
                return remote_status(None).st_mode
        return 0

    def status(self, name: str = "", *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the size of a file. A prefix of other files is a folder, if the server can list
        them."""
        try:
            return remote_status(self.client.size(self.real(name), self.access))
        except FileNotFoundError:
            with contextlib.suppress(PermissionError):
                if self._listed(name):
                    return remote_status(None)
            raise

    def with_listing(self, names: Iterable[Sequence[str]]) -> RemoteStore:
        try:
            sizes = dict(self.client.walk(self.url, self.access))
        except UnsupportedError:
            sizes = self._sizes(names)
        states = {name: FileState(nbytes, 0) for name, nbytes in sizes.items()}
        return replace(self, listing=RemoteListing(self.url, states))

    def with_states(self, names: Iterable[str], *, only_these: bool = False) -> RemoteStore:
        listed = () if only_these else (name for name, _ in self.client.walk(self.url, self.access))
        names = list(dict.fromkeys((*names, *listed)))  # a listing may lag behind
        found = zip(names, replace(self, listing=None).states(names), strict=True)
        states = {name: state for name, state in found if state is not None}
        return replace(self, listing=RemoteListing(self.url, states))

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
        listed = self._listed(folder) if is_bucket(url) else self.client.names(url, self.access)
        for name, nbytes in listed:
            yield RemoteEntry(name, f"{url}/{name}", nbytes)

    def entries(self, folder: str = "") -> Iterator[StoredEntry]:
        """List a folder; raises UnsupportedError if the files are unknown."""
        if self.listing is None and is_bucket(self.url):
            yield from self.scandir(folder)
            return
        if self.listing is None:
            raise UnsupportedError(f"{self.path_of(folder)}: remote files cannot be listed")
        yield from self.listing.folders.get(folder, ())

    def states(self, names: Iterable[str]) -> list[FileState | None]:
        """Return the states of objects, or the listed sizes; raises UnsupportedError if the files
        are unknown."""
        if self.listing is not None:
            return [self.listing.states.get(name) for name in names]
        if not is_bucket(self.url):
            raise UnsupportedError(f"{self.url}: remote files cannot be inspected")
        return for_all(self._state_of, list(names))

    def _state_of(self, name: str) -> FileState | None:
        url = self.path_of(name)
        written, stored = _stored.get(url) or (0.0, None)
        if stored is not None and self.seen is None:
            _stored.discard(url)
            if time.monotonic() - written < _TRUSTED_SECONDS:
                return stored
        found = self.client.head(url, self.access)
        return None if found is None else FileState(found.nbytes, writing.stamp_of(found.state))

    def read_state(self, name: str, largest: int) -> tuple[bytes, State] | None:
        path = self.path_of(name)
        (answer,) = self._answers([Request(path, largest=largest)])
        return None if answer is None else (_whole(answer, path, largest), answer.state)

    def now(self) -> float:
        name = f"{CLOCK_PREFIX}{secrets.token_hex(8)}"
        self.put(name, b"")
        now = self.written_at(name)
        self.delete(name)
        if now is None:
            raise OSError(errno.EIO, "the server does not show what was just written", self.url)
        return now

    def written_at(self, name: str) -> float | None:
        """Return when an object was written, by the clock of the server [s since the epoch]; None
        if it is absent."""
        found: writing.Found | None = self._writable().head(self.path_of(name), self.access)
        return None if found is None else found.modified

    def read_small(
        self, names: Iterable[str], max_nbytes: int, memory: memoryview
    ) -> list[tuple[int, int]]:
        del names, max_nbytes, memory
        raise UnsupportedError(f"{self.url}: remote files are read one by one")

    # --------------------------------------------------------------------------------------------
    # writing

    def _writable(self) -> Any:
        """Return the module that writes; raises UnsupportedError unless this is a bucket."""
        if not is_bucket(self.url):
            raise UnsupportedError(f"{self.url}: this location is read-only")
        return self._module

    def put(
        self,
        name: str,
        data: bytes | BinaryIO,
        expect: State | Expected = Expected.ANY,
    ) -> State:
        url = self.path_of(name)
        try:
            state = writing.put(self._writable(), url, data, expect, self.access)
        except BaseException:
            forget(url)
            raise
        forget(url, len(data) if isinstance(data, bytes) else None)
        return state

    def snapshot(self, record: str) -> RemoteStore:
        seen = SeenObjects(self._writable(), record)
        return replace(self, opening=secrets.token_hex(8), seen=seen)

    def publish(self, name: str, data: bytes | BinaryIO) -> None:
        """Store a new object, or replace one of a snapshot; raises Conflict if another process has
        changed it since then."""
        if self.seen is None:
            # the first writer of a name wins: an earlier run of the task may have stored it
            with contextlib.suppress(Conflict):
                state = self.put(name, data, Expected.ABSENT)
                nbytes = len(data) if isinstance(data, bytes) else data.seek(0, io.SEEK_END)
                stored = FileState(nbytes, writing.stamp_of(state))
                _stored.put(self.path_of(name), (time.monotonic(), stored))
            return
        url = self.path_of(name)
        if self.seen.has(url, data):  # equal files keep their state, so nothing above is rebuilt
            return
        expected = self.seen.expected(url, self.access)
        self.seen.check_job(self.access)
        nbytes = len(data) if isinstance(data, bytes) else data.seek(0, io.SEEK_END)
        self.seen.keep(url, self.put(name, data, expected), nbytes)

    def new_file(
        self, name: str, temporary_folder: str | None = None, *, flush: bool = True
    ) -> NewObject:
        del temporary_folder, flush
        self._writable()
        return NewObject(self.path_of(name), name, self.publish)

    def new_files(self, temporary_folder: str, *, is_in_place: bool = False) -> NewObjects:
        del temporary_folder, is_in_place
        self._writable()
        return NewObjects(self._publish_all)

    def _publish_all(self, items: list[tuple[str, bytes]]) -> None:
        for_all(lambda item: self.publish(*item), items)

    def copy(self, source: str, names: Sequence[str]) -> None:
        """Copy objects of another folder of the bucket, under the same names; those that exist here
        stay."""
        client = self._writable()

        def copy(name: str) -> None:
            url = self.path_of(name)
            writing.copy(client, f"{source}/{name}", url, self.access)
            forget(url)

        for_all(copy, names)

    def delete(self, *names: str) -> None:
        """Delete objects. Those of a snapshot are looked at once more, since no server deletes on
        condition: raises Conflict if another process has changed one."""
        urls = list(map(self.path_of, names))
        if self.seen is None:
            self._delete(urls)
            return
        for url in urls:
            self.seen.check_unchanged(url, self.access)
        self.seen.check_job(self.access)
        self._delete(urls)
        self.seen.drop(urls)

    def _delete(self, urls: list[str]) -> None:
        if urls:
            self._writable().delete(urls, self.access)
        for url in urls:
            forget(url)

    def delete_folder(self, name: str = "") -> None:
        url = self.real(name)
        self._delete([f"{url}/{key}" for key, _ in self._writable().walk(url, self.access)])

    def make(self, *, in_existing: bool = False) -> None:
        """Return: folders exist by the objects in them."""
        del in_existing
        self._writable()

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


def _remembered(url: str, answer: Answer | None, largest: int) -> Recent:
    """Remember the answer to a request for a whole file."""
    if answer is None:
        return remember(url, None)
    return remember(url, _whole(answer, url, largest), answer.state)


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
    global _proofs, _forgetting
    _pools.clear()
    _forgetting = threading.Lock()
    _proofs = LruCache(1024)


os.register_at_fork(after_in_child=_start_again)
