"""The door to the window reducers: one array in, the array of the next coarser mag out.

The numeric rules: windows are anchored at absolute voxel 0; only voxels inside the box count; mean rounds half to even; the median of
an even count is the mean of the two middle values toward zero; the mode of a tie is the smallest value; nearest is the lowest voxel
of the window inside the box. NaN propagates in mean, median, min and max, and is no value for the mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

Method = Literal["mean", "median", "mode", "nearest", "min", "max"]
METHODS: tuple[str, ...] = get_args(Method)

_Vec3 = tuple[int, int, int]


def reduce_windows(
    source: npt.NDArray[Any], factor: Sequence[int], method: str, out: npt.NDArray[Any], low: Sequence[int] | None = None, high: Sequence[int] | None = None
) -> None:
    """Reduce every window of a 3-D array to one voxel.

    Parameters
    ----------
    source : ndarray, shape (x, y, z), Fortran order
        Whole windows: each length is the factor times that of ``out``. Its voxel 0 is the lowest voxel of the first window.
    factor : sequence of 3 int
        Window lengths along x, y, z [voxels], at least 1.
    method : str
        One of ``METHODS``.
    out : ndarray, shape (x, y, z), Fortran order
        Takes one voxel per window, of the source's type.
    low, high : sequence of 3 int, optional
        The part of ``source`` that counts [voxels], by default all of it. Windows wholly outside get an arbitrary value.

    Raises
    ------
    ValueError
        The shapes do not fit, or the method is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> source = np.asfortranarray([[[1], [2]], [[4], [8]]], dtype=np.uint8)
    >>> out = np.empty((1, 1, 1), np.uint8, order="F")
    >>> for method in METHODS:
    ...     reduce_windows(source, (2, 2, 1), method, out)
    ...     print(method, out.item())
    mean 4
    median 3
    mode 1
    nearest 1
    min 1
    max 8
    """
    fx, fy, fz = (int(n) for n in factor)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if source.shape != (out.shape[0] * fx, out.shape[1] * fy, out.shape[2] * fz) or source.dtype != out.dtype:
        raise ValueError(f"windows of {(fx, fy, fz)} turn {source.dtype}{source.shape} into another array than {out.dtype}{out.shape}")
    if not out.size:
        return
    bounds = _Bounds(low or (0, 0, 0), high or source.shape, (fx, fy, fz), out.shape)
    if (fx, fy, fz) == (1, 1, 1):
        out[...] = source
    elif method == "nearest":
        _nearest(source, bounds, out)
    elif method in ("min", "max"):
        _extreme(source, np.minimum if method == "min" else np.maximum, bounds, out)
    else:
        _compiled(source, method, bounds, out)


class _Bounds:
    """Which windows are whole, and the slabs of windows that the box cuts."""

    def __init__(self, low: Sequence[int], high: Sequence[int], factor: _Vec3, out_shape: Sequence[int]) -> None:
        self.low = _vec3(low)
        self.high = _vec3(high)
        self.factor = factor
        # Windows with at least one voxel inside the box, and those wholly inside it.
        self.out_low = _vec3([a // f for a, f in zip(low, factor, strict=True)])
        self.out_high = _vec3([min(-(-b // f), n) for b, f, n in zip(high, factor, out_shape, strict=True)])
        self.whole_low = [-(-a // f) for a, f in zip(low, factor, strict=True)]
        self.whole_high = [b // f for b, f in zip(high, factor, strict=True)]

    def cut_slabs(self) -> list[tuple[_Vec3, _Vec3]]:
        """Give the boxes of windows that the border cuts; together they hold every cut window."""
        slabs = []
        for axis in range(3):
            for start, stop in ((self.out_low[axis], self.whole_low[axis]), (self.whole_high[axis], self.out_high[axis])):
                if start < stop:
                    slab_low, slab_high = list(self.out_low), list(self.out_high)
                    slab_low[axis], slab_high[axis] = start, stop
                    slabs.append((_vec3(slab_low), _vec3(slab_high)))
        return slabs


def _vec3(values: Sequence[int]) -> _Vec3:
    x, y, z = (int(value) for value in values)
    return x, y, z


def _nearest(source: npt.NDArray[Any], bounds: _Bounds, out: npt.NDArray[Any]) -> None:
    out[...] = source[np.ix_(*(_voxels(bounds, axis, 0, source.shape[axis], out.shape[axis]) for axis in range(3)))]


def _extreme(source: npt.NDArray[Any], ufunc: np.ufunc, bounds: _Bounds, out: npt.NDArray[Any]) -> None:
    """Reduce axis by axis. A window that the border cuts repeats its last voxel inside, which changes no minimum or maximum."""
    values = source
    for axis in (2, 1, 0):
        f = bounds.factor[axis]
        cut = bounds.low[axis] > 0 or bounds.high[axis] < source.shape[axis]
        reduced: npt.NDArray[Any] | None = None
        for step in range(f):
            voxels = _voxels(bounds, axis, step, source.shape[axis], out.shape[axis]) if cut else slice(step, None, f)
            part = values[(*[slice(None)] * axis, voxels)]
            reduced = part if reduced is None else ufunc(reduced, part)
        assert reduced is not None
        values = reduced
    out[...] = values


def _voxels(bounds: _Bounds, axis: int, step: int, source_len: int, out_len: int) -> npt.NDArray[np.int64]:
    """Give the voxel at place ``step`` of every window along an axis, moved into the box where it lies outside."""
    inside = np.clip(np.arange(out_len) * bounds.factor[axis] + step, bounds.low[axis], max(bounds.high[axis] - 1, bounds.low[axis]))
    return np.minimum(inside, source_len - 1)


def _compiled(source: npt.NDArray[Any], method: str, bounds: _Bounds, out: npt.NDArray[Any]) -> None:
    from wkwdask.kernels import window_compiled

    kind = "float" if source.dtype.kind == "f" else "integer"
    values = np.empty(int(np.prod(bounds.factor)), _wide(source.dtype) if method == "mean" else source.dtype)
    general = window_compiled.mode if method == "mode" else getattr(window_compiled, f"{method}_{kind}")
    whole = _whole_windows(window_compiled, method, bounds.factor, source.dtype)
    if whole is None:
        general(source, bounds.low, bounds.high, bounds.factor, out, bounds.out_low, bounds.out_high, values)
        return
    whole(source, out)
    for slab_low, slab_high in bounds.cut_slabs():
        general(source, bounds.low, bounds.high, bounds.factor, out, slab_low, slab_high, values)


def _whole_windows(kernels: Any, method: str, factor: _Vec3, dtype: np.dtype[Any]) -> Any:
    """Find the kernel that is written out for a factor, None where there is none."""
    if method == "mean" and dtype.kind != "f" and dtype.itemsize == 8:
        return None
    kind = "float" if dtype.kind == "f" else "integer"
    stem = f"{method}_{''.join(map(str, factor))}"
    return getattr(kernels, f"{stem}_{dtype.name}", None) or getattr(kernels, f"{stem}_{kind}", None)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give the type in which integers are summed; floats sum in their own."""
    if dtype.kind == "f":
        return dtype
    return np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
