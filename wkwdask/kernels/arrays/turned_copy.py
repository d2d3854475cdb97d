"""The door to copies between memory orders: numpy's own take several times longer where the fastest axis of one array is the slowest of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.kernels.blocks.layout import flat_memory, is_plain

if TYPE_CHECKING:
    import numpy.typing as npt

_FEW = 4096  # values that numpy has copied before a loop here is called


def copy_into(source: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Copy an array to one of another memory order.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 2, 3, 4), np.uint8)
    >>> source = np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(out.shape))
    >>> copy_into(source, out)
    >>> bool((out == source).all())
    True
    """
    if out.size < _FEW or source.dtype != out.dtype or out.itemsize > 8 or not is_plain(source) or not is_plain(out):
        out[...] = source
        return
    fast, slow = _contiguous_axis(source), _contiguous_axis(out)
    if fast == slow or fast is None or slow is None:
        out[...] = source
        return
    from wkwdask.kernels.arrays import turned_copy_compiled

    order = (fast, slow, *(axis for axis in range(4) if axis not in (fast, slow)))
    into, into_steps = flat_memory(out)
    values, steps = flat_memory(source)
    values.flags.writeable = False  # always, so that the loop is compiled once
    turned_copy_compiled.copy_tiles(
        values, tuple(steps[axis] for axis in order), into, tuple(into_steps[axis] for axis in order), tuple(out.shape[axis] for axis in order)
    )


def _contiguous_axis(array: npt.NDArray[Any]) -> int | None:
    """Find the axis along which values lie behind each other, None where there is none."""
    return next((axis for axis in range(array.ndim) if array.shape[axis] > 1 and array.strides[axis] == array.itemsize), None)
