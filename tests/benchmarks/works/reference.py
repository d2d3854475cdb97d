"""wkw, the reference library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import BoxLoop, boxes, slices

if TYPE_CHECKING:
    import numpy as np

REQUIRES = ("wkw",)


class Read(BoxLoop):
    """``wkw.Dataset.read`` of the whole mag or of boxes, on an opened dataset.

    Parameters
    ----------
    path : str
        The mag.
    size : int
        Edge of the volume [voxels].
    passes : int
        Number of passes of a run.
    edge, count : int
        Edge of the boxes [voxels] and how many there are; 0 reads the whole mag.
    """

    package = "wkw"

    def __init__(
        self, path: str, size: int, passes: int = 1, edge: int = 0, count: int = 0
    ) -> None:
        import wkw

        self._dataset = wkw.Dataset.open(path)
        self.passes = passes
        pairs = boxes(size, edge, count) if edge else [((0, 0, 0), (size, size, size))]
        self.boxes = [
            (low, tuple(b - a for a, b in zip(low, high, strict=True))) for low, high in pairs
        ]
        self.nbytes = self.count_nbytes()

    def read(self, box: Any) -> np.ndarray:
        """Read a box."""
        return self._dataset.read(*box)


class Slices(Read):
    """Slices of one voxel, see ``slices``."""

    def __init__(
        self, path: str, size: int, plane: str, count: int, is_sequence: bool = False
    ) -> None:
        super().__init__(path, size)
        self.boxes = [
            (low, [b - a for a, b in zip(low, high, strict=True)])
            for low, high in slices(size, plane, count, is_sequence=is_sequence)
        ]
        self.nbytes = self.count_nbytes()
