"""A whole file in memory: split it into its blocks, or assemble it from them.

For small files, tests and damage checks; large files are streamed by ``wkwdask.storage``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.wkw.block import decode_block, encode_block
from wkwdask.formats.wkw.header import HEADER_NBYTES, WkwHeader, format_header, parse_header
from wkwdask.formats.wkw.jump_table import format_jump_table, parse_jump_table, raw_block_bounds, slice_range
from wkwdask.formats.wkw.options import DEFAULT_LEVEL
from wkwdask.geometry import morton

if TYPE_CHECKING:
    import numpy.typing as npt


def format_file_head(header: WkwHeader, sizes: npt.NDArray[np.int64]) -> bytes:
    """Write what stands before the first block: the header and, for compressed files, the jump table."""
    header = header.for_data_file()
    head = format_header(header)
    return head + format_jump_table(header, sizes) if header.is_compressed else head


def block_bounds(raw: bytes, header: WkwHeader, source: str) -> npt.NDArray[np.int64]:
    """Find the blocks of a whole file."""
    count = header.blocks_per_file
    if header.is_compressed:
        offset, nbytes = slice_range(0, count)
        return parse_jump_table(raw[offset : offset + nbytes], header, 0, count, len(raw), source)
    return raw_block_bounds(header, 0, count, len(raw), source)


def decode_file(raw: bytes, source: str = "<bytes>") -> npt.NDArray[Any]:
    """Decode a whole file."""
    header = parse_header(raw[:HEADER_NBYTES], source, is_data_file=True)
    bounds = block_bounds(raw, header, source)
    blocks = [decode_block(raw[a:b], header, source, n, a) for n, (a, b) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))]
    edge, step = header.file_len_vx, header.block_len
    out = np.empty((header.num_channels, edge, edge, edge), header.dtype, order="F")
    for (x, y, z), block in zip((morton.decode(np.arange(len(blocks))) * step).tolist(), blocks, strict=True):
        out[:, x : x + step, y : y + step, z : z + step] = block
    return out


def encode_file(voxels: npt.NDArray[Any], header: WkwHeader, level: int = DEFAULT_LEVEL) -> bytes:
    """Encode a whole file."""
    step = header.block_len
    corners = (morton.decode(np.arange(header.blocks_per_file)) * step).tolist()
    blocks = [encode_block(voxels[:, x : x + step, y : y + step, z : z + step], header, level) for x, y, z in corners]
    sizes = np.array([len(block) for block in blocks], np.int64)
    return format_file_head(header, sizes) + b"".join(blocks)
