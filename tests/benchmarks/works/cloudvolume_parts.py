"""cloud-volume: parts of precomputed volumes that are opened once."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import stored_parts

REQUIRES = ("cloudvolume",)


class Opened(stored_parts.Parts):
    """``volume[...]``."""

    package = "cloud-volume"

    def open(self) -> None:
        """Open the volume."""
        from cloudvolume import CloudVolume

        self._volume = CloudVolume(f"file://{self.level}", progress=False, fill_missing=True)

    def read(self, box: Any) -> np.ndarray:
        """Read a part."""
        x, y, z = (slice(a, b) for a, b in zip(*box, strict=True))
        return np.asarray(self._volume[x, y, z])[..., 0]
