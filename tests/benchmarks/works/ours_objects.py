"""The driver of a segmentation that numbers the objects of simulated blocks."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from wkwdask import BoundingBox
from wkwdask.ids.arrays_file import format_arrays
from wkwdask.ids.guards import Guards
from wkwdask.ids.segmentation import Segmentation, tabulate
from wkwdask.ids.stitching import groups_of, number, pairs_name
from wkwdask.kernels.labels.layout import COUNT, NUM_COLUMNS
from wkwdask.plans.apply import BrickPlan
from wkwdask.verbs.apply_job import AppliedFunction

from .base import Work, folder_nbytes

REQUIRES = ()
_BLOCK = 256
_JOINED_SHARE = 8  # one of so many labels continues in the next block


class Numbering(Work):
    """``number`` over a volume of cubic blocks, each with so many labels. Its files are made
    before, and all blocks share one."""

    def __init__(self, folder: str, blocks: int, labels: int) -> None:
        self._folder, self._blocks, self._labels = Path(folder), blocks, labels
        self.nbytes = 8 * blocks**3 * labels
        edge = _BLOCK * blocks
        plan = BrickPlan(BoundingBox((0, 0, 0), (edge,) * 3), (_BLOCK,) * 3, (_BLOCK,) * 3)
        application = AppliedFunction(len, (SimpleNamespace(name="simulated"),), plan)
        self._segmentation = Segmentation(
            application, "overlap", 0.5, 26, (0, 1, 2), 0, False, str(self._folder), Guards()
        )

    def prepare(self) -> None:
        """Write the files of blocks and pairs."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        extents = np.zeros((self._labels, NUM_COLUMNS), np.int64)
        extents[:, COUNT] = np.arange(self._labels) % 1000 + 1
        is_cut = np.zeros(self._labels, np.bool_)
        record = {"nodes": self._labels, "parts": self._labels, "seconds": (0, 0)}
        data = format_arrays([("extents", extents), ("is_cut", is_cut)], record)
        segmentation = self._segmentation
        first = segmentation.name_of(segmentation.blocks()[0])
        (self._folder / first).write_bytes(data)
        for block in segmentation.blocks()[1:]:
            (self._folder / segmentation.name_of(block)).symlink_to(first)
        tabulate(segmentation)
        for group in groups_of(segmentation):
            (self._folder / pairs_name(group)).write_bytes(format_arrays(self._pairs(group), {}))

    def _pairs(self, group: tuple[int, int, int]) -> list[tuple[str, np.ndarray]]:
        """Join some labels of each block with those of the next one along x."""
        own = np.arange(0, self._labels, _JOINED_SHARE)
        found = [np.zeros((0, 2), np.int64)]
        for block in np.ndindex(4, 4, 4):
            x, y, z = (4 * g + n for g, n in zip(group, block, strict=True))
            if x + 1 < self._blocks and max(y, z) < self._blocks:
                code = self._segmentation.plan.code_of((x, y, z))
                found.append(np.stack([own, own + self._labels], axis=1) + code * self._labels)
        pairs = np.concatenate(found)
        return [("pairs", pairs), ("scores", np.ones(len(pairs)))]

    def run(self) -> None:
        """Number."""
        self.numbers = number(self._segmentation)

    def written(self) -> int:
        """Count the bytes of all files."""
        return folder_nbytes([self._folder])

    def digests(self) -> list[str]:
        """Name the result."""
        return [str(self.numbers)]
