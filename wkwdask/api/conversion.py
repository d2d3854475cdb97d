"""Other formats to WKW and back."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from wkwdask.api.options import StorageKeywords, refuse_options, storage_options
from wkwdask.api.pyramids import build_pyramid
from wkwdask.errors import ExistsError, MissingError, SectionWarning, UnsupportedError, ViewerWarning
from wkwdask.formats.opening import EXPORTED, check_target_name, describe_unusable_levels, find, format_of_target, local_mags, target_for
from wkwdask.formats.pictures.options import TiffOptions
from wkwdask.formats.pictures.sources import HDF5_SUFFIXES
from wkwdask.formats.registry import default_format, format_of, holds_plain_arrays, storage_records
from wkwdask.formats.webknossos.dataset import read_datasource
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.image import mag_or_key
from wkwdask.model.levels import length_nm, ratio_of
from wkwdask.model.options import check
from wkwdask.model.target_image import Destination
from wkwdask.runs.report import Report, merge_reports
from wkwdask.store import files
from wkwdask.store.paths import basename, is_remote, local_path
from wkwdask.verbs.export import check_suffix, lay_out_export
from wkwdask.verbs.image_import import SourceOptions, lay_out_import, open_source
from wkwdask.verbs.rechunk import LayerSelection, check_alike, lay_out_copy
from wkwdask.verbs.sources import VolumeSelection

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from wkwdask.api.options import Existing, MagLike
    from wkwdask.model.image import Image, ResolvedUrl
    from wkwdask.verbs.estimate import ConversionPlan
    from wkwdask.verbs.rechunk import CopySource, Rechunk

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@storage_options(*storage_records())
def convert(
    source: Paths,
    target: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    channels: Sequence[int] | None = None,
    axes: str | None = None,
    dtype: Any = None,
    value_range: tuple[float, float] | None = None,
    offset: Sequence[int] = (0, 0, 0),
    voxel_size: Sequence[float] | None = None,
    unit: str = "nm",
    category: Literal["color", "segmentation"] | None = None,
    pyramid: bool = False,
    on_error: Literal["fail", "fill"] = "fail",
    existing: Literal["error", "resume", "overwrite"] = "error",
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Make a WKW mag, a precomputed volume, N5 or OME-NGFF of images or of an array in another format, or images where the source is WKW.

    Between WKW, N5 and Neuroglancer precomputed volumes, all mags, levels and scales of a layer are converted, with their places and the size of voxels.
    Sections are decoded once each and blocks are encoded at once: there is no uncompressed copy on the way. What is made appears when it is complete. An
    interrupted call goes on from where it was when it is made again.

    Parameters
    ----------
    source : str, path or sequence of them
        A folder of TIFF, PNG or JPEG sections, a pattern such as ``"raw/section_*.tif"`` (both in natural order), a list of images; a TIFF with many pages,
        OME-TIFF, ``.npy``, ``file.h5:/dataset``, a Zarr array or OME-Zarr group, MRC; a Neuroglancer precomputed volume (``precomputed://PATH``, or a URL such
        as ``precomputed://gs://bucket/em``); an N5 group or dataset (``n5://PATH``), or an OME-NGFF image with all its resolutions (``zarr://PATH``). For an
        export a WKW dataset, layer or mag.
    target : str or path
        A dataset, layer or mag (``DATASET/LAYER/MAG``), new or not; a new dataset gets a ``datasource-properties.json``. For an export ``.ome.tif``,
        ``.tif``, ``.npy`` or ``.zarr``; ``precomputed://PATH`` is a precomputed volume, ``.ome.zarr`` or ``zarr://PATH`` an OME-NGFF image of all mags,
        ``n5://PATH`` an N5 group in which ``s0``, ``s1``... appear;
        a name without a suffix, or with ``/`` at its end, becomes a folder with one TIFF for each section, named by its z.
    layer : str, optional
        The layer of the dataset; for a new one by default ``color`` or ``segmentation``.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag that is written, 1 by default, or exported, by default the finest; between WKW, N5 and precomputed volumes by default all.
    bounding_box : BoundingBox, str or sequence, optional
        What is taken over, in mag-1 voxels of the dataset.
    channels : sequence of int, optional
        Which channels, in this order; by default all (red, green and blue are three, alpha is one more).
    axes : str, optional
        Order of the source's axes, such as ``"zyx"``, ``"xyz"``, ``"czyx"`` or ``"zyxc"``, ``-`` for one of length 1. By default what the file says, else
        ``"zyx"`` or ``"czyx"``.
    dtype : dtype_like, optional
        Type of the values; by default that of the source (bits become uint8, half floats float32). Without ``value_range`` a value that does not fit is an
        error.
    value_range : pair of float, optional
        What becomes the least and the greatest value of ``dtype`` (0 and 1 of a float): values are scaled, rounded half to even, and cut off beyond it.
    offset : sequence of 3 int
        Voxel of the mag that the first one of the source becomes; between WKW, N5 and precomputed volumes by what all voxels are moved [voxels of mag 1].
        Below 0 there are no voxels of WKW.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z, for a new dataset; by default what OME-TIFF, MRC, OME-Zarr or HDF5 attributes say.
    unit : str
        Unit of ``voxel_size``, such as ``"nm"`` or ``"um"``.
    category : {"color", "segmentation"}, optional
        What a new layer, or what is made of images in another format, is; by default integers of 32 bits and more in one channel are a segmentation.
    pyramid : bool
        Build the coarser mags too, see :func:`build_pyramid`.
    on_error : {"fail", "fill"}
        Whether a slice of another size or type, one that cannot be decoded, or a gap in the numbers of sections is an error that names it, or becomes zeros,
        which the report names.
    existing : {"error", "resume", "overwrite"}
        What to do where the target already exists. An interrupted job goes on in any case but ``"overwrite"``, which starts anew; of folders, an export
        replaces only those that an export made.
    allow_external : bool
        Write where paths or links lead out of the dataset, and read what links, external storage and virtual datasets of an HDF5 file take from outside of its
        folder; by default both are refused.
    **options
        How the target is stored: options of its format, by default as for new data (``docs/options.md`` describes all of them, as ``wkwdask convert --help``).
        {options}

    Returns
    -------
    Report

    Raises
    ------
    BoundsError
        The source holds no voxels, or the box none of them, or a value does not fit ``dtype`` and there is no ``value_range``.
    ExistsError
        The target is there and ``existing="error"``, or an N5 group has other levels that would not fit.
    FormatError
        A slice or file is broken or not like the others; the message names it, what was found and what was expected.
    LockedError
        Another job writes the target.
    MissingError
        There is no such source, layer or mag, or sections are missing between others.
    ModuleNotFoundError
        A package that reads the format is not installed: it comes with ``pip install 'wkwdask[convert]'``.
    ResumeError
        The interrupted job was started with other settings or from other data.
    TypeError
        WKW has no voxel type for the values.
    UnsupportedError
        The source is of a kind that is not read, takes data from outside of its folder, or is not converted to the target in one step; the target is of a kind
        that is not written; or the layer is not stored as WKW.
    ValueError
        An option is invalid, axes do not fit, the voxel size of a new dataset is not known, or a new layer cannot have its name.

    Notes
    -----
    Of a local OME-NGFF image all levels are taken over, each to where it lies: ``mag`` takes one of them, ``pyramid=True`` the finest alone. A dataset
    whose layers WEBKNOSSOS stores as Zarr is such a source too. The path of one level, or of one mag of such a layer, takes that one, to where it lies.

    A task holds at most 512 MB of the source, whatever the size of sections and volume: of larger slabs, decoded sections wait in a scratch file (LZ4, without
    a name) in the job's folder. A source that changes between two starts is noticed by the size and time of its files; of a Zarr array, by its record alone.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/stack.npy", np.ones((10, 20, 30), np.uint8))
    >>> report = wkwdask.convert(f"{folder}/stack.npy", f"{folder}/ds", layer="color", voxel_size=(4, 4, 35))
    >>> wkwdask.open(f"{folder}/ds").shape
    (1, 30, 20, 10)
    """
    from wkwdask.graphs.runners import planned_export_report, run_work

    if on_error not in ("fail", "fill"):
        raise ValueError(f'on_error must be "fail" or "fill", got {on_error!r}')
    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    if value_range is not None and len(value_range) != 2:
        raise ValueError(f"value_range must be two numbers, the lower and the higher one, got {value_range!r}")
    range_ = None if value_range is None else (float(value_range[0]), float(value_range[1]))
    of_images = {"axes": axes, "on_error": on_error == "fill"}
    size, place = _lengths_nm(voxel_size, unit), vec3(offset, "offset")
    part = VolumeSelection(box, place, None if channels is None else tuple(channels), dtype, range_)
    its_format = format_of_target(target)
    is_dataset = its_format is default_format()
    if is_dataset:
        check_target_name(target)
        check_suffix(target)
    asked = {"category": category, "pyramid": pyramid}
    refuse_options(f"{target} is {its_format.options.title}", {name: asked[name] for name in its_format.unsupported_options})
    if not is_dataset:
        check(its_format.options, **options)  # before anything is opened
    find_it = _find_layers if is_dataset else _find_source
    found = find_it(source, whole_images=not any(of_images.values()))
    chosen, name = (None, layer) if found is None else _choose_layer_of(found, layer)
    if is_dataset and found is not None and (chosen is None or chosen.container is not None or _is_export(target)):
        stored_layer, volume = found.open(layer, mag_or_key(mag))
        for option, is_given in (("axes", axes), ("voxel_size", voxel_size), ("category", category), ("pyramid", pyramid), ("offset", any(offset))):
            if is_given:
                raise ValueError(f"{option} is for what becomes levels of an image, but {volume.name} is exported")
        staged = lay_out_export(volume, target, part, check(TiffOptions, **options), existing, stored_layer.voxel_size_of(volume))
        return planned_export_report(staged) or run_work(staged)
    stored = check(its_format.options, **options)
    wanted = Destination(
        os.fspath(target), layer=name if is_dataset else None, category=category, voxel_size_nm=size, names_image=True, allow_external=allow_external
    )  # fmt: skip
    if found is not None and chosen is not None:
        refuse_options(f"{source} is converted level by level", of_images)
        is_chosen = found.mag is not None or layer is not None or mag is not None or not is_dataset
        only = found.mag if is_chosen else _mag_in(target, chosen.mags)
        taken = LayerSelection(None if mag is None else (Mag.parse(mag),), pyramid, part).only(only, source)
        return _convert_levels(chosen, wanted, taken, stored, existing)
    if is_dataset and _is_export(target) and read_datasource(local_path(target)) is None:
        raise UnsupportedError(f"{target}: is named as images or an array, and {source} is none of the volumes that are exported: convert it to WKW first")
    if not is_dataset:
        refuse_options(f"{target} gets one level of images", {"layer": layer})
    elif min(place) < 0:
        raise ValueError(f"offset must not be negative, got {place}")
    wanted = replace(wanted, mag=None if mag is None else Mag.parse(mag))
    as_images = SourceOptions(part, axes, on_error == "fill", allow_external)
    return _convert_images(source, wanted, as_images, stored, existing, pyramid=pyramid)


