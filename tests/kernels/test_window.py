"""Window reducers against a slow oracle of Python integers and numpy scalars, window by window."""

from __future__ import annotations

import os
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import DTYPE_NAMES, vectors

from wkwdask.kernels.window.reduce import IGNORE_ZERO_METHODS, METHODS, reduce_windows

SMALL_FACTORS = tuple(product((1, 2), repeat=3))
LARGE_FACTORS = ((4, 4, 1), (4, 4, 4), (2, 2, 16), (1, 1, 4))
KINDS = ("few", "noise", "extremes", "finite", "zeros")
KINDS_OF_A_FACTOR = {"nightly": len(KINDS)}.get(os.environ.get("HYPOTHESIS_PROFILE", "ci"), 2)
WAYS = tuple(
    (method, ignore_zero)
    for method in METHODS
    for ignore_zero in ((False, True) if method in IGNORE_ZERO_METHODS else (False,))
)


def _mean(values, dtype):
    if dtype.kind == "f":
        total = dtype.type(0)
        for value in values:
            total = dtype.type(total + value)
        return dtype.type(total / dtype.type(len(values)))
    numbers = [int(value) for value in values]
    whole, rest = divmod(sum(numbers), len(numbers))
    up = 2 * rest > len(numbers) or (2 * rest == len(numbers) and whole % 2 == 1)
    return dtype.type(whole + up)


def _median(values, dtype):
    if dtype.kind == "f" and any(np.isnan(value) for value in values):
        return dtype.type(np.nan)
    ordered = sorted(values if dtype.kind == "f" else map(int, values))
    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    if lower == upper:
        return dtype.type(upper)
    total = lower + upper
    if dtype.kind == "f":
        return dtype.type(total / dtype.type(2))
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


ORACLE = {
    "mean": _mean,
    "median": _median,
    "mode": _mode,
    "nearest": lambda values, _: values[0],
    "min": _extreme(min),
    "max": _extreme(max),
}


