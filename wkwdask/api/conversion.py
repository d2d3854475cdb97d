"""Convert images, arrays and volumes between formats."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from wkwdask.api.options import StorageKeywords, refuse_options, storage_options
from wkwdask.api.pyramids import build_pyramid
from wkwdask.errors import ExistsError, MissingError, SectionWarning, UnsupportedError
from wkwdask.formats.opening import (
    check_target_name,
    describe_unusable_levels,
    explain_missing,
    find,
    format_of_image,
    format_of_target,
    is_dataset,
    is_export,
    options_of_target,
    single_file_of,
    target_for,
)
from wkwdask.formats.plain_arrays import contains_plain_arrays, format_with_axes, is_placed
from wkwdask.formats.registry import default_format, format_of, storage_records
from wkwdask.formats.replaceable import replaces
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.image import mag_or_key
from wkwdask.model.levels import length_nm, ratio_of
from wkwdask.model.options import make_options
from wkwdask.model.store import Conflict
from wkwdask.model.summary import counted, format_nbytes
from wkwdask.model.volume import voxel_nbytes
from wkwdask.model.voxel_type import guess_category
from wkwdask.model.writing.target_image import Destination
from wkwdask.runs.calls import same_call
from wkwdask.runs.job_records import SCRATCH_NAME
from wkwdask.runs.report import Report, merge_reports
from wkwdask.runs.space import limited_size
from wkwdask.runs.staged import join_interrupted_call
from wkwdask.store import by_path
from wkwdask.store.leases import check_conditions
from wkwdask.store.looks import looking
from wkwdask.store.paths import basename, dirname, is_bucket, is_remote, local_path, split
from wkwdask.store.store import store_at
from wkwdask.verbs.export import check_suffix, lay_out_export, lay_out_packing
from wkwdask.verbs.image_import import (
    SourceOptions,
    lay_out_import,
    names_array_in_file,
    open_source,
)
from wkwdask.verbs.rechunk import LayerSelection, check_alike, lay_out_copy
from wkwdask.verbs.sources import VolumeSelection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from wkwdask.api.options import Existing, MagLike
    from wkwdask.formats.format import SingleFile
    from wkwdask.model.image import Image, ResolvedUrl
    from wkwdask.runs.calls import Call
    from wkwdask.verbs.estimate import ConversionPlan
    from wkwdask.verbs.rechunk import CopySource, Rechunk

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@storage_options(*storage_records(exports=True))
@looking()
def convert(
    source: Paths,
    target: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    channels: Sequence[int] | None = None,
    axes: str | None = None,
    index: Mapping[str, int] | None = None,
    dtype: Any = None,
    value_range: tuple[float, float] | None = None,
    offset: Sequence[int] | None = None,
    voxel_size: Sequence[float] | None = None,
    unit: str = "nm",
    category: Literal["color", "segmentation"] | None = None,
    pyramid: bool = False,
    on_error: Literal["fail", "fill"] = "fail",
    strict_box: bool = False,
    verify: bool = False,
    existing: Literal["error", "resume", "overwrite", "restart"] = "error",
    allow_external: bool = False,
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Convert images, arrays and volumes to WKW and other formats, or export WKW as images.

    Between WKW, N5, OME-NGFF and Neuroglancer precomputed volumes, all mags (levels, scales) of a
    layer are converted with their positions and voxel sizes. Chunks are copied without decoding
    where both formats encode them alike. From WKW to OME-NGFF this is the default: blocks become
    chunks, unless a storage option is given. Each section of images is decoded once, and blocks are
    encoded directly, without an uncompressed copy on disk. The target is published when it is
    complete. The same call resumes an interrupted conversion.

    Parameters
    ----------
    source : str, path or sequence of them
        Source of the voxels:

        - a folder of TIFF, PNG or JPEG sections, a pattern such as ``"raw/section_*.tif"`` (both in
          natural order), or a list of images;
        - a multi-page TIFF, OME-TIFF, ``.npy``, ``file.h5:/dataset``, MRC, NIfTI, a Zarr array or
          OME-Zarr group;
        - a Neuroglancer precomputed volume (``precomputed://PATH``, or a URL such as
          ``precomputed://gs://bucket/em``), an N5 group or dataset (``n5://PATH``), or an OME-NGFF
          image with all its resolutions (``zarr://PATH``);
        - a WKW dataset, layer or mag, to export it.
    target : str or path
        Target of the conversion:

        - a new or existing dataset, layer or mag (``DATASET/LAYER/MAG``); a new dataset gets a
          ``datasource-properties.json``. A layer that a dataset stores as Zarr or N5 becomes the
          mag or layer that the path names, and in a dataset a layer of the same name;
        - ``precomputed://PATH``, a precomputed volume; ``.ome.zarr`` or ``zarr://PATH``, an
          OME-NGFF image of all mags; ``.ozx``, the same in one zip; ``n5://PATH``, an N5 group with
          the datasets ``s0``, ``s1``...;
        - to export a mag: ``.ome.tif``, ``.tif``, ``.npy`` or ``.zarr``; a name without a suffix,
          or with a trailing ``/``, becomes a folder with one TIFF per section, named by its z.
    layer : str, optional
        The layer of the dataset; a new layer is called ``color`` or ``segmentation`` by default.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag to write, 1 by default, or to export, by default the finest. Between volumes with
        several mags, all are converted by default.
    bounding_box : BoundingBox, str or sequence, optional
        Part to convert: x, y, z, width, height, depth [voxels of mag 1 of the dataset].
    channels : sequence of int, optional
        Channels to convert, in this order; by default all. Red, green and blue are three channels,
        alpha is a fourth.
    axes : str, optional
        Order of the source's axes, such as ``"zyx"``, ``"xyz"``, ``"czyx"`` or ``"zyxc"``; ``-``
        stands for an axis of length 1. By default the order that the file states, else ``"zyx"`` or
        ``"czyx"``. Arrays of N5 list x first.
    index : mapping of str to int, optional
        Index along each further axis of an OME-NGFF image or Zarr array, such as ``{"t": 3}``.
    dtype : dtype_like, optional
        Data type of the target; by default that of the source. Bits and half floats of images
        become uint8 and float32; so do bool and float16 of Zarr in a format that lacks them, and
        the plan and the report say so. Without ``value_range``, a value that does not fit raises an
        error.
    value_range : pair of float, optional
        Values that become the minimum and maximum of ``dtype`` (0 and 1 for floats). Values between
        them are scaled and rounded half to even, others are clipped. NaN becomes the minimum.
    offset : sequence of 3 int, optional
        Position of the first voxel of images or of an array in the mag; by default that which an
        HDF5 file of CREMI states, else 0. Between volumes with several mags, the translation of all
        voxels [voxels of mag 1], 0 by default. WKW has no negative positions.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z, for a new dataset; by default those stated
        by OME-TIFF, MRC, NIfTI, OME-Zarr or HDF5 attributes.
    unit : str
        Unit of ``voxel_size``, such as ``"nm"`` or ``"um"``.
    category : {"color", "segmentation"}, optional
        Category of a new layer, or of images that become another format; by default integers of 32
        bits and more in one channel are a segmentation.
    pyramid : bool
        Also build the coarser mags, see :func:`build_pyramid`. For WKW and precomputed volumes;
        for N5 and OME-NGFF, call it afterwards.
    on_error : {"fail", "fill"}
        Treatment of sections that are missing from the numbering, cannot be decoded, or have
        another size or type: raise an error that names the section, or fill it with zeros and name
        it in the report.
    strict_box : bool
        Leave out voxels outside of the bounding box that blocks of WKW contain when these are
        copied to OME-NGFF. Then blocks that cross the box are decoded. By default such voxels are
        copied, and the report says so if a check of some blocks finds any. With ``bounding_box``
        they are always left out.
    verify : bool
        Decode all voxels of source and target and compare them before a mag is published. By
        default copied chunks are not decoded, only checked: the lengths inside of LZ4 blocks and
        the sizes of uncompressed chunks must add up. Not for images, whose sections are decoded
        anyway.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the target exists. An interrupted job is resumed, except with ``"restart"``, which
        starts over and replaces like ``"overwrite"``. An export replaces a folder only if an export
        made it.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset, and reading HDF5 data through
        links, external storage or virtual datasets outside the file's folder; both are refused by
        default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    **options
        Storage options of the target's format, by default those of new data. ``docs/options.md``
        and ``wkwdask convert --help`` describe them.
        {options}

    Returns
    -------
    Report

    Raises
    ------
    BoundsError
        The source has no voxels, the box does not touch it, or a value does not fit ``dtype``
        without a ``value_range``.
    ExistsError
        The target exists and ``existing="error"``, or an N5 group has other levels that would not
        fit.
    FormatError
        A section or file is broken or differs from the others; the message names it, what was found
        and what was expected.
    LockedError
        Another job is writing the target.
    MissingError
        The source, layer or mag does not exist, or a section is missing.
    ModuleNotFoundError
        A package that reads the format is not installed; ``pip install 'wkwdask[convert]'``
        installs it.
    ResumeError
        The interrupted job was started with other settings or from other data.
    TypeError
        WKW has no voxel type for the values.
    UnsupportedError
        The source's format cannot be read, the source refers to data outside its folder, or it
        cannot be converted to the target in one step; the target's format cannot be written; or the
        layer is stored in a format that is unknown here.
    ValueError
        An option is invalid, axes do not fit, the voxel size of a new dataset is unknown, or the
        name of a new layer is invalid.

    Notes
    -----
    All levels of a local OME-NGFF image are converted, each at its own position: ``mag`` selects
    one of them, ``pyramid=True`` converts only the finest and builds the others. The same holds for
    a dataset with layers that WEBKNOSSOS stores as Zarr. The path of a single level or mag converts
    that one.

    A task holds at most 512 MB of the source, independent of the size of sections and volume.
    Decoded sections of larger slabs wait in an unnamed scratch file (LZ4) in the job's folder. A
    source that changed between two calls is detected by the sizes and times of its files; a Zarr
    array by its metadata only.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/stack.npy", np.ones((10, 20, 30), np.uint8))
    >>> report = wkwdask.convert(
    ...     f"{folder}/stack.npy", f"{folder}/ds", layer="color", voxel_size=(4, 4, 35)
    ... )
    >>> wkwdask.open(f"{folder}/ds").shape
    (1, 30, 20, 10)
    """
    from wkwdask.graphs.runners import run_plan

    if voxel_size is None and unit != "nm":
        raise ValueError(f"unit= is that of voxel_size=, which is not given, got {unit!r}")
    single_file = single_file_of(target)
    if single_file is not None:
        convert_to = (
            _convert_to_object if is_bucket(dirname(single_file.path)) else _convert_to_single_file
        )
        return convert_to(
            source,
            single_file,
            existing,
            layer=layer,
            mag=mag,
            bounding_box=bounding_box,
            channels=channels,
            axes=axes,
            index=index,
            dtype=dtype,
            value_range=value_range,
            offset=offset,
            voxel_size=voxel_size,
            unit=unit,
            category=category,
            pyramid=pyramid,
            on_error=on_error,
            strict_box=strict_box,
            verify=verify,
            allow_external=allow_external,
            force_space=force_space,
            **options,
        )
    if on_error not in ("fail", "fill"):
        raise ValueError(f'on_error must be "fail" or "fill", got {on_error!r}')
    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    low_and_high = _parse_range(value_range)
    if channels is not None and (isinstance(channels, str) or not hasattr(channels, "__len__")):
        raise TypeError(f"channels must be a sequence of whole numbers, got {channels!r}")
    image_options = {"axes": axes, "on_error": on_error == "fill"}
    size = _lengths_nm(voxel_size, unit)
    position = None if offset is None else vec3(offset, "offset")
    chosen = None if channels is None else tuple(channels)
    part = VolumeSelection(box, position or (0, 0, 0), chosen, dtype, low_and_high)
    target_format = format_of_target(target)
    is_wkw = target_format is default_format()
    if is_wkw:
        check_target_name(target)
        check_suffix(target)
    image_settings = {"category": category, "pyramid": pyramid}
    if pyramid and "pyramid" in target_format.options.unsupported:
        raise ValueError(
            f"{target} is {target_format.options.title}: pyramid= is not for it; build_pyramid() "
            "makes the coarser mags afterwards"
        )
    refuse_options(
        f"{target} is {target_format.options.title}",
        {name: image_settings[name] for name in target_format.options.unsupported},
    )
    if not is_wkw:
        # report invalid options before the source is opened
        make_options(target_format.options, **options)
    # Three routes: export one mag of a volume as images; copy the levels of an image to the same
    # positions; import images or an array as one level. The options axes and on_error only apply to
    # images, so they select the third route for a source that could be either, such as a Zarr
    # array.
    find_levels = _find_layers if is_wkw else _find_source
    resolved = (
        None
        if axes is not None and format_with_axes(source) is not None
        else find_levels(source, index, whole_images=not any(image_options.values()))
    )
    if resolved is None and index is not None:
        because = "axes= names all of its axes" if axes else "it is read as images or an array"
        raise ValueError(f"{source}: index= does not apply, since {because}")
    image, new_layer, source_layer = (
        (None, layer, None) if resolved is None else _choose_layer_of(resolved, layer)
    )
    is_same_format = image is None or format_of_image(image) is target_format
    if is_wkw and resolved is not None and (is_same_format or is_export(target)):
        stored_layer, volume = resolved.open(layer, mag_or_key(mag))
        _check_export(
            f"{target}: {volume.name}",
            axes=axes,
            voxel_size=voxel_size,
            category=category,
            pyramid=pyramid,
            offset=any(position or ()),
            on_error=on_error == "fill",
        )
        refuse_options(f"{target} would be exported as images", {"verify": verify})
        export = lay_out_export(
            volume, target, part, options, existing, stored_layer.voxel_size_of(volume)
        )
        return run_plan(export, force_space=force_space)
    storage = make_options(options_of_target(target, new_layer), **options)
    destination = Destination(
        os.fspath(target),
        layer=new_layer if is_wkw else None,
        source_layer=source_layer,
        category=category,
        voxel_size_nm=size,
        names_image=True,
        allow_external=allow_external,
        keeps_files=not (is_wkw or strict_box or box is not None),
    )
    if resolved is not None and image is not None:
        refuse_options(f"{source} is converted level by level", image_options)
        selects_mag = (
            resolved.mag is not None
            or new_layer is not None
            or mag is not None
            or not is_wkw
            or is_dataset(target)
        )
        only_mag = resolved.mag if selects_mag else _mag_in(target, image.mags)
        selection = LayerSelection(None if mag is None else (Mag.parse(mag),), pyramid, part).only(
            only_mag, source
        )
        return _convert_levels(
            image, destination, selection, storage, existing, verify=verify, force_space=force_space
        )
    if is_wkw and is_export(target) and not is_dataset(target):
        raise UnsupportedError(
            f"{target}: named as images or an array, and {source} is not a volume that can be "
            "exported; convert it to WKW first"
        )
    refuse_options(f"{source} is read as images or an array", {"verify": verify})
    if not is_wkw:
        refuse_options(f"{target} gets one level of images", {"layer": layer})
    elif position is not None and min(position) < 0:
        raise ValueError(f"offset must not be negative, got {position}")
    destination = replace(destination, mag=None if mag is None else Mag.parse(mag))
    source_options = SourceOptions(part, position, axes, on_error == "fill", allow_external)
    return _convert_images(
        source,
        destination,
        source_options,
        storage,
        existing,
        pyramid=pyramid,
        force_space=force_space,
    )


