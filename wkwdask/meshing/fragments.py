"""Scratch files that bring the fragments of a label together, whichever cells they come from.

Each file holds the fragments of some cells, sorted by the shard that they will lie in, so that a
shard is written from one part of each file::

    cells    |  cells 0 to 99   |  cells 100 to 199  |  ...
    files    | 0 | 1 | 2 | 3 |    | 0 | 1 | 2 | 3 |     fragments by shard, label, level, cell
               |______________________|
                       shard 0

Parts are merged in windows, which bound the memory for labels of any size.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wkwdask.errors import CorruptError, MissingError
from wkwdask.formats.precomputed.meshes import LevelOfDetail
from wkwdask.geometry import morton
from wkwdask.model.writing.file_buffer import FileBuffer
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.array_types import UintArray
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.model.store import OpenFile, StoredFile

_WINDOW_NBYTES = 1 << 26
_AHEAD_NBYTES = 64 << 10  # of a file in a bucket, which come with its size
_ROW = np.dtype([(name, "<u8") for name in ("label", "lod", "code", "nbytes", "checksum")])
_PART = np.dtype([(name, "<u8") for name in ("row", "offset", "checksum")])
_END_NBYTES = 24  # number of rows and checksum of parts as uint64, magic
_MAGIC = b"FRAGMENT"


class LabelFragments(NamedTuple):
    """Fragments of one label."""

    label: int
    levels: list[LevelOfDetail]
    data: Iterator[bytes]
    """Encoded fragments, in the order of levels; read before those of the next label."""


class FragmentRows:
    """Fragments in memory, to be written to a file."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._data: list[bytes] = []

    def add(self, label: int, lod: int, code: int, data: bytes) -> None:
        """Add the fragment of a label in a cell, which a Morton code names."""
        self._rows.append((label, lod, code, len(data), zlib.crc32(data)))
        self._data.append(data)

    def write(self, folder: str, name: str, sharding: Sharding) -> None:
        """Write the file: fragments, their rows, and where those of each shard begin."""
        rows = np.array(self._rows, _ROW)
        shards, minishards = sharding.locate(rows["label"].astype(np.uint64))
        order = np.lexsort((rows["code"], rows["lod"], rows["label"], minishards, shards))
        rows, shards = rows[order], shards[order]
        parts = np.zeros((1 << sharding.shard_bits) + 1, _PART)
        parts["row"] = np.searchsorted(shards, np.arange(len(parts), dtype=np.uint64))
        ends = np.concatenate([np.zeros(1, np.uint64), np.cumsum(rows["nbytes"], dtype=np.uint64)])
        parts["offset"] = ends[parts["row"].astype(np.int64)]
        parts["checksum"][:-1] = [
            zlib.crc32(rows[start:end].tobytes()) for start, end in pairwise(parts["row"].tolist())
        ]
        with store_at(folder).new_file(name) as file:
            buffer = FileBuffer(lambda: file)
            for row in order.tolist():
                buffer.append(np.frombuffer(self._data[row], np.uint8))
            for array in (rows, parts):
                buffer.append(array.view(np.uint8))
            numbers = np.array([len(rows), zlib.crc32(parts.tobytes())], "<u8")
            end = numbers.tobytes() + _MAGIC
            buffer.append(np.frombuffer(end, np.uint8))
            buffer.close()


class _Part(NamedTuple):
    """Fragments of one shard in one file."""

    rows: npt.NDArray[np.void]
    offsets: UintArray
    """First byte of each fragment in the file."""


