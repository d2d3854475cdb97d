"""wkwdask, to a bucket."""

from __future__ import annotations

from typing import Any

import wkwdask

from .base import NUM_MAGS
from .bucket import BucketWork, Pyramids
from .precomputed import RESOLUTION, ours

REQUIRES = ("wkwdask", "obstore")


class Save(BucketWork):
    """``wkwdask.save``: a level appears whole, and an interrupted job resumes."""

    def run(self) -> None:
        """Write."""
        wkwdask.save(
            self.voxels,
            self.url,
            voxel_size=RESOLUTION,
            chunk_shape=(self.chunk,) * 3,
            shard_shape=(
                ours(self.size, self.voxels.dtype, sharded=True)
                if self.kind == "precomputed"
                else (self.shard,) * 3
            ),
        )

    def read(self, level: int) -> Any:
        """Read a level."""
        return wkwdask.read(self.url, mag=1 << level)[0]


class Pyramid(Pyramids, Save):
    """``wkwdask.build_pyramid``."""

    def prepare(self) -> None:
        """Write the finest level of another volume."""
        super().prepare()
        super().run()

    def run(self) -> None:
        """Build."""
        mags = [str(1 << level) for level in range(1, NUM_MAGS + 1)]
        wkwdask.build_pyramid(self.url, mags=mags, method="mean")


class Convert(Save):
    """``wkwdask.convert`` of a WKW mag, whose blocks are copied."""

    def run(self) -> None:
        """Convert."""
        wkwdask.convert(self.source, self.url, voxel_size=RESOLUTION)
