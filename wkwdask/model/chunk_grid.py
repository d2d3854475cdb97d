"""Grid of the chunks of a stored array. Cells are (c, x, y, z), counted from the first voxel of the
array."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.plans.chunks import chunk_group_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3

Vec4 = tuple[int, int, int, int]
"""Four integers along c, x, y, z."""
Ranges = tuple[range, range, range, range]
"""Ranges of cells along c, x, y, z."""


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """Boxes of the chunks and files of an array; all shapes are (c, x, y, z) in voxels."""

    size: Vec4
    """Shape of the array."""
    chunk: Vec4
    """Shape of a chunk."""
    file: Vec4 | None
    """Shape of the box of one file; None if the chunks of a file form no box."""
    unit: Vec3
    """Shape (x, y, z) of the box of one task, receipt and state [voxels]: a file, or a group of
    small files."""
    origin: Vec3 = (0, 0, 0)
    """Absolute first voxel of the array."""
    truncates: bool = False
    """Whether chunks at the end of the array are stored cut off."""

    def cells(self, low: Sequence[int], high: Sequence[int]) -> Ranges:
        """Return the chunks that a box inside the array touches."""
        c, x, y, z = (
            range(a // n, -(-b // n)) if b > a else range(0)
            for a, b, n in zip(low, high, self.chunk, strict=True)
        )
        return c, x, y, z

    def shape_at(self, cell: Sequence[int]) -> Vec4:
        """Return the stored shape of a chunk."""
        return self.clipped_shape_at(cell) if self.truncates else self.chunk

    def clipped_shape_at(self, cell: Sequence[int]) -> Vec4:
        """Return the shape of the part of a chunk inside the array."""
        (c, x, y, z), (c_edge, x_edge, y_edge, z_edge), (channels, width, height, depth) = (
            cell,
            self.chunk,
            self.size,
        )
        return (
            min(c_edge, channels - c * c_edge),
            min(x_edge, width - x * x_edge),
            min(y_edge, height - y * y_edge),
            min(z_edge, depth - z * z_edge),
        )

    def slices_at(self, cell: Sequence[int]) -> tuple[slice, slice, slice, slice]:
        """Return the part (c, x, y, z) of the array in a chunk."""
        c, x, y, z = (
            slice(n * edge, n * edge + length)
            for n, edge, length in zip(cell, self.chunk, self.clipped_shape_at(cell), strict=True)
        )
        return c, x, y, z

    @property
    def counts(self) -> Vec4:
        """Number of chunks along each axis."""
        return _ceil_divide(self.size, self.chunk)

    @property
    def file_counts(self) -> Vec4:
        """Number of files along each axis; 1 if the chunks of a file form no box."""
        return _ceil_divide(self.size, self.file or self.size)

    @property
    def chunks_per_file(self) -> int:
        """Largest number of chunks in a file."""
        return math.prod(_ceil_divide(self.file or self.size, self.chunk))


def _ceil_divide(a: Vec4, b: Vec4) -> Vec4:
    """Return ``a / b``, rounded up."""
    c, x, y, z = (-(-n // m) for n, m in zip(a, b, strict=True))
    return c, x, y, z


def grouped_unit(size: Vec4, file: Vec4, itemsize: int) -> Vec3:
    """Return the shape (x, y, z) of a group of files of about 64 MiB, which one task handles
    [voxels]."""
    counts = _ceil_divide(size, file)
    group = chunk_group_shape(counts[1:], math.prod(file[1:]) * size[0] * itemsize)
    return group[0] * file[1], group[1] * file[2], group[2] * file[3]


def one_file_grid(size: Vec4, chunk: Vec4) -> ChunkGrid:
    """Return the grid of an array whose chunks all lie in one file, without voxels beyond its end.

    Examples
    --------
    >>> one_file_grid((1, 100, 80, 30), (1, 64, 64, 16)).file
    (1, 128, 128, 32)
    """
    c, x, y, z = (-(-n // edge) * edge for n, edge in zip(size, chunk, strict=True))
    return ChunkGrid(size, chunk, (c, x, y, z), (x, y, z), truncates=True)


def pick_cxyz(values: Sequence[int], axes: str) -> Vec4:
    """Reorder one number per named axis to (c, x, y, z); missing axes get 1.

    Examples
    --------
    >>> pick_cxyz((7, 8, 9), "zyx")
    (1, 9, 8, 7)
    """
    c, x, y, z = (values[axes.index(letter)] if letter in axes else 1 for letter in "cxyz")
    return c, x, y, z


def to_cxyz(values: AnyArray, axes: str) -> AnyArray:
    """Transpose an array with named axes to (c, x, y, z), as a view; axes named ``-`` have length
    1.

    Examples
    --------
    >>> to_cxyz(np.zeros((5, 4, 1, 2)), "xy-c").shape
    (2, 5, 4, 1)
    """
    index, order = _turn(axes)
    return values[index].transpose(order)


@lru_cache(maxsize=64)
def _turn(axes: str) -> tuple[tuple[slice | int | None, ...], tuple[int, ...]]:
    """Return the index and the order of axes that transpose an array with named axes."""
    kept = [letter for letter in axes if letter != "-"]
    missing = [letter for letter in "cxyz" if letter not in kept]
    index = [slice(None) if letter != "-" else 0 for letter in axes]
    order = [*missing, *kept]
    return (*([None] * len(missing)), *index), tuple(order.index(letter) for letter in "cxyz")


def from_cxyz(values: AnyArray, axes: str) -> AnyArray:
    """Transpose an array (c, x, y, z) to named axes, as a view; axes without a name have length 1.

    Examples
    --------
    >>> from_cxyz(np.zeros((2, 5, 4, 1)), "xy-c").shape
    (5, 4, 1, 2)
    """
    index, order, new = _named_axes(axes)
    named: AnyArray = values[index].transpose(order)[new]
    return named


@lru_cache(maxsize=64)
def _named_axes(axes: str) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[Any, ...]]:
    """Return an index, the order of axes and a second index that turn an array (c, x, y, z) to
    named axes."""
    left = [letter for letter in "cxyz" if letter in axes]
    return (
        tuple(slice(None) if letter in axes else 0 for letter in "cxyz"),
        tuple(left.index(letter) for letter in axes if letter != "-"),
        tuple(slice(None) if letter != "-" else np.newaxis for letter in axes),
    )
