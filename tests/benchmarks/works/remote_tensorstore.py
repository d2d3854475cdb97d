"""tensorstore, from a server, with its own limits of concurrency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .remote import RemoteRead

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

REQUIRES = ("tensorstore",)
_DRIVERS = {"precomputed": "neuroglancer_precomputed", "zarr": "zarr3"}


class Read(RemoteRead):
    """One call of ``read`` for each box; its cache keeps metadata and shard indexes, and no
    chunks."""

    package = "tensorstore"

    def open(self, url: str) -> Any:
        """Open the volume."""
        import tensorstore

        return tensorstore.open(
            {"driver": _DRIVERS[self.kind], "kvstore": {"driver": "http", "base_url": f"{url}/"}},
            open=True,
            read=True,
        ).result()

    def read(self, volume: Any, low: Sequence[int], high: Sequence[int]) -> np.ndarray:
        """Read a box."""
        if self.kind == "zarr":  # axes z, y, x
            return (
                volume[tuple(slice(a, b) for a, b in zip(low[::-1], high[::-1], strict=True))]
                .read()
                .result()
                .T
            )
        return (
            volume[tuple(slice(a, b) for a, b in zip(low, high, strict=True))]
            .read(order="F")
            .result()[..., 0]
        )
