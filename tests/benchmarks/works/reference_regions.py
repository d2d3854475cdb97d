"""wkw, on boxes of an existing mag: it writes compressed files as a whole only."""

from __future__ import annotations

from itertools import product

import numpy as np

from . import region_writes

REQUIRES = ("wkw",)


class Region(region_writes.Region):
    """For each box, the files that it touches are read, changed and written again."""

    package = "wkw"

    def run(self) -> None:
        """Write."""
        import wkw

        edge = self.file_vx
        with wkw.Dataset.open(f"{self.folder}/color/1") as mag:
            for low, high, voxels in self.parts:
                for corner in product(
                    *(range(a // edge * edge, b, edge) for a, b in zip(low, high, strict=True))
                ):
                    whole = np.asfortranarray(mag.read(corner, (edge,) * 3))
                    first, last = np.maximum(low, corner), np.minimum(high, np.add(corner, edge))
                    place, part = (
                        tuple(map(slice, first - origin, last - origin)) for origin in (corner, low)
                    )
                    whole[(0, *place)] = voxels[part]
                    mag.write(corner, whole)
