"""Power loss: states of a folder that POSIX allows after a crash, from the recorded system calls of
a job.

Contents of a file survive from its next ``fsync`` on; before, any of its writes may be missing.
Names survive from the next ``fsync`` of their folder on; before, any of their changes may be
missing. A rename or exchange is one change, and survives as soon as one of its folders is synced.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .system_calls import Call

_O_TRUNC, _O_TMPFILE = os.O_TRUNC, os.O_TMPFILE
_REORDERED = "reordered"


@dataclass(eq=False)
class File:
    """A file, with or without a name."""

    source: Path | None = None
    """File that holds what it was before the job."""
    mtime_ns: int | None = None
    """Modification time after the job, which records of files state; None if it is gone."""


@dataclass(eq=False)
class Folder:
    """A folder while the job runs."""

    entries: dict[str, File | Folder] = field(default_factory=dict)


@dataclass
class Change:
    """A change that a crash keeps or loses as a whole."""

    time: int
    """Number of its system call."""
    safe_from: float = float("inf")
    """Number of the system call from which on it survives."""
    file: File | None = None
    """File that is written to, or whose length changes."""
    offset: int = 0
    data: bytes | None = None
    """Bytes that are written; None for a new length."""
    entries: tuple[tuple[Folder, str, File | Folder | None], ...] = ()
    """Names that are set, or removed if None."""


@dataclass(frozen=True)
class Crash:
    """A power loss."""

    name: str
    kept: Sequence[Change]
    """Changes that survive."""
    is_after_end: bool
    """Whether the job has ended before."""


class Crashes:
    """What may be found after a power loss during a job.

    Parameters
    ----------
    before : Path
        Copy of the folder before the job.
    root : str
        Path that the folder had.
    inodes : dict
        Paths below the folder by inode, before the job.
    calls : sequence of Call
        System calls of the job, with data.
    """

    def __init__(
        self, before: Path, root: str, inodes: dict[int, str], calls: Sequence[Call]
    ) -> None:
        self._root, self.calls = root, calls
        self._files = {inode: File(before / path) for inode, path in inodes.items()}
        self.top = Folder()
        self._lay_out(before, self.top, {path: inode for inode, path in inodes.items()})
        self._base = _copied(self.top)
        self.changes: list[Change] = []
        self.num_calls = len(calls)
        for number, call in enumerate(calls, 1):
            self._follow(number, call)
        for path in Path(root).rglob("*"):
            status = path.stat(follow_symlinks=False)
            if (file := self._files.get(status.st_ino)) is not None:
                file.mtime_ns = status.st_mtime_ns

    def _lay_out(self, before: Path, folder: Folder, inodes: dict[str, int], above="") -> None:
        for entry in os.scandir(before / above):
            path = f"{above}/{entry.name}" if above else entry.name
            if entry.is_dir(follow_symlinks=False):
                below = folder.entries[entry.name] = Folder()
                self._lay_out(before, below, inodes, path)
            else:
                folder.entries[entry.name] = self._files[inodes[path]]

    # -------------------------------------------------------------------- what the job does

    def _follow(self, number: int, call: Call) -> None:
        match call.name:
            case "open" | "append":
                self._open(number, call)
            case "write":
                self._change(number, file=self._file(call), offset=call.offset, data=call.data)
            case "truncate":
                self._change(number, file=self._file(call), offset=call.offset)
            case "fsync":
                self._sync(number, call)
            case "rename":
                node = self._lookup(call.path)
                self._name(number, (call.path, None), (call.new_path, node))
            case "exchange":
                first, second = self._lookup(call.path), self._lookup(call.new_path)
                self._name(number, (call.path, second), (call.new_path, first))
            case "link":
                self._name(number, (call.new_path, self._file(call)))
            case "unlink" | "rmdir":
                self._name(number, (call.path, None))
            case "mkdir":
                self._name(number, (call.path, Folder()))

    def _open(self, number: int, call: Call) -> None:
        if call.offset & _O_TMPFILE == _O_TMPFILE:
            self._files[call.inode] = File()
            return
        if self._lookup(call.path) is None:
            self._files[call.inode] = File()
            self._name(number, (call.path, self._files[call.inode]))
        elif call.offset & _O_TRUNC:
            self._change(number, file=self._file(call), offset=0)

    def _file(self, call: Call) -> File:
        return self._files[call.inode]

    def _sync(self, number: int, call: Call) -> None:
        node = self._files.get(call.inode) or self._lookup(call.path)
        for change in self.changes:
            is_of = change.file is node or any(folder is node for folder, *_ in change.entries)
            if is_of and change.safe_from > number:
                change.safe_from = number

    def _change(self, number: int, **what) -> None:
        self.changes.append(Change(number, **what))

    def _name(self, number: int, *names: tuple[str, File | Folder | None]) -> None:
        entries = []
        for path, node in names:
            folder, name = self._lookup(os.path.dirname(path)), os.path.basename(path)
            if isinstance(folder, Folder):
                entries.append((folder, name, node))
        for folder, name, node in entries:
            _set(folder.entries, name, node)
        self._change(number, entries=tuple(entries))

    def _lookup(self, path: str) -> File | Folder | None:
        node = self.top
        for name in path.removeprefix(self._root).split("/"):
            if name:
                node = node.entries.get(name) if isinstance(node, Folder) else None
        return node

    # -------------------------------------------------------------------- what is found

    def prefixes(self) -> Iterator[Crash]:
        """Yield what may be left after each call: what was synced alone, and with the names or with
        everything that was done until then."""
        seen = set()
        for time in range(self.num_calls + 1):
            done = [change for change in self.changes if change.time <= time]
            for kind, kept in (
                ("synced", [change for change in done if change.safe_from <= time]),
                ("names", [c for c in done if c.safe_from <= time or c.file is None]),
                ("all", done),
            ):
                is_after_end = time == self.num_calls
                key = frozenset(map(id, kept)), is_after_end
                if key not in seen:
                    seen.add(key)
                    yield Crash(f"after call {time}, {kind}", kept, is_after_end)

    def reordered(self, number: int) -> Crash:
        """Draw a moment, and which of the changes that are not synced survive; the same number, the
        same crash."""
        rng = random.Random(number)
        time, share = rng.randint(0, self.num_calls), rng.random()
        kept = [
            change
            for change in self.changes
            if change.time <= time and (change.safe_from <= time or rng.random() < share)
        ]
        return Crash(f"{_REORDERED} {number}", kept, time == self.num_calls)

    def named(self, name: str) -> Crash:
        """Return the crash of a name."""
        if name.startswith(_REORDERED):
            return self.reordered(int(name.removeprefix(_REORDERED)))
        return next(crash for crash in self.prefixes() if crash.name == name)

    def lay_out(self, kept: Sequence[Change], root: Path) -> None:
        """Write the folder that a crash leaves."""
        shutil.rmtree(root, ignore_errors=True)
        folders = {id(folder): dict(entries) for folder, entries in self._base}
        contents: dict[int, list[Change]] = {}
        for change in kept:
            if change.file is not None:
                contents.setdefault(id(change.file), []).append(change)
            for folder, name, node in change.entries:
                _set(folders.setdefault(id(folder), {}), name, node)
        _write(self.top, folders, contents, root)


def _set(entries: dict, name: str, node: File | Folder | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _copied(top: Folder) -> list[tuple[Folder, dict]]:
    below = [node for node in top.entries.values() if isinstance(node, Folder)]
    return [(top, dict(top.entries)), *(pair for folder in below for pair in _copied(folder))]


def _write(node: File | Folder, folders: dict, contents: dict, path: Path) -> None:
    if isinstance(node, Folder):
        path.mkdir()
        for name, below in folders.get(id(node), {}).items():
            _write(below, folders, contents, path / name)
        return
    changes = contents.get(id(node), ())
    if node.source is not None:
        shutil.copy2(node.source, path, follow_symlinks=False)
    if changes or node.source is None:
        data = bytearray(path.read_bytes() if node.source is not None else b"")
        for change in changes:
            _apply(change, data)
        path.write_bytes(data)
    if node.mtime_ns is not None:
        os.utime(path, ns=(node.mtime_ns, node.mtime_ns), follow_symlinks=False)


def _apply(change: Change, data: bytearray) -> None:
    if change.data is None:
        del data[change.offset :]
        data.extend(bytes(change.offset - len(data)))
        return
    end = change.offset + len(change.data)
    data.extend(bytes(max(0, end - len(data))))
    data[change.offset : end] = change.data
