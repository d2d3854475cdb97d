"""Label components and map ids of whole arrays in memory: read with the reference library, written
with it as LZ4HC, or only computed."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np

from .base import Work, digest, folder_nbytes, read_mag

REQUIRES = ("wkw",)
_NEIGHBOURS = {6: 1, 18: 2, 26: 3}


def partition(ids: np.ndarray) -> str:
    """Hash the components independently of their ids: components are numbered by their first
    voxels."""
    flat = ids.ravel(order="K")
    starts = np.flatnonzero(np.append(True, flat[1:] != flat[:-1]))
    known, first = np.unique(flat[starts], return_index=True)
    rank = np.empty(len(known), np.uint32)
    rank[np.argsort(first)] = np.arange(len(known))
    runs = rank[np.searchsorted(known, flat[starts])]
    return digest(np.stack([starts.astype(np.uint32), np.where(flat[starts] > 0, runs + 1, 0)]))


class _Whole(Work):
    """Base of both works.

    Parameters
    ----------
    path : str
        The mag.
    folder : str
        Folder of the result.
    size : int
        Edge of the volume [voxels].
    nbytes : int
        Bytes of the voxels.
    writes : bool
        Whether the volume is read and the result is written each time; else it is there, and stays
        in memory.
    """

    def __init__(self, path: str, folder: str, size: int, nbytes: int, writes: bool) -> None:
        self._path, self._target, self._size, self._writes = path, Path(folder) / "1", size, writes
        self.nbytes = nbytes
        self._result = np.zeros(0)
        self._voxels = np.asfortranarray(read_mag(path, size)[0])

    def prepare(self) -> None:
        """Remove what the last run made."""
        shutil.rmtree(self._target.parent, ignore_errors=True)

    def run(self) -> None:
        """Read, compute, write."""
        if not self._writes:
            self._result = self._compute(self._voxels)
            return
        import wkw

        with wkw.Dataset.open(self._path) as source:
            header = source.header
            self._result = self._compute(
                np.asfortranarray(source.read((0, 0, 0), (self._size,) * 3)[0])
            )
        self._target.parent.mkdir(parents=True)
        new = wkw.Header(
            self._result.dtype.type,
            block_len=header.block_len,
            file_len=header.file_len,
            block_type=wkw.Header.BLOCK_TYPE_LZ4HC,
        )
        with wkw.Dataset.create(str(self._target), new) as target:
            target.write((0, 0, 0), self._result)

    def written(self) -> int:
        """Count the bytes of the new mag."""
        return folder_nbytes([self._target])

    def _compute(self, voxels: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class Components(_Whole):
    """cc3d, or scipy of a mask: 26 neighbours; of voxels that reach a threshold, or of equal
    labels."""

    def __init__(self, tool: str, threshold: int | None = None, **options: object) -> None:
        self.package = {"cc3d": "connected-components-3d", "scipy": "scipy"}[tool]
        self._tool, self._threshold = tool, threshold
        super().__init__(**options)

    def _compute(self, voxels: np.ndarray) -> np.ndarray:
        counts = voxels if self._threshold is None else voxels >= self._threshold
        if self._tool == "cc3d":
            import cc3d

            return np.asarray(
                cc3d.connected_components(counts, connectivity=26, out_dtype=np.uint32)
            )
        from scipy import ndimage

        return ndimage.label(
            counts, ndimage.generate_binary_structure(3, _NEIGHBOURS[26]), output=np.uint32
        )[0]

    def digests(self) -> list[str]:
        """Hash the components."""
        return [partition(np.asfortranarray(self._result))]


class Remap(_Whole):
    """fastremap by a dict, or numpy by an entry for each id up to the largest."""

    def __init__(self, tool: str, mapping: str, **options: object) -> None:
        self.package = tool
        self._tool, pairs = tool, np.load(mapping)
        super().__init__(**options)
        self._pairs = dict(pairs.tolist())
        self._table = np.zeros(int(pairs[:, 0].max()) + 1 if tool == "numpy" else 0, np.uint32)
        if tool == "numpy":
            self._table[pairs[:, 0]] = pairs[:, 1]

    def _compute(self, voxels: np.ndarray) -> np.ndarray:
        if self._tool == "numpy":
            return self._table[voxels]
        import fastremap

        return np.asarray(fastremap.remap(voxels, self._pairs, in_place=False))

    def version(self) -> str:
        """Return the version of the tool."""
        return version(self._tool)

    def digests(self) -> list[str]:
        """Hash the voxels."""
        return [digest(self._result)]
