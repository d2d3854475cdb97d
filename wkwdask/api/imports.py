"""Images and arrays of other formats to WKW."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wkwdask.api.pyramids import build_pyramid
from wkwdask.errors import ExistsError, SectionWarning
from wkwdask.geometry.mag import Mag
from wkwdask.jobs.report import Report, merge_reports
from wkwdask.jobs.wkw_convert import ImportOptions, StagedImport, open_source, stage_import, target_folder
from wkwdask.storage.provenance import read_provenance
from wkwdask.storage.replaceable import is_taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.jobs.places import Place

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def import_images(
    source: Paths, target: str | os.PathLike[str], layer: str | None, mag: Mag | None, options: ImportOptions, existing: str, *, pyramid: bool
) -> Report:
    from wkwdask.graphs import build
    from wkwdask.graphs.runners import num_workers

    if min(options.offset) < 0:
        raise ValueError(f"offset must not be negative, got {options.offset}")
    folder = target_folder(target, layer, mag, options.category or "color")
    voxels, foreign = open_source(source, options, Mag.parse(os.path.basename(folder)))
    if options.category is None and layer is None and voxels.num_channels == 1 and voxels.dtype.kind in "iu" and voxels.dtype.itemsize >= 4:
        folder = target_folder(target, layer, mag, "segmentation")
    for note in foreign.notes:
        warnings.warn(note, SectionWarning, stacklevel=3)
    staged = stage_import(voxels, foreign, folder, options, existing, num_workers())
    stale = staged.place.coarser_mags() if existing == "overwrite" or not is_taken(staged.place.folder) else ()
    try:
        report = build.convert(staged)
    except ExistsError:
        if not pyramid or not _is_done(staged):
            raise
        # The call was interrupted while it built the pyramid, or when all was there.
        return _pyramid_above(staged.place, options, "resume")
    if not pyramid:
        return _with_stale(report, staged.place, stale)
    return merge_reports([report, _pyramid_above(staged.place, options, existing)])


def _pyramid_above(place: Place, options: ImportOptions, existing: Any) -> Report:
    """Build the coarser mags of one that is there now."""
    return build_pyramid(os.path.dirname(place.named or place.folder), finest=place.mag, existing=existing, allow_external=options.allow_external)


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
    return read_provenance(staged.place.folder).get("settings") == staged.staged.settings
