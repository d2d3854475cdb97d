"""Compiled search of the two nearest of some points."""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

_TILE = 8  # edge of the parts that are searched at once
_ROUNDING = 1e-6


@helper
def _square(positions, x, y, z, centers, n):
    """Return the square of a distance."""
    dx = positions[0, x, y, z] - centers[0, n]
    dy = positions[1, x, y, z] - centers[1, n]
    dz = positions[2, x, y, z] - centers[2, n]
    return dx * dx + dy * dy + dz * dz


@helper
def _near(positions, low, high, centers, reach, near):
    """Write the centers that can be among the two nearest of a position of a tile to ``near``, in
    their order; return their number."""
    # With r the radius of the tile around a position in it and d the distance of that position to
    # its second nearest center, two centers lie within d + r of each position. A center farther
    # than d + 2 r is farther than d + r from each, so it is never among the two nearest.
    x, y, z = (low[0] + high[0]) // 2, (low[1] + high[1]) // 2, (low[2] + high[2]) // 2
    first, second, radius = np.inf, np.inf, 0.0
    for n in range(centers.shape[1]):
        reach[n] = np.sqrt(_square(positions, x, y, z, centers, n))
        second = min(second, max(first, reach[n]))
        first = min(first, reach[n])
    for i in range(low[0], high[0]):
        for j in range(low[1], high[1]):
            for k in range(low[2], high[2]):
                square = 0.0
                for axis in range(3):
                    square += (positions[axis, i, j, k] - positions[axis, x, y, z]) ** 2
                radius = max(radius, square)
    limit = (second + 2 * np.sqrt(radius)) * (1 + _ROUNDING)
    count = 0
    for n in range(centers.shape[1]):
        if reach[n] <= limit:
            near[count] = n
            count += 1
    return count


@kernel
def find_two_nearest(positions, centers, first, second, nearest):
    """Write the squares of the distances of the two nearest centers of each position, and the
    number of the nearest. Positions have the shape (3, x, y, z), neighbours lie close together;
    centers have the shape (3, n)."""
    shape = nearest.shape
    near, reach = np.empty(centers.shape[1], np.int64), np.empty(centers.shape[1])
    for x in range(0, shape[0], _TILE):
        for y in range(0, shape[1], _TILE):
            for z in range(0, shape[2], _TILE):
                low = (x, y, z)
                high = (
                    min(x + _TILE, shape[0]),
                    min(y + _TILE, shape[1]),
                    min(z + _TILE, shape[2]),
                )
                count = _near(positions, low, high, centers, reach, near)
                for i in range(low[0], high[0]):
                    for j in range(low[1], high[1]):
                        for k in range(low[2], high[2]):
                            least, next_least, number = np.inf, np.inf, 0
                            for n in near[:count]:
                                square = _square(positions, i, j, k, centers, n)
                                if square < least:
                                    least, next_least, number = square, least, n
                                elif square < next_least:
                                    next_least = square
                            first[i, j, k], second[i, j, k] = least, next_least
                            nearest[i, j, k] = number
