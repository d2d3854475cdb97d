"""Stores: a folder, local or in a zip, or a remote location (http, s3, gs, az and others).

An absent file is None; every other failure is an error. Stores hold no open file or connection, so
they are cheap to pickle.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, ClassVar, TypeVar

from wkwdask.errors import CorruptError, ExistsError, FormatError, MissingError
from wkwdask.model.store import Capabilities, Conflict, Expected
from wkwdask.store import files
from wkwdask.store.new_files import RenamedFile, RenamedFiles, create_whole, publish_bytes
from wkwdask.store.objects.access import access_of
from wkwdask.store.objects.remote import RemoteStore
from wkwdask.store.paths import (
    ZIP,
    basename,
    check_no_bucket,
    dirname,
    is_bucket,
    is_remote,
    is_served,
    local_path,
    stated_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wkwdask.model.store import (
        FileState,
        Folders,
        Item,
        OpenFile,
        Result,
        State,
        Store,
        StoredEntry,
    )


T = TypeVar("T")


def open_store(location: str | os.PathLike[str]) -> FolderStore | RemoteStore:
    """Return the store of a path or URL."""
    text = os.fspath(location)
    if not is_remote(text):
        path = local_path(text)
        return ServedZipStore(path) if is_served(path) else FolderStore(path)
    store = RemoteStore(text.rstrip("/"), access=access_of(text))
    store.client.check(store.url, store.access)
    return store


def store_at(path: str) -> FolderStore | RemoteStore:
    """Return the store of a normal path or URL as it stands; a zip is a file."""
    # the files beside a zip on a server, and the zip itself, are those of the server
    is_url = is_remote(path) or (is_served(path) and ZIP not in path)
    return RemoteStore(path, access=access_of(path)) if is_url else FolderStore(path)


def check_folder(path: str) -> None:
    """Raise MissingError if a path is no folder, and say so if it is a file."""
    if store_at(path).is_folder():
        return
    file = path.partition(":/")[0]  # of an array in a file, such as em.h5:/raw
    if not is_remote(path) and store_at(dirname(file) or ".").is_file(basename(file)):
        raise MissingError(
            f"{file}: is a file, expected the folder of a dataset, layer or mag; convert() "
            "(wkwdask convert) makes one of images and arrays in files"
        )
    raise MissingError(f"{path}: no such folder")


def check_new_file(path: str) -> None:
    """Raise an error, before the work begins, if no file can be written to a path."""
    if is_bucket(path):
        store_at(dirname(path)).now()  # raises an error if this user may not write there
    elif not store_at(dirname(path) or ".").is_folder():
        raise MissingError(f"{path}: its folder does not exist; create it first")
    if store_at(path).is_folder():
        raise ExistsError(f"{path}: is a folder; name a file")


def folders_of(path: str) -> Folders:
    """Return what only folders on a file system have; raises UnsupportedError for a path on a
    server or in a zip."""
    check_no_bucket(path)
    store = store_at(path)
    if store.folders is None:
        store.make()  # raises why nothing can be written there
    return files


def numbered(store: Store, prefix: str, suffix: str = "") -> Iterator[tuple[int, str]]:
    """List the names in a store that consist of a number, such as ``z12`` or ``x3.wkw``, with the
    number, in no order; none if the folder is absent."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in store.scandir():
            digits = entry.name[len(prefix) : len(entry.name) - len(suffix)]
            if (
                entry.name == f"{prefix}{digits}{suffix}"
                and digits.isdecimal()
                and digits.isascii()
                and str(int(digits)) == digits
            ):
                yield int(digits), entry.name


def with_witness(store: Store, name: str) -> Store:
    """Return a store that reads refused files (403) as absent while a witness file stays readable.

    Buckets whose users may not list them answer 403 for absent files. If access itself is lost, for
    example when credentials expire, the server refuses the witness too, and a refused file stays an
    error.
    """
    return replace(store, witness=(store.url, name)) if isinstance(store, RemoteStore) else store


_CAN = Capabilities(lists=True, states=True, writes=True)


