"""Import of image files and array files as one mag, in slabs of sections."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from wkwdask.errors import IncompleteWriteError
from wkwdask.formats.file_suffixes import HDF5_SUFFIXES
from wkwdask.formats.pictures.image_stack import read_notes
from wkwdask.formats.pictures.sources import PlainOptions, PlainSource, open_plain
from wkwdask.model.volume import Volume, read_voxels, relative_to, voxel_nbytes
from wkwdask.model.writing.target_image import LevelSpec
from wkwdask.plans.regions import Tiling
from wkwdask.plans.slabs import SlabPlan, plan_slabs
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.staged import settings_of
from wkwdask.store.paths import local_path
from wkwdask.store.store import store_at
from wkwdask.streams.converted import ConvertedVolume
from wkwdask.verbs.region_job import RegionJob, UpsampleSpec
from wkwdask.verbs.sources import (
    VolumeSelection,
    box_setting,
    cast_note,
    cropped,
    stage_level,
    token_of,
)
from wkwdask.verbs.space import encoded_like, need_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    import numpy as np

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.model.writing.target_image import TargetImage
    from wkwdask.plans.slabs import SlabPlan
    from wkwdask.runs.job import Result
    from wkwdask.runs.space import Need
    from wkwdask.runs.staged import StagedMags


class ImportSource(Volume, Protocol):
    """Volume of another format; each task gets a part of it."""

    @property
    def unit_shape(self) -> Vec3:
        """Box that is best read at once, if memory allows [voxels]."""

    def cropped(self, box: BoundingBox) -> ImportSource:
        """Return a part of the volume that is small to pickle."""

    def cached(self, reading_shape: Vec3, scratch: str) -> AbstractContextManager[ImportSource]:
        """Return a reader that decodes each part of the source once, and keeps parts that later
        readings need in an unnamed file in a scratch folder."""


class ConvertSpec(UpsampleSpec):
    """Task that makes one region of a mag, and decodes each part of the source once."""

    __slots__ = ()

    source: ImportSource
    plan: SlabPlan

    def run(self) -> Result:
        with self.source.cached(self.plan.reading_shape, self.target.folder) as source:
            return UpsampleSpec(source, self.plan, self.target, self.level, self.region).run()


class ConvertJob(RegionJob):
    """Job that makes one mag from image or array files."""

    def __init__(self, source: ImportSource, target: TargetArray, plan: SlabPlan) -> None:
        def spec_of(level: int, region: Vec3) -> ConvertSpec:
            return ConvertSpec(source.cropped(plan.region_box(region)), plan, target, level, region)

        super().__init__(
            [target],
            [plan],
            [plan.occupied(source.files.occupied(plan.source_cell_shape))],
            spec_of,
        )


_NOTES_NAME = "bad-slices"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of the source of an import."""

    part: VolumeSelection
    position: Vec3 | None = None
    """Absolute voxel of the first voxel; None for the position that the source states, else voxel
    0."""
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
    """Token of ``source``: its files, and its position in coordinates of the target."""
    notes: tuple[str, ...]
    """Notes on the source."""
    warnings: tuple[Warning, ...] = ()
    """Notes on the target."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes on the source and on differences of the mag from it, for the plan and the
        report."""
        cast = (
            cast_note(self.source.source, self.source.dtype)
            if isinstance(self.source, ConvertedVolume)
            else ""
        )
        return (*self.notes, *filter(None, [cast]))

    def job(self) -> ConvertJob:
        return ConvertJob(self.source, self.target, self.plan)

    def need(self) -> Need:
        return need_of(
            self.staged,
            self.job,
            encoded_like([self.target], lambda _, box: read_voxels(self.source, box)),
        )

    def phases(self) -> Generator[Phase, str, Outcome]:
        job = self.job()
        note = yield Phase(job, f"importing {self.source.name}")
        filled = (
            f"filled with zeros: {section}" for section in read_notes(_notes_folder(self.staged))
        )
        return Outcome(job.tallies, "\n".join(filter(None, [note, *self.remarks, *filled])))

    def check_unchanged(self) -> None:
        """Raise an error if source files changed while they were read."""
        if token_of(self.source.token) != self.input:
            raise IncompleteWriteError(
                f'{self.source.name}: files were replaced while they were read; existing="restart" '
                "starts over"
            )


