"""Functions of whole arrays: extremes, a test for zeros, a quick hash, and copies between memory
orders."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wkwdask.kernels.blocks.layout import flat_memory, is_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray


def extremes(array: AnyArray) -> tuple[Any, Any]:
    """Return the least and the greatest value, ignoring NaN.

    Examples
    --------
    >>> import numpy as np
    >>> extremes(np.arange(3, 27, dtype=np.uint8).reshape(1, 2, 3, 4))
    (3, 26)
    """
    least, greatest = (np.fmin, np.fmax) if array.dtype.kind == "f" else (np.minimum, np.maximum)
    return least.reduce(array, axis=None).item(), greatest.reduce(array, axis=None).item()


def is_zero(voxels: AnyArray) -> bool:
    """Return whether all bits of an array (c, x, y, z) of any memory order are zero."""
    if voxels.dtype.kind == "f":
        # -0.0 is not zero: it must survive a round trip
        voxels = voxels.view(f"u{voxels.dtype.itemsize}")
    # most arrays with data fail on the first voxel, or on these few
    if voxels.size and voxels[0, 0, 0, 0]:
        return False
    sample = tuple(slice(None, None, max(1, n // 4)) for n in voxels.shape[1:])
    return not voxels[(slice(None), *sample)].any() and not voxels.any()


_STRIPE_NBYTES = 64  # eight words, one for each state of the hash
_WORD_NBYTES = 8


def quick_hash(array: AnyArray) -> bytes:
    """Hash the bytes of an array, about as fast as memory can be read. Not cryptographic: it
    detects accidental changes, not forged ones.

    Examples
    --------
    >>> import numpy as np
    >>> (
    ...     quick_hash(np.arange(20)) == quick_hash(np.arange(20)),
    ...     quick_hash(np.arange(20)) == quick_hash(np.arange(1, 21)),
    ... )
    (True, False)
    """
    raw = array.ravel(order="K").view(np.uint8)
    whole = raw.size // _STRIPE_NBYTES * _STRIPE_NBYTES
    words = raw[:whole]
    if words.ctypes.data % _WORD_NBYTES:
        words = words.copy()  # compiled loops expect aligned words
    words = words.view(np.uint64)
    return _folded(words, (0, 0), (1, 1), len(words)) + raw[whole:].tobytes()


def quick_hash_in_order(array: AnyArray, memory: AnyArray) -> bytes:
    """Hash an array (c, x, y, z) as :func:`quick_hash` does its copy in Fortran order. It is only
    copied, into ``memory``, if its columns along x are no stripes of contiguous memory.

    Examples
    --------
    >>> import numpy as np
    >>> array = np.arange(1 << 12, dtype=np.uint32).reshape(1, 16, 16, 16)
    >>> memory = np.empty(array.size, array.dtype)
    >>> of_c, of_f = (
    ...     quick_hash_in_order(each, memory) for each in (array, np.asfortranarray(array))
    ... )
    >>> of_c == of_f
    True
    """
    channels, length, *counts = array.shape
    column_nbytes = channels * length * array.itemsize
    if (
        array.size
        and array.itemsize <= _WORD_NBYTES
        and is_plain(array)
        and (channels == 1 or array.strides[0] == array.itemsize)
        and array.strides[1] == channels * array.itemsize
        and column_nbytes % _STRIPE_NBYTES == 0
        and not any(n % _WORD_NBYTES for n in (array.ctypes.data, *array.strides[2:]))
    ):
        words = flat_memory(array)[0].view(np.uint64)
        steps = tuple(stride // _WORD_NBYTES for stride in array.strides[2:])
        return _folded(words, steps, tuple(counts), column_nbytes // _WORD_NBYTES)
    ordered = memory[: array.size].reshape(array.shape, order="F")
    copy_into(array, ordered)
    return quick_hash(ordered)


def _folded(words: AnyArray, steps: tuple[int, ...], counts: tuple[int, ...], length: int) -> bytes:
    from wkwdask.kernels import arrays_compiled

    # always: numba compiles one loop for writeable and one for read-only arrays
    words.flags.writeable = False
    state = np.arange(1, _STRIPE_NBYTES // _WORD_NBYTES + 1, dtype=np.uint64)
    arrays_compiled.fold_columns(words, *steps, *counts, length, state)
    return state.tobytes()


_LINE_NBYTES = 64
_ALIGNED_NBYTES = 1 << 20


def empty_aligned(shape: Sequence[int], dtype: np.dtype[Any], order: Literal["C", "F"]) -> AnyArray:
    """Return an uninitialised array. A large one begins with a line of the cache, so that rows of
    blocks do not cross lines; numpy aligns to 16 bytes.

    Examples
    --------
    >>> import numpy as np
    >>> large = empty_aligned((1, 200, 100, 100), np.dtype(np.uint16), "F")
    >>> large.shape, large.flags.f_contiguous, large.ctypes.data % 64
    ((1, 200, 100, 100), True, 0)
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _ALIGNED_NBYTES:
        return np.empty(shape, dtype, order)
    memory = np.empty(nbytes + _LINE_NBYTES, np.uint8)
    first = -memory.ctypes.data % _LINE_NBYTES
    return np.ndarray(shape, dtype, memory, first, order=order)


# below this many values, the copy of numpy is faster than the call of a compiled loop
_SMALL_SIZE = 4096


def copy_into(source: AnyArray, out: AnyArray) -> None:
    """Copy an array (c, x, y, z) into one of equal shape and any memory order.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 2, 3, 4), np.uint8)
    >>> source = np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(out.shape))
    >>> copy_into(source, out)
    >>> bool((out == source).all())
    True
    """
    if (
        out.size < _SMALL_SIZE
        or source.strides[1] == out.strides[1] == out.itemsize  # numpy copies whole rows
        or source.dtype != out.dtype
        or out.itemsize > 8
        or not is_plain(source)
        or not is_plain(out)
    ):
        out[...] = source
        return
    source_axis, out_axis = _contiguous_axis(source), _contiguous_axis(out)
    if source_axis == out_axis or source_axis is None or out_axis is None:
        out[...] = source
        return
    from wkwdask.kernels import arrays_compiled

    order = (
        source_axis,
        out_axis,
        *(axis for axis in range(4) if axis not in (source_axis, out_axis)),
    )
    flat_out, out_strides = flat_memory(out)
    values, strides = flat_memory(source)
    # always: numba compiles one loop for writeable and one for read-only arrays
    values.flags.writeable = False
    arrays_compiled.copy_tiles(
        values,
        tuple(strides[axis] for axis in order),
        flat_out,
        tuple(out_strides[axis] for axis in order),
        tuple(out.shape[axis] for axis in order),
    )


def _contiguous_axis(array: AnyArray) -> int | None:
    """Return the axis along which values are contiguous, None if there is none."""
    return next(
        (
            axis
            for axis in range(array.ndim)
            if array.shape[axis] > 1 and array.strides[axis] == array.itemsize
        ),
        None,
    )