@dataclass(frozen=True, slots=True)
class FolderStore:
    """Folder on a file system, in memory or in a zip, see :class:`wkwdask.model.store.Store`."""

    url: str
    is_remote: ClassVar = False
    can: ClassVar = _CAN
    files_at_once: ClassVar = 1  # one after the other, so that only one is held in memory
    gap_nbytes: ClassVar = 4 << 10
    batch_nbytes: ClassVar = 512 << 10  # larger reads are not faster, and cost one more copy

    @property
    def opening(self) -> str:
        return self.url

    @property
    def folders(self) -> Folders | None:
        return None if ZIP in self.url else files

    def path_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _path(self, name: str) -> str:
        """Return the path of a file or folder, or of the store itself."""
        return f"{self.url}/{name}" if name else self.url

    def real(self, name: str = "") -> str:
        return files.realpath(self._path(name))

    def link_target(self, name: str = "") -> str | None:
        path = self._path(name)
        return files.readlink(path) if files.islink(path) else None

    def exists(self, name: str = "") -> bool:
        return files.exists(self._path(name))

    def is_taken(self, name: str = "") -> bool:
        return files.lexists(self._path(name))

    def is_folder(self, name: str = "") -> bool:
        return files.isdir(self._path(name))

    def is_file(self, name: str = "") -> bool:
        return files.isfile(self._path(name))

    def is_writable(self, name: str = "") -> bool:
        return files.is_writable(self._path(name))

    def status(self, name: str = "", *, follow_symlinks: bool = True) -> os.stat_result:
        path = f"{self.url}/{name}" if name else self.url
        return files.stat(path) if follow_symlinks else files.lstat(path)

    def walk(self, folder: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        return files.walk(self._path(folder))

    def open_stream(self, name: str = "") -> BinaryIO:
        return files.open_stream(self._path(name))

    def names(self, folder: str = "") -> list[str]:
        return sorted(entry.name for entry in self.entries(folder))

    def open(self, name: str, ahead_nbytes: int = 0) -> OpenFile | None:
        del ahead_nbytes
        return self._existing(name, files.open_file)

    def _existing(self, name: str, read: Callable[[str], T]) -> T | None:
        """Return what a function makes of the path of a file; None if the file is absent."""
        path = f"{self.url}/{name}"
        try:
            return read(path)
        except (FileNotFoundError, NotADirectoryError):
            if files.islink(path):
                raise MissingError(f"{path}: a symbolic link to a missing file") from None
            if ZIP in path and files.exists(path):
                raise MissingError(f"{path}: its zip is gone from the server") from None
            return None
        except ValueError as error:  # a NUL byte or a lone surrogate
            if isinstance(error, FormatError):
                raise
            raise CorruptError(f"{self.url}: no file can have the name {name!r}: {error}") from None

    def open_heads(self, names: Sequence[str], nbytes: int) -> list[OpenFile | None]:
        del nbytes
        return list(map(self.open, names))

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], at_once: int
    ) -> Iterator[Result]:
        del at_once
        return map(function, items)

    def read_whole(self, names: Sequence[str], largest: int) -> list[bytes | None]:
        return [
            self._existing(name, lambda path: files.read_whole(path, largest)) for name in names
        ]

    def read_document(self, name: str, largest: int) -> bytes | None:
        try:
            return files.read_whole(self.path_of(name), largest)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_ahead(self, names: Iterable[str]) -> None:
        """Do nothing: local files are not waited for."""

    def read_small(
        self, names: Iterable[str], max_nbytes: int, memory: memoryview
    ) -> list[tuple[int, int]]:
        return files.read_small(self.url, names, max_nbytes, memory)

    def check_content(self, name: str = "") -> None:
        files.check_content(self._path(name))

    def scandir(self, folder: str = "") -> Iterator[StoredEntry]:
        path = self._path(folder)
        try:
            with files.scandir(path) as entries:
                yield from entries
        except FileNotFoundError:
            files.check_folder_link(path)
            raise

    def entries(self, folder: str = "") -> Iterator[StoredEntry]:
        path = self._path(folder)
        try:
            with files.scandir(path) as entries:
                yield from entries
        except (FileNotFoundError, NotADirectoryError):
            if files.islink(path) and not files.exists(path):
                raise MissingError(f"{path}: a symbolic link to a missing folder") from None

    def with_listing(self, names: Iterable[Sequence[str]]) -> FolderStore:
        del names
        return self

    def with_states(self, names: Iterable[str], *, only_these: bool = False) -> FolderStore:
        del names, only_these
        return self

    def states(self, names: Iterable[str]) -> list[FileState | None]:
        return files.states_in(self.url, names)

    def new_file(
        self, name: str, temporary_folder: str | None = None, *, flush: bool = True
    ) -> RenamedFile:
        return RenamedFile(self._new(name), temporary_folder, flush=flush)

    def snapshot(self, record: str) -> FolderStore:
        del record
        return self

    def put(self, name: str, data: bytes, expect: State | Expected = Expected.ANY) -> None:
        path = self._new(name)
        if expect is Expected.ANY:
            publish_bytes(path, data)
        elif expect is not Expected.ABSENT:
            raise NotImplementedError(f"{path}: a file system compares no states")
        elif not create_whole(path, data):
            raise Conflict(path)

    def read_state(self, name: str, largest: int) -> tuple[bytes, State] | None:
        raise NotImplementedError(f"{self.path_of(name)}: a file system compares no states")

    def now(self) -> float:
        return time.time()

    def written_at(self, name: str) -> float | None:
        state = files.state_of(self.path_of(name))
        return None if state is None else state.mtime_ns / 1e9

    def _new(self, name: str) -> str:
        """Create the folders in the name of a file; return its path."""
        path = self.path_of(name)
        if "/" in name:
            files.make_folders_below(self.url, dirname(path))
        return path

    def delete(self, *names: str) -> None:
        for name in names:
            files.remove_file(self.path_of(name))

    def at(self, url: str) -> FolderStore:
        return replace(self, url=url)

    def below(self, name: str) -> FolderStore:
        return replace(self, url=stated_path(self.url, name))

    def make(self, *, in_existing: bool = False) -> None:
        if in_existing:
            files.make_folders_below(dirname(self.url), self.url)
        else:
            files.makedirs(self.url)

    def new_files(self, temporary_folder: str, *, is_in_place: bool = False) -> RenamedFiles:
        return RenamedFiles(self.url, temporary_folder, is_in_place=is_in_place)

    def delete_folder(self, name: str = "") -> None:
        files.remove_tree(self._path(name))


@dataclass(frozen=True, slots=True)
class ServedZipStore(FolderStore):
    """Folder in a zip on a server, which is read in as few requests as any remote file."""

    files_at_once: ClassVar = RemoteStore.files_at_once
    gap_nbytes: ClassVar = RemoteStore.gap_nbytes
    batch_nbytes: ClassVar = RemoteStore.batch_nbytes
