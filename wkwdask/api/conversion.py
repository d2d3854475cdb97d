"""Other formats to WKW and back."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from wkwdask.api.n5 import convert_to_n5
from wkwdask.api.options import mag_or_key
from wkwdask.api.pyramids import build_pyramid
from wkwdask.api.scales import Taken, convert_from_scales, convert_to_scales, rechunk_scales, refuse_options, scale_options
from wkwdask.api.zarr_images import array_options, convert_to_image
from wkwdask.errors import BoundsError, ExistsError, MissingError, SectionWarning, UnsupportedError
from wkwdask.formats.datasource import length_nm
from wkwdask.formats.n5.compression import make_compression
from wkwdask.formats.wkw.block import DEFAULT_LEVEL
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.jobs.n5_write import N5Encoding
from wkwdask.jobs.report import Report, merge_reports
from wkwdask.jobs.wkw_convert import ImportOptions, StagedImport, open_source, stage_import, target_folder
from wkwdask.jobs.wkw_export import ExportOptions, stage_export
from wkwdask.jobs.wkw_write import WkwEncoding
from wkwdask.jobs.zarr_places import is_zarr_image
from wkwdask.jobs.zarr_write import is_ids
from wkwdask.storage.dataset import choose_layer, locate
from wkwdask.storage.local import is_remote, local_path
from wkwdask.storage.n5_layer import is_n5, is_named_n5
from wkwdask.storage.ngff_source import find_image, find_zarr_layer
from wkwdask.storage.opening import find, open_stored, voxel_size_of
from wkwdask.storage.precomputed_layer import is_named_precomputed, is_precomputed
from wkwdask.storage.provenance import read_provenance
from wkwdask.storage.replaceable import is_taken
from wkwdask.storage.zarr_layer import is_named_zarr

if TYPE_CHECKING:
    from wkwdask.api.options import MagLike
    from wkwdask.formats.precomputed.info import Lengths
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.jobs.places import Place
    from wkwdask.storage.ngff_source import SourceImage
    from wkwdask.storage.opening import StoredVolume

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def convert(
    source: Paths,
    target: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    axes: str | None = None,
    channels: Sequence[int] | None = None,
    dtype: Any = None,
    value_range: tuple[float, float] | None = None,
    voxel_size: Sequence[float] | None = None,
    unit: str = "nm",
    offset: Sequence[int] = (0, 0, 0),
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    block_len: int = 32,
    file_len: int = 32,
    compression: str | None = None,
    level: int = DEFAULT_LEVEL,
    encoding: str | None = None,
    sharded: bool | Sharding | None = None,
    chunk_size: Sequence[int] | None = None,
    quality: int | None = None,
    compress: Literal["gzip"] | None = None,
    force: bool = False,
    ngff: Literal["0.5", "0.4"] | None = None,
    category: Literal["color", "segmentation"] | None = None,
    pyramid: bool = False,
    on_error: Literal["fail", "fill"] = "fail",
    existing: Literal["error", "resume", "overwrite"] = "error",
    allow_external: bool = False,
) -> Report:
    """Make a WKW mag of images or of an array in another format, or the other way round where the source is WKW.

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
        any other name becomes a folder with one TIFF for each section, named by its z.
    layer : str, optional
        The layer of the dataset; for a new one by default ``color`` or ``segmentation``.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag that is written, 1 by default, or exported, by default the finest; between WKW, N5 and precomputed volumes by default all.
    axes : str, optional
        Order of the source's axes, such as ``"zyx"``, ``"xyz"``, ``"czyx"`` or ``"zyxc"``, ``-`` for one of length 1. By default what the file says, else
        ``"zyx"`` or ``"czyx"``.
    channels : sequence of int, optional
        Which channels, in this order; by default all (red, green and blue are three, alpha is one more).
    dtype : dtype_like, optional
        Type of the values; by default that of the source (bits become uint8, half floats float32). Without ``value_range`` a value that does not fit is an
        error.
    value_range : pair of float, optional
        What becomes the least and the greatest value of ``dtype`` (0 and 1 of a float): values are scaled, rounded half to even, and cut off beyond it.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z, for a new dataset; by default what OME-TIFF, MRC, OME-Zarr or HDF5 attributes say.
    unit : str
        Unit of ``voxel_size``, such as ``"nm"`` or ``"um"``.
    offset : sequence of 3 int
        Voxel of the mag that the first one of the source becomes; between WKW, N5 and precomputed volumes by what all voxels are moved [voxels of mag 1].
    bounding_box : BoundingBox, str or sequence, optional
        What is taken over, in mag-1 voxels of the dataset.
    block_len, file_len : int
        Edge of a block [voxels] and of a file [blocks], powers of two up to 128.
    compression : str, optional
        ``"lz4hc"`` (the default), ``"lz4"`` or ``"raw"``; for an export to TIFF ``"zlib"`` (the default), ``"lzw"``, ``"zstd"`` or ``"raw"``; for an OME-NGFF
        image ``"zstd"``, ``"blosc"``, ``"gzip"`` or ``"raw"``, see :func:`to_zarr`; for N5 ``"gzip"`` (the default) or another one that :func:`to_n5` writes.
    level : int
        LZ4HC level, 1..12; another one than the default also is that of the compression of an OME-NGFF image.
    encoding : {"raw", "compressed_segmentation", "compresso", "jpeg", "png", "jxl"}, optional
        How chunks of a precomputed volume are encoded; by default compressed_segmentation for segmentations of uint32 and uint64, else raw.
    sharded : bool or Sharding, optional
        Whether chunks of a precomputed volume are put into shards, or how (:func:`choose_sharding`); by default each is a file. Those of an OME-NGFF image
        are by default; ``False`` makes each a file.
    chunk_size : sequence of 3 int, optional
        A chunk of a precomputed volume or an OME-NGFF image, or a block of N5 [voxels]; 64 along each axis by default.
    quality : int, optional
        Of jpeg and jxl, 0..100.
    compress : {"gzip"}, optional
        Compress chunks of a precomputed volume that are files of their own, see :func:`to_precomputed`.
    force : bool
        Encode a segmentation in a way that changes its ids.
    ngff : {"0.5", "0.4"}, optional
        Version of an OME-NGFF image: 0.5 (the default) lies in Zarr 3, 0.4 in Zarr 2, which has no shards.
    category : {"color", "segmentation"}, optional
        What a new layer is; by default integers of 32 bits and more in one channel are a segmentation.
    pyramid : bool
        Build the coarser mags too, see :func:`build_pyramid`.
    on_error : {"fail", "fill"}
        Whether a slice of another size or type, one that cannot be decoded, or a gap in the numbers of sections becomes zeros, which the report names. By
        default such a slice is an error that names it; over a gap, sections become neighbours, with a warning.
    existing : {"error", "resume", "overwrite"}
        What to do where the target is there already. An interrupted job goes on in any case but ``"overwrite"``, which starts anew; of folders, an export
        replaces only those that an export made.
    allow_external : bool
        Write where paths or links lead out of the dataset; by default that is refused.

    Returns
    -------
    Report

    Raises
    ------
    BoundsError
        The source holds no voxels, or the box none of them, or a value does not fit ``dtype`` and there is no ``value_range``.
    ExistsError
        The target is there and ``existing="error"``.
    FormatError
        A slice or file is broken or not like the others; the message names it, what was found and what was expected.
    LockedError
        Another job writes the target.
    MissingError
        There is no such source, layer or mag.
    ModuleNotFoundError
        A package that reads the format is not installed: it comes with ``pip install 'wkwdask[convert]'``.
    ResumeError
        What was interrupted was started with other settings or from other data.
    TypeError
        WKW has no voxel type for the values.
    UnsupportedError
        The source is of a kind that is not read.
    ValueError
        An option makes no sense, axes do not fit, the voxel size of a new dataset is not known, or a new layer cannot have its name.

    Notes
    -----
    Of a local OME-NGFF image all levels are taken over, each to where it lies: ``mag`` takes one of them, ``pyramid=True`` the finest alone. A dataset
    whose layers WEBKNOSSOS stores as Zarr is such a source too.

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
    if on_error not in ("fail", "fill"):
        raise ValueError(f'on_error must be "fail" or "fill", got {on_error!r}')
    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    if value_range is not None and len(value_range) != 2:
        raise ValueError(f"value_range must be two numbers, the lower and the higher one, got {value_range!r}")
    range_ = None if value_range is None else (float(value_range[0]), float(value_range[1]))
    of_scales = {"encoding": encoding, "sharded": sharded, "chunk_size": chunk_size, "quality": quality, "compress": compress, "force": force}
    if is_named_n5(target):
        given = {**of_scales, "axes": axes, "on_error": on_error == "fill", "category": category, "pyramid": pyramid, "level": level != DEFAULT_LEVEL}
        given.pop("chunk_size")
        refuse_options(f"{target} is N5", given)
        encoding_of_blocks = N5Encoding(vec3(chunk_size or (64, 64, 64), "chunk_size"), make_compression(compression or "gzip"))
        taken = Taken(
            None if mag is None else (Mag.parse(mag),), False, box, vec3(offset, "offset"), None if channels is None else tuple(channels), dtype, range_,
        )  # fmt: skip
        chosen, only = _layer_and_mag(source, layer)
        taken = taken if only is None or taken.mags is not None else replace(taken, mags=(only,))
        return convert_to_n5(chosen, target, taken, encoding_of_blocks, _lengths_nm(voxel_size, unit), existing)
    if is_zarr_image(target):
        of_images = {"axes": axes, "on_error": on_error == "fill", "category": category, "pyramid": pyramid}
        refuse_options(f"{target} is an OME-NGFF image", {**of_images, "encoding": encoding, "quality": quality, "compress": compress, "force": force})
        if not isinstance(source, (str, os.PathLike)):
            raise UnsupportedError(f"{target}: an OME-NGFF image is made of a WKW layer or a precomputed volume; convert {source!r} to WKW first")
        taken = Taken(
            None if mag is None else (Mag.parse(mag),), False, box, vec3(offset, "offset"), None if channels is None else tuple(channels), dtype, range_,
        )  # fmt: skip
        stored = array_options({**of_scales, "compression": compression}, None if level == DEFAULT_LEVEL else level, ngff)
        return convert_to_image(source, target, layer, taken, stored, _lengths_nm(voxel_size, unit), existing)
    refuse_options(f"{target} is no OME-NGFF image", {"ngff": ngff})
    to_scales = is_named_precomputed(target)
    is_volume = isinstance(source, (str, os.PathLike)) and (is_precomputed(source) or _is_arrays(source))
    if to_scales or (is_volume and not _is_export(target)):
        of_images = {"axes": axes, "on_error": on_error == "fill"}
        taken = Taken(
            None if mag is None else (Mag.parse(mag),), pyramid, box, vec3(offset, "offset"), None if channels is None else tuple(channels), dtype, range_,
        )  # fmt: skip
        size = _lengths_nm(voxel_size, unit)
        if to_scales:
            refuse_options(f"{target} is a precomputed volume", {**of_images, "compression": compression, "category": category})
            report = _to_scales(source, target, layer, taken, of_scales, size, existing)
            above = partial(build_pyramid, target, existing=existing)
        else:
            refuse_options(f"{source} is converted to WKW", {**of_images, **of_scales})
            encoding_of_mags = WkwEncoding(block_len, file_len, compression or "lz4hc", level)
            chosen, only = _layer_and_mag(source, None)
            taken = taken if only is None or taken.mags is not None else replace(taken, mags=(only,))
            report = convert_from_scales(chosen, target, layer, taken, encoding_of_mags, category, size, existing, allow_external=allow_external)
            above = partial(build_pyramid, report.mags[0].path, existing=existing, allow_external=allow_external)
        return merge_reports([report, above()]) if pyramid else report
    refuse_options(f"{source} is converted to WKW or images", of_scales)
    zarr_layer = find_zarr_layer(source, layer) if not _is_export(target) else None
    found = None if zarr_layer is not None else _stored(source, layer, mag_or_key(mag))
    if found is not None:
        volume, voxel_size_nm = found
        for name, is_given in (("axes", axes), ("voxel_size", voxel_size), ("category", category), ("pyramid", pyramid), ("offset", any(offset))):
            if is_given:
                raise ValueError(f"{name} is for what becomes WKW, but {volume.name} is a mag or scale, which is exported")
        return _export(volume, target, ExportOptions(box, None if channels is None else tuple(channels), dtype, range_, compression), existing, voxel_size_nm)
    options = ImportOptions(
        WkwEncoding(block_len, file_len, compression or "lz4hc", level), vec3(offset, "offset"), axes, None if channels is None else tuple(channels), dtype,
        range_, _lengths_nm(voxel_size, unit), box, category, on_error == "fill", allow_external,
    )  # fmt: skip
    wanted = None if mag is None else Mag.parse(mag)
    image = zarr_layer or (find_image(source) if axes is None and on_error == "fail" else None)
    taken_mag = wanted if wanted is not None or layer is not None else _mag_in(target)
    if image is not None and not pyramid and (taken_mag is None or image.find(taken_mag) is not None):
        return _import_image(image, target, layer, taken_mag, options, existing)
    return _import(source, target, layer, wanted, options, existing, pyramid=pyramid)


