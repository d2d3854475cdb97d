"""Compiled loops of the Compresso decoder (Matejek et al., Compresso: Efficient Compression of
Segmentation Data for Connectomics, 2017).

Compresso stores the borders between segments as a bitmap, and one id for each connected component
between them. Decoding takes three steps::

    windows of the bitmap   ==>   components without borders   ==>   ids of border voxels
    . . # . .                     1 1 0 2 2                          5 5 5 9 9
    . . # . .                     1 1 0 2 2    ids = [5, 9]          5 5 5 9 9     from a neighbour, or from ``locations``

Arrays have the shape (z, y, x) and are C-contiguous. Numbers of a stream are checked before they
are used.
"""  # noqa: E501

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

WINDOWS, IDS, LOCATIONS = 1, 2, 3  # the part of the stream that is broken
_unsigned = np.uint64


@kernel
def decode_borders(windows, values, steps, is_border):
    """Mark the border voxels. Return whether the windows are valid."""
    # A window is the bitmap of a block of ``steps`` voxels, x fastest. ``values`` lists the
    # distinct windows. An entry of ``windows`` is an index into it, shifted left by one; with the
    # lowest bit set, it is the length of a run of ``values[0]`` (usually the window without
    # borders).
    nz, ny, nx = is_border.shape
    step_x, step_y, step_z = steps
    grid_x, grid_y, grid_z = (
        (nx + step_x - 1) // step_x,
        (ny + step_y - 1) // step_y,
        (nz + step_z - 1) // step_z,
    )
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
def _root(parents, component):
    while parents[component] != component:
        parents[component] = parents[parents[component]]
        component = parents[component]
    return component


@helper
def _join(parents, a, b):
    """Merge two components, and return the smaller root."""
    a, b = _root(parents, a), _root(parents, b)
    if a < b:
        parents[b] = a
        return a
    parents[a] = b
    return b


@helper
def _label_components(is_border, z0, z1, labels, parents):
    """Label the connected components of some planes, with 0 on borders. Return the highest label;
    some labels are merged in ``parents``."""
    _, ny, nx = is_border.shape
    last = 0
    for z in range(z0, z1):
        for y in range(ny):
            for x in range(nx):
                if is_border[z, y, x]:
                    labels[z - z0, y, x] = 0
                    continue
                label = np.int64(labels[z - z0, y, x - 1]) if x > 0 else 0
                if y > 0 and labels[z - z0, y - 1, x] > 0:
                    up = np.int64(labels[z - z0, y - 1, x])
                    if label == 0:
                        label = up
                    elif label != up and labels[z - z0, y - 1, x - 1] == 0:
                        # otherwise both were merged at that corner
                        label = _join(parents, label, up)
                if z > z0 and labels[z - z0 - 1, y, x] > 0:
                    below = np.int64(labels[z - z0 - 1, y, x])
                    label = below if label == 0 else _join(parents, label, below)
                if label == 0:
                    last += 1
                    parents[last] = last
                    label = last
                labels[z - z0, y, x] = label
    return last


@kernel
def decode_ids(is_border, ids, locations, connectivity, out):
    """Write the id of every voxel to ``out``. Return the broken part of the stream, or 0."""
    nz, ny, nx = is_border.shape
    # planes in which components connect: with connectivity 4, each plane is separate
    depth = nz if connectivity == 6 else 1
    labels = np.empty((depth, ny, nx), np.uint32)
    # 0, and one for every other voxel of each row: neighbours along x share a label
    max_labels = (nx + 1) // 2 * ny * depth + 1
    parents = np.empty(max_labels, np.int64)
    id_of = np.zeros(max_labels, np.uint64)
    used = 0
    for z0 in range(0, nz, depth):
        last = _label_components(is_border, z0, z0 + depth, labels, parents)
        for label in range(1, last + 1):
            # ids are stored in the order of the first voxels of components, which is that of their
            # least labels
            root = _root(parents, label)
            if root == label:
                if used >= ids.size:
                    return IDS
                id_of[label] = ids[used]
                used += 1
            else:
                id_of[label] = id_of[root]
        for z in range(z0, z0 + depth):
            for y in range(ny):
                for x in range(nx):
                    out[z, y, x] = id_of[labels[z - z0, y, x]]
    if used != ids.size:
        return IDS
    return (
        LOCATIONS
        if _decode_borders(is_border, locations, connectivity, out) != locations.size
        else 0
    )


@helper
def _decode_borders(is_border, locations, connectivity, out):
    """Write the ids of border voxels. Return the number of locations used, -1 if one is
    impossible."""
    # A border voxel takes the id of the first of its neighbours at -x, -y, -z that is no border.
    # Without such a neighbour, the stream has a location: 0 to 5 name the neighbour at -x, +x, -y,
    # +y, -z, +z; 6 announces an id that follows; 7 and more are the id itself plus 7.
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
