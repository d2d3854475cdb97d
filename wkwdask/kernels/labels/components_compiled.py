"""Compiled loops of ``components``.

The nodes are runs of equal voxels along x, not voxels: there are far fewer of them. A scan in the
order of memory joins the runs of each row with those of the rows before it, by union-find. Four of
the eight neighbouring rows come before a row; the others see it later::

        z - 1              z
    +---+---+---+    +---+---+---+
    | d | b | d |    | a | * |   |     a, b  neighbours along y or z: connectivity 6, 18, 26
    +---+---+---+    +---+---+---+     d     neighbours along y and z: connectivity 18, 26
     y-1  y  y+1      y-1  y  y+1

Runs of two rows touch if they overlap along x. A diagonal neighbour may also lie one voxel beyond
the end of a run: its ``reach`` is then 1.
"""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import helper, kernel


@helper
def root_of(parent, node):
    """Return the least node of a set. Path halving on the way keeps later searches short."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@helper
def _unite(parent, a, b):
    if parent[a] == parent[b]:
        return
    a, b = root_of(parent, a), root_of(parent, b)
    if a < b:
        parent[b] = a
    elif b < a:
        parent[a] = b


# Each voxel is compared with the one before it in a loop that the compiler vectorises, a byte per
# voxel. The bytes are then searched eight at a time, as words. The first voxel is the lowest byte
# of a word, as on all little-endian processors.
_BYTES = np.uint64(0x0101010101010101)
_ONE = np.uint64(1)
_LAST_BYTE = np.uint64(56)


@helper
def _count_ones(word):
    """Count the bytes of a word that are one; all others are zero."""
    return np.int64((word * _BYTES) >> _LAST_BYTE)


@helper
def _count_runs(planes, first):
    """Count the runs that are not zero. ``first[row]`` becomes the first run of a row,
    ``first[-1]`` the number of runs."""
    depth, height, width = planes.shape
    words = np.zeros((width + 7) // 8, np.uint64)
    begins = words.view(np.uint8)
    total = 0
    for z in range(depth):
        for y in range(height):
            row = planes[z, y]
            first[z * height + y] = total
            begins[0] = row[0] != 0
            for x in range(1, width):
                begins[x] = (row[x] != row[x - 1]) & (row[x] != 0)
            for word in words:
                total += _count_ones(word)
    first[depth * height] = total
    return total


@helper
def _find_runs(planes, begin, end, value):
    """Find the begin, the end and the value of each run that is not zero."""
    depth, height, width = planes.shape
    words = np.zeros(width // 8 + 1, np.uint64)
    differs = words.view(np.uint8)
    n = 0
    for z in range(depth):
        for y in range(height):
            row = planes[z, y]
            differs[0] = row[0] != 0
            for x in range(1, width):
                differs[x] = row[x] != row[x - 1]
            differs[width] = row[width - 1] != 0
            is_inside = False
            for w in range(len(words)):
                word = words[w]
                while word != 0:
                    lowest = word & (~word + _ONE)
                    word ^= lowest
                    # all bytes below the lowest one that is set
                    x = 8 * w + _count_ones((lowest - _ONE) & _BYTES)
                    if is_inside:
                        end[n] = x
                        n += 1
                    is_inside = x < width and row[x] != 0
                    if is_inside:
                        begin[n], value[n] = x, row[x]


@helper
def _join_rows(parent, begin, end, value, p, last_p, q, last_q, reach):
    """Join the touching runs of two rows, p and q, that have equal values; ``reach`` is 0 or 1."""
    # Both rows list their runs in ascending order, so one pass merges them: the run that ends first
    # is done.
    #
    #   row p    [--5--]   [---7---]
    #   row q       [----5----][-7-]     p0 q0 touch and join; p0 ends first; p1 q0 touch but differ; q0 ends first; p1 q1 join  # noqa: E501
    while p < last_p and q < last_q:
        if end[p] + reach <= begin[q]:
            p += 1
        elif end[q] + reach <= begin[p]:
            q += 1
        else:
            if value[p] == value[q]:
                _unite(parent, p, q)
            if end[p] < end[q]:
                p += 1
            elif end[q] < end[p]:
                q += 1
            else:
                # Both end at the same x. With reach 1, each may touch the next run of the other row
                # at its corner:
                #
                #   row p    [--5--]
                #   row q    [--3--][--5--]
                if reach:
                    if q + 1 < last_q and begin[q + 1] == end[p] and value[p] == value[q + 1]:
                        _unite(parent, p, q + 1)
                    if p + 1 < last_p and begin[p + 1] == end[q] and value[p + 1] == value[q]:
                        _unite(parent, p + 1, q)
                p += 1
                q += 1


@kernel
def label_rows(planes, connectivity, is_open):
    """Label an array (z, y, x).

    Return the first run of each row, the begin, the end and the label of each run, the values of
    the components that touch an open face, and the voxels of all components.
    """
    depth, height, width = planes.shape
    first = np.empty(depth * height + 1, np.int64)
    num_runs = _count_runs(planes, first)
    begin = np.empty(num_runs, np.int32)
    end = np.empty(num_runs, np.int32)
    value = np.empty(num_runs, planes.dtype)
    _find_runs(planes, begin, end, value)
    parent = np.empty(num_runs, np.int32)
    # of rows that differ in y or in z: with reach, an edge
    reach_one = 0 if connectivity == 6 else 1
    # of rows that differ in both: an edge; with reach, a corner
    reach_two = 1 if connectivity == 26 else 0
    for z in range(depth):
        for y in range(height):
            row = z * height + y
            low, high = first[row], first[row + 1]
            for n in range(low, high):
                parent[n] = n
            if low == high:
                continue
            if y:
                _join_rows(
                    parent, begin, end, value, low, high, first[row - 1], first[row], reach_one
                )
            if z:
                other = row - height
                _join_rows(
                    parent, begin, end, value, low, high, first[other], first[other + 1], reach_one
                )
                if connectivity != 6 and y:
                    _join_rows(
                        parent,
                        begin,
                        end,
                        value,
                        low,
                        high,
                        first[other - 1],
                        first[other],
                        reach_two,
                    )
                if connectivity != 6 and y + 1 < height:
                    _join_rows(
                        parent,
                        begin,
                        end,
                        value,
                        low,
                        high,
                        first[other + 1],
                        first[other + 2],
                        reach_two,
                    )

    # Mark the roots of components that touch an open face. These may continue in a neighbouring
    # brick.
    touches = np.zeros(num_runs, np.bool_)
    for z in range(depth):
        for y in range(height):
            row = z * height + y
            is_edge = (
                (y == 0 and is_open[1, 0])
                or (y == height - 1 and is_open[1, 1])
                or (z == 0 and is_open[2, 0])
                or (z == depth - 1 and is_open[2, 1])
            )
            for n in range(first[row], first[row + 1]):
                parent[n] = root_of(parent, n)
                if (
                    is_edge
                    or (begin[n] == 0 and is_open[0, 0])
                    or (end[n] == width and is_open[0, 1])
                ):
                    touches[parent[n]] = True

    # Number the components: touching ones first, so that a neighbour needs to hold only the first
    # ``num_touching`` labels.
    num_touching = 0
    count = 0
    for n in range(num_runs):
        if parent[n] == n:
            count += 1
            num_touching += touches[n]
    label = np.empty(num_runs, np.uint32)
    sizes = np.zeros(count, np.int64)
    values = np.empty(num_touching, np.uint64)
    next_touching, next_other = 0, num_touching
    for n in range(num_runs):
        if parent[n] == n and touches[n]:
            values[next_touching] = value[n]
            next_touching += 1
            label[n] = next_touching
        elif parent[n] == n:
            next_other += 1
            label[n] = next_other
        else:
            # the root is the least run of its set, so it has its label already
            label[n] = label[parent[n]]
        sizes[label[n] - 1] += end[n] - begin[n]
    return first, begin, end, label, values, sizes


@kernel
def paint_runs(first, begin, end, label, lookup, height, low, high, step, planes):
    """Write ``lookup[label]`` to the voxels of all runs in a box. ``low`` and ``high`` are the
    corners of the box as z, y, x, and ``step`` leads from there to the place in ``planes``. Other
    voxels stay."""
    for z in range(low[0], high[0]):
        for y in range(low[1], high[1]):
            out = planes[z + step[0], y + step[1]]
            row = z * height + y
            for n in range(first[row], first[row + 1]):
                value = lookup[label[n]]
                for x in range(max(begin[n], low[2]), min(end[n], high[2])):
                    out[x + step[2]] = value


@kernel
def join_faces(low_nodes, low_values, high_nodes, high_values, most_steps, pairs):
    """Pair the nodes of two planes that face each other. Return the number of rows written to
    ``pairs``."""
    # The high plane has a border of one voxel, so every diagonal neighbour exists. Nodes below 0
    # are background. Neighbouring voxels mostly repeat a pair: skipping the last pair keeps
    # ``pairs`` short, but not free of duplicates.
    height, width = low_nodes.shape
    n = 0
    for dv in range(-1, 2):
        for du in range(-1, 2):
            if abs(du) + abs(dv) > most_steps:
                continue
            for v in range(height):
                before_a, before_b = np.int64(-1), np.int64(-1)
                for u in range(width):
                    a, b = low_nodes[v, u], high_nodes[v + dv + 1, u + du + 1]
                    if (
                        a < 0
                        or b < 0
                        or (a == before_a and b == before_b)
                        or low_values[v, u] != high_values[v + dv + 1, u + du + 1]
                    ):
                        continue
                    pairs[n, 0], pairs[n, 1] = a, b
                    before_a, before_b = a, b
                    n += 1
    return n


@kernel
def unite_pairs(parent, pairs):
    """Merge the sets of each pair of nodes. The least node of a set is its root."""
    for n in range(len(pairs)):
        _unite(parent, pairs[n, 0], pairs[n, 1])


@kernel
def flatten_sets(parent):
    """Make each node point to its root."""
    for n in range(len(parent)):
        # a parent is never larger than its node, and all smaller nodes point to their roots already
        parent[n] = parent[parent[n]]


@kernel
def add_sizes(parent, sizes, first, totals):
    """Add the sizes of nodes, numbered from ``first``, to those of their roots."""
    for n in range(len(sizes)):
        totals[parent[first + n]] += sizes[n]
