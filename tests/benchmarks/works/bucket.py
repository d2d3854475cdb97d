"""Shared by works that write to a bucket: EM voxels, and a fresh volume for each run."""

from __future__ import annotations

import os
from typing import Any

from .base import NUM_MAGS, Work, digest, read_mag
from .precomputed import edge_of_chunks

BUCKET = "bucket"
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "benchmark",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


class BucketWork(Work):
    """A volume in a bucket of S3.

    Parameters
    ----------
    server : str
        URL of the server.
    source : str
        WKW mag of the voxels.
    kind : str
        ``precomputed``, sharded, or ``zarr``, version 3 with shards.
    size : int
        Edge of the volume [voxels].
    """

    _count = 0

    def __init__(self, server: str, source: str, kind: str, size: int) -> None:
        os.environ.update(_ENVIRONMENT, AWS_ENDPOINT_URL=server)
        self.server, self.source, self.kind, self.size = server, source, kind, size
        self.voxels = read_mag(source, size)[0]
        self.nbytes = self.voxels.nbytes
        self.chunk = edge_of_chunks(size)
        self.shard = 4 * self.chunk

    @property
    def path(self) -> str:
        """Path of the volume of this run in the bucket."""
        return f"{type(self).__module__.rpartition('.')[2]}-{self.kind}-{os.getpid()}-{self._count}"

    @property
    def url(self) -> str:
        """URL of the volume, for wkwdask."""
        prefix, suffix = ("precomputed://", "") if self.kind == "precomputed" else ("", ".ome.zarr")
        return f"{prefix}s3://{BUCKET}/{self.path}{suffix}"

    def prepare(self) -> None:
        """Choose another volume."""
        self._count += 1

    def read(self, level: int) -> Any:
        """Read a level, shape (x, y, z), as the tool's own readers do."""
        raise NotImplementedError

    def levels(self) -> range:
        """Return the levels that a run made."""
        return range(1)

    def digests(self) -> list[str]:
        """Read all levels that were made and hash them."""
        return [digest(self.read(level)) for level in self.levels()]


class Pyramids:
    """Works that make the coarser levels of a volume; writing the finest one is not measured."""

    def levels(self) -> range:
        """Return the coarser levels."""
        return range(1, NUM_MAGS + 1)
