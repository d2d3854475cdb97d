"""Protocols of stores: folders of files that are read, listed and written by name, local or
remote."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, Self, TypeVar

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

Item = TypeVar("Item")
Result = TypeVar("Result")


class FileState(NamedTuple):
    """State of a file, which changes when it is replaced."""

    nbytes: int
    mtime_ns: int
    """Modification time [ns since the epoch]; in a bucket, a number made of the object's tag."""


class State(NamedTuple):
    """State of an object in a bucket: compared, kept and handed back, never looked into."""

    etag: str | None
    version: str | None


class Expected(Enum):
    """Conditions of a write, besides a :class:`State`."""

    ANY = "any"
    """The write is unconditional."""
    ABSENT = "absent"
    """There is no file of this name."""


class Conflict(Exception):  # noqa: N818
    """A conditional write found another state than it expects. Nothing was written."""


class Capabilities(NamedTuple):
    """Abilities of a store besides reading files by name."""

    lists: bool
    """Names of folders can be listed."""
    states: bool
    """States of files are current, and known without reading them."""
    writes: bool = False
    """Files can be written."""
    compares: bool = False
    """Writes can be conditional on the state of the object that they replace."""


class StoredFile(Protocol):
    """File that is open for reading; a context manager."""

    @property
    def name(self) -> str:
        """Path or URL, for errors."""

    @property
    def nbytes(self) -> int | None:
        """Size, None if the store does not know it."""

    @property
    def state(self) -> Hashable:
        """Value that changes when the file is replaced."""

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Read byte ranges (start, end); returns None if the file does not exist, which a remote
        store may find out only now."""

    def read_end(self, nbytes: int) -> bytes | None:
        """Read the last ``nbytes`` bytes, or fewer if the file is shorter; returns None if the file
        does not exist."""

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        """Fill memory from an offset on; returns False if the file does not exist."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class OpenFile(StoredFile, Protocol):
    """Open file of known size, which is read at any offset."""

    @property
    def nbytes(self) -> int:
        """Size."""

    @property
    def descriptor(self) -> int | None:
        """File descriptor for compiled loops; None for a file that the system has not opened."""

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read byte ranges (start, end); raises TruncatedError beyond the end."""

    def read_end(self, nbytes: int) -> bytes:
        """Read the last ``nbytes`` bytes, or fewer if the file is shorter."""

    def read_some(self, nbytes: int, offset: int) -> bytes:
        """Read bytes at an offset; fewer at the end of the file."""

    def read_ranges(self, ranges: npt.NDArray[np.int64], memory: npt.NDArray[np.uint8]) -> None:
        """Read many ranges; each row is (offset in file, offset in memory, length)."""

    def close(self) -> None:
        """Close the file."""


class StoredEntry(Protocol):
    """Name in a folder, like ``os.DirEntry``."""

    @property
    def name(self) -> str:
        """Name in its folder."""

    @property
    def path(self) -> str:
        """Full path."""

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a folder."""

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a regular file."""

    def is_symlink(self) -> bool:
        """Return whether it is a symbolic link."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return inode, size, mode and times."""


class Output(Protocol):
    """File that is written in place, not published."""

    def append(self, data: bytes | memoryview) -> int:
        """Write bytes at the end of a file opened for appending; return their number."""

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at an offset."""

    def set_nbytes(self, nbytes: int) -> None:
        """Set the size; bytes that were never written are zero."""

    def sync(self) -> None:
        """Make what was written durable."""

    def close(self) -> None:
        """Close the file."""


class Folders(Protocol):
    """Words of folders on a file system, which buckets, servers and zips lack.

    All functions take full paths and behave like those of ``os``.
    """

    def stat(self, path: str) -> os.stat_result:
        """Return inode, device, size, mode and times."""

    def lstat(self, path: str) -> os.stat_result:
        """Return what :meth:`stat` does, of a symbolic link itself."""

    def samefile(self, first: str, second: str) -> bool:
        """Return whether two paths lead to the same file or folder."""

    def free(self, path: str) -> tuple[int, int | None]:
        """Return the free bytes and the free inodes; None in place of unlimited inodes."""

    def can_share_blocks(self, folder: str) -> bool:
        """Return whether copies of files in a file system need no space."""

    def create(self, path: str, *, exclusive: bool = True, append: bool = False) -> Output:
        """Create a file that is written at any offset, or at its end."""

    def fsync(self, path: str) -> None:
        """Make the content of a file, or the names in a folder, durable."""

    def make_folders_below(self, folder: str, path: str) -> None:
        """Create the folders of a path below an existing folder."""

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""

    def unlink(self, path: str) -> None:
        """Remove a file or a symbolic link."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder, replacing a file or an empty folder of the new name."""

    def exchange(self, first: str, second: str) -> bool:
        """Swap two names atomically; return False if the system cannot."""

    def link(self, old: str, new: str) -> None:
        """Add a second name to a file."""

    def symlink(self, target: str, path: str) -> None:
        """Create a symbolic link."""

    def inherit_permissions(self, path: str, like: os.stat_result) -> None:
        """Copy mode and group of a replaced file or folder, if this user may."""


