"""One block: bytes to an array and back, by python-lz4. The plain reference for the compiled batches.

A raw block holds its voxels in Fortran order with the channel fastest: the shape is (c, x, y, z).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lz4.block
import numpy as np

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.formats.wkw.header import BlockType
from wkwdask.formats.wkw.options import DEFAULT_LEVEL

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.formats.wkw.header import WkwHeader

MAX_LZ4_RATIO = 255  # no LZ4 block decodes to more than this many times its length


def decode_block(raw: bytes, header: WkwHeader, source: str, block: int, offset: int) -> npt.NDArray[Any]:
    """Decode one block."""
    where = f"{source}: block {block} at byte {offset}"
    if not header.is_compressed:
        if len(raw) < header.block_nbytes:
            raise TruncatedError(f"{where}: {len(raw)} bytes, expected {header.block_nbytes}")
        voxels = raw[: header.block_nbytes]
    else:
        if header.block_nbytes > MAX_LZ4_RATIO * len(raw):
            raise CorruptError(f"{where}: {len(raw)} stored bytes cannot decode to {header.block_nbytes} bytes")
        try:
            voxels = lz4.block.decompress(raw, uncompressed_size=header.block_nbytes)
        except lz4.block.LZ4BlockError as error:
            raise CorruptError(f"{where}: {len(raw)} bytes are not an LZ4 block of {header.block_nbytes} bytes ({error})") from None
        if len(voxels) != header.block_nbytes:
            raise CorruptError(f"{where}: {len(raw)} bytes decode to {len(voxels)} bytes, expected {header.block_nbytes}")
    edge = header.block_len
    return np.frombuffer(voxels, header.dtype).reshape((header.num_channels, edge, edge, edge), order="F")


def encode_block(voxels: npt.NDArray[Any], header: WkwHeader, level: int = DEFAULT_LEVEL) -> bytes:
    """Encode one block."""
    raw = np.asarray(voxels, header.dtype).tobytes(order="F")
    if len(raw) != header.block_nbytes:
        raise ValueError(f"a block of this mag has {header.block_nbytes} bytes, got an array of shape {voxels.shape}")
    return encode_raw_block(raw, header.block_type, level)


def encode_raw_block(raw: bytes, block_type: BlockType, level: int) -> bytes:
    """Encode the bytes of one block."""
    if block_type is BlockType.RAW:
        return raw
    options = {} if block_type is BlockType.LZ4 else {"mode": "high_compression", "compression": level}
    encoded: bytes = lz4.block.compress(raw, store_size=False, **options)
    return encoded


def decoded_nbytes(raw: bytes, most: int) -> int:
    """Give the bytes that a stored LZ4 block decodes to, -1 where it does not decode to at most so many."""
    try:
        return len(lz4.block.decompress(raw, uncompressed_size=most))
    except lz4.block.LZ4BlockError:
        return -1
