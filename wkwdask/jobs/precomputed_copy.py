"""Staging scales that hold the voxels of other volumes: another scale of a precomputed volume, or a mag of any format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.formats.precomputed.info_edits import scale_entry
from wkwdask.geometry.mag import vec3
from wkwdask.jobs.precomputed_places import volume_place
from wkwdask.jobs.precomputed_write import stage_scales, type_at
from wkwdask.jobs.rechunk import StagedRechunk
from wkwdask.jobs.staged import check_existing, find_interrupted, settings_of
from wkwdask.plans.rechunk import plan_splicing
from wkwdask.plans.upsample import plan_upsampling
from wkwdask.storage.owner import Owner
from wkwdask.storage.precomputed_splice import can_splice
from wkwdask.storage.translated import in_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.jobs.precomputed_write import VolumeType
    from wkwdask.plans.regions import RegionGrid
    from wkwdask.storage.volume import Volume

EXISTING = ("error", "resume", "overwrite")
_COMPARED_NBYTES = 64 << 20  # voxels that are compared at once


@dataclass(frozen=True, slots=True)
class ScaleCopy:
    """One scale that is to hold the voxels of a volume."""

    source: Volume
    """What is read, in absolute voxels."""
    scale: Scale
    """How it is stored."""
    input: dict[str, Any]
    """By what the source is known again."""
    check_unchanged: Callable[[], None]
    """Makes sure, in the end, that the source is still the one that was read."""


def stage_copy(
    url: str,
    kind: str,
    copy: ScaleCopy,
    command: str,
    existing: str,
    workers: int,
    *,
    in_place: bool = False,
    compress: str | None = None,
    force: bool = False,
) -> tuple[StagedRechunk, list[str]]:  # fmt: skip
    """Check and lay out the making of one scale, or find the interrupted job that is to go on.

    Parameters
    ----------
    url : str
        The volume in which the scale appears.
    kind : str
        ``"image"`` or ``"segmentation"``.
    copy : ScaleCopy
        What goes where.
    command : str
        What a user asked for.
    existing : str
        ``"error"``, ``"resume"`` or ``"overwrite"``.
    workers : int
        How many tasks run at once.
    in_place : bool
        Whether the scale replaces its own source.
    compress : str, optional
        How chunks that are files of their own are compressed.
    force : bool
        Whether a segmentation may be encoded in a way that changes ids.

    Returns
    -------
    StagedRechunk, list of str
        And what a user should know.

    Raises
    ------
    ResumeError
        Another job that writes the scale was interrupted.
    UnsupportedError
        The target is remote, or the scale's folder outside of it.
    ValueError
        Some reader would stumble over the scale, or the volume is of another type.
    """
    check_existing(existing, EXISTING)
    place = volume_place(url)
    volume: VolumeType = type_at(place, copy.source.dtype, copy.source.num_channels, kind)
    scale = replace(copy.scale, key=place.key_for(copy.scale.resolution))
    folder = place.folder_of(scale.key)
    settings = {**settings_of(command, type=kind, compress=compress), **copy.input, "scale": scale_entry(scale)}
    interrupted = find_interrupted(place.folder, [folder], settings, existing)
    owner = Owner.this_process(f"{command} into {folder}", interrupted.job if interrupted is not None else None)
    voxel_nbytes = volume.num_channels * volume.dtype.itemsize
    mag = copy.source.box.mag
    staged, notes = stage_scales(
        place, volume, [(scale, mag)], owner, copy.source.box.volume * voxel_nbytes, settings, "overwrite" if in_place else existing,
        compress=compress, force=force,
    )  # fmt: skip
    target: Any  # a PrecomputedTarget
    (target,) = staged.targets
    region = None if interrupted is None else vec3(interrupted.plan["region"])
    source = in_frame(copy.source, target.origin)
    plan: RegionGrid
    if can_splice(source, target):
        splicing = plan_splicing(target.box, source.shard_shape, target.shard_shape, voxel_nbytes, workers, region)
        plan = replace(splicing, brick_shape=target.part_shape(_COMPARED_NBYTES))
    else:
        plan = plan_upsampling(target.box, mag, target.chunk_shape, target.shard_shape, voxel_nbytes, workers, region, copy.source.chunk_shape)
    staged = replace(staged, plan={"region": plan.region_shape})
    return StagedRechunk(source, plan, target, staged, copy.check_unchanged, in_place), notes
