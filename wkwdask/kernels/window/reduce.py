"""Public functions for windows of voxels: reduce each window to one voxel of the next coarser mag,
or repeat each voxel in a finer mag.

Numeric rules:

- Windows are anchored at absolute voxel 0, and only voxels inside the box count.
- The mean rounds half to even. Floats sum in their own type, z fastest.
- The median of an even count is the mean of the two middle values, rounded toward zero.
- The mode of a tie is the smallest value.
- Nearest is the lowest voxel of the window inside the box.
- NaN propagates in mean, median, min and max. The mode ignores it unless the window holds nothing
  else.
- Half floats are reduced as float32, and each result is rounded once. Bool has the mode alone.
- With ``ignore_zero``, these rules hold for the voxels that are not zero (-0.0 is zero, NaN is
  not). A window of zeros becomes zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray

Method = Literal["mean", "median", "mode", "nearest", "min", "max"]
METHODS: tuple[str, ...] = get_args(Method)
IGNORE_ZERO_METHODS = ("mean", "median", "mode")
BOOL_METHOD: Method = "mode"
"""The only method for bool."""

_Vec3 = tuple[int, int, int]

_LANES = 256  # windows that are sorted side by side: a few vector registers of values of any type
# memory of the values of these windows: it fits into the L2 cache of a core
_SORTED_NBYTES = 1 << 18
_FEWEST_LANES = 64


def reduce_windows(
    source: AnyArray,
    factor: Sequence[int],
    method: str,
    out: AnyArray,
    low: Sequence[int] | None = None,
    high: Sequence[int] | None = None,
    *,
    at: Sequence[int] = (0, 0, 0),
    ignore_zero: bool = False,
) -> None:
    """Reduce each window of a 3-D array to one voxel of ``out``, from the voxel ``at`` on.

    Only voxels of ``source`` from ``low`` to ``high`` (exclusive) count; by default, all do.

    Examples
    --------
    >>> import numpy as np
    >>> source = np.asfortranarray([[[0], [2]], [[4], [8]]], dtype=np.uint8)
    >>> out = np.empty((1, 1, 1), np.uint8, order="F")
    >>> for method in METHODS:
    ...     reduce_windows(source, (2, 2, 1), method, out)
    ...     print(method, out.item())
    mean 4
    median 3
    mode 0
    nearest 0
    min 0
    max 8
    >>> reduce_windows(source, (2, 2, 1), "mode", out, ignore_zero=True)
    >>> out.item()
    2
    """
    fx, fy, fz = map(int, factor)
    plan = _plan(
        source.shape,
        source.dtype,
        (fx, fy, fz),
        method,
        out.shape,
        out.dtype,
        tuple(low or (0, 0, 0)),
        tuple(high or source.shape),
        tuple(at),
        ignore_zero=ignore_zero,
    )
    if not (source.flags.f_contiguous and out.flags.f_contiguous):
        raise ValueError("source and out must be in Fortran order")
    if source.dtype == np.bool_:
        source, out = source.view(np.uint8), out.view(np.uint8)
    if source.dtype == np.float16:
        wide = np.empty(
            [n // f for n, f in zip(source.shape, (fx, fy, fz), strict=True)], np.float32, order="F"
        )
        reduce_windows(
            source.astype(np.float32), factor, method, wide, low, high, ignore_zero=ignore_zero
        )
        for part in plan.parts:
            out[_window_slices(part, at)] = wide[_window_slices(part, (0, 0, 0))]
        return
    if plan.calls:
        voxels, results = source.reshape(-1, order="F"), out.reshape(-1, order="F")
        # always: numba compiles one loop for writeable and one for read-only arrays
        voxels.flags.writeable = False
        for call in plan.calls:
            call.run(voxels, method, results, ignore_zero=ignore_zero)
        return
    for part in plan.parts:
        out[_window_slices(part, at)] = (
            source[tuple(_every_window(segment, segment.voxel) for segment in part)]
            if (fx, fy, fz) == (1, 1, 1) or method == "nearest"
            else _extreme(source, np.minimum if method == "min" else np.maximum, part)
        )


@dataclass(frozen=True, slots=True)
class _Segment:
    """Consecutive windows along one axis that have equally many voxels inside the box."""

    window: int
    """Index of the first window."""
    count: int
    """Number of windows."""
    voxel: int
    """First voxel inside the box."""
    extent: int
    """Voxels of each window inside the box."""
    factor: int
    """Voxels of each window."""


_Part = tuple[_Segment, ...]  # one segment along each of x, y, z


def _parts(shape: _Vec3, factor: _Vec3, low: _Vec3, high: _Vec3) -> tuple[_Part, ...]:
    """Split the windows of an array into parts whose windows all have the same extent inside the
    box: at most 3 along each axis, 27 in all."""
    ends = zip(low, high, shape, factor, strict=True)
    return tuple(product(*(_segments(max(int(a), 0), min(int(b), n), f) for a, b, n, f in ends)))


def _segments(low: int, high: int, factor: int) -> list[_Segment]:
    """Split the windows of an axis that contain voxels of [low, high): the two cut by its ends, and
    the whole ones between them."""
    # Windows are anchored at voxel 0, not at the box. So the ends of a box may cut the first and
    # the last window, which then reduce fewer voxels. Factor 4:
    #
    #   voxels    0   1   2   3 | 4   5   6   7 | 8   9  10  11 |12  13  14  15
    #   box               [-----------------------------------------)
    #                  low = 2                                high = 13
    #   segment  |  extent 2    |   extent 4, whole windows     |  extent 1    |
    if low >= high:
        return []
    whole, past_whole = -(-low // factor), high // factor
    if whole > past_whole:  # both ends lie in one window
        return [_Segment(past_whole, 1, low, high - low, factor)]
    segments = (
        _Segment(whole - 1, 1, low, whole * factor - low, factor),
        _Segment(whole, past_whole - whole, whole * factor, factor, factor),
        _Segment(past_whole, 1, past_whole * factor, high - past_whole * factor, factor),
    )
    return [segment for segment in segments if segment.count and segment.extent]


def _window_slices(part: _Part, at: Sequence[int]) -> tuple[slice, ...]:
    return tuple(
        slice(first + segment.window, first + segment.window + segment.count)
        for segment, first in zip(part, at, strict=True)
    )


def _every_window(segment: _Segment, first: int) -> slice:
    """Select one voxel of every window, starting with the voxel ``first`` of the first window."""
    return slice(first, first + (segment.count - 1) * segment.factor + 1, segment.factor)


def _extreme(source: AnyArray, ufunc: np.ufunc, part: _Part) -> AnyArray:
    """Reduce axis by axis; minimum and maximum do not depend on the order."""
    values = source[
        tuple(
            slice(
                segment.voxel, segment.voxel + (segment.count - 1) * segment.factor + segment.extent
            )
            for segment in part
        )
    ]
    for axis in (2, 1, 0):
        segment, before = part[axis], (slice(None),) * axis
        values = reduce(
            ufunc, [values[(*before, _every_window(segment, n))] for n in range(segment.extent)]
        )
    return values


class Windows(NamedTuple):
    """Windows of equal extent in flat memory; steps and strides are in elements."""

    shape: _Vec3
    """Number of windows along x, y, z."""
    extent: _Vec3
    """Voxels of each window that count."""
    steps: _Vec3
    """From one window to the next."""
    strides: _Vec3
    """From one voxel to the next."""
    out_strides: _Vec3
    """From one voxel to the next in the memory of the results."""


class Sums(NamedTuple):
    """Scratch memory for the means of one row of windows."""

    totals: AnyArray
    """Sum of each window, or of the upper 32 bits of its voxels."""
    lower: AnyArray
    """Sum of the lower 32 bits."""
    counts: AnyArray
    """Voxels that count."""


class Lanes(NamedTuple):
    """Scratch memory for windows that are sorted side by side, one in each lane."""

    values: AnyArray
    """Shape (voxels of a window, lanes)."""
    valid: npt.NDArray[np.uint32]
    """Voxels that count."""
    nans: npt.NDArray[np.uint32]
    """Voxels that are NaN."""
    run: npt.NDArray[np.uint32]
    """Length of the current run of equal values."""
    longest: npt.NDArray[np.uint32]
    """Length of the longest run so far."""
    results: AnyArray
    """Result of each window."""
    highest: Any
    """Highest value of the type."""
    nan: Any
    """NaN; zero for integers."""


class _KernelCall(NamedTuple):
    """Call of a compiled kernel for the windows of one part."""

    windows: Windows
    """Windows in flat memory."""
    first_voxel: int
    """Index of the first voxel of the windows."""
    first_result: int
    """Index of the first result."""
    specialized: Callable[..., None] | None
    """Kernel written for these windows, None for the general one."""

    def run(self, voxels: AnyArray, method: str, results: AnyArray, *, ignore_zero: bool) -> None:
        """Reduce the windows of flat arrays."""
        voxels, results = voxels[self.first_voxel :], results[self.first_result :]
        if self.specialized is not None:
            self.specialized(voxels, self.windows, results)
        elif method == "mean":
            _mean(voxels, self.windows, results, ignore_zero=ignore_zero)
        else:
            _sorted(voxels, method, self.windows, results, ignore_zero=ignore_zero)


class _Plan(NamedTuple):
    """Steps that reduce an array."""

    parts: tuple[_Part, ...]
    calls: tuple[_KernelCall, ...]
    """One for each part; none for methods without a kernel."""


@lru_cache(maxsize=256)  # chunks of a volume come with the same few shapes
def _plan(
    shape: _Vec3,
    dtype: np.dtype[Any],
    factor: _Vec3,
    method: str,
    out_shape: _Vec3,
    out_dtype: np.dtype[Any],
    low: _Vec3,
    high: _Vec3,
    at: _Vec3,
    *,
    ignore_zero: bool,
) -> _Plan:
    """Check the arguments of :func:`reduce_windows`, and plan its steps."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if ignore_zero and method not in IGNORE_ZERO_METHODS:
        raise ValueError(
            f"ignore_zero needs one of {', '.join(IGNORE_ZERO_METHODS)}, got {method!r}"
        )
    fits = min(at) >= 0 and all(
        n % f == 0 and a + n // f <= m
        for n, f, a, m in zip(shape, factor, at, out_shape, strict=True)
    )
    if not fits or dtype != out_dtype:
        raise ValueError(
            f"source {dtype}{shape}, reduced by windows of {factor} voxels, does not fit into out "
            f"{out_dtype}{out_shape} at {at}"
        )
    parts = _parts(shape, factor, low, high)
    is_compiled = factor != (1, 1, 1) and method in ("mean", "median", "mode")
    if not is_compiled or dtype == np.float16:
        return _Plan(parts, ())
    stored = np.dtype(np.uint8) if dtype == np.bool_ else dtype
    return _Plan(
        parts,
        tuple(
            _kernel_call(shape, stored, part, method, out_shape, at, ignore_zero=ignore_zero)
            for part in parts
        ),
    )


