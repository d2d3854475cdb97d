"""Guards of a segmentation: pairs of labels that are not joined, because the object would have two
labels of one block or too many voxels.

Pairs are tried in one order, the best first, so the result does not depend on the order in which
tasks end. Sets only grow, so the objects of a refused pair are never joined by another pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.ids.sorted_runs import SortedRuns
from wkwdask.kernels.labels.components import DisjointSets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from wkwdask.array_types import ByteArray, FloatArray, IntArray

    ScoredPairs = tuple[IntArray, FloatArray]

REASONS = ("", "one_per_block", "max_voxels")
"""Reasons of a refusal by their number; 0 for pairs that are joined."""
_LEAST_LISTED = 16
_PAIRS_AT_ONCE = 1 << 20
_KEY = np.dtype("S24")  # the inverted bits of a score and two nodes, as bytes that sort like them


@dataclass(frozen=True, slots=True)
class Guards:
    """Rules by which pairs of labels are refused."""

    one_per_block: bool = False
    """Whether an object has at most one label of each block."""
    max_voxels: int | None = None
    """Most voxels of an object that is joined from several labels."""

    def __bool__(self) -> bool:
        return self.one_per_block or self.max_voxels is not None


class GuardedSets(DisjointSets):
    """Disjoint sets of labels that refuse pairs, at most 36 bytes for each.

    Examples
    --------
    >>> sets = GuardedSets(Guards(one_per_block=True), np.array([2, 1]), np.array([5, 5, 5]))
    >>> sets.unite_in_order(np.array([[1, 2], [0, 2]])).tolist()
    [0, 1]
    >>> sets.roots().tolist()
    [0, 1, 1]
    """

    def __init__(self, guards: Guards, num_nodes: IntArray, sizes: IntArray) -> None:
        """Take the number of nodes of each block and the voxels of each node, which are summed in
        place."""
        super().__init__(len(sizes))
        self._most_voxels = -1 if guards.max_voxels is None else guards.max_voxels
        self._voxels = sizes[:0] if guards.max_voxels is None else sizes
        listed = num_nodes if guards.one_per_block else num_nodes[:0]
        self._block_of = np.repeat(np.arange(len(listed), dtype=np.int32), listed)
        self._following = np.full(len(self._block_of), -1)
        words = -(-len(listed) // 64)
        self._most_listed = max(words, _LEAST_LISTED)
        num_rows = len(self._following) // (self._most_listed + 1)
        self._bits = np.zeros((num_rows, words), np.uint64)  # memory of rows in use only
        self._num_rows = np.zeros(1, np.int64)

    def unite_in_order(self, pairs: IntArray) -> ByteArray:
        """Merge the sets of each pair of nodes; return the number of the reason for which it is
        refused."""
        from wkwdask.kernels.labels.guarded_compiled import unite_guarded

        reasons = np.empty(len(pairs), np.uint8)
        unite_guarded(
            np.ascontiguousarray(pairs),
            self._parent,
            self._voxels,
            self._most_voxels,
            self._following,
            self._block_of,
            self._bits,
            self._num_rows,
            self._most_listed,
            reasons,
        )
        return reasons


def best_first(parts: Iterable[ScoredPairs], folder: str) -> Iterator[ScoredPairs]:
    """Yield scored pairs by descending score, then by nodes, without duplicates. They are sorted in
    files of a folder, so few are in memory."""
    with SortedRuns(folder, [_KEY]) as runs:
        waiting: list[npt.NDArray[np.bytes_]] = []
        for pairs, scores in parts:
            keys = _keys(pairs, scores)
            for start in range(0, len(keys), _PAIRS_AT_ONCE):
                waiting.append(keys[start : start + _PAIRS_AT_ONCE])
                if sum(map(len, waiting)) >= _PAIRS_AT_ONCE:
                    runs.add(np.sort(np.concatenate(waiting)))
                    waiting = []
        runs.add(np.sort(np.concatenate([np.zeros(0, _KEY), *waiting])))
        for (merged,) in runs.merged(_PAIRS_AT_ONCE):
            columns = np.unique(merged).view(">u8").reshape(-1, 3)
            yield columns[:, 1:].astype(np.int64), (~columns[:, 0]).astype(np.uint64).view(float)


def _keys(pairs: IntArray, scores: FloatArray) -> npt.NDArray[np.bytes_]:
    columns = np.empty((len(pairs), 3), ">u8")
    columns[:, 0] = ~scores.view(np.uint64)
    columns[:, 1:] = pairs
    return columns.view(_KEY).ravel()
