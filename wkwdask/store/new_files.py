"""Atomic publication of files: single files, and batches of small files that are flushed
together."""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import numpy as np

from wkwdask.store import files
from wkwdask.store.paths import TEMPORARY_SUFFIX, dirname, naming, split

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.model.store import OpenFile, StoredFile

_COMPARED_NBYTES = 1 << 20
_OPEN_AT_ONCE = 64  # far below the limit of open files, for any number of threads
_PATIENCE_S = 0.002  # of one thread that flushes files
_FLUSHED_AT_ONCE = 4  # file systems commit their journal once for all flushes that wait for it


class RenamedFile:
    """File written under a temporary name and renamed when complete."""

    def __init__(
        self, path: str, temporary_folder: str | None = None, *, flush: bool = True
    ) -> None:
        self.path = path
        self._flush = flush
        folder, name = split(path)
        self._folder = folder or "."
        if (
            temporary_folder is None
            or files.stat(temporary_folder).st_dev != files.stat(self._folder).st_dev
        ):
            # a rename stays within one file system, and a mag may be a link to another disk
            temporary_folder = self._folder
        self._temporary = f"{temporary_folder}/.{name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        self._output = files.create(self._temporary)

    def write(self, data: bytes | npt.NDArray[np.uint8] | memoryview, offset: int) -> None:
        view = memoryview(data.data if isinstance(data, np.ndarray) else data).cast("B")
        with naming(self.path):
            self._output.write(view, offset, flush=self._flush)

    def copy_from(self, source: StoredFile, nbytes: int) -> None:
        with naming(self.path):
            self._output.copy_from(source, nbytes, flush=self._flush)

    def open_written(self) -> OpenFile:
        """Open the data written so far for reading."""
        return files.open_file(self._temporary)

    def start_writing_back(self, nbytes: int) -> None:
        self._output.start_writing_back(nbytes)

    def sync(self) -> None:
        """Flush the file now, so that :meth:`publish` does not."""
        if self._flush:
            self._output.sync()
            self._flush = False

    def set_nbytes(self, nbytes: int) -> None:
        self._output.set_nbytes(nbytes)

    def publish(self, *, flush_folder: bool = True, keep_equal: bool = False) -> None:
        """Rename the file to its final name. With ``keep_equal``, a published file of the same
        bytes stays."""
        if keep_equal and is_equal(self._temporary, self.path):
            self.discard()
            return
        # Flush the data, then rename, then flush the folder. If the rename came first, a power
        # failure could leave a file with its final name and no content.
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
        """Publish the file, or remove it after an error."""
        if kind is None:
            self.publish()
        else:
            self.discard()

    def discard(self) -> None:
        self._output.close()
        with contextlib.suppress(FileNotFoundError):
            files.unlink(self._temporary)


def is_equal(first: str, second: str) -> bool:
    """Check whether two files hold the same bytes; false if one is absent."""
    try:
        with files.open_file(second) as b, files.open_file(first) as a:
            # the published file first: mostly there is none, and then nothing else is opened
            offsets = range(0, a.nbytes, _COMPARED_NBYTES)
            return a.nbytes == b.nbytes and all(
                a.read_some(_COMPARED_NBYTES, at) == b.read_some(_COMPARED_NBYTES, at)
                for at in offsets
            )
    except FileNotFoundError:
        return False


def publish_bytes(path: str, data: bytes) -> None:
    """Write a small file atomically."""
    with RenamedFile(path) as file:
        file.write(data, 0)


def copy_file(path: str, new: str) -> None:
    """Copy a file to a free path."""
    with files.open_file(path) as source, RenamedFile(new) as file:
        file.copy_from(source, source.nbytes)


def move(path: str, new: str) -> None:
    """Move a file or folder to a free path, also to another disk."""
    try:
        files.rename(path, new)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if not files.isdir(path):
            copy_file(path, new)
            files.remove_file(path)
            return
        files.mkdir(new)
        for name in files.listdir(path):
            move(f"{path}/{name}", f"{new}/{name}")
        with contextlib.suppress(FileNotFoundError):
            files.rmdir(path)


