"""tensorstore, on boxes of existing volumes."""

from __future__ import annotations

from . import region_writes

REQUIRES = ("tensorstore",)
_CONTEXT = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}
_DRIVERS = {
    "zarr": ("zarr3", "1/"),
    "n5": ("n5", "s0/"),
    "precomputed": ("neuroglancer_precomputed", ""),
}


class Region(region_writes.Region):
    """An array that is opened once, and one call of ``write`` for each box."""

    package = "tensorstore"

    def run(self) -> None:
        """Write."""
        import tensorstore

        driver, path = _DRIVERS[self.form]
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{self.folder}/{path}"}}
        array = tensorstore.open(spec, context=tensorstore.Context(_CONTEXT)).result()
        if self.form == "zarr":  # axes z, y, x
            array = array.T
        for low, high, voxels in self.parts:
            array[tuple(map(slice, low, high))].write(
                voxels[..., None] if self.form == "precomputed" else voxels
            ).result()
