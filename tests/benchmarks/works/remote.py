"""Shared by works that read from a server: fresh URLs for each run, and the boxes to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Work, digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


class RemoteRead(Work):
    """Boxes of one volume.

    Parameters
    ----------
    server : str
        URL of the server, which serves the same files below ``/fresh-1``, ``/fresh-2`` and so on:
        no tool knows a path there from before.
    path : str
        Path of the volume on the server.
    kind : str
        ``wkw``, ``precomputed`` or ``zarr``.
    boxes : sequence of pairs of corners
        Boxes to read [voxels].
    is_open : bool
        Whether the volume is opened, and one voxel read, before each measurement; else opening it
        is measured.
    """

    _count = 0

    def __init__(
        self, server: str, path: str, kind: str, boxes: Sequence[Any], nbytes: int, is_open: bool
    ) -> None:
        self._server, self._path, self.kind, self._boxes, self._is_open = (
            server,
            path,
            kind,
            boxes,
            is_open,
        )
        self.nbytes = nbytes
        self._volume: Any = None

    def open(self, url: str) -> Any:
        """Open the volume at a URL."""
        raise NotImplementedError

    def read(self, volume: Any, low: Sequence[int], high: Sequence[int]) -> np.ndarray:
        """Read a box, shape (c, x, y, z) or (x, y, z)."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Forget the volume, and open it where that is not measured."""
        self._count += 1
        self._volume = self._opened() if self._is_open else None
        if self._is_open:
            self.read(self._volume, (0, 0, 0), (1, 1, 1))

    def _opened(self) -> Any:
        return self.open(f"{self._server}/fresh-{self._count}/{self._path}")

    def run(self) -> None:
        """Open the volume, unless it is open, and read."""
        if self._volume is None:
            self._volume = self._opened()
        for low, high in self._boxes:
            self.read(self._volume, low, high)

    def digests(self) -> list[str]:
        """Read all boxes once more and hash them."""
        return [digest(self.read(self._volume, low, high)) for low, high in self._boxes]
