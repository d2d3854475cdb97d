"""Marks on the cells of a grid, such as those that have data: an array of bool, or where the grid is too large for one, a set of the marked cells."""

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

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3

    CellMap: TypeAlias = "npt.NDArray[np.bool_] | SparseCells"

_LARGEST_ARRAY = 1 << 27  # cells
_MOST_LISTED = 1 << 22  # cells


class SparseCells:
    """Marks on the cells of a grid that is too large for an array: a set of the marked ones, with those operations of an array that are needed."""

    def __init__(self, shape: Vec3, name: str, marked: Iterable[Vec3] = ()) -> None:
        self.shape, self.name = shape, name
        self.marked = set(marked)

    @property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def __setitem__(self, key: EllipsisType | tuple[Any, ...], value: bool) -> None:
        """Mark the cells of three slices, or of three arrays of indices."""
        assert value
        if isinstance(key, tuple) and not isinstance(key[0], slice):
            self._add(zip(*(np.asarray(one).tolist() for one in key), strict=True), len(key[0]))
            return
        ranges = self._ranges(key)
        self._add(product(*ranges), math.prod(map(_length, ranges)))

    def _add(self, cells: Iterable[Any], count: int) -> None:
        if len(self.marked) + count > _MOST_LISTED:
            sizes = " x ".join(map(str, self.shape))
            raise UnsupportedError(f"{self.name}: found more than {_MOST_LISTED} regions with data in a grid of {sizes}; use a smaller box")
        self.marked.update(cells)

    def _ranges(self, key: EllipsisType | tuple[slice, ...]) -> list[range]:
        slices = (slice(None),) * 3 if isinstance(key, EllipsisType) else key
        return [range(*one.indices(length)) for one, length in zip(slices, self.shape, strict=True)]

    def __getitem__(self, key: tuple[slice, ...]) -> SparseCells:
        """Give the cells of three slices."""
        ranges = self._ranges(key)
        shape, (x, y, z) = (_length(ranges[0]), _length(ranges[1]), _length(ranges[2])), ranges
        count = math.prod(shape)
        candidates = product(x, y, z) if count < len(self.marked) else self.marked
        inside = (cell for cell in candidates if cell in self.marked and cell[0] in x and cell[1] in y and cell[2] in z)
        return SparseCells(shape, self.name, ((a - x.start, b - y.start, c - z.start) for a, b, c in inside))

    def places(self) -> npt.NDArray[np.int64]:
        """List the marked cells in the order of an array, shape (n, 3)."""
        return np.array(sorted(self.marked), np.int64).reshape(-1, 3)

    def sum(self) -> int:
        """Count the marked cells."""
        return len(self.marked)

    def mean(self) -> float:
        """Give the share of marked cells."""
        return len(self.marked) / max(1, self.size)

    def all(self) -> bool:
        """Tell whether all cells are marked."""
        return len(self.marked) == self.size

    def any(self) -> bool:
        """Tell whether any cell is marked."""
        return bool(self.marked)

    def __and__(self, other: Any) -> SparseCells:
        """Give the cells that are marked in both."""
        return SparseCells(self.shape, self.name, self.marked & other.marked)


def _length(numbers: range) -> int:
    """Give the length of a range, which ``len`` refuses from 2^63 on."""
    return max(0, numbers.stop - numbers.start)


def count_cells(box: BoundingBox, cell: Sequence[int]) -> int:
    """Count the cells that a box touches."""
    return math.prod(map(_length, cell_range(box, cell)))


def needs_sparse(box: BoundingBox, cell: Sequence[int]) -> bool:
    """Tell whether a box touches more cells than an array of all of them can have."""
    return count_cells(box, cell) > _LARGEST_ARRAY


def cell_map(box: BoundingBox, cell: Sequence[int], name: str, *, fill: bool = False) -> CellMap:
    """Make marks for all cells that a box touches: an array of bool, shape (x, y, z), or where that is too large, a set of the marked ones."""
    x, y, z = map(_length, cell_range(box, cell))
    if x * y * z <= _LARGEST_ARRAY:
        return np.full((x, y, z), fill, np.bool_)
    found = SparseCells((x, y, z), name)
    if fill:
        found[...] = True
    return found


def union_cells(first: CellMap, second: CellMap) -> CellMap:
    """Give the marks of two maps of one grid."""
    if isinstance(first, SparseCells) or isinstance(second, SparseCells):
        assert isinstance(first, SparseCells)
        assert isinstance(second, SparseCells)
        return SparseCells(first.shape, first.name, first.marked | second.marked)
    return first | second


def marked_cells(found: CellMap) -> npt.NDArray[np.int64]:
    """List the places of marked cells, shape (n, 3)."""
    return found.places() if isinstance(found, SparseCells) else np.argwhere(found)


def project_cells(found: CellMap, first: Sequence[int], cell: Sequence[int], box: BoundingBox, other: Sequence[int]) -> SparseCells:
    """Mark the cells of another size that hold voxels of marked ones."""
    x, y, z = map(_length, cell_range(box, other))
    moved = SparseCells((x, y, z), found.name if isinstance(found, SparseCells) else str(box))
    low = (marked_cells(found) + np.array(first, np.int64)) * np.array(cell, np.int64)
    mark_cells(moved, low, low + np.array(cell, np.int64), box, other)
    return moved
