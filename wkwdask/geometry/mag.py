"""Mags: resolution steps, as the number of voxels of mag 1 that one voxel spans along x, y and
z."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, SupportsIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

Vec3 = tuple[int, int, int]
"""Three integers along x, y, z."""

MAX_FACTOR = 1 << 30  # the largest power of two in a signed 32-bit integer
_MAG_NAME = re.compile(r"(\d+)(?:-(\d+)-(\d+))?")


def vec3(values: Sequence[Any], what: str = "vector") -> Vec3:
    """Convert three integer-like values to a tuple of Python integers.

    Examples
    --------
    >>> vec3([1, 2.0, 3])
    (1, 2, 3)
    """
    try:
        items = tuple(values)
    except TypeError:  # one number
        items = ()
    if len(items) == 3 and type(items[0]) is type(items[1]) is type(items[2]) is int:
        return items[0], items[1], items[2]
    try:
        whole = [int(item) for item in items]
    except (OverflowError, TypeError, ValueError):  # infinity, a list, text or NaN
        whole = []
    if len(items) != 3 or whole != list(items):
        raise ValueError(f"{what} must be three whole numbers (x, y, z), got {values!r}")
    return whole[0], whole[1], whole[2]


def whole_number(value: Any, what: str, least: int | None = None) -> int:
    """Convert an integer-like value to a Python integer; raises an error for other types, and below
    the least value.

    Examples
    --------
    >>> whole_number(2.0, "size", 1)
    2
    """
    whole: int | None
    try:
        whole = int(value)
    except (OverflowError, TypeError, ValueError):  # infinity, a list, text or NaN
        whole = None
    if whole is None or whole != value:
        raise TypeError(f"{what} must be a whole number, got {value!r}")
    if least is not None and whole < least:
        raise ValueError(f"{what} must be at least {least}, got {whole}")
    return whole


def real_number(value: Any, what: str) -> Any:
    """Return a number; raises a TypeError for other types."""
    if not isinstance(value, Real):
        raise TypeError(f"{what} must be a number, got {value!r}")
    return value


def mag_order(mag: Mag) -> tuple[int, Vec3]:
    """Return the key that sorts the mags of an image from fine to coarse."""
    return mag.maximum, mag.factors


@dataclass(frozen=True, slots=True, order=True)
class Mag:
    """One resolution of a layer.

    Parameters
    ----------
    x, y, z : int
        Voxels of mag 1 that one voxel of this mag spans along the axis; powers of two.

    Raises
    ------
    ValueError
        A factor is not a power of two.

    Examples
    --------
    >>> Mag.parse("2-2-1")
    Mag(2, 2, 1)
    >>> Mag.parse(4).name
    '4'
    """

    x: int
    y: int
    z: int

    def __post_init__(self) -> None:
        if any(factor < 1 or factor & (factor - 1) for factor in self.factors):
            raise ValueError(
                f"the factors of a mag must be powers of two, got {self.x}-{self.y}-{self.z}"
            )
        if self.maximum > MAX_FACTOR:
            raise ValueError(
                f"the factors of a mag must be at most {MAX_FACTOR}, got {self.x}-{self.y}-{self.z}"
            )

    def __repr__(self) -> str:
        return f"Mag({self.x}, {self.y}, {self.z})"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, value: Mag | str | int | Sequence[int]) -> Mag:
        """Parse a mag: ``2``, ``"2"``, ``"2-2-1"`` or ``[2, 2, 1]``.

        Parameters
        ----------
        value : Mag, str, int or sequence of 3 int
            One number stands for all three axes.

        Returns
        -------
        Mag

        Raises
        ------
        ValueError
            The value is none of these forms, or a factor is not a power of two.
        """
        if isinstance(value, Mag):
            return value
        if isinstance(value, str):
            match = _MAG_NAME.fullmatch(value)
            if match is None:
                raise ValueError(f'a mag looks like "2" or "2-2-1", got {value!r}')
            x, y, z = match.groups()
            return cls(int(x), int(y or x), int(z or x))
        if isinstance(value, Iterable):
            return cls(*vec3(value, "a mag"))
        if isinstance(value, SupportsIndex):
            factor = operator.index(value)
            return cls(factor, factor, factor)
        raise ValueError(f'a mag looks like 2, "2-2-1" or (2, 2, 1), got {value!r}')

    @property
    def factors(self) -> Vec3:
        """Factors along x, y, z."""
        return self.x, self.y, self.z

    @property
    def maximum(self) -> int:
        """Largest factor; WEBKNOSSOS orders mags by it."""
        return max(self.factors)

    @property
    def name(self) -> str:
        """Name of the mag's folder: ``"2"`` if all factors are equal, else ``"2-2-1"``."""
        return str(self.x) if self.x == self.y == self.z else self.long_name

    @property
    def long_name(self) -> str:
        """Name with all three factors, which readers accept for any mag."""
        return f"{self.x}-{self.y}-{self.z}"

    def times(self, other: Mag) -> Mag:
        """Return the product of two mags along each axis.

        Examples
        --------
        >>> Mag(2, 2, 1).times(Mag(4, 4, 2))
        Mag(8, 8, 2)
        """
        return Mag(self.x * other.x, self.y * other.y, self.z * other.z)

    def step_to(self, coarser: Mag) -> Vec3:
        """Return how many voxels of this mag one voxel of a coarser mag spans.

        Parameters
        ----------
        coarser : Mag
            A mag whose factors are multiples of these.

        Returns
        -------
        tuple of 3 int

        Raises
        ------
        ValueError
            The other mag is finer along some axis.

        Examples
        --------
        >>> Mag(2, 2, 1).step_to(Mag(4, 4, 2))
        (2, 2, 2)
        """
        if any(b % a for a, b in zip(self.factors, coarser.factors, strict=True)):
            raise ValueError(f"mag {coarser} is not coarser than mag {self} on every axis")
        return coarser.x // self.x, coarser.y // self.y, coarser.z // self.z
