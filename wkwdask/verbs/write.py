"""Writing of an array in memory, or of its pieces in scratch files, to a new mag or to a region of
an existing one; without dask.

A shard that is too large for one task is encoded in parts, which a further task joins.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import BoundsError, IncompleteWriteError, ReplacedError
from wkwdask.formats.container import container_of
from wkwdask.formats.opening import format_of_image
from wkwdask.formats.record_paths import OWNER_NAME, RecordPaths, job_folders
from wkwdask.formats.roots import level_job_folders, root_of
from wkwdask.geometry.bounding_box import BoundingBox, counted_from, part_of_array
from wkwdask.geometry.grid import cell_range, cells, clipped_cell
from wkwdask.geometry.vectors import divide, times
from wkwdask.model.placement import plain_name
from wkwdask.model.states import FILE_RECORD_NAME
from wkwdask.model.summary import counted
from wkwdask.model.volume import voxel_nbytes
from wkwdask.model.voxel_type import common_dtype
from wkwdask.model.writing.target_array import InPlaceWrite
from wkwdask.model.writing.target_image import LevelSpec
from wkwdask.runs.drive import Outcome, Phase, Plan
from wkwdask.runs.garbage import is_replaced
from wkwdask.runs.job import Result, Task
from wkwdask.runs.job_folder import JobFolder, Publisher
from wkwdask.runs.parts import ReceiptCollector, ShardTally, read_scratch
from wkwdask.runs.report import Report
from wkwdask.runs.staged import (
    StagedMags,
    check_existing,
    finish_interrupted_publication,
    settings_of,
    stage_array,
)
from wkwdask.store import by_path
from wkwdask.store.leases import fenced_by
from wkwdask.store.locks import ShardBox, guarded
from wkwdask.store.paths import is_bucket
from wkwdask.store.records import merge_file_record
from wkwdask.store.store import store_at
from wkwdask.verbs.sources import box_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.writing.receipts import Receipt
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.model.writing.target_image import TargetImage
    from wkwdask.runs.parts import ScratchPiece
    from wkwdask.runs.staged import ArrayContent

PART_NBYTES = 128 << 20
_REGION = "to_wkw region"


def part_of(target: TargetArray, part: Vec3, part_shape: Vec3) -> tuple[Vec3, Vec3 | None]:
    """Return the shard of a part and the name of the part, None for a part that is a whole
    shard."""
    return divide(
        times(part, part_shape), target.shard_shape
    ), None if part_shape == target.shard_shape else part


def encode_part(
    target: TargetArray, part: Vec3, part_shape: Vec3, voxels: npt.NDArray[Any], topleft: Vec3
) -> Receipt:
    """Encode the voxels of one part and store them."""
    shard, name = part_of(target, part, part_shape)

    def encode(target: TargetArray) -> Receipt:
        writer = target.open_part(shard, name)
        try:
            writer.append(voxels, topleft)
            return writer.close()
        except BaseException:
            writer.discard()
            raise

    return target.swapped(encode)


@dataclass(frozen=True, slots=True)
class PartSpec:
    """Task that encodes one part."""

    target: TargetArray
    part: Vec3
    """Index of the part in the grid of parts."""
    part_shape: Vec3
    content: npt.NDArray[Any] | tuple[ScratchPiece, ...]
    """Voxels, shape (c, x, y, z), or the pieces in scratch files that are not zero."""

    def task(self) -> Task:
        return Task(
            f"part {self.part} of mag {self.target.box.mag}",
            "part {},{},{}".format(*self.part),
            PartSpec.run,
            self,
        )

    def run(self) -> Result:
        """Assemble the part if it is given in pieces, then encode and store it."""
        target, voxels = self.target, self.content
        box = clipped_cell(self.part, self.part_shape, target.box)
        if isinstance(voxels, tuple):
            pieces, voxels = (
                voxels,
                np.zeros((target.num_channels, *box.size), target.dtype, order="F"),
            )
            for piece in pieces:
                part_of_array(voxels[slice(*piece.channels)], piece.box, box.topleft)[...] = (
                    read_scratch(piece, target.dtype)
                )
        return Result(
            ((0, encode_part(target, self.part, self.part_shape, voxels, box.topleft)),),
            nbytes_in=voxels.nbytes,
        )


class WriteJob:
    """Job that writes one mag from an array, or from its pieces in scratch files."""

    def __init__(
        self,
        target: TargetArray,
        content: npt.NDArray[Any] | Iterable[ScratchPiece],
        record: Callable[[Receipt], None],
        done: Collection[Vec3] = (),
        part_shape: Vec3 | None = None,
    ) -> None:
        self._target, self._content, self._record = target, content, record
        self._part_shape = part_shape or target.part_shape(PART_NBYTES)
        self._collector = ReceiptCollector([target])
        self._pieces: dict[Vec3, list[ScratchPiece]] = {}
        if not isinstance(content, np.ndarray):
            for piece in content:
                self._pieces.setdefault(piece.part, []).append(piece)
        self._shards = [
            shard for shard in cells(target.box, target.shard_shape) if shard not in done
        ]
        num_joins = len(self._shards) if self._part_shape != target.shard_shape else 0
        self.num_tasks = sum(self._num_parts(0, shard) for shard in self._shards) + num_joins

    def _parts(self, shard: Vec3) -> Iterator[Vec3]:
        box = self._target.box
        return cells(clipped_cell(shard, self._target.shard_shape, box), self._part_shape)

    def _num_parts(self, level: int, shard: Vec3) -> int:
        return sum(1 for _ in self._parts(shard))

    def _content_of(self, part: Vec3) -> npt.NDArray[Any] | tuple[ScratchPiece, ...]:
        if not isinstance(self._content, np.ndarray):
            return tuple(self._pieces.get(part, ()))
        box = self._target.box
        return part_of_array(self._content, clipped_cell(part, self._part_shape, box), box.topleft)

    def tasks(self) -> Iterator[Task]:
        parts = (part for shard in self._shards for part in self._parts(shard))
        return (
            PartSpec(self._target, part, self._part_shape, self._content_of(part)).task()
            for part in parts
        )

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Record a receipt; return the join of a shard whose parts are complete."""
        for _, receipt in result.receipts:
            if receipt.part is None:
                self._record(receipt)
        return self._collector.add(task, result, self._num_parts)


