"""Staging scales that hold the voxels of other volumes: another scale of a precomputed volume, or a mag of any format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.formats.precomputed.info_edits import scale_entry
from wkwdask.formats.precomputed.target import can_splice
from wkwdask.runs.stage import stage
from wkwdask.runs.staged import settings_of
from wkwdask.verbs.others.precomputed_places import volume_place
from wkwdask.verbs.others.precomputed_write import lay_out_scales, type_at
from wkwdask.verbs.rechunk import Copy, copied

if TYPE_CHECKING:
    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.options import PrecomputedOptions
    from wkwdask.verbs.others.precomputed_write import VolumeType
    from wkwdask.verbs.rechunk import Rechunk


@dataclass(frozen=True, slots=True)
class ScaleCopy(Copy):
    """One scale that is to hold the voxels of a volume."""

    scale: Scale
    """How it is stored."""


def lay_out_copy(
    url: str, kind: str, copy: ScaleCopy, stored: PrecomputedOptions, command: str, existing: str, workers: int, *, in_place: bool = False
) -> Rechunk:
    """Check and lay out the making of one scale, or find the interrupted job that is to go on."""
    place = volume_place(url)
    volume: VolumeType = type_at(place, copy.source.dtype, copy.source.num_channels, kind)
    scale = replace(copy.scale, key=place.key_for(copy.scale.resolution))
    folder = place.folder_of(scale.key)
    settings = {**settings_of(command, type=kind, compress=stored.file_compression), **copy.input, "scale": scale_entry(scale)}
    draft = stage(f"{command} into {folder}", place.folder, [folder], settings, existing)
    nbytes_in = copy.source.box.volume * volume.num_channels * volume.dtype.itemsize
    staged, notes = lay_out_scales(place, volume, [(scale, copy.source.box.mag)], draft, nbytes_in, stored, existing="overwrite" if in_place else existing)
    return replace(copied(copy, draft, staged, workers, can_splice), in_place=in_place, notes=tuple(notes))
