"""tensorstore, on one shard of Zarr with the same chunks as WKW and LZ4: it does not read WKW."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import zarr_pyramids
from .base import CACHE_NBYTES, NUM_MAGS, BoxLoop, read_mag, shared_folder, slices

REQUIRES = ("tensorstore",)
_CHUNK = 32
_LIMITS = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}


class Slices(BoxLoop):
    """Slices of one voxel, of an array that is opened once.

    Parameters
    ----------
    path : str
        The mag whose voxels are stored as Zarr.
    folder : str
        The unit's own folder, beside that of the array.
    size, count : int
        Edge of the volume [voxels] and how many slices.
    plane : str
        Their axes.
    is_sequence : bool
        Whether they follow each other, and a full cache has their chunks.
    """

    package = "tensorstore"

    def __init__(
        self,
        path: str,
        folder: str,
        size: int,
        plane: str,
        count: int,
        is_sequence: bool = False,
    ) -> None:
        import tensorstore

        source = shared_folder(folder) / f"slices-{Path(path).parent.name}-{size}"
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{source}/"}}
        if not source.is_dir():
            voxels = read_mag(path, size)[0]
            blosc = {
                "name": "blosc",
                "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "noshuffle"},
            }
            inner = [
                {"name": "transpose", "configuration": {"order": [2, 1, 0]}},
                {"name": "bytes", "configuration": {"endian": "little"}},
                blosc,
            ]
            sharding = {
                "name": "sharding_indexed",
                "configuration": {"chunk_shape": [_CHUNK] * 3, "codecs": inner},
            }
            grid = {"name": "regular", "configuration": {"chunk_shape": [size] * 3}}
            metadata = {
                "shape": [size] * 3,
                "data_type": voxels.dtype.name,
                "chunk_grid": grid,
                "codecs": [sharding],
            }
            tensorstore.open(spec | {"metadata": metadata}, create=True).result().write(
                voxels
            ).result()
        limits = _LIMITS | (
            {"cache_pool": {"total_bytes_limit": CACHE_NBYTES}} if is_sequence else {}
        )
        self._array = tensorstore.open(spec, context=tensorstore.Context(limits)).result()
        self.boxes = [
            tuple(slice(a, b) for a, b in zip(low, high, strict=True))
            for low, high in slices(size, plane, count, is_sequence=is_sequence)
        ]
        self.nbytes = self.count_nbytes()

    def read(self, box: Any) -> np.ndarray:
        """Read a slice."""
        return self._array[box].read(order="F").result()


class Pyramid(zarr_pyramids.Pyramid):
    """Level by level: the downsample driver over one level, copied into the next shard by shard, so
    that each shard is encoded once."""

    package = "tensorstore"

    def run(self) -> None:
        """Build."""
        import tensorstore

        context = tensorstore.Context(_LIMITS)

        def opened(path: str) -> Any:
            return tensorstore.open(
                {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}},
                context=context,
            ).result()

        finer = opened(str(self.folder / "1"))
        for level in range(1, NUM_MAGS + 1):
            reduced = tensorstore.downsample(finer, [2, 2, 2], self.method)
            coarser = opened(self.create(self.folder, level))
            for index in np.ndindex(*(-(-(self.size >> level) // self.shard),) * 3):
                box = tuple(
                    slice(n * self.shard, min((n + 1) * self.shard, self.size >> level))
                    for n in index
                )
                coarser[box].write(reduced[box]).result()
            finer = coarser
