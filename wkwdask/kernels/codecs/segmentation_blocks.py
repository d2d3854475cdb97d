"""Public functions for channels of compressed segmentation: each small block has a lookup table of
ids, and packed indices into it.

``wkwdask.formats.precomputed.compressed_segmentation`` describes the format and checks everything
that does not depend on single blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.kernels.blocks.layout import flat_memory, is_plain

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.array_types import AnyArray

    Vec3 = tuple[int, int, int]

BITS, VALUES, TABLE, INDEX = 1, 2, 3, 4
"""Faults of a block: its number of bits, the position of its indices, the position of its table, an
index beyond its table."""
TABLES_FULL, WORDS_FULL = -1, -2
"""Why a channel cannot be encoded: the header has no bits for the position of a table, or of
indices."""
# more than a channel can store, yet its products with other sizes fit into 64 bits
_MAX_VALUES = 1 << 40


def decode_channel(
    words: npt.NDArray[np.uint32],
    start: int,
    shape: Vec3,
    block_size: Vec3,
    out: AnyArray,
    corner: Vec3,
) -> tuple[int, int]:
    """Decode the part of one channel that lies inside an array. Return the index of a broken block
    and its fault, or (-1, 0)."""
    from wkwdask.kernels.codecs import segmentation_blocks_compiled

    if not out.size:
        return -1, 0
    if not is_plain(out):
        raise ValueError(f"cannot decode into an array of strides {out.strides}")
    values = min(block_size[0] * block_size[1] * block_size[2], _MAX_VALUES)
    flat, strides = flat_memory(out)
    block, fault = segmentation_blocks_compiled.decode_channel(
        words, start, shape, block_size, values, flat, out.shape, strides, corner
    )
    return int(block), int(fault)


def max_words(shape: Vec3, block_size: Vec3, itemsize: int) -> int:
    """Return the largest number of 32-bit words that one encoded channel can take."""
    nx, ny, nz = (-(-n // edge) for n, edge in zip(shape, block_size, strict=True))
    values = block_size[0] * block_size[1] * block_size[2]
    stored = (
        min(block_size[0], shape[0]) * min(block_size[1], shape[1]) * min(block_size[2], shape[2])
    )
    return nx * ny * nz * (2 + -(-values * _bits(stored) // 32) + stored * itemsize // 4)


def encode_channel(
    array: AnyArray, block_size: Vec3, out: npt.NDArray[np.uint32], start: int
) -> int:
    """Encode one channel from the word ``start`` on, and return its end, or ``TABLES_FULL`` or
    ``WORDS_FULL``."""
    from wkwdask.kernels.codecs import segmentation_blocks_compiled

    shape = (array.shape[0], array.shape[1], array.shape[2])
    if out.size - start < max_words(shape, block_size, array.itemsize):
        raise ValueError(
            f"a channel of {shape} voxels needs {max_words(shape, block_size, array.itemsize)} "
            f"words to be encoded, got {out.size - start}"
        )
    if not is_plain(array):
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    flat, strides = flat_memory(array)
    # always: numba compiles one loop for writeable and one for read-only arrays
    flat.flags.writeable = False
    memory = _scratch(shape, block_size, flat.dtype)
    return int(
        segmentation_blocks_compiled.encode_channel(
            flat, shape, strides, block_size, out, start, *memory
        )
    )


def _scratch(shape: Vec3, block_size: Vec3, dtype: np.dtype[Any]) -> tuple[AnyArray, ...]:
    """Allocate the memory to encode a channel: codes of voxels, ranks of codes, values and their
    order, slots for values, slots for tables."""
    nx, ny, nz = (-(-n // edge) for n, edge in zip(shape, block_size, strict=True))
    most = (
        min(block_size[0], shape[0]) * min(block_size[1], shape[1]) * min(block_size[2], shape[2])
    )
    # Padding has the code after all others, whose rank is 0: voxels of a block outside the chunk,
    # and the unused bits of its last word.
    codes = np.full(block_size[0] * block_size[1] * block_size[2] + 32, most, np.int64)
    slots = np.full(2 << (most - 1).bit_length(), -1, np.int64)
    # start of a table, and its number of values
    tables = np.zeros((2 << (nx * ny * nz - 1).bit_length(), 2), np.int64)
    return (
        codes,
        np.zeros(most + 1, np.uint32),
        np.empty(most, dtype),
        np.empty(most, np.int64),
        slots,
        tables,
    )


def _bits(values: int) -> int:
    """Return the bits of an index into a table of this length."""
    return 0 if values == 1 else next(bits for bits in (1, 2, 4, 8, 16, 32) if 1 << bits >= values)
