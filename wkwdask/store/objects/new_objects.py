"""New objects of a bucket, and batches of small ones."""

from __future__ import annotations

import tempfile
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from wkwdask.errors import MissingError
from wkwdask.store.local import FolderFile
from wkwdask.store.objects.entries import remote_status

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from wkwdask.model.store import StoredFile

    Publish = Callable[[str, bytes | BinaryIO], None]
    """Stores an object of a name."""

_BATCH_NBYTES = 16 << 20
MEMORY_NBYTES = 256 << 20  # of a new object; larger ones are collected on the disk of this machine


class SpooledFile(FolderFile):
    """Bytes written so far to a new object, see :class:`wkwdask.model.store.OpenFile`."""

    __slots__ = ("_lock", "_spool")

    def __init__(self, path: str, spool: BinaryIO, nbytes: int) -> None:
        super().__init__(path, remote_status(nbytes))
        self._spool, self._lock = spool, threading.Lock()

    def read_some(self, nbytes: int, offset: int) -> bytes:
        with self._lock:
            self._spool.seek(offset)
            return self._spool.read(nbytes)

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        memoryview(memory.data)[:] = self._read_one(offset, offset + memory.nbytes)
        return True

    def close(self) -> None:
        """The new object keeps the spool."""


class NewObject:
    """New object, see :class:`wkwdask.model.store.NewFile`: collected in memory or on the disk of
    this machine, and stored by one put."""

    def __init__(self, path: str, name: str, publish: Publish) -> None:
        self.path = path
        self._name, self._publish = name, publish
        self._spool: Any = tempfile.SpooledTemporaryFile(MEMORY_NBYTES)  # noqa: SIM115 - it outlives this call
        self._nbytes = 0

    def write(self, data: bytes | npt.NDArray[np.uint8] | memoryview, offset: int) -> None:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        self._spool.seek(offset)
        self._spool.write(view)
        self._nbytes = max(self._nbytes, offset + view.nbytes)

    def copy_from(self, source: StoredFile, nbytes: int) -> None:
        parts = source.read([(0, nbytes)])
        if parts is None:
            raise MissingError(f"{source.name}: not found")
        self.write(parts[0], 0)

    def open_written(self) -> SpooledFile:
        return SpooledFile(self.path, self._spool, self._nbytes)

    def set_nbytes(self, nbytes: int) -> None:
        if nbytes > self._nbytes:
            self.write(b"\0", nbytes - 1)
        self._spool.truncate(nbytes)
        self._nbytes = nbytes

    def publish(self, *, flush_folder: bool = True, keep_equal: bool = False) -> None:
        del flush_folder, keep_equal
        self._spool.seek(0)
        with self._spool:
            self._publish(
                self._name, self._spool if self._nbytes > MEMORY_NBYTES else self._spool.read()
            )

    def discard(self) -> None:
        self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Publish the object, or discard it after an error."""
        if kind is None:
            self.publish()
        else:
            self.discard()


class NewObjects:
    """Small objects that are stored together, see :class:`wkwdask.model.store.NewFiles`."""

    def __init__(self, publish_all: Callable[[list[tuple[str, bytes]]], None]) -> None:
        self._publish_all = publish_all
        self._pending: list[tuple[str, bytes]] = []
        self._pending_nbytes = 0
        self.count = 0
        self.nbytes = 0

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._pending.append((name, bytes(data)))
        self._pending_nbytes += len(data)
        self.count += 1
        self.nbytes += len(data)
        if self._pending_nbytes >= _BATCH_NBYTES:
            self.publish()

    def publish(self) -> None:
        """Store the objects written so far."""
        self._publish_all(self._pending)
        self.discard()

    def discard(self) -> None:
        self._pending, self._pending_nbytes = [], 0
