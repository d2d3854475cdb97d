"""Files in the memory of this process: one tree for all threads, with paths that begin with
``memory://``.

It behaves like a local file system: the same errors, inodes, times, symbolic and hard links.
Renames and exchanges of folders are atomic.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import stat
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from wkwdask.errors import CorruptError, MissingError, TruncatedError
from wkwdask.store.local import ABSENT, FolderFile, check_size
from wkwdask.store.paths import MEMORY, is_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    import numpy.typing as npt

    from wkwdask.model.store import StoredFile

_MAX_LINKS = 40  # the limit of Linux, path_resolution(7)
_FREE_NBYTES = 1 << 50
_numbers = itertools.count(1)


@dataclass(eq=False, slots=True)
class _Node:
    mode: int
    data: bytearray = field(default_factory=bytearray)
    children: dict[str, _Node] = field(default_factory=dict)
    target: str = ""
    links: int = 1
    gid: int = field(default_factory=os.getgid)
    inode: int = field(default_factory=lambda: next(_numbers))
    mtime_ns: int = field(default_factory=time.time_ns)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def status(self) -> os.stat_result:
        nbytes = len(self.target) if self.target else len(self.data)
        seconds = self.mtime_ns / 1e9
        times = {
            "st_atime": seconds,
            "st_mtime": seconds,
            "st_ctime": seconds,
            **dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), self.mtime_ns),
        }
        return os.stat_result(
            (
                self.mode,
                self.inode,
                0,
                self.links,
                os.getuid(),
                self.gid,
                nbytes,
                *[self.mtime_ns // 10**9] * 3,
            ),
            times,
        )


class MemoryFile(FolderFile):
    __slots__ = ("_node",)

    def __init__(self, path: str, node: _Node) -> None:
        self._node = node
        super().__init__(path, node.status())

    def read_some(self, nbytes: int, offset: int) -> bytes:
        with _lock:
            return bytes(memoryview(self._node.data)[offset : offset + nbytes])

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        data = self.read_some(memory.nbytes, offset)
        if len(data) < memory.nbytes:
            raise TruncatedError(
                f"{self.name}: ends at byte {offset + len(data)}, expected "
                f"{memory.nbytes - len(data)} more bytes"
            )
        memoryview(memory.data)[:] = data
        return True

    def close(self) -> None:
        """There is nothing to close."""


class MemoryOutput:
    def __init__(self, node: _Node) -> None:
        self._node = node

    def append(self, data: bytes | memoryview) -> int:
        with _lock:
            self.write(memoryview(data), len(self._node.data))
        return len(data)

    def write(self, data: memoryview, offset: int, *, flush: bool = False) -> None:
        with _lock:
            if offset > len(self._node.data):
                self.set_nbytes(offset)
            self._node.data[offset : offset + len(data)] = data
            self._node.mtime_ns = time.time_ns()

    def copy_from(self, source: StoredFile, nbytes: int, *, flush: bool) -> None:
        parts = source.read([(0, nbytes)])
        if parts is None:
            raise MissingError(f"{source.name}: not found")
        self.write(memoryview(parts[0]), 0)

    def start_writing_back(self, nbytes: int, offset: int = 0) -> None:
        """There is no disk."""

    def sync(self) -> None:
        """There is no disk."""

    def set_nbytes(self, nbytes: int) -> None:
        with _lock:
            del self._node.data[nbytes:]
            self._node.data.extend(bytes(nbytes - len(self._node.data)))
            self._node.mtime_ns = time.time_ns()

    def set_permissions(self, like: os.stat_result) -> None:
        _set_permissions(self._node, like)

    def status(self) -> os.stat_result:
        return self._node.status()

    def close(self) -> None:
        """There is nothing to close."""


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """One name in a folder, see :class:`wkwdask.model.store.StoredEntry`."""

    name: str
    path: str
    _file_system: MemoryFileSystem

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow=follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow=follow_symlinks))

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(follow=False))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._file_system.stat(self.path, follow_symlinks=follow_symlinks)

    def _mode(self, *, follow: bool) -> int:
        try:
            return self._file_system.stat(self.path, follow_symlinks=follow).st_mode
        except FileNotFoundError:
            return 0


class MemoryFileSystem:
    """Tree of memory files, with the functions of ``os`` and
    :class:`wkwdask.store.local.LocalFileSystem`."""

    def __init__(self) -> None:
        self._root = _Node(stat.S_IFDIR | 0o755)

    def open(self, path: str) -> MemoryFile:
        node = self._find(path)
        if node.is_folder:
            raise CorruptError(f"{path}: not a regular file")
        return MemoryFile(path, node)

    def read_whole(self, path: str, largest: int) -> bytes:
        file = self.open(path)
        check_size(file, largest)
        return file.read([(0, file.nbytes)])[0]

    def open_stream(self, path: str) -> BinaryIO:
        node = self._find(path)
        if node.is_folder:
            raise _error(errno.EISDIR, path)
        with _lock:
            return io.BytesIO(node.data)

    def create(self, path: str, *, exclusive: bool = True, append: bool = False) -> MemoryOutput:
        with _lock:
            folder, name = self._parent(path)
            if exclusive and name in folder.children:
                raise _error(errno.EEXIST, path)
            if name in folder.children:
                node = self._find(path)
                if node.is_folder:
                    raise _error(errno.EISDIR, path)
                return MemoryOutput(node)
            return MemoryOutput(_put(folder, name, _Node(stat.S_IFREG | 0o644)))

    def read_small(
        self, folder: str, names: Iterable[str], max_nbytes: int, memory: memoryview
    ) -> list[tuple[int, int]]:
        places, end = [], 0
        with _lock:
            self._find(folder)
            for name in names:
                node = self._resolve(f"{folder}/{name}")[0]
                data = b"" if node is None else memoryview(node.data)[:max_nbytes]
                memory[end : end + len(data)] = data
                places.append((end, ABSENT if node is None else len(data)))
                end += len(data)
                if end + max_nbytes > len(memory):
                    break
        return places

    def stat(self, path: str, *, follow_symlinks: bool = True) -> os.stat_result:
        with _lock:
            return self._find(path, follow=follow_symlinks).status()

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[MemoryEntry]]:
        with _lock:
            node = self._find(path)
            if not node.is_folder:
                raise _error(errno.ENOTDIR, path)
            entries = [
                MemoryEntry(
                    name, f"{path.rstrip('/')}/{name}" if path != MEMORY else MEMORY + name, self
                )
                for name in node.children
            ]
        yield iter(entries)

    def mkdir(self, path: str) -> None:
        with _lock:
            folder, name = self._parent(path)
            if not name or name in folder.children:
                raise _error(errno.EEXIST, path)
            _put(folder, name, _Node(stat.S_IFDIR | 0o755))

    def rmdir(self, path: str) -> None:
        with _lock:
            folder, name = self._parent(path)
            node = _child(folder, name, path)
            if not node.is_folder:
                raise _error(errno.ENOTDIR, path)
            if node.children:
                raise _error(errno.ENOTEMPTY, path)
            _pop(folder, name)

    def unlink(self, path: str) -> None:
        with _lock:
            folder, name = self._parent(path)
            if _child(folder, name, path).is_folder:
                raise _error(errno.EISDIR, path)
            _pop(folder, name).links -= 1

    def remove_tree(self, path: str) -> None:
        with _lock:
            folder, name = self._parent(path)
            if not _child(folder, name, path).is_folder:
                raise _error(errno.ENOTDIR, path)
            _pop(folder, name)

    def replace(self, old: str, new: str) -> None:
        with _lock:
            (source, old_name), (target, new_name) = self._parent(old), self._parent(new)
            node, replaced = _child(source, old_name, old), target.children.get(new_name)
            if replaced is node:
                return
            if node.is_folder and _contains(node, target):
                raise _error(errno.EINVAL, new)
            if replaced is not None and replaced.is_folder != node.is_folder:
                raise _error(errno.EISDIR if replaced.is_folder else errno.ENOTDIR, new)
            if replaced is not None and replaced.children:
                raise _error(errno.ENOTEMPTY, new)
            _put(target, new_name, _pop(source, old_name))

    def exchange(self, first: str, second: str) -> bool:
        with _lock:
            (folder, name), (other_folder, other_name) = self._parent(first), self._parent(second)
            node, other_node = _child(folder, name, first), _child(other_folder, other_name, second)
            _put(folder, name, other_node)
            _put(other_folder, other_name, node)
            return True

    def link(self, old: str, new: str) -> None:
        with _lock:
            node = self._find(old, follow=False)
            folder, name = self._parent(new)
            if name in folder.children:
                raise _error(errno.EEXIST, new)
            _put(folder, name, node).links += 1

    def symlink(self, target: str, path: str) -> None:
        with _lock:
            folder, name = self._parent(path)
            if name in folder.children:
                raise _error(errno.EEXIST, path)
            _put(folder, name, _Node(stat.S_IFLNK | 0o777, target=target))

    def readlink(self, path: str) -> str:
        node = self._find(path, follow=False)
        if not node.target:
            raise _error(errno.EINVAL, path)
        return node.target

    def realpath(self, path: str) -> str:
        with _lock:
            return MEMORY + "/".join(self._resolve(path)[1])

    def is_writable(self, path: str) -> bool:
        try:
            return bool(self._find(path).mode & 0o200)
        except OSError:
            return False

    def set_permissions(self, path: str, like: os.stat_result) -> None:
        with _lock:
            _set_permissions(self._find(path), like)

    def free(self, path: str) -> tuple[int, int | None]:
        return _FREE_NBYTES, None

    def fsync(self, path: str) -> None:
        self._find(path)

    @contextlib.contextmanager
    def guarded(self, path: str) -> Iterator[None]:
        """Hold a file exclusively among the threads of this process."""
        while True:
            try:
                self.create(path)
                break
            except FileExistsError:
                time.sleep(0.001)
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                self.unlink(path)

    def _find(self, path: str, *, follow: bool = True) -> _Node:
        node, _ = self._resolve(path, follow=follow)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _parent(self, path: str) -> tuple[_Node, str]:
        """Return the parent folder of a path, and the name."""
        *above, name = _names(path) or [""]
        node = self._find(MEMORY + "/".join(above))
        if not node.is_folder:
            raise _error(errno.ENOTDIR, path)
        return node, name

    def _resolve(self, path: str, *, follow: bool = True) -> tuple[_Node | None, list[str]]:
        """Follow a path; return its node (None if absent) and its names without symbolic links."""
        waiting, followed = _names(path), 0
        names: list[str] = []
        nodes: list[_Node | None] = [self._root]
        while waiting:
            name, above = waiting.pop(0), nodes[-1]
            if name == "..":
                names, nodes = names[:-1], nodes[:-1] or nodes
                continue
            if above is not None and not above.is_folder:
                raise _error(errno.ENOTDIR, path)
            node = None if above is None else above.children.get(name)
            if node is None or not node.target or not (follow or waiting):
                names.append(name)
                nodes.append(node)
                continue
            followed += 1
            if followed > _MAX_LINKS:
                raise _error(errno.ELOOP, path)
            if is_memory(node.target):
                names, nodes = [], [self._root]
            waiting = _names(node.target) + waiting
        return nodes[-1], names


def _names(path: str) -> list[str]:
    return [name for name in path.removeprefix(MEMORY).split("/") if name not in ("", ".")]


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _child(folder: _Node, name: str, path: str) -> _Node:
    node = folder.children.get(name)
    if node is None:
        raise _error(errno.ENOENT, path)
    return node


def _put(folder: _Node, name: str, node: _Node) -> _Node:
    folder.children[name] = node
    folder.mtime_ns = time.time_ns()
    return node


def _pop(folder: _Node, name: str) -> _Node:
    folder.mtime_ns = time.time_ns()
    return folder.children.pop(name)


def _contains(folder: _Node, node: _Node) -> bool:
    """Check whether a folder is another one or contains it."""
    return folder is node or any(_contains(child, node) for child in folder.children.values())


def _set_permissions(node: _Node, like: os.stat_result) -> None:
    node.mode = stat.S_IFMT(node.mode) | like.st_mode & 0o7777
    node.gid = like.st_gid


_lock = threading.RLock()
MEMORY_FILES = MemoryFileSystem()


def _unlock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock)
