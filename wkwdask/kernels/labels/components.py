"""Public functions for connected components: in one array, and between adjacent arrays.

Equal neighbouring voxels that are not zero are connected. With connectivity 6, neighbours share a
face; with 18, a face or an edge; with 26, a face, an edge or a corner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray, IntArray, UintArray

    Corner = Sequence[int]

CONNECTIVITIES = (6, 18, 26)
_MOST_VOXELS = 2**31 - 1  # runs are numbered in int32


@dataclass(frozen=True, slots=True)
class LabelRuns:
    """Labels of an array as runs of equal voxels along x, in the order of memory. Background has no
    runs."""

    shape: tuple[int, ...]
    """Shape of the array along x, y, z."""
    first: IntArray
    """First run of each row, x along the row, and the number of runs; shape (y * z + 1,)."""
    begin: npt.NDArray[np.int32]
    """First voxel of each run along x."""
    end: npt.NDArray[np.int32]
    """Voxel after the last one of each run."""
    labels: npt.NDArray[np.uint32]

    def paint(self, lookup: AnyArray, out: AnyArray, corner: Corner) -> None:
        """Write ``lookup[label]`` into an array in Fortran order, shape (x, y, z), in which that of
        the runs begins at ``corner``. Voxels without a label stay."""
        self._paint(lookup, (0, 0, 0), self.shape, corner, out)

    def face(
        self, axis: int, side: int, lookup: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.uint32] | None:
        """Return ``lookup[label]`` on the lower (0) or upper (1) face, shape (v, u), slower axis
        first; None without labels."""
        low, high = [0, 0, 0], list(self.shape)
        low[axis], high[axis] = (high[axis] - 1, high[axis]) if side else (0, 1)
        out = np.zeros(np.subtract(high, low), lookup.dtype, order="F")
        self._paint(lookup, low, high, [-n for n in low], out)
        return out.squeeze(axis).T if out.any() else None

    def _paint(
        self, lookup: AnyArray, low: Corner, high: Corner, step: Corner, out: AnyArray
    ) -> None:
        from wkwdask.kernels.labels.components_compiled import paint_runs

        corners = (tuple(corner[::-1]) for corner in (low, high, step))
        runs = self.first, self.begin, self.end, self.labels
        paint_runs(*runs, lookup, self.shape[1], *corners, out.T)


class Components(NamedTuple):
    """Components of an array, numbered from 1 on. Those that touch an open face come first."""

    runs: LabelRuns
    values: UintArray
    """Values of the components that touch an open face, as bits."""
    sizes: IntArray
    """Voxels of each component."""


def label_brick(
    voxels: AnyArray, connectivity: int, is_open: npt.ArrayLike = ((False, False),) * 3
) -> Components:
    """Label the components of an array.

    ``is_open`` marks the faces of the array, low and high along x, y, z, beyond which the volume
    continues. See ``components_compiled`` for the method.

    Examples
    --------
    >>> voxels = np.array([[[7]], [[7]], [[0]], [[7]]], np.uint8)
    >>> runs, values, sizes = label_brick(voxels, 6, ((True, False),) * 3)
    >>> runs.begin.tolist(), runs.end.tolist(), runs.labels.tolist()
    ([0, 3], [2, 4], [1, 2])
    >>> values.tolist(), sizes.tolist()
    ([7, 7], [2, 1])
    """
    from wkwdask.kernels.labels.components_compiled import label_rows

    if voxels.size > _MOST_VOXELS:
        raise ValueError(
            f"at most {_MOST_VOXELS} voxels can be labelled at once, got {voxels.size}"
        )
    planes = np.ascontiguousarray(voxels.astype(voxels.dtype.newbyteorder("="), copy=False).T)
    if not planes.size:
        planes = np.zeros((1, 1, 1), planes.dtype)
    *runs, values, sizes = label_rows(
        planes.view(f"u{planes.dtype.itemsize}"), connectivity, np.array(is_open, np.bool_)
    )
    return Components(LabelRuns(voxels.shape, *runs), values, sizes)


def pair_faces(
    low: tuple[IntArray, UintArray], high: tuple[IntArray, UintArray], connectivity: int
) -> IntArray:
    """Return the pairs of connected components of two adjacent planes, each a plane of nodes and
    one of values; the high plane has a border of 1."""
    from wkwdask.kernels.labels.components_compiled import join_faces

    most_steps = CONNECTIVITIES.index(connectivity)
    pairs = np.empty((low[0].size * 9, 2), np.int64)
    return unique_pairs(pairs[: join_faces(*low, *high, most_steps, pairs)])


def unique_pairs(pairs: IntArray) -> IntArray:
    """Sort pairs and drop duplicates.

    Examples
    --------
    >>> unique_pairs(np.array([[2, 3], [1, 9], [2, 3]])).tolist()
    [[1, 9], [2, 3]]
    """
    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    unique: IntArray = ordered[is_new]
    return unique


class DisjointSets:
    """Disjoint sets of the nodes 0 to n - 1, 8 bytes each (union-find).

    Examples
    --------
    >>> sets = DisjointSets(5)
    >>> sets.unite(np.array([[3, 4], [4, 1]]))
    >>> sets.roots().tolist()
    [0, 1, 2, 1, 1]
    """

    def __init__(self, num_nodes: int) -> None:
        self._parent = np.arange(num_nodes)

    def unite(self, pairs: IntArray) -> None:
        """Merge the sets of each pair of nodes, shape (n, 2)."""
        from wkwdask.kernels.labels.components_compiled import unite_pairs

        unite_pairs(self._parent, pairs)

    def roots(self) -> IntArray:
        """Return the least node of each node's set."""
        from wkwdask.kernels.labels.components_compiled import flatten_sets

        flatten_sets(self._parent)
        return self._parent


def add_to_roots(roots: IntArray, sizes: IntArray, first: int, totals: IntArray) -> None:
    """Add the sizes of nodes, numbered from ``first``, to the totals of their roots."""
    from wkwdask.kernels.labels.components_compiled import add_sizes

    add_sizes(roots, sizes, first, totals)
