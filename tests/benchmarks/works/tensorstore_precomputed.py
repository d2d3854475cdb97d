"""tensorstore, on Neuroglancer precomputed volumes."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import precomputed
from .base import NUM_MAGS, arranged_boxes, digest
from .precomputed import info_of, shard_boxes

REQUIRES = ("tensorstore",)
_CONTEXT = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}


def _open(
    folder: Any,
    size: int,
    dtype: np.dtype,
    *,
    sharded: bool,
    level: int = 0,
    create: bool = False,
    cache_nbytes: int = 0,
) -> Any:
    import tensorstore

    volume, entry = info_of(size, dtype, sharded=sharded, level=level)
    scale = {name: value for name, value in entry.items() if name != "chunk_sizes"} | {
        "chunk_size": entry["chunk_sizes"][0]
    }
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": "file", "path": f"{folder}/"},
        "multiscale_metadata": volume,
        **({"scale_metadata": scale} if create else {"scale_index": level}),
    }
    return tensorstore.open(
        spec,
        create=create,
        open=not create,
        context=tensorstore.Context(_CONTEXT | {"cache_pool": {"total_bytes_limit": cache_nbytes}}),
    ).result()


class Write(precomputed.Written):
    """One call of ``write`` with all voxels, which is what its authors advise for shards."""

    package = "tensorstore"

    def run(self) -> None:
        """Write."""
        _open(self.folder, self.size, self.dtype, sharded=self.sharded, create=True).write(
            self.voxels[..., None]
        ).result()


class Read(precomputed.Pyramid):
    """One call of ``read``."""

    package = "tensorstore"
    _result: Any = None

    def prepare(self) -> None:
        """Forget what was read."""
        self._result = None

    def run(self) -> None:
        """Read."""
        self._result = (
            _open(self.source, self.size, self.dtype, sharded=self.sharded).read(order="F").result()
        )

    def written(self) -> int:
        """Nothing is."""
        return 0

    def digests(self) -> list[str]:
        """Hash what was read."""
        return [digest(self._result[..., 0])]


class ReadMany(Read):
    """Boxes, all of which are requested before the first result is awaited; a cache keeps the
    chunks that several of them share."""

    def __init__(self, edge: int, arrangement: str, **options: Any) -> None:
        super().__init__(**options)
        self._boxes = arranged_boxes(self.size, edge, arrangement).tolist()
        self.nbytes = len(self._boxes) * edge**3 * self.dtype.itemsize

    def run(self) -> None:
        """Read."""
        scale = _open(
            self.source, self.size, self.dtype, sharded=self.sharded, cache_nbytes=1 << 30
        )
        futures = [
            scale[tuple(slice(a, b) for a, b in zip(low, high, strict=True))].read(order="F")
            for low, high in self._boxes
        ]
        self._result = [future.result() for future in futures]

    def digests(self) -> list[str]:
        """Hash every box."""
        return [digest(part[..., 0]) for part in self._result]


class Pyramid(precomputed.Pyramid):
    """Level by level: the downsample driver over one scale, copied into the next."""

    package = "tensorstore"

    def run(self) -> None:
        """Build."""
        import tensorstore

        finer = _open(self.folder, self.size, self.dtype, sharded=self.sharded)
        for level in range(1, NUM_MAGS + 1):
            coarser = _open(
                self.folder, self.size, self.dtype, sharded=self.sharded, level=level, create=True
            )
            coarser.write(tensorstore.downsample(finer, [2, 2, 2, 1], self.method)).result()
            finer = coarser


class Convert(precomputed.Written):
    """Shard by shard: read by wkw, written by tensorstore."""

    package = "tensorstore"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dtype = np.dtype(np.uint8 if self.dtype.itemsize == 1 else np.uint32)
        self.nbytes = self.size**3 * self.dtype.itemsize
        del self.voxels

    def run(self) -> None:
        """Convert."""
        import wkw

        target = _open(self.folder, self.size, self.dtype, sharded=self.sharded, create=True)
        with wkw.Dataset.open(self.path) as source:
            for box in shard_boxes(self.size):
                voxels = source.read(
                    [axis.start for axis in box], [axis.stop - axis.start for axis in box]
                )[0]
                target[box].write(voxels[..., None]).result()
