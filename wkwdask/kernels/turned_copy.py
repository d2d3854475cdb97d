"""The door to copying arrays whose memory is ordered otherwise: chunks have x closest together, and most arrays of users z."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.kernels.blocks_layout import flat_memory, is_plain

if TYPE_CHECKING:
    import numpy.typing as npt

_FEW = 4096  # values that numpy has copied before a loop here is called


def copy_into(source: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Copy an array to one of another memory order.

    Parameters
    ----------
    source : ndarray, shape (c, x, y, z)
        What is copied, any memory order.
    out : ndarray, shape (c, x, y, z)
        What is filled, any memory order.

    Examples
    --------
    >>> out = np.empty((1, 2, 3, 4), np.uint8)
    >>> source = np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(out.shape))
    >>> copy_into(source, out)
    >>> bool((out == source).all())
    True
    """
    if out.size < _FEW or source.dtype != out.dtype or out.itemsize > 8 or not is_plain(source) or not is_plain(out):
        out[...] = source
        return
    fast, slow = _closest_axis(source), _closest_axis(out)
    if fast == slow:
        out[...] = source
        return
    from wkwdask.kernels import turned_copy_compiled

    order = (fast, slow, *(axis for axis in range(4) if axis not in (fast, slow)))
    into, into_steps = flat_memory(out)
    values, steps = flat_memory(source)
    values.flags.writeable = False  # always, so that the loop is compiled once
    turned_copy_compiled.copy_tiles(
        values, tuple(steps[axis] for axis in order), into, tuple(into_steps[axis] for axis in order), tuple(out.shape[axis] for axis in order)
    )


def _closest_axis(array: npt.NDArray[Any]) -> int:
    """Find the axis along which values lie closest together."""
    return min((axis for axis in range(array.ndim) if array.shape[axis] > 1), key=lambda axis: array.strides[axis])