def _convert_to_single_file(
    source: Paths,
    single_file: SingleFile,
    existing: Existing,
    *,
    force_space: bool,
    stored_at: str | None = None,
    **selection: Any,
) -> Report:
    """Pack an image unchanged, or convert to an image in the folder of a job and pack that;
    ``stored_at`` is the URL of the object that the file becomes."""
    from wkwdask.graphs.runners import is_dry_run, run_plan

    path = single_file.path
    single_file.check(selection)
    unchanged = None
    if isinstance(source, (str, os.PathLike)) and not _changes_voxels(selection):
        named = format_of(source)
        if named is not None and not is_remote(os.fspath(source)):
            location = named.url_name.location(source)
            unchanged = location if single_file.can_pack(location) else None
    if is_dry_run() and unchanged is not None:
        raise UnsupportedError(
            f"{path}: gets the files of {unchanged} unchanged, so there is nothing to estimate"
        )
    made: list[Report] = []

    def build(scratch: str) -> str:
        if unchanged is not None:
            return unchanged
        folder = single_file.folder_in(scratch)
        # the same call resumes also if it was interrupted between the last level and the file
        url, policy = single_file.url_of(folder), existing if replaces(existing) else "resume"
        made.append(convert(source, url, existing=policy, force_space=force_space, **selection))
        return folder

    scratch = f"{dirname(path)}/{SCRATCH_NAME}"
    if stored_at is not None:
        _check_object(stored_at, unchanged, lambda: build(scratch))
        made.clear()
    if is_dry_run():
        build(scratch)
        return made[0]
    settings = {"source": source, **selection}
    packing = lay_out_packing(single_file, build, settings, existing)
    with (
        contextlib.nullcontext()
        if stored_at is None
        else limited_size(partial(_check_nbytes, stored_at, "has already"))
    ):
        report = run_plan(packing, force_space=force_space)
    if unchanged is not None and packing.num_files:
        files = f"{counted(packing.num_files, 'file')} of {unchanged}, unchanged"
        note = f"{path}: {files}, {format_nbytes(report.nbytes_out)}"
        return replace(report, mags=(), note=note)
    if not made:  # an interrupted call had packed it
        return report
    mags = tuple(
        replace(mag, path=single_file.path_inside(mag.path, packing.packed)) for mag in made[0].mags
    )
    note = made[0].note.replace(packing.packed, single_file.path_inside("", ""))
    return replace(made[0], mags=mags, seconds=report.seconds, note=note)


