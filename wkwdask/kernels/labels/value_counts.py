"""The door to counting voxel values: one compiled call for integers of 8 and 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.kernels.blocks.layout import UNSIGNED

if TYPE_CHECKING:
    import numpy.typing as npt

_LANES = 4  # equal values follow each other: with one counter each would wait for the one before


def is_counted(dtype: np.dtype[Any]) -> bool:
    """Tell whether a type has so few values that each of them is counted."""
    return dtype.kind in "iu" and dtype.itemsize <= 2


def counted_values(dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Give all values of a type, in their order."""
    limits = np.iinfo(dtype)
    return np.arange(limits.min, limits.max + 1).astype(dtype)


def count_values(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Count each value of an integer type of 8 or 16 bits.

    Examples
    --------
    >>> counts = count_values(np.array([-1, 3, 3], np.int8))
    >>> counts[[127, 128 + 3]].tolist(), int(counts.sum())
    ([1, 2], 3)
    """
    from wkwdask.kernels.labels import value_counts_compiled

    num_values = 1 << 8 * values.itemsize
    counts = np.zeros((_LANES, num_values), np.int64)
    value_counts_compiled.count_values(values.view(UNSIGNED[values.itemsize]), counts)
    found = counts.sum(axis=0)
    return np.roll(found, num_values // 2) if values.dtype.kind == "i" else found
