"""Regular grids of equal cells (blocks, files, chunks) that start at voxel 0."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.geometry.bounding_box import BoundingBox

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.array_types import IntArray
    from wkwdask.geometry.mag import Vec3


def cell_range(box: BoundingBox, cell: Sequence[int]) -> tuple[range, range, range]:
    """Return the indices of all cells that a box touches, one range per axis.

    Examples
    --------
    >>> cell_range(BoundingBox((30, 0, 0), (4, 32, 1)), (32, 32, 32))
    (range(0, 2), range(0, 1), range(0, 1))
    """
    if box.is_empty:
        return range(0), range(0), range(0)
    x, y, z = (
        range(a // n, -(-b // n))
        for a, b, n in zip(box.topleft, box.bottomright, cell, strict=True)
    )
    return x, y, z


def is_inside(index: Sequence[int], ranges: Sequence[range]) -> bool:
    """Check whether the index of a cell lies in the ranges of all axes."""
    return all(n in part for n, part in zip(index, ranges, strict=True))


def cells(box: BoundingBox, cell: Sequence[int]) -> Iterator[Vec3]:
    """Iterate over the indices of all cells that a box touches, x fastest."""
    x_range, y_range, z_range = cell_range(box, cell)
    for z, y, x in product(z_range, y_range, x_range):
        yield x, y, z


def cell_box(index: Vec3, cell: Sequence[int], like: BoundingBox) -> BoundingBox:
    """Return the box of one cell, in the mag of ``like``."""
    topleft = (index[0] * cell[0], index[1] * cell[1], index[2] * cell[2])
    return BoundingBox(topleft, (cell[0], cell[1], cell[2]), like.mag)


def clipped_cell(index: Vec3, cell: Sequence[int], box: BoundingBox) -> BoundingBox:
    """Return the part of one cell inside a box."""
    return cell_box(index, cell, box).intersection(box)


def mark_cells(
    marks: Any, low: IntArray, high: IntArray, box: BoundingBox, cell: Sequence[int]
) -> None:
    """Set the cells to True that contain voxels of some boxes.

    ``low`` and ``high``, shape (n, 3), are the corners of the boxes. Cell 0 of ``marks`` is the
    first cell that ``box`` touches.
    """
    low, high = np.maximum(low, box.topleft), np.minimum(high, box.bottomright)
    inside = (low < high).all(axis=1)
    first = np.array([cells.start for cells in cell_range(box, cell)])
    spans = np.unique(
        np.concatenate([low[inside] // cell - first, -(-high[inside] // cell) - first], axis=1),
        axis=0,
    )
    # nearly all boxes lie in one cell: these are marked without a loop
    single = (spans[:, 3:] - spans[:, :3] == 1).all(axis=1)
    marks[tuple(spans[single, :3].T)] = True
    for x, y, z, to_x, to_y, to_z in spans[~single].tolist():
        marks[x:to_x, y:to_y, z:to_z] = True


def piece_lengths(start: int, stop: int, step: int) -> tuple[int, ...]:
    """Cut the interval [start, stop) at the multiples of ``step``, and return the lengths of the
    pieces.

    Examples
    --------
    >>> piece_lengths(30, 100, 32)
    (2, 32, 32, 4)
    """
    if stop <= start:
        return (0,)
    first = min(stop, (start // step + 1) * step)
    whole, rest = divmod(stop - first, step)
    return (first - start, *(step,) * whole, *(rest,) * (rest > 0))
