"""Check the directories of a TIFF file before a library follows them: small damage must not become hours of work.

Directories of a sound file never overlap: together they are no larger than the file. A loop, or a directory that is listed twice, exceeds this at once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.store import files

if TYPE_CHECKING:
    import numpy.typing as npt

_TYPE_NBYTES = np.zeros(1 << 16, np.uint64)
_TYPE_NBYTES[1:19] = [1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 2, 8, 8, 8, 8]  # TIFF 6.0, section 2, and BigTIFF's 16 to 18
_WIDTH, _HEIGHT, _SUB_IFDS = 256, 257, 330
_LENGTHS = {3: "H", 4: "I", 16: "Q"}
_SHARED = 4
"""How often pages may share the values of their tags, on average."""
_SLACK_NBYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Dialect:
    """The sizes in which TIFF and BigTIFF differ."""

    order: str
    count: str
    offset: str
    tag: np.dtype[np.void]


def _dialect(order: str, *, is_big: bool) -> _Dialect:
    wide = "Q" if is_big else "I"
    offset_nbytes = 8 if is_big else 4
    fields = [("code", f"{order}u2"), ("type", f"{order}u2"), ("count", f"{order}u{offset_nbytes}"), ("value", f"V{offset_nbytes}")]
    return _Dialect(order, order + ("Q" if is_big else "H"), order + wide, np.dtype(fields))


def smallest_page(path: str) -> int:
    """Make sure that the directories of a TIFF file are finite, and find the smallest of its pages."""
    with files.open_file(path) as file:
        return _Walk(file).smallest()


class _Walk:
    """One walk through all directories."""

    def __init__(self, file: files.OpenFile) -> None:
        self._file, self._path, self._nbytes = file, file.name, file.nbytes
        self._directories_nbytes = self._values_nbytes = 0
        head = self._read(0, 4, "header")
        order = {b"II": "<", b"MM": ">"}.get(head[:2])
        version = struct.unpack(f"{order}H", head[2:])[0] if order else 0
        if version not in (42, 43):
            raise CorruptError(f"{file.name}: begins with {head.hex(' ')}, expected II or MM and 42 or 43, as a TIFF file does")
        self._dialect = _dialect(order or "<", is_big=version == 43)
        self._first = 8 if version == 43 else 4

    def smallest(self) -> int:
        """Walk along the chain of pages, and to what lies below each."""
        sizes, following = [], self._offset_at(self._first, "header")
        while following:
            following, below, num_pixels = self._directory(following)
            sizes.append(num_pixels)
            while below:
                below += self._directory(below.pop())[1]
        return max(1, min(sizes, default=1))

    def _read(self, offset: int, nbytes: int, what: str) -> bytes:
        data = self._file.read_some(nbytes, offset) if offset + nbytes <= self._nbytes else b""
        if len(data) < nbytes:
            raise CorruptError(f"{self._path}: the {what} at byte {offset} takes {nbytes} bytes, and the file has {self._nbytes}")
        return data

    def _offset_at(self, offset: int, what: str) -> int:
        value: int = struct.unpack(self._dialect.offset, self._read(offset, struct.calcsize(self._dialect.offset), what))[0]
        return value

    def _directory(self, offset: int) -> tuple[int, list[int], int]:
        """Look at one directory, and return the offsets of the next one and of those below it, and the number of its pixels."""
        kind = self._dialect
        start = offset + struct.calcsize(kind.count)
        (num_tags,) = struct.unpack(kind.count, self._read(offset, start - offset, "directory"))
        tags = np.frombuffer(self._read(start, num_tags * kind.tag.itemsize, f"directory of {num_tags} tags"), kind.tag)
        self._directories_nbytes += start - offset + tags.nbytes
        if self._directories_nbytes > self._nbytes:
            raise CorruptError(f"{self._path}: the directories of its pages overlap or form a loop, at byte {offset}")
        with np.errstate(over="ignore"):
            nbytes = tags["count"].astype(np.uint64) * _TYPE_NBYTES[tags["type"]]
        inside = nbytes[(nbytes <= self._nbytes) & (tags["count"] <= self._nbytes)]  # what reaches beyond the file is not read
        self._values_nbytes += int(inside.sum())
        if self._values_nbytes > _SHARED * self._nbytes + _SLACK_NBYTES:
            raise CorruptError(f"{self._path}: tags claim {self._values_nbytes} bytes up to the directory at byte {offset}, and the file has {self._nbytes}")
        below: list[int] = []
        for tag in tags[tags["code"] == _SUB_IFDS]:
            below += self._sub_directories(int(tag["count"]), int(_TYPE_NBYTES[tag["type"]]), bytes(tag["value"]))
        return self._offset_at(start + tags.nbytes, "offset of the next directory"), below, self._length(tags, _WIDTH) * self._length(tags, _HEIGHT)

    def _length(self, tags: npt.NDArray[np.void], code: int) -> int:
        """Read a width or height, 0 where there is none."""
        for tag in tags[tags["code"] == code][:1]:
            kind = _LENGTHS.get(int(tag["type"]))
            return 0 if kind is None else int(struct.unpack_from(self._dialect.order + kind, bytes(tag["value"]).ljust(8, b"\0"))[0])
        return 0

    def _sub_directories(self, count: int, item_nbytes: int, value: bytes) -> list[int]:
        """Read the offsets of the directories below one; those that do not lie in the file are left to the library."""
        nbytes = count * item_nbytes
        if item_nbytes not in (4, 8) or nbytes > self._nbytes:
            return []
        at = struct.unpack(self._dialect.offset, value)[0]
        data = value[:nbytes] if nbytes <= len(value) else self._read(at, nbytes, "list of directories") if at + nbytes <= self._nbytes else b""
        offsets: list[int] = np.frombuffer(data, f"{self._dialect.order}u{item_nbytes}").tolist()
        return [offset for offset in offsets if 8 <= offset < self._nbytes]
