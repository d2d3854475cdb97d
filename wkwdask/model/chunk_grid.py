"""The grid of chunks of a stored array. Cells are (c, x, y, z) and count from the first voxel of the array."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.plans.chunks import chunk_group_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3

Vec4 = tuple[int, int, int, int]
"""Along c, x, y, z."""
Ranges = tuple[range, range, range, range]
"""Cells along c, x, y, z."""


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """Where the chunks of an array are."""

    size: Vec4
    """Lengths of the array [voxels]."""
    chunk: Vec4
    """A chunk [voxels]."""
    file: Vec4 | None
    """What one file holds [voxels]; None where the chunks of a file are no box."""
    unit: Vec3
    """Box along x, y, z that one task, receipt and state is about [voxels]: a file, or a group of small files."""
    origin: Vec3 = (0, 0, 0)
    """Absolute voxel of the first voxel."""
    truncates: bool = False
    """Whether chunks end where the array ends."""

    def cells(self, low: Sequence[int], high: Sequence[int]) -> Ranges:
        """Return the chunks that a box inside the array touches."""
        c, x, y, z = (range(a // n, -(-b // n)) if b > a else range(0) for a, b, n in zip(low, high, self.chunk, strict=True))
        return c, x, y, z

    def shape_at(self, cell: Sequence[int]) -> Vec4:
        """Return the lengths of a chunk as it is stored."""
        return self.inside_at(cell) if self.truncates else self.chunk

    def inside_at(self, cell: Sequence[int]) -> Vec4:
        """Return the lengths of the part of a chunk that lies inside the array."""
        c, x, y, z = (min(edge, size - n * edge) for n, edge, size in zip(cell, self.chunk, self.size, strict=True))
        return c, x, y, z

    @property
    def counts(self) -> Vec4:
        """Chunks along each axis."""
        c, x, y, z = (-(-n // edge) for n, edge in zip(self.size, self.chunk, strict=True))
        return c, x, y, z

    @property
    def file_counts(self) -> Vec4:
        """Files along each axis; 1 where the chunks of a file are no box."""
        c, x, y, z = (-(-n // edge) for n, edge in zip(self.size, self.file or self.size, strict=True))
        return c, x, y, z

    @property
    def chunks_per_file(self) -> int:
        """Chunks that a file has room for."""
        return math.prod(-(-n // edge) for n, edge in zip(self.file or self.size, self.chunk, strict=True))


def grouped_unit(size: Vec4, file: Vec4, itemsize: int) -> Vec3:
    """Choose a group of files that are handled together, about 64 MiB [voxels]."""
    counts = [-(-n // edge) for n, edge in zip(size, file, strict=True)]
    group = chunk_group_shape((counts[1], counts[2], counts[3]), math.prod(file[1:]) * size[0] * itemsize)
    return group[0] * file[1], group[1] * file[2], group[2] * file[3]


def pick_cxyz(values: Sequence[int], axes: str, default: int = 1) -> Vec4:
    """Pick the numbers along c, x, y, z out of one for each named axis.

    Examples
    --------
    >>> pick_cxyz((7, 8, 9), "zyx")
    (1, 9, 8, 7)
    """
    c, x, y, z = (values[axes.index(letter)] if letter in axes else default for letter in "cxyz")
    return c, x, y, z


def to_cxyz(values: npt.NDArray[Any], axes: str) -> npt.NDArray[Any]:
    """Turn an array with named axes to (c, x, y, z), as a view.

    Examples
    --------
    >>> to_cxyz(np.zeros((5, 4, 1, 2)), "xy-c").shape
    (2, 5, 4, 1)
    """
    kept = [letter for letter in axes if letter != "-"]
    values = values[tuple(slice(None) if letter != "-" else 0 for letter in axes)]
    missing = [letter for letter in "cxyz" if letter not in kept]
    values = values[(np.newaxis,) * len(missing)]
    order = [*missing, *kept]
    return values.transpose([order.index(letter) for letter in "cxyz"])


def from_cxyz(values: npt.NDArray[Any], axes: str) -> npt.NDArray[Any]:
    """Turn an array (c, x, y, z) to named axes, as a view; axes that have no name have length 1.

    Examples
    --------
    >>> from_cxyz(np.zeros((2, 5, 4, 1)), "xy-c").shape
    (5, 4, 1, 2)
    """
    named = values[tuple(slice(None) if letter in axes else 0 for letter in "cxyz")]
    left = [letter for letter in "cxyz" if letter in axes]
    order = [letter for letter in axes if letter != "-"]
    named = named.transpose([left.index(letter) for letter in order])
    return named[tuple(slice(None) if letter != "-" else np.newaxis for letter in axes)]
