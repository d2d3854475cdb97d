"""Compiled loops of ``arrays``."""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import kernel


@kernel
def fold_columns(words, step_y, step_z, count_y, count_z, length, state):
    """Mix columns of words, one for each y and z, into eight states in turn. The states are
    independent, so the processor works on several at once."""
    # Multiplication by an odd number is invertible and carries bits upward only; the rotation moves
    # the high bits down to the low ones.
    odd = np.uint64(0x9E3779B97F4A7C15)
    left, right = np.uint64(29), np.uint64(35)
    for z in range(count_z):
        for y in range(count_y):
            first = z * step_z + y * step_y
            for n in range(first, first + length, 8):
                for lane in range(8):
                    mixed = (state[lane] ^ words[n + lane]) * odd
                    state[lane] = (mixed << left) | (mixed >> right)


_TILE = 64


@kernel
def copy_tiles(source, steps, out, out_steps, counts):
    """Copy an array whose first axis is contiguous into one whose second axis is contiguous."""
    # Rows of both arrays are often a multiple of 4 KiB apart. Their cache lines then share few sets
    # of the cache and displace each other. So each tile goes through a small buffer, which stays in
    # the cache:
    #
    #   source              buffer           out
    #   i -> contiguous     64 x 64          j -> contiguous
    #   . . [a b c]         [a b c]          . . [a d]
    #   . . [d e f]   ==>   [d e f]    ==>   . . [b e]
    #                                        . . [c f]
    tile = np.empty(_TILE * _TILE, out.dtype)
    edge = np.uint64(_TILE)
    for m in range(counts[3]):
        for k in range(counts[2]):
            for j0 in range(0, counts[1], _TILE):
                depth = np.uint64(min(_TILE, counts[1] - j0))
                for i0 in range(0, counts[0], _TILE):
                    width = np.uint64(min(_TILE, counts[0] - i0))
                    for j in range(depth):
                        at, to = (
                            np.uint64(i0 + (j0 + j) * steps[1] + k * steps[2] + m * steps[3]),
                            np.uint64(j) * edge,
                        )
                        for i in range(width):
                            tile[to + i] = source[at + i]
                    for i in range(width):
                        to = np.uint64(
                            (i0 + i) * out_steps[0] + j0 + k * out_steps[2] + m * out_steps[3]
                        )
                        for j in range(depth):
                            out[to + j] = tile[np.uint64(i) + j * edge]