def _check_object(url: str, unchanged: str | None, build: Callable[[], object]) -> None:
    """Raise UnsupportedError before an image is built that is too large to be one object."""
    from wkwdask.graphs.runners import dry_run, num_workers
    from wkwdask.verbs.estimate import estimate_conversion

    if unchanged is not None:
        nbytes = by_path.count_tree(unchanged)[1]
        _check_nbytes(url, f"{unchanged} has", nbytes)
        return
    with dry_run() as planned:
        build()
    targets = (target for job in planned.jobs for target in job.staged.targets)
    # with a pyramid, which at most doubles it, and without compression
    if by_path.is_too_large(url, 2 * sum(voxel_nbytes(target, target.box) for target in targets)):
        plan = estimate_conversion(planned.jobs, planned.pyramids, num_workers())
        _check_nbytes(url, "has, by a sample of its voxels, about", plan.nbytes_out)


def _check_nbytes(url: str, what: str, nbytes: int) -> None:
    remedy = "write it to a disk, and copy it with the tool of the provider"
    by_path.check_object_nbytes(url, nbytes, what, remedy)


def _convert_to_object(
    source: Paths, single_file: SingleFile, existing: Existing, **selection: Any
) -> Report:
    """Build a file on this machine, and store it as one new object of a bucket."""
    from wkwdask.graphs.runners import is_dry_run

    path = single_file.path
    folder, name = split(path)
    check_conditions(folder)
    store = store_at(folder).snapshot("")
    if store.states([name]) != [None] and not replaces(existing):
        raise ExistsError(f'{path}: already exists; existing="overwrite" replaces it whole')
    scratch = by_path.scratch_folder(path)
    local = single_file.at(f"{scratch}/{name}")
    try:
        policy: Existing = existing if replaces(existing) else "overwrite"
        report = _convert_to_single_file(source, local, policy, stored_at=path, **selection)
        if not is_dry_run():
            by_path.upload(local.path, store, name)
    except Conflict:
        raise ExistsError(f"{path}: another process has written it meanwhile") from None
    except Exception as error:
        error.add_note(f"the same call continues with what is in {scratch}")
        raise
    by_path.delete_tree(scratch)
    if is_dry_run():
        return report
    mags = tuple(replace(mag, path=mag.path.replace(local.path, path)) for mag in report.mags)
    return replace(report, mags=mags, note=report.note.replace(local.path, path))


