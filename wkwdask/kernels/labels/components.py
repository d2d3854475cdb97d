"""Public functions for connected components: in one array, and between adjacent arrays.

Equal neighbouring voxels that are not zero are connected. With connectivity 6, neighbours share a
face; with 18, a face or an edge; with 26, a face, an edge or a corner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

CONNECTIVITIES = (6, 18, 26)
_MOST_VOXELS = 2**31 - 1  # runs are numbered in int32


def label_brick(
    voxels: npt.NDArray[Any], connectivity: int, is_open: npt.ArrayLike = ((False, False),) * 3
) -> tuple[npt.NDArray[np.uint32], int, npt.NDArray[np.int64]]:
    """Label the components of an array from 1 on; those that touch an open face come first.

    ``is_open`` marks the faces of the array, low and high along x, y, z, beyond which the volume
    continues. Returns the labels, the number of components that touch an open face, and the voxels
    of each component. See ``components_compiled`` for the method.

    Examples
    --------
    >>> voxels = np.array([[[7]], [[7]], [[0]], [[7]]], np.uint8)
    >>> labels, num_touching, sizes = label_brick(voxels, 6)
    >>> labels.ravel().tolist(), num_touching, sizes.tolist()
    ([1, 1, 0, 2], 0, [2, 1])
    """
    from wkwdask.kernels.labels.components_compiled import label_planes

    if voxels.size > _MOST_VOXELS:
        raise ValueError(
            f"at most {_MOST_VOXELS} voxels can be labelled at once, got {voxels.size}"
        )
    if not voxels.size:
        return np.zeros(voxels.shape, np.uint32, order="F"), 0, np.zeros(0, np.int64)
    planes = np.ascontiguousarray(voxels.astype(voxels.dtype.newbyteorder("="), copy=False).T)
    labels = np.empty(planes.shape, np.uint32)
    _, num_touching, sizes = label_planes(
        planes.view(f"u{planes.dtype.itemsize}"), connectivity, np.array(is_open, np.bool_), labels
    )
    return labels.T, int(num_touching), sizes


def pair_faces(
    low: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]],
    high: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]],
    connectivity: int,
) -> npt.NDArray[np.int64]:
    """Return the pairs of connected components of two adjacent planes, each a plane of nodes and
    one of values; the high plane has a border of 1."""
    from wkwdask.kernels.labels.components_compiled import join_faces

    most_steps = CONNECTIVITIES.index(connectivity)
    pairs = np.empty((low[0].size * 9, 2), np.int64)
    return unique_pairs(pairs[: join_faces(*low, *high, most_steps, pairs)])


def unique_pairs(pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sort pairs and drop duplicates.

    Examples
    --------
    >>> unique_pairs(np.array([[2, 3], [1, 9], [2, 3]])).tolist()
    [[1, 9], [2, 3]]
    """
    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    unique: npt.NDArray[np.int64] = ordered[is_new]
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

    def unite(self, pairs: npt.NDArray[np.int64]) -> None:
        """Merge the sets of each pair of nodes, shape (n, 2)."""
        from wkwdask.kernels.labels.components_compiled import unite_pairs

        unite_pairs(self._parent, pairs)

    def roots(self) -> npt.NDArray[np.int64]:
        """Return the least node of each node's set."""
        from wkwdask.kernels.labels.components_compiled import flatten_sets

        flatten_sets(self._parent)
        return self._parent


def add_to_roots(
    roots: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    first: int,
    totals: npt.NDArray[np.int64],
) -> None:
    """Add the sizes of nodes, numbered from ``first``, to the totals of their roots."""
    from wkwdask.kernels.labels.components_compiled import add_sizes

    add_sizes(roots, sizes, first, totals)
