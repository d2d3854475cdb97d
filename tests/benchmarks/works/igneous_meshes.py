"""Meshes by igneous."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from .base import Work, folder_nbytes
from .with_igneous import write_volume

REQUIRES = ("igneous", "cloudvolume", "zmesh", "DracoPy")


class Meshes(Work):
    """Tasks of igneous that mesh cells of half the edge of a precomputed volume, and merge them,
    with its defaults.

    Parameters
    ----------
    path : str
        WKW mag that the precomputed volume is made from, once.
    folder : str
        Folder of the volume.
    size : int
        Edge of the volume [voxels].
    """

    package = "igneous-pipeline"

    def __init__(self, path: str, folder: str, size: int) -> None:
        from cloudvolume import CloudVolume
        from taskqueue import LocalTaskQueue

        write_volume(Path(path), size, Path(folder))
        self._url, self._folder, self._size = f"file://{folder}", Path(folder), size
        self._record = (self._folder / "info").read_bytes()
        self._queue = LocalTaskQueue(parallel=1, progress=False)
        self.nbytes = size**3 * CloudVolume(self._url).dtype.itemsize

    def prepare(self) -> None:
        """Remove the meshes of the last run."""
        shutil.rmtree(self._folder / "mesh", ignore_errors=True)
        (self._folder / "info").write_text(json.dumps({**json.loads(self._record), "mesh": "mesh"}))

    def run(self) -> None:
        """Mesh all cells, then merge the meshes of each label."""
        from igneous.task_creation import (
            create_meshing_tasks,
            create_unsharded_multires_mesh_tasks,
        )

        for tasks in (
            create_meshing_tasks(self._url, mip=0, shape=(self._size // 2,) * 3),
            create_unsharded_multires_mesh_tasks(self._url),
        ):
            self._queue.insert(tasks)
            self._queue.execute(progress=False)

    def written(self) -> int:
        """Count the bytes of the meshes, without the parts that were merged."""
        return folder_nbytes([self._folder / "mesh"])

    def digests(self) -> list[str]:
        """Return nothing: tools simplify differently."""
        return []
