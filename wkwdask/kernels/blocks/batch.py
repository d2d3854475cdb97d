"""The door to batches of blocks: decode many blocks into an array, encode many blocks out of one, each in one call without the GIL.

Compiled loops where python-lz4 exports LZ4's functions, else the same work block by block. Decoded voxels are equal. The compiled path stops behind the
last voxel that is asked for, so that damage beyond it goes unseen there; LZ4 bytes differ (as between builds of LZ4), LZ4HC and raw bytes do not.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.kernels.blocks import batch_python as blocks_python
from wkwdask.kernels.blocks.layout import UNSIGNED, flat_memory, is_plain

if TYPE_CHECKING:
    import numpy.typing as npt

RAW, LZ4, LZ4HC = 1, 2, 3
_OUTSIDE = -(1 << 40)
_NOTHING = np.empty(0, np.uint8)
_scratch = threading.local()


class Decoded(NamedTuple):
    """What became of a batch of stored blocks."""

    nonzero: int
    """Blocks that are not all-zero."""
    broken: int
    """Index of the first block that did not decode to its length, -1 if all did."""
    broken_nbytes: int
    """What that block decoded to [bytes], negative for no LZ4 block at all."""


def compress_bound(nbytes: int) -> int:
    """Give the most bytes that LZ4 makes of so many (LZ4_COMPRESSBOUND)."""
    return nbytes + nbytes // 255 + 16


@cache
def zero_encoding(nbytes: int, block_type: int, level: int) -> npt.NDArray[np.uint8]:
    """Encode an all-zero block once."""
    return np.frombuffer(blocks_python.encode(bytes(nbytes), block_type, level), np.uint8)


class Encoded(NamedTuple):
    """Blocks that were encoded one behind the other."""

    sizes: npt.NDArray[np.int64]
    """Length of each block [bytes], shape (n,)."""
    nbytes: int
    """Length of all of them [bytes]."""
    nonzero: int
    """Blocks that are not all-zero."""


def decode_into(
    source: npt.NDArray[np.uint8],
    table: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
    *,
    block_len: int,
    num_channels: int,
    first_channel: int = 0,
    block_type: int,
    fill_zeros: bool = True,
) -> Decoded:
    """Decode stored blocks and copy what lies inside an array to its place."""
    nbytes = block_len**3 * num_channels * out.itemsize
    if not len(table) or not out.size:
        return Decoded(0, -1, 0)
    if first_channel < 0 or first_channel + out.shape[0] > num_channels or not is_plain(out):
        raise ValueError(f"cannot decode {num_channels} channels into an array of shape {out.shape} and strides {out.strides}")
    compressed = block_type != RAW
    compiled = _compiled()
    if compiled is None:
        decoded = Decoded(*blocks_python.decode_into(source, table, block_len, num_channels, first_channel, compressed, fill_zeros, out))
    else:
        flat, strides = flat_memory(out)
        block = _scratch_block(nbytes, out.itemsize)
        decoded = Decoded(
            *compiled.decode_into(
                source, table, block_len, num_channels, first_channel, compressed, fill_zeros, block, block.view(np.uint8), flat, out.shape, strides
            )
        )
    if decoded.broken_nbytes == _OUTSIDE:
        raise ValueError("a stored block lies outside the memory that was read")
    return decoded


def clear_into(table: npt.NDArray[np.int64], edge: int, out: npt.NDArray[Any]) -> None:
    """Set cubes of an array to zero."""
    compiled = _compiled()
    if not len(table) or not out.size:
        return
    if compiled is None or len(table) == 1 or not is_plain(out):
        blocks_python.clear_into(table, edge, out)
    else:
        flat, strides = flat_memory(out)
        compiled.clear_into(table, edge, flat, out.shape, strides)


def encode_from(
    array: npt.NDArray[Any],
    corners: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
    *,
    block_len: int,
    block_type: int,
    level: int,
    store_zero: bool,
) -> Encoded:
    """Cut blocks out of an array and encode them one behind the other."""
    nbytes = block_len**3 * array.shape[0] * array.itemsize
    sizes = np.zeros(len(corners), np.int64)
    if not sizes.size or not array.size:
        return Encoded(sizes, 0, 0)
    if out.size < len(corners) * compress_bound(nbytes):
        raise ValueError(f"{len(corners)} blocks need {len(corners) * compress_bound(nbytes)} bytes to be encoded, got {out.size}")
    if not is_plain(array):
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    zero = zero_encoding(nbytes, block_type, level) if store_zero else _NOTHING
    compiled = _compiled()
    if compiled is None:
        end, nonzero = blocks_python.encode_from(array, corners, block_len, block_type, level, zero, out, sizes)
    else:
        flat, strides = flat_memory(array)
        block = _scratch_block(nbytes, array.itemsize)
        end, nonzero = compiled.encode_from(  # numba takes long to find the type of an enumeration: hence int
            flat, array.shape, strides, corners, block_len, int(block_type), level, zero, block, block.view(np.uint8), out, sizes
        )
    if end < 0:
        raise RuntimeError(f"LZ4 could not encode block {-1 - end} of a batch")
    return Encoded(sizes, end, nonzero)


@cache
def _compiled() -> Any:
    """Import the compiled loops where LZ4's functions can be registered, else give None."""
    from wkwdask.kernels.blocks import lz4_symbols

    if not lz4_symbols.register():
        return None
    from wkwdask.kernels.blocks import batch_compiled as blocks_compiled

    return blocks_compiled


def _scratch_block(nbytes: int, itemsize: int) -> npt.NDArray[Any]:
    """Give this thread's memory for one decoded block."""
    memory = getattr(_scratch, "memory", None)
    if memory is None or memory.size < nbytes:
        memory = np.empty(-(-nbytes // 8) * 8, np.uint8)
        _scratch.memory = memory
    view: npt.NDArray[Any] = memory[:nbytes].view(UNSIGNED[itemsize])
    return view


class Zeros:
    """Fills cubes of an array with zeros, either at once or only when something else turns out not to be zero."""

    def __init__(self, out: npt.NDArray[Any], *, at_once: bool) -> None:
        self._out = out
        self._waiting: list[tuple[npt.NDArray[np.int64], int]] = []
        self.at_once = at_once
        """Whether what is found to be zero must be filled straight away."""

    def add(self, table: npt.NDArray[np.int64], edge: int) -> None:
        """Take cubes that are all zero, as :func:`wkwdask.kernels.blocks.batch.clear_into` does."""
        if self.at_once:
            clear_into(table, edge, self._out)
        else:
            self._waiting.append((table, edge))

    def decoded(self, table: npt.NDArray[np.int64], edge: int, nonzero: int) -> None:
        """Take note of a batch of blocks that was decoded with ``fill_zeros=self.at_once``."""
        if self.at_once:
            return
        if not nonzero:
            self._waiting.append((table, edge))
            return
        for cubes, cube_edge in self._waiting:
            clear_into(cubes, cube_edge, self._out)
        self._waiting.clear()
        self.at_once = True
