"""Public function to read the blocks of a box from an open file, in one compiled call without the
GIL."""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.kernels.blocks.batch import compress_bound
from wkwdask.kernels.blocks.layout import UNSIGNED, flat_memory, is_plain

if TYPE_CHECKING:
    from wkwdask.array_types import AnyArray, ByteArray, IntArray

_BATCH_NBYTES = 64 << 10  # read at once: stays in the cache until it is decoded
_MOST_NBYTES = 8 << 20  # of one block
_MOST_KINDS = 8  # sizes of blocks whose memory a thread keeps
_scratch = threading.local()


class BlockFile(NamedTuple):
    """An open file of blocks."""

    descriptor: int
    block_len: int
    num_channels: int
    is_compressed: bool


class ArrayMemory(NamedTuple):
    """Memory of an array (c, x, y, z) in any memory order."""

    flat: AnyArray
    """From the first value to the last, as unsigned integers."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Steps between values [values]."""
    first_channel: int
    """Stored channel at channel 0 of the array."""


def array_memory(out: AnyArray, first_channel: int) -> ArrayMemory | None:
    """Return the memory of an array to fill; None if compiled loops do not accept it."""
    if not out.size or not is_plain(out):
        return None
    flat, strides = flat_memory(out)
    return ArrayMemory(flat, out.shape, strides, first_channel)


def read_blocks(
    file: BlockFile,
    bounds: IntArray,
    cube_len: int,
    corner: tuple[int, int, int],
    out: ArrayMemory,
    *,
    fill_zeros: bool,
) -> int:
    """Read the blocks of an aligned cube of blocks that an array covers.

    ``bounds`` are the byte offsets of all blocks of the cube in Morton order, and the end.
    ``corner`` is the first voxel of the cube, counted from the array. With ``fill_zeros`` false,
    the array may stay unchanged if all blocks are zero.

    Returns how many blocks are not all-zero; -1 where anything is not as expected. Then the caller
    reads again in small steps, which name the damage.
    """
    descriptor, edge, channels, is_compressed = file
    flat, shape, strides, first_channel = out
    nbytes = edge * edge * edge * channels * flat.itemsize
    compiled = _compiled()
    if (
        compiled is None
        or nbytes > _MOST_NBYTES
        or first_channel < 0
        or first_channel + shape[0] > channels
    ):
        return -1
    source, block = _memory(nbytes, flat.itemsize)
    nonzero: int = compiled(
        descriptor,
        bounds,
        edge,
        channels,
        first_channel,
        is_compressed,
        fill_zeros,
        cube_len,
        corner,
        source,
        block,
        flat,
        shape,
        strides,
    )
    return nonzero


@cache
def _compiled() -> Any:
    """Import the compiled loop; None where LZ4's functions are not exported."""
    from wkwdask.kernels.blocks import lz4_symbols

    if not lz4_symbols.register():
        return None
    from wkwdask.kernels.blocks.read_compiled import read_blocks as compiled

    return compiled


def _memory(nbytes: int, itemsize: int) -> tuple[ByteArray, AnyArray]:
    """Return this thread's memory for stored bytes and for one decoded block. Allocating it in each
    call would take as long as decoding a block."""
    try:
        memory: tuple[ByteArray, AnyArray] = _scratch.kinds[nbytes, itemsize]
    except (AttributeError, KeyError):
        kinds = getattr(_scratch, "kinds", {})
        if len(kinds) == _MOST_KINDS:
            kinds.clear()
        memory = kinds[nbytes, itemsize] = (
            np.empty(max(_BATCH_NBYTES, compress_bound(nbytes)), np.uint8),
            np.empty(nbytes // itemsize, UNSIGNED[itemsize]),
        )
        _scratch.kinds = kinds
    return memory
