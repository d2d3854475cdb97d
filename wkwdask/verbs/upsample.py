"""Planning of :func:`wkwdask.upsample`: finer mags of an image from a coarse one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import ResumeError
from wkwdask.formats.opening import SourceSelection, aligned_mags, image_box, is_readable, target_in
from wkwdask.geometry.bounding_box import MAG_1, part_of_array
from wkwdask.geometry.mag import Mag
from wkwdask.geometry.vectors import divide, is_multiple
from wkwdask.model.states import FILE_RECORD_COLUMNS
from wkwdask.model.volume import read_voxels, relative_to, voxel_nbytes
from wkwdask.model.writing.target_image import LevelSpec, NewLevels
from wkwdask.plans.mag_ladder import mag_ladder, sorted_mags
from wkwdask.plans.regions import Tiling
from wkwdask.plans.upsample import UpsamplePlan, plan_upsampling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.report import Report
from wkwdask.runs.staged import StagedMags, settings_of, stage
from wkwdask.store.paths import is_bucket, is_remote
from wkwdask.store.records import read_file_record, read_provenance
from wkwdask.verbs.region_job import UpsampleJob, is_current
from wkwdask.verbs.sources import (
    box_setting,
    check_not_replaced,
    occupancy_digest,
    open_base_level,
    source_fingerprint,
)
from wkwdask.verbs.space import encoded_like, need_of

if TYPE_CHECKING:
    import os
    from collections.abc import Generator

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.levels import Lengths
    from wkwdask.model.volume import Volume
    from wkwdask.runs.space import Need

_COMMAND = "upsample"


@dataclass(frozen=True, slots=True)
class UpsampleOptions:
    """Options of an upsampling; None chooses a default."""

    source: Mag | None = None
    finest: Mag | None = None
    """First mag of the ladder of new mags."""
    mags: tuple[Mag, ...] | None = None
    voxel_size_nm: Lengths | None = None
    """Voxel size from which mags count, by default that of the image."""
    stored: Any = None
    allow_external: bool = False


@dataclass(frozen=True, slots=True)
class Upsample(Plan):
    """Plan of an upsampling."""

    source: Volume
    plans: tuple[UpsamplePlan, ...]
    staged: StagedMags
    """Mags to write; no targets where all mags exist."""

    def job(self) -> UpsampleJob:
        # The coordinates of each source count from the voxel that contains the target's first
        # voxel, so that windows begin at 0 in both.
        sources = [
            relative_to(self.source, divide(target.origin, plan.factor))
            for target, plan in zip(self.staged.targets, self.plans, strict=True)
        ]
        return UpsampleJob(sources, self.staged.targets, self.plans)

    def need(self) -> Need | None:
        targets = self.staged.targets
        if not targets:
            return None

        def read(number: int, box: BoundingBox) -> npt.NDArray[Any]:
            plan = self.plans[number]
            source = relative_to(self.source, divide(targets[number].origin, plan.factor))
            return part_of_array(
                _repeated(read_voxels(source, plan.source_box_of(box)), plan.factor),
                box,
                plan.source_box_of(box).in_mag(box.mag).topleft,
            )

        return need_of(self.staged, self.job, encoded_like(targets, read))

    def nothing_to_do(self) -> Report | None:
        """Return the report of an upsampling without missing mags."""
        if self.staged.targets:
            return None
        self.staged.remove_leftovers()
        return Report(
            (),
            0,
            0.0,
            (
                f"nothing to do: no mag finer than {self.source.box.mag} is missing; mags= names "
                "existing mags to make again"
            ),
        )

    def phases(self) -> Generator[Phase, str, Outcome]:
        job = self.job()
        note = yield Phase(job, f"upsampling of {self.staged.parent}")
        return Outcome(job.tallies, note)

    def check_unchanged(self) -> None:
        check_not_replaced(self.source)

    def finished_before(self, report: Report) -> Report:
        """Raise an error if finished mags were made from other data than the source has now."""
        for target, folder in zip(self.staged.targets, self.staged.listed, strict=True):
            record = read_file_record(folder)
            has_states = self.source.is_regular and not is_bucket(self.source.name)
            if has_states and not is_current(
                self.source,
                target,
                np.empty((0, FILE_RECORD_COLUMNS), np.int64) if record is None else record,
            ):
                raise ResumeError(
                    f"{self.source.name}: has changed since {folder} was made from it; "
                    'existing="overwrite" rebuilds the finer mags'
                )
        return report


def _repeated(voxels: npt.NDArray[Any], factor: Vec3) -> npt.NDArray[Any]:
    """Repeat voxels, shape (c, x, y, z), along x, y, z."""
    for axis, count in enumerate(factor, 1):
        voxels = voxels.repeat(count, axis)
    return voxels


def lay_out_upsample(
    url: str | os.PathLike[str],
    layer_name: str | None,
    options: UpsampleOptions,
    existing: str,
    workers: int,
) -> Upsample:
    """Plan finer mags, or resume the interrupted job of the same settings."""
    selection = SourceSelection(
        layer_name,
        options.source,
        "source",
        _earlier_source,
        options.allow_external,
        options.voxel_size_nm,
    )
    image, source = open_base_level(url, selection)
    box = image_box(image, source)
    mags = _choose_mags(image, source.box.mag, box, options, existing)
    if _lacks_finest(image) and MAG_1 not in mags:
        raise ValueError(
            f"{image.folder}: mags count from the finest level, so mag 1 must be among the new "
            "ones: voxel_size is its voxel size"
        )
    specs = [LevelSpec.like(source, box.in_mag(mag)) for mag in mags]
    levels = (
        target_in(image, options.allow_external).new_levels(specs, options.stored, source, existing)
        if specs
        else NewLevels(image.folder, (), (), {})
    )
    settings = settings_of(
        _COMMAND,
        box=box_setting(source.box),
        layer_box=box_setting(box),
        mags=",".join(mag.name for mag in mags),
    )
    fingerprint = {**source_fingerprint(source), "source": source.box.mag.name}
    draft = stage(
        f"{_COMMAND} of {image.folder}",
        levels.parent,
        levels.folders,
        {**settings, **levels.settings, **fingerprint},
        existing,
    )
    targets, shapes = draft.staged_levels(levels), draft.shapes()
    nbytes_per_voxel = voxel_nbytes(source)
    plans = tuple(
        plan_upsampling(
            target.box,
            source.box.mag,
            Tiling(target.chunk_shape, target.shard_shape, nbytes_per_voxel),
            workers,
            region,
        )
        for target, region in zip(
            targets, [None] * len(mags) if shapes is None else shapes, strict=True
        )
    )
    record = {
        "regions": [plan.region_shape for plan in plans],
        "presence": occupancy_digest(source, [plan.source_cell_shape for plan in plans]),
    }
    task_nbytes = max((plan.memory_nbytes(nbytes_per_voxel) for plan in plans), default=0)
    staged = draft.mags(
        targets,
        len(mags) * LevelSpec.like(source).nbytes,
        levels.edit,
        record,
        task_nbytes=task_nbytes,
    )
    return Upsample(source, plans, staged)


def _lacks_finest(image: Image) -> bool:
    """Return whether the mags of an image count from a level that does not exist yet."""
    return image.counts_from_finest and MAG_1 not in image.mags


def _earlier_source(image: Image) -> Mag | None:
    """Return the mag from which mags of the image were upsampled, so that a repeated call does not
    start from its own result."""
    if _lacks_finest(image):  # recorded mags count from another level
        return None
    settings = [
        read_provenance(folder).get("settings", {})
        for folder in image.mags.values()
        if not is_remote(folder)
    ]
    sources = {recorded["source"] for recorded in settings if recorded.get("command") == _COMMAND}
    return Mag.parse(sources.pop()) if len(sources) == 1 else None


def _choose_mags(
    image: Image, source: Mag, box: BoundingBox, options: UpsampleOptions, existing: str
) -> list[Mag]:
    """Return the mags to make, finest first."""
    if options.mags is not None:
        if options.finest is not None:
            raise ValueError(
                "mags= lists the mags to make, finest= chooses them: give one or the other"
            )
        mags = sorted_mags(options.mags, source, "source")
        for mag in mags:
            mag.step_to(source)
        return mags
    finest = options.finest or MAG_1
    finest.step_to(source)
    return [
        mag
        for mag in _ladder(image, finest, source, box)
        if not _is_kept(image, mag, source, existing)
    ]


def _ladder(image: Image, finest: Mag, source: Mag, box: BoundingBox) -> list[Mag]:
    """Return the mags of WEBKNOSSOS's ladder from the finest up to the source, the source
    excluded."""
    if finest == source:
        return []
    # a single section keeps its thickness
    sampling = "constant_z" if box.size[2] == 1 and finest.z == source.z else "anisotropic"
    try:
        above = mag_ladder(finest, source, image.voxel_size_nm, sampling, aligned_mags(image, True))
    except ValueError as error:
        raise ValueError(
            f"no ladder of mags leads from {finest} to {source} ({error}); list the mags to make "
            "with mags="
        ) from None
    return [
        finest,
        *(
            mag
            for mag in above
            if mag.maximum < source.maximum and is_multiple(source.factors, mag.factors)
        ),
    ]


def _is_kept(image: Image, mag: Mag, source: Mag, existing: str) -> bool:
    """Return whether a mag keeps its data, because it is readable and was not made by an earlier
    start of this job."""
    if existing != "error" and mag in image.mags:
        settings = read_provenance(image.mags[mag]).get("settings", {})
        if settings.get("command") == _COMMAND and settings.get("source") == source.name:
            return False
    return is_readable(image, mag)
