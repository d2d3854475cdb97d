"""tensorstore: parts of arrays that are opened once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import stored_parts

if TYPE_CHECKING:
    import numpy as np

REQUIRES = ("tensorstore",)
_DRIVERS = {"zarr": "zarr3", "n5": "n5", "precomputed": "neuroglancer_precomputed"}
_CONTEXT = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}


class Opened(stored_parts.Parts):
    """``array[...].read()``."""

    package = "tensorstore"

    def open(self) -> None:
        """Open the array."""
        import tensorstore

        spec = {
            "driver": _DRIVERS[self.kind],
            "kvstore": {"driver": "file", "path": f"{self.level}/"},
        }
        self._array = tensorstore.open(spec, context=tensorstore.Context(_CONTEXT)).result()

    def read(self, box: Any) -> np.ndarray:
        """Read a part."""
        x, y, z = (slice(a, b) for a, b in zip(*box, strict=True))
        if self.kind == "zarr":
            return self._array[z, y, x].read().result().T
        voxels = self._array[x, y, z].read(order="F").result()
        return voxels[..., 0] if self.kind == "precomputed" else voxels
