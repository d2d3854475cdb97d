"""compressed_segmentation in plain numpy, word by word after its description: what the compiled
loops are held against."""

from __future__ import annotations

from itertools import product

import numpy as np


def encode(array, block_size):
    """Encode an array (c, x, y, z) of uint32 or uint64."""
    words = [0] * len(array)
    for channel, voxels in enumerate(array):
        words[channel] = len(words)
        words += _encode_channel(voxels, block_size)
    return np.array(words, "<u4").tobytes()


def _grid(shape, block_size):
    return [-(-n // edge) for n, edge in zip(shape, block_size, strict=True)]


def _blocks(shape, block_size):
    """Return the slices of each block, x fastest."""
    nx, ny, nz = _grid(shape, block_size)
    for z, y, x in product(range(nz), range(ny), range(nx)):
        yield tuple(
            slice(g * edge, (g + 1) * edge) for g, edge in zip((x, y, z), block_size, strict=True)
        )


def _encode_channel(voxels, block_size):
    blocks = list(_blocks(voxels.shape, block_size))
    words = [0] * (2 * len(blocks))
    tables = {}
    for number, place in enumerate(blocks):
        ids, indices = np.unique(voxels[place], return_inverse=True)
        bits = next(bits for bits in (0, 1, 2, 4, 8, 16, 32) if 1 << bits >= len(ids))
        padded = np.zeros(block_size, np.uint64)
        shape = voxels[place].shape
        padded[: shape[0], : shape[1], : shape[2]] = indices.reshape(shape)
        start = len(words)
        if bits:
            flat = padded.ravel(order="F")
            flat = np.concatenate([flat, np.zeros(-len(flat) % (32 // bits), np.uint64)]).reshape(
                -1, 32 // bits
            )
            words += (
                (flat << np.arange(0, 32, bits, dtype=np.uint64))
                .sum(axis=1, dtype=np.uint64)
                .tolist()
            )
        key = tuple(ids.tolist())
        if key not in tables:
            tables[key] = len(words)
            words += ids.astype(ids.dtype.newbyteorder("<")).view("<u4").tolist()
        words[2 * number : 2 * number + 2] = tables[key] | bits << 24, start
    return words


def decode(data, shape, block_size, dtype, num_channels):
    """Decode to an array (c, x, y, z)."""
    words = np.frombuffer(data, "<u4")
    out = np.zeros((num_channels, *shape), dtype)
    for channel in range(num_channels):
        own = words[words[channel] :]
        for number, place in enumerate(_blocks(shape, block_size)):
            table, bits, start = (
                int(own[2 * number]) & 0xFFFFFF,
                int(own[2 * number]) >> 24,
                int(own[2 * number + 1]),
            )
            count = int(np.prod(block_size))
            at = np.arange(count, dtype=np.uint64) * np.uint64(bits)
            packed = own[start:].astype(np.uint64)
            indices = (
                (packed[at // 32] >> at % 32) & np.uint64((1 << bits) - 1)
                if bits
                else np.zeros(count, np.uint64)
            )
            itemsize = out.itemsize // 4
            usable = own[table : table + (len(own) - table) // itemsize * itemsize]
            ids = (
                np.ascontiguousarray(usable)
                .view(f"<u{out.itemsize}")[indices.astype(np.int64)]
                .reshape(block_size, order="F")
            )
            inside = out[(channel, *place)].shape
            out[(channel, *place)] = ids[: inside[0], : inside[1], : inside[2]]
    return out
