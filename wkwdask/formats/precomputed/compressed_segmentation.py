"""Chunks in the compressed_segmentation encoding: each small block has a lookup table of ids and
bit-packed indices into it. Opens no file.

Source: neuroglancer, ``sliceview/compressed_segmentation/README.md``. All words have 32 bits,
little-endian::

    chunk:    | start of channel 0 | start of channel 1 | ... | channel 0 | channel 1 | ...
    channel:  | header of block 0 | header of block 1 | ... | indices and tables of the blocks |
    header:   | table offset (24 bits), bits per index (8 bits) | offset of the indices |

Blocks follow each other x fastest. Offsets count words from the start of the channel. A block whose
table equals that of an earlier block shares it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wkwdask.errors import CorruptError, FormatError, TruncatedError
from wkwdask.geometry.vectors import ceil_divide
from wkwdask.kernels.blocks.layout import is_plain
from wkwdask.kernels.codecs import segmentation_blocks

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3

_WORD_NBYTES = 4
_DECODE_FAULTS = {
    segmentation_blocks.BITS: "has a number of bits that is no power of two up to 32",
    segmentation_blocks.VALUES: "has indices beyond the end of the chunk",
    segmentation_blocks.TABLE: "has a lookup table beyond the end of the chunk",
    segmentation_blocks.INDEX: "has an index beyond its lookup table",
}
_TOO_LARGE = {
    segmentation_blocks.TABLES_FULL: (
        "its lookup tables reach beyond the 64 MiB that a chunk can address"
    ),
    segmentation_blocks.WORDS_FULL: "it reaches beyond the 16 GiB that a chunk can address",
}


class BlockShapes(NamedTuple):
    """Shapes of a chunk and of its blocks along x, y, z [voxels]."""

    chunk: Vec3
    block: Vec3


def decode(
    data: bytes,
    shapes: BlockShapes,
    dtype: np.dtype[Any],
    num_channels: int,
    source: str,
    offset: int,
) -> AnyArray:
    _check_length(data, shapes, num_channels, source, offset)
    out = np.empty((num_channels, *shapes.chunk[::-1]), dtype).transpose(0, 3, 2, 1)
    decode_into(data, shapes, out, (0, 0, 0), source, offset)
    return out


def decode_into(
    data: bytes, shapes: BlockShapes, out: AnyArray, corner: Vec3, source: str, offset: int
) -> None:
    """Decode the part of a chunk that lies inside an array (c, x, y, z); ``corner`` is the chunk's
    first voxel in it."""
    blocks = _check_length(data, shapes, len(out), source, offset)
    words = _words(data)
    # The compiled loop needs native, aligned memory with plain strides: other arrays are decoded
    # into a copy, which keeps the voxels outside the chunk.
    target = out if is_plain(out) else np.empty(out.shape, out.dtype.newbyteorder("="))
    if target is not out:
        target[...] = out
    for channel, voxels in enumerate(target):
        start = int(words[channel])
        if start + 2 * blocks > words.size:
            raise CorruptError(
                f"{source}: byte {offset + 4 * channel}: channel {channel} starts at word {start} "
                f"of {words.size}, too late for {blocks} blocks"
            )
        block, fault = segmentation_blocks.decode_channel(
            words, start, shapes.chunk, shapes.block, voxels, corner
        )
        if fault:
            at = offset + _WORD_NBYTES * (start + 2 * block)
            raise CorruptError(
                f"{source}: byte {at}: block {block} of channel {channel} {_DECODE_FAULTS[fault]}"
            )
    if target is not out:
        out[...] = target


def encode(array: AnyArray, block_size: Vec3, source: str) -> bytes:
    shape = (array.shape[1], array.shape[2], array.shape[3])
    max_words = len(array) * (1 + segmentation_blocks.max_words(shape, block_size, array.itemsize))
    words = np.empty(max_words, np.uint32)
    end = len(array)
    for channel, voxels in enumerate(array):
        words[channel] = end
        end = segmentation_blocks.encode_channel(voxels, block_size, words, end)
        if end < 0:
            raise FormatError(
                f"{source}: compressed_segmentation cannot hold channel {channel} of {shape} "
                f"voxels: {_TOO_LARGE[end]}: choose smaller chunks"
            )
    return words[:end].astype("<u4", copy=False).tobytes()


def _words(data: bytes) -> npt.NDArray[np.uint32]:
    # Always aligned and read-only: numba compiles its loops once for each kind of array.
    words = np.frombuffer(data, "<u4").astype(np.uint32, copy=False)
    if not words.flags.aligned:
        words = words.copy()
    words.flags.writeable = False
    return words


def _check_length(
    data: bytes, shapes: BlockShapes, num_channels: int, source: str, offset: int
) -> int:
    """Return the number of blocks per channel, after checking that the chunk has room for their
    headers."""
    if len(data) % _WORD_NBYTES:
        raise CorruptError(
            f"{source}: byte {offset}: a chunk of compressed segmentation has a multiple of 4 "
            f"bytes, found {len(data)}"
        )
    blocks = math.prod(ceil_divide(shapes.chunk, shapes.block))
    needed = _WORD_NBYTES * (num_channels + 2 * blocks)
    if len(data) < needed:
        raise TruncatedError(
            f"{source}: byte {offset}: a chunk of {blocks} blocks has at least {needed} bytes, "
            f"found {len(data)}"
        )
    return blocks
