"""tensorstore, on one shard of Zarr with the same chunks as WKW and LZ4: it does not read WKW."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base import BoxLoop, read_mag, slices

if TYPE_CHECKING:
    import numpy as np

REQUIRES = ("tensorstore",)
_CHUNK = 32


class Slices(BoxLoop):
    """Slices of one voxel, of an array that is opened once.

    Parameters
    ----------
    path : str
        The mag whose voxels are stored as Zarr.
    folder : str
        Folder of the array.
    size, count : int
        Edge of the volume [voxels] and how many slices.
    plane : str
        Their axes.
    """

    package = "tensorstore"

    def __init__(self, path: str, folder: str, size: int, plane: str, count: int) -> None:
        import tensorstore

        limits = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}
        if not Path(folder).is_dir():
            voxels = read_mag(path, size)[0]
            blosc = {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "noshuffle"}}
            inner = [{"name": "transpose", "configuration": {"order": [2, 1, 0]}}, {"name": "bytes", "configuration": {"endian": "little"}}, blosc]
            sharding = {"name": "sharding_indexed", "configuration": {"chunk_shape": [_CHUNK] * 3, "codecs": inner}}
            grid = {"name": "regular", "configuration": {"chunk_shape": [size] * 3}}
            metadata = {"shape": [size] * 3, "data_type": voxels.dtype.name, "chunk_grid": grid, "codecs": [sharding]}
            tensorstore.open(spec | {"metadata": metadata}, create=True).result().write(voxels).result()
        self._array = tensorstore.open(spec, context=tensorstore.Context(limits)).result()
        self.boxes = [tuple(slice(a, b) for a, b in zip(low, high, strict=True)) for low, high in slices(size, plane, count)]
        self.nbytes = self.count_nbytes()

    def read(self, box: Any) -> np.ndarray:
        """Read a slice."""
        return self._array[box].read(order="F").result()