def _oracle(source, factor, method, low, high, ignore_zero):
    """Reduce window by window; voxels of a window come with z fastest, only those inside the box.
    Returns also which windows have any."""
    shape = tuple(n // f for n, f in zip(source.shape, factor, strict=True))
    out = np.zeros(shape, source.dtype)
    has_voxels = np.zeros(shape, bool)
    with np.errstate(all="ignore"):
        for window in np.ndindex(*shape):
            box = tuple(
                slice(max(a, w * f), min(b, (w + 1) * f))
                for w, f, a, b in zip(window, factor, low, high, strict=True)
            )
            if any(part.start >= part.stop for part in box):
                continue
            has_voxels[window] = True
            values = [
                value for value in source[box].ravel(order="C") if not (ignore_zero and value == 0)
            ]
            out[window] = ORACLE[method](values, source.dtype) if values else 0
    return out, has_voxels


def _check(source, factor, method, low=None, high=None, *, ignore_zero=False):
    source = np.asfortranarray(source)
    before = source.copy(order="F")
    expected, has_voxels = _oracle(
        source, factor, method, low or (0, 0, 0), high or source.shape, ignore_zero
    )
    out = np.full(expected.shape, 77, source.dtype, order="F")
    with np.errstate(all="ignore"):
        reduce_windows(source, factor, method, out, low, high, ignore_zero=ignore_zero)
    message = f"{method} {factor} {low} {high} {ignore_zero=}"
    np.testing.assert_array_equal(out[has_voxels], expected[has_voxels], err_msg=message)
    assert source.tobytes() == before.tobytes(), message


def _voxels(dtype, shape, seed, kind):
    """Make voxels of one kind from a seed.

    ``few`` has ties, with zero between negative and positive values; ``noise`` uses every bit of
    integers; ``extremes`` are the limits of the type, integers that no float64 holds, NaN and
    infinities; ``finite`` is that without NaN and infinities, which hide all else in a window;
    ``zeros`` is mostly zeros of either sign, so that windows of nothing else occur.
    """
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    is_float = dtype.kind == "f"
    limits = np.finfo(dtype) if is_float else np.iinfo(dtype)
    few = np.array([-0.0 if is_float else 0, 0, 1, 2] + [-1, -2] * (dtype.kind != "u"), dtype)
    if kind == "few":
        return rng.choice(few, shape)
    if kind == "noise":
        bits = bytearray(0 if is_float else rng.bytes(int(np.prod(shape)) * dtype.itemsize))
        return (
            rng.normal(0, 1000, shape).astype(dtype)
            if is_float
            else np.frombuffer(bits, dtype).reshape(shape)
        )
    if is_float:
        extremes = np.array(
            [limits.min, limits.max, limits.tiny, 0.1, 2.0**24, 2.0**53, 1, -1, 0, -0.0], dtype
        )
        if kind == "extremes":
            extremes = np.concatenate([extremes, np.array([np.nan, np.inf, -np.inf], dtype)])
    else:
        numbers = (
            limits.min,
            limits.min + 1,
            -1,
            0,
            1,
            2**53,
            2**53 + 1,
            limits.max - 1,
            limits.max,
        )
        extremes = np.array(
            [number for number in numbers if limits.min <= number <= limits.max], dtype
        )
    values = rng.choice(extremes, shape)
    if kind == "zeros":
        values[rng.random(shape) < 0.8] = few[0]
    return values


def _shape(factor, windows=(3, 2, 3)):
    return tuple(f * n for f, n in zip(factor, windows, strict=True))


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize(("method", "ignore_zero"), WAYS)
def test_every_factor(dtype, method, ignore_zero):
    """All factors, each with a whole box, one that cuts the first and last windows, and a random
    one."""
    rng = np.random.default_rng(3)
    for seed, factor in enumerate(SMALL_FACTORS + LARGE_FACTORS):
        shape = _shape(factor, (3, 2, 3) if factor in SMALL_FACTORS else (2, 1, 2))
        for kind in (KINDS * 2)[seed % len(KINDS) :][:KINDS_OF_A_FACTOR]:
            source = _voxels(dtype, shape, seed, kind)
            low = tuple(int(rng.integers(0, n)) for n in shape)
            high = tuple(int(rng.integers(a + 1, n + 1)) for a, n in zip(low, shape, strict=True))
            cut_low, cut_high = (
                tuple(min(1, f - 1) for f in factor),
                tuple(n - min(1, f - 1) for n, f in zip(shape, factor, strict=True)),
            )
            for box in ((None, None), (cut_low, cut_high), (low, high)):
                _check(source, factor, method, *box, ignore_zero=ignore_zero)


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@given(st.data())
def test_any_box(dtype, data):
    """Any factor, boxes anywhere in the source, down to one voxel, and windows wholly outside
    them."""
    factor = data.draw(
        st.sampled_from(SMALL_FACTORS + LARGE_FACTORS) | st.tuples(*[st.integers(1, 5)] * 3)
    )
    shape = _shape(factor, data.draw(st.tuples(*[st.integers(1, 3)] * 3)))
    source = _voxels(
        dtype, shape, data.draw(st.integers(0, 2**32 - 1)), data.draw(st.sampled_from(KINDS))
    )
    low = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    high = tuple(data.draw(st.integers(a + 1, n)) for a, n in zip(low, shape, strict=True))
    method, ignore_zero = data.draw(st.sampled_from(WAYS))
    _check(source, factor, method, low, high, ignore_zero=ignore_zero)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
@pytest.mark.parametrize(("method", "ignore_zero"), WAYS)
def test_any_number_of_voxels(dtype, method, ignore_zero):
    """Windows of every length up to two vectors, along an axis each, and of ten voxels along
    all."""
    for length in [*range(1, 34), 63, 65, 100]:
        for axis in (length % 3, (length + 1) % 3):
            factor = tuple(length if n == axis else 1 for n in range(3))
            _check(
                _voxels(dtype, _shape(factor, (2, 1, 1)), length, KINDS[length % len(KINDS)]),
                factor,
                method,
                ignore_zero=ignore_zero,
            )
    for kind in ("few", "noise", "zeros"):
        _check(
            _voxels(dtype, (10, 20, 10), 0, kind),
            (10, 10, 10),
            method,
            (0, 0, 0),
            (10, 17, 9),
            ignore_zero=ignore_zero,
        )


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64", "float32"])
@pytest.mark.parametrize(("method", "ignore_zero"), WAYS)
def test_many_windows(dtype, method, ignore_zero):
    """Rows longer than a batch, and many short rows with an incomplete last batch."""
    for factor, windows in (
        ((2, 1, 1), (300, 2, 2)),
        ((1, 2, 2), (5, 13, 9)),
        ((1, 1, 4), (1, 9, 31)),
    ):
        _check(
            _voxels(dtype, _shape(factor, windows), 1, "few"),
            factor,
            method,
            ignore_zero=ignore_zero,
        )


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint64", "float64"])
@pytest.mark.parametrize(("method", "ignore_zero"), WAYS)
def test_large_windows(dtype, method, ignore_zero):
    """The largest windows of a ladder; boxes cut some of them to a few voxels."""
    for kind in ("few", "noise", "zeros"):
        source = _voxels(dtype, (32, 16, 16), 2, kind)
        for low, high in (((0, 0, 0), (32, 16, 16)), ((15, 3, 0), (20, 15, 16))):
            _check(source, (16, 16, 16), method, low, high, ignore_zero=ignore_zero)


@pytest.mark.parametrize(
    "dtype", ["uint8", "int16", "uint16", "uint32", "int32", "uint64", "int64"]
)
@pytest.mark.parametrize("ignore_zero", [False, True])
def test_sums_of_many_voxels(dtype, ignore_zero):
    """Sums beyond 32 bits, the exact range of float64, and 64 bits."""
    limits = np.iinfo(dtype)
    for shape in ((64, 64, 16), (128, 128, 66)):
        for limit, other in ((limits.max, limits.max - 2), (limits.min, 0)):
            source = np.full(shape, limit, dtype, order="F")
            source[:, :, ::2] = other
            out = np.zeros((1, 1, 1), dtype, order="F")
            reduce_windows(source, shape, "mean", out, ignore_zero=ignore_zero)
            expected = limit if ignore_zero and other == 0 else (limit + other) // 2
            assert out.item() == expected


@pytest.mark.parametrize("dtype", ["uint32", "int32"])
def test_mean_closer_to_a_half_than_float64_resolves(dtype):
    """Just below a half above an odd number: it rounds down, while the half would go up to the even
    number."""
    even = np.iinfo(dtype).max - 1
    shape = (256, 256, 128)
    source = np.full(shape, even, dtype, order="F")
    source[:, :, ::2] = even - 1
    source[0, 0, 1] = even - 1
    out = np.zeros((1, 1, 1), dtype, order="F")
    reduce_windows(source, shape, "mean", out)
    assert out.item() == even - 1


@pytest.mark.parametrize("dtype", ["int64"])
@given(
    st.lists(
        st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, -1, 0, 1]),
        min_size=8,
        max_size=8,
    )
)
def test_any_int64(dtype, values):
    source = np.array(values, dtype).reshape(2, 2, 2)
    for method, ignore_zero in WAYS:
        for factor in ((2, 2, 2), (2, 2, 1)):
            _check(source, factor, method, ignore_zero=ignore_zero)


