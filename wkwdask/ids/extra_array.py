"""Second array of a segmentation, such as probabilities: its mag is laid out when the blocks are
computed and its type is known, and it is published before the ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import ResumeError
from wkwdask.formats.opening import options_of_target
from wkwdask.formats.replaceable import check_targets, replaces
from wkwdask.geometry.bounding_box import counted_from
from wkwdask.ids.faces import load_table
from wkwdask.ids.segmentation import BlockTable
from wkwdask.ids.stitching import ExtraVoxels, FromBlocksJob
from wkwdask.model.options import make_options
from wkwdask.model.summary import counted
from wkwdask.model.writing.target_image import LevelSpec
from wkwdask.plans.apply import plan_bricks
from wkwdask.plans.regions import Tiling
from wkwdask.runs.drive import Phase
from wkwdask.runs.staged import check_created_once, settings_of
from wkwdask.verbs.sources import TargetRequest, check_no_overlap, stage_level

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.ids.segmentation import Segmentation
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_image import NewLevels, TargetImage
    from wkwdask.runs.staged import StagedMags
    from wkwdask.verbs.sources import SourceVolume

_COMMAND = "segment"
_LIKELY = (np.dtype(np.float32), 1)  # type and channels, to check a target before they are known


def open_extra(
    url: str | os.PathLike[str],
    source: SourceVolume,
    target: TargetImage,
    *,
    allow_external: bool,
) -> TargetImage:
    """Open the target of the second array, whose mag must be that of the ids."""
    options = make_options(options_of_target(url))
    image = TargetRequest(url, options, None, allow_external).target_image(source)
    if image.mag != target.mag:
        raise ValueError(f"{url}: is mag {image.mag}, but the ids are written as mag {target.mag}")
    return image


@dataclass(frozen=True, slots=True)
class ExtraTarget:
    """Mag of the second array of a segmentation."""

    url: str | os.PathLike[str]
    image: TargetImage
    first: Volume
    """Volume whose storage it takes by default."""
    box: BoundingBox
    existing: str
    """``"error"`` or ``"overwrite"``, as the first start of the job decided."""
    workers: int

    def check(self, sources: Sequence[Volume], ids: NewLevels, *, is_resumed: bool) -> None:
        """Check, before the work begins, that the mag can be written. A resumed job may have
        published it."""
        levels = self._levels(*_LIKELY, "overwrite" if is_resumed else self.existing)
        for source in sources:
            check_no_overlap(levels, source)
        if levels.edit is not None:
            levels.edit.check_writable()
        if set(levels.folders) & set(ids.folders):
            raise ValueError(f"{self.url}: is the target of the ids; name another place")
        if not is_resumed:
            listed = listed_folders(levels)
            check_created_once(levels.parent, levels.folders, listed, levels.edit)
            check_targets(listed, self.existing)

    def _levels(self, dtype: np.dtype[Any], channels: int, existing: str) -> NewLevels:
        options = options_of_target(self.url)
        spec = LevelSpec(self.box, options.stored_dtype(dtype), channels)
        return self.image.new_levels([spec], make_options(options), self.first, existing)

    def phases(
        self, segmentation: Segmentation, kind: tuple[str, int], job: str
    ) -> Generator[Phase, str, str]:
        """Write and publish the mag, unless an earlier start of the same job has; return a
        note."""
        dtype, channels = np.dtype(kind[0]), kind[1]
        stage = partial(self._staged, segmentation, dtype, channels, job)
        try:
            staged, extra = stage("overwrite")
        except ResumeError:  # the interrupted job of another segmentation
            if self.existing == "error":
                raise
            staged, extra = stage("restart")
        if not staged.is_finished():
            if self.existing == "error":
                staged, extra = stage("error")
            staged.start()
            try:
                writing = FromBlocksJob(extra, staged.targets[0])
                yield Phase(writing, f"second array into {staged.folders[0]}", staged=staged)
                staged.publish(writing.tallies)
            except BaseException as error:
                staged.suspend(error)
                raise
        target = staged.targets[0]
        what = f"{target.dtype.name} in {counted(channels, 'channel')}"
        return f"second array as {what} in {staged.folders[0]}"

    def _staged(
        self,
        segmentation: Segmentation,
        dtype: np.dtype[Any],
        channels: int,
        job: str,
        existing: str,
    ) -> tuple[StagedMags, ExtraVoxels]:
        """Stage the job of the mag. It belongs to one segmentation and to the results of its
        blocks."""
        levels = self._levels(dtype, channels, existing)
        digest = load_table(segmentation.table_path, BlockTable).digest
        settings = settings_of(f"{_COMMAND} extra", job=job, blocks=digest)
        draft, array = stage_level(levels, f"{_COMMAND} extra", settings, existing)
        tiling = Tiling(
            array.chunk_shape, array.shard_shape, LevelSpec(self.box, dtype, channels).voxel_nbytes
        )
        box = counted_from(self.box, array.origin)
        bricks = plan_bricks(box, tiling, self.workers, None, draft.shape())
        extra = ExtraVoxels(segmentation, bricks, array.origin)
        record = {"region": bricks.region_shape}
        return draft.mags([array], 0, levels.edit, record), extra


def listed_folders(levels: NewLevels) -> list[str]:
    """Return the folders in which readers find levels that are replaced."""
    pairs = zip(levels.targets, levels.folders, strict=True)
    return [target.listed or folder for target, folder in pairs]


def policy(existing: str, before: dict[str, Any] | None) -> str:
    """Return the action for an existing mag that the first start of a job decided."""
    is_replaced = replaces(existing) if before is None else before["replaces_extra"]
    return "overwrite" if is_replaced else "error"
