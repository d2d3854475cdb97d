"""Files of tests by path, on the disk or in a bucket: as much of :class:`pathlib.Path` as the
matrix needs."""

from __future__ import annotations

from pathlib import Path

from wkwdask.store.paths import dirname, is_bucket, split
from wkwdask.store.store import store_at


def stored_path(url: str) -> Path | ObjectPath:
    """Return the path of a URL with or without the prefix of a format."""
    before, _, path = url.rpartition("://")
    stored = f"{before.rpartition('://')[2]}://{path}"
    return ObjectPath(stored) if is_bucket(stored) else Path(path)


class ObjectPath(str):
    """A path in a bucket."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(dirname(self))

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self}/{name}")

    def with_name(self, name: str) -> ObjectPath:
        return ObjectPath(f"{dirname(self)}/{name}")

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

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes) -> None:
        folder, name = split(self)
        store_at(folder).put(name, data)

    def rglob(self, _: str):
        return [
            ObjectPath(f"{folder}/{name}")
            for folder, folders, names in store_at(self).walk()
            for name in folders + names
        ]
