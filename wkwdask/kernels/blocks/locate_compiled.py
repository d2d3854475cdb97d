"""Compiled loops of ``locate``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from wkwdask.kernels.blocks.layout import CODE, OFFSET, SIZE, START, X, Y, Z
from wkwdask.kernels.compiler import helper, kernel

_MAX_DEPTH = 21  # a Morton code of 63 bits has 21 bits for each axis

pread: Any = types.ExternalFunction(
    "pread", types.intp(types.int32, types.intp, types.intp, types.int64)
)


@helper
def fill_in_order(bounds, low, high, block_len, origin, table):
    """Write a row for each block of the box, in Morton order."""
    # Walk the octree of the cube depth first and skip subtrees outside the box. This visits only
    # the blocks of the box and needs no sort of Morton codes: the 8 children of a cube cover 8
    # consecutive ranges of codes (webknossos-wrap README, "High-level description"). The children
    # at z = 0:
    #
    #   +-----+-----+
    #   |  0  |  1  |     child = x + 2 y + 4 z
    #   +-----+-----+     first code = code of the cube + child * half^3
    #   |  2  |  3  |
    #   +-----+-----+
    edge = 1
    while edge * edge * edge < bounds.size - 1:
        edge *= 2
    stack = np.empty((8 * _MAX_DEPTH, 5), np.int64)  # code, edge, x, y, z of cubes still to visit
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3], stack[0, 4] = 0, edge, 0, 0, 0
    depth = 1
    n = 0
    while depth:
        depth -= 1
        code, edge, x, y, z = (
            stack[depth, 0],
            stack[depth, 1],
            stack[depth, 2],
            stack[depth, 3],
            stack[depth, 4],
        )
        if (
            x >= high[0]
            or y >= high[1]
            or z >= high[2]
            or x + edge <= low[0]
            or y + edge <= low[1]
            or z + edge <= low[2]
        ):
            continue
        if edge == 1:
            table[n, CODE] = code
            table[n, OFFSET] = bounds[code]
            table[n, SIZE] = bounds[code + 1] - bounds[code]
            table[n, X] = x * block_len + origin[0]
            table[n, Y] = y * block_len + origin[1]
            table[n, Z] = z * block_len + origin[2]
            n += 1
            continue
        half = edge // 2
        for child in range(7, -1, -1):  # the stack returns the last one first
            stack[depth, 0] = code + child * half * half * half
            stack[depth, 1] = half
            stack[depth, 2] = x + (child & 1) * half
            stack[depth, 3] = y + (child >> 1 & 1) * half
            stack[depth, 4] = z + (child >> 2) * half
            depth += 1


@kernel
def locate_blocks(bounds, low, high, block_len, origin, gap_nbytes, batch_nbytes):
    """Return block table, ranges, batches, and the blocks of the smallest and the largest stored
    length."""
    count = (high[0] - low[0]) * (high[1] - low[1]) * (high[2] - low[2])
    table = np.empty((count, 7), np.int64)
    ranges = np.empty((count, 3), np.int64)
    batches = np.empty((count + 1, 3), np.int64)
    fill_in_order(bounds, low, high, block_len, origin, table)
    num_ranges, num_batches = 0, 0
    nbytes, end = 0, 0
    smallest, largest = 0, 0
    for n in range(count):
        offset, size = table[n, OFFSET], table[n, SIZE]
        if size < table[smallest, SIZE]:
            smallest = n
        if size > table[largest, SIZE]:
            largest = n
        # Morton order is file order, so the gap to the previous block of the box is the stored
        # length of the blocks between them. Reading a small gap too costs less than a second
        # request.
        gap = offset - end
        joins = n > 0 and gap <= gap_nbytes
        more = size + gap if joins else size
        if n == 0 or nbytes + more > batch_nbytes:
            # each batch has its own memory, so a range ends with its batch
            batches[num_batches, 0], batches[num_batches, 1], batches[num_batches, 2] = (
                n,
                num_ranges,
                0,
            )
            num_batches += 1
            joins, more, nbytes = False, size, 0
        if joins:
            ranges[num_ranges - 1, 2] += more
        else:
            ranges[num_ranges, 0], ranges[num_ranges, 1], ranges[num_ranges, 2] = (
                offset,
                nbytes,
                size,
            )
            num_ranges += 1
        nbytes += more
        batches[num_batches - 1, 2] = nbytes
        table[n, START] = nbytes - size
        end = offset + size
    batches[num_batches, 0], batches[num_batches, 1], batches[num_batches, 2] = count, num_ranges, 0
    return table, ranges[:num_ranges], batches[: num_batches + 1], smallest, largest
