"""cloud-volume, to a bucket, and igneous, which builds pyramids with it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .base import NUM_MAGS
from .bucket import BUCKET, BucketWork, Pyramids
from .precomputed import info_of, shard_boxes

REQUIRES = ("cloudvolume", "boto3")
_THREADS = 8
"""Shards that are written at once: an assignment writes one."""
_MEMORY = 1.2
"""Memory of a task of igneous, in bytes of all voxels: one task holds them."""


class Save(BucketWork):
    """Shard by shard by assignment, several at once."""

    package = "cloud-volume"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        os.environ["AWS_SESSION_TOKEN"] = "benchmark"  # without it, it takes no keys from variables

    @property
    def url(self) -> str:
        """URL of the volume; boto3 finds the server by a variable."""
        return f"precomputed://s3://{BUCKET}/{self.path}"

    def run(self) -> None:
        """Write."""
        from cloudvolume import CloudVolume

        volume, scale = info_of(self.size, self.voxels.dtype, sharded=True)
        info = {**volume, "scales": [scale]}
        cloud_volume = CloudVolume(self.url, info=info, progress=False, cdn_cache="no-cache")
        cloud_volume.commit_info()

        def write(box: tuple[slice, slice, slice]) -> None:
            cloud_volume[box] = self.voxels[box][..., None]

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(write, shard_boxes(self.size)))

    def read(self, level: int) -> np.ndarray:
        """Read a level."""
        from cloudvolume import CloudVolume

        volume = CloudVolume(self.url, mip=level, progress=False, fill_missing=True)
        return np.asarray(volume[:, :, :])[..., 0]


class Pyramid(Pyramids, Save):
    """The downsampling tasks of igneous in one process, one scale after the other. It makes no
    scale that is smaller than a chunk, and chooses the sharding itself."""

    package = "igneous-pipeline"
    _coarsest = 0

    def prepare(self) -> None:
        """Write the finest level of another volume."""
        super().prepare()
        super().run()

    def levels(self) -> range:
        """Return the coarser levels."""
        return range(1, self._coarsest + 1)

    def run(self) -> None:
        """Build."""
        import igneous.task_creation as create
        from cloudvolume import CloudVolume
        from taskqueue import LocalTaskQueue

        queue, self._coarsest = LocalTaskQueue(parallel=1, progress=False), 0
        while self._coarsest < NUM_MAGS:
            tasks = create.create_image_shard_downsample_tasks(
                self.url,
                mip=self._coarsest,
                factor=(2, 2, 2),
                num_mips=1,
                fill_missing=True,
                memory_target=int(_MEMORY * self.nbytes),
            )
            made = CloudVolume(self.url).available_mips[-1]
            if made == self._coarsest:
                return
            queue.insert(tasks)
            queue.execute(progress=False)
            self._coarsest = made
