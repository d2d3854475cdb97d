"""Voxels that an array of an OME-NGFF image has around the box of its level, so that all levels
begin and end in one place."""

from __future__ import annotations

import numpy as np


def inside(array, attributes):
    """Return the voxels (..., z, y, x) in the box of a level, given those of its array and the
    attributes of this; all others must be zero."""
    found = np.asarray(array)
    box = attributes.get("inner_box_vx")
    if box is None:
        return found
    voxels = found[
        (..., *(slice(low, low + n) for low, n in zip(box[2::-1], box[:2:-1], strict=True)))
    ]
    assert np.count_nonzero(voxels) == np.count_nonzero(found)
    return voxels
