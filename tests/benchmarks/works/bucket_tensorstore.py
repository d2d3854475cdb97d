"""tensorstore, to a bucket, with its own limits of concurrency."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import NUM_MAGS, read_mag
from .bucket import BUCKET, BucketWork, Pyramids
from .precomputed import info_of

REQUIRES = ("tensorstore",)


class Save(BucketWork):
    """One call of ``write`` with all voxels, which is what its authors advise for shards."""

    package = "tensorstore"

    def open(self, level: int, *, create: bool = False) -> Any:
        """Open a level, shape (x, y, z)."""
        import tensorstore

        size = self.size >> level
        store = {
            "driver": "s3",
            "bucket": BUCKET,
            "path": f"{self.path}/",
            "endpoint": self.server,
            "aws_region": "us-east-1",
            "aws_credentials": {"type": "environment"},
        }
        if self.kind == "precomputed":
            volume, entry = info_of(self.size, self.voxels.dtype, sharded=True, level=level)
            scale = {name: value for name, value in entry.items() if name != "chunk_sizes"}
            spec = {
                "driver": "neuroglancer_precomputed",
                "kvstore": store,
                "multiscale_metadata": volume,
                "scale_metadata": {**scale, "chunk_size": entry["chunk_sizes"][0]},
            }
            return tensorstore.open(spec, create=create, open=True).result()[..., 0]
        chunks, shards = (min(self.chunk, size),) * 3, (min(self.shard, size),) * 3
        zstd = {"name": "zstd", "configuration": {"level": 3}}
        spec = {
            "driver": "zarr3",
            "kvstore": {**store, "path": f"{self.path}/{level}/"},
            "metadata": {
                "shape": [size] * 3,
                "data_type": self.voxels.dtype.name,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shards}},
                "codecs": [
                    {
                        "name": "sharding_indexed",
                        "configuration": {"chunk_shape": chunks, "codecs": ["bytes", zstd]},
                    }
                ],
            },
        }
        return tensorstore.open(spec, create=create, open=True).result().T

    def run(self) -> None:
        """Write."""
        self.open(0, create=True).write(self.voxels).result()

    def read(self, level: int) -> np.ndarray:
        """Read a level."""
        return np.asarray(self.open(level).read().result())


class Pyramid(Pyramids, Save):
    """Level by level: the downsample driver over one level, copied into the next."""

    def prepare(self) -> None:
        """Write the finest level of another volume."""
        super().prepare()
        super().run()

    def run(self) -> None:
        """Build."""
        import tensorstore

        for level in range(1, NUM_MAGS + 1):
            half = tensorstore.downsample(self.open(level - 1), [2, 2, 2], "mean")
            self.open(level, create=True).write(half).result()


class Convert(Save):
    """The voxels of a WKW mag, decoded by wkw, which tensorstore does not read."""

    def run(self) -> None:
        """Read and write."""
        self.voxels = read_mag(self.source, self.size)[0]
        super().run()
