"""Compiled loops of ``batch``. Import only after
:func:`wkwdask.kernels.blocks.lz4_symbols.register` returned True.

An array (c, x, y, z) of any memory order arrives as a flat view of its memory with shape and
strides in elements. Callers have checked all bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from wkwdask.kernels.blocks import lz4_symbols
from wkwdask.kernels.blocks.checks_compiled import is_zero_lz4, is_zero_raw
from wkwdask.kernels.blocks.copies_compiled import clear, gather, scatter
from wkwdask.kernels.blocks.layout import LZ4, LZ4HC, OUTSIDE, RAW, SIZE, START, X, Y, Z
from wkwdask.kernels.blocks.levels import AUTO_LEVEL, USUAL_LEVEL
from wkwdask.kernels.blocks.repeats import (
    HASH,
    JITTER,
    LONG_NBYTES,
    MIN_DENSE,
    MIN_NBYTES,
    SHORT_NBYTES,
    SLOT_BITS,
    STEP,
    STRETCH_NBYTES,
)
from wkwdask.kernels.compiler import helper, kernel

# Signatures of lz4.h and lz4hc.h. Pointers are passed as integers, the addresses of numpy arrays:
# numba does not accept arrays as ``char *``.
_LZ4_ARGUMENTS = (types.intp, types.intp, types.int32, types.int32)
_decompress: Any = types.ExternalFunction(lz4_symbols.DECOMPRESS, types.int32(*_LZ4_ARGUMENTS))
_decompress_partial: Any = types.ExternalFunction(
    lz4_symbols.DECOMPRESS_PARTIAL, types.int32(*_LZ4_ARGUMENTS, types.int32)
)
_compress: Any = types.ExternalFunction(lz4_symbols.COMPRESS, types.int32(*_LZ4_ARGUMENTS))
_compress_hc: Any = types.ExternalFunction(
    lz4_symbols.COMPRESS_HC, types.int32(*_LZ4_ARGUMENTS, types.int32)
)

_INT32_MAX = (1 << 31) - 1
_unsigned = np.uint64


@helper
def needed_values(corner, edge, channels, shape):
    """Return how many values of a block must be decoded: up to the last one inside the array, or
    all if none lies inside or few are beyond it."""
    #   block in memory   |x x x x x x x x ...  | x x x x . . |  . . . . . . . |
    #                     first z               last needed ^    never decoded
    count = edge * edge * edge * channels
    if min(shape[1] - corner[0], shape[2] - corner[1], shape[3] - corner[2]) <= 0:
        return count
    x1, y1, z1 = (
        min(edge, shape[1] - corner[0]),
        min(edge, shape[2] - corner[1]),
        min(edge, shape[3] - corner[2]),
    )
    needed = (((z1 - 1) * edge + y1 - 1) * edge + x1) * channels
    return needed if needed < count - count // 16 else count


@helper
def decode(at, size, block_at, needed, nbytes):
    """Decode at least the needed bytes of an LZ4 block. Return whether they are complete, and the
    decoded length: negative for bytes that are no LZ4 block."""
    # LZ4 copies a match that crosses the last needed byte one byte at a time: a block of few long
    # matches is decoded faster as a whole.
    if needed == nbytes or (size < nbytes // 32 and needed > nbytes // 12):
        got = np.int64(_decompress(at, block_at, np.int32(size), np.int32(nbytes)))
        return got == nbytes, got
    got = np.int64(
        _decompress_partial(at, block_at, np.int32(size), np.int32(needed), np.int32(nbytes))
    )
    return got == needed, got


@kernel
def decode_into(
    source, table, edge, channels, first_channel, compressed, fill_zeros, block, out, shape, strides
):
    """Decode blocks into the array. Return (blocks that are not all-zero, index of the first broken
    block or -1, its decoded length)."""
    nonzero = 0
    nbytes = block.size * block.itemsize
    source_at, block_at = np.intp(source.ctypes.data), np.intp(block.ctypes.data)
    for n in range(table.shape[0]):
        start, size = table[n, START], table[n, SIZE]
        corner = (table[n, X], table[n, Y], table[n, Z])
        # LZ4 reads raw addresses: a wrong row of the table must not reach it. Written as a
        # difference, since ``start + size`` could overflow.
        if (
            start < 0
            or size < 0
            or size > source.size - start
            or size > _INT32_MAX
            or (not compressed and size < nbytes)
        ):
            return nonzero, n, OUTSIDE
        is_zero = (
            is_zero_lz4(source, start, size, nbytes)
            if compressed
            else is_zero_raw(source, start, start + nbytes)
        )
        if compressed and not is_zero:
            needed = needed_values(corner, edge, channels, shape) * block.itemsize
            is_complete, got = decode(source_at + start, size, block_at, needed, nbytes)
            if not is_complete:
                return nonzero, n, got
        # Without ``fill_zeros``, leading zero blocks stay unwritten until the first block with
        # data, which then clears them too: cubes 0 to n - 1.
        if is_zero and not fill_zeros and not nonzero:
            continue
        for m in range(n if fill_zeros or nonzero else 0, n + 1 if is_zero else n):
            clear(edge, (table[m, X], table[m, Y], table[m, Z]), out, shape, strides)
        if not is_zero:
            nonzero += 1
            scatter(
                block_at if compressed else source_at + start,
                (edge, edge, edge),
                channels,
                first_channel,
                corner,
                out,
                shape,
                strides,
            )
    return nonzero, -1, 0


@kernel
def clear_into(table, edge, out, shape, strides):
    """Set cubes to zero."""
    for n in range(table.shape[0]):
        clear(edge, (table[n, X], table[n, Y], table[n, Z]), out, shape, strides)


@helper
def _has_repeats(block, tags, places):
    """Return whether a block has enough repeats for LZ4HC."""
    if block.size < MIN_NBYTES:
        return True
    for start in range(0, block.size, STRETCH_NBYTES):
        tags[:] = 0
        length = min(STRETCH_NBYTES, block.size - start)
        repeats, short = 0, 0
        # All numbers have 64 bits: with 32 bits, LLVM loads the 4 bytes one by one, which takes
        # twice as long.
        for n in range(_unsigned((length - 3) // STEP)):
            place = n * _unsigned(STEP) + (n * n * _unsigned(JITTER) >> _unsigned(16)) % _unsigned(
                STEP
            )
            at = _unsigned(start) + place
            sample = _unsigned(block[at]) | _unsigned(block[at + _unsigned(1)]) << _unsigned(8)
            sample |= _unsigned(block[at + _unsigned(2)]) << _unsigned(16) | _unsigned(
                block[at + _unsigned(3)]
            ) << _unsigned(24)
            value = sample * _unsigned(HASH)
            # no tag is 0, which marks an empty slot
            slot, tag = (
                value >> _unsigned(64 - SLOT_BITS),
                np.uint16(value >> _unsigned(32) | _unsigned(1)),
            )
            if tags[slot] == tag:
                repeats += 1
                short += not _is_long(block, start + np.int64(places[slot]), np.int64(at))
                if short * SHORT_NBYTES >= length or (
                    repeats >= MIN_DENSE and 2 * repeats > np.int64(n)
                ):
                    return True
            tags[slot], places[slot] = tag, np.uint16(place)
    return False


@helper
def _is_long(block, first, second):
    """Return whether the bytes at a distance of ``LONG_NBYTES``, before or after a repeat, are
    equal too."""
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
    array, shape, strides, corners, edge, block_type, level,
    zero, block, block_bytes, out, sizes,
):  # fmt: skip
    """Encode blocks one after another. Return (bytes, or -1 - n if block n failed; blocks that are
    not all-zero)."""
    nbytes = block_bytes.size
    end = 0
    nonzero = 0
    chooses = block_type == LZ4HC and level == AUTO_LEVEL
    hc_level = USUAL_LEVEL if level == AUTO_LEVEL else level
    tags, places = (
        np.empty(1 << SLOT_BITS if chooses else 0, np.uint16),
        np.empty(1 << SLOT_BITS if chooses else 0, np.uint16),
    )
    out_at, block_at = np.intp(out.ctypes.data), np.intp(block.ctypes.data)
    for n in range(corners.shape[0]):
        gather(array, shape, strides, corners[n], edge, block)
        if is_zero_raw(block, 0, block.size):
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
            size = _compress(
                block_at, out_at + end, np.int32(nbytes), np.int32(min(out.size - end, _INT32_MAX))
            )
        else:
            size = _compress_hc(
                block_at,
                out_at + end,
                np.int32(nbytes),
                np.int32(min(out.size - end, _INT32_MAX)),
                np.int32(hc_level),
            )
        if size <= 0:
            return -1 - n, nonzero
        sizes[n] = size
        end += size
    return end, nonzero
