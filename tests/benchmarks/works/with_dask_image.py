"""dask-image: labels connected components of a dask array."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np

import wkwdask

from .base import Work, folder_nbytes
from .whole_array import partition

REQUIRES = ("dask_image",)
_CHUNK = 128


class Components(Work):
    """``dask_image.ndmeasure.label`` of the voxels that reach a threshold, 26 neighbours, by one
    thread. wkwdask reads the mag and writes the result; dask-image counts the components.

    Parameters
    ----------
    path : str
        The mag.
    folder : str
        Folder of the result.
    size : int
        Edge of the volume [voxels].
    nbytes : int
        Bytes of the voxels.
    threshold : int
        Least value of the foreground.
    """

    package = "dask-image"

    def __init__(self, path: str, folder: str, size: int, nbytes: int, threshold: int) -> None:
        self._path, self._target, self._size = path, f"{folder}/1", size
        self._threshold, self.nbytes = threshold, nbytes

    def run(self) -> None:
        """Read, label, write."""
        from dask_image.ndmeasure import label

        with dask.config.set(scheduler="synchronous"):
            voxels = wkwdask.open(self._path, chunks=_CHUNK)[0]
            labels, _ = label(voxels >= self._threshold, structure=np.ones((3, 3, 3)))
            wkwdask.save(labels.astype(np.uint32), self._target, existing="overwrite")

    def written(self) -> int:
        """Count the bytes of the new mag."""
        return folder_nbytes([Path(self._target)])

    def digests(self) -> list[str]:
        """Hash the components."""
        return [partition(np.asfortranarray(wkwdask.read(self._target)[0]))]
