"""tensorstore, on a local precomputed volume."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from .base import NUM_MAGS, Work, digest, folder_nbytes, read_mag

REQUIRES = ("tensorstore",)


class Pyramid(Work):
    """Level by level: the downsample driver over one scale, copied into the next.

    The volume is unsharded ``neuroglancer_precomputed``: images raw, segmentations
    compressed_segmentation, as its documentation shows them.

    Parameters
    ----------
    source, layer : str
        WKW dataset and layer that the precomputed volume is made from.
    folder : str
        Folder of the precomputed volume.
    size : int
        Edge of the volume [voxels].
    method : str
        ``mean`` or ``mode``.
    threads : int
        Its limits for copying (which is reducing, too) and for reading and writing files.
    """

    package = "tensorstore"

    def __init__(
        self, source: str, layer: str, folder: str, size: int, method: str, threads: int = 1
    ) -> None:
        import tensorstore

        self._ts = tensorstore
        self._context = tensorstore.Context(
            {"data_copy_concurrency": {"limit": threads}, "file_io_concurrency": {"limit": threads}}
        )
        self._folder, self._size, self._method = Path(folder), size, method
        voxels = read_mag(Path(source) / layer / "1", size)[0]
        self._dtype = voxels.dtype.name
        self._open(0, create=True).write(voxels[..., None]).result()
        self.nbytes = voxels.nbytes
        self._record = (self._folder / "info").read_bytes()
        self._source_names = {path.name for path in self._folder.iterdir()}

    def _open(self, level: int, *, create: bool = False) -> Any:
        is_image = self._dtype == "uint8"
        scale = {
            "resolution": [16 << level] * 3,
            "encoding": "raw" if is_image else "compressed_segmentation",
            "chunk_size": [min(64, self._size // 8)] * 3,
            "size": [self._size >> level] * 3,
        } | ({} if is_image else {"compressed_segmentation_block_size": [8, 8, 8]})  # fmt: skip
        spec = {
            "driver": "neuroglancer_precomputed",
            "kvstore": {"driver": "file", "path": f"{self._folder}/"},
            "multiscale_metadata": {
                "type": "image" if is_image else "segmentation",
                "data_type": self._dtype,
                "num_channels": 1,
            },
            "scale_metadata": scale,
        }
        return self._ts.open(spec, create=create, open=not create, context=self._context).result()

    def _made(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if path.name not in self._source_names]

    def prepare(self) -> None:
        """Remove what the last run made."""
        for path in self._made():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self._folder / "info").write_bytes(self._record)

    def run(self) -> None:
        """Build."""
        finer = self._open(0)
        for level in range(1, NUM_MAGS + 1):
            coarser = self._open(level, create=True)
            coarser.write(self._ts.downsample(finer, [2, 2, 2, 1], self._method)).result()
            finer = coarser

    def written(self) -> int:
        """Count the bytes of all coarser scales."""
        return folder_nbytes(self._made())

    def digests(self) -> list[str]:
        """Hash every coarser scale."""
        return [
            digest(self._open(level).read().result()[..., 0]) for level in range(1, NUM_MAGS + 1)
        ]
