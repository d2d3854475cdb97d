"""Base of works on N5 images: the same files for all tools."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from . import zarr_pyramids
from .base import NUM_MAGS, digest, folder_nbytes

if TYPE_CHECKING:
    from pathlib import Path


class Image(zarr_pyramids.Pyramid):
    """Work that begins with an image of one level, in blocks of 64 voxels, gzip.

    Parameters
    ----------
    path : str
        The WKW mag that the voxels come from.
    folder : str
        Folder of the image.
    size : int
        Edge of the volume [voxels].
    method : str
        ``mean`` or ``mode``.
    """

    kind = "n5"

    def __init__(self, path: str, folder: str, size: int, method: str = "mean") -> None:
        super().__init__(path, folder, size, method, "gzip")
        self.path = path

    def _make_source(self, voxels: np.ndarray) -> None:
        """Write the finest level."""
        import wkwdask

        new = self.source.with_name(f"{self.source.name}-new")
        shutil.rmtree(new, ignore_errors=True)
        wkwdask.to_n5(
            voxels,
            new / "s0",
            chunk_shape=(self.chunk,) * 3,
            compression=self.compression,
            voxel_size=(4, 4, 4),
        )
        new.rename(self.source)

    @property
    def levels(self) -> list[Path]:
        """The coarser levels, finest first."""
        return [self.folder / f"s{level}" for level in range(1, NUM_MAGS + 1)]

    def digests(self) -> list[str]:
        """Hash every coarser level."""
        return [_digest_of(path) for path in self.levels]


class Written(Image):
    """Work that writes the finest level."""

    def prepare(self) -> None:
        """Begin with an empty folder."""
        self.put_aside()
        self.folder.mkdir(parents=True)

    @property
    def levels(self) -> list[Path]:
        """The level."""
        return [self.folder / "s0"]


class Read(Image):
    """Work that reads the finest level."""

    _result: Any = None

    def prepare(self) -> None:
        """Forget what was read."""
        self._result = None

    def written(self) -> int:
        """Nothing is."""
        return folder_nbytes([])

    def digests(self) -> list[str]:
        """Hash what was read."""
        return [digest(np.asarray(self._result))]


def _digest_of(path: Path) -> str:
    """Hash a level, as wkwdask reads it: the row of reads compares it with other tools."""
    import wkwdask

    return digest(wkwdask.read(f"n5://{path}")[0])
