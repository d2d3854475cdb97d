"""The job that compares two volumes voxel by voxel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.jobs.job import Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.jobs.job import Task
    from wkwdask.plans.regions import RegionGrid
    from wkwdask.storage.volume import Volume

_BRICK_NBYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class CompareTask:
    """Compare one region."""

    first: Volume
    """One volume."""
    second: Volume
    """The other one, of the same type."""
    plan: RegionGrid
    """The regions."""
    region: Vec3
    """Which region."""

    @property
    def name(self) -> str:
        """What an error calls the task."""
        return f"comparison of region {self.region}"

    @property
    def key(self) -> str:
        """What a journal calls the task."""
        return "compare {},{},{}".format(*self.region)

    def run(self) -> Result:
        """Read both, piece by piece.

        Raises
        ------
        IncompleteWriteError
            A voxel differs.
        """
        region = self.plan.region_box(self.region)
        edge = max(self.first.chunk_shape)
        while 8 * edge**3 * self.first.num_channels * self.first.dtype.itemsize <= _BRICK_NBYTES:
            edge *= 2
        for index in cells(region, (edge,) * 3):
            self._compare(cell_box(index, (edge,) * 3, region).intersection(region))
        return Result(())

    def _compare(self, box: BoundingBox) -> None:
        unsigned = f"u{self.first.dtype.itemsize}"  # every bit, so that NaN equals itself
        first, second = (np.empty((volume.num_channels, *box.size), volume.dtype, order="F") for volume in (self.first, self.second))
        self.first.read_into(first, box.topleft)
        self.second.read_into(second, box.topleft)
        differs = first.view(unsigned) != second.view(unsigned)
        if differs.any():
            channel, *voxel = (int(n) for n in np.argwhere(differs)[0])
            place = tuple(a + b for a, b in zip(voxel, box.topleft, strict=True))
            raise IncompleteWriteError(
                f"{self.second.name}: voxel {place} of channel {channel} is {second[(channel, *voxel)]}, "
                f"but {first[(channel, *voxel)]} in {self.first.name}; nothing was replaced"
            )


class CompareJob:
    """Two volumes that must be equal.

    Parameters
    ----------
    first, second : Volume
        The volumes, of the same box and type.
    plan : RegionGrid
        The regions.
    """

    def __init__(self, first: Volume, second: Volume, plan: RegionGrid) -> None:
        self._first, self._second, self._plan = first, second, plan
        self._occupied = first.occupied(plan.region_shape) | second.occupied(plan.region_shape)
        self.num_tasks = int(self._occupied.sum())

    def tasks(self) -> Iterator[Task]:
        """Give the regions of which one of the two has a file."""
        return (CompareTask(self._first, self._second, self._plan, region) for region in self._plan.regions(self._occupied))

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take note of nothing: a difference is an error."""
        return ()
