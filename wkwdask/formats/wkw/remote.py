"""Read a WKW mag from a remote store. One request reads header and jump table of a file. Ranges of
all files are requested concurrently.

::

    box -> files: heads in one request each -> byte ranges of blocks, joined across small gaps -> batches -> decode_into
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from wkwdask.formats.wkw.boxes import block_targets, cuts_of
from wkwdask.formats.wkw.folder import file_name, file_path
from wkwdask.formats.wkw.stored_file import (
    WkwFile,
    has_small_files,
    max_file_nbytes,
    open_if_stored,
)
from wkwdask.geometry import morton
from wkwdask.kernels.blocks.batch import compress_bound
from wkwdask.kernels.blocks.layout import cubes_table
from wkwdask.model.layout import byte_ranges
from wkwdask.store.lru import LruCache
from wkwdask.streams.threads import for_each

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from wkwdask.array_types import IntArray
    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.formats.wkw.stored_file import Batch, BoxRead
    from wkwdask.geometry.mag import Vec3
    from wkwdask.kernels.blocks.boxes import BlockTargets
    from wkwdask.model.store import Store
    from wkwdask.model.stored_array import ChunkPairs, StoredArray
    from wkwdask.store.objects.remote import OpenRemoteFile

_CACHE_NBYTES = 64 << 20  # of headers and jump tables
_LARGEST_HEAD_NBYTES = 4 << 20  # larger jump tables are read page by page
_FILES_AT_ONCE = 32
_WHOLE_NBYTES = 4 << 20  # voxels of a file that is read in one request
_BATCHES_AT_ONCE = 8


class _CachedFile(NamedTuple):
    file: WkwFile | None
    """None for an absent file."""
    nbytes: int
    """Size in memory, with the parsed jump table."""


_files: LruCache[_CachedFile] = LruCache(_CACHE_NBYTES, lambda cached: cached.nbytes)
"""Files by the opening of their store, within which files are assumed not to change."""


def open_in(store: Store, index: Vec3, header: WkwHeader) -> WkwFile | None:
    """Open the data file with an index along x, y, z of a local or remote mag; None if it is
    absent."""
    return (
        _open_all(store, [index], header)[0]
        if store.is_remote
        else open_if_stored(store, index, header)
    )


def _open_all(
    store: Store, indices: Sequence[Vec3], header: WkwHeader, whole: Collection[Vec3] = ()
) -> list[WkwFile | None]:
    """Open remote data files, or return them from the cache. Those in ``whole`` are read whole if
    they are not cached, and returned so."""
    nbytes = head_nbytes(header, store)
    complete: dict[Vec3, WkwFile] = {}

    def open_file(key: tuple[str, str, Vec3]) -> _CachedFile:
        index = key[2]
        (opened,) = store.open_heads(
            [file_name(index)], _WHOLE_NBYTES + nbytes if index in whole else nbytes
        )
        if opened is None:
            return _CachedFile(None, 1 << 10)
        file = cast("OpenRemoteFile", opened)
        complete[index] = WkwFile(file, header)
        return _CachedFile(WkwFile(replace(file, head=file.head[:nbytes]), header), 2 * nbytes)

    def open_files(keys: list[tuple[str, str, Vec3]]) -> Iterator[_CachedFile]:
        return store.map(open_file, keys, _FILES_AT_ONCE)

    cached = _files.get_or_make(
        [(store.opening, store.url, index) for index in indices], open_files
    )
    return [complete.get(index, each.file) for index, each in zip(indices, cached, strict=True)]


def head_nbytes(header: WkwHeader, store: Store) -> int:
    """Return how much of a file is read first: all of a small file, else header and jump table, and
    the first blocks if the table is short."""
    return (
        max_file_nbytes(header)
        if has_small_files(header)
        else max(store.gap_nbytes, min(header.smallest_data_offset, _LARGEST_HEAD_NBYTES))
    )


def read_remote_box(
    store: Store, header: WkwHeader, reading: BoxRead, indices: Sequence[Vec3]
) -> int:
    """Fill an array from some files, and return the number of blocks that are not all zero."""
    edge, shape = header.file_len_vx, reading.out.shape
    counts: list[int] = []
    voxel_nbytes = header.voxel_nbytes

    def is_whole(index: Vec3) -> bool:
        axes = zip(index, reading.topleft, shape[1:], strict=True)
        wanted = math.prod(
            min((n + 1) * edge - at, length) - max(n * edge - at, 0) for n, at, length in axes
        )
        return (
            edge**3 * voxel_nbytes <= _WHOLE_NBYTES
            and (edge**3 - wanted) * voxel_nbytes <= store.gap_nbytes
        )

    def read(job: tuple[WkwFile, Batch]) -> None:
        file, batch = job
        counts.append(file.read_batch(batch, reading))

    for first in range(0, len(indices), _FILES_AT_ONCE):
        group, jobs = indices[first : first + _FILES_AT_ONCE], []
        for (x, y, z), file in zip(
            group, _open_all(store, group, header, set(filter(is_whole, group))), strict=True
        ):
            corner = (
                x * edge - reading.topleft[0],
                y * edge - reading.topleft[1],
                z * edge - reading.topleft[2],
            )
            if file is None:
                reading.absent[y, z] = file_path(store.url, (x, y, z))
                reading.zeros.add(cubes_table(corner, edge), edge)
                continue
            for page, at in file.pages(corner, shape):
                jobs += [
                    (file, batch)
                    for batch in file.batches(page, file.cells(reading, at), at, store.gap_nbytes)
                ]
        for_each(read, jobs, _BATCHES_AT_ONCE)
    return sum(counts)


def read_remote_pairs(array: StoredArray, header: WkwHeader, pairs: ChunkPairs) -> Iterator[int]:
    """Decode blocks into their boxes; yield the blocks that must be read by the function for boxes,
    which raises the exact error if they are broken."""
    reader = _PairReader(
        block_targets(header, pairs), compress_bound(header.block_nbytes), array.store
    )
    files, inside = np.divmod(pairs.cells, header.file_len)
    codes = morton.encode(inside).astype(np.int64)
    spans = list(pairwise(cuts_of(files)))
    for start in range(0, len(spans), _FILES_AT_ONCE):
        group = spans[start : start + _FILES_AT_ONCE]
        indices = [(x, y, z) for x, y, z in files[[first for first, _ in group]].tolist()]
        jobs = []
        for (first, last), file in zip(group, _open_all(array.store, indices, header), strict=True):
            jobs += [] if file is None else reader.jobs(file, codes[first:last], first)
        for_each(reader.read, jobs, _BATCHES_AT_ONCE)
    yield from sorted(reader.broken)


class _PairReader:
    """Reader of byte ranges of files, whose blocks are decoded into boxes."""

    def __init__(self, targets: BlockTargets, largest: int, store: Store) -> None:
        self._targets, self._largest, self._store = targets, largest, store
        self.broken: list[int] = []
        """Numbers of blocks that did not decode."""

    def jobs(self, file: WkwFile, codes: IntArray, first: int) -> list[tuple[WkwFile, IntArray]]:
        """Return the byte ranges of some blocks of a file: start, stop and number of each block,
        shape (n, 3)."""
        places = np.concatenate(
            [file.bounds_of(codes), np.arange(first, first + len(codes))[:, np.newaxis]], axis=1
        )
        sizes = places[:, 1] - places[:, 0]
        is_usual = (sizes > 0) & (sizes <= self._largest)
        self.broken += places[~is_usual, 2].tolist()
        places = places[is_usual]
        return (
            [
                (file, part)
                for part in byte_ranges(places, self._store.gap_nbytes, self._store.batch_nbytes)
            ]
            if len(places)
            else []
        )

    def read(self, job: tuple[WkwFile, IntArray]) -> None:
        """Read one byte range and decode its blocks."""
        file, places = job
        begin = int(places[0, 0])
        memory = np.empty(int(places[-1, 1]) - begin, np.uint8)
        file.file.read_into(memory, begin)
        blocks = self._targets._replace(is_compressed=file.header.is_compressed)
        where = np.stack([places[:, 0] - begin, places[:, 1] - places[:, 0]], axis=1)
        at = 0
        while at < len(places):
            # Numbers of blocks of one range ascend, but those of unusual size are missing between
            # them.
            number = int(places[at, 2])
            stop = at + int((np.diff(places[at:, 2]) == 1).cumprod().sum()) + 1
            done = blocks.part(number, number + stop - at).decode_memory(memory, where[at:stop])
            at += done
            if at < stop:
                self.broken.append(int(places[at, 2]))
                at += 1
