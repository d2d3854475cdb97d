"""Compiled loops of ``batch``. Import only after :func:`wkwdask.kernels.blocks.lz4_symbols.register` returned True.

An array (c, x, y, z) of any memory order arrives as a flat view of its memory with shape and strides in elements. Callers have checked all bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from wkwdask.kernels.blocks import lz4_symbols
from wkwdask.kernels.blocks.layout import LZ4, LZ4HC, OUTSIDE, RAW, SIZE, START, X, Y, Z
from wkwdask.kernels.blocks.levels import AUTO_LEVEL, USUAL_LEVEL
from wkwdask.kernels.blocks.repeats import HASH, JITTER, LONG_NBYTES, MIN_DENSE, MIN_NBYTES, SHORT_NBYTES, SLOT_BITS, STEP, STRETCH_NBYTES
from wkwdask.kernels.compiler import helper, kernel

# Signatures of lz4.h and lz4hc.h. Pointers are passed as integers, the addresses of numpy arrays: numba does not accept arrays as ``char *``.
_LZ4_ARGUMENTS = (types.intp, types.intp, types.int32, types.int32)
_decompress: Any = types.ExternalFunction(lz4_symbols.DECOMPRESS, types.int32(*_LZ4_ARGUMENTS))
_decompress_partial: Any = types.ExternalFunction(lz4_symbols.DECOMPRESS_PARTIAL, types.int32(*_LZ4_ARGUMENTS, types.int32))
_compress: Any = types.ExternalFunction(lz4_symbols.COMPRESS, types.int32(*_LZ4_ARGUMENTS))
_compress_hc: Any = types.ExternalFunction(lz4_symbols.COMPRESS_HC, types.int32(*_LZ4_ARGUMENTS, types.int32))

_INT32_MAX = (1 << 31) - 1
_TILE = 16  # voxels along z that _scatter and _gather move before the next x
_STRETCH = 256  # values that _is_zero combines before it branches

# Conditions at the end of a block (lz4_Block_format.md, "End of block conditions"), as LZ4_decompress_safe checks them: the last 5 bytes are literals, and
# the last match starts at least 12 bytes before the end. It also accepts no match when fewer than 8 compressed bytes are left.
_LAST_LITERALS, _MATCH_LIMIT, _SEQUENCE_NBYTES = 5, 12, 8
_unsigned = np.uint64


@helper
def _is_zero(values: Any, start: Any, stop: Any) -> Any:
    # OR over a stretch has no branch, so LLVM turns it into vector code; a block with data still ends after its first stretch.
    while start < stop:
        count = min(_STRETCH, stop - start)
        at = _unsigned(start)
        bits = values[at]
        for i in range(_unsigned(count)):
            bits |= values[at + i]
        if bits != 0:
            return False
        start += count
    return True


@helper
def _lz4_length(source: Any, at: Any, end: Any, length: Any) -> Any:
    """Complete a length of a token, and return it with the position after it."""
    if length == 15:  # continued in the next bytes, up to the first that is not 255
        while at < end:
            more = np.int64(source[at])
            at += 1
            length += more
            if more != 255:
                break
    return length, at


@helper
def _is_zero_lz4(source: Any, at: Any, nbytes: Any, decoded_nbytes: Any) -> Any:
    """Return whether LZ4 bytes are valid and decode to zeros, without decoding them."""
    # A block is a series of sequences (lz4_Block_format.md, "Compressed block format"):
    #
    #   | token | more literal length | literals | offset | more match length |     | token | literals |
    #     4+4 bits    0-n bytes                    2 bytes      0-n bytes             the last sequence has only literals
    #
    # A match repeats bytes that were decoded before. If all literals are zero, all matches are zero too, so checking the literals is enough. A block of 32^3
    # zero bytes takes about 140 bytes. For damaged bytes the result is False, so the decoder meets and reports the damage.
    end = at + nbytes
    done = 0
    while at < end:
        token = np.int64(source[at])
        literals, at = _lz4_length(source, at + 1, end, token >> 4)
        if literals > end - at or literals > decoded_nbytes - done:
            return False
        for i in range(at, at + literals):
            if source[i] != 0:
                return False
        at += literals
        done += literals
        if at == end:
            return done == decoded_nbytes
        if end - at < _SEQUENCE_NBYTES or done > decoded_nbytes - _MATCH_LIMIT:
            return False
        offset = np.int64(source[at]) | np.int64(source[at + 1]) << 8
        match, at = _lz4_length(source, at + 2, end, token & 15)
        match += 4
        if offset == 0 or offset > done or match > decoded_nbytes - _LAST_LITERALS - done:
            return False
        done += match
    return False


# Indices into flat memory are unsigned: a signed index could be negative, and the code for that keeps loops from being vectorised.


@helper
def _scatter(block: Any, edge: Any, channels: Any, first_channel: Any, corner: Any, out: Any, shape: Any, strides: Any) -> None:
    """Copy the part of a block that lies inside the array."""
    # x0..x1, y0..y1, z0..z1 is that part in voxels of the block. Voxel (x, y, z) of the block lies at ``base + x * sx + y * sy + z * sz`` in the array, where
    # ``base`` is negative if the block begins before the array.
    x0, y0, z0 = max(0, -corner[0]), max(0, -corner[1]), max(0, -corner[2])
    x1, y1, z1 = min(edge, shape[1] - corner[0]), min(edge, shape[2] - corner[1]), min(edge, shape[3] - corner[2])
    sc, sx, sy, sz = strides
    base = corner[0] * sx + corner[1] * sy + corner[2] * sz
    row = channels * edge
    if shape[0] == channels and _rows_match(channels, sc, sx):
        count = _unsigned(max(0, (x1 - x0) * channels))
        for z in range(z0, z1):
            for y in range(y0, y1):
                to = _unsigned(base + x0 * sx + y * sy + z * sz)
                at = _unsigned(x0 * channels + (y + z * edge) * row)
                for i in range(count):
                    out[to + i] = block[at + i]
        return
    for c in range(shape[0]):
        if sz == 1:
            # z is contiguous in the array, x in the block, so this is a transposition. In tiles of 16 along z, each cache line is used up before it is evicted:
            #
            #   array   z z z z ...     one line of 16 voxels along z is written whole ...
            #   block   x x x x ...     ... from 16 rows along x, whose next voxels the next x reads
            plane = _unsigned(row * edge)
            for y in range(y0, y1):
                for z_tile in range(z0, z1, _TILE):
                    count = _unsigned(min(z_tile + _TILE, z1) - z_tile)
                    for x in range(x0, x1):
                        to = _unsigned(base + c * sc + x * sx + y * sy + z_tile)
                        at = _unsigned(first_channel + c + x * channels + y * row + z_tile * row * edge)
                        for i in range(count):
                            out[to + i] = block[at + i * plane]
        else:
            count, step, stored_step = _unsigned(max(0, x1 - x0)), _unsigned(sx), _unsigned(channels)
            for z in range(z0, z1):
                for y in range(y0, y1):
                    to = _unsigned(base + c * sc + x0 * sx + y * sy + z * sz)
                    at = _unsigned(first_channel + c + x0 * channels + (y + z * edge) * row)
                    for i in range(count):
                        out[to + i * step] = block[at + i * stored_step]


@helper
def _clear(edge: Any, corner: Any, out: Any, shape: Any, strides: Any) -> None:
    """Set the part of a cube that lies inside the array to zero."""
    x0, y0, z0 = max(0, -corner[0]), max(0, -corner[1]), max(0, -corner[2])
    x1, y1, z1 = min(edge, shape[1] - corner[0]), min(edge, shape[2] - corner[1]), min(edge, shape[3] - corner[2])
    sc, sx, sy, sz = strides
    base = corner[0] * sx + corner[1] * sy + corner[2] * sz
    channels, width = shape[0], 1
    if _rows_match(channels, sc, sx):
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


@helper
def _gather(array: Any, shape: Any, strides: Any, corner: Any, edge: Any, block: Any) -> None:
    """Copy one block out of the array; voxels outside the array are zero."""
    # The inverse of _scatter, with the same three cases.
    channels = shape[0]
    x0, y0, z0 = max(0, -corner[0]), max(0, -corner[1]), max(0, -corner[2])
    x1, y1, z1 = min(edge, shape[1] - corner[0]), min(edge, shape[2] - corner[1]), min(edge, shape[3] - corner[2])
    sc, sx, sy, sz = strides
    base = corner[0] * sx + corner[1] * sy + corner[2] * sz
    row = channels * edge
    if min(x1 - x0, y1 - y0, z1 - z0) < edge:
        for i in range(block.size):
            block[i] = 0
    if _rows_match(channels, sc, sx):
        count = _unsigned(max(0, (x1 - x0) * channels))
        for z in range(z0, z1):
            for y in range(y0, y1):
                at = _unsigned(base + x0 * sx + y * sy + z * sz)
                to = _unsigned(x0 * channels + (y + z * edge) * row)
                for i in range(count):
                    block[to + i] = array[at + i]
        return
    for c in range(channels):
        if sz == 1:
            plane = _unsigned(row * edge)
            for y in range(y0, y1):
                for z_tile in range(z0, z1, _TILE):
                    count = _unsigned(min(z_tile + _TILE, z1) - z_tile)
                    for x in range(x0, x1):
                        at = _unsigned(base + c * sc + x * sx + y * sy + z_tile)
                        to = _unsigned(c + x * channels + y * row + z_tile * row * edge)
                        for i in range(count):
                            block[to + i * plane] = array[at + i]
        else:
            count, step, stored_step = _unsigned(max(0, x1 - x0)), _unsigned(sx), _unsigned(channels)
            for z in range(z0, z1):
                for y in range(y0, y1):
                    at = _unsigned(base + c * sc + x0 * sx + y * sy + z * sz)
                    to = _unsigned(c + x0 * channels + (y + z * edge) * row)
                    for i in range(count):
                        block[to + i * stored_step] = array[at + i * step]


@helper
def _needed(corner: Any, edge: Any, channels: Any, shape: Any) -> Any:
    """Return how many values of a block must be decoded: up to the last one inside the array, or all if none lies inside."""
    if min(shape[1] - corner[0], shape[2] - corner[1], shape[3] - corner[2]) <= 0:
        return edge * edge * edge * channels
    x1, y1, z1 = min(edge, shape[1] - corner[0]), min(edge, shape[2] - corner[1]), min(edge, shape[3] - corner[2])
    return (((z1 - 1) * edge + y1 - 1) * edge + x1) * channels


@helper
def _rows_match(channels: Any, sc: Any, sx: Any) -> Any:
    """Return whether a row along x, with all its channels, has the same layout in the array and in a block."""
    return sx == channels and (channels == 1 or sc == 1)


@kernel
def decode_into(
    source: Any, table: Any, edge: Any, channels: Any, first_channel: Any,
    compressed: Any, fill_zeros: Any, block: Any, block_bytes: Any, out: Any, shape: Any, strides: Any,
) -> Any:  # fmt: skip
    """Decode blocks into the array. Return (blocks that are not all-zero, index of the first broken block or -1, its decoded length)."""
    nonzero = 0
    nbytes = block_bytes.size
    source_at, block_at = np.intp(source.ctypes.data), np.intp(block.ctypes.data)
    for n in range(table.shape[0]):
        start, size = table[n, START], table[n, SIZE]
        corner = (table[n, X], table[n, Y], table[n, Z])
        # LZ4 reads raw addresses: a wrong row of the table must not reach it. Written as a difference, since ``start + size`` could overflow.
        if start < 0 or size < 0 or size > source.size - start or size > _INT32_MAX or (not compressed and size < nbytes):
            return nonzero, n, OUTSIDE
        is_zero = _is_zero_lz4(source, start, size, nbytes) if compressed else _is_zero(source, start, start + nbytes)
        if compressed and not is_zero:
            # If the array ends inside the block, decoding may stop after the last voxel that is needed:
            #
            #   block in memory   |x x x x x x x x ...  | x x x x . . |  . . . . . . . |
            #                     first z               last needed ^    never decoded
            needed = _needed(corner, edge, channels, shape) * block.itemsize
            if needed < nbytes:
                got = _decompress_partial(source_at + start, block_at, np.int32(size), np.int32(needed), np.int32(nbytes))
            else:
                got = _decompress(source_at + start, block_at, np.int32(size), np.int32(nbytes))
            if got != needed:
                return nonzero, n, np.int64(got)
        elif not is_zero:
            at = _unsigned(start)
            for i in range(_unsigned(nbytes)):
                block_bytes[i] = source[at + i]
        # Without ``fill_zeros``, leading zero blocks stay unwritten until the first block with data, which then clears them too: cubes 0 to n - 1.
        if is_zero and not fill_zeros and not nonzero:
            continue
        for m in range(n if fill_zeros or nonzero else 0, n + 1 if is_zero else n):
            _clear(edge, (table[m, X], table[m, Y], table[m, Z]), out, shape, strides)
        if not is_zero:
            nonzero += 1
            _scatter(block, edge, channels, first_channel, corner, out, shape, strides)
    return nonzero, -1, 0


@kernel
def clear_into(table: Any, edge: Any, out: Any, shape: Any, strides: Any) -> None:
    """Set cubes to zero."""
    for n in range(table.shape[0]):
        _clear(edge, (table[n, X], table[n, Y], table[n, Z]), out, shape, strides)


@helper
def _has_repeats(block: Any, tags: Any, places: Any) -> Any:
    """Return whether a block has enough repeats for LZ4HC."""
    if block.size < MIN_NBYTES:
        return True
    for start in range(0, block.size, STRETCH_NBYTES):
        tags[:] = 0
        length = min(STRETCH_NBYTES, block.size - start)
        repeats, short = 0, 0
        # All numbers have 64 bits: with 32 bits, LLVM loads the 4 bytes one by one, which takes twice as long.
        for n in range(_unsigned((length - 3) // STEP)):
            place = n * _unsigned(STEP) + (n * n * _unsigned(JITTER) >> _unsigned(16)) % _unsigned(STEP)
            at = _unsigned(start) + place
            sample = _unsigned(block[at]) | _unsigned(block[at + _unsigned(1)]) << _unsigned(8)
            sample |= _unsigned(block[at + _unsigned(2)]) << _unsigned(16) | _unsigned(block[at + _unsigned(3)]) << _unsigned(24)
            value = sample * _unsigned(HASH)
            slot, tag = value >> _unsigned(64 - SLOT_BITS), np.uint16(value >> _unsigned(32) | _unsigned(1))  # no tag is 0, which marks an empty slot
            if tags[slot] == tag:
                repeats += 1
                short += not _is_long(block, start + np.int64(places[slot]), np.int64(at))
                if short * SHORT_NBYTES >= length or (repeats >= MIN_DENSE and 2 * repeats > np.int64(n)):
                    return True
            tags[slot], places[slot] = tag, np.uint16(place)
    return False


@helper
def _is_long(block: Any, first: Any, second: Any) -> Any:
    """Return whether the bytes at a distance of ``LONG_NBYTES``, before or after a repeat, are equal too."""
    for shift in (-LONG_NBYTES, LONG_NBYTES):
        if first + shift >= 0 and second + shift + 8 <= block.size:
            same = True
            for n in range(shift, shift + 8):
                same &= block[first + n] == block[second + n]
            if same:
                return True
    return False


@kernel
def encode_from(
    array: Any, shape: Any, strides: Any, corners: Any, edge: Any, block_type: Any, level: Any,
    zero: Any, block: Any, block_bytes: Any, out: Any, sizes: Any,
) -> Any:  # fmt: skip
    """Encode blocks one after another. Return (bytes, or -1 - n if block n failed; blocks that are not all-zero)."""
    nbytes = block_bytes.size
    end = 0
    nonzero = 0
    chooses = block_type == LZ4HC and level == AUTO_LEVEL
    hc_level = USUAL_LEVEL if level == AUTO_LEVEL else level
    tags, places = np.empty(1 << SLOT_BITS if chooses else 0, np.uint16), np.empty(1 << SLOT_BITS if chooses else 0, np.uint16)
    out_at, block_at = np.intp(out.ctypes.data), np.intp(block.ctypes.data)
    for n in range(corners.shape[0]):
        _gather(array, shape, strides, corners[n], edge, block)
        if _is_zero(block, 0, block.size):
            for i in range(zero.size):
                out[end + i] = zero[i]
            sizes[n] = zero.size
            end += zero.size
            continue
        nonzero += 1
        if block_type == RAW:
            start = _unsigned(end)
            for i in range(_unsigned(nbytes)):
                out[start + i] = block_bytes[i]
            size = nbytes
        elif block_type == LZ4 or (chooses and not _has_repeats(block_bytes, tags, places)):
            size = _compress(block_at, out_at + end, np.int32(nbytes), np.int32(min(out.size - end, _INT32_MAX)))
        else:
            size = _compress_hc(block_at, out_at + end, np.int32(nbytes), np.int32(min(out.size - end, _INT32_MAX)), np.int32(hc_level))
        if size <= 0:
            return -1 - n, nonzero
        sizes[n] = size
        end += size
    return end, nonzero
