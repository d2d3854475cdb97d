"""Images and arrays of other formats to WKW and precomputed volumes."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.api.pyramids import build_pyramid
from wkwdask.errors import ExistsError, SectionWarning, ViewerWarning
from wkwdask.geometry.mag import Mag
from wkwdask.jobs.foreign_import import open_source
from wkwdask.jobs.precomputed_import import stage_scale_import
from wkwdask.jobs.report import Report, merge_reports
from wkwdask.jobs.wkw_convert import stage_import, target_folder
from wkwdask.storage.provenance import read_provenance
from wkwdask.storage.replaceable import is_taken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wkwdask.jobs.foreign_import import SourceOptions, StagedImport
    from wkwdask.jobs.places import Place
    from wkwdask.jobs.precomputed_scales import ScaleOptions
    from wkwdask.jobs.wkw_convert import ImportOptions

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def import_images(
    source: Paths, target: str | os.PathLike[str], layer: str | None, mag: Mag | None, options: ImportOptions, existing: str, *, pyramid: bool
) -> Report:
    """Make a WKW mag of images or an array; see :func:`wkwdask.api.conversion.convert`.

    Raises
    ------
    ValueError
        The mag would begin below 0, or an option makes no sense.
    """
    from wkwdask.graphs.runners import num_workers

    if min(options.taken.offset) < 0:
        raise ValueError(f"offset must not be negative, got {options.taken.offset}")
    folder = target_folder(target, layer, mag, options.category or "color")
    voxels, foreign = open_source(source, options.taken, Mag.parse(os.path.basename(folder)))
    if options.category is None and layer is None and voxels.num_channels == 1 and voxels.dtype.kind in "iu" and voxels.dtype.itemsize >= 4:
        folder = target_folder(target, layer, mag, "segmentation")
    staged, place = stage_import(voxels, foreign, folder, options, existing, num_workers())
    stale = place.coarser_mags() if existing == "overwrite" or not is_taken(place.folder) else ()
    if pyramid:
        above = os.path.dirname(place.named or place.folder)
        return _converted(staged, existing, partial(build_pyramid, above, finest=place.mag, allow_external=options.allow_external))
    return _with_stale(_converted(staged, existing, None), place, stale)


def import_scale(
    source: Paths, target: str | os.PathLike[str], mag: Mag | None, taken: SourceOptions, stored: ScaleOptions, kind: str | None, existing: str, *,
    pyramid: bool,
) -> Report:  # fmt: skip
    """Make a scale of a precomputed volume of images or an array; see :func:`wkwdask.api.conversion.convert`."""
    from wkwdask.graphs.runners import num_workers

    staged = stage_scale_import(source, target, mag or Mag(1, 1, 1), taken, stored, kind, existing, num_workers())
    return _converted(staged, existing, partial(build_pyramid, target) if pyramid else None)


def _converted(staged: StagedImport, existing: Any, build_above: Callable[..., Report] | None) -> Report:
    """Do what is staged, and then perhaps the pyramid above it."""
    from wkwdask.graphs import build

    for notes, category in ((staged.notes, SectionWarning), (staged.warnings, ViewerWarning)):
        for note in notes:
            warnings.warn(note, category, stacklevel=4)
    try:
        report = build.convert(staged)
    except ExistsError:
        if build_above is None or not _is_done(staged):
            raise
        # The call was interrupted while it built the pyramid, or when all was there.
        return build_above(existing="resume")
    return report if build_above is None else merge_reports([report, build_above(existing=existing)])


def _with_stale(report: Report, place: Place, mags: Sequence[Mag]) -> Report:
    """Say in a report which mags a new one does not change."""
    if not mags:
        return report
    note = (
        f"coarser mags that are there are not changed: {', '.join(mag.name for mag in mags)}; "
        f"wkwdask pyramid {place.folder} --update (or --overwrite) brings them up to date"
    )
    return replace(report, note="\n".join(filter(None, [report.note, note])))


def _is_done(staged: StagedImport) -> bool:
    """Tell whether the same import was finished before."""
    return all(read_provenance(folder).get("settings") == staged.staged.settings for folder in staged.staged.folders)