def _changes_voxels(selection: Mapping[str, Any]) -> bool:
    """Return whether options of :func:`convert` ask for another part, type or storage than that of
    the source."""
    neutral = {
        "offset": (0, 0, 0),
        "unit": "nm",
        "on_error": "fail",
        "pyramid": False,
        "strict_box": False,
        "verify": False,
        "allow_external": False,
    }
    # options without a neutral value may be arrays, which are not compared
    return any(
        value is not None
        and (name not in neutral or (tuple(value) if name == "offset" else value) != neutral[name])
        for name, value in selection.items()
    )


def plan_convert(source: Paths, target: str | os.PathLike[str], **options: Any) -> ConversionPlan:
    """Estimate the work of :func:`convert` for the same arguments, without writing anything.

    ``wkwdask convert --dry-run`` prints the same plan.

    Parameters
    ----------
    source, target : str or path
        As for :func:`convert`.
    **options
        As for :func:`convert`.

    Returns
    -------
    ConversionPlan
        Tasks, files, bytes, memory and time of each new mag, estimated from a sample of the voxels.
        ``print()`` shows it as text.

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
    """  # noqa: E501
    from wkwdask.graphs.runners import dry_run, num_workers
    from wkwdask.verbs.estimate import estimate_conversion

    with dry_run() as planned:
        convert(source, target, **options)
    plan, single_file = (
        estimate_conversion(planned.jobs, planned.pyramids, num_workers()),
        single_file_of(target),
    )
    return plan if single_file is None else plan.placed(partial(_in_file, single_file))


