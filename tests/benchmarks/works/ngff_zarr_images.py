"""ngff-zarr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import zarr_images, zarr_pyramids
from .base import NUM_MAGS, read_mag

if TYPE_CHECKING:
    from pathlib import Path

REQUIRES = ("ngff_zarr", "zarr", "wkw")


class Export(zarr_images.Export):
    """``to_ngff_zarr`` of one array, which wkw reads whole before: there is no reader of WKW in
    it."""

    package = "ngff-zarr"

    @property
    def array(self) -> Path:
        """The array."""
        return next(
            path.parent
            for path in sorted((self.folder / "a").rglob("zarr.json"))
            if '"array"' in path.read_text()
        )

    def run(self) -> None:
        """Convert."""
        import dask
        import ngff_zarr

        dask.config.set(scheduler="synchronous")
        image = ngff_zarr.to_ngff_image(
            read_mag(self.path, self.size)[0].T,
            dims=("z", "y", "x"),
            scale=dict.fromkeys("zyx", 4.0),
        )
        multiscales = ngff_zarr.to_multiscales(
            image, scale_factors=[], chunks=self.chunk, cache=False
        )
        ngff_zarr.to_ngff_zarr(
            str(self.folder / "a"),
            multiscales,
            version="0.5",
            chunks_per_shard=self.shard // self.chunk,
        )


class Pyramid(zarr_pyramids.Pyramid):
    """``to_multiscales`` by bin shrink, and ``to_ngff_zarr``, which writes the finest level again
    and chooses the codecs itself."""

    package = "ngff-zarr"

    def run(self) -> None:
        """Build."""
        import dask
        import dask.array as da
        import ngff_zarr

        dask.config.set(scheduler="synchronous")
        image = ngff_zarr.to_ngff_image(
            da.from_zarr(str(self.folder / "1")),
            dims=("z", "y", "x"),
            scale=dict.fromkeys("zyx", 4.0),
        )
        factors = [1 << level for level in range(1, NUM_MAGS + 1)]
        multiscales = ngff_zarr.to_multiscales(
            image, factors, method=ngff_zarr.Methods.DASK_BIN_SHRINK, chunks=self.chunk, cache=False
        )
        ngff_zarr.to_ngff_zarr(
            str(self.folder / "theirs"),
            multiscales,
            version="0.5",
            chunks_per_shard=self.shard // self.chunk,
        )

    @property
    def levels(self) -> list[Path]:
        """The coarser levels, finest first."""
        return sorted(
            path.parent
            for path in (self.folder / "theirs").rglob("zarr.json")
            if '"array"' in path.read_text()
        )[1:]
