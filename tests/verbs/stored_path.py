"""Files of tests by path, on the disk or in a bucket in memory: as much of :class:`pathlib.Path` as
the matrix needs."""

from __future__ import annotations

from pathlib import Path

from wkwdask.store.paths import MEMORY, dirname, split
from wkwdask.store.store import store_at


def stored_path(url: str) -> Path | MemoryPath:
    """Return the path of a URL with or without the prefix of a format."""
    path = url.rpartition("://")[2]
    return MemoryPath(MEMORY + path) if MEMORY in url else Path(path)


class MemoryPath(str):
    """A path in memory."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self.rpartition("/")[2]

    @property
    def parent(self) -> MemoryPath:
        return MemoryPath(dirname(self))

    def with_name(self, name: str) -> MemoryPath:
        return MemoryPath(f"{dirname(self)}/{name}")

    def exists(self) -> bool:
        return store_at(self).exists()

    def is_file(self) -> bool:
        return store_at(self).is_file()

    def stat(self):
        return store_at(self).status()

    def unlink(self) -> None:
        folder, name = split(self)
        store_at(folder).delete(name)

    def read_bytes(self) -> bytes:
        with store_at(self).open_stream() as file:
            return file.read()

    def write_bytes(self, data: bytes) -> None:
        folder, name = split(self)
        store_at(folder).put(name, data)

    def rglob(self, _: str):
        return [
            MemoryPath(f"{folder}/{name}")
            for folder, folders, names in store_at(self).walk()
            for name in folders + names
        ]
