"""Functions that works of all tools share."""

from __future__ import annotations

import hashlib
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

CACHE_NBYTES = 256 << 20
"""Size of caches of decoded chunks, where rows use any."""
NUM_MAGS = 4
"""Coarser mags of a pyramid: 2, 4, 8, 16."""


class Work:
    """A work that writes nothing and needs no preparation."""

    package = "wkwdask"
    nbytes = 0

    def prepare(self) -> None:
        """Lay out what a run needs."""

    def written(self) -> int:
        """Count the bytes of the files that a run made."""
        return 0

    def version(self) -> str:
        """Return the version of the tool."""
        return version(self.package)


class BoxLoop(Work):
    """Boxes that are read one after the other.

    No result outlives the next one, as in a loop over a volume. A list of them would measure the
    page faults of fresh memory, which depend on where the library's last small allocation happens
    to lie.
    """

    boxes: Sequence[Any]
    passes = 1

    def read(self, box: Any) -> np.ndarray:
        """Read a box, shape (c, x, y, z) or (x, y, z)."""
        raise NotImplementedError

    def count_nbytes(self) -> int:
        """Read all boxes once and add up their bytes in all passes."""
        return self.passes * sum(self.read(box).nbytes for box in self.boxes)

    def run(self) -> None:
        """Read."""
        for _ in range(self.passes):
            for box in self.boxes:
                self.read(box)

    def digests(self) -> list[str]:
        """Read all boxes once more and hash them."""
        return [digest(self.read(box)) for box in self.boxes]


def digest(voxels: np.ndarray) -> str:
    """Hash voxels of shape (c, x, y, z) or (x, y, z) in Fortran order."""
    return hashlib.sha256(np.asfortranarray(voxels).ravel(order="K")).hexdigest()[:16]


def boxes(
    size: int, edge: int, count: int
) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    """Draw the same boxes for every tool, as pairs of corners at any voxel."""
    corners = np.random.default_rng(7).integers(0, size - edge + 1, (count, 3)).tolist()
    return [((x, y, z), (x + edge, y + edge, z + edge)) for x, y, z in corners]


def slices(
    size: int, plane: str, count: int, *, is_sequence: bool = False
) -> list[tuple[list[int], list[int]]]:
    """Draw slices of one voxel along the axis that ``plane`` does not name, as pairs of corners: at
    random places, or around the middle and next to each other."""
    axis = next(n for n, name in enumerate("xyz") if name not in plane)
    at = (
        range((size - count) // 2, (size + count) // 2)
        if is_sequence
        else np.random.default_rng(7).integers(0, size, count).tolist()
    )
    return [
        (
            [n if a == axis else 0 for a in range(3)],
            [n + 1 if a == axis else size for a in range(3)],
        )
        for n in at
    ]


def arranged_boxes(size: int, edge: int, arrangement: str) -> np.ndarray:
    """Return boxes as pairs of corners, shape (n, 2, 3): 64 ``near`` each other at any voxel,
    ``half`` an edge apart, or ``apart`` by an edge."""
    if arrangement == "near":
        within = min(size, 4 * edge)
        corners = (
            np.random.default_rng(7).integers(0, within - edge + 1, (64, 3)) + (size - within) // 2
        )
    else:
        step = edge // 2 if arrangement == "half" else 2 * edge
        first = np.arange(edge // 4, size - edge + 1, step)[:8]
        corners = np.stack(np.meshgrid(first, first, first, indexing="ij"), axis=-1).reshape(-1, 3)
    return np.stack([corners, corners + edge], axis=1)


def shared_folder(folder: str | Path) -> Path:
    """Return where the files are that works of several rows read, given a unit's own folder."""
    return Path(folder).parents[1] / "shared"


def folder_nbytes(folders: list[Path]) -> int:
    """Add up the lengths of all files below some folders."""
    return sum(
        path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()
    )


class DatasetCopy:
    """A dataset of one tool's own, whose source files are links to those that all tools read.

    Parameters
    ----------
    source : str
        The dataset.
    layer : str
        Its layer.
    folder : str
        Folder of the copy; it replaces an earlier one.
    """

    def __init__(self, source: str, layer: str, folder: str) -> None:
        self.folder = Path(folder)
        self.layer = layer
        self._record = (Path(source) / "datasource-properties.json").read_bytes()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(
            Path(source) / layer / "1", self.folder / layer / "1", copy_function=os.link
        )

    @property
    def mags(self) -> list[Path]:
        """Folders of the existing coarser mags, finest first."""
        names = [2**n for n in range(1, NUM_MAGS + 1)]
        return [
            path
            for n in names
            for path in (
                self.folder / self.layer / str(n),
                self.folder / self.layer / f"{n}-{n}-{n}",
            )
            if path.is_dir()
        ]

    def reset(self) -> None:
        """Remove all but the source."""
        for path in (self.folder / self.layer).iterdir():
            if path.name != "1":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.folder / "datasource-properties.json").write_bytes(self._record)

    def digests(self, size: int) -> list[str]:
        """Hash the voxels of every coarser mag, as the reference library reads them."""
        return [digest(read_mag(path, size >> n)) for n, path in enumerate(self.mags, 1)]


def read_mag(path: Any, size: int) -> np.ndarray:
    """Read the cube at the origin of a mag with the reference library, or with wkwdask where that
    is not installed."""
    try:
        import wkw
    except ImportError:
        import wkwdask

        return wkwdask.read(path, ((0, 0, 0), (size, size, size)))
    with wkw.Dataset.open(str(path)) as dataset:
        return dataset.read((0, 0, 0), (size, size, size))
