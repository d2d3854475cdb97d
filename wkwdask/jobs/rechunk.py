"""One mag that is stored anew, whatever the formats: spliced where its chunks stay as they are, else decoded and encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.jobs.splice import SpliceJob
from wkwdask.jobs.upsample import UpsampleJob
from wkwdask.plans.upsample import Upsampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.jobs.staged import StagedMags
    from wkwdask.plans.regions import RegionGrid
    from wkwdask.storage.volume import Volume


@dataclass(frozen=True, slots=True)
class StagedRechunk:
    """One mag that can be stored anew."""

    volume: Volume
    """What is read, in the coordinates of the target."""
    plan: RegionGrid
    """The regions; an :class:`Upsampling` by 1 where chunks are decoded."""
    target: Any
    """What is written, a Target; a Spliceable where chunks are not decoded."""
    staged: StagedMags
    """How it appears."""
    check_unchanged: Callable[[], None]
    """Makes sure, in the end, that what was read is still what is there; raises IncompleteWriteError."""
    in_place: bool = False
    """Whether it replaces its source."""

    @property
    def decodes(self) -> bool:
        """Whether chunks are decoded and encoded, and not copied as they are stored."""
        return isinstance(self.plan, Upsampling)

    def job(self) -> SpliceJob | UpsampleJob:
        """Make the job."""
        if isinstance(self.plan, Upsampling):
            return UpsampleJob(self.volume, [self.target], [self.plan])
        return SpliceJob(self.volume, self.target, self.plan)
