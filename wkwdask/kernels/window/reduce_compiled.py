"""Compiled loops for windows of any size, over flat memory.

The inner loop runs over the windows of a row and takes one voxel of each: LLVM turns this form into
vector code. All windows of a call have the same extent; ``Windows`` holds their layout. With
windows a, b, c of 2 x 2 x 1 voxels::

    memory         a0 a1 b0 b1 c0 c1 ...
                   a2 a3 b2 b3 c2 c3 ...
    inner loop 1   a0    b0    c0          totals of a, b, c, ...
    inner loop 2   a2    b2    c2          z is the fastest axis, then y, then x

The mean adds row by row. Median and mode sort the windows side by side with a sorting network: it
has no branches, and takes n log^2 n steps for n voxels.
"""

from __future__ import annotations

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

# Indices into flat memory are unsigned: a signed index could be negative, and numba's code for that
# (adding the length) prevents vector code.
_unsigned = np.uint64
_u32 = np.uint32

# --- mean: rounds half to even, exact for every integer type; floats sum in their own type, z
# fastest --------------------------------


@kernel
def mean_integer(source, windows, out, ignore_zero, sums):
    """Mean of integers whose sums are below 2^52."""
    # A float64 has 53 bits. A quotient with a tie, .5, is exact in it, and no other quotient lies
    # close enough to a tie to be rounded onto one, so np.rint rounds it like the exact quotient.
    totals, _, counts = sums
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            _sum_row(source, windows, j, k, ignore_zero, totals, counts)
            to = _unsigned(j * windows.out_strides[1] + k * windows.out_strides[2])
            for i in range(_unsigned(windows.shape[0])):
                out[to + i] = np.rint(np.float64(totals[i]) / np.float64(counts[i]))


@kernel
def mean_float(source, windows, out, ignore_zero, sums):
    """Mean of floats. Zeros do not change a sum; ignoring them only changes the count."""
    totals, _, counts = sums
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            _sum_row(source, windows, j, k, ignore_zero, totals, counts)
            to = _unsigned(j * windows.out_strides[1] + k * windows.out_strides[2])
            for i in range(_unsigned(windows.shape[0])):
                out[to + i] = totals[i] / counts[i]


@helper
def _sum_row(source, windows, j, k, ignore_zero, totals, counts):
    """Sum each window of a row, z fastest, and count its voxels. A count of 0 becomes 1, so the
    mean of no voxels is 0."""
    width, step = _unsigned(windows.shape[0]), _unsigned(windows.steps[0])
    totals[:] = 0
    counts[:] = 0 if ignore_zero else windows.extent[0] * windows.extent[1] * windows.extent[2]
    corner = j * windows.steps[1] + k * windows.steps[2]
    for x in range(windows.extent[0]):
        for y in range(windows.extent[1]):
            for z in range(windows.extent[2]):
                at = _unsigned(corner + x + y * windows.strides[1] + z * windows.strides[2])
                if step == _unsigned(2):
                    # the same loop with a constant step, which LLVM vectorizes
                    for i in range(width):
                        totals[i] += source[at + i * _unsigned(2)]
                else:
                    for i in range(width):
                        totals[i] += source[at + i * step]
                if ignore_zero:
                    for i in range(width):
                        counts[i] += source[at + i * step] != 0
    if ignore_zero:
        for i in range(width):
            counts[i] = max(counts[i], counts.dtype.type(1))


@kernel
def mean_long(source, windows, out, ignore_zero, sums):
    """Mean of integers of any width: upper and lower 32 bits have separate sums, so none overflows
    64 bits."""
    totals, lower, counts = sums
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            _sum_halves_of_row(source, windows, j, k, ignore_zero, totals, lower, counts)
            to = _unsigned(j * windows.out_strides[1] + k * windows.out_strides[2])
            for i in range(_unsigned(windows.shape[0])):
                out[to + i] = _mean_of_halves(totals[i], lower[i], counts[i], totals.dtype.type)


