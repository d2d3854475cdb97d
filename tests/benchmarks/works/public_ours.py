"""wkwdask, on the arrays of zarr_benchmarks."""

from __future__ import annotations

from typing import Any

import dask

import wkwdask

from . import public_zarr

REQUIRES = ("wkwdask", "zarr")


class Public(public_zarr.PublicArray):
    """``wkwdask.read``, and ``wkwdask.write`` of each box that ``wkwdask.reader`` reads."""

    def start(self) -> None:
        """Use one thread."""
        dask.config.set(scheduler="synchronous")

    def open(self, folder: Any, mode: str) -> Any:
        """Open a reader; an array that is written needs none."""
        return f"zarr://{folder}" if mode == "r+" else wkwdask.reader(f"zarr://{folder}")

    def read(self, array: Any, box: Any) -> Any:
        """Read a box."""
        z, y, x = box
        low, high = zip(*((part.start, part.stop) for part in (x, y, z)), strict=True)
        return array.read((low, high), threads=1)[0].T

    def write(self, array: Any, box: Any, voxels: Any) -> None:
        """Write a box."""
        z, y, x = box
        low, high = zip(*((part.start, part.stop) for part in (x, y, z)), strict=True)
        wkwdask.to_zarr(voxels.T, array, region=(low, high))