class NewFile(Protocol):
    """File that is written under a temporary name and published atomically."""

    @property
    def path(self) -> str:
        """Final path."""

    def write(self, data: bytes | npt.NDArray[np.uint8] | memoryview, offset: int) -> None:
        """Write bytes at an offset."""

    def copy_from(self, source: StoredFile, nbytes: int) -> None:
        """Write the first ``nbytes`` bytes of an open file."""

    def open_written(self) -> StoredFile:
        """Open what was written so far for reading."""

    def set_nbytes(self, nbytes: int) -> None:
        """Set the size; bytes that were never written are zero."""

    def publish(self, *, flush_folder: bool = True, keep_equal: bool = False) -> None:
        """Rename the file to its final name; ``flush_folder`` makes the name durable,
        ``keep_equal`` keeps an existing file with the same bytes."""

    def discard(self) -> None:
        """Remove the temporary file."""


class NewFiles(Protocol):
    """Many small files that are each published atomically, all of them before :meth:`publish`
    returns."""

    count: int
    nbytes: int

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a file."""

    def publish(self) -> None:
        """Publish all files."""

    def discard(self) -> None:
        """Remove the unpublished files."""


class Store(Protocol):
    """Folder of files; small to pickle."""

    @property
    def url(self) -> str:
        """Path or URL, for tokens and errors."""

    @property
    def opening(self) -> str:
        """Cache key for its files: the folder, or one opening of a remote folder."""

    @property
    def is_remote(self) -> bool:
        """Whether each request waits for a server, so that many are sent at the same time."""

    @property
    def can(self) -> Capabilities:
        """Abilities besides reading files by name."""

    @property
    def folders(self) -> Folders | None:
        """Words of folders on a file system; None for servers, buckets and zips."""

    @property
    def files_at_once(self) -> int:
        """Best number of files that are read at the same time."""

    @property
    def gap_nbytes(self) -> int:
        """Largest gap between two byte ranges up to which one read is faster than two."""

    @property
    def batch_nbytes(self) -> int:
        """Best size of one read."""

    def at(self, url: str) -> Store:
        """Return the store of another folder in the same file system or server."""

    def below(self, name: str) -> Store:
        """Return the store of a folder that a document in this one names."""

    def path_of(self, name: str) -> str:
        """Return the path or URL of a file."""

    def real(self, name: str = "") -> str:
        """Return the URL of a file or folder that is the same for every way that leads to it: with
        symbolic links resolved."""

    def link_target(self, name: str = "") -> str | None:
        """Return where a symbolic link leads to; None for anything else."""

    def exists(self, name: str = "") -> bool:
        """Check whether a file or folder exists; false for a dangling symbolic link."""

    def is_taken(self, name: str = "") -> bool:
        """Check whether a name is in use; true for a dangling symbolic link."""

    def is_folder(self, name: str = "") -> bool:
        """Check whether a name, or the store itself, is a folder."""

    def is_file(self, name: str = "") -> bool:
        """Check whether a name is a regular file."""

    def is_writable(self, name: str = "") -> bool:
        """Check whether this user may write a file, or into a folder."""

    def status(self, name: str = "", *, follow_symlinks: bool = True) -> os.stat_result:
        """Return inode, size, mode and times, and raise the errors of ``os.stat``; a server knows
        the size only."""

    def names(self, folder: str = "") -> list[str]:
        """List the names in a folder, sorted; empty if the folder is missing or cannot be
        listed."""

    def walk(self, folder: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield the full path of each folder, with the names of its folders and files, from the top
        down; symbolic links are not followed, and names removed from the list of folders are
        skipped."""

    def open_stream(self, name: str = "") -> BinaryIO:
        """Open a file for reading from its beginning; raises FileNotFoundError if it is absent."""

    def open(self, name: str, ahead_nbytes: int = 0) -> StoredFile | None:
        """Open a file, None if it is known to be missing. The first read from a remote file also
        requests its first ``ahead_nbytes`` bytes."""

    def open_heads(self, names: Sequence[str], nbytes: int) -> Sequence[StoredFile | None]:
        """Open files, None for each missing one; a remote store reads the first ``nbytes`` bytes of
        each, in one request for each file."""

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], at_once: int
    ) -> Iterator[Result]:
        """Yield the results of a function that reads files, in the order of the items. A remote
        store calls it for ``at_once`` items ahead, on threads."""

    def read_whole(self, names: Sequence[str], largest: int) -> list[bytes | None]:
        """Read whole files, None for each missing one; raises CorruptError for files larger than
        ``largest`` bytes."""

    def read_document(self, name: str, largest: int) -> bytes | None:
        """Read a file like :meth:`read_whole`; None also for a broken link. A small remote file is
        trusted for a moment, because one opening needs it several times."""

    def read_ahead(self, names: Iterable[str]) -> None:
        """Request remote documents at the same time that are read, or looked for, a moment
        later."""

    def read_small(
        self, names: Iterable[str], max_nbytes: int, memory: memoryview
    ) -> list[tuple[int, int]]:
        """Read small files into memory, one after another, until it is full; return (offset, size)
        of each. Larger ones are cut; special sizes are ``wkwdask.store.local.ABSENT`` and
        ``OPEN_SEPARATELY``. Remote stores cannot."""

    def check_content(self, name: str = "") -> None:
        """Raise CorruptError if a file in a zip contradicts the checksum that the zip states; other
        files have none."""

    def scandir(self, folder: str = "") -> Iterator[StoredEntry]:
        """List a folder in no order, and raise the errors of ``os.scandir``; a server is asked for
        the names."""

    def entries(self, folder: str = "") -> Iterator[StoredEntry]:
        """List a folder in no order; a missing folder is empty, a link to a missing folder is an
        error."""

    def with_listing(self, names: Iterable[Sequence[str]]) -> Store:
        """Return a store that can list its files. If a server has no listing, it is asked for each
        file, until one of the possible names exists."""

    def with_states(self, names: Iterable[str], *, only_these: bool = False) -> Store:
        """Return a store that knows its files and their present states, some of whose names are
        known, or only files of these names; raises UnsupportedError for a server that states
        none."""

    def states(self, names: Iterable[str]) -> list[FileState | None]:
        """Return the states of files, None for each missing one."""

    def new_file(
        self, name: str, temporary_folder: str | None = None, *, flush: bool = True
    ) -> NewFile:
        """Create a file; its folder is created too."""

    def snapshot(self, record: str) -> Store:
        """Return a store in which files stay as first read, and whose new files replace
        those that are still the same, and which deletes only these; else both raise
        :class:`Conflict`. Raises LockedError once a record of the job is gone. A folder, whose
        files locks protect, returns itself."""

    def put(self, name: str, data: bytes, expect: State | Expected = Expected.ANY) -> State | None:
        """Write a small file atomically; folders in its name are created too.

        Raises :class:`Conflict` if the file is not as expected. Only stores that compare accept a
        :class:`State`, and return the new one.
        """

    def read_state(self, name: str, largest: int) -> tuple[bytes, State] | None:
        """Read a file with its state from a store that compares; None if it is absent."""

    def now(self) -> float:
        """Return the time by the clock of the store [s since the epoch]; raises PermissionError if
        this user may not write, which a bucket needs for it."""

    def written_at(self, name: str) -> float | None:
        """Return when a file was written, by the clock of the store [s since the epoch]; None if it
        is absent."""

    def delete(self, *names: str) -> None:
        """Delete files durably, those that exist."""

    def make(self, *, in_existing: bool = False) -> None:
        """Create the folder; with ``in_existing`` only inside a folder that exists, since that of a
        job is removed when the job ends."""

    def new_files(self, temporary_folder: str, *, is_in_place: bool = False) -> NewFiles:
        """Create many small files; their folders are created too. If they are in place, and not
        in the folder of a job, their names are made durable."""

    def delete_folder(self, name: str = "") -> None:
        """Delete a folder, or the store itself, with its content, if it exists."""