@helper
def _sum_halves_of_row(source, windows, j, k, ignore_zero, totals, lower, counts):
    number = totals.dtype.type
    step = _unsigned(windows.steps[0])
    totals[:] = 0
    lower[:] = 0
    counts[:] = 0
    corner = j * windows.steps[1] + k * windows.steps[2]
    for x in range(windows.extent[0]):
        for y in range(windows.extent[1]):
            for z in range(windows.extent[2]):
                at = _unsigned(corner + x + y * windows.strides[1] + z * windows.strides[2])
                for i in range(_unsigned(windows.shape[0])):
                    value = number(source[at + i * step])
                    totals[i] += value >> number(32)
                    lower[i] += value & number(0xFFFFFFFF)
                    counts[i] += number(not ignore_zero or value != number(0))


@helper
def _mean_of_halves(upper, lower, count, number):
    """Divide ``upper * 2^32 + lower`` by the count, half to even; the mean of no voxels is 0."""
    # Long division in base 2^32: the remainder of the upper half, below ``count``, moves down into
    # the lower half. The upper half of a negative integer is its arithmetic shift, and numba floors
    # ``//``, so remainders are never negative and the rule for ties holds for negative means too.
    count = max(count, number(1))
    quotient = upper // count
    rest = ((upper - quotient * count) << number(32)) + lower
    more = rest // count
    twice = (rest - more * count) << number(1)
    up = twice > count or (twice == count and (more & number(1)) == number(1))
    return (quotient << number(32)) + more + number(up)


# --- median and mode: windows are sorted side by side, one in each lane
# ---------------------------------------------------------------


