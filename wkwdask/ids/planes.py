"""Nodes on the faces of bricks, paired where they touch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.geometry.grid import is_inside
from wkwdask.kernels.labels.components import pair_faces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wkwdask.array_types import IntArray, UintArray
    from wkwdask.geometry.mag import Vec3

    Nodes = tuple[IntArray, UintArray]

_KEPT_PLANES = 64
_ALL = slice(None)
# A face with a border of one voxel is assembled from the faces of 3 x 3 bricks. -1, 0, 1 is the
# position of a brick along one axis of the face:
#
#        -1        0         1
#     [.. .. a][b .. .. c][d .. ..]     _NEAR_EDGE: voxels that are copied from each brick: a, b to c, d  # noqa: E501
#           [a  b .. .. c  d]           _BORDER: voxels of the bordered face to which they are copied  # noqa: E501
_NEAR_EDGE = {-1: slice(-1, None), 0: _ALL, 1: slice(0, 1)}
_BORDER = {-1: slice(0, 1), 0: slice(1, -1), 1: slice(-1, None)}


@dataclass(frozen=True)
class FacePlanes:
    """Nodes on the faces of all bricks, and which of them touch."""

    read: Callable[[Vec3, int], Nodes | None]
    """Function that reads a face of a brick, 2 * axis for the lower one and 2 * axis + 1 for the
    upper one: node and value of each voxel, shape (v, u), with node -1 for background; None for a
    face without nodes. Only voxels of equal values are joined."""
    bricks: tuple[range, range, range]
    """Indices of all bricks along x, y, z."""
    connectivity: int
    axes: tuple[int, ...] = (0, 1, 2)
    """Axes along which bricks are joined."""
    _nodes: Callable[[Vec3, int], Nodes | None] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_nodes", lru_cache(maxsize=_KEPT_PLANES)(self.read))

    def pairs(self, brick: Vec3) -> Iterator[IntArray]:
        """Yield the pairs of nodes of a brick and of the bricks beyond its upper faces, shape (n,
        2)."""
        # Each pair of adjacent faces is visited once, from its lower brick. With connectivity 18 or
        # 26, a voxel also touches voxels of bricks diagonally beyond the face, so the opposite face
        # gets a border of one voxel.
        for axis in self.axes:
            face = self._nodes(brick, 2 * axis + 1)
            if face is None:
                continue
            beyond = (brick[0] + (axis == 0), brick[1] + (axis == 1), brick[2] + (axis == 2))
            shape = (face[0].shape[0], face[0].shape[1])
            yield pair_faces(face, self._bordered(beyond, axis, shape), self.connectivity)

    def _bordered(self, brick: Vec3, axis: int, shape: tuple[int, int]) -> Nodes:
        """Read the lower face of a brick, with a border of one voxel from the neighbouring bricks
        where diagonal voxels are connected."""
        v, u = (n for n in (2, 1, 0) if n != axis)
        nodes = np.full((shape[0] + 2, shape[1] + 2), -1, np.int64)
        values = np.zeros(nodes.shape, np.uint64)
        steps_v, steps_u = (
            (-1, 0, 1) if self.connectivity > 6 and n in self.axes else (0,) for n in (v, u)
        )
        for dv in steps_v:
            for du in steps_u:
                other = list(brick)
                other[v] += dv
                other[u] += du
                if not is_inside(other, self.bricks):
                    continue
                face = self._nodes((other[0], other[1], other[2]), 2 * axis)
                if face is not None:
                    nodes[_BORDER[dv], _BORDER[du]], values[_BORDER[dv], _BORDER[du]] = (
                        array[_NEAR_EDGE[dv], _NEAR_EDGE[du]] for array in face
                    )
        return nodes, values
