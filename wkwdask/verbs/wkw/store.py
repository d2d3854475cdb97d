"""Staging a WKW mag that holds the voxels of a volume of another format, block by block, at the same places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import BoundsError
from wkwdask.runs.stage import stage
from wkwdask.verbs.rechunk import Copy, Rechunk, copied
from wkwdask.verbs.wkw.convert import COMMAND, convert_settings, placed
from wkwdask.verbs.wkw.places import place_of
from wkwdask.verbs.wkw.write import check_category, header_for, staged_target

if TYPE_CHECKING:
    from wkwdask.formats.wkw.options import WkwOptions
    from wkwdask.model.volume import Volume


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How the mags of a layer are stored."""

    stored: WkwOptions
    """Blocks, files and compression."""
    category: str
    """What a new layer is."""
    voxel_size_nm: tuple[float, float, float] | None
    """Edge lengths of a voxel of mag 1 [nm]; None where nobody knows."""
    allow_external: bool = False
    """Whether links may lead out of the dataset."""


def check_not_below_zero(source: Volume) -> None:
    """Make sure that WKW has a place for all voxels of a volume."""
    if min(source.box.topleft) < 0:
        raise BoundsError(
            f"{source.name}: begins at voxel {source.box.topleft}, and no voxel of WKW can lie below 0: move it with offset=, or leave that "
            "part out with bounding_box="
        )


def lay_out_store(copy: Copy, url: str, options: StoreOptions, existing: str, workers: int) -> Rechunk:
    """Check and lay out the making of one mag, or find the interrupted job that is to go on."""
    check_category(options.category)
    source = copy.source
    box = source.box
    check_not_below_zero(source)
    header = header_for(options.stored, source.dtype, source.num_channels, box)
    place = place_of(url, allow_external=options.allow_external)
    settings = convert_settings(place, header, box, options.stored.chosen_level) | copy.input
    place, edit = placed(place, header, box, options.category, None, options.voxel_size_nm)
    draft = stage(f"{COMMAND} into {place.folder}", place.layer.folder, [place.folder], settings, existing)
    target = staged_target(draft, header, options.stored.chosen_level, box)
    return copied(copy, draft, draft.mags([target], box.volume * header.voxel_nbytes, edit), workers)
