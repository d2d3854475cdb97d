"""Compiled loop of ``decoded``."""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.blocks.copies_compiled import scatter
from wkwdask.kernels.compiler import kernel


@kernel
def place_blocks(addresses, corners, edges, channels, first_channel, out, shape, strides):
    """Copy the parts of blocks that lie inside the array to it."""
    for n in range(addresses.size):
        corner = (corners[n, 0], corners[n, 1], corners[n, 2])
        scatter(np.intp(addresses[n]), edges, channels, first_channel, corner, out, shape, strides)
