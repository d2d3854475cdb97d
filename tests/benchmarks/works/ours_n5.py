"""wkwdask, on N5 images."""

from __future__ import annotations

import dask

import wkwdask

from . import n5_images
from .base import NUM_MAGS, read_mag

REQUIRES = ("wkwdask",)


class Write(n5_images.Written):
    """``wkwdask.to_n5`` of an array in memory."""

    package = "wkwdask"

    def __init__(self, **options: object) -> None:
        dask.config.set(scheduler="synchronous")
        super().__init__(**options)
        self._voxels = read_mag(self.path, self.size)[0]

    def run(self) -> None:
        """Write."""
        wkwdask.to_n5(
            self._voxels,
            self.folder / "s0",
            chunk_shape=(self.chunk,) * 3,
            compression=self.compression,
            voxel_size=(4, 4, 4),
        )


class Read(n5_images.Read):
    """``wkwdask.read`` of the whole level."""

    package = "wkwdask"

    def run(self) -> None:
        """Read."""
        self._result = wkwdask.read(f"n5://{self.source}/s0")[0]


class Pyramid(n5_images.Image):
    """``wkwdask.build_pyramid``, four coarser levels, stored as the finest."""

    package = "wkwdask"

    def run(self) -> None:
        """Build."""
        with dask.config.set(scheduler="synchronous"):
            wkwdask.build_pyramid(f"n5://{self.folder}", coarsest=1 << NUM_MAGS, method=self.method)


class Convert(n5_images.Written):
    """``wkwdask.convert`` of the mag."""

    package = "wkwdask"

    def run(self) -> None:
        """Convert."""
        dataset, layer, _ = self.path.rsplit("/", 2)
        with dask.config.set(scheduler="synchronous"):
            wkwdask.convert(
                dataset,
                f"n5://{self.folder}",
                layer=layer,
                chunk_shape=(self.chunk,) * 3,
                compression=self.compression,
            )
