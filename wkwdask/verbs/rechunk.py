"""One mag that is stored anew, whatever the formats: spliced where its chunks stay as they are, else decoded and encoded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.model.place import LevelSpec
from wkwdask.model.translated import in_frame
from wkwdask.plans.rechunk import plan_splicing
from wkwdask.plans.regions import Tiling
from wkwdask.plans.upsample import Upsampling, plan_upsampling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.stage import stage
from wkwdask.runs.staged import settings_of
from wkwdask.verbs.compare import CompareJob, EqualJob
from wkwdask.verbs.sources import presence
from wkwdask.verbs.splice import SpliceJob
from wkwdask.verbs.upsample_job import UpsampleJob

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from wkwdask.model.place import NewLevels, Place
    from wkwdask.model.volume import Volume
    from wkwdask.plans.regions import RegionGrid
    from wkwdask.runs.staged import StagedMags

_COMPARED_NBYTES = 64 << 20  # voxels of what was spliced that are compared at once


@dataclass(frozen=True, slots=True)
class Rechunk(Plan):
    """One mag that can be stored anew."""

    volume: Volume
    """What is read, in the coordinates of the target."""
    plan: RegionGrid
    """The regions; an :class:`Upsampling` by 1 where chunks are decoded."""
    target: Any
    """What is written, a Target; a Spliceable where chunks are not decoded."""
    staged: StagedMags
    """How it appears."""
    check_source: Callable[[], None]
    """Makes sure, in the end, that what was read is still what is there; raises IncompleteWriteError."""
    in_place: bool = False
    """Whether it replaces its source."""
    notes: tuple[str, ...] = ()
    """What is written right, but shown wrong by a viewer."""
    verify: bool = False
    """Whether all voxels are compared before the mag appears."""

    @property
    def decodes(self) -> bool:
        """Whether chunks are decoded and encoded, and not copied as they are stored."""
        return isinstance(self.plan, Upsampling)

    def job(self) -> SpliceJob | UpsampleJob:
        """Make the job."""
        if isinstance(self.plan, Upsampling):
            return UpsampleJob([self.volume], [self.target], [self.plan])
        return SpliceJob(self.volume, self.target, self.plan)

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Make the mag, and compare it where that is asked for."""
        (folder,) = self.staged.folders
        job = self.job()
        note = yield Phase(job, self.staged.owner.command)
        if self.verify:
            yield Phase(EqualJob(CompareJob(self.volume, self.target.as_volume(), self.plan)), f"comparing {folder}")
        report = job.tallies[0].report(folder)
        is_zero = report.voxels and not report.files
        return Outcome(job.tallies, "; ".join(filter(None, [note, f"{folder} is all zero, as {self.volume.name} is" if is_zero else ""])))

    def check_unchanged(self) -> None:
        """Make sure that the source is still the one that was read."""
        self.check_source()


@dataclass(frozen=True, slots=True)
class Copy:
    """A volume whose voxels are to be stored elsewhere."""

    source: Volume
    """What is read, in absolute voxels."""
    input: dict[str, Any]
    """By what the source is known again."""
    check_unchanged: Callable[[], None]
    """Makes sure, in the end, that the source is still the one that was read."""


def lay_out_copy(place: Place, copy: Copy, options: Any, existing: str, workers: int) -> Rechunk:
    """Check and lay out the making of one level of the voxels of a volume, or find the interrupted job that is to go on."""
    return copy_into(copy, place.new_levels([LevelSpec.like(copy.source)], options, existing=existing), existing, workers)


def copy_into(copy: Copy, levels: NewLevels, existing: str, workers: int, command: str = "convert") -> Rechunk:
    """Lay out the making of a level that is laid out itself."""
    (folder,) = levels.folders
    draft = stage(f"{command} into {folder}", levels.parent, [folder], {**settings_of(command), **levels.settings, **copy.input}, existing)
    targets = levels.staged(draft.root)
    (target,), source = targets, in_frame(copy.source, targets[0].origin)
    spec, region = LevelSpec.like(source), draft.shape()
    plan: RegionGrid
    if target.can_splice(source):
        plan = plan_splicing(target.box, source.shard_shape, target.shard_shape, spec.voxel_nbytes, workers, region)
        plan = replace(plan, brick_shape=target.part_shape(_COMPARED_NBYTES))
    else:
        plan = plan_upsampling(
            target.box, source.box.mag, Tiling(target.chunk_shape, target.shard_shape, spec.voxel_nbytes), workers, region, source.chunk_shape
        )
    record = {"region": plan.region_shape, "presence": presence(source, [plan.region_shape])}
    staged = draft.mags(targets, spec.nbytes, levels.edit, record)
    return Rechunk(source, plan, target, staged, copy.check_unchanged, notes=levels.warnings)
