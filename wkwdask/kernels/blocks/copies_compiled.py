"""Copies between a block and the part of an array that it covers.

An array (c, x, y, z) of any memory order arrives as a flat view of its memory with shape and strides in elements. A block is the address of its first byte.
Its corner is counted from the array: negative where the block begins before the array. Callers have checked all bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.blocks.vectors_compiled import move_row, move_value, transpose_tile
from wkwdask.kernels.compiler import helper

_TILE = 16  # voxels along z that are moved before the next x
_TILE_NBYTES = 16  # a row of a transposed tile
_unsigned = np.uint64  # a signed index could be negative, and the code for that keeps loops from being vectorised


@helper
def _inside(corner: Any, edge: Any, shape: Any) -> Any:
    """Return the part of a block inside the array [voxels of the block]."""
    low = max(0, -corner[0]), max(0, -corner[1]), max(0, -corner[2])
    return low, (min(edge, shape[1] - corner[0]), min(edge, shape[2] - corner[1]), min(edge, shape[3] - corner[2]))


@helper
def _rows_match(channels: Any, shape: Any, strides: Any) -> Any:
    """Return whether a row along x, with all its channels, has the same layout in the array and in a block."""
    return shape[0] == channels and strides[1] == channels and (channels == 1 or strides[0] == 1)


@helper
def is_in_place(corner: Any, edge: Any, channels: Any, shape: Any, strides: Any) -> Any:
    """Return whether a block lies inside the array and has the same layout there."""
    low, high = _inside(corner, edge, shape)
    is_whole = min(high[0] - low[0], high[1] - low[1], high[2] - low[2]) == edge
    return is_whole and _rows_match(channels, shape, strides) and strides[2] == channels * edge and strides[3] == channels * edge * edge


@helper
def _copy(block: Any, edge: Any, channels: Any, first_channel: Any, corner: Any, array: Any, shape: Any, strides: Any, is_scatter: Any) -> None:
    """Copy the part of a block that lies inside the array: to the array, or from it."""
    # Voxel (x, y, z) of the block lies at ``base + x * sx + y * sy + z * sz`` in the array. ``base`` is negative if the block begins before the array. All
    # offsets are bytes.
    (x0, y0, z0), (x1, y1, z1) = _inside(corner, edge, shape)
    size = array.itemsize
    sc, sx, sy, sz = strides[0] * size, strides[1] * size, strides[2] * size, strides[3] * size
    base = np.intp(array.ctypes.data) + corner[0] * sx + corner[1] * sy + corner[2] * sz
    bx, by, bz = channels * size, channels * edge * size, channels * edge * edge * size
    if _rows_match(channels, shape, strides):
        for z in range(z0, z1):
            for y in range(y0, y1):
                inside, stored = base + x0 * sx + y * sy + z * sz, block + x0 * bx + y * by + z * bz
                if is_scatter:
                    move_row(inside, stored, (x1 - x0) * bx)
                else:
                    move_row(stored, inside, (x1 - x0) * bx)
        return
    tile = _TILE_NBYTES // size
    is_tiled = channels == 1 and strides[3] == 1 and min(x1 - x0, z1 - z0) >= tile
    for c in range(shape[0]):
        first, stored_first = base + c * sc, block + (first_channel + c) * size
        for y in range(y0, y1):
            if is_tiled:
                # z is contiguous in the array, x in the block, so this is a transposition. The last tile of a row overlaps the one before it.
                for x_tile in range(x0, x1, tile):
                    x = min(x_tile, x1 - tile)
                    for z_tile in range(z0, z1, tile):
                        z = min(z_tile, z1 - tile)
                        inside, stored = first + x * sx + y * sy + z * sz, stored_first + x * bx + y * by + z * bz
                        if is_scatter:
                            transpose_tile(array, inside, sx, stored, bz)
                        else:
                            transpose_tile(array, stored, bz, inside, sx)
                continue
            # Whichever axis is contiguous in the array, the cache lines of 16 voxels along z stay in the cache until they are used up.
            for z_tile in range(z0, z1, _TILE):
                for x in range(x0, x1):
                    inside, stored = first + x * sx + y * sy + z_tile * sz, stored_first + x * bx + y * by + z_tile * bz
                    for _ in range(min(_TILE, z1 - z_tile)):
                        if is_scatter:
                            move_value(array, inside, stored)
                        else:
                            move_value(array, stored, inside)
                        inside += sz
                        stored += bz


@helper
def scatter(block: Any, edge: Any, channels: Any, first_channel: Any, corner: Any, out: Any, shape: Any, strides: Any) -> None:
    """Copy the part of a block that lies inside the array to it."""
    _copy(block, edge, channels, first_channel, corner, out, shape, strides, True)


@helper
def gather(array: Any, shape: Any, strides: Any, corner: Any, edge: Any, block: Any) -> None:
    """Copy one block out of the array; voxels outside the array are zero."""
    low, high = _inside(corner, edge, shape)
    if min(high[0] - low[0], high[1] - low[1], high[2] - low[2]) < edge:
        for i in range(block.size):
            block[i] = 0
    _copy(np.intp(block.ctypes.data), edge, shape[0], 0, corner, array, shape, strides, False)


@helper
def clear(edge: Any, corner: Any, out: Any, shape: Any, strides: Any) -> None:
    """Set the part of a cube that lies inside the array to zero."""
    (x0, y0, z0), (x1, y1, z1) = _inside(corner, edge, shape)
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
