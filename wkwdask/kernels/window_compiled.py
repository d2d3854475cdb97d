"""Window reducers in compiled loops over 3-D Fortran arrays (x, y, z): the only form that LLVM turns into vector code.

A reducer of eight or four values is written out without branches; windows of any other size, and windows that the border of the
bounding box cuts, go through the general reducers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import helper, kernel

_u16 = np.uint16

# --- mean: round half to even, exact for every integer type; floats sum in their own type, z fastest ---------------------------------


@helper
def _mean_of(values: Any, count: Any) -> Any:
    """Mean of 64-bit integers by quotient and remainder of each value, so that no sum leaves its type."""
    divisor = values.dtype.type(count)
    whole = values[0] // divisor
    rest = np.int64(values[0] - whole * divisor)
    for i in range(1, count):
        quotient = values[i] // divisor
        whole += quotient
        rest += np.int64(values[i] - quotient * divisor)
    whole += values.dtype.type(rest // count)
    rest %= count
    odd = whole % values.dtype.type(2) != 0
    if 2 * rest > count or (2 * rest == count and odd):
        whole += values.dtype.type(1)
    return whole


@kernel
def mean_integer(source: Any, low: Any, high: Any, factor: Any, out: Any, out_low: Any, out_high: Any, values: Any) -> None:
    """General mean of integers of any width."""
    for k in range(out_low[2], out_high[2]):
        for j in range(out_low[1], out_high[1]):
            for i in range(out_low[0], out_high[0]):
                count = _collect(source, low, high, factor, i, j, k, values)
                if count:
                    out[i, j, k] = _mean_of(values, count)


@kernel
def mean_float(source: Any, low: Any, high: Any, factor: Any, out: Any, out_low: Any, out_high: Any, values: Any) -> None:
    """General mean of floats."""
    for k in range(out_low[2], out_high[2]):
        for j in range(out_low[1], out_high[1]):
            for i in range(out_low[0], out_high[0]):
                count = _collect(source, low, high, factor, i, j, k, values)
                if count:
                    total = values[0]
                    for n in range(1, count):
                        total += values[n]
                    out[i, j, k] = total / source.dtype.type(count)


@kernel
def mean_222_integer(source: Any, out: Any) -> None:
    """Mean over 2 x 2 x 2 of integers of at most 32 bits."""
    for k in range(out.shape[2]):
        for j in range(out.shape[1]):
            for i in range(out.shape[0]):
                x, y, z = 2 * i, 2 * j, 2 * k
                total = (
                    np.int64(source[x, y, z]) + source[x, y, z + 1] + source[x, y + 1, z] + source[x, y + 1, z + 1]
                    + source[x + 1, y, z] + source[x + 1, y, z + 1] + source[x + 1, y + 1, z] + source[x + 1, y + 1, z + 1]
                )  # fmt: skip
                out[i, j, k] = (total + 3 + ((total >> 3) & 1)) >> 3


@kernel
def mean_222_uint8(source: Any, out: Any) -> None:
    """Mean over 2 x 2 x 2 of bytes in 16 bits throughout, which LLVM turns into six times as fast code as 64-bit sums."""
    for k in range(out.shape[2]):
        for j in range(out.shape[1]):
            for i in range(out.shape[0]):
                x, y, z = 2 * i, 2 * j, 2 * k
                near = _u16(_u16(source[x, y, z]) + _u16(source[x + 1, y, z])) + _u16(_u16(source[x, y + 1, z]) + _u16(source[x + 1, y + 1, z]))
                far = _u16(_u16(source[x, y, z + 1]) + _u16(source[x + 1, y, z + 1])) + _u16(_u16(source[x, y + 1, z + 1]) + _u16(source[x + 1, y + 1, z + 1]))
                total = _u16(_u16(near) + _u16(far))
                out[i, j, k] = _u16(_u16(total + _u16(3)) + _u16(_u16(total >> _u16(3)) & _u16(1))) >> _u16(3)


@kernel
def mean_221_integer(source: Any, out: Any) -> None:
    """Mean over 2 x 2 x 1 of integers of at most 32 bits."""
    for k in range(out.shape[2]):
        for j in range(out.shape[1]):
            for i in range(out.shape[0]):
                x, y = 2 * i, 2 * j
                total = np.int64(source[x, y, k]) + source[x, y + 1, k] + source[x + 1, y, k] + source[x + 1, y + 1, k]
                out[i, j, k] = (total + 1 + ((total >> 2) & 1)) >> 2


@kernel
def mean_222_float(source: Any, out: Any) -> None:
    """Mean over 2 x 2 x 2 of floats, in the order of the general mean."""
    for k in range(out.shape[2]):
        for j in range(out.shape[1]):
            for i in range(out.shape[0]):
                x, y, z = 2 * i, 2 * j, 2 * k
                total = source[x, y, z] + source[x, y, z + 1] + source[x, y + 1, z] + source[x, y + 1, z + 1]
                total = total + source[x + 1, y, z] + source[x + 1, y, z + 1] + source[x + 1, y + 1, z] + source[x + 1, y + 1, z + 1]
                out[i, j, k] = total / source.dtype.type(8)


@kernel
def mean_221_float(source: Any, out: Any) -> None:
    """Mean over 2 x 2 x 1 of floats, in the order of the general mean."""
    for k in range(out.shape[2]):
        for j in range(out.shape[1]):
            for i in range(out.shape[0]):
                x, y = 2 * i, 2 * j
                total = source[x, y, k] + source[x, y + 1, k] + source[x + 1, y, k] + source[x + 1, y + 1, k]
                out[i, j, k] = total / source.dtype.type(4)


# --- median: the mean of the two middle values, toward zero, at full width -----------------------------------------------------------


@helper
def _middle_integer(a: Any, b: Any, one: Any) -> Any:
    """Mean of two integers, toward zero, without leaving their type, which is that of ``one``: uint64 and a plain 1 would make a float."""
    zero = one ^ one
    floor = (a & b) + ((a ^ b) >> one)
    return floor + ((a ^ b) & one if floor < zero else zero)


@kernel
def median_integer(source: Any, low: Any, high: Any, factor: Any, out: Any, out_low: Any, out_high: Any, values: Any) -> None:
    """General median of integers."""
    for k in range(out_low[2], out_high[2]):
        for j in range(out_low[1], out_high[1]):
            for i in range(out_low[0], out_high[0]):
                count = _collect(source, low, high, factor, i, j, k, values)
                if count:
                    _sort(values, count)
                    upper = values[count // 2]
                    out[i, j, k] = upper if count % 2 else _middle_integer(values[count // 2 - 1], upper, source.dtype.type(1))


@kernel
def median_float(source: Any, low: Any, high: Any, factor: Any, out: Any, out_low: Any, out_high: Any, values: Any) -> None:
    """General median of floats; NaN in the window gives NaN."""
    for k in range(out_low[2], out_high[2]):
        for j in range(out_low[1], out_high[1]):
            for i in range(out_low[0], out_high[0]):
                count = _collect(source, low, high, factor, i, j, k, values)
                if not count:
                    continue
                has_nan = False
                for n in range(count):
                    has_nan |= np.isnan(values[n])
                if has_nan:
                    out[i, j, k] = np.nan
                    continue
                _sort(values, count)
                upper = values[count // 2]
                out[i, j, k] = upper if count % 2 else (values[count // 2 - 1] + upper) / source.dtype.type(2)


@helper
def _order(a: Any, b: Any) -> Any:
    return min(a, b), max(a, b)


@helper
def _middle_of_8(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """The two middle values of eight: two sorted fours, then the half of a bitonic merge that decides the middle."""
    a, b = _order(a, b)
    c, d = _order(c, d)
    a, c = _order(a, c)
    b, d = _order(b, d)
    b, c = _order(b, c)
    e, f = _order(e, f)
    g, h = _order(g, h)
    e, g = _order(e, g)
    f, h = _order(f, h)
    f, g = _order(f, g)
    # a <= b <= c <= d and e <= f <= g <= h: the lower four of all eight are these minima, the upper four the maxima
    lower = max(max(min(a, h), min(b, g)), max(min(c, f), min(d, e)))
    upper = min(min(max(a, h), max(b, g)), min(max(c, f), max(d, e)))
    return lower, upper


@kernel
def median_222_integer(source: Any, out: Any) -> None:
    """Median over 2 x 2 x 2 of integers."""
    for k in range(out.shape[2]):
        for j in range(out.shape[1]):
            for i in range(out.shape[0]):
                x, y, z = 2 * i, 2 * j, 2 * k
                lower, upper = _middle_of_8(
                    source[x, y, z], source[x + 1, y, z], source[x, y + 1, z], source[x + 1, y + 1, z],
                    source[x, y, z + 1], source[x + 1, y, z + 1], source[x, y + 1, z + 1], source[x + 1, y + 1, z + 1],
                )  # fmt: skip
                out[i, j, k] = _middle_integer(lower, upper, source.dtype.type(1))


@kernel
def median_221_integer(source: Any, out: Any) -> None:
    """Median over 2 x 2 x 1 of integers."""
    for k in range(out.shape[2]):
        for j in range(out.shape[1]):
            for i in range(out.shape[0]):
                x, y = 2 * i, 2 * j
                a, b = _order(source[x, y, k], source[x + 1, y, k])
                c, d = _order(source[x, y + 1, k], source[x + 1, y + 1, k])
                out[i, j, k] = _middle_integer(max(a, c), min(b, d), source.dtype.type(1))


# --- mode: the most frequent value, the smallest of those in a tie; NaN is no value --------------------------------------------------


@kernel
def mode(source: Any, low: Any, high: Any, factor: Any, out: Any, out_low: Any, out_high: Any, values: Any) -> None:
    """General mode of any type."""
    for k in range(out_low[2], out_high[2]):
        for j in range(out_low[1], out_high[1]):
            for i in range(out_low[0], out_high[0]):
                count = _collect(source, low, high, factor, i, j, k, values)
                if not count:
                    continue
                best, best_count = values[0], 0
                for n in range(count):
                    same = 0
                    for m in range(count):
                        same += values[m] == values[n]
                    if same > best_count or (same == best_count and values[n] < best):
                        best, best_count = values[n], same
                out[i, j, k] = best


@helper
def _mode_of_4(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Mode of four: sort them; then the lowest value that starts the longest stretch of equal ones wins."""
    a, b = _order(a, b)
    c, d = _order(c, d)
    a, c = _order(a, c)
    b, d = _order(b, d)
    b, c = _order(b, c)
    best = a
    best = c if c == d else best
    best = b if b == c else best
    best = a if a == b else best
    best = b if b == d else best
    return a if a == c else best


