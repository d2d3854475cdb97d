"""Compiled loops for whole windows of 2 x 2 x 2 and 2 x 2 x 1 voxels, the factors of nearly all
pyramids.

A kernel is a function of the voxels of one window, without branches, inside the loop of
``_for_each``. ``_specialized_kernel`` in ``reduce`` finds a kernel by its name,
``<method>[_nonzero]_<factor>_<type or kind>``. Results equal those of the general loops in
``reduce_compiled``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.kernels.compiler import helper, kernel
from wkwdask.kernels.window.reduce_compiled import middle_integer

if TYPE_CHECKING:
    from collections.abc import Callable

_u16 = np.uint16
_unsigned = np.uint64  # of indices into flat memory, as in ``reduce_compiled``
_1, _2 = _unsigned(1), _unsigned(2)


@helper
def _four(source, at, windows):
    """Voxels of a window of 2 x 2 x 1, x fastest."""
    # Names of the voxels in this module; e to h are the second plane:
    #
    #        x ->           x ->
    #   y   a  b       y   e  f
    #   |   c  d       |   g  h
    row = _unsigned(windows.strides[1])
    return source[at], source[at + _1], source[at + row], source[at + row + _1]


@helper
def _eight(source, at, windows):
    """Voxels of a window of 2 x 2 x 2, x fastest."""
    plane = _unsigned(windows.strides[2])
    return _four(source, at, windows) + _four(source, at + plane, windows)


def _for_each(voxels: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a function of the type and the voxels of one window: make it a kernel that
    loops over windows."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        # A loop with a call in it is no vector code, and LLVM does not inline a function this long.
        reduced = helper(function, inline=True)

        def loop(source, windows, out):
            for k in range(windows.shape[2]):
                for j in range(windows.shape[1]):
                    at = _unsigned(j * windows.steps[1] + k * windows.steps[2])
                    to = _unsigned(j * windows.out_strides[1] + k * windows.out_strides[2])
                    for i in range(_unsigned(windows.shape[0])):
                        window = voxels(source, at + i * _2, windows)
                        out[to + i] = reduced(source.dtype.type, *window)

        loop.__name__ = function.__name__  # names the file of the machine code
        return kernel(loop)

    return decorate


_for_each_square, _for_each_cube = _for_each(_four), _for_each(_eight)


@_for_each_cube
def mean_222_integer(number, a, b, c, d, e, f, g, h):
    """Mean over 2 x 2 x 2 of integers of at most 32 bits."""
    total = np.int64(a) + b + c + d + e + f + g + h
    # total / 8, half to even: adding 3 rounds .5 down; adding 1 more where the quotient is odd
    # rounds it up
    return (total + 3 + ((total >> 3) & 1)) >> 3


@_for_each_cube
def mean_222_uint8(number, a, b, c, d, e, f, g, h):
    """Mean over 2 x 2 x 2 of bytes. All arithmetic is in 16 bits, so a vector register holds four
    times as many windows as with int64."""
    near = _u16(_u16(_u16(a) + _u16(b)) + _u16(_u16(c) + _u16(d)))
    far = _u16(_u16(_u16(e) + _u16(f)) + _u16(_u16(g) + _u16(h)))
    total = _u16(near + far)
    return _u16(_u16(total + _u16(3)) + _u16(_u16(total >> _u16(3)) & _u16(1))) >> _u16(3)


@_for_each_square
def mean_221_integer(number, a, b, c, d):
    """Mean over 2 x 2 x 1 of integers of at most 32 bits."""
    total = np.int64(a) + b + c + d
    return (total + 1 + ((total >> 2) & 1)) >> 2


@_for_each_cube
def mean_222_float(number, a, b, c, d, e, f, g, h):
    """Mean over 2 x 2 x 2 of floats, summed z fastest, then y, as in ``mean_float``: the order
    decides the rounding."""
    return (number(0) + a + e + c + g + b + f + d + h) / number(8)


@_for_each_square
def mean_221_float(number, a, b, c, d):
    """Mean over 2 x 2 x 1 of floats, summed y fastest."""
    return (number(0) + a + c + b + d) / number(4)


# --- median: sorting networks, without the exchanges that do not affect the two middle values
# ------------------------------------------


@helper
def _order(a, b):
    return min(a, b), max(a, b)


@helper
def _sorted_4(a, b, c, d):
    a, b = _order(a, b)
    c, d = _order(c, d)
    a, c = _order(a, c)
    b, d = _order(b, d)
    b, c = _order(b, c)
    return a, b, c, d


@_for_each_cube
def median_222_integer(number, *voxels):
    """Median over 2 x 2 x 2 of integers: sort two fours, then do the first step of a bitonic
    merge."""
    a, b, c, d = _sorted_4(*voxels[:4])
    e, f, g, h = _sorted_4(*voxels[4:])
    # A bitonic merge compares a<=b<=c<=d with the reversed h>=g>=f>=e. The four minima are the
    # lower half of all eight values, the four maxima the upper half; the middle values are the
    # maximum of the lower half and the minimum of the upper half.
    lower = max(max(min(a, h), min(b, g)), max(min(c, f), min(d, e)))
    upper = min(min(max(a, h), max(b, g)), min(max(c, f), max(d, e)))
    return middle_integer(lower, upper, number(1))


@_for_each_square
def median_221_integer(number, a, b, c, d):
    """Median over 2 x 2 x 1 of integers."""
    a, b = _order(a, b)
    c, d = _order(c, d)
    return middle_integer(max(a, c), min(b, d), number(1))


# --- mode: sort; the value of the longest run of equal values wins, the lowest in a tie
# ------------------------------------------------


@helper
def _longest_of_4(best, starts, ends):
    """Return the value of the longest run among four sorted values, the lowest in a tie; ``best``
    if all values differ."""
    # Sorted values that are equal at distance n - 1 form a run of n. Later assignments win: longer
    # runs come later, and lower values among equal lengths.
    a, b, c, _ = starts
    _, bb, cc, dd = ends
    best = c if c == dd else best
    best = b if b == cc else best
    best = a if a == bb else best
    best = b if b == dd else best
    return a if a == cc else best


@helper
def _sorted_8(a, b, c, d, e, f, g, h):
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
def _longest_of_8(best, starts, ends):
    """Return the same for eight sorted values."""
    # Runs of two, three, four and five. Only one run of eight values can be that long, and the test
    # for five finds it at its first value.
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


@_for_each_cube
def mode_222_integer(number, *voxels):
    """Mode over 2 x 2 x 2 of integers."""
    values = _sorted_8(*voxels)
    return _longest_of_8(values[0], values, values)


@_for_each_square
def mode_221_integer(number, *voxels):
    """Mode over 2 x 2 x 1 of integers."""
    values = _sorted_4(*voxels)
    return _longest_of_4(values[0], values, values)


# --- mode without zeros: a run of zeros must not win. A zero that ends a run is replaced by one: it
# differs from zero, and no value sorted before a zero equals one, so every zero is a run of one.
# --------------------------------------------------------------------------------


@helper
def _not_zero(value, other):
    return value if value != 0 else other


@_for_each_cube
def mode_nonzero_222_integer(number, *voxels):
    """Mode over 2 x 2 x 2 of the integers that are not zero."""
    one = number(1)
    values = _sorted_8(*voxels)
    a, b, c, d, e, f, g, h = values
    lowest = _not_zero(b, _not_zero(c, _not_zero(d, _not_zero(e, _not_zero(f, _not_zero(g, h))))))
    ends = (
        a, _not_zero(b, one), _not_zero(c, one), _not_zero(d, one),
        _not_zero(e, one), _not_zero(f, one), _not_zero(g, one), _not_zero(h, one),
    )  # fmt: skip
    return _longest_of_8(_not_zero(a, lowest), values, ends)


@_for_each_square
def mode_nonzero_221_integer(number, *voxels):
    """Mode over 2 x 2 x 1 of the integers that are not zero."""
    one = number(1)
    values = _sorted_4(*voxels)
    a, b, c, d = values
    lowest = _not_zero(a, _not_zero(b, _not_zero(c, d)))
    ends = (a, _not_zero(b, one), _not_zero(c, one), _not_zero(d, one))
    return _longest_of_4(lowest, values, ends)
