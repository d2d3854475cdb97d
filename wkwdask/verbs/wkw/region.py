"""Staging a write into a part of a mag that is there: files are merged and published one by one, nothing else is touched."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import BoundsError, IncompleteWriteError
from wkwdask.formats.webknossos.dataset import locate, open_volume
from wkwdask.formats.webknossos.layer_edit import raise_largest_id
from wkwdask.formats.webknossos.place import check_files_inside, check_inside_dataset, real_folder
from wkwdask.formats.wkw.target import WkwTarget
from wkwdask.formats.wkw.volume import read_header
from wkwdask.geometry.grid import cell_range
from wkwdask.model.voxel_type import by_dtype
from wkwdask.runs.job_folder import JobFolder
from wkwdask.runs.report import Report
from wkwdask.runs.stage import check_existing, stage_array
from wkwdask.runs.staged import StagedMags, settings_of
from wkwdask.store import files
from wkwdask.store.locks import ShardBox, guarded
from wkwdask.store.paths import dirname
from wkwdask.store.records import RECORD_NAME, merge_record
from wkwdask.verbs.sources import box_setting

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.formats.wkw.options import WkwOptions
    from wkwdask.formats.wkw.volume import WkwVolume
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.runs.content import Content
    from wkwdask.runs.tally import ShardTally

_COMMAND = "to_wkw region"


@dataclass(frozen=True, slots=True)
class StagedRegion(StagedMags):
    """One write into a mag that is there."""

    region: ShardBox | None = None
    """The files that it touches."""
    segmentation: tuple[str, str] | None = None
    """Dataset and layer, where the JSON lists the layer as a segmentation."""
    dataset: str | None = None
    """The dataset that lists the mag, which need not lie in it."""

    def check_free(self) -> None:
        """Make sure that the folder can be written; who else writes is found out at the start."""
        (target,) = self.targets
        if files.isdir(target.folder) and not files.is_writable(target.folder):
            raise PermissionError(13, "the mag cannot be written", target.folder)

    def start(self) -> Report | None:
        """Lock the files and make the job's folder."""
        self.check_free()
        self._job_folder().start("update", self.settings)
        (target,) = self.targets
        try:
            is_same = not isinstance(target, WkwTarget) or read_header(target.folder) == target.header
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
        if self.segmentation is not None and isinstance(made.maximum, int):
            try:
                raise_largest_id(*self.segmentation, made.maximum)
            except PermissionError as error:
                note = "; ".join(filter(None, (note, f"largestSegmentId was not changed: {error}")))
        job_folder = self._job_folder()
        seconds = time.time() - job_folder.started_at()
        job_folder.discard()
        return Report((made,), self.nbytes_in, seconds, note)

    def _job_folder(self) -> JobFolder:
        return JobFolder(self.parent, self.owner, self.folders, self.region, is_kept_for_later=False, datasets=[*filter(None, [self.dataset])])


def lay_out_region(
    url: str | os.PathLike[str], region: BoundingBox, content: Content, stored: WkwOptions, existing: str, *, allow_external: bool = False
) -> StagedRegion:
    """Check and lay out the writing of an array into a part of a mag."""
    check_existing(existing)
    volume = open_volume(url)
    _check_fits(volume, region, content, has_box=_has_box(url))
    layer = locate(url, allow_external=allow_external).pick(None)
    check_inside_dataset(layer, volume.folder)
    folder = real_folder(layer, volume.folder)
    volume = replace(volume, folder=files.realpath(folder) if files.islink(folder) else folder)  # its locks are known by one name
    settings = settings_of(_COMMAND, folder=volume.folder, box=box_setting(region), level=stored.level or 0)
    ranges = cell_range(region, volume.shard_shape)
    shards = ShardBox((ranges[0].start, ranges[1].start, ranges[2].start), (ranges[0].stop, ranges[1].stop, ranges[2].stop))
    check_files_inside(layer, volume.folder, shards)
    parent = dirname(volume.folder)
    draft = stage_array(f"{_COMMAND} {region} of {volume.folder}", parent, volume.folder, settings, existing, replace(content, shards=shards))
    parts = f"{draft.staged(region.mag.long_name)}.parts"
    target = WkwTarget(volume.folder, parts, volume.header, stored.chosen_level, region, is_living=True, merges=True)
    nbytes, dataset = region.volume * volume.header.voxel_nbytes, layer.container.dataset_folder
    return StagedRegion(
        draft.owner, parent, (target,), draft.folders, nbytes, None, draft.settings, existing, goes_on_by_itself=False, not_compared=content.not_compared,
        region=shards, segmentation=(dataset, layer.name) if dataset is not None and layer.category == "segmentation" else None, dataset=dataset,
    )  # fmt: skip


def _has_box(url: str | os.PathLike[str]) -> bool:
    return locate(url).pick(None).container.record is not None


def _check_fits(volume: WkwVolume, region: BoundingBox, content: Content, *, has_box: bool) -> None:
    if region.size != content.shape[1:]:
        raise ValueError(f"the region {region} has the shape {region.size}, the array {content.shape[1:]}")
    if min(region.topleft) < 0 or (has_box and not volume.box.contains(region)):
        raise BoundsError(f"{volume.folder}: the region {region} reaches outside the layer, whose box is {volume.box}")
    if by_dtype(content.dtype).dtype != volume.header.dtype or content.shape[0] != volume.num_channels:
        raise TypeError(
            f"{volume.folder}: holds {volume.num_channels} channels of {volume.dtype.name}, the array is {content.shape[0]} of {np.dtype(content.dtype).name}"
        )
