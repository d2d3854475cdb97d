"""Batches of blocks in compiled loops. Imported only after the LZ4 functions were registered.

Arrays have the shape (c, x, y, z) and any memory order: they come as a flat view of their memory from their first voxel on, with shape
and strides in elements. Callers have checked all bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from wkwdask.kernels import lz4_symbols
from wkwdask.kernels.compiler import helper, kernel

_LZ4_ARGUMENTS = (types.intp, types.intp, types.int32, types.int32)
_decompress = types.ExternalFunction(lz4_symbols.DECOMPRESS, types.int32(*_LZ4_ARGUMENTS))
_compress = types.ExternalFunction(lz4_symbols.COMPRESS, types.int32(*_LZ4_ARGUMENTS))
_compress_hc = types.ExternalFunction(lz4_symbols.COMPRESS_HC, types.int32(*_LZ4_ARGUMENTS, types.int32))

RAW, LZ4, LZ4HC = 1, 2, 3
_TILE = 16


@helper
def _equals(source: Any, start: Any, nbytes: Any, pattern: Any) -> Any:
    if nbytes != pattern.size:
        return False
    for i in range(nbytes):
        if source[start + i] != pattern[i]:
            return False
    return True


@helper
def _is_zero(values: Any) -> Any:
    for i in range(values.size):
        if values[i] != 0:
            return False
    return True


@helper
def _scatter(block: Any, edge: Any, channels: Any, first_channel: Any, corner: Any, out: Any, shape: Any, strides: Any) -> None:
    """Copy the part of a block that lies inside the array."""
    x0, y0, z0 = max(0, -corner[0]), max(0, -corner[1]), max(0, -corner[2])
    x1, y1, z1 = min(edge, shape[1] - corner[0]), min(edge, shape[2] - corner[1]), min(edge, shape[3] - corner[2])
    sc, sx, sy, sz = strides
    base = corner[0] * sx + corner[1] * sy + corner[2] * sz
    row = channels * edge
    if (shape[0] == channels and channels == 1 and sx == 1) or (shape[0] == channels and sc == 1 and sx == channels):
        count = (x1 - x0) * channels
        for z in range(z0, z1):
            for y in range(y0, y1):
                to = base + x0 * sx + y * sy + z * sz
                at = x0 * channels + (y + z * edge) * row
                for i in range(count):
                    out[to + i] = block[at + i]
        return
    for c in range(shape[0]):
        if sz == 1:
            # z is contiguous in the array and far apart in the block: go tile by tile, so that both sides stay in the cache
            for y in range(y0, y1):
                for z_tile in range(z0, z1, _TILE):
                    z_end = min(z_tile + _TILE, z1)
                    for x in range(x0, x1):
                        to = base + c * sc + x * sx + y * sy
                        at = first_channel + c + x * channels + y * row
                        for z in range(z_tile, z_end):
                            out[to + z] = block[at + z * row * edge]
        else:
            for z in range(z0, z1):
                for y in range(y0, y1):
                    to = base + c * sc + y * sy + z * sz
                    at = first_channel + c + (y + z * edge) * row
                    for x in range(x0, x1):
                        out[to + x * sx] = block[at + x * channels]


@helper
def _gather(array: Any, shape: Any, strides: Any, corner: Any, edge: Any, block: Any) -> None:
    """Cut one block out of the array; voxels outside the array are zero."""
    channels = shape[0]
    x0, y0, z0 = max(0, -corner[0]), max(0, -corner[1]), max(0, -corner[2])
    x1, y1, z1 = min(edge, shape[1] - corner[0]), min(edge, shape[2] - corner[1]), min(edge, shape[3] - corner[2])
    sc, sx, sy, sz = strides
    base = corner[0] * sx + corner[1] * sy + corner[2] * sz
    row = channels * edge
    if (x1 - x0) * (y1 - y0) * (z1 - z0) < edge * edge * edge:
        for i in range(block.size):
            block[i] = 0
    if (channels == 1 and sx == 1) or (sc == 1 and sx == channels):
        count = (x1 - x0) * channels
        for z in range(z0, z1):
            for y in range(y0, y1):
                at = base + x0 * sx + y * sy + z * sz
                to = x0 * channels + (y + z * edge) * row
                for i in range(count):
                    block[to + i] = array[at + i]
        return
    for c in range(channels):
        if sz == 1:
            for y in range(y0, y1):
                for z_tile in range(z0, z1, _TILE):
                    z_end = min(z_tile + _TILE, z1)
                    for x in range(x0, x1):
                        at = base + c * sc + x * sx + y * sy
                        to = c + x * channels + y * row
                        for z in range(z_tile, z_end):
                            block[to + z * row * edge] = array[at + z]
        else:
            for z in range(z0, z1):
                for y in range(y0, y1):
                    at = base + c * sc + y * sy + z * sz
                    to = c + (y + z * edge) * row
                    for x in range(x0, x1):
                        block[to + x * channels] = array[at + x * sx]


@kernel
def decode_into(
    source: Any, starts: Any, sizes: Any, corners: Any, edge: Any, channels: Any, first_channel: Any,
    compressed: Any, zero: Any, block: Any, block_bytes: Any, out: Any, shape: Any, strides: Any,
) -> Any:  # fmt: skip
    """Decode blocks and scatter them; returns (blocks that are not all-zero, index of a broken block or -1, what it decoded to)."""
    nonzero = 0
    nbytes = block_bytes.size
    source_at, block_at = np.intp(source.ctypes.data), np.intp(block.ctypes.data)
    for n in range(starts.size):
        if compressed and _equals(source, starts[n], sizes[n], zero):
            for i in range(block.size):
                block[i] = 0
        elif compressed:
            got = _decompress(source_at + starts[n], block_at, np.int32(sizes[n]), np.int32(nbytes))
            if got != nbytes:
                return nonzero, n, np.int64(got)
            nonzero += 1
        else:
            for i in range(nbytes):
                block_bytes[i] = source[starts[n] + i]
            nonzero += 0 if _is_zero(block) else 1
        _scatter(block, edge, channels, first_channel, corners[n], out, shape, strides)
    return nonzero, -1, 0


@kernel
def encode_from(
    array: Any, shape: Any, strides: Any, corners: Any, edge: Any, block_type: Any, level: Any,
    block: Any, block_bytes: Any, out: Any, sizes: Any,
) -> Any:  # fmt: skip
    """Cut out blocks and encode them one behind the other; an all-zero block takes no bytes. Returns the bytes, or -1 - n where block n failed."""
    nbytes = block_bytes.size
    end = 0
    out_at, block_at = np.intp(out.ctypes.data), np.intp(block.ctypes.data)
    for n in range(corners.shape[0]):
        _gather(array, shape, strides, corners[n], edge, block)
        if _is_zero(block):
            sizes[n] = 0
            continue
        if block_type == RAW:
            for i in range(nbytes):
                out[end + i] = block_bytes[i]
            size = np.int32(nbytes)
        elif block_type == LZ4:
            size = _compress(block_at, out_at + end, np.int32(nbytes), np.int32(min(out.size - end, 2147483647)))
        else:
            size = _compress_hc(block_at, out_at + end, np.int32(nbytes), np.int32(min(out.size - end, 2147483647)), np.int32(level))
        if size <= 0:
            return -1 - n
        sizes[n] = size
        end += size
    return end
