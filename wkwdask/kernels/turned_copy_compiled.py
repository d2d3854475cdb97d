"""The compiled loop of ``turned_copy``."""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import kernel

_LENGTH = 64  # values along the first axis of a tile
_WIDTH = 8  # and along the second one: where strides are powers of two, a cache holds no more rows than that
_unsigned = np.uint64


@kernel
def copy_tiles(source: Any, steps: Any, out: Any, out_steps: Any, counts: Any) -> None:
    """Copy tile by tile. The first axis is the one along which the source lies close together, the second that of the target."""
    step, out_step = _unsigned(steps[1]), _unsigned(out_steps[1])
    for m in range(counts[3]):
        for k in range(counts[2]):
            for j0 in range(0, counts[1], _WIDTH):
                width = _unsigned(min(_WIDTH, counts[1] - j0))
                for i0 in range(0, counts[0], _LENGTH):
                    for i in range(i0, min(i0 + _LENGTH, counts[0])):
                        at = _unsigned(i * steps[0] + j0 * steps[1] + k * steps[2] + m * steps[3])
                        to = _unsigned(i * out_steps[0] + j0 * out_steps[1] + k * out_steps[2] + m * out_steps[3])
                        for j in range(width):
                            out[to + j * out_step] = source[at + j * step]
