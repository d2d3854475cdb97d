"""cloud-volume, on Neuroglancer precomputed volumes."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import precomputed
from .base import digest
from .precomputed import info_of, shard_boxes

REQUIRES = ("cloudvolume",)


def _create(folder: Any, size: int, dtype: np.dtype, *, sharded: bool) -> Any:
    """Make a volume; files of single chunks are not compressed, as those of the other tools are
    not."""
    from cloudvolume import CloudVolume

    volume, scale = info_of(size, dtype, sharded=sharded)
    cloud_volume = CloudVolume(
        f"file://{folder}", info={**volume, "scales": [scale]}, compress=False, progress=False
    )
    cloud_volume.commit_info()
    return cloud_volume


class Write(precomputed.Written):
    """Shard by shard by assignment, all at once where chunks are files."""

    package = "cloud-volume"

    def run(self) -> None:
        """Write."""
        volume = _create(self.folder, self.size, self.dtype, sharded=self.sharded)
        if not self.sharded:
            volume[:, :, :] = self.voxels[..., None]
            return
        for box in shard_boxes(self.size):
            volume[box] = self.voxels[box][..., None]


class Read(precomputed.Pyramid):
    """The whole scale by indexing."""

    package = "cloud-volume"
    _result: Any = None

    def prepare(self) -> None:
        """Forget what was read."""
        self._result = None

    def run(self) -> None:
        """Read."""
        from cloudvolume import CloudVolume

        self._result = CloudVolume(f"file://{self.source}", progress=False, fill_missing=True)[
            :, :, :
        ]

    def written(self) -> int:
        """Nothing is."""
        return 0

    def digests(self) -> list[str]:
        """Hash what was read."""
        return [digest(np.asarray(self._result)[..., 0])]


class Convert(precomputed.Written):
    """Shard by shard: read by wkw, written by cloud-volume."""

    package = "cloud-volume"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dtype = np.dtype(np.uint8 if self.dtype.itemsize == 1 else np.uint32)
        self.nbytes = self.size**3 * self.dtype.itemsize
        del self.voxels

    def run(self) -> None:
        """Convert."""
        import wkw

        volume = _create(self.folder, self.size, self.dtype, sharded=self.sharded)
        with wkw.Dataset.open(self.path) as source:
            for box in shard_boxes(self.size):
                volume[box] = source.read(
                    [axis.start for axis in box], [axis.stop - axis.start for axis in box]
                )[0][..., None]
