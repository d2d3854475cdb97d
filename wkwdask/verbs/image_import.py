"""Import of image files and array files as one mag, in slabs of sections."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from wkwdask.errors import IncompleteWriteError
from wkwdask.formats.pictures.image_stack import read_notes
from wkwdask.formats.pictures.sources import PlainOptions, PlainSource, open_plain
from wkwdask.model.converted import ConvertedVolume
from wkwdask.model.target_image import LevelSpec
from wkwdask.model.volume import Volume, relative_to
from wkwdask.plans.regions import Tiling
from wkwdask.plans.slabs import SlabPlan, plan_slabs
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.staged import settings_of
from wkwdask.verbs.region_job import RegionJob, UpsampleSpec
from wkwdask.verbs.sources import VolumeSelection, box_setting, cropped, stage_level, token_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.target_array import TargetArray
    from wkwdask.model.target_image import TargetImage
    from wkwdask.plans.slabs import SlabPlan
    from wkwdask.runs.job import Result
    from wkwdask.runs.staged import StagedMags


class ImportSource(Volume, Protocol):
    """Volume of another format; each task gets a part of it."""

    @property
    def unit_shape(self) -> Vec3:
        """Box that is best read at once, if memory allows [voxels]."""

    def cropped(self, box: BoundingBox) -> ImportSource:
        """Return a part of the volume that is small to pickle."""

    def cached(self, reading_shape: Vec3, scratch: str) -> AbstractContextManager[ImportSource]:
        """Return a reader that decodes each part of the source once. Parts that later readings need wait in an unnamed file in a scratch folder."""


class ConvertSpec(UpsampleSpec):
    """Task that makes one region of a mag and decodes each part of the source once."""

    __slots__ = ()

    source: ImportSource
    plan: SlabPlan

    def run(self) -> Result:
        with self.source.cached(self.plan.reading_shape, self.target.folder) as source:
            return UpsampleSpec(source, self.plan, self.target, self.level, self.region).run()


class ConvertJob(RegionJob):
    """Job that makes one mag from image or array files; each task gets its part of the source."""

    def __init__(self, source: ImportSource, target: TargetArray, plan: SlabPlan) -> None:
        def spec_of(level: int, region: Vec3) -> ConvertSpec:
            return ConvertSpec(source.cropped(plan.region_box(region)), plan, target, level, region)

        super().__init__([target], [plan], [plan.occupied(source.occupied(plan.source_cell_shape))], spec_of)


_NOTES_NAME = "bad-slices"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of the source of an import."""

    part: VolumeSelection
    axes: str | None = None
    fill: bool = False
    """Whether unreadable sections become zeros."""
    allow_external: bool = False
    """Whether HDF5 data outside of the file's folder are read."""


@dataclass(frozen=True, slots=True)
class Import(Plan):
    """Plan of an import."""

    source: ImportSource
    """Source in coordinates of the target."""
    plan: SlabPlan
    target: TargetArray
    staged: StagedMags
    input: str
    """Token of the source files."""
    notes: tuple[str, ...]
    """Notes on the source."""
    warnings: tuple[str, ...] = ()
    """Notes on the target."""

    def job(self) -> ConvertJob:
        return ConvertJob(self.source, self.target, self.plan)

    def phases(self) -> Generator[Phase, str, Outcome]:
        job = self.job()
        note = yield Phase(job, f"importing {self.source.name}")
        filled = (f"filled with zeros: {one}" for one in read_notes(_notes_folder(self.staged)))
        return Outcome(job.tallies, "\n".join(filter(None, [note, *self.notes, *filled])))

    def check_unchanged(self) -> None:
        """Raise an error if source files changed while they were read."""
        if token_of(self.source.token) != self.input:
            raise IncompleteWriteError(f'{self.source.name}: files were replaced while they were read; existing="overwrite" starts over')


@dataclass(frozen=True, slots=True)
class OpenedImport:
    """Image or array files, opened for an import."""

    source: ImportSource
    """Voxels to read, in absolute coordinates."""
    plain: PlainSource
    fill: bool
    """Whether unreadable sections become zeros."""


def open_source(source: Any, options: SourceOptions, mag: Mag) -> OpenedImport:
    """Open image or array files with the selected channels, type and box."""
    plain = open_plain(source, PlainOptions(options.part.offset, mag, options.axes, options.fill, options.allow_external))
    return OpenedImport(cropped(options.part.converted(plain.volume), options.part.box, "the source"), plain, options.fill)


def lay_out_import(place: TargetImage, imported: OpenedImport, options: Any, existing: str, workers: int) -> Import:
    """Plan one level of images or an array, or resume the interrupted job of the same settings."""
    absolute = imported.source
    levels = place.new_levels([LevelSpec.like(absolute)], options, existing=existing)
    settings = settings_of("convert", box=box_setting(absolute.box), on_error="fill" if imported.fill else "fail", input=token_of(absolute.token))
    draft, target = stage_level(levels, "convert", settings, existing)
    source = relative_to(absolute, target.origin)
    region, reading = draft.shape(), draft.shape("reading")
    shapes = None if region is None or reading is None else (region, reading)
    own_nbytes = LevelSpec.like(source).voxel_nbytes
    memory_nbytes = own_nbytes + (LevelSpec.like(source.source).voxel_nbytes if isinstance(source, ConvertedVolume) else 0)  # of a voxel, while it is read
    plan = plan_slabs(target.box, (source.unit_shape, source.chunk_shape), Tiling(target.chunk_shape, target.shard_shape, memory_nbytes), workers, shapes)
    task_nbytes = 2 * math.prod(plan.reading_shape) * (memory_nbytes + own_nbytes)
    record = {"region": plan.region_shape, "reading": plan.reading_shape}
    staged = draft.mags([target], LevelSpec.like(absolute).nbytes, levels.edit, record, task_nbytes=task_nbytes)
    read = _with_notes(source, _notes_folder(staged)) if imported.fill else source
    return Import(read, plan, target, staged, token_of(source.token), imported.plain.notes, levels.warnings)


def _notes_folder(staged: StagedMags) -> str:
    return f"{staged.root}/{_NOTES_NAME}"


def _with_notes(source: Any, folder: str) -> ImportSource:
    """Replace unreadable sections by zeros, with a note about each in a folder."""
    if isinstance(source, ConvertedVolume):
        return replace(source, source=_with_notes(source.source, folder))
    changed: ImportSource = source.with_zero_fill(folder)
    return changed
