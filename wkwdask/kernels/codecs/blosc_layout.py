"""Numbers that Blosc frames and their compiled loops share."""

from __future__ import annotations

COPY, ADD_FRAMES, REMOVE_FRAMES, KEEP_BLOCKS, KEEP_FRAMES = range(5)
"""Conversions of stored chunks: uncompressed values, LZ4 blocks to frames, frames to LZ4 blocks,
and both unchanged."""

# c-blosc, README_CHUNK_FORMAT.rst: bit 1 of the flags is for stored values, bit 4 for blocks in one
# piece; bits 5 to 7 are the compressor, 1 is LZ4. Bits 0 and 2 are the byte and the bit shuffle;
# bit 3 is reserved.
STORED_FLAG, NO_SPLIT_FLAG, LZ4_FLAG = 0x02, 0x10, 1 << 5
FRAME_NBYTES, STORED_NBYTES = 24, 16
"""Bytes before an LZ4 block, and before stored values."""
