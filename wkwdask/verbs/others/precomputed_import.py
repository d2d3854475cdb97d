"""Staging a source of another format as one scale of a precomputed volume."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wkwdask.formats.precomputed.info_edits import scale_entry
from wkwdask.model.levels import lengths_in
from wkwdask.runs.stage import stage
from wkwdask.runs.staged import settings_of
from wkwdask.verbs.foreign_import import Import, Imported, SourceOptions, imported_mag, open_source
from wkwdask.verbs.others.precomputed_places import volume_place
from wkwdask.verbs.others.precomputed_write import lay_out_scales, new_scale, resolution_for, type_at

if TYPE_CHECKING:
    import os

    from wkwdask.formats.precomputed.options import PrecomputedOptions
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.levels import Lengths
    from wkwdask.verbs.others.precomputed_places import VolumePlace

_COMMAND = "convert"


def lay_out_scale_import(
    source: Any, url: str | os.PathLike[str], mag: Mag, taken: SourceOptions, stored: PrecomputedOptions, kind: str | None, existing: str, workers: int
) -> Import:
    """Check and lay out the import of one scale, or find the interrupted job that is to go on."""
    place = volume_place(url)
    imported = Imported(*open_source(source, taken, mag), taken)
    voxels = imported.source
    volume = type_at(place, voxels.dtype, voxels.num_channels, kind)
    resolution = resolution_for(place, mag, _lengths(place, mag, taken.voxel_size_nm, imported.foreign.voxel_size_nm))
    scale = new_scale(stored, place.key_for(resolution), voxels.box, resolution, volume)
    folder = place.folder_of(scale.key)
    settings = settings_of(_COMMAND, folder=folder, type=volume.kind, dtype=volume.dtype.name, channels=volume.num_channels, compress=stored.file_compression)
    settings |= {**imported.settings, "scale": scale_entry(scale)}
    draft = stage(f"{_COMMAND} into {folder}", place.folder, [folder], settings, existing)
    nbytes_in = voxels.box.volume * volume.num_channels * volume.dtype.itemsize
    staged, warnings = lay_out_scales(place, volume, [(scale, mag)], draft, nbytes_in, stored)
    return replace(imported_mag(imported, draft, staged, workers), warnings=tuple(warnings))


def _lengths(place: VolumePlace, mag: Mag, given: Lengths | None, found: Lengths | None) -> Lengths | None:
    """Give the edge lengths of a voxel of the mag [nm]: as a user says, else as the source says of a new volume; those of one that is there are known."""
    if given is not None:
        return lengths_in(mag, given)
    return found if place.info is None or not place.info.scales else None
