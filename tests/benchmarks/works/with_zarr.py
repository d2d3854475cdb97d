"""WKW through zarr-python without a copy, by the codec or the store of wkwdask; and zarr-python as
a tool that writes shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask
import numpy as np

import wkwdask

from . import zarr_images, zarr_pyramids
from .base import NUM_MAGS, BoxLoop, DatasetCopy, boxes, folder_nbytes
from .with_coarsen import mode

if TYPE_CHECKING:
    from pathlib import Path

REQUIRES = ("wkwdask", "zarr")


class View(BoxLoop):
    """Slices of a zarr array, one after the other.

    Parameters
    ----------
    path : str
        The mag.
    size : int
        Edge of the volume [voxels].
    folder : str
        Folder of the copy to which files are added; its data files are links.
    stored : bool
        Whether files beside the data describe it, so that the codec reads it; else the store
        decodes it.
    passes : int
        Number of passes of a run.
    edge, count : int
        Edge of the boxes [voxels] and how many there are; 0 reads the whole mag.
    """

    package = "zarr"

    def __init__(
        self,
        path: str,
        size: int,
        folder: str,
        stored: bool,
        passes: int = 1,
        edge: int = 0,
        count: int = 0,
    ) -> None:
        import zarr

        zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})
        dataset, layer, _ = path.rsplit("/", 2)
        copy = DatasetCopy(dataset, layer, folder)
        copy.reset()
        if stored:
            wkwdask.write_zarr_view(copy.folder)
            self._array = zarr.open_array(str(copy.folder / layer / "1"), mode="r")
        else:
            self._array = zarr.open_group(wkwdask.zarr_view(copy.folder, layer=layer), mode="r")[
                "1"
            ]
        self.passes, self.boxes = (
            passes,
            boxes(size, edge, count) if edge else [((0, 0, 0), (size, size, size))],
        )
        self.nbytes = (
            passes
            * self._array.dtype.itemsize
            * sum(int(np.prod(np.subtract(high, low))) for low, high in self.boxes)
        )

    def read(self, box: Any) -> np.ndarray:
        """Read a box."""
        z, y, x = (slice(a, b) for a, b in zip(*map(reversed, box), strict=True))
        return self._array[z, y, x].T[np.newaxis]


class Export(zarr_images.Export):
    """``wkwdask.convert`` to an OME-NGFF image."""

    def __init__(self, **options: object) -> None:
        dask.config.set(scheduler="synchronous")
        super().__init__(**options)

    def run(self) -> None:
        """Convert."""
        dataset, layer, _ = self.path.rsplit("/", 2)
        wkwdask.convert(
            dataset,
            self.folder / "a.ome.zarr",
            layer=layer,
            voxel_size=(4, 4, 4),
            chunk_shape=(self.chunk,) * 3,
        )

    @property
    def array(self) -> Path:
        """The array."""
        return self.folder / "a.ome.zarr" / "1"


class Splice(Export):
    """The same, with blocks as chunks, which are not decoded."""

    def run(self) -> None:
        """Convert."""
        dataset, layer, _ = self.path.rsplit("/", 2)
        wkwdask.convert(dataset, self.folder / "a.ome.zarr", layer=layer, voxel_size=(4, 4, 4))


class PlainExport(zarr_images.Export):
    """A loop that reads a shard by wkw and writes it by zarr-python, with the same chunks, shards
    and codecs."""

    package = "zarr"

    def run(self) -> None:
        """Convert."""
        import wkw
        import zarr
        from zarr.codecs import ZstdCodec

        zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})
        edge = self.shard
        codec = ZstdCodec(level=3)
        array = zarr.create_array(
            str(self.array),
            shape=(self.size,) * 3,
            dtype=self.dtype,
            chunks=(self.chunk,) * 3,
            shards=(edge,) * 3,
            compressors=codec,
        )
        with wkw.Dataset.open(self.path) as source:
            for index in np.ndindex(*(self.size // edge,) * 3):
                z, y, x = (n * edge for n in index)
                array[z : z + edge, y : y + edge, x : x + edge] = source.read(
                    (x, y, z), (edge,) * 3
                )[0].T


class Pyramid(zarr_pyramids.Pyramid):
    """``wkwdask.build_pyramid``."""

    package = "wkwdask"

    def __init__(self, **options: Any) -> None:
        dask.config.set(scheduler="synchronous")
        super().__init__(**options)

    def run(self) -> None:
        """Build."""
        wkwdask.build_pyramid(f"zarr://{self.folder}", coarsest=1 << NUM_MAGS, method=self.method)


class PlainPyramid(zarr_pyramids.Pyramid):
    """Level by level: ``da.from_zarr``, ``da.coarsen`` and ``da.to_zarr``, whose chunks become
    whole shards."""

    package = "dask"

    def run(self) -> None:
        """Build."""
        import dask.array as da
        import zarr

        zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})
        with dask.config.set(scheduler="synchronous"):
            for level in range(1, NUM_MAGS + 1):
                finer = da.from_zarr(
                    str(self.folder / str(1 << (level - 1))), chunks=2 * self.shard
                )
                reduce = mode if self.method == "mode" else np.mean
                coarser = da.coarsen(reduce, finer, dict.fromkeys(range(3), 2))
                coarser = (coarser.round() if self.method == "mean" else coarser).astype(self.dtype)
                coarser.to_zarr(zarr.open_array(self.create(self.folder, level), mode="r+"))


class Rechunk(zarr_pyramids.Pyramid):
    """``wkwdask.rechunk`` of the finest level to another image, with shards of half the edge.

    Parameters
    ----------
    level : int
        Level of the compression: that of the source copies chunks, another one decodes them.
    **options
        As for the base class.
    """

    package = "wkwdask"

    def __init__(self, level: int | None = None, **options: Any) -> None:
        dask.config.set(scheduler="synchronous")
        super().__init__(**options)
        self._options = {} if level is None else {"level": level}

    def run(self) -> None:
        """Store it again."""
        wkwdask.rechunk(
            f"zarr://{self.source}",
            f"zarr://{self.folder}/other",
            shard_shape=(self.shard // 2,) * 3,
            **self._options,
        )

    @property
    def levels(self) -> list[Path]:
        """The new level."""
        return [self.folder / "other" / "1"]


class Copy(zarr_pyramids.Pyramid):
    """``wkwdask.copy`` of the image, whose files are copied whole.

    Parameters
    ----------
    passes : int
        Number of copies of a run.
    **options
        As for the base class.
    """

    package = "wkwdask"

    def __init__(self, passes: int, **options: Any) -> None:
        dask.config.set(scheduler="synchronous")
        super().__init__(**options)
        self._passes = passes
        self.nbytes *= passes

    def prepare(self) -> None:
        """Put aside what the last run made."""
        self.put_aside()

    def run(self) -> None:
        """Copy."""
        for number in range(self._passes):
            wkwdask.copy(f"zarr://{self.source}", f"zarr://{self.folder}/{number}")

    @property
    def levels(self) -> list[Path]:
        """The level of the first copy."""
        return [self.folder / "0" / "1"]

    def written(self) -> int:
        """Count the bytes of the copies."""
        return folder_nbytes([self.folder])
