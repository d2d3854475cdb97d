"""Base of works that write sharded Zarr of a WKW mag."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from .base import Work, digest, folder_nbytes, read_mag


class Export(Work):
    """Writes a sharded Zarr array of a mag: chunks of 64 voxels, Zstandard.

    Parameters
    ----------
    path : str
        The mag.
    folder : str
        Folder of the array.
    size : int
        Edge of the volume [voxels].
    """

    def __init__(self, path: str, folder: str, size: int) -> None:
        self.path, self.folder, self.size = path, Path(folder), size
        self.chunk = min(64, size)
        self.shard = min(256, size)
        self.dtype = read_mag(path, 1).dtype
        self.nbytes = size**3 * self.dtype.itemsize

    @property
    def array(self) -> Path:
        """The array."""
        return self.folder / "a"

    def prepare(self) -> None:
        """Remove what the last run made."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def written(self) -> int:
        """Count the bytes of all files."""
        return folder_nbytes([self.folder])

    def digests(self) -> list[str]:
        """Hash the voxels that were written, as zarr reads them."""
        import zarr

        array = zarr.open_array(str(self.array), mode="r")
        is_theirs = array.metadata.dimension_names == ("c", "x", "y", "z")  # of webknossos
        voxels = array[0, : self.size, : self.size, : self.size] if is_theirs else array[...].T
        return [digest(np.asarray(voxels))]