def _in_file(single_file: SingleFile, path: str) -> str:
    """Return the path in a new file of a level that is first made in a scratch folder."""
    scratch, image, _ = path.partition(single_file.folder_in(""))
    return single_file.path_inside(path, f"{scratch}{image}") if image else path


def _check_export(what: str, **given: Any) -> None:
    """Raise ValueError if an option is given that does not apply to the export of images."""
    for option, is_given in given.items():
        if is_given:
            raise ValueError(
                f"{what} would be exported as images, to which {option}= does not apply; copy and "
                "rechunk store WKW as WKW"
            )


def _mag_in(target: str | os.PathLike[str], mags: Iterable[Mag]) -> Mag | None:
    """Return the mag that the last part of a target names, None if it is not one of ``mags``."""
    name = basename(os.fspath(target).rstrip("/"))
    return next((mag for mag in mags if name in (mag.name, str(mag))), None)


def _parse_range(value_range: Sequence[float] | None) -> tuple[float, float] | None:
    if value_range is None:
        return None
    try:
        low, high = map(float, value_range)
    except (TypeError, ValueError):
        raise ValueError(
            f"value_range must be two numbers, the lower and the higher one, got {value_range!r}"
        ) from None
    return low, high


def _lengths_nm(voxel_size: Sequence[float] | None, unit: str) -> tuple[float, float, float] | None:
    if voxel_size is None:
        return None
    try:
        given = [float(length) for length in voxel_size]
    except (TypeError, ValueError):
        given = []
    lengths = [length_nm(length, unit) for length in given]
    if len(lengths) != 3 or not all(math.isfinite(length) and length > 0 for length in lengths):
        raise ValueError(
            f"voxel_size must be three positive, finite lengths along x, y, z, got {voxel_size!r}"
        )
    return lengths[0], lengths[1], lengths[2]


