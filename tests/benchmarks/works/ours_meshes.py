"""Meshes by wkwdask."""

from __future__ import annotations

import shutil
from pathlib import Path

import dask

import wkwdask

from .base import Work, folder_nbytes

REQUIRES = ("wkwdask", "zmesh", "DracoPy", "pyfqmr")


class Meshes(Work):
    """``wkwdask.meshes`` of a precomputed volume, in cells of half its edge, at most of the default
    one, by one thread.

    Parameters
    ----------
    path : str
        WKW mag that the precomputed volume is made from, once.
    folder : str
        Folder of the volume.
    size : int
        Edge of the volume [voxels].
    simplifier : str
        Library that simplifies.
    """

    def __init__(self, path: str, folder: str, size: int, simplifier: str) -> None:
        dask.config.set(scheduler="synchronous")
        self._url, self._meshes = f"precomputed://{folder}", Path(folder) / "mesh"
        self._options = {"cell": min(size // 2, 128), "simplifier": simplifier}
        voxels = wkwdask.read(path, ((0, 0, 0), (size, size, size)))
        self.nbytes = voxels.nbytes
        placed = {"voxel_size": (16, 16, 16), "category": "segmentation"}
        wkwdask.save(voxels[0], self._url, **placed)

    def prepare(self) -> None:
        """Remove the meshes of the last run."""
        shutil.rmtree(self._meshes, ignore_errors=True)

    def run(self) -> None:
        """Mesh all labels."""
        wkwdask.meshes(self._url, existing="overwrite", **self._options)

    def written(self) -> int:
        """Count the bytes of the meshes."""
        return folder_nbytes([self._meshes])

    def digests(self) -> list[str]:
        """Return nothing: tools simplify differently."""
        return []
