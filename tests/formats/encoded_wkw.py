"""A whole WKW file, block by block, by the plain encoder of the package."""

from __future__ import annotations

import numpy as np

from wkwdask.formats.wkw.file import encode_block, format_file_head
from wkwdask.formats.wkw.options import DEFAULT_LEVEL
from wkwdask.geometry import morton


def encode_file(voxels, header, level=DEFAULT_LEVEL):
    """Encode a whole file."""
    step = header.block_len
    corners = (morton.decode(np.arange(header.blocks_per_file)) * step).tolist()
    blocks = [
        encode_block(voxels[:, x : x + step, y : y + step, z : z + step], header, level)
        for x, y, z in corners
    ]
    return format_file_head(
        header, np.array([len(block) for block in blocks], np.int64)
    ) + b"".join(blocks)
