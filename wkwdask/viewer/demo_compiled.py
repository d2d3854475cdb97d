"""The compiled loops of the demonstration dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

_MEMBRANE = 2.6  # half width of a membrane [voxels along x]


@helper
def _random(x: Any, y: Any, z: Any, salt: Any) -> Any:
    """Give a number in 0..1 that belongs to a place."""
    value = np.uint64(x + 4096) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(y + 4096) * np.uint64(0xC2B2AE3D27D4EB4F)
    value ^= np.uint64(z + 4096) * np.uint64(0x165667B19E3779F9) ^ np.uint64(salt) * np.uint64(0x27D4EB2F165667C5)
    value ^= value >> np.uint64(29)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(32)
    return np.float64(value >> np.uint64(11)) / 9007199254740992.0


@helper
def _noise(x: Any, y: Any, z: Any, salt: Any) -> Any:
    """Interpolate random numbers of the corners of a unit lattice."""
    i, j, k = np.int64(np.floor(x)), np.int64(np.floor(y)), np.int64(np.floor(z))
    u, v, w = x - i, y - j, z - k
    total = 0.0
    for n in range(8):
        a, b, c = n & 1, n >> 1 & 1, n >> 2
        weight = (u if a else 1 - u) * (v if b else 1 - v) * (w if c else 1 - w)
        total += weight * _random(i + a, j + b, k + c, salt)
    return total


@helper
def _nearest(x: Any, y: Any, z: Any, cell: Any) -> Any:
    """Find the cell of a voxel: distances of the two nearest centres, and the lattice place of the nearest one."""
    x += 26 * _noise(x / 60, y / 60, z / 24, 1) - 13
    y += 26 * _noise(x / 60, y / 60, z / 24, 2) - 13
    z += 9 * _noise(x / 70, y / 70, z / 28, 3) - 4.5
    i, j, k = np.int64(np.floor(x / cell[0])), np.int64(np.floor(y / cell[1])), np.int64(np.floor(z / cell[2]))
    first, second = 1e30, 1e30
    at_i, at_j, at_k = i, j, k
    stretch = cell[0] / cell[2]
    for dk in range(-1, 2):
        for dj in range(-1, 2):
            for di in range(-1, 2):
                a, b, c = i + di, j + dj, k + dk
                dx = x - (a + _random(a, b, c, 4)) * cell[0]
                dy = y - (b + _random(a, b, c, 5)) * cell[1]
                dz = (z - (c + _random(a, b, c, 6)) * cell[2]) * stretch
                distance = dx * dx + dy * dy + dz * dz
                if distance < first:
                    second, first = first, distance
                    at_i, at_j, at_k = a, b, c
                elif distance < second:
                    second = distance
    return np.sqrt(first), np.sqrt(second), at_i, at_j, at_k


@kernel
def fill_labels(out: Any, low: Any, cell: Any) -> None:
    """Fill an array (x, y, z) with the ids of cells; membranes are 0."""
    for x in range(out.shape[0]):
        for y in range(out.shape[1]):
            for z in range(out.shape[2]):
                first, second, i, j, k = _nearest(np.float64(x + low[0]), np.float64(y + low[1]), np.float64(z + low[2]), cell)
                number = (k + 64) * 16384 + (j + 64) * 128 + i + 64
                out[x, y, z] = 0 if second - first < _MEMBRANE else number


@kernel
def fill_image(out: Any, low: Any, cell: Any) -> None:
    """Fill an array (x, y, z) with grey values: dark membranes, grainy cytoplasm, dark mitochondria with cristae."""
    for x in range(out.shape[0]):
        for y in range(out.shape[1]):
            for z in range(out.shape[2]):
                px, py, pz = np.float64(x + low[0]), np.float64(y + low[1]), np.float64(z + low[2])
                first, second, i, j, k = _nearest(px, py, pz, cell)
                value = 148 + 26 * _random(i, j, k, 7)
                value += 34 * (_noise(px / 9, py / 9, pz / 4, 8) - 0.5) + 22 * (_noise(px / 3, py / 3, pz / 2, 9) - 0.5)
                blob = _noise(px / 26, py / 26, pz / 11, 10)
                if blob > 0.66 and second - first > 5 * _MEMBRANE:
                    stripes = np.sin(px * 0.9 + 3 * _noise(px / 12, py / 12, pz / 6, 11) + py * 0.4)
                    value -= 46 + 14 * stripes if blob > 0.69 else 74
                edge = (second - first) / _MEMBRANE
                if edge < 2:
                    value -= 84 * (1 - edge / 2)
                value += 20 * (_random(x + low[0], y + low[1], z + low[2], 12) - 0.5)
                out[x, y, z] = np.uint8(min(255.0, max(0.0, value)))
