"""What values an array has: whether all are zero, and the least and the greatest, of integers in one walk over its memory in the order in which that lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.kernels.blocks.layout import flat_memory, is_plain

if TYPE_CHECKING:
    import numpy.typing as npt

_FEW = 4096  # values that numpy has seen before a loop here is called


def extremes(array: npt.NDArray[Any]) -> tuple[Any, Any]:
    """Find the least and the greatest value.

    Examples
    --------
    >>> import numpy as np
    >>> extremes(np.arange(3, 27, dtype=np.uint8).reshape(1, 2, 3, 4))
    (3, 26)
    """
    if array.size < _FEW or array.dtype.kind not in "iu" or not is_plain(array):
        least, greatest = (np.fmin, np.fmax) if array.dtype.kind == "f" else (np.minimum, np.maximum)
        return least.reduce(array, axis=None).item(), greatest.reduce(array, axis=None).item()
    from wkwdask.kernels.arrays import extremes_compiled

    flat, strides = flat_memory(array)
    values = flat.view(array.dtype)
    values.flags.writeable = False  # always, so that the loop is compiled once
    order = sorted(range(4), key=lambda axis: (array.shape[axis] == 1, strides[axis]))  # an axis of length 1 has no stride
    low, high = extremes_compiled.extremes(values, tuple(strides[axis] for axis in order), tuple(array.shape[axis] for axis in order))
    return int(low), int(high)


def is_zero(voxels: npt.NDArray[Any]) -> bool:
    """Tell whether all values of an array (c, x, y, z) of any memory order are zero, without looking at all of them where a few are not."""
    if voxels.dtype.kind == "f":
        voxels = voxels.view(f"u{voxels.dtype.itemsize}")  # the negative zero is another value
    few = tuple(slice(None, None, max(1, n // 4)) for n in voxels.shape[1:])
    return not voxels[(slice(None), *few)].any() and not voxels.any()