@dataclass(frozen=True, slots=True)
class Creation(Plan):
    """Plan of an empty mag."""

    staged: StagedMags

    def phases(self) -> Generator[Phase, str, Outcome]:
        yield from ()
        return Outcome([ShardTally(self.staged.targets[0], 0)])


def lay_out_write(
    target: TargetImage,
    topleft: Vec3,
    content: ArrayContent,
    options: Any,
    existing: str,
    command: str,
) -> tuple[StagedMags, tuple[Warning, ...]]:
    """Plan the write of an array as one level; return the staged level and warnings for the
    user."""
    check_existing(existing)
    spec = LevelSpec(
        BoundingBox(topleft, content.shape[1:], target.mag), content.dtype, content.shape[0]
    )
    levels = target.new_levels([spec], options, existing=existing)
    (folder,) = levels.folders
    settings = {**settings_of(command, folder=folder, box=spec.box), **levels.settings}
    draft = stage_array(
        f"{command} into {folder}", levels.parent, folder, settings, existing, content
    )
    staged = draft.mags(
        draft.staged_levels(levels),
        spec.nbytes,
        levels.edit,
        resumes_automatically=False,
        ignored_settings=content.ignored_settings,
    )
    return staged, levels.warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRegion(StagedMags):
    """Staged write into a region of an existing level."""

    region: ShardBox | None = None
    """Shards that the region touches."""
    dataset: str | None = None
    """Dataset that lists the level, which may lie elsewhere."""
    volume: StoredArray | None = None
    """The level as it was opened."""
    is_level: bool = True
    """Whether a document lists it; an array that belongs to no image has none."""

    def check_free(self) -> None:
        """Check that the folder is writable. Other writers are found when the job takes its
        locks."""
        (target,) = self.targets
        store = store_at(target.folder)
        if store.is_folder() and not store.is_writable():
            raise PermissionError(errno.EACCES, "the mag cannot be written", target.folder)

    def start(self) -> Report | None:
        """Lock the shards and create the job's folder."""
        self.check_free()
        self._job_folder().start("update", self.settings, resumed_by=self.resumed_by)
        (target,) = self.targets
        try:
            if self.volume is not None and not self.volume.is_current():
                raise IncompleteWriteError(
                    f"{target.folder}: was replaced before the locks were taken; start again"
                )
            self._check_listed()
            target.prepare()
        except BaseException:
            self.discard()
            raise
        return None

    def publish(self, tallies: Sequence[ShardTally], note: str = "") -> Report:
        """Check that every shard was written, record the files, and end the job."""
        (tally,), folder = tallies, self.targets[0].folder
        tally.check()
        self._check_listed()
        with guarded(self.parent):  # other jobs may write other shards and update the same record
            # left by a job that was killed while it wrote the record
            if not is_bucket(folder):
                by_path.remove_temporaries(folder, FILE_RECORD_NAME)
            merge_file_record(folder, tally.shards)
        report = tally.report(folder, whole=False)
        job_folder = self._job_folder()
        if self.edit is not None and isinstance(report.maximum, int):
            try:
                with fenced_by(job_folder.owner.lease):
                    self.edit.with_maxima((report.maximum,), is_new_content=False).apply()
            except PermissionError as error:
                note = "; ".join(filter(None, (note, f"{self.edit.kind} was not changed: {error}")))
        seconds = job_folder.seconds()
        job_folder.discard()
        return Report((report,), self.nbytes_in, seconds, note)

    def _check_listed(self) -> None:
        """Check that the level in a bucket was not replaced by one of another name."""
        folder = self.targets[0].folder
        if self.is_level and is_replaced(folder):
            raise ReplacedError(f"{folder}: was replaced since it was opened; open it again")

    def _job_folder(self) -> JobFolder:
        return JobFolder(
            self.parent,
            self.owner,
            self.folders,
            self.region,
            is_kept_for_later=False,
            datasets=[*filter(None, [self.dataset])],
        )


