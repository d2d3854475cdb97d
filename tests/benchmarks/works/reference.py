"""wkw, the reference library."""

from __future__ import annotations

from .base import Work, boxes, digest, slices

REQUIRES = ("wkw",)


class Read(Work):
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

    def __init__(self, path: str, size: int, passes: int = 1, edge: int = 0, count: int = 0) -> None:
        import wkw

        self._dataset = wkw.Dataset.open(path)
        self._passes = passes
        pairs = boxes(size, edge, count) if edge else [((0, 0, 0), (size, size, size))]
        self._boxes = [(low, tuple(b - a for a, b in zip(low, high, strict=True))) for low, high in pairs]
        self.nbytes = passes * sum(result.nbytes for result in self._read_all())
        self._results = None

    def _read_all(self) -> list:
        return [self._dataset.read(low, shape) for low, shape in self._boxes]

    def run(self) -> None:
        """Read."""
        for _ in range(self._passes):
            self._results = None
            self._results = self._read_all()

    def digests(self) -> list[str]:
        """Hash every result."""
        return [digest(result) for result in self._results]


class Slices(Read):
    """Slices of one voxel, see ``slices``."""

    def __init__(self, path: str, size: int, plane: str, count: int) -> None:
        super().__init__(path, size)
        self._boxes = [(low, [b - a for a, b in zip(low, high, strict=True)]) for low, high in slices(size, plane, count)]
        self.nbytes = sum(result.nbytes for result in self._read_all())
