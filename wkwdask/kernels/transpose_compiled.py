"""The compiled loop of ``transpose``."""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import kernel

_TILE = 64


@kernel
def turn(source: Any, steps: Any, out: Any, strides: Any, shape: Any) -> None:
    """Copy an array whose x is contiguous into one whose z is; see ``transpose.copy_voxels``.

    It goes tile by tile, through memory of its own: rows of both arrays often lie whole pages apart, where a cache can keep only a few of them at once.
    """
    tile = np.empty(_TILE * _TILE, out.dtype)
    edge = np.uint64(_TILE)
    for c in range(shape[0]):
        for y in range(shape[2]):
            for z_tile in range(0, shape[3], _TILE):
                depth = np.uint64(min(_TILE, shape[3] - z_tile))
                for x_tile in range(0, shape[1], _TILE):
                    width = np.uint64(min(_TILE, shape[1] - x_tile))
                    for z in range(depth):
                        at, to = np.uint64(c * steps[0] + x_tile + y * steps[2] + (z_tile + z) * steps[3]), np.uint64(z) * edge
                        for i in range(width):
                            tile[to + i] = source[at + i]
                    for x in range(width):
                        to = np.uint64(c * strides[0] + (x_tile + x) * strides[1] + y * strides[2] + z_tile)
                        for i in range(depth):
                            out[to + i] = tile[np.uint64(x) + i * edge]
