"""Ids mapped to others in a whole array."""

from __future__ import annotations

import numpy as np


def mapped(array, pairs, default="keep"):
    """What numpy makes of a whole array."""
    out = array.astype(np.uint64) if default == "keep" else np.zeros(array.shape, np.uint64)
    for old, new in pairs:
        out[array == old] = new
    return out
