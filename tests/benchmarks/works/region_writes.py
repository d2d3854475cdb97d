"""Base of works that write boxes into an existing volume of any format: the same files and the same
boxes for all tools."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from .base import Work, boxes, digest, folder_nbytes, read_mag, shared_folder

URLS = {
    "wkw": "{}/color/1",
    "zarr": "zarr://{}",
    "n5": "n5://{}/s0",
    "precomputed": "precomputed://{}",
}
"""URL of mag 1 of a volume of each format."""


class Region(Work):
    """Work that writes boxes one after the other.

    Parameters
    ----------
    path : str
        The WKW mag that the voxels come from.
    folder : str
        Folder of the volume that is changed.
    size : int
        Edge of the volume [voxels].
    form : str
        ``wkw``, ``zarr``, ``n5`` or ``precomputed``.
    edge, count : int
        Edge of the boxes [voxels] and how many there are.
    """

    def __init__(self, path: str, folder: str, size: int, form: str, edge: int, count: int) -> None:
        self.folder, self.size, self.form = Path(folder), size, form
        self.file_vx = max(32, size // 4)
        """Edge of a file of WKW and of a shard of Zarr [voxels]."""
        voxels = read_mag(path, size)[0]
        self.parts = [
            (low, high, np.asfortranarray(~voxels[tuple(map(slice, low, high))]))
            for low, high in boxes(size, edge, count)
        ]
        self.nbytes = sum(part.nbytes for _, _, part in self.parts)
        self.source = shared_folder(folder) / f"region-{form}-{voxels.dtype.name}-{size}"
        if not self.source.is_dir():
            self._make_source(voxels)

    @property
    def url(self) -> str:
        """URL of mag 1."""
        return URLS[self.form].format(self.folder)

    def _make_source(self, voxels: np.ndarray) -> None:
        """Write the volume."""
        import wkwdask

        new = self.source.with_name(f"{self.source.name}-new")
        shutil.rmtree(new, ignore_errors=True)
        chunk = (min(64, self.size // 8),) * 3
        if self.form == "wkw":
            wkwdask.create_dataset(new, (4, 4, 4))
            options: dict[str, Any] = {
                "block_len": 32,
                "file_len": self.file_vx // 32,
                "compression": "lz4",
            }
        elif self.form == "zarr":
            options = {
                "voxel_size": (4, 4, 4),
                "chunk_shape": chunk,
                "shard_shape": (self.file_vx,) * 3,
            }
        else:
            options = {"voxel_size": (4, 4, 4), "chunk_shape": chunk} | (
                {"shard_shape": False} if self.form == "precomputed" else {}
            )
        wkwdask.save(voxels, URLS[self.form].format(new), **options)
        new.rename(self.source)

    def prepare(self) -> None:
        """Begin with a copy, and put aside what the last run changed."""
        if self.folder.is_dir():
            aside = self.folder.with_name("aside")
            aside.mkdir(exist_ok=True)
            self.folder.rename(aside / secrets.token_hex(8))
        shutil.copytree(self.source, self.folder)

    def written(self) -> int:
        """Count the bytes of the volume."""
        return folder_nbytes([self.folder])

    def digests(self) -> list[str]:
        """Hash the volume."""
        import wkwdask

        return [digest(wkwdask.read(self.url)[0])]