def create_whole(path: str, data: bytes) -> bool:
    """Create a complete file unless it exists. Exactly one process succeeds, even without file
    locks."""
    folder, name = split(path)
    unnamed = files.create_unnamed(folder or ".")
    if unnamed is not None:  # if this process is killed, nothing of the file is left
        with contextlib.closing(unnamed):
            with naming(path):
                unnamed.write(memoryview(data), 0)
                unnamed.sync()
            is_created = unnamed.link(path)
        if is_created is not None:
            return is_created
    # A hard link is atomic and fails if the name is taken, so readers never see half a file, and
    # exactly one process creates it. If this process is killed in between, remove_temporaries later
    # deletes the temporary file.
    temporary = f"{folder}/.{name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    try:
        with contextlib.closing(files.create(temporary)) as output, naming(path):
            output.write(memoryview(data), 0)
            output.sync()  # before the link: a power loss must not leave the name without content
        return _link(temporary, path, data)
    finally:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(temporary)


def _link(temporary: str, path: str, data: bytes) -> bool:
    try:
        files.link(temporary, path)
    except FileNotFoundError:
        # another process took the temporary file for that of a dead process and removed it
        return False
    except OSError as error:
        # a server that lost a reply may have made the name
        with contextlib.suppress(FileNotFoundError):
            if files.samefile(temporary, path):
                return True
        if isinstance(error, FileExistsError):
            return False
        return _create_in_place(path, data)  # a file system without hard links
    return True


def _create_in_place(path: str, data: bytes) -> bool:
    try:
        output = files.create(path)
    except FileExistsError:
        return False
    with contextlib.closing(output):
        try:
            output.write(memoryview(data), 0)
            output.sync()
        except BaseException:  # for example a full disk: an empty lock would stay forever
            files.unlink(path)
            raise
    return True


class RenamedFiles:
    """Batch of small files, all published before :meth:`publish` returns. Names of files that are
    ``is_in_place`` are flushed, too: nobody flushes their folders later."""

    def __init__(self, folder: str, temporary_folder: str, *, is_in_place: bool = False) -> None:
        self._is_in_place = is_in_place
        self._folder = folder
        self._temporary_folder = temporary_folder
        self._known_folders = {folder}
        self._pending: list[RenamedFile] = []
        self.count = 0
        self.nbytes = 0

    def write(self, name: str, data: bytes | memoryview) -> None:
        path = f"{self._folder}/{name}"
        parent = dirname(path)
        if parent not in self._known_folders:
            files.make_folders_below(self._folder, parent)
            self._known_folders.add(parent)
        file = RenamedFile(path, self._temporary_folder)
        self._pending.append(file)
        file.write(data, 0)
        file.start_writing_back(len(data))
        self.count += 1
        self.nbytes += len(data)
        if len(self._pending) >= _OPEN_AT_ONCE:
            self.publish()

    def publish(self) -> None:
        """Flush and rename the files written so far."""
        # All flushes come before all renames: each flush commits the journal of the file system,
        # which takes longer with renames in it.
        start = time.perf_counter()
        for n, file in enumerate(self._pending):
            file.sync()
            if time.perf_counter() - start > _PATIENCE_S:
                # a disk that flushes slowly: several flushes at once share a commit
                with ThreadPoolExecutor(_FLUSHED_AT_ONCE) as pool:
                    for _ in pool.map(RenamedFile.sync, self._pending[n + 1 :]):
                        pass
                break
        folders = set()
        while self._pending:
            self._pending[0].publish(flush_folder=False)
            folders.add(dirname(self._pending.pop(0).path))
        if self._is_in_place:
            for folder in list(folders):  # new folders have names, too
                while folder != self._folder:
                    folder = dirname(folder)
                    folders.add(folder)
            for folder in sorted(folders, reverse=True):
                files.fsync(folder)

    def discard(self) -> None:
        while self._pending:
            self._pending.pop().discard()
