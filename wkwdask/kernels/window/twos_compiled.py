"""Window reducers written out for windows of 2 x 2 x 2 and 2 x 2 x 1, without branches, over flat memory.

``Windows`` says where the windows lie, all of them whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import helper, kernel
from wkwdask.kernels.window.reduce_compiled import middle_integer

_u16 = np.uint16
_unsigned = np.uint64  # of indices into flat memory, as in ``window_compiled``
_0, _1, _2 = _unsigned(0), _unsigned(1), _unsigned(2)


@helper
def _four(source: Any, at: Any, row: Any) -> Any:
    """The voxels of a window of 2 x 2 x 1, x fastest."""
    return source[at], source[at + _1], source[at + row], source[at + row + _1]


@helper
def _places(windows: Any, j: Any, k: Any) -> Any:
    """First voxel of a row of windows, and of its results."""
    return _unsigned(j * windows.steps[1] + k * windows.steps[2]), _unsigned(j * windows.out_strides[1] + k * windows.out_strides[2])


@kernel
def mean_222_integer(source: Any, windows: Any, out: Any) -> None:
    """Mean over 2 x 2 x 2 of integers of at most 32 bits."""
    row, plane = _unsigned(windows.strides[1]), _unsigned(windows.strides[2])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                a, b, c, d = _four(source, at + i * _2, row)
                e, f, g, h = _four(source, at + i * _2 + plane, row)
                total = np.int64(a) + b + c + d + e + f + g + h
                out[to + i] = (total + 3 + ((total >> 3) & 1)) >> 3


@kernel
def mean_222_uint8(source: Any, windows: Any, out: Any) -> None:
    """Mean over 2 x 2 x 2 of bytes in 16 bits throughout."""
    row, plane = _unsigned(windows.strides[1]), _unsigned(windows.strides[2])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                a, b, c, d = _four(source, at + i * _2, row)
                e, f, g, h = _four(source, at + i * _2 + plane, row)
                near = _u16(_u16(_u16(a) + _u16(b)) + _u16(_u16(c) + _u16(d)))
                far = _u16(_u16(_u16(e) + _u16(f)) + _u16(_u16(g) + _u16(h)))
                total = _u16(near + far)
                out[to + i] = _u16(_u16(total + _u16(3)) + _u16(_u16(total >> _u16(3)) & _u16(1))) >> _u16(3)


@kernel
def mean_221_integer(source: Any, windows: Any, out: Any) -> None:
    """Mean over 2 x 2 x 1 of integers of at most 32 bits."""
    row = _unsigned(windows.strides[1])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                a, b, c, d = _four(source, at + i * _2, row)
                total = np.int64(a) + b + c + d
                out[to + i] = (total + 1 + ((total >> 2) & 1)) >> 2


@kernel
def mean_222_float(source: Any, windows: Any, out: Any) -> None:
    """Mean over 2 x 2 x 2 of floats, z fastest, then y."""
    number = source.dtype.type
    row, plane = _unsigned(windows.strides[1]), _unsigned(windows.strides[2])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                a, b, c, d = _four(source, at + i * _2, row)
                e, f, g, h = _four(source, at + i * _2 + plane, row)
                out[to + i] = (number(0) + a + e + c + g + b + f + d + h) / number(8)


@kernel
def mean_221_float(source: Any, windows: Any, out: Any) -> None:
    """Mean over 2 x 2 x 1 of floats, y fastest."""
    number = source.dtype.type
    row = _unsigned(windows.strides[1])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                a, b, c, d = _four(source, at + i * _2, row)
                out[to + i] = (number(0) + a + c + b + d) / number(4)


# --- median: sorting networks, as far as they decide the middle ------------------------------------------------------------------------


@helper
def _order(a: Any, b: Any) -> Any:
    return min(a, b), max(a, b)


@helper
def _sorted_4(a: Any, b: Any, c: Any, d: Any) -> Any:
    a, b = _order(a, b)
    c, d = _order(c, d)
    a, c = _order(a, c)
    b, d = _order(b, d)
    b, c = _order(b, c)
    return a, b, c, d


@kernel
def median_222_integer(source: Any, windows: Any, out: Any) -> None:
    """Median over 2 x 2 x 2 of integers: two sorted fours, then the half of a bitonic merge that decides the middle."""
    one = source.dtype.type(1)
    row, plane = _unsigned(windows.strides[1]), _unsigned(windows.strides[2])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                a, b, c, d = _sorted_4(*_four(source, at + i * _2, row))
                e, f, g, h = _sorted_4(*_four(source, at + i * _2 + plane, row))
                # the lower four of all eight are these minima, the upper four the maxima
                lower = max(max(min(a, h), min(b, g)), max(min(c, f), min(d, e)))
                upper = min(min(max(a, h), max(b, g)), min(max(c, f), max(d, e)))
                out[to + i] = middle_integer(lower, upper, one)


@kernel
def median_221_integer(source: Any, windows: Any, out: Any) -> None:
    """Median over 2 x 2 x 1 of integers."""
    one = source.dtype.type(1)
    row = _unsigned(windows.strides[1])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                a, b, c, d = _four(source, at + i * _2, row)
                a, b = _order(a, b)
                c, d = _order(c, d)
                out[to + i] = middle_integer(max(a, c), min(b, d), one)


# --- mode: sort; then the lowest value that starts the longest stretch of equal ones wins ----------------------------------------------


@helper
def _longest_of_4(best: Any, starts: Any, ends: Any) -> Any:
    """Find the start of the longest stretch of four sorted values, the lowest of the longest; ``best`` if all have length one."""
    a, b, c, _ = starts
    _, bb, cc, dd = ends
    best = c if c == dd else best
    best = b if b == cc else best
    best = a if a == bb else best
    best = b if b == dd else best
    return a if a == cc else best


@helper
def _sorted_8(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    a, b, c, d = _sorted_4(a, b, c, d)
    e, f, g, h = _sorted_4(e, f, g, h)
    a, e = _order(a, e)
    d, h = _order(d, h)
    b, f = _order(b, f)
    c, g = _order(c, g)
    b, e = _order(b, e)
    d, g = _order(d, g)
    c, e = _order(c, e)
    d, f = _order(d, f)
    d, e = _order(d, e)
    return a, b, c, d, e, f, g, h


@helper
def _longest_of_8(best: Any, starts: Any, ends: Any) -> Any:
    """Do the same with eight: stretches of two, three, four and five; a longer one can only start at the same values again."""
    a, b, c, d, e, f, g, _ = starts
    _, bb, cc, dd, ee, ff, gg, hh = ends
    best = g if g == hh else best
    best = f if f == gg else best
    best = e if e == ff else best
    best = d if d == ee else best
    best = c if c == dd else best
    best = b if b == cc else best
    best = a if a == bb else best
    best = f if f == hh else best
    best = e if e == gg else best
    best = d if d == ff else best
    best = c if c == ee else best
    best = b if b == dd else best
    best = a if a == cc else best
    best = e if e == hh else best
    best = d if d == gg else best
    best = c if c == ff else best
    best = b if b == ee else best
    best = a if a == dd else best
    best = d if d == hh else best
    best = c if c == gg else best
    best = b if b == ff else best
    return a if a == ee else best


@kernel
def mode_222_integer(source: Any, windows: Any, out: Any) -> None:
    """Mode over 2 x 2 x 2 of integers."""
    row, plane = _unsigned(windows.strides[1]), _unsigned(windows.strides[2])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                values = _sorted_8(*_four(source, at + i * _2, row), *_four(source, at + i * _2 + plane, row))
                out[to + i] = _longest_of_8(values[0], values, values)


@kernel
def mode_221_integer(source: Any, windows: Any, out: Any) -> None:
    """Mode over 2 x 2 x 1 of integers."""
    row = _unsigned(windows.strides[1])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                values = _sorted_4(*_four(source, at + i * _2, row))
                out[to + i] = _longest_of_4(values[0], values, values)


# --- mode without zeros: a stretch of zeros must not be found. Its ends are set to one, which no zero equals and which nothing before a
# zero of the sorted values can be, so that each zero stands alone. -----------------------------------------------------------------------


@helper
def _not_zero(value: Any, other: Any) -> Any:
    return value if value != 0 else other


@kernel
def mode_nonzero_222_integer(source: Any, windows: Any, out: Any) -> None:
    """Mode over 2 x 2 x 2 of the integers that are not zero."""
    one = source.dtype.type(1)
    row, plane = _unsigned(windows.strides[1]), _unsigned(windows.strides[2])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                values = _sorted_8(*_four(source, at + i * _2, row), *_four(source, at + i * _2 + plane, row))
                a, b, c, d, e, f, g, h = values
                lowest = _not_zero(b, _not_zero(c, _not_zero(d, _not_zero(e, _not_zero(f, _not_zero(g, h))))))
                ends = (
                    a, _not_zero(b, one), _not_zero(c, one), _not_zero(d, one),
                    _not_zero(e, one), _not_zero(f, one), _not_zero(g, one), _not_zero(h, one),
                )  # fmt: skip
                out[to + i] = _longest_of_8(_not_zero(a, lowest), values, ends)


@kernel
def mode_nonzero_221_integer(source: Any, windows: Any, out: Any) -> None:
    """Mode over 2 x 2 x 1 of the integers that are not zero."""
    one = source.dtype.type(1)
    row = _unsigned(windows.strides[1])
    for k in range(windows.shape[2]):
        for j in range(windows.shape[1]):
            at, to = _places(windows, j, k)
            for i in range(_unsigned(windows.shape[0])):
                values = _sorted_4(*_four(source, at + i * _2, row))
                a, b, c, d = values
                lowest = _not_zero(a, _not_zero(b, _not_zero(c, d)))
                ends = (a, _not_zero(b, one), _not_zero(c, one), _not_zero(d, one))
                out[to + i] = _longest_of_4(lowest, values, ends)
