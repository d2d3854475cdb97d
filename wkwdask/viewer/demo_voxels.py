"""The voxels of the demonstration dataset: cells with membranes, cytoplasm and mitochondria, in a box of any place and size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3

    Floats = npt.NDArray[np.float64]

_CELL = np.array([72.0, 72.0, 30.0])  # mean distance of cells along x, y, z [voxels]
_MEMBRANE = 2.6  # half width of a membrane [voxels along x]
_PRIMES = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5


def make_labels(low: Vec3, shape: Vec3) -> npt.NDArray[np.uint32]:
    """Make the ids of cells; membranes are 0."""
    first, second, (i, j, k) = _nearest(low, shape)
    return np.where(second - first < _MEMBRANE, 0, (k + 64) * 16384 + (j + 64) * 128 + i + 64).astype(np.uint32)


def make_image(low: Vec3, shape: Vec3) -> npt.NDArray[np.uint8]:
    """Make grey values: dark membranes, grainy cytoplasm, dark mitochondria with cristae."""
    first, second, cell = _nearest(low, shape)
    x, y, _ = places = _places(low, shape)
    value = 148 + 26 * _random(cell, 7) + 34 * (_noise(places, (9, 9, 4), 8) - 0.5) + 22 * (_noise(places, (3, 3, 2), 9) - 0.5)
    blob = np.where(second - first > 5 * _MEMBRANE, _noise(places, (26, 26, 11), 10), 0)
    stripes = np.sin(x * 0.9 + 3 * _noise(places, (12, 12, 6), 11) + y * 0.4)
    value -= np.where(blob > 0.69, 46 + 14 * stripes, np.where(blob > 0.66, 74, 0))
    value -= 84 * np.maximum(0, 1 - (second - first) / _MEMBRANE / 2)
    value += 20 * (_random(places, 12) - 0.5)
    return np.clip(value, 0, 255).astype(np.uint8)


def _places(low: Vec3, shape: Vec3) -> tuple[npt.NDArray[np.int64], ...]:
    return np.ix_(*(np.arange(start, start + length) for start, length in zip(low, shape, strict=True)))


def _random(places: Iterable[npt.NDArray[np.int64]], salt: int) -> Floats:
    """Give a number in 0..1 that belongs to a place."""
    x, y, z = ((place + 4096).astype(np.uint64) * np.uint64(prime) for place, prime in zip(places, _PRIMES, strict=False))
    value = x ^ y ^ z ^ np.uint64(salt * _PRIMES[3] & (1 << 64) - 1)
    value ^= value >> np.uint64(29)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(32)
    found: Floats = (value >> np.uint64(11)) / 9007199254740992.0
    return found


def _noise(places: Sequence[npt.NDArray[np.int64]], step: Vec3, salt: int) -> Floats:
    """Interpolate random numbers of the corners of a lattice."""
    scaled = [place.ravel() / length for place, length in zip(places, step, strict=True)]
    lows = [np.floor(at).astype(np.int64) for at in scaled]
    found = _random(np.ix_(*(np.arange(low[0], low[-1] + 2) for low in lows)), salt)
    for at, low in zip(scaled, lows, strict=True):  # the first axis is interpolated and becomes the last one
        before, after = found[low - low[0]], found[low - low[0] + 1]
        found = np.moveaxis(before + (after - before) * (at - low)[:, np.newaxis, np.newaxis], 0, 2)
    return found


def _nearest(low: Vec3, shape: Vec3) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Find the cell of each voxel: distances of the two nearest centres, and the lattice place of the nearest one, shape (3, x, y, z)."""
    places = _places(low, shape)
    bends = ((26, (60, 60, 24), 1), (26, (60, 60, 24), 2), (9, (70, 70, 28), 3))
    points = np.stack([(at + bend * (_noise(places, step, salt) - 0.5)) / edge for at, (bend, step, salt), edge in zip(places, bends, _CELL, strict=True)])
    points = points.reshape(3, -1)
    lattice = np.stack(np.meshgrid(*(np.arange(axis.min() // 1 - 1, axis.max() // 1 + 2) for axis in points), indexing="ij")).reshape(3, -1).astype(np.int64)
    centres = lattice + np.stack([_random(lattice, salt) for salt in (4, 5, 6)])
    # Only a centre that is not much farther from the middle than the second one can be among the two nearest of any voxel.
    middle = points.mean(axis=1, keepdims=True)
    reach, radius = np.linalg.norm(centres - middle, axis=0), np.linalg.norm(points - middle, axis=0).max()
    is_near = reach <= np.partition(reach, 1)[1] + 2 * radius
    lattice, centres = lattice[:, is_near], centres[:, is_near]
    first, second, nearest = np.full(points.shape[1], np.inf), np.full(points.shape[1], np.inf), np.zeros(points.shape[1], np.int64)
    for number, centre in enumerate(centres.T):
        square = ((points - centre[:, np.newaxis]) ** 2).sum(axis=0)
        nearest[square < first] = number
        second = np.minimum(second, np.maximum(first, square))
        first = np.minimum(first, square)
    return np.sqrt(first).reshape(shape) * _CELL[0], np.sqrt(second).reshape(shape) * _CELL[0], lattice[:, nearest].reshape(3, *shape)
