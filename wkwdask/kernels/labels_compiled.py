"""Tables of labels in compiled loops: voxels run by run along x, each run looked up once in a hash table with open addressing.

Arrays are flat memory, x fastest. Callers have checked all bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import helper, kernel
from wkwdask.kernels.labels_layout import COUNT, HIGH, LIMB_BITS, LOW, NUM_PLACES, SUM, UPPER_SUM

_FREE = -1
_STRETCH = 8  # voxels that are compared at once
_LIMB = (1 << LIMB_BITS) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplier: neighbouring labels go to slots far apart
_unsigned = np.uint64
_FARTHEST = np.int64((1 << 63) - 1)


@helper
def _find(key: Any, slots: Any, keys: Any) -> Any:
    """Give the slot of a label, or the free one where it belongs. There is always a free one: at most half of them are taken."""
    mask = _unsigned(slots.size - 1)
    hashed = key * _GOLDEN
    slot = (hashed ^ hashed >> _unsigned(32)) & mask
    while slots[slot] != _FREE and keys[slots[slot]] != key:
        slot = slot + _unsigned(1) & mask
    return slot


@helper
def _grown(slots: Any, keys: Any, places: Any, used: Any) -> Any:
    """Double the room."""
    more_slots = np.full(2 * slots.size, _FREE, np.int64)
    more_keys = np.empty(2 * keys.size, np.uint64)
    more_places = np.empty((2 * keys.size, NUM_PLACES), np.int64)
    more_keys[:used] = keys[:used]
    more_places[:used] = places[:used]
    for row in range(used):
        more_slots[_find(more_keys[row], more_slots, more_keys)] = row
    return more_slots, more_keys, more_places


@helper
def _clear_place(place: Any) -> None:
    for n in range(NUM_PLACES):
        place[n] = 0
    for axis in range(3):
        place[LOW + axis] = _FARTHEST
        place[HIGH + axis] = -_FARTHEST


@kernel
def add_rows(labels: Any, slots: Any, keys: Any, places: Any, used: Any, rows: Any) -> Any:
    """Find the row of each label, with a new one for a label that is not there; gives the table, which may have grown."""
    for n in range(labels.size):
        key = _unsigned(labels[n])
        slot = _find(key, slots, keys)
        if slots[slot] == _FREE:
            if used == keys.size:
                slots, keys, places = _grown(slots, keys, places, used)
                slot = _find(key, slots, keys)
            slots[slot] = used
            keys[used] = key
            _clear_place(places[used])
            used += 1
        rows[n] = slots[slot]
    return slots, keys, places, used


@helper
def _add_run(place: Any, x: Any, stop: Any, y: Any, z: Any) -> None:
    count = stop - x
    place[COUNT] += count
    place[LOW] = min(place[LOW], x)
    place[LOW + 1] = min(place[LOW + 1], y)
    place[LOW + 2] = min(place[LOW + 2], z)
    place[HIGH] = max(place[HIGH], stop)
    place[HIGH + 1] = max(place[HIGH + 1], y + 1)
    place[HIGH + 2] = max(place[HIGH + 2], z + 1)
    total_x = place[SUM] + count * (x + stop - 1) // 2
    total_y = place[SUM + 1] + count * y
    total_z = place[SUM + 2] + count * z
    place[SUM] = total_x & _LIMB
    place[SUM + 1] = total_y & _LIMB
    place[SUM + 2] = total_z & _LIMB
    place[UPPER_SUM] += total_x >> LIMB_BITS
    place[UPPER_SUM + 1] += total_y >> LIMB_BITS
    place[UPPER_SUM + 2] += total_z >> LIMB_BITS


@kernel
def add_voxels(
    labels: Any, shape: Any, corner: Any, ignore_zero: Any, slots: Any, keys: Any, places: Any, used: Any, run_rows: Any, run_stops: Any
) -> Any:  # fmt: skip
    """Add the voxels of a box; gives the table, which may have grown, and the number of runs, which are noted where there is room for them.

    A run of zeros that are ignored is noted with the row -1.
    """
    width, height, depth = shape
    num_runs = 0
    notes = run_rows.size > 0
    for z in range(depth):
        for y in range(height):
            base = _unsigned((z * height + y) * width)
            x = 0
            while x < width:
                value = labels[base + _unsigned(x)]
                stop = x + 1
                while stop + _STRETCH <= width:
                    at = base + _unsigned(stop)
                    differs = labels[at] ^ value
                    for n in range(1, _STRETCH):
                        differs |= labels[at + _unsigned(n)] ^ value
                    if differs != 0:
                        break
                    stop += _STRETCH
                while stop < width and labels[base + _unsigned(stop)] == value:
                    stop += 1
                row = np.int64(_FREE)
                if value != 0 or not ignore_zero:
                    key = _unsigned(value)
                    slot = _find(key, slots, keys)
                    row = slots[slot]
                    if row == _FREE:
                        if used == keys.size:
                            slots, keys, places = _grown(slots, keys, places, used)
                            slot = _find(key, slots, keys)
                        row = used
                        slots[slot] = row
                        keys[row] = key
                        _clear_place(places[row])
                        used += 1
                    _add_run(places[row], corner[0] + x, corner[0] + stop, corner[1] + y, corner[2] + z)
                if notes:
                    run_rows[num_runs] = row
                    run_stops[num_runs] = stop
                    num_runs += 1
                x = stop
    return slots, keys, places, used, num_runs


# --- values of a second layer, over the same runs -----------------------------------------------------------------------------------


@kernel
def add_integers(values: Any, width: Any, step: Any, run_rows: Any, run_stops: Any, totals: Any, extremes: Any) -> None:
    """Add values of up to 16 bits: exact sums of them and of their squares, in two limbs each."""
    line, begin = 0, 0
    for run in range(run_rows.size):
        row, stop = run_rows[run], run_stops[run]
        if row >= 0:
            low = high = values[_unsigned((line + begin) * step)]
            total, squares = np.int64(0), np.int64(0)
            for x in range(begin, stop):
                value = values[_unsigned((line + x) * step)]
                number = np.int64(value)
                total += number
                squares += number * number
                low = min(low, value)
                high = max(high, value)
            total += totals[row, 0]
            squares += totals[row, 2]
            totals[row, 0] = total & _LIMB
            totals[row, 1] += total >> LIMB_BITS
            totals[row, 2] = squares & _LIMB
            totals[row, 3] += squares >> LIMB_BITS
            extremes[row, 0] = min(extremes[row, 0], low)
            extremes[row, 1] = max(extremes[row, 1], high)
        begin = stop
        if stop == width:
            line, begin = line + width, 0


@kernel
def add_numbers(values: Any, width: Any, step: Any, run_rows: Any, run_stops: Any, totals: Any, extremes: Any) -> None:
    """Add values of any type as float64: how many there are, their sum, and the squares of their distances from the mean (Chan's update)."""
    line, begin = 0, 0
    for run in range(run_rows.size):
        row, stop = run_rows[run], run_stops[run]
        if row >= 0:
            low, high = extremes[row, 0], extremes[row, 1]
            first = np.float64(values[_unsigned((line + begin) * step)])
            total, offset, squares = 0.0, 0.0, 0.0
            for x in range(begin, stop):
                value = values[_unsigned((line + x) * step)]
                number = np.float64(value)
                total += number
                offset += number - first
                squares += (number - first) * (number - first)
                if value < low or value != value:  # NaN is the least and the greatest
                    low = value
                if value > high or value != value:
                    high = value
            count = np.float64(stop - begin)
            squares -= offset * offset / count
            before = totals[row, 0]
            if before > 0:
                distance = first + offset / count - totals[row, 1] / before
                squares += distance * distance * before * count / (before + count)
            totals[row, 0] = before + count
            totals[row, 1] += total
            totals[row, 2] += squares
            extremes[row, 0], extremes[row, 1] = low, high
        begin = stop
        if stop == width:
            line, begin = line + width, 0
