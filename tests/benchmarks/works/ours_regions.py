"""wkwdask, on boxes of existing volumes."""

from __future__ import annotations

import dask

import wkwdask

from . import region_writes

REQUIRES = ("wkwdask",)


class Region(region_writes.Region):
    """One call of ``wkwdask.write`` for each box."""

    def run(self) -> None:
        """Write."""
        with dask.config.set(scheduler="synchronous"):
            for low, high, voxels in self.parts:
                wkwdask.write(self.url, None, voxels[None], region=(low, high))
