"""Where the files of a volume are: a local folder, or a place that fsspec reads (http, s3, gs...). An absent file is None, every other trouble an error.

Remote places are only ever read. Stores hold no open file or connection and are small to pickle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from wkwdask.errors import CorruptError, FormatError, MissingError
from wkwdask.store import files
from wkwdask.store.new_files import NewFile, NewFiles, publish_bytes
from wkwdask.store.paths import dirname, is_remote, local_path
from wkwdask.store.remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wkwdask.model.store import FileState, Store, StoredEntry
    from wkwdask.store.files import OpenFile


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
    return {} if isinstance(store, FolderStore) else store.fsspec_arguments()


def with_witness(store: Store, name: str) -> Store:
    """Give a store in which files that a server refuses to give (403) count as absent, as long as it gives a certain one.

    Buckets whose readers may not list them answer 403 where a file is absent. If access as such was lost, as by credentials that expire, that file is refused
    as well, and what was asked for stays an error.
    """
    return replace(store, witness=(store.url, name)) if isinstance(store, RemoteStore) else store


@dataclass(frozen=True, slots=True)
class FolderStore:
    """A folder on a file system or in memory, see :class:`wkwdask.model.store.Store`."""

    url: str
    is_local: ClassVar = True
    files_at_once: ClassVar = 1  # they are read one after the other, so that one is held in memory
    gap_nbytes: ClassVar = 4 << 10
    batch_nbytes: ClassVar = 512 << 10  # larger ones save no time, and are copied once more

    @property
    def opening(self) -> str:
        return self.url

    def path_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def open(self, name: str) -> OpenFile | None:
        path = f"{self.url}/{name}"
        try:
            return files.open_file(path)
        except (FileNotFoundError, NotADirectoryError):
            if files.islink(path):
                raise MissingError(f"{path}: a symbolic link to a missing file") from None
            return None
        except ValueError as error:  # NUL bytes, half a surrogate pair
            if isinstance(error, FormatError):
                raise
            raise CorruptError(f"{self.url}: no file can have the name {name!r}: {error}") from None

    def read_whole(self, names: Sequence[str], largest: int) -> list[bytes | None]:
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
        try:
            with files.scandir(self.path_of(folder) if folder else self.url) as entries:
                yield from entries
        except (FileNotFoundError, NotADirectoryError):
            path = self.path_of(folder) if folder else self.url
            if files.islink(path) and not files.exists(path):
                raise MissingError(f"{path}: a symbolic link to a missing folder") from None

    def states(self, names: Iterable[str]) -> list[FileState | None]:
        return [files.state_of(self.path_of(name)) for name in names]

    def new_file(self, name: str, temporary_folder: str | None = None, *, flush: bool = True) -> NewFile:
        path = self.path_of(name)
        files.make_folders_below(self.url, dirname(path))
        return NewFile(path, temporary_folder, flush=flush)

    def put(self, name: str, data: bytes) -> None:
        files.make_folders_below(self.url, dirname(self.path_of(name)))
        publish_bytes(self.path_of(name), data)

    def delete(self, name: str) -> None:
        files.remove_file(self.path_of(name))

    def at(self, url: str) -> FolderStore:
        return FolderStore(url)

    def below(self, name: str) -> FolderStore:
        return FolderStore(self.path_of(name))

    def make(self) -> None:
        files.makedirs(self.url)

    def new_files(self, temporary_folder: str) -> NewFiles:
        return NewFiles(self.url, temporary_folder)

    def delete_folder(self, name: str) -> None:
        files.remove_tree(self.path_of(name))
