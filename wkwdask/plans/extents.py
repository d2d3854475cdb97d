"""Extents of the levels of an image whose arrays begin and end in one place.

Some software places coarser levels by the ratio of lengths alone, and by the corner of the finest
level. So arrays may be larger than the boxes of their levels::

    blocks of the coarsest level   |               |               |
    boxes of levels                        ----------------
                                           ==================
    extents of all levels          |-----------------------|            begin on a block, end on a voxel of the coarsest level
"""  # noqa: E501

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.vectors import times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.mag import Vec3


def common_extent(boxes: Sequence[BoundingBox], block_shape: Vec3) -> BoundingBox:
    """Return the smallest extent of all levels [voxels of mag 1]; the last box is that of the
    coarsest level, whose blocks have the given shape.

    Examples
    --------
    >>> from wkwdask.geometry.mag import Mag
    >>> boxes = [
    ...     BoundingBox((101, 35, 17), (75, 64, 40)),
    ...     BoundingBox((50, 17, 17), (38, 33, 40), Mag(2, 2, 1)),
    ... ]
    >>> common_extent(boxes, (16, 16, 16)).topleft, common_extent(boxes, (16, 16, 16)).bottomright
    ((96, 32, 16), (176, 100, 57))
    """
    corners = [
        (
            times(box.topleft, box.mag.factors),
            times(box.bottomright, box.mag.factors),
            box.mag.factors,
        )
        for box in boxes
    ]
    lows, highs, factors = zip(*corners, strict=True)
    low, high = [], []
    for axis, length in enumerate(times(block_shape, boxes[-1].mag.factors)):
        whole = math.lcm(*(factor[axis] for factor in factors))
        block = math.lcm(length, whole)
        low.append(min(corner[axis] for corner in lows) // block * block)
        high.append(-(-max(corner[axis] for corner in highs) // whole) * whole)
    return BoundingBox.from_corners(low, high, MAG_1)


def extent_beside(other: BoundingBox, box: BoundingBox) -> BoundingBox:
    """Return the extent of a level in an image with another level of a known extent: it begins with
    that level, and its length is rounded up.

    A box that reaches beyond the other level is its own extent.

    Examples
    --------
    >>> from wkwdask.geometry.mag import Mag
    >>> other = BoundingBox((96, 32, 0), (81, 64, 40))
    >>> extent_beside(other, BoundingBox((50, 16, 0), (38, 32, 20), Mag(2, 2, 2)))
    BoundingBox(topleft=(48, 16, 0), size=(41, 32, 20), mag=Mag(2, 2, 2))
    """
    whole = other.in_mag(box.mag)
    if not whole.contains(box):
        return box
    # A finer level may end inside of the last voxel of the other one.
    ends = zip(
        box.bottomright,
        box.in_mag(other.mag).bottomright,
        other.bottomright,
        whole.bottomright,
        strict=True,
    )
    return BoundingBox.from_corners(
        whole.topleft,
        [end if rounded == last else outer for end, rounded, last, outer in ends],
        box.mag,
    )
