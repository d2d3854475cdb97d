"""Demo dataset that resembles cortex: cells with membranes, cytoplasm without nuclei, mitochondria,
and their segmentation.

Each voxel is computed from its position alone, so tasks can compute chunks independently.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.webknossos.datasource import FILE_NAME, format_datasource, new_document
from wkwdask.store.paths import basename, local_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray, ByteArray, FloatArray, IntArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.runs.report import Report

    Floats = FloatArray

VOXEL_SIZE_NM = (11.24, 11.24, 28.0)
OFFSET: Vec3 = (1000, 2000, 300)
SHAPE: Vec3 = (512, 512, 192)
_CHUNK = (128, 128, 64)
_FILE_LEN = 8
_PART = (64, 64, 32)  # computed at once: arrays fit into the cache


def make_demo(folder: str | os.PathLike[str], *, shape: Sequence[int] = SHAPE) -> list[Report]:
    """Create a small demo dataset with an image, a segmentation and the pyramids of both.

    Tasks run on threads, or on the active dask Client.

    Parameters
    ----------
    folder : str or path
        Folder of the dataset; must be empty or new.
    shape : sequence of 3 int
        Extent along x, y, z [voxels].

    Returns
    -------
    list of Report
        Reports of the two layers and the two pyramids.

    Raises
    ------
    ExistsError
        The folder is not empty.

    Examples
    --------
    >>> import tempfile
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp() + "/demo"
    >>> reports = wkwdask.make_demo(folder, shape=(64, 64, 32))
    >>> [layer.name for layer in wkwdask.open_dataset(folder)]
    ['color', 'segmentation']
    """
    import dask.array as da

    from wkwdask.api.pyramids import build_pyramid
    from wkwdask.api.to_wkw import to_wkw
    from wkwdask.errors import ExistsError

    target = local_path(folder)
    store = store_at(target)
    if store.exists() and (not store.is_folder() or store.names()):
        raise ExistsError(f"{target}: already exists and is not empty; name another folder")
    store.make()
    store.put(
        FILE_NAME, format_datasource(new_document(basename(store.real()), VOXEL_SIZE_NM)).encode()
    )
    reports: list[Report] = []
    for layer, dtype in (("color", np.uint8), ("segmentation", np.uint32)):
        chunks = da.core.normalize_chunks(_CHUNK, shape=tuple(shape), dtype=dtype)
        voxels = da.map_blocks(
            _demo_chunk, chunks=chunks, dtype=dtype, meta=np.empty((0, 0, 0), dtype), layer=layer
        )
        reports.append(to_wkw(voxels, f"{target}/{layer}/1", offset=OFFSET, file_len=_FILE_LEN))
        reports.append(build_pyramid(target, layer))
    return reports


def _demo_chunk(*, layer: str, block_info: Any) -> AnyArray:
    """Compute one chunk of a layer, shape (x, y, z)."""
    from wkwdask.viewer.demo import make_image, make_labels

    low, high = zip(*block_info[None]["array-location"], strict=True)
    out = np.empty(np.subtract(high, low), np.uint8 if layer == "color" else np.uint32)
    for part in product(
        *(range(0, length, edge) for length, edge in zip(out.shape, _PART, strict=True))
    ):
        inside = out[tuple(slice(at, at + edge) for at, edge in zip(part, _PART, strict=True))]
        corner = tuple(a + b for a, b in zip(low, part, strict=True))
        inside[...] = (
            make_image(corner, inside.shape)
            if layer == "color"
            else make_labels(corner, inside.shape)
        )
    return out


_CELL = np.array([72.0, 72.0, 30.0])  # mean distance of cells along x, y, z [voxels]
_MEMBRANE = 2.6  # half width of a membrane [voxels along x]
_PRIMES = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5


def make_labels(low: Vec3, shape: Vec3) -> npt.NDArray[np.uint32]:
    """Compute the ids of cells; membranes are 0."""
    first, second, nearest, (i, j, k) = _nearest(low, shape)
    ids = ((k + 64) * 16384 + (j + 64) * 128 + i + 64).astype(np.uint32)
    return np.where(second - first < _MEMBRANE, np.uint32(0), ids[nearest])


def make_image(low: Vec3, shape: Vec3) -> ByteArray:
    """Compute gray values: dark membranes, grainy cytoplasm, dark mitochondria with cristae."""
    first, second, nearest, cells = _nearest(low, shape)
    to_membrane = second - first
    x, y, _ = positions = _positions(low, shape)
    value = (148 + 26 * _random(cells, 7))[nearest]
    value += 34 * (_noise(positions, (9, 9, 4), 8) - 0.5)
    value += 22 * (_noise(positions, (3, 3, 2), 9) - 0.5)
    blob = np.where(to_membrane > 5 * _MEMBRANE, _noise(positions, (26, 26, 11), 10), 0)
    value -= np.where((blob > 0.66) & (blob <= 0.69), 74, 0)
    inside = np.nonzero(blob > 0.69)
    bends = 3 * _noise(positions, (12, 12, 6), 11)[inside]
    stripes = np.sin(x.ravel()[inside[0]] * 0.9 + bends + y.ravel()[inside[1]] * 0.4)
    value[inside] -= 46 + 14 * stripes
    value -= 84 * np.maximum(0, 1 - to_membrane / _MEMBRANE / 2)
    value += 20 * (_random(positions, 12) - 0.5)
    return np.clip(value, 0, 255).astype(np.uint8)


def _positions(low: Vec3, shape: Vec3) -> tuple[IntArray, ...]:
    return np.ix_(
        *(np.arange(start, start + length) for start, length in zip(low, shape, strict=True))
    )


def _random(positions: Iterable[IntArray], salt: int) -> Floats:
    """Return a pseudo-random number in [0, 1) for each position."""
    x, y, z = (
        (position + 4096).astype(np.uint64) * np.uint64(prime)
        for position, prime in zip(positions, _PRIMES, strict=False)
    )
    value = x ^ np.uint64(salt * _PRIMES[3] & (1 << 64) - 1) ^ y ^ z
    value ^= value >> np.uint64(29)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(32)
    numbers: Floats = (value >> np.uint64(11)) / 9007199254740992.0
    return numbers


def _noise(positions: Sequence[IntArray], step: Vec3, salt: int) -> Floats:
    """Interpolate random numbers at the corners of a lattice linearly (value noise)."""
    scaled = [position.ravel() / length for position, length in zip(positions, step, strict=True)]
    lows = [np.floor(at).astype(np.int64) for at in scaled]
    numbers = _random(np.ix_(*(np.arange(low[0], low[-1] + 2) for low in lows)), salt)
    for axis, (at, low) in enumerate(zip(scaled, lows, strict=True)):
        before = numbers.take(low - low[0], axis)
        numbers = numbers.take(low - low[0] + 1, axis)
        numbers -= before
        numbers *= (at - low).reshape(-1, *(2 - axis) * (1,))
        numbers += before
    return numbers


def _nearest(low: Vec3, shape: Vec3) -> tuple[Floats, Floats, IntArray, IntArray]:
    """Return the distances of the two nearest cell centers of each voxel, the number of the
    nearest, and the lattice positions of all centers, shape (3, n)."""
    from wkwdask.kernels.nearest_compiled import find_two_nearest

    positions = _positions(low, shape)
    bends = ((26, (60, 60, 24), 1), (26, (60, 60, 24), 2), (9, (70, 70, 28), 3))
    points = np.stack(
        [
            (at + bend * (_noise(positions, step, salt) - 0.5)) / edge
            for at, (bend, step, salt), edge in zip(positions, bends, _CELL, strict=True)
        ]
    )
    lattice = (
        np.stack(
            np.meshgrid(
                *(np.arange(axis.min() // 1 - 1, axis.max() // 1 + 2) for axis in points),
                indexing="ij",
            )
        )
        .reshape(3, -1)
        .astype(np.int64)
    )
    centers = lattice + np.stack([_random(lattice, salt) for salt in (4, 5, 6)])
    first, second, nearest = np.empty(shape), np.empty(shape), np.empty(shape, np.int64)
    find_two_nearest(points, centers, first, second, nearest)
    return np.sqrt(first) * _CELL[0], np.sqrt(second) * _CELL[0], nearest, lattice
