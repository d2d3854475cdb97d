"""The door to the loop that maps ids to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def map_ids(ids: npt.NDArray[Any], keys: npt.NDArray[np.uint64] | None, values: npt.NDArray[Any], out: npt.NDArray[Any], *, keeps: bool) -> int | None:
    """Map the ids of an array.

    Examples
    --------
    >>> ids, out = np.array([0, 7, 7, 2, 5], np.uint32), np.empty(5, np.uint8)
    >>> map_ids(ids, np.array([2, 7], np.uint64), np.array([9, 1], np.uint64), out, keeps=True)
    >>> out.tolist()
    [0, 1, 1, 9, 5]
    """
    from wkwdask.kernels.labels import remap_compiled

    flat, into = ids.ravel("K"), out.ravel("K")
    if not flat.size:
        return None
    longest = np.uint64(2**64 - 1)
    # A negative id is named by nobody: as bits it lies beyond all that are looked up.
    end = np.uint64(2 ** (8 * ids.itemsize - 1)) if ids.dtype.kind == "i" else longest
    if keys is None:
        end = min(end, np.uint64(len(values)))
    most_kept = longest if ids.dtype == out.dtype else np.uint64(min(np.iinfo(out.dtype).max, np.iinfo(ids.dtype).max))
    no_keys = np.zeros(0, np.uint64)
    place = remap_compiled.map_ids(
        flat.view(f"u{flat.itemsize}"), no_keys if keys is None else keys, values.view(f"u{values.itemsize}"), keys is None, end, keeps, most_kept,
        into.view(f"u{into.itemsize}"),
    )  # fmt: skip
    return None if place < 0 else int(flat[place])
