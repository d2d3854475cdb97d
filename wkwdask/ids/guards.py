"""Guards of a segmentation: pairs of labels that are not joined, because the object would have two
labels of one block or too many voxels.

Pairs are tried in one order, the best first, so the result does not depend on the order in which
tasks end. Sets only grow, so the objects of a refused pair are never joined by another pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from wkwdask.array_types import ByteArray, FloatArray, IntArray

REASONS = ("", "one_per_block", "max_voxels")
"""Reasons of a refusal by their number; 0 for pairs that are joined."""


@dataclass(frozen=True, slots=True)
class Guards:
    """Rules by which pairs of labels are refused."""

    one_per_block: bool = False
    """Whether an object has at most one label of each block."""
    max_voxels: int | None = None
    """Most voxels of an object that is joined from several labels."""

    def __bool__(self) -> bool:
        return self.one_per_block or self.max_voxels is not None

    def refused(
        self, pairs: IntArray, scores: FloatArray, sizes: IntArray, blocks: IntArray
    ) -> ByteArray:
        """Return the number of the reason for each pair of nodes, shape (n,).

        Pairs of higher scores come first, then those of lower nodes. ``sizes`` are the voxels of
        all nodes, ``blocks`` the blocks in which they lie.

        Examples
        --------
        >>> pairs = np.array([[0, 2], [1, 2]])
        >>> voxels, blocks = np.array([5, 5, 5]), np.array([0, 0, 1])
        >>> Guards(one_per_block=True).refused(pairs, np.array([0.6, 0.9]), voxels, blocks).tolist()
        [1, 0]
        """
        reasons = np.zeros(len(pairs), np.uint8)
        root_of: dict[int, int] = {}
        members: dict[int, set[int]] = {}  # blocks of each root
        voxels: dict[int, int] = {}
        for n in np.lexsort((pairs[:, 1], pairs[:, 0], -scores)).tolist():
            roots = []
            for node in pairs[n].tolist():
                if node not in root_of:
                    root_of[node] = node
                    members[node], voxels[node] = {int(blocks[node])}, int(sizes[node])
                roots.append(_root(root_of, node))
            few, many = sorted(roots, key=lambda root: len(members[root]))
            if few == many:
                continue
            if self.one_per_block and not members[few].isdisjoint(members[many]):
                reasons[n] = 1
            elif self.max_voxels is not None and voxels[few] + voxels[many] > self.max_voxels:
                reasons[n] = 2
            else:
                root_of[few] = many
                members[many] |= members.pop(few)
                voxels[many] += voxels.pop(few)
        return reasons


def _root(root_of: dict[int, int], node: int) -> int:
    """Return the root of a node, and shorten the path to it."""
    while root_of[node] != node:
        root_of[node] = root_of[root_of[node]]
        node = root_of[node]
    return node
