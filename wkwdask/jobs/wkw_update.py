"""Staging the update of a WKW pyramid: what is there, how it was made, and what has changed."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import MissingError, ResumeError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.jobs.report import Report
from wkwdask.jobs.staged import StagedMags
from wkwdask.jobs.update import LivingMag, UpdateJob, changed_shards
from wkwdask.jobs.wkw_mags import box_setting, mag_folder, open_source, source_token
from wkwdask.jobs.wkw_pyramid import choose_mags, choose_method
from wkwdask.jobs.wkw_write import check_level
from wkwdask.storage.job_folder import JobFolder, read_provenance, write_provenance
from wkwdask.storage.owner import Owner
from wkwdask.storage.records import read_record
from wkwdask.storage.wkw import read_header
from wkwdask.storage.wkw_target import WkwTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.jobs.wkw_pyramid import PyramidOptions, StagedPyramid
    from wkwdask.storage.dataset import Layer
    from wkwdask.storage.wkw import WkwVolume


@dataclass(frozen=True, slots=True)
class StagedUpdate:
    """An update that can be run."""

    source: WkwVolume
    """The finest mag."""
    folder: JobFolder
    """The hold on the mags."""
    mags: tuple[LivingMag, ...]
    """What is to be brought up to date, finest first."""
    job: UpdateJob
    """The work."""

    def start(self) -> None:
        """Lock the mags and make the folder for what is set aside.

        Raises
        ------
        LockedError
            Another job writes one of the mags.
        PermissionError
            A mag cannot be written.
        """
        for mag in self.mags:
            if not os.access(mag.target.folder, os.W_OK):
                raise PermissionError(errno.EACCES, "the mag cannot be written", mag.target.folder)
        self.folder.start("update", {"command": "update"})
        for mag in self.mags:
            mag.target.prepare()

    def finish(self) -> Report:
        """End the job and say what it did."""
        if not self.job.box_was_given:
            for mag in self.mags:
                self._keep_box(mag)
        seconds = time.time() - self.folder.started_at()
        self.folder.discard()
        tallies = self.job.tallies
        made = sum(tally.expected for tally in tallies)
        note = f"{made} files were made anew, {sum(self.job.num_changed)} of them changed" if made else "nothing to do: no finer file has changed"
        mags = tuple(tally.report(tally.target.folder, whole=False) for tally in tallies if tally.expected)
        return Report(mags, self.job.voxels_in * self.source.header.voxel_nbytes, seconds, note)

    def _keep_box(self, mag: LivingMag) -> None:
        """Take note of the box with which a mag agrees now."""
        provenance = read_provenance(mag.target.folder)
        settings = provenance.get("settings", {})
        if "box" in settings and settings.get("source") == self.source.box.mag.name:
            now = {**settings, "box": box_setting(self.source.box), "input": source_token(self.source)}
            if now != settings:
                write_provenance(mag.target.folder, {**provenance, "settings": now})


def stage_update(url: str | os.PathLike[str], layer_name: str | None, options: PyramidOptions, *, by_content: bool, box: BoundingBox | None) -> StagedUpdate:
    """Find out what is there and how it was made.

    Parameters
    ----------
    url : str or path
        A dataset or a layer; a mag's folder makes that mag the finest.
    layer_name : str, optional
        The layer.
    options : PyramidOptions
        As for the building; what is not given is taken from the mags.
    by_content : bool
        Make all shards anew and replace those that differ.
    box : BoundingBox, optional
        Make the shards anew that touch this box.

    Returns
    -------
    StagedUpdate

    Raises
    ------
    MissingError
        One of the mags is not there.
    ResumeError
        A mag was made with other settings, or keeps no record.
    ValueError
        An option makes no sense.
    """
    check_level(options.level)
    layer, source = open_source(url, layer_name, options.finest, "finest")
    mags = _mags(layer, source, options)
    folders = [mag_folder(layer, mag) for mag in mags]
    owner = Owner.this_process(f"build_pyramid (update) of {layer.folder}")
    provenance = [read_provenance(folder).get("settings", {}) for folder in folders]
    method, ignore_zero = _reduction(layer, options, folders, provenance)
    living = []
    for mag, folder, before in zip(mags, folders, provenance, strict=True):
        header, record = read_header(folder), read_record(folder)
        if record is None and not by_content and box is None:
            raise ResumeError(
                f'{folder}: keeps no record of the files that it was made from; update="content" compares voxels, existing="overwrite" starts anew'
            )
        if (header.dtype, header.num_channels) != (source.header.dtype, source.header.num_channels):
            raise ValueError(
                f"{folder}: holds {header.num_channels} channels of {header.dtype.name}, the finest mag {source.header.num_channels} of {source.dtype}"
            )
        parts = f"{StagedMags.staged_folder(owner, layer.folder, mag.long_name)}.parts"
        target = WkwTarget(folder, parts, header, options.level, source.box.in_mag(mag), is_living=True)
        living.append(LivingMag(target, record, _old_box(before, mag)))
    job = UpdateJob(source, living, method, ignore_zero=ignore_zero, by_content=by_content, box=box)
    return StagedUpdate(source, JobFolder(layer.folder, owner, folders), tuple(living), job)


def check_current(pyramid: StagedPyramid) -> None:
    """Make sure that a finished pyramid is that of the source as it is now.

    Raises
    ------
    ResumeError
        The source has changed.
    """
    staged = pyramid.staged
    target, folder = staged.targets[0], staged.folders[0]
    living = LivingMag(target, read_record(folder), None)
    changed = changed_shards(pyramid.source, living)
    if changed:
        raise ResumeError(
            f"{pyramid.source.folder}: {len(changed)} files of mag {target.box.mag} are made from files that have changed since; "
            "update=True (--update) makes them anew"
        )


def _mags(layer: Layer, source: WkwVolume, options: PyramidOptions) -> list[Mag]:
    """Choose the mags: those that are asked for, else all coarser ones that are there."""
    finest = source.box.mag
    if options.mags is not None or options.coarsest is not None:
        mags = choose_mags(layer, source, options)
    else:
        mags = sorted((mag for mag in layer.mags if mag != finest and _is_coarser(finest, mag)), key=lambda mag: (mag.x * mag.y * mag.z, mag.factors))
        if not mags:
            raise MissingError(f"{layer.folder}: no coarser mags to update; build them first")
    missing = [mag.name for mag in mags if not os.path.isdir(mag_folder(layer, mag))]
    if missing:
        raise MissingError(f"{layer.folder}: mag {', '.join(missing)} is not there to be updated; build it first")
    return mags


def _old_box(settings: dict[str, Any], mag: Mag) -> BoundingBox | None:
    """Give the box with which a mag was made [voxels of the mag], None where that is not known."""
    if "box" not in settings or "source" not in settings:
        return None
    box = BoundingBox.parse(settings["box"])
    return BoundingBox(box.topleft, box.size, Mag.parse(settings["source"])).in_mag(mag)


def _is_coarser(finest: Mag, mag: Mag) -> bool:
    return all(b % a == 0 for a, b in zip(finest.factors, mag.factors, strict=True))


def _reduction(layer: Layer, options: PyramidOptions, folders: Sequence[str], provenance: Sequence[dict[str, Any]]) -> tuple[str, bool]:
    """Choose method and ``ignore_zero`` as the mags were made with, and refuse others."""
    made = {(before["method"], bool(before["ignore_zero"])) for before in provenance if "method" in before}
    if len(made) > 1:
        raise ResumeError(f"{layer.folder}: the mags were made with different methods: {', '.join(sorted(method for method, _ in made))}; build them anew")
    if not made:
        return choose_method(layer, options), options.ignore_zero
    ((method, ignore_zero),) = made
    if options.method not in ("default", method) or (options.ignore_zero and not ignore_zero):
        asked = options.method + (" with ignore_zero" if options.ignore_zero else "")
        raise ResumeError(f"{folders[0]}: made with {method}{' with ignore_zero' if ignore_zero else ''}, not {asked}; build the mags anew")
    return method, ignore_zero
