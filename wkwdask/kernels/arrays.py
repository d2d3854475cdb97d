"""Whole arrays: extremes, whether all values are zero, a fold of all bytes into 64, and copies between memory orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.kernels.blocks.layout import flat_memory, is_plain

if TYPE_CHECKING:
    import numpy.typing as npt


def extremes(array: npt.NDArray[Any]) -> tuple[Any, Any]:
    """Find the least and the greatest value; NaN is passed over.

    Examples
    --------
    >>> import numpy as np
    >>> extremes(np.arange(3, 27, dtype=np.uint8).reshape(1, 2, 3, 4))
    (3, 26)
    """
    least, greatest = (np.fmin, np.fmax) if array.dtype.kind == "f" else (np.minimum, np.maximum)
    return least.reduce(array, axis=None).item(), greatest.reduce(array, axis=None).item()


def is_zero(voxels: npt.NDArray[Any]) -> bool:
    """Tell whether all values of an array (c, x, y, z) of any memory order are zero, without looking at all of them where a few are not."""
    if voxels.dtype.kind == "f":
        voxels = voxels.view(f"u{voxels.dtype.itemsize}")  # the negative zero is another value
    few = tuple(slice(None, None, max(1, n // 4)) for n in voxels.shape[1:])
    return not voxels[(slice(None), *few)].any() and not voxels.any()


_NBYTES = 64


def fold(array: npt.NDArray[Any]) -> bytes:
    """Fold the memory of an array into few bytes, which differ where an array differs by accident; who means harm can find two that do not.

    Examples
    --------
    >>> import numpy as np
    >>> fold(np.arange(20)) == fold(np.arange(20)), fold(np.arange(20)) == fold(np.arange(1, 21))
    (True, False)
    """
    from wkwdask.kernels import arrays_compiled

    raw = array.ravel(order="K").view(np.uint8)
    whole = raw.size // _NBYTES * _NBYTES
    words = raw[:whole]
    if words.ctypes.data % 8:
        words = words.copy()  # compiled loops take words where words can lie
    words = words.view(np.uint64)
    words.flags.writeable = False  # always, so that the loop is compiled once
    state = np.arange(1, _NBYTES // 8 + 1, dtype=np.uint64)
    arrays_compiled.fold_words(words, state)
    return state.tobytes() + raw[whole:].tobytes()


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
    from wkwdask.kernels import arrays_compiled

    order = (fast, slow, *(axis for axis in range(4) if axis not in (fast, slow)))
    into, into_steps = flat_memory(out)
    values, steps = flat_memory(source)
    values.flags.writeable = False  # always, so that the loop is compiled once
    arrays_compiled.copy_tiles(
        values, tuple(steps[axis] for axis in order), into, tuple(into_steps[axis] for axis in order), tuple(out.shape[axis] for axis in order)
    )


def _contiguous_axis(array: npt.NDArray[Any]) -> int | None:
    """Find the axis along which values lie behind each other, None where there is none."""
    return next((axis for axis in range(array.ndim) if array.shape[axis] > 1 and array.strides[axis] == array.itemsize), None)
