"""wkwdask."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import numpy as np

import wkwdask

from .base import (
    CACHE_NBYTES,
    BoxLoop,
    DatasetCopy,
    Work,
    arranged_boxes,
    boxes,
    digest,
    folder_nbytes,
    read_mag,
    slices,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

REQUIRES = ("wkwdask",)


class Read(BoxLoop):
    """``wkwdask.read`` of the whole mag or of boxes.

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
    threads : int
        Number of threads: a whole mag is read by all of them, boxes are dealt to them.
    """

    def __init__(
        self, path: str, size: int, passes: int = 1, edge: int = 0, count: int = 0, threads: int = 1
    ) -> None:
        if threads == 1:
            dask.config.set(scheduler="synchronous")
        self._path, self._threads = path, threads
        self.passes, self.boxes = passes, boxes(size, edge, count) if edge else [None]
        self._pool = ThreadPoolExecutor(threads)
        self.nbytes = self.count_nbytes()

    def read(self, box: Any) -> np.ndarray:
        """Read a box, or the whole mag."""
        return wkwdask.read(
            self._path, box, threads=self._threads if box is None and self._threads > 1 else None
        )

    def run(self) -> None:
        """Read."""
        if self._threads == 1 or self.boxes[0] is None:
            super().run()
            return
        for _ in range(self.passes):
            list(
                self._pool.map(
                    self._read_all, [self.boxes[n :: self._threads] for n in range(self._threads)]
                )
            )

    def _read_all(self, some: Sequence[Any]) -> None:
        for box in some:
            self.read(box)


class ReadMany(Work):
    """``wkwdask.read_many``, or a loop of ``wkwdask.read``.

    Parameters
    ----------
    path : str
        The mag.
    size : int
        Edge of the volume [voxels].
    edge : int
        Edge of the boxes [voxels].
    arrangement : str
        Where they lie, see ``arranged_boxes``.
    passes : int
        Number of passes of a run.
    loop : bool
        Whether each box is one call.
    """

    def __init__(
        self, path: str, size: int, edge: int, arrangement: str, passes: int = 1, loop: bool = False
    ) -> None:
        dask.config.set(scheduler="synchronous")
        self._path, self._passes, self._loop = path, passes, loop
        self._boxes = arranged_boxes(size, edge, arrangement)
        self.nbytes = passes * sum(result.nbytes for result in self._read())
        self._results = None

    def _read(self) -> Sequence[np.ndarray]:
        return (
            [wkwdask.read(self._path, box) for box in self._boxes]
            if self._loop
            else wkwdask.read_many(self._path, self._boxes)
        )

    def run(self) -> None:
        """Read."""
        for _ in range(self._passes):
            self._results = None
            self._results = self._read()

    def digests(self) -> list[str]:
        """Hash every box."""
        return [digest(result) for result in self._results]


class OpenCompute(Work):
    """``wkwdask.open(...).compute()`` of the whole mag.

    Parameters
    ----------
    path : str
        The mag.
    axes : str
        Order of the axes.
    passes : int
        Number of passes of a run.
    """

    def __init__(self, path: str, axes: str, passes: int = 1) -> None:
        dask.config.set(scheduler="synchronous")
        self._path, self._axes, self._passes = path, axes, passes
        self.nbytes = passes * wkwdask.open(path).nbytes
        self._result = None

    def run(self) -> None:
        """Open and compute."""
        for _ in range(self._passes):
            self._result = None
            self._result = wkwdask.open(self._path, axes=self._axes).compute()

    def digests(self) -> list[str]:
        """Hash the result."""
        return [digest(self._result.transpose([self._axes.index(axis) for axis in "cxyz"]))]


class Slices(BoxLoop):
    """Slices of one voxel, by ``wkwdask.read`` or from an array of ``wkwdask.open``.

    Parameters
    ----------
    path : str
        The mag.
    size, count : int
        Edge of the volume [voxels] and how many slices.
    plane : str
        Their axes.
    is_open : bool
        Whether the array is opened once, and each slice of it computed.
    """

    def __init__(self, path: str, size: int, plane: str, count: int, is_open: bool = False) -> None:
        dask.config.set(scheduler="synchronous")
        self._path, self.boxes = path, slices(size, plane, count)
        self._array = wkwdask.open(path) if is_open else None
        self.nbytes = self.count_nbytes()

    def read(self, box: Any) -> np.ndarray:
        """Read a slice."""
        if self._array is None:
            return wkwdask.read(self._path, box)
        a, b = box
        return self._array[:, a[0] : b[0], a[1] : b[1], a[2] : b[2]].compute()


class SlabSlices(BoxLoop):
    """All slices xy of a volume that is one block thick, by ``wkwdask.read``.

    Parameters
    ----------
    path : str
        The mag.
    size, count : int
        Length along x and y [voxels] and how many slices.
    threads : int
        Threads that decode a slice.
    """

    def __init__(self, path: str, size: int, count: int, threads: int) -> None:
        self._path, self._threads = path, threads
        self.boxes = [((0, 0, z), (size, size, z + 1)) for z in range(count)]
        self.nbytes = self.count_nbytes()

    def read(self, box: Any) -> np.ndarray:
        """Read a slice."""
        return wkwdask.read(self._path, box, threads=self._threads)


class NextSlices(BoxLoop):
    """Slices that follow each other, by ``wkwdask.read``, from an empty cache of blocks or a full
    one.

    Parameters
    ----------
    path : str
        The mag.
    size, count : int
        Edge of the volume [voxels] and how many slices.
    plane : str
        Their axes.
    is_full : bool
        Whether the cache has the blocks that a run needs.
    """

    def __init__(self, path: str, size: int, plane: str, count: int, is_full: bool = False) -> None:
        dask.config.set(scheduler="synchronous")
        self._path, self._is_full = path, is_full
        self.boxes = slices(size, plane, count, is_sequence=True)
        wkwdask.set_block_cache(CACHE_NBYTES)
        self.nbytes = self.count_nbytes()

    def prepare(self) -> None:
        """Empty the cache."""
        if not self._is_full:
            wkwdask.set_block_cache(0)
            wkwdask.set_block_cache(CACHE_NBYTES)

    def read(self, box: Any) -> np.ndarray:
        """Read a slice."""
        return wkwdask.read(self._path, box)


class Pyramid(Work):
    """``wkwdask.build_pyramid``, four coarser mags.

    Parameters
    ----------
    source, layer : str
        Dataset and layer.
    folder : str
        Folder of the copy that is changed.
    nbytes : int
        Bytes of the voxels that there are.
    method, compression : str
        As for ``build_pyramid``.
    size : int
        Edge of the volume whose mags are compared with those of other tools [voxels]; 0 compares
        nothing.
    level : int, optional
        LZ4HC level; by default the default.
    threads : int
        1 is the synchronous scheduler.
    """

    def __init__(
        self,
        source: str,
        layer: str,
        folder: str,
        nbytes: int,
        method: str,
        compression: str,
        size: int = 0,
        level: int | None = None,
        threads: int = 1,
    ) -> None:
        if threads == 1:
            dask.config.set(scheduler="synchronous")
        else:
            dask.config.set(scheduler="threads", num_workers=threads)
        self._copy = DatasetCopy(source, layer, folder)
        self._size = size
        # as that of the source, as for the other tools
        (length,) = (
            one.mags[0].file_len for one in wkwdask.info(source).layers if one.name == layer
        )
        self._options = {
            "method": method,
            "compression": compression,
            "file_len": length if length > 1 else 8,
        } | ({} if level is None else {"level": level})
        self.nbytes = nbytes

    def prepare(self) -> None:
        """Remove what the last run made."""
        self._copy.reset()

    def run(self) -> None:
        """Build."""
        wkwdask.build_pyramid(
            self._copy.folder, layer=self._copy.layer, coarsest=16, **self._options
        )

    def written(self) -> int:
        """Count the bytes of all coarser mags."""
        return folder_nbytes(self._copy.mags)

    def digests(self) -> list[str]:
        """Hash every coarser mag."""
        return self._copy.digests(self._size) if self._size else []


class Rechunk(Work):
    """``wkwdask.rechunk`` of a mag to another place.

    Parameters
    ----------
    path : str
        The mag.
    folder : str
        Folder of the new mag.
    nbytes : int
        Bytes of the voxels.
    size : int
        Edge of the volume that is compared with that of other tools [voxels]; 0 compares nothing.
    **options
        Storage options.
    """

    def __init__(
        self, path: str, folder: str, nbytes: int, size: int = 0, **options: object
    ) -> None:
        dask.config.set(scheduler="synchronous")
        self._path, self._target, self._size, self._options = (
            path,
            Path(folder) / "1",
            size,
            options,
        )
        self.nbytes = nbytes

    def prepare(self) -> None:
        """Remove what the last run made."""
        shutil.rmtree(self._target.parent, ignore_errors=True)

    def run(self) -> None:
        """Store it anew."""
        wkwdask.rechunk(self._path, self._target, **self._options)

    def written(self) -> int:
        """Count the bytes of the new mag."""
        return folder_nbytes([self._target])

    def digests(self) -> list[str]:
        """Hash the new mag."""
        return [digest(read_mag(self._target, self._size))] if self._size else []


class Copy(Work):
    """``wkwdask.copy`` of a mag, whose files are copied whole.

    Parameters
    ----------
    path : str
        The mag.
    folder : str
        Folder of the copies.
    nbytes : int
        Bytes of the voxels.
    passes : int
        Number of copies of a run.
    """

    def __init__(self, path: str, folder: str, nbytes: int, passes: int) -> None:
        dask.config.set(scheduler="synchronous")
        self._path, self._folder, self._passes = path, Path(folder), passes
        self.nbytes = passes * nbytes

    def prepare(self) -> None:
        """Remove what the last run made."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self) -> None:
        """Copy."""
        for number in range(self._passes):
            wkwdask.copy(self._path, self._folder / str(number) / "1")

    def written(self) -> int:
        """Count the bytes of the copies."""
        return folder_nbytes([self._folder])

    def digests(self) -> list[str]:
        """Hash the first copy."""
        return [digest(wkwdask.read(self._folder / "0" / "1")[0])]


