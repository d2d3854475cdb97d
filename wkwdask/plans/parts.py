"""How an array in any chunks is cut into the parts of shards that are encoded at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The parts of an array."""

    part_shape: Vec3
    """One part [voxels]: whole chunks of the target, inside one shard."""
    touched_nbytes: int
    """What the chunks of the array that a part touches take at most [bytes]."""


def plan_parts(lengths: Sequence[Sequence[int]], box: BoundingBox, chunk_shape: Vec3, shard_shape: Vec3, voxel_nbytes: int, part_nbytes: int) -> PartPlan:
    """Choose parts that are large and touch few chunks of the array.

    Examples
    --------
    Sections become parts of one layer of blocks, as wide as a file.

    >>> from wkwdask.geometry.bounding_box import BoundingBox
    >>> box = BoundingBox((0, 0, 0), (2048, 2048, 512))
    >>> plan_parts([[2048], [2048], [1] * 512], box, (32,) * 3, (1024,) * 3, 1, 128 << 20)
    PartPlan(part_shape=(1024, 1024, 32), touched_nbytes=134217728)
    """
    borders = [np.cumsum([low, *axis]) for low, axis in zip(box.topleft, lengths, strict=True)]

    def touched(shape: Vec3) -> int:
        return math.prod(_touched_length(axis, step) for axis, step in zip(borders, shape, strict=True)) * voxel_nbytes

    shape, nbytes = chunk_shape, touched(chunk_shape)
    while True:
        grown = [(touched(larger), max(larger), larger) for larger in _doublings(shape, shard_shape)]
        fitting = [
            (total, edge, larger) for total, edge, larger in grown if math.prod(larger) * voxel_nbytes <= part_nbytes and total <= max(nbytes, part_nbytes)
        ]
        if not fitting:
            return PartPlan(shape, nbytes)
        nbytes, _, shape = min(fitting)


def _doublings(shape: Vec3, limit: Vec3) -> list[Vec3]:
    """Double one axis, where the result divides a limit."""
    x, y, z = shape
    choices = [(2 * x, y, z), (x, 2 * y, z), (x, y, 2 * z)]
    return [choice for choice in choices if all(n % m == 0 for n, m in zip(limit, choice, strict=True))]


def _touched_length(borders: np.ndarray[tuple[int], np.dtype[np.int64]], step: int) -> int:
    """Give the greatest length of the chunks that one cell of a grid touches."""
    low, high = int(borders[0]), int(borders[-1])
    if high <= low:
        return 0
    starts = np.arange(low // step * step, high, step)
    first = np.searchsorted(borders, np.maximum(starts, low), side="right") - 1
    last = np.searchsorted(borders, np.minimum(starts + step, high), side="left")
    return int((borders[last] - borders[first]).max())