@kernel
def median_integer(source, windows, out, ignore_zero, lanes):
    """Median of integers: the mean of the two middle values, rounded toward zero."""
    values, valid, nans, _, _, results, highest, _ = lanes
    zero, one = values.dtype.type(0), values.dtype.type(1)
    for first in range(0, windows.shape[1] * windows.shape[2], results.size // windows.shape[0]):
        rows = _sort_rows(source, windows, first, ignore_zero, values, valid, nans, highest)
        for i in range(_unsigned(results.size)):
            lower, upper = _middle(values, valid[i], i)
            results[i] = middle_integer(lower, upper, one) if valid[i] else zero
        _store(results, windows, first, rows, out)


@kernel
def median_float(source, windows, out, ignore_zero, lanes):
    """Median of floats: the mean of the two middle values; NaN if the window holds NaN."""
    values, valid, nans, _, _, results, highest, nan = lanes
    number = values.dtype.type
    for first in range(0, windows.shape[1] * windows.shape[2], results.size // windows.shape[0]):
        rows = _sort_rows(source, windows, first, ignore_zero, values, valid, nans, highest)
        for i in range(_unsigned(results.size)):
            lower, upper = _middle(values, valid[i], i)
            # the sum of two equal large values could be infinite
            middle = lower if lower == upper else (lower + upper) / number(2)
            middle = middle if valid[i] else number(0)
            results[i] = nan if nans[i] else middle
        _store(results, windows, first, rows, out)


@helper
def _middle(values, valid, i):
    """Return the two middle values among the valid ones of a lane; for an odd count, the same value
    twice."""
    count = _unsigned(max(valid, _u32(1)))
    return values[(count - _unsigned(1)) >> _unsigned(1), i], values[count >> _unsigned(1), i]


@helper
def middle_integer(a, b, one):
    """Return the mean of two integers, rounded toward zero, in their type, which is that of
    ``one``."""
    # a + b could overflow. It equals 2 (a & b) + (a ^ b): shared bits count twice, others once. The
    # shift rounds down, so a negative odd sum needs 1 more. ``one`` has the type of the values
    # because numba makes uint64 and a plain 1 a float64.
    zero = one ^ one
    floor = (a & b) + ((a ^ b) >> one)
    return floor + ((a ^ b) & one if floor < zero else zero)


@kernel
def mode(source, windows, out, ignore_zero, lanes):
    """Mode of any type: the most frequent value, the smallest one in a tie. NaN counts only if
    there is no other value."""
    values, valid, nans, run, longest, results, highest, nan = lanes
    for first in range(0, windows.shape[1] * windows.shape[2], results.size // windows.shape[0]):
        rows = _sort_rows(source, windows, first, ignore_zero, values, valid, nans, highest)
        for i in range(_unsigned(results.size)):
            results[i] = values[_unsigned(0), i]
            run[i] = _u32(1)
            longest[i] = _u32(1)
        # Values are sorted, so equal ones form runs, and the first of the longest runs holds the
        # smallest value.
        for n in range(_unsigned(1), _unsigned(values.shape[0])):
            for i in range(_unsigned(results.size)):
                equal = (
                    _u32(run[i] + _u32(1))
                    if values[n, i] == values[n - _unsigned(1), i]
                    else _u32(1)
                )
                is_best = equal > longest[i] and n < valid[i]
                run[i] = equal
                longest[i] = equal if is_best else longest[i]
                results[i] = values[n, i] if is_best else results[i]
        for i in range(_unsigned(results.size)):
            nothing = nan if nans[i] else values.dtype.type(0)
            results[i] = results[i] if valid[i] else nothing
        _store(results, windows, first, rows, out)


@helper
def _sort_rows(source, windows, first, ignore_zero, values, valid, nans, highest):
    """Gather the windows of some rows into lanes, mask the values that do not count, and sort each
    lane. Return the number of rows."""
    rows = _gather(source, windows, first, values)
    _mask_ignored(values, valid, nans, ignore_zero, highest)
    _sort(values)
    return rows


@helper
def _gather(source, windows, first, values):
    width, step = _unsigned(windows.shape[0]), _unsigned(windows.steps[0])
    rows = min(values.shape[1] // windows.shape[0], windows.shape[1] * windows.shape[2] - first)
    for row in range(rows):
        corner = (first + row) % windows.shape[1] * windows.steps[1] + (
            first + row
        ) // windows.shape[1] * windows.steps[2]
        lane = _unsigned(row * windows.shape[0])
        n = _unsigned(0)
        for x in range(windows.extent[0]):
            for y in range(windows.extent[1]):
                for z in range(windows.extent[2]):
                    at = _unsigned(corner + x + y * windows.strides[1] + z * windows.strides[2])
                    if step == _unsigned(2):
                        # the same loop with a constant step, which LLVM vectorizes
                        for i in range(width):
                            values[n, lane + i] = source[at + i * _unsigned(2)]
                    else:
                        for i in range(width):
                            values[n, lane + i] = source[at + i * step]
                    n += _unsigned(1)
    return rows


@helper
def _mask_ignored(values, valid, nans, ignore_zero, highest):
    """Replace NaN and ignored zeros by the highest value, which sorts after all valid ones, and
    count the valid values of each lane."""
    nans[:] = 0
    valid[:] = values.shape[0]
    for n in range(_unsigned(values.shape[0])):
        for i in range(_unsigned(valid.size)):
            value = values[n, i]
            is_nan = value != value
            is_ignored = is_nan or (ignore_zero and value == 0)
            valid[i] -= _u32(is_ignored)
            nans[i] += _u32(is_nan)
            values[n, i] = highest if is_ignored else value


@helper
def _sort(values):
    """Sort each lane by merge exchange, a network for any number of values (Knuth, The Art of
    Computer Programming, volume 3, 5.2.2, algorithm M)."""
    count = values.shape[0]
    largest = 1
    while 2 * largest < count:
        largest *= 2
    p = largest
    while p > 0:
        q, r, distance = largest, 0, p
        while distance > 0:
            for n in range(count - distance):
                if n & p == r:
                    _exchange(values, _unsigned(n), _unsigned(n + distance))
            distance = q - p
            q //= 2
            r = p
        p //= 2


@helper
def _exchange(values, n, m):
    """Sort two values of every lane. LLVM vectorizes this loop only in a separate function."""
    for i in range(_unsigned(values.shape[1])):
        a, b = values[n, i], values[m, i]
        is_out_of_order = b < a
        values[n, i] = b if is_out_of_order else a
        values[m, i] = a if is_out_of_order else b


@helper
def _store(results, windows, first, rows, out):
    """Copy the results of some rows to the output."""
    for row in range(rows):
        at = first + row
        to = _unsigned(
            at % windows.shape[1] * windows.out_strides[1]
            + at // windows.shape[1] * windows.out_strides[2]
        )
        lane = _unsigned(row * windows.shape[0])
        for i in range(_unsigned(windows.shape[0])):
            out[to + i] = results[lane + i]
