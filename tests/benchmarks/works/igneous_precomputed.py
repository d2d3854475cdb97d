"""igneous, on Neuroglancer precomputed volumes, sharded or not."""

from __future__ import annotations

from typing import Any

from . import precomputed
from .base import NUM_MAGS

REQUIRES = ("igneous", "cloudvolume")
_MEMORY = 1.2  # of all voxels: one task holds them and their coarser mags


class Pyramid(precomputed.Pyramid):
    """The downsampling tasks of igneous in its ``LocalTaskQueue``, by one process.

    Where chunks are files, a task makes all scales at once and compresses none. Sharded, it makes
    one scale after the other, as its own guide advises. It makes no scale that is smaller than a
    chunk, and chooses the sharding itself.
    """

    package = "igneous-pipeline"

    def run(self) -> None:
        """Create the tasks and run them, until there are all scales or no smaller ones."""
        from cloudvolume import CloudVolume
        from taskqueue import LocalTaskQueue

        url, memory, mip = f"file://{self.folder}", int(_MEMORY * self.nbytes), 0
        queue = LocalTaskQueue(parallel=1, progress=False)
        while mip < NUM_MAGS:
            tasks = self._tasks(url, mip, memory)
            coarsest = CloudVolume(url).available_mips[-1]
            if coarsest == mip:
                return
            queue.insert(tasks)
            queue.execute(progress=False)
            mip = coarsest

    def _tasks(self, url: str, mip: int, memory: int) -> Any:
        import igneous.task_creation as create

        options = {"mip": mip, "factor": (2, 2, 2), "fill_missing": True, "memory_target": memory}
        if self.sharded:
            return list(create.create_image_shard_downsample_tasks(url, num_mips=1, **options))
        return create.create_downsampling_tasks(
            url, num_mips=NUM_MAGS - mip, compress=False, **options
        )
