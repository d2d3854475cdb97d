"""The compiled loops of ``compresso``. Arrays have the shape (z, y, x) and are C-contiguous; what comes from a stream is checked before it is used."""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

WINDOWS, IDS, LOCATIONS = 1, 2, 3
_unsigned = np.uint64


@kernel
def decode_borders(windows: Any, values: Any, steps: Any, is_border: Any) -> Any:
    """Say which voxels lie on a border; tells whether the windows are sound."""
    nz, ny, nx = is_border.shape
    step_x, step_y, step_z = steps
    grid_x, grid_y, grid_z = (nx + step_x - 1) // step_x, (ny + step_y - 1) // step_y, (nz + step_z - 1) // step_z
    is_border[:] = 0
    count = grid_x * grid_y * grid_z
    block = np.int64(0)
    for n in range(windows.size):
        window = windows[n]
        if window & _unsigned(1):
            run = np.int64(window >> _unsigned(1))
            number = np.int64(0)
        else:
            run = np.int64(1)
            number = np.int64(window >> _unsigned(1))
        if run > count - block or number >= values.size:
            return False
        bits = values[number]
        if bits == 0:
            block += run
            continue
        for at in range(block, block + run):
            x0, rest = at % grid_x * step_x, at // grid_x
            y0, z0 = rest % grid_y * step_y, rest // grid_y * step_z
            for z in range(z0, min(z0 + step_z, nz)):
                for y in range(y0, min(y0 + step_y, ny)):
                    shift = step_x * (y - y0 + step_y * (z - z0))
                    for x in range(x0, min(x0 + step_x, nx)):
                        is_border[z, y, x] = (bits >> _unsigned(shift + x - x0)) & _unsigned(1)
        block += run
    return block == count


@helper
def _root(parents: Any, piece: Any) -> Any:
    while parents[piece] != piece:
        parents[piece] = parents[parents[piece]]
        piece = parents[piece]
    return piece


@helper
def _join(parents: Any, a: Any, b: Any) -> Any:
    a, b = _root(parents, a), _root(parents, b)
    if a < b:
        parents[b] = a
        return a
    parents[a] = b
    return b


@helper
def _number_pieces(is_border: Any, z0: Any, z1: Any, pieces: Any, parents: Any) -> Any:
    """Give voxels of some planes the numbers of connected pieces, 0 to those on borders; returns how many numbers there are, of which some are joined."""
    _, ny, nx = is_border.shape
    last = 0
    for z in range(z0, z1):
        for y in range(ny):
            for x in range(nx):
                if is_border[z, y, x]:
                    pieces[z - z0, y, x] = 0
                    continue
                piece = np.int64(pieces[z - z0, y, x - 1]) if x > 0 else 0
                if y > 0 and pieces[z - z0, y - 1, x] > 0:
                    up = np.int64(pieces[z - z0, y - 1, x])
                    if piece == 0:
                        piece = up
                    elif piece != up and pieces[z - z0, y - 1, x - 1] == 0:  # else both were joined there
                        piece = _join(parents, piece, up)
                if z > z0 and pieces[z - z0 - 1, y, x] > 0:
                    below = np.int64(pieces[z - z0 - 1, y, x])
                    piece = below if piece == 0 else _join(parents, piece, below)
                if piece == 0:
                    last += 1
                    parents[last] = last
                    piece = last
                pieces[z - z0, y, x] = piece
    return last


@kernel
def decode_ids(is_border: Any, ids: Any, locations: Any, connectivity: Any, out: Any) -> Any:
    """Give every voxel its id; returns what is wrong, or 0."""
    nz, ny, nx = is_border.shape
    depth = nz if connectivity == 6 else 1
    pieces = np.empty((depth, ny, nx), np.uint32)
    most = (nx + 1) // 2 * ny * depth + 1
    parents = np.empty(most, np.int64)
    id_of = np.zeros(most, np.uint64)
    used = 0
    for z0 in range(0, nz, depth):
        last = _number_pieces(is_border, z0, z0 + depth, pieces, parents)
        for piece in range(1, last + 1):
            root = _root(parents, piece)
            if root == piece:
                if used >= ids.size:
                    return IDS
                id_of[piece] = ids[used]
                used += 1
            else:
                id_of[piece] = id_of[root]
        for z in range(z0, z0 + depth):
            for y in range(ny):
                for x in range(nx):
                    out[z, y, x] = id_of[pieces[z - z0, y, x]]
    if used != ids.size:
        return IDS
    return LOCATIONS if _decode_borders(is_border, locations, connectivity, out) != locations.size else 0


@helper
def _decode_borders(is_border: Any, locations: Any, connectivity: Any, out: Any) -> Any:
    """Give voxels on borders their ids; returns how many locations were used, -1 where one is impossible."""
    nz, ny, nx = is_border.shape
    used = 0
    for z in range(nz):
        for y in range(ny):
            for x in range(nx):
                if not is_border[z, y, x]:
                    continue
                if x > 0 and not is_border[z, y, x - 1]:
                    out[z, y, x] = out[z, y, x - 1]
                    continue
                if y > 0 and not is_border[z, y - 1, x]:
                    out[z, y, x] = out[z, y - 1, x]
                    continue
                if connectivity == 6 and z > 0 and not is_border[z - 1, y, x]:
                    out[z, y, x] = out[z - 1, y, x]
                    continue
                if used >= locations.size:
                    return -1
                location = locations[used]
                used += 1
                if location == 0 and x > 0:
                    out[z, y, x] = out[z, y, x - 1]
                elif location == 1 and x < nx - 1:
                    out[z, y, x] = out[z, y, x + 1]
                elif location == 2 and y > 0:
                    out[z, y, x] = out[z, y - 1, x]
                elif location == 3 and y < ny - 1:
                    out[z, y, x] = out[z, y + 1, x]
                elif location == 4 and z > 0:
                    out[z, y, x] = out[z - 1, y, x]
                elif location == 5 and z < nz - 1:
                    out[z, y, x] = out[z + 1, y, x]
                elif location == 6 and used < locations.size:
                    out[z, y, x] = locations[used]
                    used += 1
                elif location > 6:
                    out[z, y, x] = location - _unsigned(7)
                else:
                    return -1
    return used
