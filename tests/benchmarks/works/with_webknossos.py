"""webknossos, the Python library of WEBKNOSSOS."""

from __future__ import annotations

from .base import DatasetCopy, Work, folder_nbytes

REQUIRES = ("webknossos",)


class Pyramid(Work):
    """``Layer.downsample`` with the sequential executor, four coarser mags; it always writes LZ4HC level 9.

    Parameters
    ----------
    source, layer : str
        Dataset and layer.
    folder : str
        Where the copy goes that is worked on.
    size : int
        Edge of the volume [voxels].
    method : str
        ``median`` or ``mode``.
    file_vx : int, optional
        Edge of the files that it writes [voxels]. By default they have 1024, and it encodes the zeros that fill them, which takes most of its time for a
        volume of 512^3 and hardly any for a large one.
    """

    package = "webknossos"

    def __init__(self, source: str, layer: str, folder: str, size: int, method: str, file_vx: int | None = None) -> None:
        from cluster_tools import get_executor
        from webknossos import Dataset, Mag

        self._dataset, self._mag = Dataset, Mag
        self._executor = get_executor("sequential")
        self._copy = DatasetCopy(source, layer, folder)
        self._method, self._size, self._file_vx = method, size, file_vx
        self._copy.reset()
        self.nbytes = size**3 * Dataset.open(self._copy.folder).get_layer(layer).dtype.itemsize

    def prepare(self) -> None:
        """Remove what the last run made."""
        self._copy.reset()

    def run(self) -> None:
        """Build."""
        layer = self._dataset.open(self._copy.folder).get_layer(self._copy.layer)
        layer.downsample(
            coarsest_mag=self._mag(16), interpolation_mode=self._method, sampling_mode="isotropic", shard_shape=self._file_vx, executor=self._executor
        )

    def written(self) -> int:
        """Count the bytes of all coarser mags."""
        return folder_nbytes(self._copy.mags)

    def digests(self) -> list[str]:
        """Hash every coarser mag."""
        return self._copy.digests(self._size)
