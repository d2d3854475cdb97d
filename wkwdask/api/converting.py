"""Conversion into any format: of levels of an image, or of images and arrays in files."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.api.pyramids import build_pyramid
from wkwdask.errors import ExistsError, SectionWarning, ViewerWarning
from wkwdask.formats.opening import left_out, local_mags, place_for
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.model.levels import ratio_of
from wkwdask.runs.report import Report, merge_reports
from wkwdask.verbs.foreign_import import Imported, lay_out_import, open_source
from wkwdask.verbs.rechunk import check_alike, lay_out_copy

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    import numpy as np

    from wkwdask.api.options import Existing
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image
    from wkwdask.model.place import Destination
    from wkwdask.verbs.foreign_import import Import, SourceOptions
    from wkwdask.verbs.rechunk import Copy, Rechunk, Taken

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def convert_levels(image: Image, wanted: Destination, taken: Taken, stored: Any, existing: Existing) -> Report:
    """Convert levels of an image to those of another one, each to the same place; with ``taken.finest_only`` a pyramid is built above it."""
    from wkwdask.graphs.runners import make_all, num_workers

    if not image.mags:
        image.volume()  # says why nothing can be used
    mags = taken.mags_of(image.folder, local_mags(image))
    copies = [taken.copy_of(image.volume(mag)) for mag in mags]
    check_alike(copies)
    first, workers = copies[0].source, num_workers()
    is_mag_told = len(mags) > 1 or taken.mags is not None or mags[0] != MAG_1
    wanted = replace(
        wanted, together=tuple(mags), category=wanted.category or image.category, guess=_likely(first.dtype, first.num_channels),
        array_nm=image.voxel_size_nm,
    )  # fmt: skip

    def stage(copy: Copy, mag: Mag, existing: str) -> Rechunk:
        place = place_for(replace(wanted, mag=mag if is_mag_told else None))
        return lay_out_copy(place, copy, stored, existing, workers)

    place = place_for(replace(wanted, mag=mags[0] if is_mag_told else None))
    note = place.unchanged_levels(existing)
    # The finest comes first, so that an image is never without the one that says where it lies.
    report = make_all([partial(stage, copy, mag) for copy, mag in zip(copies, mags, strict=True)], existing, goes_on=taken.finest_only)
    if taken.finest_only:
        url = place.url_of(report.mags[0].path) if report.mags else wanted.url  # there may be a finer one, from which it would be made anew
        report = merge_reports([report, build_pyramid(url, existing=existing, allow_external=wanted.allow_external)])
    left = left_out(image) if taken.mags is None and not taken.finest_only else ""
    return replace(report, note="\n".join(filter(None, [report.note, note, left])))


def convert_images(source: Paths, wanted: Destination, taken: SourceOptions, stored: Any, existing: Existing, *, pyramid: bool) -> Report:
    """Convert images or an array in files to one level of an image."""
    from wkwdask.graphs.runners import num_workers

    place = place_for(wanted)
    voxels, foreign = open_source(source, taken, place.mag)
    found = None if foreign.voxel_size_nm is None else ratio_of(foreign.voxel_size_nm, place.mag.factors)
    place = place_for(replace(wanted, found_nm=found, guess=_likely(voxels.dtype, voxels.num_channels)))
    staged = lay_out_import(place, Imported(voxels, foreign, taken), stored, existing, num_workers())
    note = "" if pyramid else place.unchanged_levels(existing)
    url = place.url_of(staged.staged.folders[0])
    report = _made(staged, existing, partial(build_pyramid, url, allow_external=wanted.allow_external) if pyramid else None)
    return replace(report, note="\n".join(filter(None, [report.note, note])))


def _made(staged: Import, existing: Existing, build_above: Callable[..., Report] | None) -> Report:
    """Do what is staged, and then perhaps the pyramid above it."""
    from wkwdask.graphs.runners import make

    for notes, category in ((staged.notes, SectionWarning), (staged.warnings, ViewerWarning)):
        for note in notes:
            warnings.warn(note, category, stacklevel=5)
    try:
        report = make(staged)
    except ExistsError:
        if build_above is None or not staged.staged.is_finished():
            raise
        # The call was interrupted while it built the pyramid, or when all was there.
        return build_above(existing="resume")
    return report if build_above is None else merge_reports([report, build_above(existing=existing)])


def _likely(dtype: np.dtype[Any], num_channels: int) -> str:
    """Guess what an image is that nobody named: integers of 32 bits and more in one channel are a segmentation."""
    return "segmentation" if dtype.kind in "iu" and dtype.itemsize >= 4 and num_channels == 1 else "color"
