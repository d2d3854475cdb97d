"""Images and arrays of other formats to WKW, precomputed volumes, N5 and OME-NGFF."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.api.n5 import with_others
from wkwdask.api.pyramids import build_pyramid
from wkwdask.errors import ExistsError, SectionWarning, ViewerWarning
from wkwdask.formats.precomputed.layer import PREFIX
from wkwdask.formats.replaceable import is_taken
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag
from wkwdask.model.extras import need
from wkwdask.model.levels import ratio_of
from wkwdask.runs.report import Report, merge_reports
from wkwdask.store.paths import basename, dirname
from wkwdask.store.provenance import read_provenance
from wkwdask.verbs.foreign_import import Imported, open_source
from wkwdask.verbs.others.n5_write import lay_out_n5_import, n5_folder, other_levels
from wkwdask.verbs.others.precomputed_import import lay_out_scale_import
from wkwdask.verbs.others.zarr_places import image_place
from wkwdask.verbs.others.zarr_write import lay_out_image_import
from wkwdask.verbs.wkw.convert import lay_out_import, target_folder
from wkwdask.verbs.wkw.write import check_category

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from wkwdask.formats.n5.options import N5Options
    from wkwdask.formats.precomputed.options import PrecomputedOptions
    from wkwdask.formats.zarr.options import ZarrOptions
    from wkwdask.verbs.foreign_import import Import, SourceOptions
    from wkwdask.verbs.wkw.convert import ImportOptions
    from wkwdask.verbs.wkw.places import Place

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def import_images(
    source: Paths, target: str | os.PathLike[str], layer: str | None, mag: Mag | None, options: ImportOptions, existing: str, *, pyramid: bool
) -> Report:
    """Make a WKW mag of images or an array; see :func:`wkwdask.api.conversion.convert`."""
    from wkwdask.graphs.runners import num_workers

    if min(options.taken.offset) < 0:
        raise ValueError(f"offset must not be negative, got {options.taken.offset}")
    folder = target_folder(target, layer, mag, options.category or "color")
    voxels, foreign = open_source(source, options.taken, Mag.parse(basename(folder)))
    if options.category is None and layer is None and voxels.num_channels == 1 and voxels.dtype.kind in "iu" and voxels.dtype.itemsize >= 4:
        folder = target_folder(target, layer, mag, "segmentation")
    staged, place = lay_out_import(voxels, foreign, folder, options, existing, num_workers())
    stale = place.coarser_mags() if existing == "overwrite" or not is_taken(place.folder) else ()
    if pyramid:
        above = dirname(place.named or place.folder)
        return _converted(staged, existing, partial(build_pyramid, above, finest=place.mag, allow_external=options.allow_external))
    return _with_stale(_converted(staged, existing, None), place, stale)


def import_scale(
    source: Paths, target: str | os.PathLike[str], mag: Mag | None, taken: SourceOptions, stored: PrecomputedOptions, kind: str | None, existing: str, *,
    pyramid: bool,
) -> Report:  # fmt: skip
    """Make a scale of a precomputed volume of images or an array; see :func:`wkwdask.api.conversion.convert`."""
    from wkwdask.graphs.runners import num_workers

    staged = lay_out_scale_import(source, target, mag or MAG_1, taken, stored, kind, existing, num_workers())
    return _converted(staged, existing, partial(build_pyramid, PREFIX + staged.staged.folders[0]) if pyramid else None)


def import_level(source: Paths, target: str | os.PathLike[str], taken: SourceOptions, stored: N5Options, existing: str) -> Report:
    """Make the finest level of an N5 group of images or an array; see :func:`wkwdask.api.conversion.convert`."""
    from wkwdask.graphs.runners import num_workers

    imported = Imported(*open_source(source, taken, MAG_1), taken)
    lengths = taken.voxel_size_nm or imported.foreign.voxel_size_nm
    group = n5_folder(target)
    others = other_levels(group, 1, lengths)
    report = _converted(lay_out_n5_import(f"{group}/s0", imported, stored, lengths, existing, num_workers()), existing, None)
    return with_others(report, others)


def import_array(
    source: Paths, target: str | os.PathLike[str], mag: Mag | None, taken: SourceOptions, stored: ZarrOptions, category: str | None, existing: str
) -> Report:
    """Make an array of an OME-NGFF image of images or an array in another format; see :func:`wkwdask.api.conversion.convert`."""
    from wkwdask.graphs.runners import num_workers

    need("zarr", "an OME-NGFF image", "zarr")
    check_category(category)
    its_mag = mag or MAG_1
    imported = Imported(*open_source(source, taken, its_mag), taken)
    found = imported.foreign.voxel_size_nm
    size = taken.voxel_size_nm or (None if found is None or image_place(target).image is not None else ratio_of(found, its_mag.factors))
    is_label = None if category is None else category == "segmentation"
    return _converted(lay_out_image_import(target, imported, size, existing, stored, num_workers(), is_label=is_label), existing, None)


def _converted(staged: Import, existing: Any, build_above: Callable[..., Report] | None) -> Report:
    """Do what is staged, and then perhaps the pyramid above it."""
    from wkwdask.graphs.runners import make

    for notes, category in ((staged.notes, SectionWarning), (staged.warnings, ViewerWarning)):
        for note in notes:
            warnings.warn(note, category, stacklevel=4)
    try:
        report = make(staged)
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
        'build_pyramid(update=True) brings them up to date, existing="overwrite" replaces them'
    )
    return replace(report, note="\n".join(filter(None, [report.note, note])))


def _is_done(staged: Import) -> bool:
    """Tell whether the same import was finished before."""
    return all(read_provenance(folder).get("settings") == staged.staged.settings for folder in staged.staged.folders)
