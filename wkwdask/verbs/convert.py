"""The job that makes a mag of a source of any format: the upsampling by 1, whose tasks know no more of the source than they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wkwdask.model.volume import Volume
from wkwdask.runs.job import Task
from wkwdask.verbs.upsample_job import UpsampleJob, UpsampleSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Target
    from wkwdask.plans.slabs import Slabs
    from wkwdask.runs.job import Result


class Source(Volume, Protocol):
    """A volume of another format, of which tasks get parts."""

    @property
    def unit_shape(self) -> Vec3:
        """What is best read at once, if there is memory for it [voxels]."""

    def cropped(self, box: BoundingBox) -> Source:
        """Give a part, small to pickle."""

    def held(self, reading_shape: Vec3, scratch: str) -> AbstractContextManager[Source]:
        """Decode each piece once, even where readings are smaller; what is not read yet waits in a file without a name in a folder."""


class ConvertSpec(UpsampleSpec):
    """Make one region of a mag, and decode each piece of the source once."""

    __slots__ = ()

    source: Source
    plan: Slabs

    def run(self) -> Result:
        """Read the region and write it."""
        with self.source.held(self.plan.reading_shape, self.target.folder) as source:
            return UpsampleSpec(source, self.plan, self.target, self.level, self.region).run()


class ConvertJob(UpsampleJob):
    """One mag of a source of another format."""

    def __init__(self, source: Source, target: Target, plan: Slabs) -> None:
        super().__init__([source], [target], [plan])
        self._foreign, self._target, self._plan = source, target, plan

    def tasks(self) -> Iterator[Task]:
        """Give the regions, each with its part of the source."""
        for task in super().tasks():
            region = task.spec.region
            spec = ConvertSpec(self._foreign.cropped(self._plan.region_box(region)), self._plan, self._target, task.spec.level, region)
            yield Task(task.name, task.key, ConvertSpec.run, spec)