def _kernel_call(
    shape: _Vec3,
    dtype: np.dtype[Any],
    part: _Part,
    method: str,
    out_shape: _Vec3,
    at: _Vec3,
    *,
    ignore_zero: bool,
) -> _KernelCall:
    """Return the call for the windows of a part."""
    (nx, ex, fx), (ny, ey, fy), (nz, ez, fz) = (
        (segment.count, segment.extent, segment.factor) for segment in part
    )
    strides, out_strides = (
        (1, shape[0], shape[0] * shape[1]),
        (1, out_shape[0], out_shape[0] * out_shape[1]),
    )
    windows = Windows(
        (nx, ny, nz), (ex, ey, ez), (fx, fy * strides[1], fz * strides[2]), strides, out_strides
    )
    is_whole = all(segment.extent == segment.factor for segment in part)
    return _KernelCall(
        windows,
        sum(segment.voxel * n for segment, n in zip(part, strides, strict=True)),
        sum(
            (segment.window + first) * n
            for segment, first, n in zip(part, at, out_strides, strict=True)
        ),
        _specialized_kernel(method, windows.extent, dtype, ignore_zero=ignore_zero)
        if is_whole
        else None,
    )


def _specialized_kernel(
    method: str, factor: _Vec3, dtype: np.dtype[Any], *, ignore_zero: bool
) -> Callable[..., None] | None:
    """Return the kernel written for a factor, such as ``mean_222_uint8``; None if there is none."""
    from wkwdask.kernels.window import reduce_by_two_compiled as kernels

    if method == "mean" and dtype.kind != "f" and dtype.itemsize == 8:
        return None
    stem = f"{method}{'_nonzero' if ignore_zero else ''}_{''.join(map(str, factor))}"
    return getattr(kernels, f"{stem}_{dtype.name}", None) or getattr(
        kernels, f"{stem}_{_kind(dtype)}", None
    )