def _is_export(target: str | os.PathLike[str]) -> bool:
    """Tell whether a target is named as a file of images or an array."""
    return os.fspath(target).lower().endswith((".tif", ".tiff", ".npy", ".zarr"))


def _to_scales(
    source: Paths, target: str | os.PathLike[str], layer: str | None, taken: Taken, of_scales: dict[str, Any], voxel_size: Any, existing: str
) -> Report:
    """Convert what can become a precomputed volume.

    Raises
    ------
    MissingError
        There is no such source.
    UnsupportedError
        The source is of a kind that is not converted in one step.
    """
    options = scale_options(of_scales)
    if isinstance(source, (str, os.PathLike)) and _is_arrays(source):
        found, only = _layer_and_mag(source, layer)
        return convert_to_scales(found, target, taken if only is None else replace(taken, mags=(only,)), options, voxel_size, existing)
    if is_precomputed(source):
        if taken != Taken(taken.mags, taken.finest_only) or voxel_size is not None:
            raise UnsupportedError(f"{source}: scales are stored anew as they are; convert to WKW to change their place, type or channels")
        return rechunk_scales(str(source), target, taken.mags, existing, None, options)
    located = locate(source) if isinstance(source, (str, os.PathLike)) and _is_wkw(source) else None
    if located is None:
        if isinstance(source, (str, os.PathLike)) and not is_remote(os.fspath(source)) and not os.path.exists(local_path(source)):
            raise MissingError(f"{os.fspath(source)}: no such file or folder")
        raise UnsupportedError(f"{source}: is neither WKW nor a precomputed volume: convert it to WKW first, then that to {target}")
    if located.mag is not None:
        taken = replace(taken, mags=(located.mag,))
    return convert_to_scales(choose_layer(located, layer), target, taken, options, voxel_size, existing)


