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

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import helper, kernel


@helper
def _root(parent: Any, node: Any) -> Any:
    """Return the least node of a set. Path halving on the way keeps later searches short."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@helper
def _unite(parent: Any, a: Any, b: Any) -> None:
    if parent[a] == parent[b]:
        return
    a, b = _root(parent, a), _root(parent, b)
    if a < b:
        parent[b] = a
    elif b < a:
        parent[a] = b


@helper
def _count_runs(planes: Any, first: Any) -> Any:
    """Count the runs that are not zero. ``first[row]`` becomes the first run of a row,
    ``first[-1]`` the number of runs."""
    depth, height, width = planes.shape
    total = 0
    for z in range(depth):
        for y in range(height):
            row = planes[z, y]
            first[z * height + y] = total
            count = 0
            before = row[0]
            count += before != 0
            for x in range(1, width):
                value = row[x]
                count += (value != before) & (value != 0)
                before = value
            total += count
    first[depth * height] = total
    return total


@helper
def _find_runs(planes: Any, begin: Any, end: Any) -> None:
    depth, height, width = planes.shape
    n = 0
    for z in range(depth):
        for y in range(height):
            row = planes[z, y]
            x = 0
            while x < width:
                value = row[x]
                start = x
                x += 1
                while x < width and row[x] == value:
                    x += 1
                if value != 0:
                    begin[n] = start
                    end[n] = x
                    n += 1


@helper
def _join_rows(
    parent: Any,
    begin: Any,
    end: Any,
    value: Any,
    p: Any,
    last_p: Any,
    q: Any,
    last_q: Any,
    reach: Any,
) -> None:
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
def label_planes(planes: Any, connectivity: Any, is_open: Any, labels: Any) -> Any:
    """Label an array (z, y, x). Return the number of components, of components that touch an open
    face, and the voxels of each."""
    depth, height, width = planes.shape
    first = np.empty(depth * height + 1, np.int64)
    num_runs = _count_runs(planes, first)
    begin = np.empty(num_runs, np.int32)
    end = np.empty(num_runs, np.int32)
    _find_runs(planes, begin, end)
    value = np.empty(num_runs, planes.dtype)
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
                value[n] = planes[z, y, begin[n]]
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
                parent[n] = _root(parent, n)
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
    label = np.empty(num_runs, np.int32)
    sizes = np.zeros(count, np.int64)
    next_touching, next_other = 1, num_touching + 1
    for n in range(num_runs):
        if parent[n] == n and touches[n]:
            label[n] = next_touching
            next_touching += 1
        elif parent[n] == n:
            label[n] = next_other
            next_other += 1
        else:
            # the root is the least run of its set, so it has its label already
            label[n] = label[parent[n]]
        sizes[label[n] - 1] += end[n] - begin[n]

    for z in range(depth):
        for y in range(height):
            row = z * height + y
            x = 0
            for n in range(first[row], first[row + 1]):
                labels[z, y, x : begin[n]] = 0
                labels[z, y, begin[n] : end[n]] = label[n]
                x = end[n]
            labels[z, y, x:width] = 0
    return count, num_touching, sizes


@kernel
def join_faces(
    low_nodes: Any, low_values: Any, high_nodes: Any, high_values: Any, most_steps: Any, pairs: Any
) -> Any:
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
def unite_pairs(parent: Any, pairs: Any) -> None:
    """Merge the sets of each pair of nodes. The least node of a set is its root."""
    for n in range(len(pairs)):
        _unite(parent, pairs[n, 0], pairs[n, 1])


@kernel
def flatten_sets(parent: Any) -> None:
    """Make each node point to its root."""
    for n in range(len(parent)):
        # a parent is never larger than its node, and all smaller nodes point to their roots already
        parent[n] = parent[parent[n]]


@kernel
def add_sizes(parent: Any, sizes: Any, first: Any, totals: Any) -> None:
    """Add the sizes of nodes, numbered from ``first``, to those of their roots."""
    for n in range(len(sizes)):
        totals[parent[first + n]] += sizes[n]
