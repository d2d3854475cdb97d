"""Files of tests by path, on the disk or in memory: as much of :class:`pathlib.Path` as the matrix
needs."""

from __future__ import annotations

from pathlib import Path

from wkwdask.store import files
from wkwdask.store.new_files import publish_bytes


def stored_path(url: str) -> Path | MemoryPath:
    """Return the path of a URL with or without the prefix of a format."""
    path = url.rpartition("://")[2]
    return MemoryPath(f"memory://{path}") if "memory://" in url else Path(path)


class MemoryPath(str):
    """A path in memory."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self.rpartition("/")[2]

    @property
    def parent(self) -> MemoryPath:
        return MemoryPath(self.rpartition("/")[0])

    def with_name(self, name: str) -> MemoryPath:
        return MemoryPath(f"{self.rpartition('/')[0]}/{name}")

    def exists(self) -> bool:
        return files.exists(self)

    def is_file(self) -> bool:
        return files.isfile(self)

    def stat(self):
        return files.stat(self)

    def unlink(self) -> None:
        files.unlink(self)

    def read_bytes(self) -> bytes:
        return files.read_bytes(self)

    def write_bytes(self, data: bytes) -> None:
        publish_bytes(self, data)

    def rglob(self, _: str):
        return [
            MemoryPath(f"{folder}/{name}")
            for folder, folders, names in files.walk(self)
            for name in folders + names
        ]
