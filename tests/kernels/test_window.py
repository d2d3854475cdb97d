"""Window reducers against a slow oracle that goes window by window in Python integers and numpy scalars."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import DTYPE_NAMES, voxel_array

from wkwdask.kernels.window import METHODS, reduce_windows

FACTORS = [*product((1, 2), repeat=3), (4, 4, 1)]


def _mean(values, dtype):
    if dtype.kind == "f":
        total = values[0]
        for value in values[1:]:
            total = dtype.type(total + value)
        return dtype.type(total / dtype.type(len(values)))
    numbers = [int(value) for value in values]
    whole, rest = divmod(sum(numbers), len(numbers))
    up = 2 * rest > len(numbers) or (2 * rest == len(numbers) and whole % 2 == 1)
    return dtype.type(whole + up)


def _median(values, dtype):
    if dtype.kind == "f":
        if any(np.isnan(value) for value in values):
            return dtype.type(np.nan)
        ordered = sorted(values)
        upper = ordered[len(ordered) // 2]
        return upper if len(ordered) % 2 else dtype.type((ordered[len(ordered) // 2 - 1] + upper) / dtype.type(2))
    ordered = sorted(int(value) for value in values)
    upper = ordered[len(ordered) // 2]
    if len(ordered) % 2:
        return dtype.type(upper)
    total = ordered[len(ordered) // 2 - 1] + upper
    return dtype.type(total // 2 if total >= 0 else -(-total // 2))


def _mode(values, dtype):
    numbers = [value.item() for value in values if not (dtype.kind == "f" and np.isnan(value))]
    if not numbers:
        return dtype.type(np.nan)
    counts = Counter(numbers)
    most = max(counts.values())
    return dtype.type(min(value for value, count in counts.items() if count == most))


def _extreme(choose):
    def reduce(values, dtype):
        if dtype.kind == "f" and any(np.isnan(value) for value in values):
            return dtype.type(np.nan)
        return choose(values)

    return reduce


ORACLE = {"mean": _mean, "median": _median, "mode": _mode, "nearest": lambda values, _: values[0], "min": _extreme(min), "max": _extreme(max)}


def _oracle(source, factor, method, low, high):
    """Reduce window by window; voxels of a window come with z fastest, only those inside the box."""
    shape = tuple(n // f for n, f in zip(source.shape, factor, strict=True))
    out = np.zeros(shape, source.dtype)
    counts = np.zeros(shape, bool)
    with np.errstate(all="ignore"):
        for window in np.ndindex(*shape):
            ranges = [range(max(a, w * f), min(b, (w + 1) * f)) for w, f, a, b in zip(window, factor, low, high, strict=True)]
            values = [source[place] for place in product(*ranges)]
            if values:
                counts[window] = True
                out[window] = ORACLE[method](values, source.dtype)
    return out, counts


def _check(source, factor, method, low=None, high=None):
    source = np.asfortranarray(source)
    before = source.copy(order="F")
    expected, counts = _oracle(source, factor, method, low or (0, 0, 0), high or source.shape)
    out = np.full(expected.shape, 77, source.dtype, order="F")
    with np.errstate(all="ignore"):
        reduce_windows(source, factor, method, out, low, high)
    np.testing.assert_array_equal(out[counts], expected[counts])
    assert source.tobytes() == before.tobytes()


def _shape(factor, windows=(3, 2, 3)):
    return tuple(f * n for f, n in zip(factor, windows, strict=True))


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("method", METHODS)
def test_every_factor(dtype, method):
    """All factors, whole and cut on both sides of every axis, for ordinary, tied and extreme values."""
    for seed, factor in enumerate(FACTORS):
        shape = _shape(factor)
        for kind in ("few", "noise", "extremes"):
            source = voxel_array(dtype, shape, seed, kind)
            _check(source, factor, method)
            low = tuple(min(1, f - 1) for f in factor)
            high = tuple(n - min(1, f - 1) for n, f in zip(shape, factor, strict=True))
            _check(source, factor, method, low, high)


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@given(st.data())
def test_any_box(dtype, data):
    """Boxes anywhere in the source, down to one voxel, and windows wholly outside them."""
    factor = data.draw(st.sampled_from(FACTORS))
    windows = data.draw(st.tuples(*[st.integers(1, 3)] * 3))
    shape = _shape(factor, windows)
    kind = data.draw(st.sampled_from(["few", "noise", "extremes"]))
    source = voxel_array(dtype, shape, data.draw(st.integers(0, 2**32 - 1)), kind)
    low = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    high = tuple(data.draw(st.integers(a + 1, n)) for a, n in zip(low, shape, strict=True))
    for method in data.draw(st.sampled_from([METHODS[:3], METHODS[3:]])):
        _check(source, factor, method, low, high)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, -1, 0, 1]), min_size=8, max_size=8))
def test_any_int64(values):
    source = np.array(values, np.int64).reshape(2, 2, 2)
    for method in METHODS:
        for factor in ((2, 2, 2), (2, 2, 1)):
            _check(source, factor, method)


@given(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**53 + 1, 2**63, 2**64 - 1]), min_size=8, max_size=8))
def test_any_uint64(values):
    source = np.array(values, np.uint64).reshape(2, 2, 2)
    for method in METHODS:
        for factor in ((2, 2, 2), (2, 2, 1)):
            _check(source, factor, method)


@given(st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_ties(values):
    """Eight values of four kinds: all patterns of ties that the written-out modes and medians tell apart."""
    source = np.array(values, np.uint8).reshape(2, 2, 2)
    for method in ("mode", "median"):
        for factor in ((2, 2, 2), (2, 2, 1), (1, 2, 2)):
            _check(source, factor, method)


def test_every_pattern_of_eight():
    """Every sorted pattern of eight values, in scrambled order: 128 ways to cut eight into stretches of equal values."""
    rng = np.random.default_rng(0)
    patterns = [np.cumsum(np.concatenate([[0], steps])) for steps in product((0, 1), repeat=7)]
    source = np.concatenate([rng.permutation(pattern).reshape(2, 2, 2) for pattern in patterns], axis=0)
    for dtype in ("uint8", "int32", "float32"):
        for method in ("mode", "median", "mean"):
            _check(source.astype(dtype), (2, 2, 2), method)


def test_every_window_of_four():
    """All 256 windows of four values out of four."""
    source = np.array(list(product(range(4), repeat=4)), np.int16).reshape(256, 2, 2).transpose(1, 2, 0)
    for method in METHODS:
        _check(source, (2, 2, 1), method)


VALUES = [
    # dtype, method, values of one 2 x 2 x 1 window, expected, why
    ("uint8", "mean", (0, 0, 0, 2), 0),  # 0.5 goes to the even 0
    ("uint8", "mean", (1, 1, 2, 2), 2),  # 1.5 goes to the even 2
    ("uint8", "mean", (2, 2, 3, 3), 2),  # 2.5 goes to the even 2
    ("uint8", "mean", (255, 255, 255, 255), 255),  # the sum leaves a byte
    ("int8", "mean", (-1, -1, 0, 0), 0),  # -0.5 goes to the even 0
    ("int8", "mean", (-1, -1, -2, -2), -2),  # -1.5 goes to the even -2
    ("int8", "mean", (-128, -128, -128, -128), -128),
    ("int8", "median", (-4, -4, -3, -3), -3),  # -3.5 goes toward zero
    ("int8", "median", (0, 0, 3, 3), 1),
    ("int64", "median", (-(2**63), -(2**63), 2**63 - 1, 2**63 - 1), 0),  # -0.5
    ("uint64", "median", (2**53 + 1,) * 4, 2**53 + 1),  # webknossos gives 2**53
    ("uint64", "median", (2**64 - 1,) * 4, 2**64 - 1),
    ("uint64", "mean", (2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 3), 2**64 - 2),  # max - 0.5 goes to the even value
    ("int64", "mean", (-(2**63),) * 4, -(2**63)),
    ("uint32", "mode", (7, 5, 7, 5), 5),  # the smallest value of a tie
    ("uint32", "mode", (9, 0, 3, 1), 0),  # zero is an ordinary value
    ("int32", "mode", (-3, 2, 2, -3), -3),
    ("float32", "mean", (np.nan, 1, 1, 1), np.nan),
    ("float32", "median", (np.nan, 1, 1, 1), np.nan),
    ("float32", "min", (np.nan, 1, 1, 1), np.nan),
    ("float32", "max", (1, 1, np.nan, 1), np.nan),
    ("float32", "mode", (np.nan, np.nan, np.nan, 1), 1),  # NaN is no value
    ("float32", "mode", (np.nan, np.nan, np.nan, np.nan), np.nan),
    ("float64", "median", (np.inf, np.inf, 1, 2), np.inf),
    ("float32", "mean", (2.0**24, 1, 1, 1), 2.0**22),  # each sum is rounded to float32 in turn; float64 would give 2**22 + 0.75
    ("float32", "nearest", (5, 1, 1, 1), 5),
]


@pytest.mark.parametrize(("dtype", "method", "values", "expected"), VALUES)
def test_values(dtype, method, values, expected):
    source = np.asfortranarray(np.array(values, dtype).reshape(2, 2, 1))
    out = np.zeros((1, 1, 1), dtype, order="F")
    reduce_windows(source, (2, 2, 1), method, out)
    np.testing.assert_array_equal(out.item(), np.array(expected, dtype).item())


@pytest.mark.parametrize("method", METHODS)
def test_voxels_outside_the_box_never_count(method):
    """Whatever the memory outside the box holds, the result is the same: files may hold anything there."""
    inside = voxel_array("uint16", (8, 8, 8), 5, "noise")
    results = []
    for filling in (0, 1, 65535):
        source = np.full((8, 8, 8), filling, np.uint16, order="F")
        source[1:7, 3:8, 0:5] = inside[1:7, 3:8, 0:5]
        out = np.zeros((4, 4, 4), np.uint16, order="F")
        reduce_windows(source, (2, 2, 2), method, out, (1, 3, 0), (7, 8, 5))
        results.append(out[0:4, 1:4, 0:3].tobytes())
    assert results[0] == results[1] == results[2]


def test_nearest_at_the_border():
    """The lowest voxel inside the box, not the lowest of the window."""
    source = np.arange(8, dtype=np.uint8).reshape(8, 1, 1, order="F")
    out = np.zeros((4, 1, 1), np.uint8, order="F")
    reduce_windows(source, (2, 1, 1), "nearest", out, (3, 0, 0), (7, 1, 1))
    assert out.ravel()[1:].tolist() == [3, 4, 6]


@pytest.mark.parametrize(
    ("source", "factor", "method", "out", "message"),
    [
        ((4, 4, 4), (2, 2, 2), "average", (2, 2, 2), "method must be one of mean, median, mode, nearest, min, max, got 'average'"),
        ((4, 4, 4), (2, 2, 2), "mean", (2, 2, 1), r"windows of \(2, 2, 2\) turn uint8\(4, 4, 4\) into another array than uint8\(2, 2, 1\)"),
        ((5, 4, 4), (2, 2, 2), "mean", (2, 2, 2), r"windows of \(2, 2, 2\)"),
    ],
)
def test_refusals(source, factor, method, out, message):
    with pytest.raises(ValueError, match=message):
        reduce_windows(np.zeros(source, np.uint8, order="F"), factor, method, np.zeros(out, np.uint8, order="F"))


def test_another_type():
    with pytest.raises(ValueError, match=r"into another array than uint16\(1, 1, 1\)"):
        reduce_windows(np.zeros((2, 2, 2), np.uint8, order="F"), (2, 2, 2), "mean", np.zeros((1, 1, 1), np.uint16, order="F"))


@pytest.mark.parametrize("method", METHODS)
def test_no_windows(method):
    out = np.zeros((0, 2, 2), np.uint8, order="F")
    reduce_windows(np.zeros((0, 4, 4), np.uint8, order="F"), (2, 2, 2), method, out)
    assert out.shape == (0, 2, 2)
