"""Public functions for voxel values: map ids, and count values of 8 and 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.kernels.blocks.layout import UNSIGNED

if TYPE_CHECKING:
    from wkwdask.array_types import AnyArray, IntArray, UintArray


def map_ids(
    ids: AnyArray, keys: UintArray | None, values: AnyArray, out: AnyArray, *, keeps: bool
) -> int | None:
    """Map the ids of an array into ``out``. Return the first kept id that ``out`` cannot hold; None
    if all fit.

    ``keys`` are ascending ids and ``values`` their targets; without keys, ``values`` is indexed by
    id. Other ids stay if ``keeps`` is set, else become 0.

    Examples
    --------
    >>> ids, out = np.array([0, 7, 7, 2, 5], np.uint32), np.empty(5, np.uint8)
    >>> map_ids(ids, np.array([2, 7], np.uint64), np.array([9, 1], np.uint64), out, keeps=True)
    >>> out.tolist()
    [0, 1, 1, 9, 5]
    """
    from wkwdask.kernels.labels import values_compiled

    flat, flat_out = ids.ravel("K"), out.ravel("K")
    if not flat.size:
        return None
    # The table has no negative ids. As unsigned bits they lie above ``last``, where nothing is
    # looked up.
    last, is_dense = np.iinfo(ids.dtype).max, keys is None and len(values) > 0
    if is_dense:
        last = min(last, len(values) - 1)
    max_kept = (
        2**64 - 1
        if ids.dtype == out.dtype
        else min(np.iinfo(out.dtype).max, np.iinfo(ids.dtype).max)
    )
    no_keys = np.zeros(0, np.uint64)
    index = values_compiled.map_ids(
        flat.view(f"u{flat.itemsize}"),
        no_keys if keys is None else keys,
        values.view(f"u{values.itemsize}"),
        is_dense,
        np.uint64(last),
        keeps,
        np.uint64(max_kept),
        flat_out.view(f"u{flat_out.itemsize}"),
    )
    return None if index < 0 else int(flat[index])


# neighbouring voxels are often equal: with a single counter, each increment would wait for the one
# before
_LANES = 4


def is_counted(dtype: np.dtype[Any]) -> bool:
    """Return whether a type has few enough values to count each of them."""
    return dtype.kind in "iu" and dtype.itemsize <= 2


def counted_values(dtype: np.dtype[Any]) -> AnyArray:
    """Return all values of a type in ascending order."""
    limits = np.iinfo(dtype)
    return np.arange(limits.min, limits.max + 1).astype(dtype)


def count_values(values: AnyArray) -> IntArray:
    """Count each value of an integer type of 8 or 16 bits.

    Examples
    --------
    >>> counts = count_values(np.array([-1, 3, 3], np.int8))
    >>> counts[[127, 128 + 3]].tolist(), int(counts.sum())
    ([1, 2], 3)
    """
    from wkwdask.kernels.labels import values_compiled

    num_values = 1 << 8 * values.itemsize
    counts = np.zeros((_LANES, num_values), np.int64)
    values_compiled.count_values(values.view(UNSIGNED[values.itemsize]), counts)
    totals = counts.sum(axis=0)
    # as bits, negative values come last
    return np.roll(totals, num_values // 2) if values.dtype.kind == "i" else totals