def _mean(voxels: AnyArray, windows: Windows, results: AnyArray, *, ignore_zero: bool) -> None:
    from wkwdask.kernels.window import reduce_compiled as kernels

    # Sums stay exact: below 2^31 in int32, below 2^52 in int64 (see ``mean_integer``), and of any
    # size in two halves.
    dtype, count = voxels.dtype, math.prod(windows.extent)
    if dtype.kind == "f":
        kernel, sum_type = kernels.mean_float, dtype
    elif dtype.itemsize <= 2 and count <= 1 << 15:
        kernel, sum_type = kernels.mean_integer, np.dtype(np.int32)
    elif dtype.itemsize == 4 and count <= 1 << 20:
        kernel, sum_type = kernels.mean_integer, np.dtype(np.int64)
    else:
        kernel, sum_type = kernels.mean_long, np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
    kernel(voxels, windows, results, ignore_zero, Sums(*np.empty((3, windows.shape[0]), sum_type)))


def _sorted(
    voxels: AnyArray, method: str, windows: Windows, results: AnyArray, *, ignore_zero: bool
) -> None:
    """Reduce by median or mode, which sort each window."""
    from wkwdask.kernels.window import reduce_compiled as kernels

    dtype, count = voxels.dtype, math.prod(windows.extent)
    width = max(
        min(_LANES, _SORTED_NBYTES // (count * dtype.itemsize)), _FEWEST_LANES, windows.shape[0]
    )
    width = min(width, math.prod(windows.shape))
    highest, nan = np.array(
        [np.inf, np.nan] if dtype.kind == "f" else [np.iinfo(dtype).max, 0], dtype
    )
    valid, nans, run, longest = np.empty((4, width), np.uint32)
    lanes = Lanes(
        np.empty((count, width), dtype),
        valid,
        nans,
        run,
        longest,
        np.empty(width, dtype),
        highest,
        nan,
    )
    kernel = kernels.mode if method == "mode" else getattr(kernels, f"median_{_kind(dtype)}")
    kernel(voxels, windows, results, ignore_zero, lanes)


def _kind(dtype: np.dtype[Any]) -> str:
    return "float" if dtype.kind == "f" else "integer"


def repeat_voxels(planes: AnyArray, repeats: tuple[int, int, int], out: AnyArray) -> None:
    """Repeat voxels of an array (c, z, y, x) along x, y, z.

    Notes
    -----
    Rows are repeated along x first, then copied whole along y and z. One broadcasting assignment
    would have an innermost loop as short as a repeat. Output of 256^3 voxels by 2-2-2 on one core
    of an EPYC, for uint8, uint32 and uint64: 9.2, 8.2 and 5.0 GB/s; one broadcasting assignment
    0.3, 1.7 and 3.4; ``numpy.repeat`` axis by axis 4.4, 2.3 and 2.2.

    Examples
    --------
    >>> out = np.empty((1, 1, 2, 6), int)
    >>> repeat_voxels(np.array([[[[1, 2]]]]), (3, 2, 1), out)
    >>> out[0, 0].tolist()
    [[1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 2]]
    """
    channels, depth, height, width = planes.shape
    along_x, along_y, along_z = repeats
    if along_x == 1:
        rows = planes
    else:
        rows = (
            out
            if along_y == along_z == 1
            else np.empty((channels, depth, height, width * along_x), planes.dtype)
        )
        for offset in range(along_x):
            rows[..., offset::along_x] = planes
        if rows is out:
            return
    whole = out.reshape(channels, depth, along_z, height, along_y, width * along_x)
    whole[...] = rows[:, :, np.newaxis, :, np.newaxis, :]
