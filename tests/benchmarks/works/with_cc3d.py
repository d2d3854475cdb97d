"""cc3d (connected-components-3d), whose ``statistics`` are those of an array in memory; fastremap
renumbers labels for it."""

from __future__ import annotations

import numpy as np

from .base import Work, digest

REQUIRES = ("cc3d", "fastremap", "wkw")


class LabelStatistics(Work):
    """``cc3d.statistics`` of a whole mag. Its memory grows with the largest label, so that labels
    are renumbered first.

    Parameters
    ----------
    path : str
        The mag.
    size : int
        Edge of the volume [voxels].
    in_memory : bool
        Whether voxels are decoded and renumbered beforehand.
    """

    package = "connected-components-3d"

    def __init__(self, path: str, size: int, *, in_memory: bool) -> None:
        import wkw

        self._dataset, self._size = wkw.Dataset.open(path), size
        self.nbytes = size**3 * self._dataset.header.voxel_type().itemsize
        self._renumbered = self._read() if in_memory else None
        self._found = None

    def _read(self) -> tuple:
        import fastremap

        labels = self._dataset.read((0, 0, 0), (self._size,) * 3)[0]
        return fastremap.renumber(labels, preserve_zero=True, in_place=True)

    def run(self) -> None:
        """Measure all labels."""
        import cc3d

        labels, names = self._renumbered or self._read()
        self._found = names, cc3d.statistics(labels)

    def digests(self) -> list[str]:
        """Hash labels, counts and boxes; the label 0 is left out."""
        names, found = self._found
        of_number = {number: name for name, number in names.items()}
        numbers = sorted(
            (n for n, count in enumerate(found["voxel_counts"]) if n and count),
            key=of_number.__getitem__,
        )
        boxes = [[(part.start, part.stop) for part in found["bounding_boxes"][n]] for n in numbers]
        return [
            digest(np.array(part, np.int64))
            for part in (
                [of_number[n] for n in numbers],
                [found["voxel_counts"][n] for n in numbers],
                boxes,
            )
        ]
