"""Staging the upsampling of a WKW layer: from what a user asks for to source, targets, plans and the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import ResumeError
from wkwdask.formats.webknossos.dataset import is_readable
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag
from wkwdask.plans.chunks import LARGEST_FILE_LEN
from wkwdask.plans.mag_ladder import listed_mags, mag_ladder
from wkwdask.plans.regions import Tiling
from wkwdask.plans.upsample import Upsampling, plan_upsampling
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.report import Report
from wkwdask.runs.stage import stage
from wkwdask.runs.staged import StagedMags, settings_of
from wkwdask.store.paths import is_remote
from wkwdask.store.provenance import read_provenance
from wkwdask.store.records import RECORD_COLUMNS, read_record
from wkwdask.verbs.upsample import UpsampleJob, is_current
from wkwdask.verbs.wkw.mags import (
    NewMagsOptions,
    aligned_mags,
    box_setting,
    check_apart,
    check_not_replaced,
    edit_of,
    header_like,
    mag_folder,
    open_source,
    presence,
    source_token,
)
from wkwdask.verbs.wkw.places import parent_of
from wkwdask.verbs.wkw.write import level_of, staged_target, stored_settings

if TYPE_CHECKING:
    import os
    from collections.abc import Generator

    from wkwdask.formats.wkw.volume import WkwVolume
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.image import Image

_COMMAND = "upsample"


@dataclass(frozen=True, slots=True)
class UpsampleOptions(NewMagsOptions):
    """What a user may choose for an upsampling."""

    source: Mag | None = None
    """The mag to start from."""
    finest: Mag | None = None
    """Where the ladder of new mags begins."""


@dataclass(frozen=True, slots=True)
class Upsample(Plan):
    """An upsampling that can be run."""

    source: WkwVolume
    """The coarse mag."""
    plans: tuple[Upsampling, ...]
    """How each mag is made."""
    staged: StagedMags
    """What is written; no targets where all mags are there already."""

    def job(self) -> UpsampleJob:
        """Make the job."""
        return UpsampleJob(self.source, self.staged.targets, self.plans)

    def nothing_to_do(self) -> Report | None:
        """Say that no mag is missing."""
        if self.staged.targets:
            return None
        self.staged.remove_leftovers()
        return Report((), 0, 0.0, f"nothing to do: no mag finer than {self.source.box.mag} is missing; mags= names existing mags to make again")

    def phases(self) -> Generator[Phase, str, Outcome]:
        """Make all mags."""
        job = self.job()
        note = yield Phase(job, f"upsampling of {self.staged.parent}")
        return Outcome(job.tallies, note)

    def check_unchanged(self) -> None:
        """Make sure that the source is still the one that was read, see :func:`wkwdask.verbs.wkw.mags.check_not_replaced`."""
        check_not_replaced(self.source)

    def finished_before(self, report: Report) -> Report:
        """Make sure that the mags, finished before, are those of the source as it is now."""
        for target, folder in zip(self.staged.targets, self.staged.folders, strict=True):
            record = read_record(folder)
            if not is_current(self.source, target, np.empty((0, RECORD_COLUMNS), np.int64) if record is None else record):
                raise ResumeError(f'{self.source.folder}: has changed since {folder} was made from it; existing="overwrite" makes the finer mags anew')
        return report


def lay_out_upsample(url: str | os.PathLike[str], layer_name: str | None, options: UpsampleOptions, existing: str, workers: int) -> Upsample:
    """Check and lay out the making of finer mags, or find the interrupted job that is to go on."""
    level = options.stored.chosen_level
    layer, source = open_source(url, layer_name, options.source, "source", _earlier_source, allow_external=options.allow_external)
    box = layer.container.record.bounding_box if layer.container.record is not None else source.box.in_mag(MAG_1)
    mags = _choose_mags(layer, source.box.mag, box, options, existing)
    folders = tuple(mag_folder(layer, mag) for mag in mags)
    check_apart(layer, source, mags, folders)
    parent = parent_of(layer, folders)
    headers = [header_like(source, options.stored, box.in_mag(mag), LARGEST_FILE_LEN) for mag in mags]
    header = headers[0] if headers else header_like(source, options.stored, source.box)
    settings = settings_of(
        _COMMAND, source=source.box.mag, box=box_setting(source.box), layer_box=box_setting(box), mags=",".join(mag.name for mag in mags),
        **stored_settings(header, level_of(header, level), *headers[1:]), input=source_token(source),
    )  # fmt: skip
    draft = stage(f"{_COMMAND} of {layer.folder}", parent, folders, settings, existing)
    targets = tuple(staged_target(draft, header, level, box.in_mag(mag)) for mag, header in zip(mags, headers, strict=True))
    shapes = draft.shapes()
    plans = tuple(
        plan_upsampling(target.box, source.box.mag, Tiling(target.chunk_shape, target.shard_shape, target.header.voxel_nbytes), workers, region)
        for target, region in zip(targets, [None] * len(mags) if shapes is None else shapes, strict=True)
    )
    plan = {"regions": [one.region_shape for one in plans], "presence": presence(source, [one.source_cell_shape for one in plans])}
    nbytes_in = len(mags) * source.box.volume * source.header.voxel_nbytes
    task_nbytes = max((one.memory_nbytes(source.header.voxel_nbytes) for one in plans), default=0)
    edit = edit_of(layer, mags, folders, headers)
    staged = draft.mags(targets, nbytes_in, edit, plan, task_nbytes=task_nbytes)
    return Upsample(source, plans, staged)


def _earlier_source(layer: Image) -> Mag | None:
    """Find the mag that mags of the layer were upsampled from: a repeated call means it again, and not what it made."""
    settings = [read_provenance(folder).get("settings", {}) for folder in layer.mags.values() if not is_remote(folder)]
    sources = {before["source"] for before in settings if before.get("command") == _COMMAND}
    return Mag.parse(sources.pop()) if len(sources) == 1 else None


def _choose_mags(layer: Image, source: Mag, box: BoundingBox, options: UpsampleOptions, existing: str) -> list[Mag]:
    """Choose the mags to make, finest first."""
    if options.mags is not None:
        if options.finest is not None:
            raise ValueError("mags= lists the mags to make, finest= chooses them: give one or the other")
        mags = listed_mags(options.mags, source, "source")
        for mag in mags:
            mag.step_to(source)
        return mags
    finest = options.finest or MAG_1
    finest.step_to(source)
    return [mag for mag in _ladder(layer, finest, source, box) if not _is_there(layer, mag, source, existing)]


def _ladder(layer: Image, finest: Mag, source: Mag, box: BoundingBox) -> list[Mag]:
    """List the mags of WEBKNOSSOS's ladder from the finest up to the source, without that."""
    if finest == source:
        return []
    voxel_size = layer.container.datasource.voxel_size_nm if layer.container.datasource is not None else None
    sampling = "constant_z" if box.size[2] == 1 and finest.z == source.z else "anisotropic"  # a single section stays one
    try:
        above = mag_ladder(finest, source, voxel_size, sampling, aligned_mags(layer, True))
    except ValueError as error:
        raise ValueError(f"no ladder of mags leads from {finest} to {source} ({error}); list the mags to make with mags=") from None
    return [finest, *(mag for mag in above if mag.maximum < source.maximum and _divides(mag, source))]


def _is_there(layer: Image, mag: Mag, source: Mag, existing: str) -> bool:
    """Tell whether a mag is to be left alone: it has data, and is not one that this job made from the same source and may go on with or replace."""
    if existing != "error":
        settings = read_provenance(mag_folder(layer, mag)).get("settings", {})
        if settings.get("command") == _COMMAND and settings.get("source") == source.name:
            return False
    return is_readable(layer, mag)


def _divides(finer: Mag, coarser: Mag) -> bool:
    return all(b % a == 0 for a, b in zip(finer.factors, coarser.factors, strict=True))
