"""Boxes of voxels. Each box carries the mag whose voxels it counts, so boxes of different mags
cannot be mixed up."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.geometry.mag import Mag, Vec3, vec3
from wkwdask.geometry.vectors import minus, plus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray

MAG_1 = Mag(1, 1, 1)


@dataclass(frozen=True, slots=True)
class BoundingBox:
    """A half-open box of voxels.

    Parameters
    ----------
    topleft : tuple of 3 int
        Lowest corner along x, y, z [voxels of ``mag``], inclusive.
    size : tuple of 3 int
        Extent along x, y, z [voxels of ``mag``]; zero means an empty box.
    mag : Mag
        The mag whose voxels are counted.

    Raises
    ------
    ValueError
        A size is negative, or a value is not a whole number.

    Examples
    --------
    >>> box = BoundingBox((10, 20, 30), (101, 67, 45))
    >>> box.in_mag(Mag(2, 2, 1))
    BoundingBox(topleft=(5, 10, 30), size=(51, 34, 45), mag=Mag(2, 2, 1))
    """

    topleft: Vec3
    size: Vec3
    mag: Mag = MAG_1

    def __post_init__(self) -> None:
        object.__setattr__(self, "topleft", vec3(self.topleft, "topleft"))
        object.__setattr__(self, "size", vec3(self.size, "size"))
        if min(self.size) < 0:
            raise ValueError(f"the size of a bounding box must not be negative, got {self.size}")

    @classmethod
    def from_corners(
        cls, topleft: Sequence[int], bottomright: Sequence[int], mag: Mag = MAG_1
    ) -> BoundingBox:
        """Make a box from its lowest corner and its exclusive upper corner.

        Parameters
        ----------
        topleft, bottomright : sequence of 3 int
            Corners along x, y, z [voxels of ``mag``]; the second is exclusive.
        mag : Mag
            The mag whose voxels are counted.

        Returns
        -------
        BoundingBox

        Raises
        ------
        ValueError
            The second corner lies below the first.
        """
        low, high = vec3(topleft, "topleft"), vec3(bottomright, "bottomright")
        return cls(low, (high[0] - low[0], high[1] - low[1], high[2] - low[2]), mag)

    @classmethod
    def parse(cls, value: BoundingBox | str | Sequence[int]) -> BoundingBox:
        """Parse a box of mag-1 voxels from a string or a sequence.

        Parameters
        ----------
        value : BoundingBox, str or sequence
            Six numbers ``x, y, z, width, height, depth`` as WEBKNOSSOS shows them, in a string or a
            sequence.

        Returns
        -------
        BoundingBox

        Raises
        ------
        ValueError
            The value has another form. A pair of triples could be corners, or a corner and a size.

        Examples
        --------
        >>> BoundingBox.parse("10, 20, 30, 101, 67, 45").bottomright
        (111, 87, 75)
        """
        if isinstance(value, BoundingBox):
            return value
        numbers: list[int] = []
        try:
            if isinstance(value, str):
                numbers = [int(part) for part in re.split(r"[\s,;]+", value.strip())]
            elif len(value) == 6:
                numbers = [*vec3(value[:3]), *vec3(value[3:])]
        except (TypeError, ValueError):
            numbers = []
        if len(numbers) != 6:
            what = (
                "a bounding box is six whole numbers (x, y, z, width, height, depth) in voxels of "
                "mag 1"
            )
            raise ValueError(f"{what}, got {value!r}{_readings(value)}")
        return cls((numbers[0], numbers[1], numbers[2]), (numbers[3], numbers[4], numbers[5]))

    def __str__(self) -> str:
        return f"{self.topleft} + {self.size} in mag {self.mag}"

    @property
    def bottomright(self) -> Vec3:
        """Exclusive upper corner along x, y, z."""
        (x, y, z), (width, height, depth) = self.topleft, self.size
        return x + width, y + height, z + depth

    @property
    def volume(self) -> int:
        """Number of voxels."""
        return self.size[0] * self.size[1] * self.size[2]

    @property
    def is_empty(self) -> bool:
        """Whether the box contains no voxel."""
        return 0 in self.size

    def contains(self, other: BoundingBox) -> bool:
        """Return whether every voxel of ``other`` lies in this box; an empty box lies in any."""
        self._same_mag(other)
        (x, y, z), (to_x, to_y, to_z) = self.topleft, self.bottomright
        (a, b, c), (to_a, to_b, to_c) = other.topleft, other.bottomright
        return other.is_empty or (
            x <= a and y <= b and z <= c and to_x >= to_a and to_y >= to_b and to_z >= to_c
        )

    def intersection(self, other: BoundingBox) -> BoundingBox:
        """Return the voxels that lie in both boxes; the result may be empty."""
        self._same_mag(other)
        # without loops: this is called for every chunk
        (x, y, z), (to_x, to_y, to_z) = self.topleft, self.bottomright
        (a, b, c), (to_a, to_b, to_c) = other.topleft, other.bottomright
        low = max(x, a), max(y, b), max(z, c)
        size = (
            max(0, min(to_x, to_a) - low[0]),
            max(0, min(to_y, to_b) - low[1]),
            max(0, min(to_z, to_c) - low[2]),
        )
        return BoundingBox(low, size, self.mag)

    def union(self, other: BoundingBox) -> BoundingBox:
        """Return the smallest box around both boxes; an empty box adds nothing."""
        self._same_mag(other)
        if self.is_empty or other.is_empty:
            return self if other.is_empty else other
        low = [min(a, b) for a, b in zip(self.topleft, other.topleft, strict=True)]
        high = [max(a, b) for a, b in zip(self.bottomright, other.bottomright, strict=True)]
        return BoundingBox.from_corners(low, high, self.mag)

    def aligned(self, cell: Sequence[int]) -> BoundingBox:
        """Grow the box outward to a grid of cells that starts at voxel 0.

        Parameters
        ----------
        cell : sequence of 3 int
            Edge lengths of one cell [voxels].

        Returns
        -------
        BoundingBox
            The smallest box of whole cells that contains this one.
        """
        low = [a // n * n for a, n in zip(self.topleft, cell, strict=True)]
        high = [-(-b // n) * n for b, n in zip(self.bottomright, cell, strict=True)]
        return BoundingBox.from_corners(low, high, self.mag)

    def in_mag(self, mag: Mag) -> BoundingBox:
        """Convert the box to voxels of another mag, rounded outward.

        Parameters
        ----------
        mag : Mag
            Mag of the result.

        Returns
        -------
        BoundingBox
            Floor of the lowest and ceiling of the highest corner, as in WEBKNOSSOS. An empty axis
            stays empty.
        """
        low = [
            a * m // n for a, m, n in zip(self.topleft, self.mag.factors, mag.factors, strict=True)
        ]
        high = [
            -(-b * m // n) if size else a
            for a, b, size, m, n in zip(
                low, self.bottomright, self.size, self.mag.factors, mag.factors, strict=True
            )
        ]
        return BoundingBox.from_corners(low, high, mag)

    def _same_mag(self, other: BoundingBox) -> None:
        if self.mag != other.mag:
            raise ValueError(f"boxes must be of the same mag, got {self} and {other}")


def moved(box: BoundingBox, shift: Vec3) -> BoundingBox:
    """Return the box shifted by a vector."""
    return replace(box, topleft=plus(box.topleft, shift))


def counted_from(box: BoundingBox, origin: Vec3) -> BoundingBox:
    """Return the box in coordinates relative to ``origin``."""
    return replace(box, topleft=minus(box.topleft, origin))


def part_of_array(array: AnyArray, box: BoundingBox, corner: Vec3) -> AnyArray:
    """Return a view of the part of an array (..., x, y, z) inside a box; ``corner`` is the voxel of
    element 0."""
    (x, y, z), (to_x, to_y, to_z), (a, b, c) = box.topleft, box.bottomright, corner
    part: AnyArray = array[..., x - a : to_x - a, y - b : to_y - b, z - c : to_z - c]
    return part


def _readings(value: Any) -> str:
    """Return what a pair of triples can mean, as six numbers each; empty for other values."""
    try:
        first, second = vec3(value[0]), vec3(value[1])
    except (TypeError, ValueError, IndexError, KeyError):
        return ""
    if len(value) != 2:
        return ""
    return (
        f": write {(*first, *second)} if the pair is a corner and a size, "
        f"{(*first, *minus(second, first))} if it is two corners"
    )


def voxel_box(
    box: BoundingBox | Sequence[Sequence[int]], mag: Mag, name: str = "box"
) -> BoundingBox:
    """Return a box in voxels of a mag. A pair of corners already counts voxels of that mag."""
    if isinstance(box, BoundingBox):
        return box.in_mag(mag)
    if isinstance(box, str) or not hasattr(box, "__len__") or len(box) != 2:
        expected = (
            f"{name} is a pair of corners ((x, y, z), (x, y, z)) in voxels of the mag, the second "
            "one exclusive, or a BoundingBox"
        )
        raise ValueError(f"{expected}, got {box!r}{_six_numbers(box)}")
    return BoundingBox.from_corners(box[0], box[1], mag)


def _six_numbers(value: Any) -> str:
    """Return what six numbers can mean, as two corners each; empty for other values."""
    try:
        box = BoundingBox.parse(value)
    except (TypeError, ValueError):
        return ""
    first, second = box.topleft, box.size
    return (
        f": write {(first, plus(first, second))} if they are a corner and a size in voxels of the "
        f"mag, {(first, second)} if they are two corners"
    )
