"""tensorstore, on N5 images."""

from __future__ import annotations

from typing import Any

from . import n5_images
from .base import NUM_MAGS, read_mag

REQUIRES = ("tensorstore",)
_CONTEXT = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}


def _open(folder: Any) -> Any:
    import tensorstore

    spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{folder}/"}}
    return tensorstore.open(spec, context=tensorstore.Context(_CONTEXT)).result()


def _create(work: n5_images.Image, level: int) -> Any:
    import tensorstore

    metadata = {
        "dimensions": [work.size >> level] * 3,
        "blockSize": [work.chunk] * 3,
        "dataType": work.dtype.name,
        "compression": {"type": work.compression},
    }
    spec = {
        "driver": "n5",
        "kvstore": {"driver": "file", "path": f"{work.folder}/s{level}/"},
        "metadata": metadata,
    }
    return tensorstore.open(spec, create=True, context=tensorstore.Context(_CONTEXT)).result()


class Write(n5_images.Written):
    """One call of ``write`` with all voxels."""

    package = "tensorstore"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._voxels = read_mag(self.path, self.size)[0]

    def run(self) -> None:
        """Write."""
        _create(self, 0).write(self._voxels).result()


class Read(n5_images.Read):
    """One call of ``read``."""

    package = "tensorstore"

    def run(self) -> None:
        """Read."""
        self._result = _open(self.source / "s0").read(order="F").result()


class Pyramid(n5_images.Image):
    """Level by level: the downsample driver over one level, copied into the next."""

    package = "tensorstore"

    def run(self) -> None:
        """Build."""
        import tensorstore

        finer = _open(self.folder / "s0")
        for level in range(1, NUM_MAGS + 1):
            coarser = _create(self, level)
            coarser.write(tensorstore.downsample(finer, [2, 2, 2], self.method)).result()
            finer = coarser


class Convert(n5_images.Written):
    """Cube by cube: read by wkw, written by tensorstore."""

    package = "tensorstore"

    def run(self) -> None:
        """Convert."""
        import numpy as np
        import wkw

        target = _create(self, 0)
        with wkw.Dataset.open(self.path) as source:
            for corner in np.ndindex(*(self.size // self.shard,) * 3):
                low = tuple(n * self.shard for n in corner)
                box = tuple(slice(n, n + self.shard) for n in low)
                target[box].write(source.read(low, (self.shard,) * 3)[0]).result()
