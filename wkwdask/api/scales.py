"""Storing scales of Neuroglancer precomputed volumes anew."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.api.options import items_of
from wkwdask.errors import ViewerWarning
from wkwdask.formats.precomputed.layer import PREFIX, location_of, open_precomputed_layer
from wkwdask.formats.precomputed.place import volume_place
from wkwdask.formats.precomputed.writable import is_lossy
from wkwdask.model.image import mag_or_key
from wkwdask.model.place import Destination, LevelSpec
from wkwdask.runs.report import Report, merge_reports
from wkwdask.runs.staged import finish_what_was_left
from wkwdask.store import files
from wkwdask.verbs.rechunk import Copy, copy_into
from wkwdask.verbs.sources import check_not_replaced, known_by

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.api.options import MagLike
    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.options import PrecomputedOptions
    from wkwdask.model.image import Image, Level
    from wkwdask.model.place import NewLevels
    from wkwdask.verbs.rechunk import Rechunk


def rechunk_scales(
    url: str | os.PathLike[str],
    target: str | os.PathLike[str] | None,
    mags: Sequence[MagLike] | str | None,
    existing: str,
    verify: bool | None,
    stored: PrecomputedOptions,
    *,
    goes_on: bool = False,
) -> Report:
    """Store scales of a precomputed volume anew; see :func:`wkwdask.api.reshape.rechunk`. ``goes_on`` says that the call does more then."""
    from wkwdask.graphs.batch import check_can_be_repeated
    from wkwdask.graphs.runners import existing_of_call, make, num_workers

    layer = open_precomputed_layer(url)
    folder = layer.folder if target is None else location_of(target)
    in_place = files.realpath(folder) == files.realpath(layer.folder)
    if in_place:
        for level in _chosen(layer, mags):
            finish_what_was_left(folder, f"{folder}/{level.key}", "rechunk")
        layer = open_precomputed_layer(url)
    workers = num_workers()

    def lay_out(level: Level, existing: str) -> NewLevels:
        source = level.open()
        place = volume_place(Destination(PREFIX + folder, category=layer.category))
        return place.new_levels([LevelSpec.like(source)], stored, source, "overwrite" if in_place else existing)

    def stage(level: Level, existing: str) -> Rechunk:
        source = level.open()
        copy = Copy(source, known_by(source), partial(check_not_replaced, source))
        staged = copy_into(copy, lay_out(level, existing), existing, workers, "rechunk")
        return replace(staged, in_place=in_place, staged=replace(staged.staged, existing="overwrite")) if in_place else staged

    levels = _chosen(layer, mags)
    if in_place and stored.compression is None:
        levels = [level for level in levels if _is_other(level.details, lay_out(level, existing), stored)]
    check_can_be_repeated(len(levels), starts_anew=existing == "overwrite" and not in_place)
    if not in_place:
        existing = existing_of_call([partial(stage, level) for level in levels], existing, goes_on=goes_on)
    reports = []
    for level in levels:
        staged, scale = stage(level, existing), level.details
        target_scale: Any = staged.target
        _warn(staged.notes)
        encoding = target_scale.scale.encoding
        loses = staged.decodes and is_lossy(encoding, target_scale.scale.options.get("jxl_quality"))
        if loses and encoding == scale.encoding:
            _warn([f"scale {scale.key!r} is decoded and encoded as {encoding} once more, which changes its voxels"], UserWarning)
        compares = in_place and not loses
        reports.append(make(replace(staged, verify=compares if verify is None else verify)))
    return merge_reports(reports) if reports else Report((), 0, 0.0, "nothing to do: all scales are stored like that")


def _is_other(scale: Scale, levels: NewLevels, stored: PrecomputedOptions) -> bool:
    """Tell whether a scale is to be stored in another way than it is."""
    target: Any = levels.targets[0]
    new: Scale = target.scale
    return scale != (new if stored.chunk_shape else replace(new, chunk_sizes=scale.chunk_sizes))


def _chosen(layer: Image, mags: Sequence[MagLike] | str | None) -> list[Level]:
    """List the scales that a user means: by their mags or keys, else all."""
    if mags is not None:
        return [layer.find(mag_or_key(mag)) for mag in items_of(mags)]
    for level in layer.levels:
        if level.problem:
            level.open()  # says it
    return list(layer.meant)


def _warn(notes: Sequence[str], category: type[Warning] = ViewerWarning) -> None:
    for note in notes:
        warnings.warn(note, category, stacklevel=4)