def _is_arrays(source: str | os.PathLike[str]) -> bool:
    """Tell whether a source is N5, or says itself that it is Zarr; what does not may be any array in a folder, whose axes a user can name."""
    return is_n5(source) or is_named_zarr(source)


def _layer_and_mag(source: Paths, layer: str | None) -> tuple[Any, Mag | None]:
    """Open the layer that is converted, with the one mag that is meant, where the path is that of one.

    Raises
    ------
    UnsupportedError
        The source is of a kind that is not converted in one step.
    """
    what = f"{source}: is neither WKW, nor a precomputed volume, N5 or Zarr: convert it to WKW first"
    if not isinstance(source, (str, os.PathLike)):
        raise UnsupportedError(what)
    try:
        found = find(source)
    except (MissingError, NotADirectoryError):
        if os.path.exists(source):
            raise UnsupportedError(what) from None
        raise
    return found.choose(layer), found.mag


def _is_wkw(source: str | os.PathLike[str]) -> bool:
    try:
        return bool(locate(source).layers)
    except (MissingError, UnsupportedError, NotADirectoryError):
        return False


def _stored(source: Paths, layer: str | None, mag: Mag | str | None) -> tuple[StoredVolume, Lengths | None] | None:
    """Open a source that is WKW or precomputed, with the edge lengths of a voxel of mag 1 [nm]; None for another one."""
    if not isinstance(source, (str, os.PathLike)) or not (is_precomputed(source) or _is_arrays(source) or _is_wkw(source)):
        return None
    found, volume = open_stored(source, layer, mag)
    return volume, voxel_size_of(found, volume)


