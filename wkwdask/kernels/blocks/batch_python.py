"""Fallback of ``batch_compiled``: decode and encode block by block through python-lz4, where LZ4's
C functions are not exported."""

from __future__ import annotations

from typing import Any

import lz4.block
import numpy as np

from wkwdask.kernels.blocks.layout import LZ4, LZ4HC, OUTSIDE, SIZE, X, Z, overlap
from wkwdask.kernels.blocks.levels import AUTO_LEVEL, USUAL_LEVEL
from wkwdask.kernels.blocks.repeats import has_repeats


def decode_into(
    source: Any,
    table: Any,
    edge: int,
    channels: int,
    first_channel: int,
    compressed: bool,
    fill_zeros: bool,
    out: Any,
) -> tuple[int, int, int]:
    """Decode blocks into an array (c, x, y, z), with the results of the compiled kernel."""
    nbytes = edge**3 * channels * out.itemsize
    nonzero = 0
    for n, (size, start, *corner) in enumerate(table[:, SIZE:].tolist()):
        if (
            start < 0
            or size < 0
            or start + size > source.size
            or (not compressed and size < nbytes)
        ):
            return nonzero, n, OUTSIDE
        raw = source[start : start + size].tobytes()[: None if compressed else nbytes]
        if compressed:
            try:
                raw = lz4.block.decompress(raw, uncompressed_size=nbytes)
            except lz4.block.LZ4BlockError:
                return nonzero, n, -1
            if len(raw) != nbytes:
                return nonzero, n, len(raw)
        if not any(raw):
            if fill_zeros or nonzero:
                clear_into(table[n : n + 1], edge, out)
            continue
        if not nonzero and not fill_zeros:
            clear_into(table[:n], edge, out)
        nonzero += 1
        block = np.frombuffer(raw, out.dtype, nbytes // out.itemsize).reshape(
            (channels, edge, edge, edge), order="F"
        )
        in_array, in_block = overlap(corner, edge, out.shape)
        out[(slice(None), *in_array)] = block[
            (slice(first_channel, first_channel + out.shape[0]), *in_block)
        ]
    return nonzero, -1, 0


def clear_into(table: Any, edge: int, out: Any) -> None:
    """Set cubes of an array (c, x, y, z) to zero."""
    for corner in table[:, X : Z + 1].tolist():
        in_array, _ = overlap(corner, edge, out.shape)
        out[(slice(None), *in_array)] = 0


def encode_from(
    array: Any,
    corners: Any,
    edge: int,
    block_type: int,
    level: int,
    zero: Any,
    out: Any,
    sizes: Any,
) -> tuple[int, int]:
    """Encode blocks of an array (c, x, y, z), with the results of the compiled kernel."""
    end = 0
    nonzero = 0
    for n, corner in enumerate(corners.tolist()):
        block = np.zeros((array.shape[0], edge, edge, edge), array.dtype, order="F")
        in_array, in_block = overlap(corner, edge, array.shape)
        block[(slice(None), *in_block)] = array[(slice(None), *in_array)]
        raw = block.tobytes(order="F")
        if not any(raw):
            encoded = zero.tobytes()
        else:
            nonzero += 1
            encoded = encode(raw, block_type, level)
        out[end : end + len(encoded)] = np.frombuffer(encoded, np.uint8)
        sizes[n] = len(encoded)
        end += len(encoded)
    return end, nonzero


def encode(raw: bytes, block_type: int, level: int) -> bytes:
    """Encode the bytes of one block."""
    encoded = raw
    if block_type == LZ4 or (block_type == LZ4HC and level == AUTO_LEVEL and not has_repeats(raw)):
        encoded = lz4.block.compress(raw, store_size=False)
    elif block_type == LZ4HC:
        encoded = lz4.block.compress(
            raw, mode="high_compression", compression=level or USUAL_LEVEL, store_size=False
        )
    return encoded
