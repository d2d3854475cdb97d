"""Compiled loops of ``values``."""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

# ids cached by ``map_ids``: a table of millions of ids does not fit into the cache of a core,
# recent ids do
_SLOTS = 4096


@helper
def _first_not_less(keys, key):
    """Return the index of the first of ascending keys that is not less than ``key``."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def map_ids(ids, keys, values, is_dense, last, keeps, max_kept, out):
    """Map ids; see ``values.map_ids``. Return the index of the first kept id larger than
    ``max_kept``, -1 if there is none."""
    # A direct-mapped cache of recent ids. Most voxels do not even reach it, as they equal the voxel
    # before.
    is_cached = np.zeros(_SLOTS, np.bool_)
    cached_ids = np.empty(_SLOTS, np.uint64)
    cached_values = np.empty(_SLOTS, np.uint64)
    before, value = np.uint64(0), np.uint64(0)
    for n in range(len(ids)):
        key = np.uint64(ids[n])
        if n == 0 or key != before:
            before = key
            slot = (key ^ (key >> np.uint64(12))) & np.uint64(_SLOTS - 1)
            if is_cached[slot] and cached_ids[slot] == key:
                value = cached_values[slot]
            else:
                is_mapped = False
                if key <= last and is_dense:
                    is_mapped = True
                    value = np.uint64(values[key])
                elif key <= last:
                    index = _first_not_less(keys, key)
                    if index < len(keys) and keys[index] == key:
                        is_mapped = True
                        value = np.uint64(values[index])
                if not is_mapped:
                    value = key if keeps else np.uint64(0)
                    if value > max_kept:
                        return n
                is_cached[slot], cached_ids[slot], cached_values[slot] = True, key, value
        out[n] = value
    return -1


_unsigned = np.uint64


@kernel
def count_values(values, counts):
    """Count unsigned values in four rows of counters in turn; see ``_LANES`` in ``values``."""
    whole = values.size // 4
    for n in range(_unsigned(whole)):
        at = n * _unsigned(4)
        counts[0, values[at]] += 1
        counts[1, values[at + _unsigned(1)]] += 1
        counts[2, values[at + _unsigned(2)]] += 1
        counts[3, values[at + _unsigned(3)]] += 1
    for n in range(4 * whole, values.size):
        counts[0, values[n]] += 1
