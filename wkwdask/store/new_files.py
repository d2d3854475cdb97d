"""Files that are written under a temporary name and appear whole: one, or many small ones that are flushed together, which costs far less."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import numpy as np

from wkwdask.store import files
from wkwdask.store.paths import dirname, split

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.model.store import StoredFile

_COMPARED_NBYTES = 1 << 20
_OPEN_AT_ONCE = 64  # far below what a process may have open, whatever the number of threads
_FLUSHED_AT_ONCE = 4  # a flush waits for the disk, and a journal is written once for those that wait together


class NewFile:
    """A file that is written under a temporary name and appears under its own when it is complete."""

    def __init__(self, path: str, temporary_folder: str | None = None, *, flush: bool = True) -> None:
        self.path = path
        self._flush = flush
        folder, name = split(path)
        self._folder = folder or "."
        if temporary_folder is None or files.stat(temporary_folder).st_dev != files.stat(self._folder).st_dev:  # a mag may be a link to another disk
            temporary_folder = self._folder
        self._temporary = f"{temporary_folder}/.{name}.{secrets.token_hex(8)}{files.TEMPORARY_SUFFIX}"
        self._output = files.create(self._temporary)

    def write(self, data: bytes | npt.NDArray[np.uint8] | memoryview, offset: int) -> None:
        view = memoryview(data.data if isinstance(data, np.ndarray) else data).cast("B")
        with self._named():
            self._output.write(view, offset, flush=self._flush)

    def copy_from(self, source: StoredFile, nbytes: int) -> None:
        """Write the first bytes of an open file, inside the system where it can do that."""
        with self._named():
            self._output.copy_from(source, nbytes, flush=self._flush)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Let errors of a full disk or quota name the file."""
        try:
            yield
        except OSError as error:
            if error.errno is None or error.filename is not None:
                raise
            raise OSError(error.errno, os.strerror(error.errno), self.path) from None

    def open_written(self) -> files.OpenFile:
        """Open what was written so far for reading."""
        return files.open_file(self._temporary)

    def start_writing_back(self, nbytes: int) -> None:
        """Let the disk begin with the first bytes, of a file that is flushed together with others later."""
        self._output.start_writing_back(nbytes)

    def sync(self) -> None:
        """Flush it to disk now, so that :meth:`publish` need not."""
        if self._flush:
            self._output.sync()
            self._flush = False

    def set_nbytes(self, nbytes: int) -> None:
        """Set the length; bytes that were never written are zero."""
        self._output.set_nbytes(nbytes)

    def publish(self, *, flush_folder: bool = True, keep_equal: bool = False) -> None:
        """Give the file its name."""
        if keep_equal and _is_equal(self._temporary, self.path):
            self.discard()
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                self._output.set_permissions(files.stat(self.path))
            if self._flush:
                self._output.sync()
            self._output.close()
            files.rename(self._temporary, self.path)
        except BaseException:
            self.discard()
            raise
        if self._flush and flush_folder:
            files.fsync(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give the file its name, or remove it after an error."""
        if kind is None:
            self.publish()
        else:
            self.discard()

    def discard(self) -> None:
        self._output.close()
        with contextlib.suppress(FileNotFoundError):
            files.unlink(self._temporary)


def _is_equal(first: str, second: str) -> bool:
    """Check whether two files hold the same bytes; an absent one equals none."""
    try:
        with files.open_file(first) as a, files.open_file(second) as b:
            pieces = range(0, a.nbytes, _COMPARED_NBYTES)
            return a.nbytes == b.nbytes and all(a.read_some(_COMPARED_NBYTES, at) == b.read_some(_COMPARED_NBYTES, at) for at in pieces)
    except FileNotFoundError:
        return False


def publish_bytes(path: str, data: bytes) -> None:
    """Write a small file that appears whole."""
    with NewFile(path) as file:
        file.write(data, 0)


def copy_file(path: str, new: str) -> None:
    """Copy a file to a free place."""
    with files.open_file(path) as source, NewFile(new) as file:
        file.copy_from(source, source.nbytes)


def move(path: str, new: str) -> None:
    """Move a file or folder to a free place, also to another disk."""
    try:
        files.rename(path, new)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if not files.isdir(path):
            copy_file(path, new)
            files.unlink(path)
            return
        files.mkdir(new)
        for name in files.listdir(path):
            move(f"{path}/{name}", f"{new}/{name}")
        files.rmdir(path)


def create_whole(path: str, data: bytes) -> bool:
    """Make a file that appears whole, unless it exists: also where files cannot be locked, only one process can."""
    folder, name = split(path)
    temporary = f"{folder}/.{name}.{secrets.token_hex(8)}{files.TEMPORARY_SUFFIX}"  # goes with remove_temporaries, whatever is killed here
    try:
        with contextlib.closing(files.create(temporary)) as output:
            output.write(memoryview(data), 0)
        return _link(temporary, path, data)
    finally:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(temporary)


def _link(temporary: str, path: str, data: bytes) -> bool:
    try:
        files.link(temporary, path)
    except FileExistsError:  # somebody was faster; or NFS asked again because the answer was lost, and then it is this very file
        with contextlib.suppress(FileNotFoundError):
            return files.samefile(temporary, path)
        return False
    except FileNotFoundError:  # somebody took the temporary file for that of a dead process
        return False
    except OSError:  # a file system without hard links
        return _create_in_place(path, data)
    return True


def _create_in_place(path: str, data: bytes) -> bool:
    try:
        output = files.create(path)
    except FileExistsError:
        return False
    with contextlib.closing(output):
        try:
            output.write(memoryview(data), 0)
        except BaseException:  # a full disk: an empty lock would never go
            files.unlink(path)
            raise
    return True


class NewFiles:
    """Writes files that appear whole, some later than they were written, all of them before :meth:`publish` returns."""

    def __init__(self, folder: str, temporary_folder: str) -> None:
        self._folder = folder
        self._temporary_folder = temporary_folder
        self._made = {folder}
        self._waiting: list[NewFile] = []
        self.count = 0
        self.nbytes = 0

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._folder}/{name}"
        parent = dirname(path)
        if parent not in self._made:
            files.make_folders_below(self._folder, parent)
            self._made.add(parent)
        file = NewFile(path, self._temporary_folder)
        self._waiting.append(file)
        file.write(data, 0)
        file.start_writing_back(len(data))
        self.count += 1
        self.nbytes += len(data)
        if len(self._waiting) >= _OPEN_AT_ONCE:
            self.publish()

    def publish(self) -> None:
        """Flush what was written, and give it its names: first the one and then the other, since a journal that holds renames is flushed with each file."""
        if len(self._waiting) > 1:
            with ThreadPoolExecutor(_FLUSHED_AT_ONCE) as pool:
                for _ in pool.map(NewFile.sync, self._waiting):
                    pass
        while self._waiting:
            self._waiting[0].publish(flush_folder=False)
            del self._waiting[0]

    def discard(self) -> None:
        while self._waiting:
            self._waiting.pop().discard()