def plan_convert(source: Paths, target: str | os.PathLike[str], **options: Any) -> ConversionPlan:
    """Tell what :func:`convert` would do with the same arguments, without writing anything: what ``wkwdask convert --dry-run`` prints.

    Parameters
    ----------
    source, target : str or path
        As for :func:`convert`.
    **options
        As for :func:`convert`.

    Returns
    -------
    ConversionPlan
        For each mag that is made: tasks, files, bytes, memory and time, by a sample of the voxels; its ``str()`` is for people.

    Raises
    ------
    BoundsError, ExistsError, FormatError, LockedError, MissingError, ResumeError, UnsupportedError, ValueError
        As for :func:`convert`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/stack.npy", np.ones((10, 20, 30), np.uint8))
    >>> plan = wkwdask.plan_convert(f"{folder}/stack.npy", f"{folder}/ds", voxel_size=(4, 4, 35))
    >>> plan.files, plan.mags[0].size
    (1, (30, 20, 10))
    """
    from wkwdask.graphs.runners import dry_run, num_workers
    from wkwdask.verbs.estimate import estimate_conversion

    with dry_run() as planned:
        convert(source, target, **options)
    return estimate_conversion(planned.jobs, planned.exports, planned.pyramids, num_workers())


def _mag_in(target: str | os.PathLike[str], mags: Iterable[Mag]) -> Mag | None:
    """Give the mag that a target's name is, where it is one of those that are there."""
    name = basename(os.fspath(target).rstrip("/"))
    return next((mag for mag in mags if name in (mag.name, str(mag))), None)


