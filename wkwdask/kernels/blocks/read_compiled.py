"""Compiled loop that reads a box of blocks from an open file: read, decode and copy a few blocks at
a time, in the CPU cache."""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.blocks.batch_compiled import decode, needed_values
from wkwdask.kernels.blocks.checks_compiled import is_zero_lz4, is_zero_raw
from wkwdask.kernels.blocks.copies_compiled import clear, scatter
from wkwdask.kernels.blocks.layout import OFFSET, SIZE, X, Y, Z
from wkwdask.kernels.blocks.locate_compiled import fill_in_order, pread
from wkwdask.kernels.compiler import helper, kernel

_GAP_NBYTES = 4 << 10  # reading a smaller gap between two blocks is cheaper than a second call


@helper
def _corner(table, n):
    return table[n, X], table[n, Y], table[n, Z]


@helper
def _stored_needed(size, needed, nbytes):
    """Estimate how many stored bytes decode to the bytes that are needed; all of a small block,
    which may be all zero."""
    return (
        size
        if needed == nbytes or size <= nbytes // 128
        else min(size, np.int64(np.float64(size) * needed / nbytes) + size // 16 + 256)
    )


@kernel
def read_blocks(
    fd,
    bounds,
    edge,
    channels,
    first_channel,
    compressed,
    fill_zeros,
    cube_len,
    corner,
    source,
    block,
    out,
    shape,
    strides,
):
    """Read blocks into the array. Return how many are not all zero, -1 if anything is not as
    expected."""
    nbytes = block.size * block.itemsize
    low = max(0, -corner[0]) // edge, max(0, -corner[1]) // edge, max(0, -corner[2]) // edge
    high = (
        min(cube_len, (shape[1] - corner[0] + edge - 1) // edge),
        min(cube_len, (shape[2] - corner[1] + edge - 1) // edge),
        min(cube_len, (shape[3] - corner[2] + edge - 1) // edge),
    )
    if min(high[0] - low[0], high[1] - low[1], high[2] - low[2]) <= 0:
        return 0
    table = np.empty(((high[0] - low[0]) * (high[1] - low[1]) * (high[2] - low[2]), 7), np.int64)
    fill_in_order(bounds, low, high, edge, corner, table)
    source_at, block_at = np.intp(source.ctypes.data), np.intp(block.ctypes.data)
    nonzero, next_block = 0, 0
    while next_block < table.shape[0]:
        # One read for neighbouring blocks, as many as fit into memory. It ends with the part that
        # is needed of the last block.
        first, begin, end = next_block, table[next_block, OFFSET], table[next_block, OFFSET]
        while next_block < table.shape[0]:
            offset, size = table[next_block, OFFSET], table[next_block, SIZE]
            if next_block > first and (
                offset - end > _GAP_NBYTES or offset + size - begin > source.size
            ):
                break
            needed = (
                needed_values(_corner(table, next_block), edge, channels, shape) * block.itemsize
            )
            end = offset + (_stored_needed(size, needed, nbytes) if compressed else size)
            next_block += 1
        if (
            end - begin > source.size
            or pread(np.int32(fd), source_at, np.intp(end - begin), np.int64(begin)) != end - begin
        ):
            return -1
        for n in range(first, next_block):
            at, size = table[n, OFFSET] - begin, table[n, SIZE]
            where = _corner(table, n)
            if not compressed:
                if size < nbytes:
                    return -1
                is_zero, block_or_source_at = is_zero_raw(source, at, at + nbytes), source_at + at
            else:
                block_or_source_at = block_at
                stored = min(size, end - begin - at)
                is_zero = is_zero_lz4(source, at, stored, nbytes)
                if not is_zero:
                    needed = needed_values(where, edge, channels, shape) * block.itemsize
                    is_complete, _ = decode(source_at + at, stored, block_at, needed, nbytes)
                    if not is_complete and stored < size:  # the estimate was too low
                        if size > source.size - at:
                            return -1
                        if (
                            pread(
                                np.int32(fd),
                                source_at + at + stored,
                                np.intp(size - stored),
                                np.int64(end),
                            )
                            != size - stored
                        ):
                            return -1
                        is_complete, _ = decode(source_at + at, size, block_at, needed, nbytes)
                    if not is_complete:
                        return -1
            if is_zero:
                if fill_zeros or nonzero:
                    clear(edge, where, out, shape, strides)
                continue
            if not fill_zeros and not nonzero:
                for k in range(n):
                    clear(edge, _corner(table, k), out, shape, strides)
            nonzero += 1
            scatter(
                block_or_source_at,
                (edge, edge, edge),
                channels,
                first_channel,
                where,
                out,
                shape,
                strides,
            )
    return nonzero