@pytest.mark.parametrize("dtype", ["uint64"])
@given(
    st.lists(
        st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**53 + 1, 2**63, 2**64 - 1]),
        min_size=8,
        max_size=8,
    )
)
def test_any_uint64(dtype, values):
    source = np.array(values, dtype).reshape(2, 2, 2)
    for method, ignore_zero in WAYS:
        for factor in ((2, 2, 2), (2, 2, 1)):
            _check(source, factor, method, ignore_zero=ignore_zero)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(
    st.lists(
        st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, float("nan")]),
        min_size=8,
        max_size=8,
    )
)
def test_any_float(dtype, values):
    source = np.array(values, dtype).reshape(2, 2, 2)
    for method, ignore_zero in WAYS:
        for factor in ((2, 2, 2), (2, 2, 1), (1, 2, 1)):
            _check(source, factor, method, ignore_zero=ignore_zero)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "float32"])
def test_every_pattern_of_eight(dtype):
    """Every sorted pattern of eight values, in scrambled order: 128 ways to cut eight into
    stretches of equal values, with zero in each place."""
    rng = np.random.default_rng(0)
    patterns = [np.cumsum(np.concatenate([[0], steps])) for steps in product((0, 1), repeat=7)]
    patterns += [pattern - zero for pattern in patterns for zero in range(-1, pattern[-1] + 1)]
    windows = [
        rng.permutation(pattern).reshape(2, 2, 2)
        for pattern in patterns
        if dtype != "uint8" or pattern[0] >= 0
    ]
    source = np.concatenate(windows, axis=0).astype(dtype)
    for method, ignore_zero in WAYS[:6]:
        _check(source, (2, 2, 2), method, ignore_zero=ignore_zero)


