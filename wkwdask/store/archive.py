"""Files by name in a folder, a zip, or a zip inside a zip, which is extracted only if it is compressed.

Open zips are cached by path, size and modification time, so a replaced zip is reopened.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, MissingError
from wkwdask.model.parsing import reading
from wkwdask.store import files
from wkwdask.store.local import LocalFile
from wkwdask.store.lru import LruCache
from wkwdask.store.paths import relpath

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPEN_ZIPS = 16
_MEMORY_NBYTES = 64 << 20  # an unpacked inner zip larger than this goes to a temporary file
_LOCAL_HEADER_NBYTES = 30  # .ZIP File Format Specification (APPNOTE.TXT), section 4.3.7
_MAX_RATIO = 200  # blocks and skeletons compress by about 100 at most; a higher ratio above _MEMORY_NBYTES is a zip bomb


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """Folder, zip, or zip inside a zip; cheap to pickle."""

    path: str
    member: str | None = None
    """Name of the inner zip."""

    @property
    def name(self) -> str:
        return self.path if self.member is None else f"{self.path}:{self.member}"

    @property
    def state(self) -> tuple[int, int]:
        """Size [bytes] (0 for a folder) and modification time [ns]."""
        try:
            status = files.stat(self.path)
        except FileNotFoundError:
            raise MissingError(f"{self.path}: no such file") from None
        return (0 if files.isdir(self.path) else status.st_size), status.st_mtime_ns

    def open(self) -> Folder | Zip:
        state = self.state
        if files.isdir(self.path):
            return Folder(self.path)
        opened = _zips.get((self, state))
        if opened is None:
            opened = Zip(self)
            _zips.put((self, state), opened)
        return opened


class Folder:
    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> Iterator[str]:
        for folder, _, names in files.walk(self._path):
            yield from (relpath(f"{folder}/{name}", self._path) for name in names)

    def read(self, name: str, max_nbytes: int) -> bytes:
        """Read a file, at most one byte more than ``max_nbytes``."""
        try:
            with files.open_file(f"{self._path}/{name}") as file:
                return file.read_some(max_nbytes + 1, 0)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingError(f"{self._path}/{name}: not found") from None


class Zip:
    def __init__(self, file: ArchiveFile) -> None:
        self._file = file
        self._outer = outer = files.open_file(file.path)
        with _reading(file.path):
            self._zip = zipfile.ZipFile(_FileSection(outer, 0, outer.nbytes))
            if file.member is not None:
                self._zip = zipfile.ZipFile(self._inner(self._zip.getinfo(file.member)))
        self.index: Any = None
        """Cache for a caller that parses the names."""

    def _inner(self, info: zipfile.ZipInfo) -> Any:
        """Open a zip inside the zip: in place if it is stored uncompressed, else unpacked to memory or, if large, to a temporary file."""
        if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
            if info.header_offset < 0:
                raise CorruptError(f"{self._file.name}: starts at byte {info.header_offset} of the zip around it")
            # The data follows the local header, whose name and extra field may differ in length from those of the central directory.
            head = self._outer.read_some(_LOCAL_HEADER_NBYTES, info.header_offset)
            skipped = _LOCAL_HEADER_NBYTES + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
            return _FileSection(self._outer, info.header_offset + skipped, info.file_size)
        self._check_ratio(info)
        if info.file_size <= _MEMORY_NBYTES:
            return io.BytesIO(self._zip.read(info))
        # Read as a section, not through Python's file object: forked processes would share its position.
        with self._zip.open(info) as packed, tempfile.TemporaryFile() as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
            unpacked.flush()
            return _FileSection(LocalFile(self._file.name, os.dup(unpacked.fileno())), 0, info.file_size)

    def names(self) -> Iterator[str]:
        return (info.filename for info in self._zip.infolist() if not info.is_dir())

    def read(self, name: str, max_nbytes: int) -> bytes:
        """Read a file, at most one byte more than ``max_nbytes``."""
        with _reading(f"{self._file.name}:{name}"), self._zip.open(name) as file:
            if max_nbytes > _MEMORY_NBYTES:
                self._check_ratio(self._zip.getinfo(name))
            return file.read(max_nbytes + 1)

    def _check_ratio(self, info: zipfile.ZipInfo) -> None:
        """Reject a member whose declared size exceeds any plausible compression ratio."""
        max_nbytes = _MEMORY_NBYTES + _MAX_RATIO * info.compress_size
        if info.file_size > max_nbytes:
            raise CorruptError(f"{self._file.path}:{info.filename}: unpacks from {info.compress_size} to {info.file_size} bytes, expected at most {max_nbytes}")


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Raise our errors, with the name, for a damaged zip and for a member that it does not list."""
    with reading(name, "zip"):
        try:
            yield
        except KeyError as error:
            raise MissingError(f"{name}: {error.args[0]}") from None


class _FileSection(io.RawIOBase):
    """Section of an open file. It has its own position, which forked processes do not share."""

    def __init__(self, file: files.OpenFile, offset: int, nbytes: int) -> None:
        self._file, self._offset, self._nbytes, self._position = file, offset, nbytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._nbytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, nbytes: int | None = -1) -> bytes:
        remaining = max(0, self._nbytes - self._position)
        missing = remaining if nbytes is None or nbytes < 0 else min(nbytes, remaining)
        parts = []
        while missing:
            part = self._file.read_some(missing, self._offset + self._position)
            if not part:
                break
            parts.append(part)
            missing, self._position = missing - len(part), self._position + len(part)
        return b"".join(parts)


_zips: LruCache[Zip] = LruCache(_OPEN_ZIPS)
