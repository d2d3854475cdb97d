"""The compiled loops of ``arrays``."""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import kernel


@kernel
def fold_words(words: Any, state: Any) -> None:
    """Mix words into eight numbers in turn; a word is multiplied, and turned so that its high bits reach the low ones."""
    odd = np.uint64(0x9E3779B97F4A7C15)
    left, right = np.uint64(29), np.uint64(35)
    for n in range(0, len(words) - 7, 8):
        for lane in range(8):
            mixed = (state[lane] ^ words[n + lane]) * odd
            state[lane] = (mixed << left) | (mixed >> right)


_TILE = 64


@kernel
def copy_tiles(source: Any, steps: Any, out: Any, out_steps: Any, counts: Any) -> None:
    """Copy an array whose first axis is contiguous into one whose second axis is.

    It goes tile by tile, through memory of its own: rows of both arrays often lie whole pages apart, where a cache can keep only a few of them at once.
    """
    tile = np.empty(_TILE * _TILE, out.dtype)
    edge = np.uint64(_TILE)
    for m in range(counts[3]):
        for k in range(counts[2]):
            for j0 in range(0, counts[1], _TILE):
                depth = np.uint64(min(_TILE, counts[1] - j0))
                for i0 in range(0, counts[0], _TILE):
                    width = np.uint64(min(_TILE, counts[0] - i0))
                    for j in range(depth):
                        at, to = np.uint64(i0 + (j0 + j) * steps[1] + k * steps[2] + m * steps[3]), np.uint64(j) * edge
                        for i in range(width):
                            tile[to + i] = source[at + i]
                    for i in range(width):
                        to = np.uint64((i0 + i) * out_steps[0] + j0 + k * out_steps[2] + m * out_steps[3])
                        for j in range(depth):
                            out[to + j] = tile[np.uint64(i) + j * edge]
