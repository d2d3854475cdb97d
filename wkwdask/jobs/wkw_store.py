"""Staging a WKW mag that holds the voxels of a volume of another format, block by block, at the same places."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import BoundsError
from wkwdask.geometry.mag import vec3
from wkwdask.jobs.foreign_import import EXISTING
from wkwdask.jobs.places import edit_for, in_new_dataset, place_of
from wkwdask.jobs.rechunk import StagedRechunk
from wkwdask.jobs.staged import StagedMags, check_existing, find_interrupted, settings_of
from wkwdask.jobs.wkw_convert import voxel_size_of_new
from wkwdask.jobs.wkw_mags import box_setting
from wkwdask.jobs.wkw_write import WkwEncoding, check_category, staged_target
from wkwdask.plans.upsample import plan_upsampling
from wkwdask.storage.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.storage.volume import Volume

_COMMAND = "convert"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How the mags of a layer are stored."""

    encoding: WkwEncoding
    """Blocks, files and compression."""
    category: str
    """What a new layer is."""
    voxel_size_nm: tuple[float, float, float] | None
    """Edge lengths of a voxel of mag 1 [nm]; None where nobody knows."""
    allow_external: bool = False
    """Whether links may lead out of the dataset."""


def check_not_below_zero(source: Volume) -> None:
    """Make sure that WKW has a place for all voxels of a volume.

    Raises
    ------
    BoundsError
        It begins below 0.
    """
    if min(source.box.topleft) < 0:
        raise BoundsError(
            f"{source.name}: begins at voxel {source.box.topleft}, and no voxel of WKW can lie below 0: move it with offset= (--offset), or leave that "
            "part out with bounding_box= (--box)"
        )


def stage_store(
    source: Volume, source_settings: dict[str, Any], check_unchanged: Callable[[], None], url: str, options: StoreOptions, existing: str, workers: int
) -> StagedRechunk:
    """Check and lay out the making of one mag, or find the interrupted job that is to go on.

    Parameters
    ----------
    source : Volume
        What is read, in absolute voxels of the mag.
    source_settings : dict
        By what it is known again.
    check_unchanged : callable
        Makes sure, in the end, that it is still the one that was read.
    url : str
        The mag's folder.
    options : StoreOptions
        How it is stored.
    existing : str
        ``"error"``, ``"resume"`` or ``"overwrite"``.
    workers : int
        How many tasks run at once.

    Returns
    -------
    StagedRechunk

    Raises
    ------
    BoundsError
        The volume begins below 0, where WKW has no voxels.
    ResumeError
        Another job that writes the mag was interrupted.
    ValueError
        An option makes no sense, or the layer has another type.
    """
    check_existing(existing, EXISTING)
    check_category(options.category)
    box = source.box
    check_not_below_zero(source)
    header = options.encoding.header(source.dtype, source.num_channels)
    place = place_of(url, allow_external=options.allow_external)
    settings = settings_of(
        _COMMAND, folder=place.folder, box=box_setting(box), dtype=header.dtype.name, channels=header.num_channels, block_len=header.block_len,
        file_len=header.file_len, compression=header.block_type.label, level=options.encoding.level,
    ) | source_settings  # fmt: skip
    size = voxel_size_of_new(place, None, options.voxel_size_nm)
    if size is not None:
        place = in_new_dataset(place, size)
    edit = edit_for(place, header, box, options.category)
    if edit is not None:
        edit = replace(edit, voxel_size_nm=size)
    parent = place.layer.folder
    interrupted = find_interrupted(parent, (place.folder,), settings, existing)
    owner = Owner.this_process(f"{_COMMAND} into {place.folder}", interrupted.job if interrupted is not None else None)
    target = staged_target(owner, parent, header, options.encoding.level, box)
    region = None if interrupted is None else vec3(interrupted.plan["region"])
    plan = plan_upsampling(box, box.mag, target.chunk_shape, target.shard_shape, header.voxel_nbytes, workers, region, source.chunk_shape)
    staged = StagedMags(
        owner, parent, (target,), (place.folder,), box.volume * header.voxel_nbytes, edit, settings, existing, {"region": plan.region_shape}
    )  # fmt: skip
    return StagedRechunk(source, plan, target, staged, check_unchanged)
