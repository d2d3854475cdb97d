"""Public functions for Blosc frames around bare LZ4 blocks: frames are added or removed without
decoding.

A Blosc 1 frame of one block is a header of 24 bytes before an LZ4 block (c-blosc,
``README_CHUNK_FORMAT.rst``)::

    | 2 | 1 | flags | typesize | nbytes | block size | frame bytes | start of block 0: 20 | compressed bytes | LZ4 block |
      1   1     1        1         4          4             4                  4                     4        bytes, little-endian

A frame that holds stored values instead (flag 2) has the first 16 bytes only.
"""  # noqa: E501

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import lz4.block
import numpy as np

from wkwdask.kernels.blocks.batch import decode_into
from wkwdask.kernels.blocks.layout import LZ4, RAW, SIZE, START, Z
from wkwdask.kernels.codecs.blosc_layout import (
    FRAME_NBYTES,
    LZ4_FLAG,
    NO_SPLIT_FLAG,
    STORED_FLAG,
    STORED_NBYTES,
)

if TYPE_CHECKING:
    from wkwdask.array_types import BoolArray, ByteArray, IntArray

_DECODED_NBYTES = 1 << 20  # of blocks that are decoded together, while they are in the CPU cache
_HEADER, _BLOCK_HEADER = struct.Struct("<BBBBiii"), struct.Struct("<ii")


def convert_chunks(
    memory: ByteArray, places: IntArray, conversion: int, nbytes: int, itemsize: int, out: ByteArray
) -> IntArray:
    """Convert stored chunks one after another, up to the first that must be decoded.

    Parameters
    ----------
    memory : ndarray of uint8
        Stored bytes.
    places : ndarray of int64, shape (n, 2)
        First byte and size of each chunk.
    conversion : int
        ``ADD_FRAMES`` to LZ4 blocks, ``REMOVE_FRAMES``, ``KEEP_BLOCKS`` or ``KEEP_FRAMES`` of LZ4
        unchanged, or ``COPY`` for uncompressed chunks. Whatever does not decode to ``nbytes`` must
        be decoded: the lengths in an LZ4 block are added up without decoding it.
    nbytes, itemsize : int
        Decoded size of a chunk and of a value [bytes].
    out : ndarray of uint8
        Memory for the converted chunks, with ``FRAME_NBYTES`` more for each.

    Returns
    -------
    ndarray of int64, shape (m,)
        Size of each converted chunk, 0 for a chunk of zeros unless it is kept unchanged.
    """
    from wkwdask.kernels.codecs import blosc_frames_compiled

    if len(places) and (
        (places < 0).any()
        or (places.sum(axis=1) > memory.size).any()
        or out.size < places[:, 1].sum() + FRAME_NBYTES * len(places)
    ):
        raise ValueError("chunks lie outside of the memory")
    memory = memory.view()
    # always: numba compiles one loop for writeable and one for read-only arrays
    memory.flags.writeable = False
    sizes = np.zeros(len(places), np.int64)
    count = blosc_frames_compiled.convert_chunks(
        memory, places, conversion, nbytes, itemsize, out, sizes
    )
    return sizes[:count]


def are_zero_outside(
    memory: ByteArray,
    places: IntArray,
    boxes: IntArray,
    length: int,
    voxel_nbytes: int,
    *,
    is_compressed: bool,
) -> BoolArray:
    """Return which blocks have only zeros outside of a box; False for a block that does not decode.

    Parameters
    ----------
    memory : ndarray of uint8
        Stored bytes.
    places : ndarray of int64, shape (n, 2)
        First byte and size of each block, of LZ4 or uncompressed; the axes of its voxels are z, y,
        x.
    boxes : ndarray of int64, shape (n, 6)
        Lowest voxel and end of the box in each block, along x, y, z.
    length, voxel_nbytes : int
        Edge of a block [voxels] and size of a voxel [bytes].
    is_compressed : bool
        Whether blocks are of LZ4.

    Returns
    -------
    ndarray of bool, shape (n,)
    """
    from wkwdask.kernels.codecs import blosc_frames_compiled

    nbytes, results = length**3 * voxel_nbytes, np.zeros(len(places), np.bool_)
    rows = np.flatnonzero(places[:, 1] > 0 if is_compressed else places[:, 1] == nbytes)
    while len(rows):
        batch = rows[: max(1, _DECODED_NBYTES // nbytes)]
        table, decoded = (
            np.zeros((len(batch), Z + 1), np.int64),
            np.empty((voxel_nbytes, length, length, length * len(batch)), np.uint8, order="F"),
        )
        table[:, START], table[:, SIZE], table[:, Z] = (
            places[batch, 0],
            places[batch, 1],
            length * np.arange(len(batch)),
        )
        broken = decode_into(
            memory,
            table,
            decoded,
            block_len=length,
            num_channels=voxel_nbytes,
            block_type=LZ4 if is_compressed else RAW,
        ).broken
        good = batch if broken < 0 else batch[:broken]
        found = np.zeros(len(good), np.bool_)
        blosc_frames_compiled.are_zero_outside(
            decoded.ravel("K"), boxes[good], length, voxel_nbytes, found
        )
        results[good] = found
        rows = rows[len(batch) if broken < 0 else broken + 1 :]
    return results


def frame_header(nbytes: int, stored_nbytes: int, itemsize: int) -> bytes:
    """Return the bytes that make a bare LZ4 block, or values that are not compressed, a frame.

    Blosc takes a block of as many bytes as its values have for stored values.
    """
    flags = LZ4_FLAG | NO_SPLIT_FLAG
    if stored_nbytes == nbytes:
        return _HEADER.pack(
            2, 1, flags | STORED_FLAG, itemsize, nbytes, nbytes, STORED_NBYTES + nbytes
        )
    head = _HEADER.pack(2, 1, flags, itemsize, nbytes, nbytes, FRAME_NBYTES + stored_nbytes)
    return head + _BLOCK_HEADER.pack(STORED_NBYTES + 4, stored_nbytes)


def encode_frame(values: bytes, itemsize: int, hc_level: int | None) -> bytes:
    """Return the frame of values, of one block; with a level, the encoder is LZ4HC."""
    options: dict[str, Any] = (
        {} if hc_level is None else {"mode": "high_compression", "compression": hc_level}
    )
    block: bytes = lz4.block.compress(values, store_size=False, **options)
    content = values if len(block) >= len(values) else block
    return frame_header(len(values), len(content), itemsize) + content