@dataclass(frozen=True, slots=True)
class FragmentFile:
    """File of sorted fragments."""

    folder: str
    name: str
    num_shards: int

    def part(self, shard: int) -> _Part:
        """Read the table of the fragments of a shard."""
        with self._open() as file:
            return self._part(file, shard)

    def read(self, start: int, end: int) -> bytes:
        file: StoredFile | None = store_at(self.folder).open(self.name)
        if file is not None:
            with file:
                found = file.read([(start, end)])
            if found is not None:
                return found[0]
        raise MissingError(f"{self._path}: not found")

    def check(self) -> None:
        """Read everything; raises a FormatError for damage."""
        with self._open() as file:
            first = self._first_part(file)
            parts, footer = file.read([(first, file.nbytes - _END_NBYTES), self._end(file)])
            if zlib.crc32(parts) != int.from_bytes(footer[8:16], "little"):
                raise CorruptError(f"{self._path}: the table at byte {first} is damaged")
            for shard in range(self.num_shards):
                rows, offsets = self._part(file, shard)
                for row, offset in zip(rows, offsets.tolist(), strict=True):
                    (data,) = file.read([(offset, offset + int(row["nbytes"]))])
                    check_fragment(data, int(row["checksum"]), self._path, offset)

    def _part(self, file: OpenFile, shard: int) -> _Part:
        first = self._first_part(file)
        at = first + shard * _PART.itemsize
        raw, footer = file.read([(at, at + 2 * _PART.itemsize), self._end(file)])
        if not footer.endswith(_MAGIC):
            raise CorruptError(f"{self._path}: {file.nbytes} bytes have no valid footer")
        this, following = np.frombuffer(raw, _PART)
        row, row_end = int(this["row"]), int(following["row"])
        start = first - _ROW.itemsize * int.from_bytes(footer[:8], "little")
        if not 0 <= start + row * _ROW.itemsize <= start + row_end * _ROW.itemsize <= first:
            raise CorruptError(f"{self._path}: the table of shard {shard} is damaged")
        (table,) = file.read([(start + row * _ROW.itemsize, start + row_end * _ROW.itemsize)])
        if zlib.crc32(table) != int(this["checksum"]):
            raise CorruptError(f"{self._path}: the table of shard {shard} is damaged")
        rows = np.frombuffer(table, _ROW)
        offsets = this["offset"] + np.cumsum(rows["nbytes"], dtype=np.uint64) - rows["nbytes"]
        return _Part(rows, offsets)

    def _first_part(self, file: OpenFile) -> int:
        """Return where the table of shards begins."""
        first = file.nbytes - _END_NBYTES - _PART.itemsize * (self.num_shards + 1)
        if first < 0:
            raise CorruptError(f"{self._path}: {file.nbytes} bytes have no valid footer")
        return first

    @staticmethod
    def _end(file: OpenFile) -> tuple[int, int]:
        return file.nbytes - _END_NBYTES, file.nbytes

    @property
    def _path(self) -> str:
        return store_at(self.folder).path_of(self.name)

    def _open(self) -> OpenFile:
        (file,) = store_at(self.folder).open_heads([self.name], _AHEAD_NBYTES)
        if file is None:
            raise MissingError(f"{self._path}: not found")
        return file


def check_fragment(data: bytes, checksum: int, path: str, offset: int) -> None:
    """Raise CorruptError if a fragment is damaged."""
    if zlib.crc32(data) != checksum:
        raise CorruptError(f"{path}: the fragment at byte {offset} is damaged")


class ShardFragments:
    """Fragments of one shard in several files."""

    def __init__(self, files: Sequence[FragmentFile], sharding: Sharding, shard: int) -> None:
        self._files = files
        parts = [file.part(shard) for file in files]
        rows = np.concatenate([np.zeros(0, _ROW), *(part.rows for part in parts)])
        numbers = np.repeat(np.arange(len(files)), [len(part.rows) for part in parts])
        offsets = np.concatenate([np.zeros(0, np.uint64), *(part.offsets for part in parts)])
        _, minishards = sharding.locate(rows["label"].astype(np.uint64))
        order = np.lexsort((rows["code"], rows["lod"], rows["label"], minishards))
        self._rows, self._numbers, self._offsets = rows[order], numbers[order], offsets[order]

        self._starts = np.flatnonzero(np.diff(rows["label"][order], prepend=np.uint64(0)))

    @property
    def num_labels(self) -> int:
        return len(self._starts)

    def labels(self) -> Iterator[LabelFragments]:
        """Yield labels by minishard, ascending in each."""
        rows, data, starts = self._rows, self._data(), self._starts.tolist()
        for start, end in pairwise([*starts, len(rows)]):
            yield LabelFragments(
                int(rows["label"][start]), list(_levels(rows[start:end])), islice(data, end - start)
            )

    def _data(self) -> Iterator[bytes]:
        """Yield all fragments, read in windows: each is one range of each file."""
        sizes = self._rows["nbytes"]
        windows = (np.cumsum(sizes, dtype=np.uint64) - sizes) // np.uint64(_WINDOW_NBYTES)
        inner = np.flatnonzero(np.diff(windows)) + 1
        for start, end in pairwise([0, *inner.tolist(), len(windows)]):
            yield from self._window(start, end)

    def _window(self, start: int, end: int) -> Iterator[bytes]:
        rows, numbers = self._rows[start:end], self._numbers[start:end]
        offsets, ranges = self._offsets[start:end], {}
        for number in np.unique(numbers).tolist():
            own = np.flatnonzero(numbers == number)
            first, last = int(offsets[own[0]]), own[-1]
            end_byte = int(offsets[last]) + int(rows["nbytes"][last])
            ranges[number] = first, memoryview(self._files[number].read(first, end_byte))
        columns = numbers.tolist(), offsets.tolist(), rows["nbytes"].tolist(), rows["checksum"]
        for number, offset, nbytes, checksum in zip(*columns, strict=True):
            first, memory = ranges[number]
            data = bytes(memory[offset - first : offset - first + nbytes])
            file = self._files[number]
            check_fragment(data, int(checksum), store_at(file.folder).path_of(file.name), offset)
            yield data


def _levels(rows: npt.NDArray[np.void]) -> Iterator[LevelOfDetail]:
    """Yield the levels of a label, finest first."""
    for lod in range(int(rows["lod"][-1]) + 1):
        own = rows[rows["lod"] == lod]
        yield LevelOfDetail(morton.decode(own["code"]), own["nbytes"].tolist())
