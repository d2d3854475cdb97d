"""Compiled loop of ``blosc_frames``."""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.blocks.checks_compiled import is_lz4, is_zero_lz4, is_zero_raw
from wkwdask.kernels.codecs.blosc_layout import (
    COPY,
    FRAME_NBYTES,
    KEEP_BLOCKS,
    KEEP_FRAMES,
    LZ4_FLAG,
    NO_SPLIT_FLAG,
    REMOVE_FRAMES,
)
from wkwdask.kernels.compiler import helper, kernel

_unsigned = np.uint64


@helper
def _put(out, at, value):
    for n in range(4):
        out[at + n] = np.uint8(value >> 8 * n & 255)


@helper
def _get(source, at):
    value = np.int64(0)
    for n in range(4):
        value |= np.int64(source[at + n]) << 8 * n
    return value


@helper
def _has_one_block(source, at, size, nbytes):
    """Return whether a frame is one LZ4 block without shuffle: then only this block follows the
    header."""
    if size <= FRAME_NBYTES or source[at] < 1 or source[at] > 2 or source[at + 1] != 1:
        return False
    if (
        source[at + 2] & ~np.uint8(NO_SPLIT_FLAG) != LZ4_FLAG
        or _get(source, at + 4) != nbytes
        or _get(source, at + 8) != nbytes
    ):
        return False
    # A block that is split, by the byte of a value, consists of several pieces with their own
    # sizes. As many bytes as the values have are stored bytes.
    return (
        _get(source, at + 12) == size
        and _get(source, at + 16) == FRAME_NBYTES - 4
        and _get(source, at + 20) == size - FRAME_NBYTES != nbytes
    )


@helper
def _is_zero_outside(blocks, at, box, length, voxel_nbytes):
    row = length * voxel_nbytes
    for z in range(length):
        start, end = at, at + length * row
        at = end
        if box[2] <= z < box[5]:
            low, high = start + box[1] * row, start + box[4] * row
            if not (is_zero_raw(blocks, start, low) and is_zero_raw(blocks, high, end)):
                return False
            while low < high and box[3] - box[0] < length:
                if not (
                    is_zero_raw(blocks, low, low + box[0] * voxel_nbytes)
                    and is_zero_raw(blocks, low + box[3] * voxel_nbytes, low + row)
                ):
                    return False
                low += row
        elif not is_zero_raw(blocks, start, end):
            return False
    return True


@kernel
def are_zero_outside(blocks, boxes, length, voxel_nbytes, results):
    """Report of each block, decoded one after another, whether all its bytes outside of a box are
    zero."""
    for n in range(boxes.shape[0]):
        results[n] = _is_zero_outside(
            blocks, n * length**3 * voxel_nbytes, boxes[n], length, voxel_nbytes
        )


@kernel
def convert_chunks(source, places, conversion, nbytes, itemsize, out, sizes):
    """Convert chunks one after another. Return the number of chunks before the first that must be
    decoded."""
    end = np.int64(0)
    for n in range(places.shape[0]):
        at, size = places[n, 0], places[n, 1]
        head = 0
        if conversion == COPY:
            if size != nbytes:
                return n
            if is_zero_raw(source, at, at + size):
                continue
        elif conversion == REMOVE_FRAMES:
            if not _has_one_block(source, at, size, nbytes):
                return n
            at, size = at + FRAME_NBYTES, size - FRAME_NBYTES
            if is_zero_lz4(source, at, size, nbytes):
                continue
            if not is_lz4(source, at, size, nbytes, False):
                # files may come from anywhere; the decoder reports what is wrong
                return n
        elif conversion == KEEP_BLOCKS:
            if not is_lz4(source, at, size, nbytes, False):
                return n
        elif conversion == KEEP_FRAMES:
            if not _has_one_block(source, at, size, nbytes) or not is_lz4(
                source, at + FRAME_NBYTES, size - FRAME_NBYTES, nbytes, False
            ):
                return n
        else:
            if is_zero_lz4(source, at, size, nbytes):
                continue
            if size == nbytes or not is_lz4(source, at, size, nbytes, False):
                # Blosc would take as many bytes for stored values
                return n
            head = FRAME_NBYTES
            out[end], out[end + 1], out[end + 2], out[end + 3] = (
                2,
                1,
                LZ4_FLAG | NO_SPLIT_FLAG,
                itemsize,
            )
            _put(out, end + 4, nbytes)
            _put(out, end + 8, nbytes)
            _put(out, end + 12, size + head)
            _put(out, end + 16, head - 4)
            _put(out, end + 20, size)
        first, to = _unsigned(at), _unsigned(end + head)
        for i in range(_unsigned(size)):
            out[to + i] = source[first + i]
        sizes[n] = size + head
        end += size + head
    return places.shape[0]
