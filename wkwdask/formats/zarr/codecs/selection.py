"""What zarr asks for of a chunk, as a box of voxels that is read, and what is picked out of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox


def boxed(selection: Any, shape: tuple[int, ...]) -> tuple[BoundingBox, Any]:
    """Find the box around a selection.

    Examples
    --------
    >>> box, rest = boxed((slice(2, 9, 3), 5, slice(0, 4)), (16, 16, 16))
    >>> box.topleft, box.size, rest
    ((0, 5, 2), (4, 1, 7), (slice(0, 7, 3), 0, slice(0, 4, 1)))
    """
    chosen = selection if isinstance(selection, tuple) else (selection,)
    at = next((n for n, one in enumerate(chosen) if one is Ellipsis), None)
    if at is not None:
        chosen = (*chosen[:at], *[slice(None)] * (len(shape) - len(chosen) + 1), *chosen[at + 1 :])
    chosen = (*chosen, *[slice(None)] * (len(shape) - len(chosen)))
    spans, rest = [], []
    for one, length in zip(chosen, shape, strict=True):
        low, high, picked = _span(one, length)
        spans.append((low, high))
        rest.append(picked)
    if len(shape) == 4:
        rest[0] = chosen[0]
    (z, to_z), (y, to_y), (x, to_x) = spans[-3:]
    return BoundingBox.from_corners((x, y, z), (to_x, to_y, to_z)), tuple(rest)


def _span(one: Any, length: int) -> tuple[int, int, Any]:
    """Give the interval of one axis, and what is selected of it."""
    if isinstance(one, slice):
        start, stop, step = one.indices(length)
        count = len(range(start, stop, step))
        if not count:
            return 0, 0, slice(0, 0, 1)
        last = start + (count - 1) * step
        low, high = min(start, last), max(start, last) + 1
        if step > 0:
            return low, high, slice(0, high - low, step)
        return low, high, slice(None, None, step)
    if isinstance(one, (int, np.integer)):
        at = int(one) + (length if one < 0 else 0)
        return at, at + 1, 0
    places = np.asarray(one)
    if places.dtype == np.bool_:
        places = np.flatnonzero(places).reshape([-1 if n > 1 else 1 for n in places.shape] if places.ndim > 1 else -1)
    if not places.size:
        return 0, 0, places.astype(np.intp)
    places = np.where(places < 0, places + length, places)
    low = int(places.min())
    return low, int(places.max()) + 1, places - low
