"""Compiled loops of guarded sets: union-find of labels that refuses some pairs.

The blocks of a set are a list of its nodes, ascending, or a row of bits once the list is long::

    following[node]    next node of the list        >= 0
                       end of the list              _END
                       of a root: its row of bits   _ROW - row

The nodes of a block are consecutive, so ascending nodes have ascending blocks. Each row takes the
place of a list of more than ``most_listed`` nodes that no other row has counted, which limits the
number of rows.
"""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import helper, kernel
from wkwdask.kernels.labels.components_compiled import root_of

_END = -1
_ROW = -2
_ONE = np.uint64(1)


@helper
def _has_bit(bits, row, block):
    return (bits[row, block >> 6] >> np.uint64(block & 63)) & _ONE != 0


@helper
def _set_bits(bits, row, node, following, block_of):
    """Mark the blocks of a list."""
    while node >= 0:
        block = block_of[node]
        bits[row, block >> 6] |= _ONE << np.uint64(block & 63)
        node = following[node]


@helper
def _share_block(a, b, following, block_of, bits):
    """Return whether two sets, given by their roots, have nodes of the same block."""
    if following[a] <= _ROW and following[b] <= _ROW:
        ours, theirs = bits[_ROW - following[a]], bits[_ROW - following[b]]
        for n in range(len(ours)):
            if ours[n] & theirs[n] != 0:
                return True
        return False
    if following[b] <= _ROW:
        a, b = b, a
    if following[a] <= _ROW:
        row = _ROW - following[a]
        while b >= 0:
            if _has_bit(bits, row, block_of[b]):
                return True
            b = following[b]
        return False
    while a >= 0 and b >= 0:
        if block_of[a] == block_of[b]:
            return True
        if block_of[a] < block_of[b]:
            a = following[a]
        else:
            b = following[b]
    return False


@helper
def _join_lists(a, b, following):
    """Merge two lists; the first node of the first is the least. Return the number of nodes."""
    last, x, y, count = a, following[a], b, 1
    while x >= 0 or y >= 0:
        if y < 0 or (x >= 0 and x < y):
            node, x = x, following[x]
        else:
            node, y = y, following[y]
        following[last] = node
        last = node
        count += 1
    following[last] = _END
    return count


@helper
def _join_blocks(a, b, following, block_of, bits, num_rows, most_listed):
    """Add the blocks of the second set to the first."""
    if following[a] <= _ROW and following[b] <= _ROW:
        ours, theirs = bits[_ROW - following[a]], bits[_ROW - following[b]]
        for n in range(len(ours)):
            ours[n] |= theirs[n]
    elif following[a] <= _ROW:
        _set_bits(bits, _ROW - following[a], b, following, block_of)
    elif following[b] <= _ROW:
        _set_bits(bits, _ROW - following[b], a, following, block_of)
        following[a] = following[b]
    elif _join_lists(a, b, following) > most_listed:
        row = num_rows[0]
        num_rows[0] += 1
        _set_bits(bits, row, a, following, block_of)
        following[a] = _ROW - row


@kernel
def unite_guarded(
    pairs, parent, voxels, most_voxels, following, block_of, bits, num_rows, most_listed, reasons
):
    """Merge the sets of each pair of nodes unless they share a block (reason 1) or have too many
    voxels (2). The least node of a set is its root. Empty arrays switch a guard off."""
    for n in range(len(pairs)):
        a, b = root_of(parent, pairs[n, 0]), root_of(parent, pairs[n, 1])
        if b < a:
            a, b = b, a
        if a == b:
            reasons[n] = 0
        elif len(following) > 0 and _share_block(a, b, following, block_of, bits):
            reasons[n] = 1
        elif len(voxels) > 0 and voxels[a] + voxels[b] > most_voxels:
            reasons[n] = 2
        else:
            reasons[n] = 0
            parent[b] = a
            if len(voxels) > 0:
                voxels[a] += voxels[b]
            if len(following) > 0:
                _join_blocks(a, b, following, block_of, bits, num_rows, most_listed)
