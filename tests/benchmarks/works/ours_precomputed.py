"""wkwdask, on Neuroglancer precomputed volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask

import wkwdask

from . import precomputed
from .base import arranged_boxes, digest
from .precomputed import RESOLUTION, edge_of_chunks

if TYPE_CHECKING:
    import numpy as np

REQUIRES = ("wkwdask",)


class Write(precomputed.Written):
    """``wkwdask.to_precomputed`` of an array in memory."""

    def __init__(self, **options: Any) -> None:
        dask.config.set(scheduler="synchronous")
        super().__init__(**options)

    def _stored(self) -> dict[str, Any]:
        edge = edge_of_chunks(self.size)
        return {
            "shard_shape": precomputed.ours(self.size, self.dtype, sharded=self.sharded),
            "chunk_shape": (edge,) * 3,
            "voxel_size": RESOLUTION,
        }

    def run(self) -> None:
        """Write."""
        wkwdask.to_precomputed(self.voxels, self.folder, **self._stored())


class Read(precomputed.Pyramid):
    """``wkwdask.read`` of the whole scale."""

    def __init__(self, **options: Any) -> None:
        dask.config.set(scheduler="synchronous")
        super().__init__(**options)
        self._result: np.ndarray | None = None

    def prepare(self) -> None:
        """Forget what was read."""
        self._result = None

    def run(self) -> None:
        """Read."""
        self._result = wkwdask.read(f"precomputed://{self.source}")

    def written(self) -> int:
        """Nothing is."""
        return 0

    def digests(self) -> list[str]:
        """Hash what was read."""
        return [digest(self._result)]


class ReadMany(Read):
    """``wkwdask.read_many`` of boxes, see ``arranged_boxes``."""

    def __init__(self, edge: int, arrangement: str, **options: Any) -> None:
        super().__init__(**options)
        self._boxes = arranged_boxes(self.size, edge, arrangement)
        self.nbytes = len(self._boxes) * edge**3 * self.dtype.itemsize

    def run(self) -> None:
        """Read."""
        self._result = wkwdask.read_many(f"precomputed://{self.source}", self._boxes)

    def digests(self) -> list[str]:
        """Hash every box."""
        return [digest(part) for part in self._result]


class Pyramid(precomputed.Pyramid):
    """``wkwdask.build_pyramid``, four coarser scales, stored as the finest."""

    def __init__(self, **options: Any) -> None:
        dask.config.set(scheduler="synchronous")
        super().__init__(**options)

    def run(self) -> None:
        """Build."""
        wkwdask.build_pyramid(f"precomputed://{self.folder}", coarsest=16, method=self.method)


class Convert(Write):
    """``wkwdask.convert`` of the mag; uint32 stays uint32."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.nbytes = self.size**3 * min(self.dtype.itemsize, 4)
        del self.voxels

    def run(self) -> None:
        """Convert."""
        dataset, layer, _ = self.path.rsplit("/", 2)
        stored = {name: value for name, value in self._stored().items() if name != "voxel_size"}
        wkwdask.convert(dataset, f"precomputed://{self.folder}", layer=layer, **stored)
