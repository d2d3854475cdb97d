"""igneous, on a local precomputed volume."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .base import NUM_MAGS, Work, digest, folder_nbytes, read_mag

REQUIRES = ("igneous", "cloudvolume")
# of a task's voxels: a little more than 8/7, which is what igneous counts for them and all their
# coarser mags
_MEMORY = 1.2


class Pyramid(Work):
    """The downsampling tasks of igneous with its defaults, in its ``LocalTaskQueue``.

    Its defaults: images are raw chunks with gzip and averaged, segmentations are
    compressed_segmentation with gzip and reduced by mode. It makes no mag that is smaller than one
    chunk: of a volume of 8 chunks along an edge three mags and not four, which is less work.

    Its memory target is chosen so that a task spans half the volume's edge: there are eight of
    them, and the coarsest mags are made of the mag that these end at. Its processes stay from one
    run to the next.

    Parameters
    ----------
    source, layer : str
        WKW dataset and layer that the precomputed volume is made from; it is written beside the
        dataset once, which takes longer than any run.
    folder : str
        Folder of the precomputed volume.
    size : int
        Edge of the volume [voxels].
    processes : int
        Number of concurrent tasks.
    """

    package = "igneous-pipeline"

    def __init__(self, source: str, layer: str, folder: str, size: int, processes: int = 1) -> None:
        import igneous.task_creation
        from cloudvolume import CloudVolume
        from taskqueue import LocalTaskQueue

        written = Path(f"{source}-precomputed")
        if not written.is_dir():
            write_volume(Path(source) / layer / "1", size, written)
        shutil.copytree(
            written, folder, copy_function=lambda file, copy: _link_chunk(file, copy, written)
        )
        self._url = f"file://{folder}"
        self._volume = CloudVolume
        self._create_tasks = igneous.task_creation.create_downsampling_tasks
        self._queue = LocalTaskQueue(parallel=processes, progress=False)
        self.nbytes = size**3 * CloudVolume(self._url).dtype.itemsize
        self._memory_target = int(_MEMORY * self.nbytes / 8)
        self._info = Path(folder) / "info"
        self._record = self._info.read_bytes()
        self._source_names = {path.name for path in self._info.parent.iterdir()}

    def _made(self) -> list[Path]:
        return [path for path in self._info.parent.iterdir() if path.name not in self._source_names]

    def prepare(self) -> None:
        """Remove what the last run made."""
        for path in self._made():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._info.write_bytes(self._record)

    def run(self) -> None:
        """Create the tasks and run them, until there are all mags or no smaller ones."""
        mip = 0
        while mip < NUM_MAGS:
            tasks = self._create_tasks(
                self._url,
                mip=mip,
                num_mips=NUM_MAGS - mip,
                factor=(2, 2, 2),
                memory_target=self._memory_target,
            )
            coarsest = self._volume(self._url).available_mips[-1]
            if coarsest == mip:
                return
            self._queue.insert(tasks)
            self._queue.execute(progress=False)
            mip = coarsest

    def written(self) -> int:
        """Count the bytes of all coarser mags."""
        return folder_nbytes(self._made())

    def digests(self) -> list[str]:
        """Hash every coarser mag."""
        mips = self._volume(self._url).available_mips
        return [
            digest(self._volume(self._url, mip=mip, progress=False)[:, :, :][..., 0])
            for mip in mips[1:]
        ]


def write_volume(mag: Path, size: int, folder: Path) -> None:
    """Write a mag as a precomputed volume."""
    from cloudvolume import CloudVolume

    voxels = read_mag(mag, size)[0]
    is_image = voxels.dtype.itemsize == 1
    unfinished = folder.with_name(f"{folder.name}-unfinished")
    CloudVolume.from_numpy(
        voxels,
        f"file://{unfinished}",
        resolution=(16, 16, 16),
        chunk_size=(min(64, size // 8),) * 3,
        layer_type="image" if is_image else "segmentation",
        encoding="raw" if is_image else "compressed_segmentation",
    )
    unfinished.rename(folder)


def _link_chunk(file: str, copy: str, volume: Path) -> None:
    """Link a chunk, and copy a record, which every run rewrites."""
    if Path(file).parent == volume:
        shutil.copy2(file, copy)
    else:
        os.link(file, copy)