def _lengths_nm(voxel_size: Sequence[float] | None, unit: str) -> tuple[float, float, float] | None:
    if voxel_size is None:
        return None
    lengths = [length_nm(float(length), unit) for length in voxel_size]
    if len(lengths) != 3 or not all(math.isfinite(length) and length > 0 for length in lengths):
        raise ValueError(f"voxel_size must be three positive lengths along x, y, z, none of them infinite, got {voxel_size!r}")
    return lengths[0], lengths[1], lengths[2]


def _import(
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


def _mag_in(target: str | os.PathLike[str]) -> Mag | None:
    """Give the mag that a target's name is, None where it is the name of something else."""
    with contextlib.suppress(ValueError):
        return Mag.parse(os.path.basename(os.fspath(target).rstrip("/")))
    return None


def _import_image(image: SourceImage, target: str | os.PathLike[str], layer: str | None, mag: Mag | None, options: ImportOptions, existing: str) -> Report:
    """Import the mags of an OME-NGFF image, each to where it lies.

    Raises
    ------
    BoundsError
        An array begins below 0.
    ValueError
        A voxel would come to lie between two voxels of its mag.
    """
    from wkwdask.graphs import build
    from wkwdask.graphs.batch import check_can_be_repeated
    from wkwdask.graphs.runners import num_workers

    if image.box is not None:
        x, y, z = (a + b for a, b in zip(image.box.topleft, options.offset, strict=True))
        inside = BoundingBox((x, y, z), image.box.size)
        options = replace(options, box=inside if options.box is None else options.box.intersection(inside))
    layer = layer or image.layer
    for note in image.odd if mag is None else ():
        warnings.warn(f"{image.name}: left out: {note}", SectionWarning, stacklevel=4)
    levels = [level for level in image.levels if mag in (None, level.mag)]
    check_can_be_repeated(len(levels), starts_anew=existing == "overwrite")
    staged = []
    for level in levels:
        if any(a % n for a, n in zip(options.offset, level.mag.factors, strict=True)):
            raise ValueError(f"offset must be a multiple of every mag that is converted, got {options.offset}, but there is mag {level.mag}")
        x, y, z = (c + a // n for c, a, n in zip(level.corner, options.offset, level.mag.factors, strict=True))
        if min(x, y, z) < 0:
            raise BoundsError(f"{level.path}: begins at voxel {(x, y, z)}, and no voxel of WKW can lie below 0: move it with offset= (--offset)")
        size = options.voxel_size_nm or image.voxel_size_nm
        its_options = replace(options, offset=(x, y, z), axes=level.axes, voxel_size_nm=size)
        voxels, foreign = open_source(level.path, its_options, level.mag)
        category = options.category or ("segmentation" if image.is_label or is_ids(voxels.dtype, voxels.num_channels) else "color")
        folder = target_folder(target, layer, level.mag, category)
        its_options = replace(its_options, category=category)
        stage = partial(stage_import, voxels, replace(foreign, voxel_size_nm=None), folder, its_options, existing, num_workers())
        if existing == "error":
            stage().staged.check_free()
        staged.append(stage)
    return merge_reports([build.convert(stage()) for stage in staged])


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


def _export(volume: StoredVolume, target: str | os.PathLike[str], options: ExportOptions, existing: str, voxel_size_nm: Lengths | None) -> Report:
    from wkwdask.graphs import build

    return build.export(stage_export(volume, target, options, existing, voxel_size_nm))
