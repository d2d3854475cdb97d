"""Writing an array as one level of an image, whatever the format."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ViewerWarning
from wkwdask.formats.opening import open_living, place_for
from wkwdask.geometry.bounding_box import voxel_box
from wkwdask.model.levels import ratio_of
from wkwdask.runs.job_records import holds_only_jobs
from wkwdask.store.paths import dirname, local_path
from wkwdask.verbs.write import lay_out_region, lay_out_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.model.place import Destination


@dataclass(frozen=True, slots=True)
class Saving:
    """How an array is saved, whatever the format."""

    command: str
    """What a user asked for."""
    existing: str
    """What to do where the level already exists."""
    token: str | None
    """A name of the array's content."""
    region: BoundingBox | Sequence[Sequence[int]] | None = None
    """The part of a level that is there; None where a level is made."""


def _lay_out_part(array: Any, wanted: Destination, options: Any, saving: Saving, **others: Any) -> Any:
    """Check and lay out the writing of an array into a part of a level that is there; gives what is staged, the voxels and what is trusted."""
    from wkwdask.api.array_input import content_of, plain_array

    level = getattr(options, "level", None)
    given = {"category": wanted.category, **others, **options.given(), **({"level": None} if options.writes_level else {})}
    refused = [name for name, value in given.items() if value is not None]
    if refused:
        raise ValueError(f"region= writes into a mag as it is; {', '.join(refused)}= goes with making a new one")
    assert saving.region is not None
    voxels, _ = plain_array(array, (0, 0, 0))
    content = content_of(voxels, saving.token)
    image, volume = open_living(wanted.url, wanted.mag, allow_external=wanted.allow_external)
    staged = lay_out_region(image, volume, voxel_box(saving.region, volume.box.mag), content, level, saving.existing)
    return staged, voxels, content.trusted


def lay_out_save(array: Any, offset: Sequence[int] | None, wanted: Destination, voxel_size: Sequence[float] | None, options: Any, saving: Saving) -> Any:
    """Check and lay out the writing of an array; gives what is staged, the voxels and what is trusted."""
    from wkwdask.api.array_input import content_of, plain_array, positive_lengths

    if saving.region is not None:
        return _lay_out_part(array, wanted, options, saving, offset=offset, voxel_size=voxel_size)
    voxels, named = plain_array(array, offset, allow_negative=wanted.needs_container)
    content = content_of(voxels, saving.token)
    size = None if voxel_size is None else positive_lengths(voxel_size)
    wanted = replace(wanted, voxel_size_nm=size, category=wanted.category or named.category)
    is_room = not wanted.needs_container and named.lengths_nm is not None and holds_only_jobs(dirname(dirname(local_path(wanted.url))))
    place = place_for(replace(wanted, is_room=is_room))
    if size is None and named.lengths_nm is not None:
        place = replace(place, wanted=replace(place.wanted, array_nm=ratio_of(named.lengths_nm, place.mag.factors)))  # type: ignore[type-var]
    staged, notes = lay_out_write(place, named.offset, content, options, saving.existing, saving.command)
    for note in notes:
        warnings.warn(note, ViewerWarning, stacklevel=4)
    return staged, voxels, content.trusted