class LabelStatistics(Work):
    """``wkwdask.label_statistics`` of a mag, from its files, by one thread.

    Parameters
    ----------
    path : str
        The mag.
    size : int
        Edge of the volume [voxels].
    color : str, optional
        Another layer.
    """

    def __init__(self, path: str, size: int, color: str | None = None) -> None:
        self._path, self._color = path, color
        self.nbytes = size**3 * sum(
            wkwdask.open(one).dtype.itemsize for one in (path, color) if one is not None
        )
        self._found = None

    def run(self) -> None:
        """Measure all labels."""
        with dask.config.set(scheduler="synchronous"):
            self._found = wkwdask.label_statistics(self._path, self._color)

    def digests(self) -> list[str]:
        """Hash labels, counts and boxes."""
        boxes = (
            self._found[[f"{end}_{axis}" for axis in "xyz" for end in ("min", "max")]]
            .to_numpy(np.int64)
            .reshape(-1, 3, 2)
        )
        return [
            digest(part)
            for part in (self._found.index.to_numpy(np.int64), self._found.voxels.to_numpy(), boxes)
        ]


class Histogram(Work):
    """``wkwdask.histogram`` of a mag, from its files, by one thread.

    Parameters
    ----------
    path : str
        The mag.
    size : int
        Edge of the volume [voxels].
    """

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self.nbytes = size**3 * wkwdask.open(path).dtype.itemsize
        self._found = None

    def run(self) -> None:
        """Count all values."""
        with dask.config.set(scheduler="synchronous"):
            self._found = wkwdask.histogram(self._path)

    def digests(self) -> list[str]:
        """Hash the counts."""
        return [digest(self._found.to_numpy()[0])]


class Components(Rechunk):
    """``wkwdask.connected_components`` from a mag to a mag; its options are those of the call."""

    def run(self) -> None:
        """Label."""
        wkwdask.connected_components(self._path, self._target, **self._options)

    def digests(self) -> list[str]:
        """Hash the components independently of their ids."""
        from .whole_array import partition

        return [partition(np.asfortranarray(read_mag(self._target, self._size)[0]))]


class Remap(Rechunk):
    """``wkwdask.remap`` from a mag to a mag; its options are those of the call."""

    def run(self) -> None:
        """Map."""
        wkwdask.remap(self._path, self._target, **self._options)

    def digests(self) -> list[str]:
        """Hash the new mag."""
        return [digest(read_mag(self._target, self._size)[0])]
