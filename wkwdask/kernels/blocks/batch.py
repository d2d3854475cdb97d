"""Public functions for batches of blocks: decode many blocks into an array, or encode many blocks
of an array, in one call without the GIL.

If python-lz4 exports LZ4's C functions, compiled loops do the work; otherwise, python-lz4 does it
block by block. Both decode to equal voxels, with two differences. The compiled loops stop after the
last requested voxel, so they do not notice damage beyond it. The encoded LZ4 bytes may differ, as
they may between builds of LZ4; LZ4HC and raw bytes are equal.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.kernels.blocks import batch_python
from wkwdask.kernels.blocks.layout import OUTSIDE, RAW, UNSIGNED, flat_memory, is_plain

if TYPE_CHECKING:
    from wkwdask.array_types import AnyArray, ByteArray, IntArray

_NO_BYTES = np.empty(0, np.uint8)
_scratch = threading.local()


class DecodeResult(NamedTuple):
    """Result of decoding a batch of blocks."""

    nonzero: int
    """Blocks that are not all-zero."""
    broken: int
    """Index of the first block that did not decode to its length, -1 if all did."""
    broken_nbytes: int
    """Length that the broken block decoded to [bytes]; negative if its bytes are no LZ4 block."""


def compress_bound(nbytes: int) -> int:
    """Return the largest compressed length of ``nbytes`` bytes: ``LZ4_COMPRESSBOUND`` in lz4.h."""
    return nbytes + nbytes // 255 + 16


@cache
def zero_encoding(nbytes: int, block_type: int, level: int) -> ByteArray:
    """Return the encoding of an all-zero block, which is the same for all levels and for LZ4."""
    return np.frombuffer(batch_python.encode(bytes(nbytes), block_type, level), np.uint8)


class EncodeResult(NamedTuple):
    """Result of encoding a batch of blocks, which lie one after another in the output."""

    sizes: IntArray
    """Length of each block [bytes], shape (n,)."""
    nbytes: int
    """Length of all blocks [bytes]."""
    nonzero: int
    """Blocks that are not all-zero."""


def decode_into(
    source: ByteArray,
    table: IntArray,
    out: AnyArray,
    *,
    block_len: int,
    num_channels: int,
    first_channel: int = 0,
    block_type: int,
    fill_zeros: bool = True,
) -> DecodeResult:
    """Decode stored blocks and copy their overlap with an array into it.

    With ``fill_zeros`` false, an all-zero block leaves the array untouched until the first block
    with data, so a batch of zeros costs no writes; see :class:`ZeroFill`.
    """
    nbytes = block_len**3 * num_channels * out.itemsize
    if not len(table) or not out.size:
        return DecodeResult(0, -1, 0)
    if first_channel < 0 or first_channel + out.shape[0] > num_channels or not is_plain(out):
        raise ValueError(
            f"cannot decode {num_channels} channels into an array of shape {out.shape} and strides "
            f"{out.strides}"
        )
    compressed = block_type != RAW
    compiled = _compiled()
    if compiled is None:
        decoded = DecodeResult(
            *batch_python.decode_into(
                source, table, block_len, num_channels, first_channel, compressed, fill_zeros, out
            )
        )
    else:
        flat, strides = flat_memory(out)
        block = scratch_block(nbytes, out.itemsize)
        decoded = DecodeResult(
            *compiled.decode_into(
                source,
                table,
                block_len,
                num_channels,
                first_channel,
                compressed,
                fill_zeros,
                block,
                flat,
                out.shape,
                strides,
            )
        )
    if decoded.broken_nbytes == OUTSIDE:
        raise ValueError("a stored block lies outside the memory that was read")
    return decoded


def clear_into(table: IntArray, edge: int, out: AnyArray) -> None:
    """Set cubes of an array to zero."""
    compiled = _compiled()
    if not len(table) or not out.size:
        return
    if compiled is None or len(table) == 1 or not is_plain(out):
        batch_python.clear_into(table, edge, out)
    else:
        flat, strides = flat_memory(out)
        compiled.clear_into(table, edge, flat, out.shape, strides)


def encode_from(
    array: AnyArray,
    corners: IntArray,
    out: ByteArray,
    *,
    block_len: int,
    block_type: int,
    level: int,
    store_zero: bool,
) -> EncodeResult:
    """Encode the blocks of an array at ``corners``, one after another. Without ``store_zero``, an
    all-zero block gets length 0."""
    nbytes = block_len**3 * array.shape[0] * array.itemsize
    sizes = np.zeros(len(corners), np.int64)
    if not sizes.size or not array.size:
        return EncodeResult(sizes, 0, 0)
    if out.size < len(corners) * compress_bound(nbytes):
        raise ValueError(
            f"{len(corners)} blocks need {len(corners) * compress_bound(nbytes)} bytes to be "
            f"encoded, got {out.size}"
        )
    if not is_plain(array):
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    zero = zero_encoding(nbytes, block_type, level) if store_zero else _NO_BYTES
    compiled = _compiled()
    if compiled is None:
        end, nonzero = batch_python.encode_from(
            array, corners, block_len, block_type, level, zero, out, sizes
        )
    else:
        flat, strides = flat_memory(array)
        # one compiled version for arrays that may be written and those that may not
        flat.flags.writeable = False
        block = scratch_block(nbytes, array.itemsize)
        # int: numba takes long to find the type of an enumeration
        end, nonzero = compiled.encode_from(
            flat,
            array.shape,
            strides,
            corners,
            block_len,
            int(block_type),
            level,
            zero,
            block,
            block.view(np.uint8),
            out,
            sizes,
        )
    if end < 0:
        raise RuntimeError(f"LZ4 could not encode block {-1 - end} of a batch")
    return EncodeResult(sizes, end, nonzero)


@cache
def _compiled() -> Any:
    """Import the compiled loops; None where LZ4's functions are not exported."""
    from wkwdask.kernels.blocks import lz4_symbols

    if not lz4_symbols.register():
        return None
    from wkwdask.kernels.blocks import batch_compiled

    return batch_compiled


def scratch_block(nbytes: int, itemsize: int) -> AnyArray:
    """Return this thread's memory for one decoded block. Allocating it in each call would take
    about as long as decoding into it."""
    memory = getattr(_scratch, "memory", None)
    if memory is None or memory.size < nbytes:
        memory = np.empty(-(-nbytes // 8) * 8, np.uint8)
        _scratch.memory = memory
    view: AnyArray = memory[:nbytes].view(UNSIGNED[itemsize])
    return view


class ZeroFill:
    """Fill cubes of an array with zeros, at once or when the first block with data is decoded.

    A reader that discards an all-zero result defers the fill, so it never writes to the memory of
    empty regions.
    """

    def __init__(self, out: AnyArray, *, at_once: bool) -> None:
        self._out = out
        self._deferred: list[tuple[IntArray, int]] = []
        self.at_once = at_once
        """Whether zeros are written immediately."""

    def add(self, table: IntArray, edge: int) -> None:
        """Fill cubes with zeros, or defer the fill."""
        if self.at_once:
            clear_into(table, edge, self._out)
        else:
            self._deferred.append((table, edge))

    def add_decoded(self, table: IntArray, edge: int, nonzero: int) -> None:
        """Record a batch that was decoded with ``fill_zeros=self.at_once``; the first one with data
        writes all deferred zeros."""
        if self.at_once:
            return
        if not nonzero:
            self._deferred.append((table, edge))
            return
        for cubes, cube_edge in self._deferred:
            clear_into(cubes, cube_edge, self._out)
        self._deferred.clear()
        self.at_once = True
