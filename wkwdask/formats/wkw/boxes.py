"""Read many boxes of a WKW mag: each block is read and decoded once, in one compiled call for each
page of a jump table."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.formats.wkw.folder import file_path
from wkwdask.formats.wkw.stored_file import (
    GAP_NBYTES,
    PAGE_ENTRIES,
    SMALL_BATCH_NBYTES,
    check_links_of,
    find_blocks,
    has_small_files,
    max_file_nbytes,
    open_if_stored,
    read_batch,
    read_buffer,
)
from wkwdask.geometry import morton
from wkwdask.kernels.blocks.batch import compress_bound
from wkwdask.kernels.blocks.boxes import BlockTargets, is_compiled
from wkwdask.kernels.blocks.layout import SIZE, START, Z
from wkwdask.store.local import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.array_types import IntArray
    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.stored_array import ChunkPairs, StoredArray

_READ_NBYTES = 1 << 20  # stays in the cache between reading and decoding


def read_pairs(array: StoredArray, header: WkwHeader, pairs: ChunkPairs) -> Iterator[int]:
    """Decode blocks into their boxes; yield the blocks that must be read by the function for boxes,
    which raises the exact error if they are broken."""
    targets = block_targets(header, pairs)
    if has_small_files(header):
        yield from _read_small(array, header, targets)
        return
    files, inside = np.divmod(pairs.cells, header.file_len)
    codes = morton.encode(inside).astype(np.int64)
    memory = read_buffer(max(_READ_NBYTES, compress_bound(header.block_nbytes)))
    absent = []
    for first, last in pairwise(cuts_of(files)):
        x, y, z = files[first].tolist()
        file = open_if_stored(array.store, (x, y, z), header)
        if file is None:
            absent.append(file_path(array.store.url, (x, y, z)))
            continue
        descriptor = file.file.descriptor
        if descriptor is None:
            yield from range(first, last)
            continue
        blocks = targets._replace(is_compressed=file.header.is_compressed)
        # Pages follow each other in the order of codes.
        for begin, end in pairwise(cuts_of(codes[first:last, np.newaxis] // PAGE_ENTRIES)):
            at, stop = first + begin, first + end
            page, bounds = (
                int(codes[at]) // PAGE_ENTRIES * PAGE_ENTRIES,
                file.page(int(codes[at]) // PAGE_ENTRIES),
            )
            while at < stop:
                at += blocks.part(at, stop).decode_file(
                    descriptor, bounds, codes[at:stop] - page, GAP_NBYTES, memory
                )
                if at < stop:
                    yield at
                    at += 1
    _check_absent(array, absent)


def block_targets(header: WkwHeader, pairs: ChunkPairs) -> BlockTargets:
    """Return blocks and the boxes into which they are decoded, for compiled loops."""
    return BlockTargets(
        header.block_len, header.voxel_nbytes, header.is_compressed,
        pairs.cells, pairs.cuts, pairs.boxes, pairs.addresses, pairs.lows, pairs.shapes,
    )  # fmt: skip


def _read_small(array: StoredArray, header: WkwHeader, targets: BlockTargets) -> Iterator[int]:
    """Read files of one block each in batches."""
    folder, max_nbytes = array.store.url, max_file_nbytes(header)
    memory = read_buffer(max(SMALL_BATCH_NBYTES, max_nbytes))
    cells: Iterator[Vec3] = ((x, y, z) for x, y, z in targets.cells.tolist())
    first, absent, broken = 0, [], []
    while first < len(targets.cells):
        batch = np.array(read_batch(array.store, cells, max_nbytes, memory), np.int64)
        table = np.zeros((len(batch), Z + 1), np.int64)
        is_valid = find_blocks(table, batch[:, 3:4], batch[:, 4:], header, memory)
        is_absent = batch[:, 4] == ABSENT
        absent += [file_path(folder, (x, y, z)) for x, y, z in batch[is_absent, :3].tolist()]
        places = np.stack(
            [table[:, START], np.where(is_valid, table[:, SIZE], np.where(is_absent, 0, -1))],
            axis=1,
        )
        at, stop = 0, len(batch)
        while at < stop:
            at += targets.part(first + at, first + stop).decode_memory(memory, places[at:])
            if at < stop:
                broken.append(first + at)
                at += 1
        first += stop
    _check_absent(array, absent)
    yield from broken  # only now, because reading them uses the same buffer


def _check_absent(array: StoredArray, paths: list[str]) -> None:
    """Check that absent files mean zeros: the mag itself is still in place, and no folder above a
    file is a broken link."""
    if paths:
        array.identity.check(has_absent=True)
        check_links_of(paths)


def can_read_pairs(array: StoredArray, pairs: ChunkPairs) -> bool:
    """Return whether the compiled loops can read boxes."""
    return is_compiled() and array.channels is None and not pairs.is_clipped


def cuts_of(rows: IntArray) -> list[int]:
    """Return where rows differ from the row before, with both ends."""
    return [0, *(np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1).tolist(), len(rows)]
