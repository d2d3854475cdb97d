"""Element-wise arithmetic on (x, y, z) triples of integers; for three numbers plain Python is
faster than numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wkwdask.geometry.mag import Vec3


def plus(a: Vec3, b: Vec3) -> Vec3:
    """Return ``a + b``."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def minus(a: Vec3, b: Vec3) -> Vec3:
    """Return ``a - b``."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def times(a: Vec3, b: Vec3) -> Vec3:
    """Return ``a * b``."""
    return a[0] * b[0], a[1] * b[1], a[2] * b[2]


def divide(a: Vec3, b: Vec3) -> Vec3:
    """Return ``a // b``, rounded down."""
    return a[0] // b[0], a[1] // b[1], a[2] // b[2]


def ceil_divide(a: Vec3, b: Vec3) -> Vec3:
    """Return ``a / b``, rounded up."""
    return -(-a[0] // b[0]), -(-a[1] // b[1]), -(-a[2] // b[2])


def is_multiple(a: Vec3, b: Vec3) -> bool:
    """Check whether each number of ``a`` is a multiple of the one of ``b``."""
    return a[0] % b[0] == 0 and a[1] % b[1] == 0 and a[2] % b[2] == 0


def doubled(a: Vec3) -> Vec3:
    """Return ``2 * a``."""
    return a[0] * 2, a[1] * 2, a[2] * 2
