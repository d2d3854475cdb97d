"""tensorstore and zarr-python, on the arrays of zarr_benchmarks."""

from __future__ import annotations

from typing import Any

from . import public_zarr

REQUIRES = ("zarr", "tensorstore")
_LIMITS = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}


class Tensorstore(public_zarr.PublicArray):
    """``read`` and ``write``."""

    package = "tensorstore"

    def open(self, folder: Any, mode: str) -> Any:
        """Open an array."""
        import tensorstore

        del mode
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}
        return tensorstore.open(spec, context=tensorstore.Context(_LIMITS)).result()

    def read(self, array: Any, box: Any) -> Any:
        """Read a box."""
        return array[box].read().result()

    def write(self, array: Any, box: Any, voxels: Any) -> None:
        """Write a box."""
        array[box].write(voxels).result()


class Zarr(public_zarr.PublicArray):
    """Slices of the array."""

    package = "zarr"

    def start(self) -> None:
        """Use one thread."""
        import zarr

        zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})

    def open(self, folder: Any, mode: str) -> Any:
        """Open an array."""
        import zarr

        return zarr.open_array(str(folder), mode=mode)