@helper
def _mode_of_8(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """Mode of eight, likewise: stretches of two, three, four and five; a longer one can only start at the same values again."""
    a, b = _order(a, b)
    c, d = _order(c, d)
    e, f = _order(e, f)
    g, h = _order(g, h)
    a, c = _order(a, c)
    b, d = _order(b, d)
    e, g = _order(e, g)
    f, h = _order(f, h)
    b, c = _order(b, c)
    f, g = _order(f, g)
    a, e = _order(a, e)
    d, h = _order(d, h)
    b, f = _order(b, f)
    c, g = _order(c, g)
    b, e = _order(b, e)
    d, g = _order(d, g)
    c, e = _order(c, e)
    d, f = _order(d, f)
    d, e = _order(d, e)
    best = a
    best = g if g == h else best
    best = f if f == g else best
    best = e if e == f else best
    best = d if d == e else best
    best = c if c == d else best
    best = b if b == c else best
    best = a if a == b else best
    best = f if f == h else best
    best = e if e == g else best
    best = d if d == f else best
    best = c if c == e else best
    best = b if b == d else best
    best = a if a == c else best
    best = e if e == h else best
    best = d if d == g else best
    best = c if c == f else best
    best = b if b == e else best
    best = a if a == d else best
    best = d if d == h else best
    best = c if c == g else best
    best = b if b == f else best
    return a if a == e else best


@kernel
def mode_222_integer(source: Any, out: Any) -> None:
    """Mode over 2 x 2 x 2 of integers."""
    for k in range(out.shape[2]):
        for j in range(out.shape[1]):
            for i in range(out.shape[0]):
                x, y, z = 2 * i, 2 * j, 2 * k
                out[i, j, k] = _mode_of_8(
                    source[x, y, z], source[x + 1, y, z], source[x, y + 1, z], source[x + 1, y + 1, z],
                    source[x, y, z + 1], source[x + 1, y, z + 1], source[x, y + 1, z + 1], source[x + 1, y + 1, z + 1],
                )  # fmt: skip


@kernel
def mode_221_integer(source: Any, out: Any) -> None:
    """Mode over 2 x 2 x 1 of integers."""
    for k in range(out.shape[2]):
        for j in range(out.shape[1]):
            for i in range(out.shape[0]):
                x, y = 2 * i, 2 * j
                out[i, j, k] = _mode_of_4(source[x, y, k], source[x + 1, y, k], source[x, y + 1, k], source[x + 1, y + 1, k])


# --- general windows ------------------------------------------------------------------------------------------------------------------


@helper
def _collect(source: Any, low: Any, high: Any, factor: Any, i: Any, j: Any, k: Any, values: Any) -> Any:
    """Gather the voxels of one window that lie inside the box, z fastest; returns how many."""
    count = 0
    for x in range(max(low[0], i * factor[0]), min(high[0], (i + 1) * factor[0])):
        for y in range(max(low[1], j * factor[1]), min(high[1], (j + 1) * factor[1])):
            for z in range(max(low[2], k * factor[2]), min(high[2], (k + 1) * factor[2])):
                values[count] = source[x, y, z]
                count += 1
    return count


@helper
def _sort(values: Any, count: Any) -> None:
    for n in range(1, count):
        value = values[n]
        at = n
        while at > 0 and values[at - 1] > value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value
