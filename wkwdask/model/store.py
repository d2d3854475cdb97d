"""Protocols of stores: folders of files that are read, listed and written by name, wherever they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt


class FileState(NamedTuple):
    """What changes when a file is replaced."""

    nbytes: int
    """Its size."""
    mtime_ns: int
    """Its time of modification [ns since the epoch]."""


class StoredFile(Protocol):
    """One file that is open for reading; a context manager."""

    @property
    def name(self) -> str:
        """Its path or URL, for errors."""

    @property
    def nbytes(self) -> int | None:
        """Its size, None where the store does not know it."""

    @property
    def state(self) -> Hashable:
        """A value that changes when the file is replaced."""

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Read byte ranges, each from its start up to its stop; None where the file is absent, as one of a remote store may turn out to be."""

    def read_end(self, nbytes: int) -> bytes | None:
        """Read the last bytes, fewer where the file is shorter; None where the file is absent."""

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        """Fill memory from a byte on; False where the file is absent."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class StoredEntry(Protocol):
    """One name in a folder, as ``os.DirEntry``."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def path(self) -> str:
        """The path."""

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Check whether it is a folder."""

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Check whether it is a regular file."""

    def is_symlink(self) -> bool:
        """Check whether it is a symbolic link."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return its inode, size, mode and times."""


class NewFile(Protocol):
    """A file that is written out of sight and appears whole under its name, or not at all."""

    @property
    def path(self) -> str:
        """Where it appears."""

    def write(self, data: bytes | npt.NDArray[np.uint8] | memoryview, offset: int) -> None:
        """Write bytes at an offset."""

    def copy_from(self, source: StoredFile, nbytes: int) -> None:
        """Write the first bytes of an open file."""

    def open_written(self) -> StoredFile:
        """Open what was written so far for reading."""

    def set_nbytes(self, nbytes: int) -> None:
        """Set the length; bytes that were never written are zero."""

    def publish(self, *, flush_folder: bool = True, keep_equal: bool = False) -> None:
        """Give the file its name."""

    def discard(self) -> None:
        """Remove what was written."""


class NewFiles(Protocol):
    """Many small files that appear whole, all of them before :meth:`publish` returns."""

    count: int
    """Files so far."""
    nbytes: int
    """Their bytes."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""

    def publish(self) -> None:
        """Publish all files."""

    def discard(self) -> None:
        """Remove the files that were not published."""


class Store(Protocol):
    """A folder of files; small to pickle."""

    @property
    def url(self) -> str:
        """Its path or URL, for tokens and errors."""

    @property
    def opening(self) -> str:
        """Key of what caches hold about its files: the folder, or one opening of a remote place."""

    @property
    def is_local(self) -> bool:
        """Whether files can be listed, inspected and written."""

    @property
    def files_at_once(self) -> int:
        """How many files are best read in one call."""

    @property
    def gap_nbytes(self) -> int:
        """Up to which gap two ranges are better read as one."""

    @property
    def batch_nbytes(self) -> int:
        """How many bytes are best read as one."""

    def at(self, url: str) -> Store:
        """Return the store of another folder in the same place."""

    def below(self, name: str) -> Store:
        """Return the store of a folder inside of this one."""

    def path_of(self, name: str) -> str:
        """Return the path or URL of a file by its name inside the folder."""

    def open(self, name: str) -> StoredFile | None:
        """Open a file, None where it is known to be absent."""

    def read_whole(self, names: Sequence[str], largest: int) -> list[bytes | None]:
        """Read several files, None for each that is absent."""

    def entries(self, folder: str = "") -> Iterator[StoredEntry]:
        """List a folder in no order; an absent one is empty, and a link to an absent one is an error."""

    def states(self, names: Iterable[str]) -> list[FileState | None]:
        """Return the states of files, None for each that is absent."""

    def new_file(self, name: str, temporary_folder: str | None = None, *, flush: bool = True) -> NewFile:
        """Begin a file; its folder is made."""

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, which appears whole."""

    def delete(self, name: str) -> None:
        """Delete a file for good; an absent one is no error."""

    def make(self) -> None:
        """Make the folder."""

    def new_files(self, temporary_folder: str) -> NewFiles:
        """Begin many small files; their folders are made."""

    def delete_folder(self, name: str) -> None:
        """Delete a folder and all in it; an absent one is no error."""
