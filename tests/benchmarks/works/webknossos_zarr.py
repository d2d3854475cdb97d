"""webknossos, on Zarr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import zarr_images

if TYPE_CHECKING:
    from pathlib import Path

REQUIRES = ("webknossos", "zarr")


class Export(zarr_images.Export):
    """``Dataset.copy_dataset`` with the format zarr3; its codec is blosc with Zstandard too."""

    package = "webknossos"

    @property
    def array(self) -> Path:
        """The array."""
        return self.folder / "a" / self.path.rsplit("/", 2)[1] / "1"

    def run(self) -> None:
        """Convert."""
        from webknossos import Dataset

        from .with_webknossos import _executor

        source = Dataset.open(self.path.rsplit("/", 2)[0])
        source.copy_dataset(
            self.folder / "a",
            chunk_shape=self.chunk,
            shard_shape=self.shard,
            data_format="zarr3",
            compress=True,
            executor=_executor(1),
        )