@pytest.mark.parametrize("lowest", [0, -1, -2])
def test_every_window_of_four(lowest):
    """All 256 windows of four values out of four, with zero as the lowest, the second and the third
    of them."""
    source = (
        np.array(list(product(range(lowest, lowest + 4), repeat=4)), np.int16)
        .reshape(256, 2, 2)
        .transpose(1, 2, 0)
    )
    for method, ignore_zero in WAYS:
        _check(source, (2, 2, 1), method, ignore_zero=ignore_zero)


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
    # max - 0.5 goes to the even value
    ("uint64", "mean", (2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 3), 2**64 - 2),
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
    # each sum is rounded to float32 in turn; float64 would give 2**22 + 0.75
    ("float32", "mean", (2.0**24, 1, 1, 1), 2.0**22),
    ("float32", "nearest", (5, 1, 1, 1), 5),
]


IGNORE_ZERO_VALUES = [
    ("uint8", "mean", (0, 0, 1, 2), 2),  # 1.5 goes to the even 2
    ("uint8", "mean", (0, 0, 0, 9), 9),
    ("uint8", "mean", (0, 0, 0, 0), 0),
    ("int8", "mean", (0, -3, -2, 0), -2),  # -2.5 goes to the even -2
    ("int8", "mean", (0, 1, 1, -1), 0),  # 1/3: a mean may be zero
    ("uint64", "mean", (0, 2**64 - 1, 2**64 - 1, 2**64 - 1), 2**64 - 1),
    ("int64", "mean", (0, -(2**63), -(2**63) + 1, -(2**63) + 2), -(2**63) + 1),
    ("uint8", "median", (0, 0, 3, 6), 4),  # two are left, 4.5 goes toward zero
    ("uint8", "median", (0, 2, 3, 6), 3),  # three are left
    ("int8", "median", (0, 0, -3, -6), -4),
    ("uint64", "median", (0, 0, 2**53 + 1, 2**53 + 1), 2**53 + 1),
    ("uint8", "mode", (0, 0, 0, 7), 7),
    ("uint8", "mode", (0, 0, 7, 5), 5),  # the smallest value of a tie
    ("uint8", "mode", (0, 0, 255, 255), 255),
    ("int32", "mode", (0, 0, 2, -3), -3),
    ("int64", "mode", (0, 0, 0, -(2**63)), -(2**63)),
    ("float32", "mode", (0, -0.0, 0, 4), 4),  # -0.0 is zero
    ("float32", "mean", (-0.0, -0.0, 1, 2), 1.5),
    ("float32", "median", (-0.0, 0, 1, 2), 1.5),
    ("float32", "mean", (0, 0, 0, np.nan), np.nan),  # NaN is not zero
    ("float32", "median", (0, 1, 1, np.nan), np.nan),
    ("float32", "mode", (0, 0, 1, np.nan), 1),
    ("float32", "mode", (0, 0, 0, np.nan), np.nan),  # nothing else is left
    ("float64", "median", (0, 0, np.inf, np.inf), np.inf),
]


@pytest.mark.parametrize(
    ("dtype", "method", "values", "expected", "ignore_zero"),
    [(*row, False) for row in VALUES] + [(*row, True) for row in IGNORE_ZERO_VALUES],
)
def test_values(dtype, method, values, expected, ignore_zero):
    for shape in ((2, 2, 1), (4, 1, 1), (1, 2, 2), (1, 1, 4)):
        source = np.asfortranarray(np.array(values, dtype).reshape(shape))
        out = np.zeros((1, 1, 1), dtype, order="F")
        reduce_windows(source, shape, method, out, ignore_zero=ignore_zero)
        np.testing.assert_array_equal(out.item(), np.array(expected, dtype).item())


