"""Compiled loops of ``boxes``. Import only after
:func:`wkwdask.kernels.blocks.lz4_symbols.register` returned True.

Each block is decoded once and copied to all boxes that it touches. Boxes are Fortran arrays (c, x,
y, z) in separate memory, given by their addresses, so a row along x with all its channels is
contiguous in a block and in each box, and the loops move bytes of any type. Callers have checked
all addresses.
"""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.blocks.batch_compiled import decode
from wkwdask.kernels.blocks.checks_compiled import is_zero_lz4
from wkwdask.kernels.blocks.locate_compiled import pread
from wkwdask.kernels.blocks.vectors_compiled import move_row
from wkwdask.kernels.compiler import helper, kernel

_INT32_MAX = (1 << 31) - 1


@helper
def _overlap(corner, edge, shape):
    """Return the part of a block inside a box [voxels of the block]; ``corner`` is the first voxel
    of the block, counted from that of the box."""
    x0, y0, z0 = max(0, -corner[0]), max(0, -corner[1]), max(0, -corner[2])
    return (
        x0,
        y0,
        z0,
        min(edge, shape[0] - corner[0]),
        min(edge, shape[1] - corner[1]),
        min(edge, shape[2] - corner[2]),
    )


@helper
def _is_block(cell, edge, low, shape):
    """Return whether a box is exactly a block."""
    return (
        shape[0] == edge
        and shape[1] == edge
        and shape[2] == edge
        and low[0] == cell[0] * edge
        and low[1] == cell[1] * edge
        and low[2] == cell[2] * edge
    )


@helper
def _decode_block(
    source, start, size, compressed, block, edge, voxel_nbytes, cell, boxes, addresses, lows, shapes
):
    """Decode a block and copy it to its boxes; return whether it is valid."""
    nbytes = block.size
    # LZ4 reads raw addresses: a wrong place must not reach it. Written as a difference, since
    # ``start + size`` could overflow.
    if (
        start < 0
        or size < 0
        or size > source.size - start
        or size > _INT32_MAX
        or (not compressed and size < nbytes)
    ):
        return False
    row, plane = edge * voxel_nbytes, edge * edge * voxel_nbytes
    block_at = np.intp(block.ctypes.data) if compressed else np.intp(source.ctypes.data) + start
    if compressed:
        if is_zero_lz4(source, start, size, nbytes):
            return True  # the boxes are zero
        if boxes.size == 1 and _is_block(cell, edge, lows[boxes[0]], shapes[boxes[0]]):
            is_complete, _ = decode(
                np.intp(source.ctypes.data) + start,
                size,
                np.intp(addresses[boxes[0]]),
                nbytes,
                nbytes,
            )
            return is_complete
        needed = 0
        for n in boxes:
            corner = (
                cell[0] * edge - lows[n, 0],
                cell[1] * edge - lows[n, 1],
                cell[2] * edge - lows[n, 2],
            )
            _, _, _, x1, y1, z1 = _overlap(corner, edge, (shapes[n, 0], shapes[n, 1], shapes[n, 2]))
            needed = max(needed, ((z1 - 1) * edge + y1 - 1) * row + x1 * voxel_nbytes)
        source_at = np.intp(source.ctypes.data) + start
        is_complete, _ = decode(source_at, size, block_at, needed, nbytes)
        if not is_complete:
            return False
    for n in boxes:
        corner = (
            cell[0] * edge - lows[n, 0],
            cell[1] * edge - lows[n, 1],
            cell[2] * edge - lows[n, 2],
        )
        shape = (shapes[n, 0], shapes[n, 1], shapes[n, 2])
        x0, y0, z0, x1, y1, z1 = _overlap(corner, edge, shape)
        count = (x1 - x0) * voxel_nbytes
        out_row = shape[0] * voxel_nbytes
        out_plane = shape[1] * out_row
        for z in range(z0, z1):
            to = (
                addresses[n]
                + (corner[0] + x0) * voxel_nbytes
                + (corner[1] + y0) * out_row
                + (corner[2] + z) * out_plane
            )
            at = block_at + x0 * voxel_nbytes + y0 * row + z * plane
            for _ in range(y0, y1):
                move_row(to, at, count)
                to += out_row
                at += row
    return True


@kernel
def decode_memory(
    source, places, compressed, block, edge, voxel_nbytes,
    cells, cuts, boxes, addresses, lows, shapes,
):  # fmt: skip
    """Decode blocks that were read to ``places`` (start and size; size 0 is no block) into their
    boxes; return the first broken one, or their number."""
    for n in range(places.shape[0]):
        if places[n, 1] == 0:
            continue
        cell = (cells[n, 0], cells[n, 1], cells[n, 2])
        targets = boxes[cuts[n] : cuts[n + 1]]
        if not _decode_block(
            source,
            places[n, 0],
            places[n, 1],
            compressed,
            block,
            edge,
            voxel_nbytes,
            cell,
            targets,
            addresses,
            lows,
            shapes,
        ):
            return n
    return places.shape[0]


@kernel
def decode_file(
    fd,
    bounds,
    codes,
    gap_nbytes,
    memory,
    compressed,
    block,
    edge,
    voxel_nbytes,
    cells,
    cuts,
    boxes,
    addresses,
    lows,
    shapes,
):
    """Read blocks of a page of a file, in ascending order of codes, and decode them into their
    boxes; return as ``decode_memory`` does."""
    memory_at = np.intp(memory.ctypes.data)
    first = 0
    while first < codes.size:
        # One range of bytes: blocks with small gaps between them, as many as fit into memory.
        begin = bounds[codes[first]]
        last, end = first, begin
        while (
            last < codes.size
            and bounds[codes[last]] - end <= gap_nbytes
            and bounds[codes[last] + 1] - begin <= memory.size
        ):
            end = bounds[codes[last] + 1]
            last += 1
        if (
            last == first
            or pread(np.int32(fd), memory_at, np.intp(end - begin), np.int64(begin)) != end - begin
        ):
            return first
        for n in range(first, last):
            start, size = bounds[codes[n]] - begin, bounds[codes[n] + 1] - bounds[codes[n]]
            cell = (cells[n, 0], cells[n, 1], cells[n, 2])
            targets = boxes[cuts[n] : cuts[n + 1]]
            if not _decode_block(
                memory,
                start,
                size,
                compressed,
                block,
                edge,
                voxel_nbytes,
                cell,
                targets,
                addresses,
                lows,
                shapes,
            ):
                return n
        first = last
    return first
