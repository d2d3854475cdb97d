"""Planning of jobs that store one mag again, in the same or another format: ``rechunk``,
``compress``, ``copy``, ``convert`` and ``merge``.

Chunks are spliced (copied as stored) where source and target encode them alike, else decoded and
encoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from wkwdask.errors import BoundsError, IncompleteWriteError, MissingError, UnsupportedError
from wkwdask.formats.container import container_of
from wkwdask.geometry.bounding_box import moved
from wkwdask.geometry.mag import mag_order
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.summary import counted
from wkwdask.model.volume import read_voxels, relative_to, voxel_nbytes
from wkwdask.model.writing.splice import has_stored_chunks
from wkwdask.model.writing.target_image import LevelSpec
from wkwdask.plans.regions import Tiling, plan_splicing
from wkwdask.plans.upsample import UpsamplePlan, plan_upsampling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.space import Size, existing_folder
from wkwdask.runs.staged import check_existing, settings_of
from wkwdask.store.paths import is_below
from wkwdask.store.records import read_provenance
from wkwdask.store.store import folders_of, store_at
from wkwdask.verbs.compare import EqualJob
from wkwdask.verbs.region_job import SpliceJob, UpsampleJob
from wkwdask.verbs.sources import (
    VolumeSelection,
    box_setting,
    cast_note,
    check_not_replaced,
    cropped,
    is_in_box,
    meet,
    occupancy_digest,
    source_fingerprint,
    stage_level,
    translated,
)
from wkwdask.verbs.space import SURE_SHARE, encoded_like, need_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from wkwdask.formats.format import ArrayFormat
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import Destination, LevelCopy, NewLevels, TargetImage
    from wkwdask.plans.regions import RegionGrid
    from wkwdask.runs.space import Need, RunTasks
    from wkwdask.runs.staged import StagedMags


@dataclass(frozen=True, slots=True)
class LayerSelection:
    """Mags of a layer to convert, and the part of each."""

    mags: tuple[Mag, ...] | None = None
    finest_only: bool = False
    """Whether only the finest mag is converted."""
    part: VolumeSelection = field(default_factory=VolumeSelection)

    def of(self, volume: StoredArray) -> Volume:
        """Return the selected part of a mag, moved by the offset."""
        selected: Volume = self.part.converted(
            translated(cropped(volume, self.part.box), self.part.offset, "offset", "converted")
        )
        return selected

    def copy_of(self, volume: StoredArray) -> CopySource:
        """Return the selected part of a mag as the source of a copy."""
        return CopySource(self.of(volume), volume, self.settings)

    def mags_of(self, name: str, available: Sequence[Mag]) -> list[Mag]:
        """Return the selected ones of the available mags, finest first."""
        missing = [mag for mag in self.mags or () if mag not in available]
        if missing or not available:
            raise MissingError(
                f"{name}: has no mag {missing[0] if missing else ''}; there are "
                f"{', '.join(map(str, available)) or 'none'}"
            )
        selected = sorted(available if self.mags is None else self.mags, key=mag_order)
        return selected[:1] if self.finest_only else selected

    def only(self, mag: Mag | None, source: Any) -> LayerSelection:
        """Return the selection restricted to the mag that the path of a source names, if it names
        one."""
        if mag is not None and self.mags is not None and self.mags != (mag,):
            raise ValueError(
                f"{source}: is mag {mag}, but mag= says {self.mags[0]}; name the layer's folder to "
                "choose a mag"
            )
        return self if mag is None else replace(self, mags=(mag,))

    @property
    def settings(self) -> dict[str, Any]:
        return settings_of(
            "convert", **{name: getattr(self.part, name) for name in VolumeSelection.__slots__}
        )


def check_alike(copies: Sequence[CopySource]) -> None:
    """Raise UnsupportedError, before any mag of a layer is made, unless all have the same type and
    number of channels."""
    first = copies[0].source
    for volume in (copy.source for copy in copies[1:]):
        if (volume.dtype, volume.num_channels) != (first.dtype, first.num_channels):
            raise UnsupportedError(
                f"{volume.name}: has {volume.num_channels} x {volume.dtype.name}, but {first.name} "
                f"{first.num_channels} x {first.dtype.name}; "
                "mags of a layer have one type: convert them one by one, with mag= and dtype="
            )


_COMPARED_NBYTES = 64 << 20  # voxels of one comparison after splicing


@dataclass(frozen=True, slots=True)
class Rechunk(Plan):
    """Plan of one mag that is stored again."""

    volume: Volume
    """Voxels to read, in coordinates of the target."""
    plan: RegionGrid
    """Regions; an :class:`UpsamplePlan` with factor 1 where chunks are decoded."""
    target: Any
    staged: StagedMags
    stored: Volume
    """Stored source, which must not change until the end."""
    find_source: Callable[[], StoredArray] | None = None
    """Finds a source that the result replaces, with the box of all its stored voxels at that time;
    None for a source that stays."""
    notes: tuple[Warning, ...] = ()
    """Warnings about the mag and its image."""
    loss: str | None = None
    """Loss where chunks are decoded, see :class:`wkwdask.model.writing.target_image.NewLevels`."""
    verify: bool = False
    """Whether all voxels are compared before the mag is published."""
    why_decoded: str = ""
    """Why chunks are decoded and encoded, an empty text if they are spliced."""
    placed_as: str = ""
    """Description of the voxels around the box, see
    :class:`wkwdask.model.writing.target_image.NewLevels`."""

    @property
    def in_place(self) -> bool:
        """Whether the result replaces its source."""
        return self.find_source is not None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Differences of the mag from its source, for the plan and the report."""
        return tuple(filter(None, [self.placed_as, cast_note(self.stored, self.target.dtype)]))

    @property
    def decodes(self) -> bool:
        """Whether chunks are decoded and encoded, instead of spliced."""
        return bool(self.why_decoded)

    def job(self) -> SpliceJob | UpsampleJob:
        if isinstance(self.plan, UpsamplePlan):
            return UpsampleJob([self.volume], [self.target], [self.plan])
        return SpliceJob(self.volume, self.target, self.plan)

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Write the mag; with ``verify``, compare it with its source."""
        (folder,) = self.staged.folders
        job = self.job()
        note = yield Phase(job, self.staged.owner.command)
        if self.verify:
            yield Phase(
                EqualJob(self.volume, self.target.as_volume(), self.plan), f"comparing {folder}"
            )
        (tally,) = job.tallies
        report, notes = tally.report(folder), [note]
        if report.voxels and not report.files:
            notes.append(f"{folder} is all zero, as {self.volume.name} is")
        notes += self.remarks
        if tally.outside and self.volume.box.size == self.stored.box.size:
            # a part was not chosen, so nobody expects that voxels are left out
            found = "of those that were checked " if self.target.keeps_files else ""
            fate = (
                "copied; strict_box=True leaves them out" if self.target.keeps_files else "left out"
            )
            notes.append(
                f"{self.volume.name}: {counted(tally.outside, 'chunk')} {found}had nonzero voxels "
                f"outside of the bounding box, which were {fate}"
            )
        return Outcome(job.tallies, "; ".join(filter(None, notes)))

    def need(self) -> Need:
        """Return the space of the new mag: where chunks are copied, of the stored files, else of
        chunks encoded on trial."""
        sampled = need_of(
            self.staged,
            self.job,
            encoded_like([self.target], lambda _, box: read_voxels(self.volume, box)),
        )
        return (
            sampled
            if self.decodes
            else replace(sampled, measure=partial(self._copied_size, sampled))
        )

    def _copied_size(self, sampled: Need, run_tasks: RunTasks) -> Size:
        """Return the size of files from which chunks are copied. A box that cuts files needs less,
        and on some file systems a copy shares its blocks."""
        size, states = sampled.measure(run_tasks), self.volume.files.stored_states()
        nbytes = int(states[:, 3].sum())
        is_exact = (
            nbytes > 0
            and size.likely_nbytes > SURE_SHARE * nbytes
            and self.volume.box.size == self.stored.box.size
        )
        least = nbytes if is_exact else size.least_nbytes
        place = existing_folder(self.staged.parent)
        return Size(
            0 if folders_of(place).can_share_blocks(place) else least,
            nbytes if is_exact else size.likely_nbytes,
            size.num_files,
        )

    def check_unchanged(self) -> None:
        check_not_replaced(self.stored)
        # a region may have been written between the plan and the lock
        if self.find_source is not None and not self.stored.box.contains(self.find_source().box):
            raise IncompleteWriteError(
                f"{self.stored.name}: got voxels outside of {self.stored.box} after this job was "
                'planned, and would lose them; existing="restart" starts over with them'
            )


@dataclass(frozen=True, slots=True)
class RechunkOptions:
    """Options of a copy of stored levels."""

    stored: Any
    """Storage options of the format; options that are not given keep their values."""
    box: BoundingBox | None = None
    """Box to copy [voxels of mag 1]; voxels outside are dropped."""
    translate: Vec3 = (0, 0, 0)
    """Shift of the voxels [voxels of mag 1]."""
    command: str = "rechunk"
    """Command of the user. A ``copy`` keeps whole files, with their voxels outside the bounding
    box."""
    allow_external: bool = False


@dataclass(frozen=True, slots=True)
class CopySource:
    """Volume whose voxels a job stores elsewhere."""

    source: Volume
    """Voxels to read, in absolute coordinates."""
    stored: Volume
    """Stored volume behind it, whose fingerprint a resumed job compares."""
    settings: dict[str, Any]
    """Settings that describe the selection and conversion."""

    @property
    def spec(self) -> LevelSpec:
        """Level with these voxels."""
        source = self.source
        return replace(
            LevelSpec.like(source),
            source=source
            if isinstance(source, StoredArray) and has_stored_chunks(source)
            else None,
        )


def lay_out_copy(
    target: TargetImage, copy: CopySource, options: Any, existing: str, workers: int
) -> Rechunk:
    """Plan one level with the voxels of a volume, or resume the interrupted job of the same
    settings."""
    levels = target.new_levels([copy.spec], options, existing=existing)
    return copy_into(copy, levels, existing, workers, encodes="level" in options.explicit())


def lay_out_rechunk(
    its_format: ArrayFormat, move: LevelCopy, options: RechunkOptions, existing: str, workers: int
) -> Rechunk | None:
    """Plan one level that is stored again; None if it would replace itself by an equal level."""
    check_existing(existing)
    in_place = move.destination is None
    if in_place and options.box is not None:
        raise ValueError(
            "a bounding box in place would lose all voxels outside of it: name another target"
        )
    whole = move.level.open()
    shown = cropped(whole, options.box)
    find_source = partial(container_of(move.image).with_all_files, shown)
    source = find_source() if in_place else shown
    volume: StoredArray = translated(source, options.translate, "translate", "copied")
    if move.destination is None:
        target = its_format.target_in(move.image, allow_external=options.allow_external)
    else:
        target = _copy_target(its_format, move, move.destination, options)
    spec = _spec_of_copy(volume, options)
    levels = target.new_levels(
        [spec], options.stored, source if in_place else whole, "overwrite" if in_place else existing
    )
    if in_place and levels.is_unchanged:
        return None
    if not in_place:
        check_apart(levels.folders[0], whole.name)
    job = lay_out(source, volume, levels, options, existing, workers)
    if not in_place:
        return job
    staged = replace(
        job.staged,
        existing="restart" if existing == "restart" else "overwrite",
        box=shown.box,
        nbytes_in=LevelSpec.like(shown).nbytes,
    )
    return replace(job, staged=staged, find_source=find_source)


def levels_in_box(
    level_copies: Sequence[LevelCopy], box: BoundingBox | None
) -> tuple[list[LevelCopy], str]:
    """Return the levels to copy, without those that have no voxels in a box where others have some;
    and a note on the levels left out. A coarser level has no voxels beyond the finest one of its
    image, although its box is rounded outward."""
    if box is None or None in [level_copy.destination for level_copy in level_copies]:
        return list(level_copies), ""  # in place, a box is refused
    images: dict[str, list[tuple[LevelCopy, BoundingBox]]] = {}
    for level_copy in level_copies:
        placed = (level_copy, level_copy.level.open().box)
        images.setdefault(level_copy.image.folder, []).append(placed)
    found: list[LevelCopy] = []
    for levels in images.values():
        finest, its_box = min(levels, key=lambda placed: prod(placed[1].mag.factors))
        reach = finest.image.stated_box or its_box
        if meet(box, reach) or not all(
            reach.in_mag(inside.mag).contains(inside) for _, inside in levels
        ):
            found += [level_copy for level_copy, inside in levels if meet(box, inside)]
    if not found:
        raise BoundsError(
            f"{finest.level.folder}: the bounding box {box} lies outside of the mag, whose box is "
            f"{its_box}"
        )
    left_out = [
        f"{level_copy.level.folder} has no voxels in the bounding box"
        for level_copy in level_copies
        if level_copy not in found
    ]
    return found, f"not copied: {', '.join(left_out)}" if left_out else ""


def _spec_of_copy(volume: StoredArray, options: RechunkOptions) -> LevelSpec:
    """Return the level that a copy makes; without a box to copy, its array has all voxels of the
    source."""
    return replace(
        LevelSpec.like(volume, is_copy=True), extent=volume.extent if options.box is None else None
    )


def lay_out(
    source: StoredArray,
    volume: Volume,
    levels: NewLevels,
    options: RechunkOptions,
    existing: str,
    workers: int,
) -> Rechunk:
    """Plan the job that makes one level."""
    settings = settings_of(
        options.command, box=box_setting(source.box), translate=options.translate
    )
    job = copy_into(
        CopySource(volume, source, settings),
        levels,
        existing,
        workers,
        options.command,
        encodes="level" in options.stored.explicit(),
    )
    provenance = read_provenance(source.name)
    voxel_provenance = (
        (provenance.get("made", provenance),)
        if options.command != "merge" and options.box is None
        else ()
    )
    return replace(job, staged=replace(job.staged, voxel_provenance=voxel_provenance))


def _copy_target(
    its_format: ArrayFormat, move: LevelCopy, destination: Destination, options: RechunkOptions
) -> TargetImage:
    """Return the image that gets the copy, with the bounding box of the source image."""
    box = move.image.stated_box
    if box is not None:
        shown = box if options.box is None else box.intersection(options.box)
        box = moved(shown, options.translate)
    keeps = options.command == "copy" and options.box is None
    external = options.allow_external
    sources = [
        spec.source
        for spec in destination.levels
        if spec.source is not None and is_in_box(spec.source, options.box)
    ]
    copies = [
        translated(cropped(source, options.box), options.translate, "translate", "copied")
        for source in sources
    ]
    levels = tuple(
        replace(_spec_of_copy(copy, options), source=source)
        for copy, source in zip(copies, sources, strict=True)
    )
    return its_format.target(
        replace(
            destination,
            levels=levels,
            image_box=box,
            allow_external=external,
            keeps_files=keeps,
            translate=options.translate,
        )
    )


def check_apart(folder: str, source: str) -> None:
    """Raise ValueError if a folder to write lies inside of the source."""
    real, source_folder = store_at(folder).real(), store_at(source).real()
    if real != source_folder and is_below(real, source_folder):
        raise ValueError(f"{folder}: lies inside of the source {source}")


def copy_into(
    copy: CopySource,
    levels: NewLevels,
    existing: str,
    workers: int,
    command: str = "convert",
    *,
    encodes: bool,
) -> Rechunk:
    """Plan the copy of a volume into a new level; with ``encodes``, chunks are encoded again,
    because the user chose the level of the compression."""
    draft, target = stage_level(
        levels,
        command,
        settings_of(command),
        existing,
        {**copy.settings, **source_fingerprint(copy.stored)},
    )
    source, region = relative_to(copy.source, target.origin), draft.shape()
    spec, tiling = (
        LevelSpec.like(source),
        Tiling(target.chunk_shape, target.shard_shape, voxel_nbytes(source)),
    )
    plan: RegionGrid
    # Splicing copies encoded chunks; regions are whole shards of the target, so no parts are
    # joined. Decoding uses the upsampling job with factor 1, whose regions may be parts of a shard.
    why_decoded = "the level of the compression is given" if encodes else target.why_decoded(source)
    if not why_decoded:
        plan = plan_splicing(
            target.box, source.shard_shape, target.shard_shape, spec.voxel_nbytes, workers, region
        )
        plan = replace(plan, brick_shape=target.part_shape(_COMPARED_NBYTES))
    else:
        plan = plan_upsampling(
            target.box, source.box.mag, tiling, workers, region, source.chunk_shape
        )
    record = {
        "region": plan.region_shape,
        "presence": occupancy_digest(source, [plan.region_shape]),
    }
    staged = draft.mags([target], spec.nbytes, levels.edit, record)
    return Rechunk(
        source,
        plan,
        target,
        staged,
        copy.stored,
        notes=levels.warnings,
        loss=levels.loss,
        why_decoded=why_decoded,
        placed_as=levels.placed_as,
    )