@pytest.mark.parametrize(("method", "ignore_zero"), WAYS)
@pytest.mark.parametrize("factor", [(2, 2, 2), (4, 4, 4)])
def test_voxels_outside_the_box_are_ignored(method, ignore_zero, factor):
    inside = _voxels("int16", (8, 8, 8), 5, "noise")
    results = []
    for filling in (0, 1, -1, 32767):
        source = np.full((8, 8, 8), filling, np.int16, order="F")
        source[1:7, 3:8, 0:5] = inside[1:7, 3:8, 0:5]
        out = np.zeros([8 // f for f in factor], np.int16, order="F")
        reduce_windows(source, factor, method, out, (1, 3, 0), (7, 8, 5), ignore_zero=ignore_zero)
        low, high = (
            [a // f for a, f in zip((1, 3, 0), factor, strict=True)],
            [-(-b // f) for b, f in zip((7, 8, 5), factor, strict=True)],
        )
        results.append(out[tuple(map(slice, low, high))].tobytes())
    assert len(set(results)) == 1


def test_nearest_is_the_lowest_voxel_inside_the_box():
    source = np.arange(8, dtype=np.uint8).reshape(8, 1, 1, order="F")
    out = np.zeros((4, 1, 1), np.uint8, order="F")
    reduce_windows(source, (2, 1, 1), "nearest", out, (3, 0, 0), (7, 1, 1))
    assert out.ravel()[1:].tolist() == [3, 4, 6]


@pytest.mark.parametrize(
    ("source", "factor", "method", "out", "message"),
    [
        (
            (4, 4, 4),
            (2, 2, 2),
            "average",
            (2, 2, 2),
            "method must be one of mean, median, mode, nearest, min, max, got 'average'",
        ),
        (
            (4, 4, 4),
            (2, 2, 2),
            "mean",
            (2, 2, 1),
            (
                r"source uint8\(4, 4, 4\), reduced by windows of \(2, 2, 2\) voxels, does not fit "
                r"into out uint8\(2, 2, 1\)"
            ),
        ),
        ((5, 4, 4), (2, 2, 2), "mean", (2, 2, 2), r"windows of \(2, 2, 2\)"),
    ],
)
def test_invalid_arguments_are_refused(source, factor, method, out, message):
    with pytest.raises(ValueError, match=message):
        reduce_windows(
            np.zeros(source, np.uint8, order="F"),
            factor,
            method,
            np.zeros(out, np.uint8, order="F"),
        )


@pytest.mark.parametrize("at", [(1, 0, 0), (0, 0, -1)])
def test_position_outside_the_array_is_refused(at):
    with pytest.raises(ValueError, match="does not fit into out"):
        reduce_windows(
            np.zeros((4, 4, 4), np.uint8, order="F"),
            (2, 2, 2),
            "mean",
            np.zeros((2, 2, 2), np.uint8, order="F"),
            at=at,
        )


@pytest.mark.parametrize("method", METHODS)
@given(
    low=vectors(0, 3),
    high=vectors(4, 8),
    at=vectors(0, 3),
    factor=st.sampled_from([(2, 2, 2), (2, 2, 1), (1, 1, 1), (4, 2, 8)]),
)
def test_result_in_a_part_of_an_array(method, low, high, at, factor):
    source = _voxels("uint16", (8, 8, 8), 3, "noise").copy(order="F")
    alone, out = (
        np.full([8 // f for f in factor], 9999, np.uint16, order="F"),
        np.full((12, 12, 12), 9999, np.uint16, order="F"),
    )
    reduce_windows(source, factor, method, alone, low, high)
    reduce_windows(source, factor, method, out, low, high, at=at)
    expected = np.full_like(out, 9999)
    touched = tuple(slice(a // f, -(-b // f)) for a, b, f in zip(low, high, factor, strict=True))
    expected[
        tuple(slice(a + part.start, a + part.stop) for a, part in zip(at, touched, strict=True))
    ] = alone[touched]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("method", ["nearest", "min", "max"])
def test_methods_that_cannot_ignore_zeros(method):
    array = np.zeros((1, 1, 1), np.uint8, order="F")
    with pytest.raises(
        ValueError, match=f"ignore_zero needs one of mean, median, mode, got '{method}'"
    ):
        reduce_windows(array, (1, 1, 1), method, array.copy(order="F"), ignore_zero=True)


def test_other_memory_order_is_refused():
    array, out = np.zeros((4, 4, 4), np.uint8), np.zeros((2, 2, 2), np.uint8)
    for one, other in ((array, np.asfortranarray(out)), (np.asfortranarray(array), out)):
        with pytest.raises(ValueError, match="must be in Fortran order"):
            reduce_windows(one, (2, 2, 2), "mean", other)


@pytest.mark.parametrize("method", ["mean", "max"])
def test_read_only_source(method):
    """Numba compiles other machine code for read-only memory."""
    source = _voxels("uint8", (6, 4, 4), 1, "noise").copy(order="F")
    source.flags.writeable = False
    _check(source, (3, 2, 2), method)


def test_other_type_is_refused():
    with pytest.raises(ValueError, match=r"does not fit into out uint16\(1, 1, 1\)"):
        reduce_windows(
            np.zeros((2, 2, 2), np.uint8, order="F"),
            (2, 2, 2),
            "mean",
            np.zeros((1, 1, 1), np.uint16, order="F"),
        )


@pytest.mark.parametrize("method", METHODS)
def test_no_windows(method):
    out = np.zeros((0, 2, 2), np.uint8, order="F")
    reduce_windows(np.zeros((0, 4, 4), np.uint8, order="F"), (2, 2, 2), method, out)
    assert out.shape == (0, 2, 2)
