"""The compiled loop of ``extremes``."""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import kernel


@kernel
def extremes(values: Any, steps: Any, counts: Any) -> Any:
    """Find the least and the greatest of values; the first axis is the one that lies closest together."""
    low = high = values[0]
    count, step = np.uint64(counts[0]), np.uint64(steps[0])
    for m in range(counts[3]):
        for k in range(counts[2]):
            for j in range(counts[1]):
                at = np.uint64(j * steps[1] + k * steps[2] + m * steps[3])
                if steps[0] == 1:  # known to be side by side, several are compared at once
                    for i in range(count):
                        low, high = min(low, values[at + i]), max(high, values[at + i])
                else:
                    for i in range(count):
                        low, high = min(low, values[at + i * step]), max(high, values[at + i * step])
    return low, high
