"""Chunks of compressed segmentation: ids of small blocks as a lookup table and packed indices. Opens nothing.

A chunk is a word of 32 bits for each channel, which says where it starts, then the channels. A channel is two words for each of its blocks, x fastest
(place of the table in 24 bits and bits of an index in 8; place of the indices), then for each block its indices and its table, unless an earlier block has
the same one. Places count in words from the start of the channel (neuroglancer, ``sliceview/compressed_segmentation/README.md``).
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

    from wkwdask.geometry.mag import Vec3

_WORD_NBYTES = 4
_WRONG = {
    segmentation_blocks.BITS: "has a number of bits that is no power of two up to 32",
    segmentation_blocks.VALUES: "has indices beyond the end of the chunk",
    segmentation_blocks.TABLE: "has a lookup table beyond the end of the chunk",
    segmentation_blocks.INDEX: "has an index beyond its lookup table",
}
_FULL = {
    segmentation_blocks.TABLES_FULL: "its lookup tables reach beyond the 64 MiB that a chunk can address",
    segmentation_blocks.WORDS_FULL: "it reaches beyond the 16 GiB that a chunk can address",
}


class Blocks(NamedTuple):
    """A chunk and its blocks along x, y, z [voxels]."""

    shape: Vec3
    block_size: Vec3


def decode(data: bytes, cut: Blocks, dtype: np.dtype[Any], num_channels: int, source: str, offset: int) -> npt.NDArray[Any]:
    _check_length(data, cut, num_channels, source, offset)
    out = np.empty((num_channels, *cut.shape[::-1]), dtype).transpose(0, 3, 2, 1)
    decode_into(data, cut, out, (0, 0, 0), source, offset)
    return out


def decode_into(data: bytes, cut: Blocks, out: npt.NDArray[Any], corner: Vec3, source: str, offset: int) -> None:
    """Decode the part of a chunk that lies inside an array."""
    blocks = _check_length(data, cut, len(out), source, offset)
    words = _words(data)
    into = out if is_plain(out) else np.empty(out.shape, out.dtype.newbyteorder("="))
    if into is not out:
        into[...] = out  # what lies outside the chunk stays
    for channel, voxels in enumerate(into):
        start = int(words[channel])
        if start + 2 * blocks > words.size:
            raise CorruptError(f"{source}: byte {offset + 4 * channel}: channel {channel} starts at word {start} of {words.size}, too late for {blocks} blocks")
        block, what = segmentation_blocks.decode_channel(words, start, cut.shape, cut.block_size, voxels, corner)
        if what:
            at = offset + _WORD_NBYTES * (start + 2 * block)
            raise CorruptError(f"{source}: byte {at}: block {block} of channel {channel} {_WRONG[what]}")
    if into is not out:
        out[...] = into


def encode(array: npt.NDArray[Any], block_size: Vec3, source: str) -> bytes:
    shape = (array.shape[1], array.shape[2], array.shape[3])
    most = len(array) * (1 + segmentation_blocks.most_words(shape, block_size, array.itemsize))
    words = np.empty(most, np.uint32)
    end = len(array)
    for channel, voxels in enumerate(array):
        words[channel] = end
        end = segmentation_blocks.encode_channel(voxels, block_size, words, end)
        if end < 0:
            raise FormatError(f"{source}: compressed_segmentation cannot hold channel {channel} of {shape} voxels: {_FULL[end]}: choose smaller chunks")
    return words[:end].astype("<u4", copy=False).tobytes()


def _words(data: bytes) -> npt.NDArray[np.uint32]:
    """View the chunk as words, always read-only, so that the loops are compiled once."""
    words = np.frombuffer(data, "<u4").astype(np.uint32, copy=False)
    if not words.flags.aligned:
        words = words.copy()
    words.flags.writeable = False
    return words


def _check_length(data: bytes, cut: Blocks, num_channels: int, source: str, offset: int) -> int:
    """Count the blocks of a chunk, and see that there are bytes for their headers."""
    if len(data) % _WORD_NBYTES:
        raise CorruptError(f"{source}: byte {offset}: a chunk of compressed segmentation has a multiple of 4 bytes, found {len(data)}")
    blocks = math.prod(ceil_divide(cut.shape, cut.block_size))
    needed = _WORD_NBYTES * (num_channels + 2 * blocks)
    if len(data) < needed:
        raise TruncatedError(f"{source}: byte {offset}: a chunk of {blocks} blocks has at least {needed} bytes, found {len(data)}")
    return blocks
