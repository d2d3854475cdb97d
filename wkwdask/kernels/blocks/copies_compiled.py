"""Copies between a block and the part of an array that it covers.

An array (c, x, y, z) of any memory order arrives as a flat view of its memory with shape and
strides in elements. A block is the address of its first byte. Its corner is counted from the array:
negative where the block begins before the array. Callers have checked all bounds.
"""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.blocks.vectors_compiled import (
    LINE_NBYTES,
    bypass_row,
    fence,
    move_row,
    move_value,
    transposition,
)
from wkwdask.kernels.compiler import helper

_TILE = 16  # voxels along z that are moved before the next x
_MIN_NBYTES = 32 << 20  # arrays of this size do not stay in the cache until they are used
# a signed index could be negative, and the code for that keeps loops from being vectorised
_unsigned = np.uint64


def _long_len(itemsize: int) -> int:
    """Return the length of a transposed tile along the axis that is contiguous in the array
    [voxels]."""
    return min(32, LINE_NBYTES // itemsize)


def _short_len(itemsize: int) -> int:
    """Return that of a tile for small parts of blocks."""
    return max(4, 16 // itemsize)


def _x_len(itemsize: int) -> int:
    """Return the length of a tile along x, the axis that is contiguous in a block: short, so that
    the lines of the array fit into the cache."""
    return 4


_long, _short, _narrow = helper(_long_len), helper(_short_len), helper(_x_len)
_scatter_long, _scatter_short = transposition(_long_len, _x_len), transposition(_short_len, _x_len)
_scatter_past_cache = transposition(_long_len, _x_len, bypasses=True)
_gather_long, _gather_short = transposition(_x_len, _long_len), transposition(_x_len, _short_len)


@helper
def _inside(corner, edges, shape):
    """Return the part of a block inside the array [voxels of the block]."""
    low = max(0, -corner[0]), max(0, -corner[1]), max(0, -corner[2])
    return low, (
        min(edges[0], shape[1] - corner[0]),
        min(edges[1], shape[2] - corner[1]),
        min(edges[2], shape[3] - corner[2]),
    )


@helper
def _rows_match(channels, shape, strides):
    """Return whether a row along x, with all its channels, has the same layout in the array and in
    a block."""
    return shape[0] == channels and strides[1] == channels and (channels == 1 or strides[0] == 1)


@helper
def _bypasses(array, first, step, row_nbytes):
    """Return whether rows of an array are written past the cache: they are some whole lines, and
    the array is larger than the cache."""
    return (
        array.size * array.itemsize >= _MIN_NBYTES
        and row_nbytes >= 2 * LINE_NBYTES
        and (first | step | row_nbytes) % LINE_NBYTES == 0
    )


@helper
def _copy(block, edges, channels, first_channel, corner, array, shape, strides, is_scatter):
    """Copy the part of a block that lies inside the array: to the array, or from it."""
    # Voxel (x, y, z) of the block lies at ``base + x * sx + y * sy + z * sz`` in the array.
    # ``base`` is negative if the block begins before the array. All offsets are bytes.
    (x0, y0, z0), (x1, y1, z1) = _inside(corner, edges, shape)
    size = array.itemsize
    sc, sx, sy, sz = strides[0] * size, strides[1] * size, strides[2] * size, strides[3] * size
    base = np.intp(array.ctypes.data) + corner[0] * sx + corner[1] * sy + corner[2] * sz
    bx = channels * size
    by, bz = edges[0] * bx, edges[0] * edges[1] * bx
    if _rows_match(channels, shape, strides):
        row_nbytes = (x1 - x0) * bx
        bypasses = is_scatter and _bypasses(array, base + x0 * sx, sy | sz, row_nbytes)
        for z in range(z0, z1):
            for y in range(y0, y1):
                inside, stored = base + x0 * sx + y * sy + z * sz, block + x0 * bx + y * by + z * bz
                if bypasses:
                    bypass_row(inside, stored, row_nbytes)
                elif is_scatter:
                    move_row(inside, stored, row_nbytes)
                else:
                    move_row(stored, inside, row_nbytes)
        if bypasses:
            fence()
        return
    if sy == size and sz != size:  # y and z change places, so that z is contiguous in the array
        y0, y1, sy, by, z0, z1, sz, bz = z0, z1, sz, bz, y0, y1, sy, by
    long, short, narrow = _long(size), _short(size), _narrow(size)
    is_tiled = channels == 1 and sz == size and x1 - x0 >= narrow and z1 - z0 >= short
    for c in range(shape[0]):
        first, stored_first = base + c * sc, block + (first_channel + c) * size
        if is_tiled:
            # z is contiguous in the array, x in the block, so this is a transposition. Few values
            # along x and all along y at a time: rows of the array with the same y are often a power
            # of two of bytes apart, so that their lines evict each other from the cache. The last
            # tile along an axis overlaps the one before it.
            is_long = z1 - z0 >= long
            depth = long if is_long else short
            bypasses = (
                is_scatter
                and is_long
                and _bypasses(
                    array, first + x0 * sx + z0 * sz, sx | sy | long * size, (z1 - z0) * size
                )
            )
            for x_tile in range(x0, x1, narrow):
                x = min(x_tile, x1 - narrow)
                for y in range(y0, y1):
                    for z_tile in range(z0, z1, depth):
                        z = min(z_tile, z1 - depth)
                        inside, stored = (
                            first + x * sx + y * sy + z * sz,
                            stored_first + x * bx + y * by + z * bz,
                        )
                        if bypasses:
                            _scatter_past_cache(array, inside, sx, stored, bz)
                        elif is_scatter and is_long:
                            _scatter_long(array, inside, sx, stored, bz)
                        elif is_scatter:
                            _scatter_short(array, inside, sx, stored, bz)
                        elif is_long:
                            _gather_long(array, stored, bz, inside, sx)
                        else:
                            _gather_short(array, stored, bz, inside, sx)
            if bypasses:
                fence()
            continue
        # Whichever axis is contiguous in the array, the cache lines of 16 voxels along z stay in
        # the cache until they are used up.
        for y in range(y0, y1):
            for z_tile in range(z0, z1, _TILE):
                for x in range(x0, x1):
                    inside, stored = (
                        first + x * sx + y * sy + z_tile * sz,
                        stored_first + x * bx + y * by + z_tile * bz,
                    )
                    for _ in range(min(_TILE, z1 - z_tile)):
                        if is_scatter:
                            move_value(array, inside, stored)
                        else:
                            move_value(array, stored, inside)
                        inside += sz
                        stored += bz


@helper
def scatter(block, edges, channels, first_channel, corner, out, shape, strides):
    """Copy the part of a block that lies inside the array to it."""
    _copy(block, edges, channels, first_channel, corner, out, shape, strides, True)


@helper
def gather(array, shape, strides, corner, edge, block):
    """Copy one block out of the array; voxels outside the array are zero."""
    edges = (edge, edge, edge)
    low, high = _inside(corner, edges, shape)
    if min(high[0] - low[0], high[1] - low[1], high[2] - low[2]) < edge:
        for i in range(block.size):
            block[i] = 0
    _copy(np.intp(block.ctypes.data), edges, shape[0], 0, corner, array, shape, strides, False)


@helper
def clear(edge, corner, out, shape, strides):
    """Set the part of a cube that lies inside the array to zero."""
    (x0, y0, z0), (x1, y1, z1) = _inside(corner, (edge, edge, edge), shape)
    sc, sx, sy, sz = strides
    base = corner[0] * sx + corner[1] * sy + corner[2] * sz
    channels, width = shape[0], 1
    if _rows_match(channels, shape, strides):
        channels, width, sx = 1, channels, 1
    for c in range(channels):
        if sz == 1:
            for x in range(x0, x1):
                for y in range(y0, y1):
                    to = _unsigned(base + c * sc + x * sx + y * sy + z0)
                    for i in range(_unsigned(max(0, z1 - z0))):
                        out[to + i] = 0
        else:
            count, step = _unsigned(max(0, x1 - x0) * width), _unsigned(sx)
            for z in range(z0, z1):
                for y in range(y0, y1):
                    to = _unsigned(base + c * sc + x0 * width * sx + y * sy + z * sz)
                    for i in range(count):
                        out[to + i * step] = 0