def lay_out_region(
    image: Image,
    volume: StoredArray,
    region: BoundingBox,
    content: ArrayContent,
    level: int | str | None,
    existing: str,
) -> StagedRegion:
    """Plan the write of an array into a region of a level."""
    check_existing(existing)
    _check_fits(image, volume, region, content)
    its_format, existing_level = format_of_image(image), image.level_of(volume)
    assert existing_level is not None
    parent, folder = level_job_folders(image, existing_level)
    # one path for the locks of all jobs
    store = store_at(folder)
    folder = store.real() if store.link_target() else folder
    settings = settings_of(_REGION, folder=folder, box=box_setting(region), level=level or 0)
    ranges = cell_range(
        counted_from(region, volume.origin),
        its_format.in_place_target(volume, InPlaceWrite(folder, "", region)).shard_shape,
    )
    root = root_of(image)
    root.check_links(folder, volume.files.nested_names(region))
    shards = ShardBox(
        (ranges[0].start, ranges[1].start, ranges[2].start),
        (ranges[0].stop, ranges[1].stop, ranges[2].stop),
    )
    if any(Publisher(RecordPaths(root)).is_prepared for root, _ in job_folders(parent)):
        finish_interrupted_publication(parent, folder, _REGION, root.folder)
        raise ReplacedError(
            f"{folder}: completed a killed job that was replacing the mag; start again"
        )
    draft = stage_array(
        f"{_REGION} {region} of {folder}",
        parent,
        # the name by which a job that replaces the level knows it
        plain_name(folder),
        settings,
        existing,
        replace(content, shards=shards),
    )
    target = its_format.in_place_target(
        volume,
        InPlaceWrite(
            folder,
            f"{draft.staged(region.mag.long_name)}.parts",
            region,
            merges=True,
            level=level,
            record=draft.staged(OWNER_NAME),
        ),
    )
    nbytes = voxel_nbytes(volume, region)
    return StagedRegion(
        owner=draft.owner,
        parent=parent,
        targets=(target,),
        folders=draft.folders,
        nbytes_in=nbytes,
        edit=container_of(image).partial_write_edit(image),
        settings=draft.settings,
        existing=existing,
        resumes_automatically=False,
        ignored_settings=content.ignored_settings,
        resumed_by=draft.resumed_by,
        region=shards,
        dataset=root.folder,
        volume=volume,
        is_level=image.folder != existing_level.folder,
    )


def _check_fits(
    image: Image, volume: StoredArray, region: BoundingBox, content: ArrayContent
) -> None:
    if region.size != content.shape[1:]:
        raise ValueError(
            f"the region {region} has shape {region.size}, the array has {content.shape[1:]}"
        )
    has_box = not image.is_layer or image.stated_box is not None
    if (not has_box and min(region.topleft) < 0) or (has_box and not volume.box.contains(region)):
        raise BoundsError(
            f"{volume.name}: the region {region} reaches outside the layer, whose box is "
            f"{volume.box}"
        )
    dtype = np.dtype(content.dtype)
    # a bool or half-float level also accepts the wider type in which other formats store its values
    if (
        dtype.newbyteorder("=") not in (volume.dtype, common_dtype(volume.dtype))
        or content.shape[0] != volume.num_channels
    ):
        raise TypeError(
            f"{volume.name}: holds {counted(volume.num_channels, 'channel')} of "
            f"{volume.dtype.name}, the array is {content.shape[0]} of {dtype.name}"
        )
