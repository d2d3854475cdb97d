"""numpy, over a whole array in memory."""

from __future__ import annotations

import numpy as np

from .base import Work, digest

REQUIRES = ("wkw",)


class _Whole(Work):
    """Something done to a whole mag.

    Parameters
    ----------
    path : str
        The mag.
    size : int
        Edge of the volume [voxels].
    in_memory : bool
        Whether voxels are decoded beforehand.
    """

    package = "numpy"

    def __init__(self, path: str, size: int, *, in_memory: bool) -> None:
        import wkw

        self._dataset, self._size = wkw.Dataset.open(path), size
        self.nbytes = size**3 * self._dataset.header.voxel_type().itemsize
        self._voxels = self._read() if in_memory else None
        self._found = ()

    def _read(self) -> np.ndarray:
        return self._dataset.read((0, 0, 0), (self._size,) * 3)[0]

    def run(self) -> None:
        """Read, if need be, and measure."""
        self._found = self.measure(self._read() if self._voxels is None else self._voxels)

    def measure(self, voxels: np.ndarray) -> tuple[np.ndarray, ...]:
        """Find out what is asked for."""
        raise NotImplementedError

    def digests(self) -> list[str]:
        """Hash what was found."""
        return [digest(part) for part in self._found]


class LabelCounts(_Whole):
    """``numpy.unique`` with counts: less than what the others find out."""

    def measure(self, voxels: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return labels and counts without the label 0."""
        labels, counts = np.unique(voxels, return_counts=True)
        return labels[labels != 0].astype(np.int64), counts[labels != 0]


class Histogram(_Whole):
    """``numpy.bincount`` of 8-bit values."""

    def measure(self, voxels: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the counts."""
        return (np.bincount(voxels.reshape(-1, order="F"), minlength=256),)
