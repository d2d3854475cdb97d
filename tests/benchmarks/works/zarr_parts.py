"""zarr-python, with its own pipeline of codecs or that of zarrs: parts of arrays that are opened
once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import stored_parts

if TYPE_CHECKING:
    import numpy as np

REQUIRES = ("zarr",)


class Opened(stored_parts.Parts):
    """``array[...]``."""

    package = "zarr"

    def open(self) -> None:
        """Open the array."""
        import zarr

        zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})
        self._array = zarr.open_array(str(self.level), mode="r")

    def read(self, box: Any) -> np.ndarray:
        """Read a part."""
        x, y, z = (slice(a, b) for a, b in zip(*box, strict=True))
        return self._array[z, y, x].T
