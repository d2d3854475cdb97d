"""Names for the types of numpy arrays in annotations.

Signatures of the public API spell the types out, for readers of ``help()``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]
"""Array of any data type, such as voxels."""
BoolArray = npt.NDArray[np.bool_]
ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
"""Indices, positions and counts."""
UintArray = npt.NDArray[np.uint64]
"""Ids, offsets in files, and Morton codes."""
