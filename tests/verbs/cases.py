"""Arrays of the matrix, drawn from a seed, and their results by numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Case:
    """Array and its position."""

    array: np.ndarray
    """Voxels (c, x, y, z): blobs of few values with many zeros, for labels, ties and chunks of
    zeros."""
    offset: tuple[int, int, int]
    """Lower corner [voxels of mag 1]."""

    @property
    def size(self) -> tuple[int, int, int]:
        return self.array.shape[1:]

    @property
    def end(self) -> tuple[int, int, int]:
        return tuple(low + n for low, n in zip(self.offset, self.size, strict=True))

    def part(self, rng: np.random.Generator) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Draw the lower and upper corner of a box inside the array [absolute voxels]."""
        low = [int(rng.integers(n)) for n in self.size]
        high = [
            int(rng.integers(first + 1, n + 1)) for first, n in zip(low, self.size, strict=True)
        ]
        return tuple(o + n for o, n in zip(self.offset, low, strict=True)), tuple(
            o + n for o, n in zip(self.offset, high, strict=True)
        )

    def crop(self, box: tuple[tuple[int, int, int], tuple[int, int, int]]) -> np.ndarray:
        """Return the voxels of a box [absolute voxels]."""
        return self.array[
            (
                slice(None),
                *(slice(low - o, high - o) for low, high, o in zip(*box, self.offset, strict=True)),
            )
        ]


TYPES = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
)
SEGMENTATION_TYPES = ("uint8", "uint16", "uint32", "uint64")
LOWEST = -1000
"""Lowest position that is drawn."""


def draw(
    seed: int, types: Sequence[str] = TYPES, *, is_segmentation: bool = False, lowest: int = 0
) -> Case:
    """Draw an array: one voxel thick, on and off the chunk grid, dense or sparse, of one to three
    channels, anywhere from ``lowest`` on."""
    rng = np.random.default_rng(seed)
    size = tuple(
        int(rng.choice([1, int(rng.integers(2, 8)), int(rng.integers(8, 40))], p=[0.1, 0.2, 0.7]))
        for _ in range(3)
    )
    dtype = np.dtype(
        rng.choice([name for name in types if not is_segmentation or name in SEGMENTATION_TYPES])
    )
    channels = 1 if is_segmentation else int(rng.choice([1, 1, 2, 3]))
    array = _blobs(rng, (channels, *size), dtype, is_segmentation=is_segmentation)
    places = [(0, 20), (0, 20), (10_000, 200_000), (lowest, 1)]
    return Case(
        array, tuple(int(rng.integers(*places[rng.integers(len(places))])) for _ in range(3))
    )


def _blobs(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: np.dtype,
    *,
    is_segmentation: bool,
    sparse: float = 0.3,
) -> np.ndarray:
    """Draw voxels (c, x, y, z): blobs of few values and many zeros, and single voxels of 100 in
    images; ``sparse`` is the probability of few blobs."""
    size = shape[1:]
    small = rng.integers(0, 9, (shape[0], *(-(-n // 5) for n in size)))
    small[small % 3 == 0] = 0
    if rng.random() < sparse:  # most chunks and files are missing
        small[rng.random(small.shape) < 0.9] = 0
    array = (
        small.astype(dtype)
        .repeat(5, 1)
        .repeat(5, 2)
        .repeat(5, 3)[:, : size[0], : size[1], : size[2]]
    )
    array = np.where(
        (rng.random(array.shape) < 0.02) & (not is_segmentation), dtype.type(100), array
    )
    if not array.any():
        array[0, 0, 0, 0] = 7
    return array


def draw_of_size(
    seed: int,
    dtype: str,
    shape: tuple[int, int, int, int],
    offset: tuple[int, int, int],
    *,
    is_segmentation: bool = False,
) -> Case:
    """Draw a dense array (c, x, y, z) of a given type, shape and position."""
    return Case(
        _blobs(
            np.random.default_rng(seed),
            shape,
            np.dtype(dtype),
            is_segmentation=is_segmentation,
            sparse=0,
        ),
        offset,
    )


def largest_of_windows(case: Case, step: tuple[int, int, int]) -> Case:
    """Return the maximum of every window anchored at absolute voxel 0, without voxels outside the
    box."""
    before = [o % n for o, n in zip(case.offset, step, strict=True)]
    after = [-(o + m) % n for o, m, n in zip(case.offset, case.size, step, strict=True)]
    padded = np.pad(case.array, [(0, 0), *zip(before, after, strict=True)])
    shape = [len(padded)]
    for n, factor in zip(padded.shape[1:], step, strict=True):
        shape += [n // factor, factor]
    return Case(
        padded.reshape(shape).max(axis=(2, 4, 6)),
        tuple(o // n for o, n in zip(case.offset, step, strict=True)),
    )


def step_of(mag: str) -> tuple[int, int, int]:
    """Return the factors x, y, z of a mag such as ``4-4-2``."""
    x, y, z = (int(n) for n in mag.split("-"))
    return x, y, z


def rounded_down(case: Case, step: tuple[int, int, int]) -> Case:
    """Return the maximum of every window that lies in the array as a whole; the array begins at
    voxel 0."""
    size = tuple(n // factor * factor for n, factor in zip(case.size, step, strict=True))
    return largest_of_windows(Case(case.crop((case.offset, size)), case.offset), step)


def other_voxels(array: np.ndarray) -> np.ndarray:
    """Return an array of the same type in which every voxel differs."""
    return ~array if array.dtype == bool else array + 1


def components_of(labels: np.ndarray) -> np.ndarray:
    """Number the connected components of every label; voxels that share a face, an edge or a corner
    are neighbours."""
    numbered = np.zeros(labels.shape, np.int64)
    for label in set(np.unique(labels)) - {0}:
        parts, _ = ndimage.label(labels == label, np.ones((3, 3, 3)))
        numbered[parts > 0] = parts[parts > 0] + numbered.max()
    return numbered
