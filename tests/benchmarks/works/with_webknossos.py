"""webknossos, the Python library of WEBKNOSSOS."""

from __future__ import annotations

import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

from .base import DatasetCopy, Work, digest, folder_nbytes, read_mag

REQUIRES = ("webknossos",)


class Pyramid(Work):
    """``Layer.downsample``, four coarser mags; it always writes LZ4HC level 9.

    It hands out 1024^3 voxels of the coarser mag at once: a volume has to be larger than 2048^3
    before a second worker gets any. So that two workers have what they would have there, each gets
    a separate volume, both at once.

    Parameters
    ----------
    source, layer : str
        Dataset and layer.
    folder : str
        Folder of the copies that are changed.
    size : int
        Edge of the volume [voxels].
    method : str
        ``median`` or ``mode``.
    file_vx : int, optional
        Edge of the files that it writes [voxels]. By default they have 1024, and it encodes the
        zeros that fill them, which takes most of its time for a volume of 512^3 and hardly any for
        a large one.
    processes : int
        1 is its sequential executor, more its multiprocessing executor; also the number of volumes.
    """

    package = "webknossos"

    def __init__(
        self,
        source: str,
        layer: str,
        folder: str,
        size: int,
        method: str,
        file_vx: int | None = None,
        processes: int = 1,
    ) -> None:
        from webknossos import Dataset

        self._executor = _executor(processes)
        self._copies = [
            DatasetCopy(source, layer, f"{folder}-{number}") for number in range(processes)
        ]
        self._method, self._size, self._file_vx = method, size, file_vx
        self.prepare()
        self.nbytes = (
            processes
            * size**3
            * Dataset.open(self._copies[0].folder).get_layer(layer).dtype.itemsize
        )

    def prepare(self) -> None:
        """Remove what the last run made."""
        for copy in self._copies:
            copy.reset()

    def run(self) -> None:
        """Build."""
        if len(self._copies) == 1:
            _downsample(self._copies[0], self._method, self._file_vx, self._executor)
        else:
            for future in [
                self._executor.submit(_downsample, copy, self._method, self._file_vx)
                for copy in self._copies
            ]:
                future.result()

    def written(self) -> int:
        """Count the bytes of all coarser mags."""
        return sum(folder_nbytes(copy.mags) for copy in self._copies)

    def digests(self) -> list[str]:
        """Hash every coarser mag."""
        return self._copies[-1].digests(self._size)


class Rechunk(Work):
    """``MagView.rechunk`` or ``compress`` to another place; what it compresses is always LZ4HC
    level 9.

    Parameters
    ----------
    source, layer : str
        Dataset and layer.
    folder : str
        Where it works.
    nbytes : int
        Bytes of the voxels.
    size : int
        Edge of the volume [voxels].
    block_vx, file_vx : int, optional
        Edge of the new blocks and files [voxels]; without them the mag is compressed only.
    """

    package = "webknossos"

    def __init__(
        self,
        source: str,
        layer: str,
        folder: str,
        nbytes: int,
        size: int,
        block_vx: int | None = None,
        file_vx: int | None = None,
    ) -> None:
        self._copy, self._target = DatasetCopy(source, layer, folder), Path(f"{folder}-new")
        self._size, self._block_vx, self._file_vx = size, block_vx, file_vx
        self.nbytes = nbytes

    @property
    def _mag(self) -> Path:
        return self._target / self._copy.layer / "1"

    def prepare(self) -> None:
        """Remove what the last run made."""
        self._copy.reset()
        shutil.rmtree(self._target, ignore_errors=True)

    def run(self) -> None:
        """Store it anew."""
        from webknossos import Dataset

        mag = Dataset.open(self._copy.folder).get_layer(self._copy.layer).get_mag(1)
        if self._file_vx is None:
            mag.compress(target_path=self._target, executor=_executor(1))
        else:
            mag.rechunk(
                chunk_shape=self._block_vx,
                shard_shape=self._file_vx,
                compress=True,
                target_path=self._target,
                executor=_executor(1),
            )

    def written(self) -> int:
        """Count the bytes of the new mag."""
        return folder_nbytes([self._mag])

    def digests(self) -> list[str]:
        """Hash the new mag."""
        return [digest(read_mag(self._mag, self._size))]


@lru_cache
def _executor(processes: int) -> Any:
    """Start an executor once: its processes stay warm. They are forked, so that they know this
    module."""
    from cluster_tools import get_executor

    return (
        get_executor("sequential")
        if processes == 1
        else get_executor("multiprocessing", max_workers=processes, start_method="fork")
    )


def _downsample(copy: DatasetCopy, method: str, file_vx: int | None, executor: Any = None) -> None:
    """Downsample one volume, in this process where no executor is given."""
    from webknossos import Dataset, Mag

    layer = Dataset.open(copy.folder).get_layer(copy.layer)
    layer.downsample(
        coarsest_mag=Mag(16),
        interpolation_mode=method,
        sampling_mode="isotropic",
        shard_shape=file_vx,
        executor=_executor(1) if executor is None else executor,
    )
