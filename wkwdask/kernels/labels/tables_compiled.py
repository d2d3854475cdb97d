"""Compiled loops of ``tables``: voxels go run by run along x, and each run is looked up once in a
hash table with open addressing.

Arrays are flat memory, x fastest. Callers have checked all bounds. A table is four values, which
travel together:

- ``slots``: row of the label in each hash slot, or -1; a power of two, twice the capacity
- ``keys``: label of each row
- ``extents``: voxels, extent and sums of coordinates of each row
- ``used``: number of rows in use
"""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import helper, kernel
from wkwdask.kernels.labels.layout import COUNT, HIGH, LIMB_BITS, LOW, NUM_COLUMNS, SUM, UPPER_SUM

_FREE = -1
_LIMB = (1 << LIMB_BITS) - 1
# Knuth's multiplier: neighbouring labels go to slots far apart
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_unsigned = np.uint64
_FARTHEST = np.int64((1 << 63) - 1)

# Tables grow before a hot loop, to hold every label that the loop may find. If a loop could replace
# its arrays, numba would count references in it.


@helper
def _find(key, slots, keys):
    """Return the slot of a label, or the free slot where it belongs. At most half of the slots are
    taken, so the search ends."""
    mask = _unsigned(slots.size - 1)
    hashed = key * _GOLDEN
    slot = (hashed ^ hashed >> _unsigned(32)) & mask
    while slots[slot] != _FREE and keys[_unsigned(slots[slot])] != key:
        slot = slot + _unsigned(1) & mask
    return slot


@helper
def _grown(slots, keys, extents, used):
    """Return the table with twice the capacity. Rows keep their numbers; only the slots are
    computed again."""
    more_slots = np.full(2 * slots.size, _FREE, np.int64)
    more_keys = np.empty(2 * keys.size, np.uint64)
    more_extents = np.empty((2 * keys.size, NUM_COLUMNS), np.int64)
    more_keys[:used] = keys[:used]
    more_extents[:used] = extents[:used]
    for row in range(used):
        more_slots[_find(more_keys[row], more_slots, more_keys)] = row
    return more_slots, more_keys, more_extents


@helper
def _insert(key, slot, slots, keys, extents, used):
    """Add a label without voxels. The caller has made sure of a free row."""
    slots[slot] = used
    keys[used] = key
    for n in range(NUM_COLUMNS):
        extents[used, n] = 0
    for axis in range(3):
        extents[used, LOW + axis] = _FARTHEST
        extents[used, HIGH + axis] = -_FARTHEST
    return used + 1


@helper
def _add_sum(extents, row, axis, total):
    total += extents[row, _unsigned(SUM + axis)]
    extents[row, _unsigned(SUM + axis)] = total & _LIMB
    extents[row, _unsigned(UPPER_SUM + axis)] += total >> LIMB_BITS