@dataclass(frozen=True, slots=True)
class OpenedImport:
    """Image or array files, opened for an import."""

    source: ImportSource
    """Voxels to read, in absolute coordinates."""
    plain: PlainSource
    fill: bool
    """Whether unreadable sections become zeros."""


def names_array_in_file(source: str) -> bool:
    """Return whether a source names an array in an existing file, such as ``stack.h5:raw``."""
    file, colon, _ = source.rpartition(":")
    return (
        bool(colon) and file.lower().endswith(HDF5_SUFFIXES) and store_at(local_path(file)).exists()
    )


def open_source(
    source: Any,
    options: SourceOptions,
    mag: Mag,
    stored_dtype: Callable[[np.dtype[Any]], np.dtype[Any]],
) -> OpenedImport:
    """Open image or array files with the selected channels, type and box; ``stored_dtype`` returns
    the type in which the target stores voxels of a type."""
    plain = open_plain(
        source,
        PlainOptions(options.position, mag, options.axes, options.fill, options.allow_external),
    )
    part = options.part.stored_by(stored_dtype, plain.volume.dtype)
    return OpenedImport(
        cropped(part.converted(plain.volume), options.part.box, "the source"), plain, options.fill
    )


def lay_out_import(
    target_image: TargetImage, imported: OpenedImport, options: Any, existing: str, workers: int
) -> Import:
    """Plan one level of images or an array, or resume the interrupted job of the same settings."""
    levels = target_image.new_levels([LevelSpec.like(imported.source)], options, existing=existing)
    on_error, absolute_token = "fill" if imported.fill else "fail", token_of(imported.source.token)
    settings = settings_of(
        "convert", box=box_setting(imported.source.box), on_error=on_error, input=absolute_token
    )
    draft, target = stage_level(levels, "convert", settings, existing)
    source = relative_to(imported.source, target.origin)
    region, reading = draft.shape(), draft.shape("reading")
    shapes = None if region is None or reading is None else (region, reading)
    nbytes_per_voxel = voxel_nbytes(source)
    # A converted voxel is in memory twice, before and after its conversion.
    memory_nbytes = nbytes_per_voxel + (
        voxel_nbytes(source.source) if isinstance(source, ConvertedVolume) else 0
    )
    plan = plan_slabs(
        target.box,
        (source.unit_shape, source.chunk_shape),
        Tiling(target.chunk_shape, target.shard_shape, memory_nbytes),
        workers,
        shapes,
    )
    task_nbytes = 2 * math.prod(plan.reading_shape) * (memory_nbytes + nbytes_per_voxel)
    record = {"region": plan.region_shape, "reading": plan.reading_shape}
    staged = draft.mags(
        [target],
        LevelSpec.like(imported.source).nbytes,
        levels.edit,
        record,
        task_nbytes=task_nbytes,
    )
    if imported.fill:
        source = _with_zero_fill(source, _notes_folder(staged))
    return Import(
        source, plan, target, staged, token_of(source.token), imported.plain.notes, levels.warnings
    )


def _notes_folder(staged: StagedMags) -> str:
    return f"{staged.root}/{_NOTES_NAME}"


def _with_zero_fill(source: Any, notes_folder: str) -> Any:
    """Replace unreadable sections by zeros, with a note about each in a folder."""
    if isinstance(source, ConvertedVolume):
        return replace(source, source=_with_zero_fill(source.source, notes_folder))
    return source.with_zero_fill(notes_folder)
