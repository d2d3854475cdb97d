"""Shard files of precomputed volumes, open for reading: from chunk identifiers to the stored bytes of chunks.

Of the tables of a shard only what is asked for is read, and kept for as long as the file stays as it is. Chunks that lie beside each other are read together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wkwdask.errors import CorruptError, MissingError
from wkwdask.formats.precomputed.gzip_stream import decompress_gzip
from wkwdask.formats.precomputed.sharding import INDEX_ENTRY_NBYTES, MINISHARD_ENTRY_NBYTES, parse_minishard_index
from wkwdask.store.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.store import Store, StoredFile

_PAGE_ENTRIES = 1024  # of a shard index, read at once
_KEPT_NBYTES = 64 << 20
_REMOTE_BATCHES = 8  # requests at once

_tables: Lru[npt.NDArray[np.uint64]] = Lru(_KEPT_NBYTES, lambda table: table.nbytes + 256)


class StoredChunk(NamedTuple):
    """The stored bytes of a chunk, and where they were."""

    number: int
    """Which of those that were asked for."""
    data: bytes
    """The bytes."""
    path: str
    """The file."""
    offset: int
    """First byte in the file."""


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard that is open for reading: one file, or two in the obsolete layout."""

    file: StoredFile
    """The shard, or what follows the shard index."""
    sharding: Sharding
    """How it is laid out."""
    grid: Vec3
    """Chunks of the volume along x, y, z."""
    index_file: StoredFile | None = None
    """Where the shard index is a file of its own: that file."""

    @property
    def data_nbytes(self) -> int | None:
        """Bytes that follow the shard index, None where nobody has said how many."""
        if self.file.nbytes is None:
            return None
        return max(0, self.file.nbytes - self.first_byte)

    @property
    def first_byte(self) -> int:
        """Byte of the file from which offsets in tables count."""
        return 0 if self.index_file is not None else self.sharding.index_nbytes

    def minishard_range(self, minishard: int) -> tuple[int, int] | None:
        """Look up where the index of a minishard lies, counted from the end of the shard index; None where the shard is absent."""
        page, place = divmod(minishard, _PAGE_ENTRIES)
        table = self._page(page)
        if not len(table):
            return None
        start, stop = table[place].tolist()
        most = self.data_nbytes
        if start > stop or (start < stop and most is not None and stop > most):
            room = "" if most is None else f" of the {most} bytes behind the shard index"
            where = f"{(self.index_file or self.file).name}: byte {INDEX_ENTRY_NBYTES * minishard}"
            raise CorruptError(f"{where}: the index of minishard {minishard} is said to lie from {start} to {stop}{room}")
        return start, stop

    def is_there(self) -> bool:
        """Tell whether the shard is stored; a remote one is asked for."""
        return self.file.nbytes is not None or len(self._page(0)) > 0

    def _page(self, page: int) -> npt.NDArray[np.uint64]:
        """Read some entries of the shard index, shape (n, 2); none where the shard is absent."""
        file = self.index_file or self.file
        key = (file.name, file.state, self.sharding, "index", page)
        table = _tables.get(key)
        if table is None:
            first = page * _PAGE_ENTRIES * INDEX_ENTRY_NBYTES
            found = file.read([(first, min(first + _PAGE_ENTRIES * INDEX_ENTRY_NBYTES, self.sharding.index_nbytes))])
            table = np.frombuffer(b"" if found is None else found[0], "<u8").reshape(-1, 2).astype(np.uint64)
            _tables.put(key, table)
        return table

    def minishard(self, minishard: int) -> npt.NDArray[np.uint64] | None:
        """Read the index of a minishard."""
        key = (self.file.name, self.file.state, self.sharding, "minishard", minishard)
        table = _tables.get(key)
        if table is not None:
            return table
        where = self.minishard_range(minishard)
        if where is None:
            return None
        table = np.zeros((3, 0), np.uint64)
        if where[1] > where[0]:
            offset = self.first_byte + where[0]
            most = MINISHARD_ENTRY_NBYTES * self.sharding.minishard_chunks(self.grid)
            if self.sharding.minishard_index_encoding == "raw" and where[1] - where[0] > most:
                raise CorruptError(
                    f"{self.file.name}: byte {offset}: the index of minishard {minishard} has {where[1] - where[0]} bytes, expected at most {most}"
                )
            found = self.file.read([(offset, self.first_byte + where[1])])
            if found is None:
                raise MissingError(f"{self.file.name}: not found, though the shard index beside it is there")
            raw = found[0]
            if self.sharding.minishard_index_encoding == "gzip":
                raw = decompress_gzip(raw, most, f"{self.file.name}: the index of minishard {minishard}", offset)
            table = np.stack(parse_minishard_index(raw, f"{self.file.name}: minishard {minishard}", offset, self.data_nbytes))
        _tables.put(key, table)
        return table

    def read_chunks(
        self, ids: npt.NDArray[np.uint64], minishards: npt.NDArray[np.uint64], numbers: npt.NDArray[np.int64], store: Store
    ) -> Iterator[StoredChunk]:
        """Read chunks in the order in which they are stored; those that are not are left out."""
        places = self._places(ids, minishards, numbers)
        if not len(places):
            return
        batches = list(_batches(places, store.gap_nbytes, store.batch_nbytes))
        at_once = 1 if store.is_local else _REMOTE_BATCHES
        for first in range(0, len(batches), at_once):
            some = batches[first : first + at_once]
            found = self.file.read([(int(batch[0, 0]), int(batch[:, 1].max())) for batch in some])
            if found is None:
                raise MissingError(f"{self.file.name}: not found, though it was there a moment ago")
            for batch, data in zip(some, found, strict=True):
                begin = int(batch[0, 0])
                for start, stop, number in batch.tolist():
                    yield StoredChunk(number, data[start - begin : stop - begin], self.file.name, start)

    def _places(self, ids: npt.NDArray[np.uint64], minishards: npt.NDArray[np.uint64], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Look up chunks: first byte, the one behind the last, and number of each that is stored, shape (n, 3), in the order of their places."""
        order = np.argsort(minishards, kind="stable")
        cuts = np.flatnonzero(np.diff(minishards[order])) + 1
        rows = []
        for members in np.split(order, cuts):
            table = self.minishard(int(minishards[members[0]]))
            if table is None:
                return np.zeros((0, 3), np.int64)
            if not table.shape[1]:
                continue
            at = np.minimum(np.searchsorted(table[0], ids[members]), table.shape[1] - 1)
            there = table[0, at] == ids[members]
            starts, sizes = table[1, at[there]].astype(np.int64) + self.first_byte, table[2, at[there]].astype(np.int64)
            rows.append(np.stack([starts, starts + sizes, numbers[members[there]]], axis=1))
        found = np.concatenate(rows) if rows else np.zeros((0, 3), np.int64)
        return found[np.argsort(found[:, 0], kind="stable")]


def _batches(places: npt.NDArray[np.int64], gap_nbytes: int, largest: int) -> Iterator[npt.NDArray[np.int64]]:
    """Cut chunks, in the order of their places, into runs that are read together."""
    first = 0
    end = int(places[0, 1])
    for n, (start, stop, _) in enumerate(places.tolist()):
        if n > first and (start > end + gap_nbytes or stop - int(places[first, 0]) > largest):
            yield places[first:n]
            first, end = n, stop
        end = max(end, stop)
    yield places[first:]


def open_shard(store: Store, key: str, sharding: Sharding, shard: int, grid: Vec3) -> ShardFile | None:
    """Open a shard, in the obsolete layout of two files where it is not there in one."""
    file = store.open(f"{key}/{sharding.shard_name(shard)}")
    if file is not None:
        opened = ShardFile(file, sharding, grid)
        if opened.is_there():
            return opened
    index_name, data_name = sharding.split_names(shard)
    index_file = store.open(f"{key}/{index_name}")
    if index_file is None:
        return None
    data_file = store.open(f"{key}/{data_name}")
    if data_file is None:
        with index_file:
            raise MissingError(f"{store.path_of(f'{key}/{data_name}')}: not found, though {index_name} is there")
    split = ShardFile(data_file, sharding, grid, index_file)
    return split if split.is_there() else None


def close_shard(shard: ShardFile) -> None:
    """Close what is open of a shard."""
    with shard.file:
        if shard.index_file is not None:
            with shard.index_file:
                return
