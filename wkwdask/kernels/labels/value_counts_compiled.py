"""Counting values in a compiled loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import kernel

_unsigned = np.uint64


@kernel
def count_values(values: Any, counts: Any) -> None:
    """Count unsigned values in four rows of counters, by turns."""
    whole = values.size // 4
    for n in range(_unsigned(whole)):
        at = n * _unsigned(4)
        counts[0, values[at]] += 1
        counts[1, values[at + _unsigned(1)]] += 1
        counts[2, values[at + _unsigned(2)]] += 1
        counts[3, values[at + _unsigned(3)]] += 1
    for n in range(4 * whole, values.size):
        counts[0, values[n]] += 1
