"""wkwdask, from a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import wkwdask

from .remote import RemoteRead

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

REQUIRES = ("wkwdask",)
_PREFIXES = {"wkw": "", "precomputed": "precomputed://", "zarr": "zarr://"}


class Read(RemoteRead):
    """``wkwdask.read``."""

    def open(self, url: str) -> str:
        """Return the URL: the first ``read`` opens it."""
        return _PREFIXES[self.kind] + url

    def read(self, volume: str, low: Sequence[int], high: Sequence[int]) -> np.ndarray:
        """Read a box."""
        return wkwdask.read(volume, (low, high))
