"""The compiled loops of ``values``."""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

_SLOTS = 4096  # ids that were looked up last; a large table is far from the processor


@helper
def _place(keys: Any, wanted: Any) -> Any:
    """Find the first of ascending keys that is not less."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def map_ids(ids: Any, keys: Any, values: Any, is_dense: Any, end: Any, keeps: Any, most_kept: Any, out: Any) -> Any:
    """Map ids; see ``remap.map_ids``. Gives the place of the first id that is kept though it is larger than ``most_kept``, -1 where there is none."""
    known = np.zeros(_SLOTS, np.bool_)
    known_ids = np.empty(_SLOTS, np.uint64)
    known_values = np.empty(_SLOTS, np.uint64)
    before, value = np.uint64(0), np.uint64(0)
    for n in range(len(ids)):
        wanted = np.uint64(ids[n])
        if n == 0 or wanted != before:
            before = wanted
            slot = (wanted ^ (wanted >> np.uint64(12))) & np.uint64(_SLOTS - 1)
            if known[slot] and known_ids[slot] == wanted:
                value = known_values[slot]
            else:
                is_named = False
                if wanted < end and is_dense:
                    is_named = True
                    value = np.uint64(values[wanted])
                elif wanted < end:
                    place = _place(keys, wanted)
                    if place < len(keys) and keys[place] == wanted:
                        is_named = True
                        value = np.uint64(values[place])
                if not is_named:
                    value = wanted if keeps else np.uint64(0)
                    if value > most_kept:
                        return n
                known[slot], known_ids[slot], known_values[slot] = True, wanted, value
        out[n] = value
    return -1


_unsigned = np.uint64


@kernel
def count_values(values: Any, counts: Any) -> None:
    """Count unsigned values in four rows of counters, by turns."""
    whole = values.size // 4
    for n in range(_unsigned(whole)):
        at = n * _unsigned(4)
        counts[0, values[at]] += 1
        counts[1, values[at + _unsigned(1)]] += 1
        counts[2, values[at + _unsigned(2)]] += 1
        counts[3, values[at + _unsigned(3)]] += 1
    for n in range(4 * whole, values.size):
        counts[0, values[n]] += 1