def _find_layers(
    source: Paths, index: Mapping[str, int] | None, *, whole_images: bool
) -> ResolvedUrl | None:
    """Find the layers of a source with mags; None if the source is images or an array."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    its_format = format_of(source)
    if contains_plain_arrays(source):
        is_image = whole_images and (index is not None or is_placed(source))
        return find(source, index=index) if is_image else None
    if its_format not in (None, default_format()):
        return find(source, index=index)
    try:
        resolved = find(source, index=index)
    except (MissingError, UnsupportedError, NotADirectoryError):
        return None
    return resolved if resolved.layers or resolved.invalid_layers else None


def _find_source(
    source: Paths, index: Mapping[str, int] | None, *, whole_images: bool
) -> ResolvedUrl | None:
    """Find the layers of a source with mags, including Zarr arrays; None if the source is images or
    an array in a file."""
    if not isinstance(source, (str, os.PathLike)) or (
        not whole_images and contains_plain_arrays(source)
    ):
        return None
    text = os.fspath(source)
    if names_array_in_file(text):
        return None
    try:
        return find(source, index=index)
    except (MissingError, NotADirectoryError):
        if not is_remote(text) and (
            store_at(local_path(text)).exists()
            or (by_path.has_magic(text) and by_path.matching(local_path(text)))
        ):
            return None
        raise


def _choose_layer_of(
    resolved: ResolvedUrl, layer: str | None
) -> tuple[Image, str | None, str | None]:
    """Choose the layer to convert; return it, the name of the new layer if ``layer`` states it, and
    its name in a dataset.

    ``layer`` selects a layer of a dataset: the new one is in the path of the target, or has the
    same name. It also selects an image of any other source that has one of this name. Else it only
    names the new layer, and the source must have a single layer.
    """
    if any(one.is_layer for one in resolved.layers):
        image = resolved.choose(layer)
        return image, None, image.name
    image = resolved.choose(layer if any(one.name == layer for one in resolved.layers) else None)
    return image, None if layer is None else layer.rpartition("/")[2], None


def _convert_levels(
    image: Image,
    destination: Destination,
    selection: LayerSelection,
    storage: Any,
    existing: Existing,
    *,
    verify: bool,
    force_space: bool,
) -> Report:
    """Convert levels of an image to levels of another image at the same positions; with
    ``selection.finest_only``, build the pyramid from the finest."""
    from wkwdask.graphs.runners import num_workers, run_plans

    if not image.mags:
        image.volume()  # raises the error that explains why no mag can be used
    if selection.mags is None:
        image.check_finest()
    mags = selection.mags_of(image.folder, list(image.mags))
    volumes = list(map(image.volume, mags))
    selection = replace(
        selection,
        part=selection.part.stored_by(
            options_of_target(destination.url, destination.layer).stored_dtype, volumes[0].dtype
        ),
    )
    copies = list(map(selection.copy_of, volumes))
    check_alike(copies)
    first, workers = copies[0].source, num_workers()
    names_mag = len(mags) > 1 or selection.mags is not None or mags[0] != MAG_1
    destination = replace(
        destination,
        levels=tuple(copy.spec for copy in copies),
        category=destination.category or image.category,
        guessed_category=guess_category(first.dtype, first.num_channels),
        coordinate_voxel_size_nm=image.voxel_size_nm,
        image=image,
    )

    def stage(copy: CopySource, mag: Mag, existing: str) -> Rechunk:
        target_image = target_for(replace(destination, mag=mag if names_mag else None))
        return replace(lay_out_copy(target_image, copy, storage, existing, workers), verify=verify)

    target_image = target_for(replace(destination, mag=mags[0] if names_mag else None))
    note = target_image.unchanged_levels_note(existing)
    build = partial(
        build_pyramid, allow_external=destination.allow_external, force_space=force_space
    )
    with same_call() as call:
        # The finest level is written first: the position of the image follows from it, and an
        # interrupted conversion must not leave an image without it.
        stages = [partial(stage, copy, mag) for copy, mag in zip(copies, mags, strict=True)]
        report = run_plans(
            stages, existing, force_space=force_space, has_later_steps=selection.finest_only
        )
        if selection.finest_only:
            # Name the mag just written: the target may hold a finer mag, and a pyramid of the whole
            # layer would start from that one.
            url = target_image.url_of(report.mags[0].path) if report.mags else destination.url
            report = merge_reports([report, build(url, existing=_policy(existing, call))])
    unusable = (
        describe_unusable_levels(image)
        if selection.mags is None and not selection.finest_only
        else ""
    )
    return replace(report, note="\n".join(filter(None, [report.note, note, unusable])))


def _convert_images(
    source: Paths,
    destination: Destination,
    source_options: SourceOptions,
    storage: Any,
    existing: Existing,
    *,
    pyramid: bool,
    force_space: bool,
) -> Report:
    """Convert images or an array in files to one level of an image."""
    from wkwdask.graphs.runners import accepting_own, num_workers, run_plan

    target_image = target_for(destination)
    try:
        imported = open_source(
            source,
            source_options,
            target_image.mag,
            options_of_target(destination.url, destination.layer).stored_dtype,
        )
    except MissingError:
        if isinstance(source, (str, os.PathLike)):
            explain_missing(source)
        raise
    voxels, lengths_nm = imported.source, imported.plain.voxel_size_nm
    source_voxel_size_nm = (
        None if lengths_nm is None else ratio_of(lengths_nm, target_image.mag.factors)
    )
    guessed_category = guess_category(voxels.dtype, voxels.num_channels)
    target_image = target_for(
        replace(
            destination,
            source_voxel_size_nm=source_voxel_size_nm,
            guessed_category=guessed_category,
        )
    )
    staged = lay_out_import(target_image, imported, storage, existing, num_workers())
    note = "" if pyramid else target_image.unchanged_levels_note(existing)
    url = target_image.url_of(staged.staged.published[0])
    for warning in (*map(SectionWarning, staged.notes), *staged.warnings):
        warnings.warn(warning, stacklevel=4)
    build = partial(
        build_pyramid, allow_external=destination.allow_external, force_space=force_space
    )
    with same_call() as call:
        if existing == "overwrite" and pyramid:
            join_interrupted_call([staged.staged])
        try:
            report = run_plan(
                accepting_own(staged, existing) if pyramid else staged, force_space=force_space
            )
        except ExistsError:
            if not pyramid or not staged.staged.is_finished():
                raise
            # The mag is finished: an earlier call was interrupted while it built the pyramid, or
            # right after it.
            return build(url, existing="resume")
        if pyramid:
            report = merge_reports([report, build(url, existing=_policy(existing, call))])
    return replace(report, note="\n".join(filter(None, [report.note, note])))


def _policy(existing: Existing, call: Call) -> Existing:
    """Return the policy for the pyramid of a level: an interrupted pyramid of a level that this
    call has replaced is not continued."""
    return "restart" if existing == "overwrite" and call.has_written else existing
