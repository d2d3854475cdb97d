"""A merger-mode annotation as a mapping: each tree of an NML merges the segments under its nodes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.webknossos.nml_nodes import read_nodes
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.ids.id_source import PairsInMemory, as_ids
from wkwdask.kernels.labels.components import Sets

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.ids.id_map import IdMap
    from wkwdask.model.volume import Volume


@dataclass(frozen=True)
class MergerMode:
    """The merges of an NML in one segmentation."""

    pairs: PairsInMemory
    """Each segment under a node, and the smallest id of those that it is merged with."""
    num_nodes: int
    """Nodes in all."""
    num_outside: int
    """Nodes that lie on no segment: outside of the layer, or where it is 0."""

    @property
    def name(self) -> str:
        """What an error calls it."""
        return self.pairs.name

    @property
    def note(self) -> str:
        """Say what was left aside."""
        return f"{self.num_outside} of {self.num_nodes} nodes lie on no segment" if self.num_outside else ""

    def digest(self) -> str:
        """Name its content."""
        return hashlib.blake2b(b"nml" + self.pairs.digest().encode(), digest_size=16).hexdigest()

    def write(self, folder: str) -> IdMap:
        """Make a table of it."""
        return self.pairs.write(folder)


def read_merger_mode(path: str, segmentation: Volume) -> MergerMode:
    """Look up which segments an NML merges; trees that share a segment are one."""
    trees, positions = read_nodes(path)
    ids = sample_ids(segmentation, positions // np.array(segmentation.box.mag.factors))
    hit = ids != 0
    segments, numbers = np.unique(ids[hit], return_inverse=True)
    num_trees = int(trees.max()) + 1 if len(trees) else 0
    sets = Sets(len(segments) + num_trees)  # segments come first, in their order: the root of a set is its smallest segment
    sets.unite(np.stack([numbers.reshape(-1), trees[hit] + len(segments)], axis=1))
    roots = sets.roots()[: len(segments)]
    return MergerMode(PairsInMemory(segments, segments[roots], path), len(ids), int(len(ids) - hit.sum()))


def sample_ids(volume: Volume, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Read single voxels, each chunk once; 0 outside of the volume."""
    found = np.zeros(len(places), np.uint64)
    box = volume.box
    inside = np.flatnonzero(((places >= box.topleft) & (places < box.bottomright)).all(axis=1))
    chunks = places[inside] // np.array(volume.chunk_shape)
    order = np.lexsort(chunks.T)
    starts = np.flatnonzero(np.append(True, (np.diff(chunks[order], axis=0) != 0).any(axis=1))[: len(order)])
    for rows in np.split(inside[order], starts[1:]):
        if not len(rows):
            continue
        low, high = places[rows].min(axis=0), places[rows].max(axis=0) + 1
        part = BoundingBox.from_corners(low.tolist(), high.tolist(), box.mag)
        voxels: Any = np.zeros((1, *part.size), volume.dtype, order="F")
        volume.read_into(voxels, part.topleft)
        x, y, z = (places[rows] - low).T
        found[rows] = as_ids(voxels[0, x, y, z], volume.name)
    return found
