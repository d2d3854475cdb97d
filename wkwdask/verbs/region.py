"""Staging a write into a part of a level that is there: files are merged and published one by one, nothing else is touched."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import BoundsError, IncompleteWriteError
from wkwdask.formats.places import format_of_image
from wkwdask.geometry.grid import cell_range
from wkwdask.model.place import InPlace
from wkwdask.model.translated import moved
from wkwdask.runs.job_folder import JobFolder
from wkwdask.runs.report import Report
from wkwdask.runs.stage import check_existing, stage_array
from wkwdask.runs.staged import StagedMags, settings_of
from wkwdask.store import files
from wkwdask.store.locks import ShardBox, guarded
from wkwdask.store.records import RECORD_NAME, merge_record
from wkwdask.verbs.sources import box_setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.image import Image
    from wkwdask.model.volume import StoredVolume
    from wkwdask.runs.content import Content
    from wkwdask.runs.tally import ShardTally

_COMMAND = "to_wkw region"


@dataclass(frozen=True, slots=True)
class StagedRegion(StagedMags):
    """One write into a level that is there."""

    region: ShardBox | None = None
    """The files that it touches."""
    dataset: str | None = None
    """The dataset that lists the level, which need not lie in it."""
    volume: StoredVolume | None = None
    """The level as it was opened."""

    def check_free(self) -> None:
        """Make sure that the folder can be written; who else writes is found out at the start."""
        (target,) = self.targets
        if files.isdir(target.folder) and not files.is_writable(target.folder):
            raise PermissionError(errno.EACCES, "the mag cannot be written", target.folder)

    def start(self) -> Report | None:
        """Lock the files and make the job's folder."""
        self.check_free()
        self._job_folder().start("update", self.settings)
        (target,) = self.targets
        try:
            is_same = self.volume is None or self.volume.is_current()
        except BaseException:
            self.discard()
            raise
        if not is_same:
            self.discard()
            raise IncompleteWriteError(f"{target.folder}: was replaced just now; start again")
        target.prepare()
        return None

    def publish(self, tallies: Sequence[ShardTally], note: str = "") -> Report:
        """Make sure that every file was written, keep what is known about them, and end the job."""
        (tally,), (folder,) = tallies, self.folders
        tally.check()
        with guarded(self.parent):  # other jobs may write other files
            files.remove_temporaries(folder, RECORD_NAME)  # of one that was killed right here
            merge_record(folder, tally.shards)
        made = tally.report(folder, whole=False)
        if self.edit is not None and isinstance(made.maximum, int):
            try:
                self.edit.with_maxima((made.maximum,), is_new_content=False).apply()
            except PermissionError as error:
                note = "; ".join(filter(None, (note, f"{self.edit.kind} was not changed: {error}")))
        job_folder = self._job_folder()
        seconds = time.time() - job_folder.started_at()
        job_folder.discard()
        return Report((made,), self.nbytes_in, seconds, note)

    def _job_folder(self) -> JobFolder:
        return JobFolder(self.parent, self.owner, self.folders, self.region, is_kept_for_later=False, datasets=[*filter(None, [self.dataset])])


def lay_out_region(image: Image, volume: StoredVolume, region: BoundingBox, content: Content, level: int | None, existing: str) -> StagedRegion:
    """Check and lay out the writing of an array into a part of a level."""
    check_existing(existing)
    _check_fits(image, volume, region, content)
    stored, found = format_of_image(image), image.level_of(volume)
    assert found is not None
    parent, folder = stored.hold(image, found)
    folder = files.realpath(folder) if files.islink(folder) else folder  # its locks are known by one name
    settings = settings_of(_COMMAND, folder=folder, box=box_setting(region), level=level or 0)
    x, y, z = volume.origin
    ranges = cell_range(moved(region, (-x, -y, -z)), stored.living(volume, InPlace(folder, "", region)).shard_shape)
    shards = ShardBox((ranges[0].start, ranges[1].start, ranges[2].start), (ranges[0].stop, ranges[1].stop, ranges[2].stop))
    stored.check_links(image, folder, shards)
    draft = stage_array(f"{_COMMAND} {region} of {folder}", parent, folder, settings, existing, replace(content, shards=shards))
    target = stored.living(volume, InPlace(folder, f"{draft.staged(region.mag.long_name)}.parts", region, merges=True, level=level))
    nbytes = region.volume * volume.dtype.itemsize * volume.num_channels
    return StagedRegion(
        draft.owner, parent, (target,), draft.folders, nbytes, stored.note_of_part(image), draft.settings, existing, goes_on_by_itself=False,
        not_compared=content.not_compared, region=shards, dataset=None if image.container is None else image.container.dataset_folder, volume=volume,
    )  # fmt: skip


def _check_fits(image: Image, volume: StoredVolume, region: BoundingBox, content: Content) -> None:
    if region.size != content.shape[1:]:
        raise ValueError(f"the region {region} has the shape {region.size}, the array {content.shape[1:]}")
    has_box = image.container is None or image.container.record is not None
    if (not has_box and min(region.topleft) < 0) or (has_box and not volume.box.contains(region)):
        raise BoundsError(f"{volume.name}: the region {region} reaches outside the layer, whose box is {volume.box}")
    dtype = np.dtype(content.dtype)
    if dtype.newbyteorder("=") != volume.dtype.newbyteorder("=") or content.shape[0] != volume.num_channels:
        raise TypeError(f"{volume.name}: holds {volume.num_channels} channels of {volume.dtype.name}, the array is {content.shape[0]} of {dtype.name}")