def _is_export(target: str | os.PathLike[str]) -> bool:
    """Tell whether a target is named as a file of images or an array."""
    return os.fspath(target).lower().endswith(EXPORTED)


def _lengths_nm(voxel_size: Sequence[float] | None, unit: str) -> tuple[float, float, float] | None:
    if voxel_size is None:
        return None
    lengths = [length_nm(float(length), unit) for length in voxel_size]
    if len(lengths) != 3 or not all(math.isfinite(length) and length > 0 for length in lengths):
        raise ValueError(f"voxel_size must be three positive lengths along x, y, z, none of them infinite, got {voxel_size!r}")
    return lengths[0], lengths[1], lengths[2]


def _find_layers(source: Paths, *, whole_images: bool = True) -> ResolvedUrl | None:
    """Find the layers with mags that a source is; None where it is images or an array."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    its_format = format_of(source)
    if holds_plain_arrays(source):
        return find(source) if whole_images and its_format is not None and its_format.is_placed(source) else None
    if its_format not in (None, default_format()):
        return find(source)
    try:
        found = find(source)
    except (MissingError, UnsupportedError, NotADirectoryError):
        return None
    return found if found.layers or found.invalid_layers else None


def _find_source(source: Paths, *, whole_images: bool = True) -> ResolvedUrl | None:
    """Find the layers with mags that a source is, arrays in Zarr among them; None where it is images or an array in a file."""
    if not isinstance(source, (str, os.PathLike)) or (not whole_images and holds_plain_arrays(source)):
        return None
    text = os.fspath(source)
    file, colon, _ = text.rpartition(":")
    if colon and file.lower().endswith(HDF5_SUFFIXES) and files.exists(local_path(file)):
        return None
    try:
        return find(source)
    except (MissingError, NotADirectoryError):
        if not is_remote(text) and (files.exists(local_path(text)) or (files.has_magic(text) and files.matching(local_path(text)))):
            return None
        raise


def _choose_layer_of(found: ResolvedUrl, layer: str | None) -> tuple[Image, str | None]:
    """Choose the layer that becomes WKW or images: that of the name which a new layer gets, if there is one, else the only one."""
    if any(one.container is not None for one in found.layers):
        chosen = found.choose(layer)
        return chosen, layer or chosen.name
    return found.choose(layer if any(one.name == layer for one in found.layers) else None), None if layer is None else layer.rpartition("/")[2]


def _convert_levels(image: Image, wanted: Destination, taken: LayerSelection, stored: Any, existing: Existing) -> Report:
    """Convert levels of an image to those of another one, each to the same place; with ``taken.finest_only`` a pyramid is built above it."""
    from wkwdask.graphs.runners import num_workers, run_plans

    if not image.mags:
        image.volume()  # says why nothing can be used
    mags = taken.mags_of(image.folder, local_mags(image))
    copies = [taken.copy_of(image.volume(mag)) for mag in mags]
    check_alike(copies)
    first, workers = copies[0].source, num_workers()
    is_mag_told = len(mags) > 1 or taken.mags is not None or mags[0] != MAG_1
    wanted = replace(
        wanted, all_mags=tuple(mags), category=wanted.category or image.category, guess=_likely(first.dtype, first.num_channels),
        coordinate_voxel_size_nm=image.voxel_size_nm,
    )  # fmt: skip

    def stage(copy: CopySource, mag: Mag, existing: str) -> Rechunk:
        place = target_for(replace(wanted, mag=mag if is_mag_told else None))
        return lay_out_copy(place, copy, stored, existing, workers)

    place = target_for(replace(wanted, mag=mags[0] if is_mag_told else None))
    note = place.unchanged_levels(existing)
    # The finest comes first, so that an image is never without the one that says where it lies.
    report = run_plans([partial(stage, copy, mag) for copy, mag in zip(copies, mags, strict=True)], existing, goes_on=taken.finest_only)
    if taken.finest_only:
        url = place.url_of(report.mags[0].path) if report.mags else wanted.url  # there may be a finer one, from which it would be made anew
        report = merge_reports([report, build_pyramid(url, existing=existing, allow_external=wanted.allow_external)])
    left = describe_unusable_levels(image) if taken.mags is None and not taken.finest_only else ""
    return replace(report, note="\n".join(filter(None, [report.note, note, left])))


def _convert_images(source: Paths, wanted: Destination, taken: SourceOptions, stored: Any, existing: Existing, *, pyramid: bool) -> Report:
    """Convert images or an array in files to one level of an image."""
    from wkwdask.graphs.runners import num_workers, run_plan

    place = target_for(wanted)
    imported = open_source(source, taken, place.mag)
    voxels, lengths_nm = imported.source, imported.foreign.voxel_size_nm
    found = None if lengths_nm is None else ratio_of(lengths_nm, place.mag.factors)
    place = target_for(replace(wanted, source_voxel_size_nm=found, guess=_likely(voxels.dtype, voxels.num_channels)))
    staged = lay_out_import(place, imported, stored, existing, num_workers())
    note = "" if pyramid else place.unchanged_levels(existing)
    url = place.url_of(staged.staged.folders[0])
    for notes, kind in ((staged.notes, SectionWarning), (staged.warnings, ViewerWarning)):
        for text in notes:
            warnings.warn(text, kind, stacklevel=3)
    try:
        report = run_plan(staged)
    except ExistsError:
        if not pyramid or not staged.staged.is_finished():
            raise
        # The call was interrupted while it built the pyramid, or when all was there.
        return build_pyramid(url, existing="resume", allow_external=wanted.allow_external)
    if pyramid:
        report = merge_reports([report, build_pyramid(url, existing=existing, allow_external=wanted.allow_external)])
    return replace(report, note="\n".join(filter(None, [report.note, note])))


def _likely(dtype: np.dtype[Any], num_channels: int) -> str:
    """Guess what an image is that nobody named: integers of 32 bits and more in one channel are a segmentation."""
    return "segmentation" if dtype.kind in "iu" and dtype.itemsize >= 4 and num_channels == 1 else "color"
