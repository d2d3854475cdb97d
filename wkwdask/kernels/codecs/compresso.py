"""The door to decoding Compresso: windows of borders, connected pieces between them, and one id for each.

What the format is stands in ``wkwdask.formats.precomputed.compresso``, which has cut the stream into its parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Vec3 = tuple[int, int, int]

WINDOWS, IDS, LOCATIONS = 1, 2, 3
"""What is wrong with a stream: its windows, the number of its ids, what it says of voxels on borders."""


def decode(
    windows: npt.NDArray[np.uint64],
    values: npt.NDArray[np.uint64],
    ids: npt.NDArray[np.uint64],
    locations: npt.NDArray[np.uint64],
    steps: Vec3,
    connectivity: int,
    out: npt.NDArray[np.uint64],
) -> int:
    """Decode a stream."""
    from wkwdask.kernels.codecs import compresso_compiled

    is_border = np.empty(out.shape, np.uint8)
    if not compresso_compiled.decode_borders(windows, values, steps, is_border):
        return WINDOWS
    return int(compresso_compiled.decode_ids(is_border, ids, locations, connectivity, out))
