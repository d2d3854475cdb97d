"""Triangle surfaces of labels: marching cubes, simplification, joining, and Draco.

Vertices are whole numbers of 1/64 voxel, so that those of two cells are equal or not, and positions
between two voxels and the planes between cells are exact.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray

UNIT = 64
"""Units of a vertex in one voxel."""
SIMPLIFIERS = ("pyfqmr", "meshoptimizer")
_EXTRA = "meshes"
_FEWEST_FACES = 8  # that are simplified
_COMPRESSION_LEVEL = 1  # higher ones make nothing smaller
_HALF = 16  # bits of a coordinate
_pyfqmr_lock = threading.Lock()
"""Lock on the surface that pyfqmr works on: its global variables hold one for all threads."""
_QUADRIC_FACTOR, _ITERATIONS, _FIRST_ITERATION, _GROWTH = 4.0, 10, 3, 3


Bounds: TypeAlias = "tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]"
"""Lowest and highest position inside a cell, not on its planes."""


class Surface(NamedTuple):
    """Triangles; those of a closed surface are seen counter-clockwise from outside."""

    vertices: npt.NDArray[np.int32]
    """Positions along x, y, z [units], shape (n, 3)."""
    faces: npt.NDArray[np.uint32]
    """Indices of vertices, shape (m, 3)."""


def check_packages(simplifier: str) -> None:
    """Raise an error that names the extra if a package is missing."""
    for module in ("zmesh", "DracoPy"):
        import_extra(module, "meshes", _EXTRA)
    if simplifier == "meshoptimizer":
        from wkwdask.meshing import fast_simplifier  # noqa: F401
    else:
        import_extra("pyfqmr", 'simplifier="pyfqmr"', _EXTRA)


def marching_cubes(labels: AnyArray) -> Iterator[tuple[int, Surface]]:
    """Yield each label of an array with its surface, counted from the centre of the first voxel.
    Surfaces end at the faces of the array."""
    mesher = import_extra("zmesh", "meshes", _EXTRA).Mesher((1, 1, 1))
    mesher.mesh(np.asfortranarray(labels))
    for label in sorted(mesher.ids()):
        mesh = mesher.get(label, normals=False, reduction_factor=0)
        mesher.erase(label)
        if len(mesh.faces):
            vertices = np.rint(mesh.vertices * UNIT).astype(np.int32)
            yield int(label), Surface(vertices, mesh.faces.astype(np.uint32, copy=False))


@dataclass(frozen=True, slots=True)
class Simplifier:
    """Library that makes surfaces simpler."""

    name: str
    """``"pyfqmr"`` or ``"meshoptimizer"``."""
    edges: tuple[float, ...]
    """Edge lengths of a voxel along x, y, z, relative to their geometric mean."""

    def simplify(
        self, surface: Surface, bounds: Bounds, error: float, reduction: float
    ) -> Surface | None:
        """Return a simpler surface that keeps all vertices outside of bounds: at most about
        ``error`` voxels away, and with at least ``1 / reduction`` of the faces. Other vertices stay
        within bounds. Return None if the library lost a vertex outside, or all faces."""
        if len(surface.faces) < _FEWEST_FACES or not error:
            return surface
        least = int(len(surface.faces) / reduction)
        is_held = are_outside(surface.vertices, bounds)
        if self.name == "meshoptimizer":
            simple, is_kept = self._by_meshoptimizer(surface, is_held, error, least)
        else:
            simple = self._by_pyfqmr(surface, error, least)
            is_outside = are_outside(simple.vertices, bounds)
            outside = simple.vertices[is_outside]
            keys, held = _keys(outside, surface.vertices[is_held])
            is_own = np.isin(keys, held)[:, np.newaxis]
            simple.vertices[is_outside] = np.where(is_own, outside, outside.clip(*bounds))
            is_kept = np.isin(held, keys)
        return simple if len(simple.faces) and is_kept.all() else None

    @property
    def _scale(self) -> npt.NDArray[np.float64]:
        """Edge lengths of a unit along x, y, z [voxels of the same volume]."""
        return np.array(self.edges) / UNIT

    def _by_meshoptimizer(
        self, surface: Surface, is_held: npt.NDArray[np.bool_], error: float, least: int
    ) -> tuple[Surface, npt.NDArray[np.bool_]]:
        """Return a simpler surface, and which of the held vertices it has."""
        from wkwdask.meshing.fast_simplifier import simplify

        # single precision is exact near 0; a minimum over rows is slower
        corner = np.array([column.min() for column in surface.vertices.T])
        positions = ((surface.vertices - corner) * self._scale).astype(np.float32)
        faces = simplify(positions, surface.faces, is_held, least, error)
        is_used = _are_used(surface.vertices, faces)
        return _with_vertices(surface.vertices, faces, is_used), is_used[is_held]

    def _by_pyfqmr(self, surface: Surface, error: float, least: int) -> Surface:
        # The library sums squared distances from the planes of faces, up to a threshold that grows
        # with each iteration. The factor makes surfaces shrink as much as with meshoptimizer.
        most = (_QUADRIC_FACTOR * error) ** 2
        work = import_extra("pyfqmr", 'simplifier="pyfqmr"', _EXTRA).Simplify()
        with _pyfqmr_lock:
            work.setMesh(surface.vertices * self._scale, surface.faces.view(np.int32))
            work.simplify_mesh(
                target_count=max(least, _FEWEST_FACES // 2),
                preserve_border=True,
                max_iterations=_ITERATIONS,
                aggressiveness=_GROWTH,
                K=_FIRST_ITERATION,
                alpha=most / (_ITERATIONS - 1 + _FIRST_ITERATION) ** _GROWTH,
                verbose=False,
            )
            positions, faces, _ = work.getMesh()
        vertices = np.rint(positions / self._scale).astype(np.int32)
        return Surface(vertices, faces.view(np.uint32))


def are_outside(vertices: npt.NDArray[np.int32], bounds: Bounds) -> npt.NDArray[np.bool_]:
    """Return which vertices lie outside of bounds."""
    is_outside = np.zeros(len(vertices), np.bool_)
    for column, low, high in zip(vertices.T, *bounds, strict=True):  # a pass over rows is slower
        is_outside |= (column < low) | (column > high)
    return is_outside


def _keys(*arrays: npt.NDArray[np.int32]) -> list[AnyArray]:
    """Return each position of some arrays as one number."""
    ends = [end(array, axis=0) for array in arrays if len(array) for end in (np.min, np.max)]
    low = np.min(ends or np.zeros((1, 3), np.int64), axis=0).astype(np.int64)
    extent = np.max([low, *ends], axis=0) - low + 1
    if math.prod(extent.tolist()) < 1 << 63:
        weights = np.array([extent[1] * extent[2], extent[2], 1])
        return [(array - low) @ weights for array in arrays]
    return [_wide_keys(array) for array in arrays]


def _wide_keys(vertices: npt.NDArray[np.int32]) -> npt.NDArray[np.complex128]:
    """Return keys of 96 bits: two doubles hold three numbers of 32 bits exactly."""
    x, y, z = vertices.astype(np.int64).T
    keys = np.empty(len(vertices), np.complex128)
    keys.real, keys.imag = x << _HALF | y & (1 << _HALF) - 1, z << _HALF | y >> _HALF
    return keys


def _are_used(
    vertices: npt.NDArray[np.int32], faces: npt.NDArray[np.uint32]
) -> npt.NDArray[np.bool_]:
    """Return which vertices have a face."""
    is_used = np.zeros(len(vertices), np.bool_)
    is_used[faces] = True
    return is_used


def _with_vertices(
    vertices: npt.NDArray[np.int32], faces: npt.NDArray[np.uint32], is_used: npt.NDArray[np.bool_]
) -> Surface:
    """Return a surface with some of the vertices."""
    numbers = np.cumsum(is_used, dtype=np.uint32) - np.uint32(1)
    return Surface(vertices[is_used], numbers[faces])


def without_unused(surface: Surface) -> Surface:
    """Return a surface without the vertices of no face."""
    vertices, faces = surface
    return _with_vertices(vertices, faces, _are_used(vertices, faces))


def joined(parts: Sequence[Surface]) -> Surface:
    """Join surfaces: equal positions become one vertex, and faces that have become lines are
    dropped."""
    starts = np.cumsum([0, *(len(part.vertices) for part in parts)]).astype(np.uint32)
    vertices = np.concatenate([part.vertices for part in parts])
    faces = np.concatenate(
        [part.faces + start for part, start in zip(parts, starts[:-1], strict=True)]
    )
    (keys,) = _keys(vertices)
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    faces = numbers.reshape(-1).astype(np.uint32)[faces]
    a, b, c = faces.T
    return without_unused(Surface(vertices[first], faces[(a != b) & (b != c) & (a != c)]))


def encode(vertices: npt.NDArray[np.uint32], faces: npt.NDArray[np.uint32]) -> bytes:
    """Encode a surface in Draco, without quantization of its whole numbers."""
    draco = import_extra("DracoPy", "meshes", _EXTRA)
    return bytes(draco.encode(vertices, faces, compression_level=_COMPRESSION_LEVEL))
