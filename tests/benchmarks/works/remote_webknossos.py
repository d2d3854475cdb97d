"""webknossos, from a server: it reads http by fsspec and aiohttp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .remote import RemoteRead

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

REQUIRES = ("webknossos", "aiohttp")


class Read(RemoteRead):
    """``MagView.read`` of the mag of a dataset."""

    package = "webknossos"

    def open(self, url: str) -> Any:
        """Open the dataset."""
        from upath import UPath
        from webknossos import Dataset

        dataset, layer, mag = url.rsplit("/", 2)
        return Dataset.open(UPath(dataset)).get_layer(layer).get_mag(mag)

    def read(self, volume: Any, low: Sequence[int], high: Sequence[int]) -> np.ndarray:
        """Read a box."""
        return volume.read(
            absolute_offset=tuple(low), size=tuple(b - a for a, b in zip(low, high, strict=True))
        )
