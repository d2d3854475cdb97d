"""Segmentations of volumes as large as real ones: numbering the objects of simulated blocks, and
segmenting the few stored files of a sparse volume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np

import wkwdask
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
    before, and all blocks share one. Guards refuse some pairs, or there are none."""

    def __init__(self, folder: str, blocks: int, labels: int, *, guarded: bool = False) -> None:
        self._folder, self._blocks, self._labels = Path(folder), blocks, labels
        self.nbytes = 8 * blocks**3 * labels
        edge = _BLOCK * blocks
        plan = BrickPlan(BoundingBox((0, 0, 0), (edge,) * 3), (_BLOCK,) * 3, (_BLOCK,) * 3)
        application = AppliedFunction(len, (SimpleNamespace(name="simulated"),), plan)
        guards = Guards(one_per_block=True, max_voxels=5000) if guarded else Guards()
        self._segmentation = Segmentation(
            application, "overlap", 0.5, 26, (0, 1, 2), 0, False, str(self._folder), guards
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
        return [("pairs", pairs), ("scores", pairs[:, 0] % 997 / 997)]

    def run(self) -> None:
        """Number."""
        self.numbers = number(self._segmentation)

    def written(self) -> int:
        """Count the bytes of all files."""
        return folder_nbytes([self._folder])

    def digests(self) -> list[str]:
        """Name the result."""
        return [str(self.numbers)]


def label_bright(em: np.ndarray) -> np.ndarray:
    """Label connected bright voxels."""
    from scipy import ndimage

    return ndimage.label(em > 100)[0]


class Sparse(Work):
    """``segment`` or ``connected_components`` of a cubic volume of files of 256^3, of which few are
    stored, by one thread: the process starts the job and is its worker.

    Parameters
    ----------
    folder : str
        Folder of the volume and of the result.
    blocks : int
        Files along each edge of the volume.
    verb : str
        Name of the function.
    """

    def __init__(self, folder: str, blocks: int, verb: str) -> None:
        self._folder, self._blocks, self._verb = folder, blocks, verb
        # blocks around a stored file are segmented too, since their halo reaches into it
        places = sorted({0, (blocks - 1) // 2, blocks - 2}, reverse=True)
        self._corners = [(n, n, n) for n in places]
        self.nbytes = len(self._corners) * 2 * _BLOCK**3

    def prepare(self) -> None:
        """Write pairs of files with objects of 16^3 voxels and more."""
        shutil.rmtree(self._folder, ignore_errors=True)
        wkwdask.create_dataset(self._folder, (4, 4, 4))
        coarse = np.random.default_rng(0).random((32, 16, 16)) > 0.8
        voxels = np.where(coarse, np.uint8(200), np.uint8(50))
        for axis in range(3):
            voxels = voxels.repeat(16, axis)
        mag = Path(self._folder) / "color" / "1"
        wkwdask.write(mag, (0, 0, 0), voxels, file_len=8)
        for x, y, z in self._corners[:-1]:  # the last one is written already
            for step in (0, 1):
                copy = mag / f"z{z}" / f"y{y}" / f"x{x + step}.wkw"
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.hardlink_to(mag / "z0" / "y0" / f"x{step}.wkw")
        for record in mag.glob(".wkwdask*"):  # of the files and the box of the first pair
            record.unlink()
        path = Path(self._folder) / "datasource-properties.json"
        document = json.loads(path.read_text())
        edges = dict.fromkeys(("width", "height", "depth"), _BLOCK * self._blocks)
        document["dataLayers"][0]["boundingBox"].update(edges)
        path.write_text(json.dumps(document))

    def run(self) -> None:
        """Segment."""
        source, target = f"{self._folder}/color/1", f"{self._folder}/cells/1"
        with dask.config.set(scheduler="synchronous"):
            if self._verb == "segment":
                report = wkwdask.segment(label_bright, source, target, halo=16, chunks=_BLOCK)
            else:
                report = wkwdask.connected_components(source, target, threshold=101, connectivity=6)
        self._objects = int(report.note.split()[0].replace(",", ""))

    def written(self) -> int:
        """Count the bytes of the result."""
        return folder_nbytes([Path(self._folder) / "cells"])

    def digests(self) -> list[str]:
        """Name the number of objects."""
        return [str(self._objects)]
