"""``dask.array.coarsen`` between arrays that wkw reads and writes: what is written first by
somebody who has dask and no tool for pyramids."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np

from .base import NUM_MAGS, DatasetCopy, Work, folder_nbytes

REQUIRES = ("wkw",)
_CHUNK_VX = 256
_BLOCK_LEN = 32


class Pyramid(Work):
    """Mag by mag: open with wkw, ``da.coarsen``, store with wkw.

    A chunk is 256^3 voxels and becomes one file of 128^3: wkw writes compressed files only as a
    whole. Images are reduced by ``np.mean`` and rounded, or by ``np.median``; labels by a mode of
    sorted windows in numpy (``scipy.stats.mode`` calls Python for each window, which would take
    hours).

    Parameters
    ----------
    source, layer : str
        Dataset and layer.
    folder : str
        Folder of the copy that is changed.
    size : int
        Edge of the volume [voxels].
    method : str
        ``mean``, ``median`` or ``mode``.
    compression : str
        ``lz4`` or ``lz4hc``, which is level 9.
    threads : int
        1 is the synchronous scheduler.
    """

    package = "dask"

    def __init__(
        self,
        source: str,
        layer: str,
        folder: str,
        size: int,
        method: str,
        compression: str,
        threads: int = 1,
    ) -> None:
        self._scheduler = (
            {"scheduler": "synchronous"}
            if threads == 1
            else {"scheduler": "threads", "num_workers": threads}
        )
        self._copy = DatasetCopy(source, layer, folder)
        self._size, self._method, self._compression = size, method, compression
        self.nbytes = size**3 * _Mag(self._path(0), size).dtype.itemsize

    def _path(self, level: int) -> str:
        return str(self._copy.folder / self._copy.layer / str(2**level))

    def prepare(self) -> None:
        """Remove what the last run made."""
        self._copy.reset()

    def run(self) -> None:
        """Build."""
        with dask.config.set(self._scheduler):
            for level in range(1, NUM_MAGS + 1):
                finer = _Mag(self._path(level - 1), self._size >> (level - 1))
                # wkw never comes back from reading an empty box, which dask would do to learn the
                # type
                array = da.from_array(
                    finer,
                    chunks=_CHUNK_VX,
                    name=False,
                    asarray=False,
                    meta=np.empty((0, 0, 0), finer.dtype),
                )
                coarser = self._coarsen(array)
                da.store(
                    coarser, _Mag.create(self._path(level), coarser, self._compression), lock=False
                )

    def _coarsen(self, array: da.Array) -> da.Array:
        factors = dict.fromkeys(range(3), 2)
        if self._method == "mode":
            return da.coarsen(mode, array, factors)
        means = (
            da.coarsen(np.mean, array, factors).round()
            if self._method == "mean"
            else da.coarsen(np.median, array, factors)
        )
        return means.astype(array.dtype)

    def written(self) -> int:
        """Count the bytes of all coarser mags."""
        return folder_nbytes(self._copy.mags)

    def digests(self) -> list[str]:
        """Hash every coarser mag."""
        return self._copy.digests(self._size)


def mode(values: np.ndarray, axis: tuple[int, ...] | None = None) -> np.ndarray:
    """Return the most frequent value along some axes, the smallest of several: sort, and count how
    often each value is there.

    Parameters
    ----------
    values : ndarray
        The voxels.
    axis : tuple of int, optional
        By default all axes.

    Returns
    -------
    ndarray
        Without those axes.
    """
    axis = tuple(range(values.ndim)) if axis is None else axis
    windows = np.moveaxis(values, axis, range(-len(axis), 0))
    windows = np.sort(windows.reshape(*windows.shape[: -len(axis)], -1), axis=-1)
    counts = np.zeros(windows.shape, np.uint8)
    for n in range(windows.shape[-1]):
        counts += windows == windows[..., n : n + 1]
    return np.take_along_axis(windows, counts.argmax(-1)[..., None], -1)[..., 0]


class _Mag:
    """One mag as an array for dask.

    Parameters
    ----------
    path : str
        The mag's folder.
    size : int
        Edge of the volume [voxels of the mag].
    """

    ndim = 3

    def __init__(self, path: str, size: int) -> None:
        import wkw

        self._dataset = wkw.Dataset.open(path)
        self._file_vx = self._dataset.header.block_len * self._dataset.header.file_len
        self.dtype = np.dtype(self._dataset.header.voxel_type)
        self.shape = (size,) * 3

    @classmethod
    def create(cls, path: str, array: da.Array, compression: str) -> _Mag:
        """Make a new mag whose files are chunks of an array."""
        import wkw

        block_type = {"lz4": wkw.Header.BLOCK_TYPE_LZ4, "lz4hc": wkw.Header.BLOCK_TYPE_LZ4HC}[
            compression
        ]
        file_len = -(-array.chunksize[0] // _BLOCK_LEN)
        wkw.Dataset.create(
            path,
            wkw.Header(
                array.dtype.type, block_len=_BLOCK_LEN, file_len=file_len, block_type=block_type
            ),
        ).close()
        return cls(path, array.shape[0])

    def __getitem__(self, box: tuple[slice, ...]) -> np.ndarray:
        return self._dataset.read(
            [part.start for part in box], [part.stop - part.start for part in box]
        )[0]

    def __setitem__(self, box: tuple[slice, ...], voxels: np.ndarray) -> None:
        missing = [(0, -n % self._file_vx) for n in voxels.shape]
        self._dataset.write(
            [part.start for part in box],
            np.pad(voxels, missing) if any(after for _, after in missing) else voxels,
        )

    def __del__(self) -> None:
        self._dataset.close()