@helper
def _add_run(extents, row, x, stop, y, z):
    count = stop - x
    extents[row, COUNT] += count
    extents[row, LOW] = min(extents[row, LOW], x)
    extents[row, LOW + 1] = min(extents[row, LOW + 1], y)
    extents[row, LOW + 2] = min(extents[row, LOW + 2], z)
    extents[row, HIGH] = max(extents[row, HIGH], stop)
    extents[row, HIGH + 1] = max(extents[row, HIGH + 1], y + 1)
    extents[row, HIGH + 2] = max(extents[row, HIGH + 2], z + 1)
    _add_sum(extents, row, 0, count * (x + stop - 1) // 2)
    _add_sum(extents, row, 1, count * y)
    _add_sum(extents, row, 2, count * z)


@helper
def _add_extent(extents, row, other, n):
    """Add the statistics of a label in another table."""
    extents[row, COUNT] += other[n, COUNT]
    for axis in range(3):
        low, high, upper = (
            _unsigned(LOW + axis),
            _unsigned(HIGH + axis),
            _unsigned(UPPER_SUM + axis),
        )
        extents[row, low] = min(extents[row, low], other[n, low])
        extents[row, high] = max(extents[row, high], other[n, high])
        extents[row, upper] += other[n, upper]
        _add_sum(extents, row, axis, other[n, _unsigned(SUM + axis)])


@kernel
def add_rows(labels, other, slots, keys, extents, used, rows):
    """Add the rows of another table, and write the row of each to ``rows``. Return the table, which
    may have grown."""
    for n in range(_unsigned(labels.size)):
        key = _unsigned(labels[n])
        slot = _find(key, slots, keys)
        if slots[slot] == _FREE:
            if used == keys.size:
                slots, keys, extents = _grown(slots, keys, extents, used)
                slot = _find(key, slots, keys)
            used = _insert(key, slot, slots, keys, extents, used)
        rows[n] = slots[slot]
        _add_extent(extents, _unsigned(rows[n]), other, n)
    return slots, keys, extents, used


@helper
def _list_runs(line, stops):
    """Write the ends of the runs of a line to ``stops``, and return their number. ``stops`` is one
    longer than the line."""
    # No branch, which the processor could not predict at the borders of labels: each position is
    # written, and the count decides whether it stays.
    count, width = np.int64(0), line.size
    for x in range(_unsigned(width - 1)):
        stops[_unsigned(count)] = x + _unsigned(1)
        count += np.int64(line[x] != line[x + _unsigned(1)])
    stops[_unsigned(count)] = width
    return count + 1


@helper
def _add_line(
    line, stops, corner, y, z, ignore_zero, slots, keys, extents, used, run_rows, records
):
    x = 0
    for run in range(_unsigned(stops.size)):
        value, stop, row = line[_unsigned(x)], stops[run], np.int64(_FREE)
        if value != 0 or not ignore_zero:
            key = _unsigned(value)
            slot = _find(key, slots, keys)
            row = slots[slot]
            if row == _FREE:
                row = used
                used = _insert(key, slot, slots, keys, extents, used)
            _add_run(
                extents,
                _unsigned(row),
                corner[0] + x,
                corner[0] + stop,
                corner[1] + y,
                corner[2] + z,
            )
        if records:
            run_rows[run] = row
        x = stop
    return used


@kernel
def add_voxels(labels, shape, corner, ignore_zero, slots, keys, extents, used, run_rows, run_stops):
    """Add the voxels of a box. Return the table, which may have grown, and the number of recorded
    runs.

    Runs are recorded if ``run_rows`` has room for them, for the values of a second layer. A run of
    ignored zeros is recorded with the row -1.
    """
    width, height, depth = shape
    num_runs = 0
    records = run_rows.size > 0
    stops = np.empty(width + 1, np.int64)
    for z in range(depth):
        for y in range(height):
            begin = (z * height + y) * width
            line = labels[begin : begin + width]
            count = _list_runs(line, stops)
            while used + count > keys.size:
                slots, keys, extents = _grown(slots, keys, extents, used)
            used = _add_line(
                line,
                stops[:count],
                corner,
                y,
                z,
                ignore_zero,
                slots,
                keys,
                extents,
                used,
                run_rows[num_runs:],
                records,
            )
            if records:
                run_stops[num_runs : num_runs + count] = stops[:count]
                num_runs += count
    return slots, keys, extents, used, num_runs


# --- values of a second layer, over the same runs
# -----------------------------------------------------------------------------------


@kernel
def add_integers(values, width, step, run_rows, run_stops, totals, extremes):
    """Add values of up to 16 bits: exact sums of the values and of their squares, in two limbs
    each."""
    # ``line`` is the first voxel of the current line, ``begin`` the first x of the current run; a
    # run that ends at ``width`` ends its line.
    line, begin = 0, 0
    for run in range(run_rows.size):
        run_row, stop = run_rows[run], run_stops[run]
        if run_row >= 0:
            row = _unsigned(run_row)
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
def add_numbers(values, width, step, run_rows, run_stops, totals, extremes):
    """Add values of any type as float64: their number, their sum, and the sum of their squared
    distances from the mean."""
    # The moments of a run are taken relative to its first value: squares of the values themselves
    # would lose the variance of large, similar values. Then they are merged into those of the label
    # (see ``_merged_moments`` in ``tables``).
    line, begin = 0, 0
    for run in range(run_rows.size):
        run_row, stop = run_rows[run], run_stops[run]
        if run_row >= 0:
            row = _unsigned(run_row)
            low, high = extremes[row, 0], extremes[row, 1]
            first = np.float64(values[_unsigned((line + begin) * step)])
            total, offset, squares = 0.0, 0.0, 0.0
            for x in range(begin, stop):
                value = values[_unsigned((line + x) * step)]
                number = np.float64(value)
                total += number
                offset += number - first
                squares += (number - first) * (number - first)
                if value < low or value != value:  # one NaN makes both extremes NaN
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
