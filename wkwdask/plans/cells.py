"""Marks on the cells of a grid, for example on the regions with data: a boolean array, or a set of
the marked cells for very large grids."""

from __future__ import annotations

import math
from itertools import product
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from wkwdask.errors import UnsupportedError
from wkwdask.geometry.grid import cell_range, mark_cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wkwdask.array_types import BoolArray, IntArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3

    CellMap: TypeAlias = "BoolArray | SparseCells"

_LARGEST_ARRAY = 1 << 27  # cells
_MOST_LISTED = 1 << 22  # cells


class SparseCells:
    """Marks on the cells of a grid that is too large for an array: a set of the marked cells with
    the few array operations that plans use."""

    def __init__(self, shape: Vec3, name: str, marked: Iterable[Vec3] = ()) -> None:
        self.shape, self.name = shape, name
        self.marked = set(marked)

    @property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def __setitem__(self, key: EllipsisType | tuple[Any, ...], value: bool) -> None:
        """Mark the cells selected by three slices or by three index arrays."""
        assert value
        if isinstance(key, tuple) and not isinstance(key[0], slice):
            self._add(zip(*(np.asarray(axis).tolist() for axis in key), strict=True), len(key[0]))
            return
        ranges = self._ranges(key)
        self._add(product(*ranges), math.prod(map(_length, ranges)))

    def _add(self, cells: Iterable[Any], count: int) -> None:
        if len(self.marked) + count > _MOST_LISTED:
            sizes = " x ".join(map(str, self.shape))
            raise UnsupportedError(
                f"{self.name}: found more than {_MOST_LISTED} regions with data in a grid of "
                f"{sizes}; use a smaller box"
            )
        self.marked.update(cells)

    def _ranges(self, key: EllipsisType | tuple[slice, ...]) -> list[range]:
        slices = (slice(None),) * 3 if isinstance(key, EllipsisType) else key
        return [
            range(*part.indices(length)) for part, length in zip(slices, self.shape, strict=True)
        ]

    def __getitem__(self, key: tuple[slice, ...]) -> SparseCells:
        """Return the cells selected by three slices."""
        ranges = self._ranges(key)
        shape, (x, y, z) = (_length(ranges[0]), _length(ranges[1]), _length(ranges[2])), ranges
        count = math.prod(shape)
        # whichever is shorter
        candidates = product(x, y, z) if count < len(self.marked) else self.marked
        inside = (
            cell
            for cell in candidates
            if cell in self.marked and cell[0] in x and cell[1] in y and cell[2] in z
        )
        return SparseCells(
            shape, self.name, ((a - x.start, b - y.start, c - z.start) for a, b, c in inside)
        )

    def indices(self) -> IntArray:
        """Return the marked cells in the order of ``np.argwhere``, shape (n, 3)."""
        return np.array(sorted(self.marked), np.int64).reshape(-1, 3)

    def sum(self) -> int:
        """Count the marked cells."""
        return len(self.marked)

    def mean(self) -> float:
        """Return the fraction of marked cells."""
        return len(self.marked) / max(1, self.size)

    def all(self) -> bool:
        """Return whether all cells are marked."""
        return len(self.marked) == self.size

    def any(self) -> bool:
        """Return whether any cell is marked."""
        return bool(self.marked)

    def __and__(self, other: Any) -> SparseCells:
        """Return the cells marked in both maps."""
        return SparseCells(self.shape, self.name, self.marked & other.marked)


def _length(numbers: range) -> int:
    """Return the length of a range; ``len`` fails from 2^63 on."""
    return max(0, numbers.stop - numbers.start)


def count_cells(box: BoundingBox, cell: Sequence[int]) -> int:
    """Count the cells that a box touches."""
    return math.prod(map(_length, cell_range(box, cell)))


def needs_sparse(box: BoundingBox, cell: Sequence[int]) -> bool:
    """Return whether a box touches more cells than a boolean array may have."""
    return count_cells(box, cell) > _LARGEST_ARRAY


def cell_map(box: BoundingBox, cell: Sequence[int], name: str, *, fill: bool = False) -> CellMap:
    """Create a map of the cells that a box touches, shape (x, y, z): a boolean array, or
    :class:`SparseCells` if that is too large."""
    x, y, z = map(_length, cell_range(box, cell))
    if x * y * z <= _LARGEST_ARRAY:
        return np.full((x, y, z), fill, np.bool_)
    sparse = SparseCells((x, y, z), name)
    if fill:
        sparse[...] = True
    return sparse


def union_cells(first: CellMap, second: CellMap) -> CellMap:
    """Return the cells marked in either of two maps of one grid."""
    if isinstance(first, SparseCells) or isinstance(second, SparseCells):
        assert isinstance(first, SparseCells)
        assert isinstance(second, SparseCells)
        return SparseCells(first.shape, first.name, first.marked | second.marked)
    return first | second


def marked_cells(marks: CellMap) -> IntArray:
    """Return the indices of the marked cells, shape (n, 3)."""
    return marks.indices() if isinstance(marks, SparseCells) else np.argwhere(marks)


def project_cells(
    marks: CellMap,
    first: Sequence[int],
    cell: Sequence[int],
    box: BoundingBox,
    other: Sequence[int],
) -> SparseCells:
    """Mark the cells of another shape that share voxels with marked ones; ``first`` is the index of
    the first cell of ``marks``."""
    x, y, z = map(_length, cell_range(box, other))
    projected = SparseCells((x, y, z), marks.name if isinstance(marks, SparseCells) else str(box))
    low = (marked_cells(marks) + np.array(first, np.int64)) * np.array(cell, np.int64)
    mark_cells(projected, low, low + np.array(cell, np.int64), box, other)
    return projected
