"""The door to copies between memory orders: numpy's own take several times longer where the fastest axis of one array is the slowest of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.kernels.blocks_layout import flat_memory, is_plain

if TYPE_CHECKING:
    import numpy.typing as npt

_LEAST = 4096  # values from which the compiled loop is worth its call


def copy_voxels(source: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Copy an array into another one of the same shape and type.

    Parameters
    ----------
    source : ndarray, shape (c, x, y, z)
        What is copied.
    out : ndarray, shape (c, x, y, z)
        What to fill.

    Examples
    --------
    >>> import numpy as np
    >>> voxels = np.arange(64 * 64 * 2, dtype=np.uint16).reshape((1, 64, 64, 2), order="F")
    >>> out = np.zeros(voxels.shape, np.uint16)
    >>> copy_voxels(voxels, out)
    >>> bool((out == voxels).all())
    True
    """
    x, z = (1, 3)
    is_turned = source.strides[x] == source.itemsize and out.strides[z] == out.itemsize and 1 not in (out.shape[x], out.shape[z])
    if is_turned and out.size >= _LEAST and source.dtype == out.dtype and is_plain(source) and is_plain(out):
        from wkwdask.kernels import transpose_compiled

        values, steps = flat_memory(source)
        into, strides = flat_memory(out)
        transpose_compiled.turn(values, steps, into, strides, out.shape)
    else:
        out[...] = source
