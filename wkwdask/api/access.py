"""Reading and writing voxels."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from wkwdask.api.options import StorageKeywords, WriteOptions, storage_options
from wkwdask.errors import BoundsError, ReplacedError, UnsupportedError
from wkwdask.formats.n5.options import N5Options
from wkwdask.formats.opening import check_names_format, format_of_target, open_stored, place_for, recent_stored
from wkwdask.formats.precomputed.options import PrecomputedOptions
from wkwdask.formats.registry import fallback, format_of
from wkwdask.formats.webknossos.datasource import FILE_NAME
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.formats.zarr.options import ZarrOptions
from wkwdask.geometry.bounding_box import BoundingBox, voxel_box
from wkwdask.geometry.mag import Mag
from wkwdask.model.image import check_inside, mag_or_key
from wkwdask.model.options import check
from wkwdask.model.place import Destination
from wkwdask.store.paths import dirname
from wkwdask.streams.points import sample_points
from wkwdask.verbs.write import Creation, lay_out_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed
    from xarray import DataArray

    from wkwdask.api.options import Existing, MagLike
    from wkwdask.formats.webknossos.summary import DatasetSummary
    from wkwdask.model.summary import VolumeSummary
    from wkwdask.model.volume import Volume
    from wkwdask.runs.report import Report


def open(
    url: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    chunks: str | int | Sequence[int] = "auto",
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    origin: Literal["box", "absolute"] = "box",
    axes: str | None = None,
    channel: int | None = None,
    chunk_size: Sequence[int] | None = None,
) -> da.Array:
    """Open one mag of a layer as a dask array.

    Only the blocks that a selection touches are decoded. Chunk borders lie on block and file borders.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag in WKW; a Neuroglancer precomputed volume; an N5 container, group or dataset; an OME-NGFF image or another Zarr array. A
        local folder, or ``"precomputed://"``, ``"n5://"`` or ``"zarr://"`` and a path or URL (``https://``, ``s3://``, ``gs://``).
    layer : str, optional
        The layer, of N5 and Zarr the path of a group; may be omitted where there is one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag, such as ``"2-2-1"``; by default that of the path, else the finest that has files. Of other formats also the key of a scale or the name of an
        array, such as ``"8_8_40"`` or ``"s1"``.
    chunks : str, int or sequence of 3 int
        ``"auto"`` (within dask's ``array.chunk-size``), ``"file"``, ``"block"``, a size such as ``"64MiB"``, or voxels along x, y, z.
    bounding_box : BoundingBox, str or sequence, optional
        Part of the layer to open: x, y, z, width, height, depth [voxels of mag 1], grown outward to voxels of the mag.
    origin : {"box", "absolute"}
        Whether element 0 is the corner of the box, or the index is the absolute voxel of the mag (zeros before the box).
    axes : str, optional
        Order of the axes, ``"cxyz"`` by default; ``"czyx"`` is what skimage, napari and OME expect. ``"xyz"`` or ``"zyx"`` with one channel.
    channel : int, optional
        Open this channel alone, without the axis c.
    chunk_size : sequence of 3 int, optional
        Which of several chunk sizes of a precomputed scale is read [voxels]; by default the first.

    Returns
    -------
    dask.array.Array, shape (c, x, y, z) or as ``axes`` say

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    BoundsError
        The bounding box reaches outside the layer.
    FormatError
        A record or header is broken; broken data files are errors when they are read.
    ValueError
        Several layers could be meant, or an option makes no sense.
    """
    from wkwdask.graphs.read import open_array

    volume = open_stored(url, layer, mag_or_key(mag), chunk_size)[1]
    box = volume.box
    if bounding_box is not None:
        box = BoundingBox.parse(bounding_box).in_mag(volume.box.mag)
        check_inside(volume.name, volume.box, box)
    if origin not in ("box", "absolute"):
        raise ValueError(f'origin must be "box" or "absolute", got {origin!r}')
    if origin == "absolute" and min(box.topleft) < 0:
        raise BoundsError(f'{volume.name}: the box {box} starts below 0; origin="absolute" cannot index it')
    start = box.topleft if origin == "box" else (0, 0, 0)
    return open_array(volume, chunks=chunks, box=box, start=start, axes=axes, channel=channel)


def read(
    url: str | os.PathLike[str],
    box: BoundingBox | Sequence[Sequence[int]] | None = None,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
) -> npt.NDArray[Any]:
    """Read voxels into a numpy array, without dask; safe in threads and forks.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag, of any format that :func:`open` opens.
    box : BoundingBox or pair of corners, optional
        What to read: the lowest corner and the one beyond the highest, absolute voxels of the mag along x, y, z. By default the whole
        box of the layer.
    layer : str, optional
        The layer; may be omitted where there is one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default that of the path, else the finest that has files.

    Returns
    -------
    ndarray, shape (c, x, y, z), Fortran order

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    BoundsError
        The box reaches outside the layer.
    FormatError
        A file is broken; the message names file, block and byte offset.
    """
    parsed_mag = mag_or_key(mag)
    volume = recent_stored(url, layer, parsed_mag)
    if box is None:
        volume = recent_stored(url, layer, parsed_mag, anew=True)
        asked = volume.box
    else:
        asked = voxel_box(box, volume.box.mag)
        if not volume.box.contains(asked):
            volume = recent_stored(url, layer, parsed_mag, anew=True)
            check_inside(volume.name, volume.box, asked)
    try:
        return _read_box(volume, asked)
    except ReplacedError:  # between the opening and the reading
        return _read_box(recent_stored(url, layer, parsed_mag, anew=True), asked)


def _read_box(volume: Volume, box: BoundingBox) -> npt.NDArray[Any]:
    try:
        out = np.empty((volume.num_channels, *box.size), volume.dtype, order="F")
    except (MemoryError, ValueError):
        count = volume.num_channels * box.volume
        raise UnsupportedError(f"{volume.name}: {box} has {count:,} values of {volume.dtype}, which do not fit into memory; name a smaller box") from None
    volume.read_into(out, box.topleft)
    return out


def sample(
    url: str | os.PathLike[str],
    points: npt.ArrayLike,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
) -> npt.NDArray[Any]:
    """Read the values at many points, decoding each block once.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag, of any format that :func:`open` opens.
    points : array_like of int, shape (n, 3)
        Absolute voxels of the mag along x, y, z.
    layer : str, optional
        The layer; may be omitted where there is one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default that of the path, else the finest that has files.

    Returns
    -------
    ndarray, shape (n,) for one channel, else (n, c)

    Raises
    ------
    BoundsError
        A point lies outside the layer.
    MissingError
        There is no such dataset, layer or mag.
    FormatError
        A file is broken.
    TypeError
        The points are no whole numbers.
    """
    array = np.asarray(points)
    if array.size == 0:
        array = array.reshape(0, 3).astype(np.int64)
    if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "iu":
        raise TypeError(f"points are whole numbers of shape (n, 3), got {array.dtype} of shape {array.shape}")
    volume = recent_stored(url, layer, mag_or_key(mag), anew=True)
    values = sample_points(volume, array.astype(np.int64))
    return values[:, 0] if volume.num_channels == 1 else values


class WkwKeywords(WriteOptions, total=False):
    """What :func:`to_wkw` takes."""

    voxel_size: Sequence[float] | None
    chunk_shape: Sequence[int] | None
    shard_shape: Sequence[int] | None
    compression: str | None
    level: int | None
    block_len: int | None
    file_len: int | None
    any_length: bool
    category: Literal["color", "segmentation"] | None
    allow_external: bool


@overload
def to_wkw(
    array: da.Array | npt.NDArray[Any] | DataArray, url: str | os.PathLike[str], *, compute: Literal[True] = True, **options: Unpack[WkwKeywords]
) -> Report: ...


@overload
def to_wkw(
    array: da.Array | npt.NDArray[Any] | DataArray, url: str | os.PathLike[str], *, compute: Literal[False], **options: Unpack[WkwKeywords]
) -> Delayed: ...


@storage_options(WkwOptions)
def to_wkw(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    offset: Sequence[int] | None = None,
    region: BoundingBox | Sequence[Sequence[int]] | None = None,
    voxel_size: Sequence[float] | None = None,
    chunk_shape: Sequence[int] | None = None,
    shard_shape: Sequence[int] | None = None,
    compression: str | None = None,
    level: int | None = None,
    block_len: int | None = None,
    file_len: int | None = None,
    any_length: bool = False,
    existing: Existing = "error",
    token: str | None = None,
    category: Literal["color", "segmentation"] | None = None,
    allow_external: bool = False,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one mag, or into a part of one that is there, in parallel and safely.

    A new mag appears when it is complete, or not at all. With ``region``, file after file of the mag is replaced by one that is whole; files that the region
    covers in part keep all other voxels, and blocks that it does not touch are copied as they are.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks, of a type that WKW has. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        The mag's folder, such as ``dataset/layer/1``. A ``datasource-properties.json`` in the dataset is brought up to date. Without one, ``voxel_size``
        makes the dataset; else a warning says so, and only the mag itself keeps its box.
    offset : sequence of 3 int, optional
        Absolute voxel of the mag that element 0 goes to. By default 0, or what the coordinates x, y, z of a DataArray say: numbers of voxels, or with
        ``units`` lengths of the corners or centres of voxels.
    region : BoundingBox or pair of corners, optional
        Write into the mag that is there: the lowest corner and the one beyond the highest, absolute voxels of the mag, as :func:`read` takes them. Jobs that
        write other files of the mag can run at the same time; where files overlap, the second one is refused. Voxels there are replaced.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm]: where there is no ``datasource-properties.json``, one is made. A dataset that is there must have
        the same.
    {options}
    existing : {"error", "resume", "overwrite"}
        What to do where the mag already exists; ``"overwrite"`` replaces it whole. The same call resumes an interrupted one: files
        that it finished are kept (their size, header and table are checked) and not computed again. The same call means the same settings and the same
        array: the same voxels in memory, a dask graph of the same name, or the same ``token``. ``"resume"`` compares of a dask array only place, shape and
        type: you must know that its content is the same.
    token : str, optional
        A name of the array's content: a call with another one does not go on.
    category : {"color", "segmentation"}, optional
        What a layer is that the JSON does not know yet; by default integers of 32 bits and more are a segmentation.
    allow_external : bool
        Write where paths or links lead out of the dataset; by default that is refused.
    compute : bool
        False checks everything now and gives a dask ``Delayed`` whose last task ends the job.

    Returns
    -------
    Report or Delayed

    Raises
    ------
    BoundsError
        The region reaches outside the layer.
    ExistsError
        The mag is there and ``existing="error"``.
    LockedError
        Another job writes it, or some of the same files.
    MissingError
        There is a region, but no mag.
    ResumeError
        What was interrupted was started with other settings.
    TypeError
        WKW has no voxel type for the array, or the mag has another one.
    ValueError
        Shape, offset or an option makes no sense.

    Notes
    -----
    Memory is bounded by the chunks of the array and by parts of files of at most 128 MB. Chunks such as wide sections, of which a part of a file touches more
    than fit into memory, are cut up into scratch files beside the target first; the report says so.
    """
    from wkwdask.api.saving import Saving, lay_out_save
    from wkwdask.graphs.write import write_now_or_later

    if format_of_target(url) is not fallback():
        raise ValueError(f"{os.fspath(url)}: is named as {format_of_target(url).options.title}, and to_wkw writes WKW; write() takes any format")
    stored = check(
        WkwOptions, chunk_shape=chunk_shape, shard_shape=shard_shape, compression=compression, level=level, block_len=block_len, file_len=file_len,
        any_length=any_length,
    )  # fmt: skip
    wanted = Destination(os.fspath(url), category=category, needs_container=False, allow_external=allow_external)
    staged, voxels, trusted = lay_out_save(array, offset, wanted, voxel_size, stored, Saving("to_wkw", existing, token, region))
    if staged.edit is None and region is None:
        _warn_of_no_dataset(staged.folders[0])
    written: Report | Delayed = write_now_or_later(staged, voxels, trusted, compute=compute)
    return written


def _warn_of_no_dataset(folder: str) -> None:
    """Say that a mag is in no dataset, and the two ways out."""
    dataset = dirname(dirname(folder))
    warnings.warn(
        f"{folder}: belongs to no dataset, since there is no {dataset}/{FILE_NAME}: only the mag itself keeps its box. "
        f"Give voxel_size=(x, y, z) in nm to make the dataset, or make it before with wkwdask.create_dataset({dataset!r}, (x, y, z))",
        stacklevel=3,
    )


@storage_options(WkwOptions, PrecomputedOptions, ZarrOptions, N5Options)
def create(
    url: str | os.PathLike[str],
    box: BoundingBox | Sequence[Sequence[int]],
    dtype: npt.DTypeLike,
    *,
    num_channels: int = 1,
    mag: MagLike | None = None,
    voxel_size: Sequence[float] | None = None,
    existing: Literal["error", "overwrite"] = "error",
    category: Literal["color", "segmentation"] | None = None,
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Make a mag without data, for jobs that each write a region of it.

    Parameters
    ----------
    url : str or path
        The mag's folder, such as ``dataset/layer/1``; or an image or level of another format, named by its prefix, such as ``"precomputed://PATH"``.
    box : BoundingBox or pair of corners
        Where it is to have data: the lowest corner and the one beyond the highest, absolute voxels of the mag. The JSON of the dataset keeps it.
    dtype : dtype_like
        Type of one channel.
    num_channels : int
        Values per voxel.
    mag : Mag, str or int, optional
        The mag, where the URL is not that of a mag in WKW; 1 by default.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 [nm], for a new dataset, as for :func:`to_wkw`, or for a new image.
    existing : {"error", "overwrite"}
        What to do where the mag already exists; ``"overwrite"`` replaces it whole.
    category : {"color", "segmentation"}, optional
        What a layer is that the JSON does not know yet; by default integers of 32 bits and more are a segmentation.
    allow_external : bool
        Write where paths or links lead out of the dataset; by default that is refused.
    **options
        How the mag is stored.
        {options}

    Returns
    -------
    Report

    Raises
    ------
    ExistsError
        The mag is there and ``existing="error"``.
    LockedError
        Another job writes it.
    TypeError
        The format has no such type.
    ValueError
        An option makes no sense.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> url = tempfile.mkdtemp() + "/1"
    >>> _ = wkwdask.create(url, ((0, 0, 0), (256, 256, 256)), "uint8", file_len=4)
    >>> region = ((30, 0, 0), (40, 10, 5))
    >>> _ = wkwdask.to_wkw(np.full((10, 10, 5), 7, np.uint8), url, region=region)
    >>> int(wkwdask.read(url, region).sum())
    3500
    """
    from wkwdask.api.array_input import positive_lengths
    from wkwdask.graphs.runners import make
    from wkwdask.runs.staged import Content

    if existing not in ("error", "overwrite"):
        raise ValueError(f'existing must be "error" or "overwrite", got {existing!r}')
    size = None if voxel_size is None else positive_lengths(voxel_size)
    stored = check(format_of_target(url).options, **options)
    place = place_for(replace(_target(url, mag, category, allow_external=allow_external), voxel_size_nm=size))
    asked = voxel_box(box, place.mag)
    content = Content((num_channels, *asked.size), np.dtype(dtype), "nothing", in_memory=True)
    staged, _ = lay_out_write(place, asked.topleft, content, stored, existing, "to_wkw")
    if staged.edit is None:
        _warn_of_no_dataset(staged.folders[0])
    return make(Creation(staged))


def write(url: str | os.PathLike[str], offset: Sequence[int] | None, array: npt.NDArray[Any], **options: Any) -> Report:
    """Write a numpy array as one mag, in any format that the URL names.

    Parameters
    ----------
    url : str or path
        The mag's folder; or an image or level of another format, named by its prefix, such as ``"precomputed://PATH"``.
    offset : sequence of 3 int
        Absolute voxel of the mag that element 0 goes to; None with ``region``.
    array : ndarray, shape (x, y, z) or (c, x, y, z)
        The voxels.
    **options
        As for :func:`to_wkw`, but ``compute``. In another format: ``mag``, ``region``, ``voxel_size``, ``category``, ``existing``, ``token``, and how it is
        stored.

    Returns
    -------
    Report

    Raises
    ------
    ExistsError, LockedError, TypeError, ValueError
        As for :func:`to_wkw`.
    """
    if "compute" in options:
        raise TypeError("write() always computes; to_wkw() takes compute=False")
    if format_of_target(url) is fallback():
        report: Report = to_wkw(np.asanyarray(array), url, offset=offset, **options)
        return report
    return _write_placed(url, offset, np.asanyarray(array), **options)


def _write_placed(
    url: str | os.PathLike[str],
    offset: Sequence[int] | None,
    array: npt.NDArray[Any],
    *,
    mag: MagLike | None = None,
    region: BoundingBox | Sequence[Sequence[int]] | None = None,
    voxel_size: Sequence[float] | None = None,
    category: str | None = None,
    existing: Existing = "error",
    token: str | None = None,
    **options: Any,
) -> Report:
    """Write an array in the format that a URL names."""
    from wkwdask.api.saving import Saving, lay_out_save
    from wkwdask.graphs.write import write_now_or_later

    stored, wanted = check(format_of_target(url).options, **options), _target(url, mag, category)
    staged, voxels, trusted = lay_out_save(array, offset, wanted, voxel_size, stored, Saving("write", existing, token, region))
    written: Report = write_now_or_later(staged, voxels, trusted, compute=True)
    return written


def _target(url: str | os.PathLike[str], mag: MagLike | None, category: str | None, *, allow_external: bool = False) -> Destination:
    """Say where one level is wanted."""
    is_mag = format_of_target(url) is fallback()
    if is_mag and mag is not None:
        raise ValueError(f"{os.fspath(url)}: a mag in WKW is named by its folder, such as DATASET/LAYER/2-2-1, and not by mag=")
    wanted = None if mag is None else Mag.parse(mag)
    return Destination(os.fspath(url), mag=wanted, category=category, needs_container=not is_mag, allow_external=allow_external)


def info(url: str | os.PathLike[str]) -> DatasetSummary | VolumeSummary:
    """Summarise a dataset, layer or mag, a precomputed volume, N5 or Zarr: what ``wkwdask info`` prints.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag; a precomputed volume; an N5 container, group or dataset; a Zarr group or array.

    Returns
    -------
    DatasetSummary or VolumeSummary
        The first one of WKW.

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    FormatError
        The JSON is broken.
    """
    found = format_of(url)
    if found is None:
        check_names_format(url)
    return (found or fallback()).summarize(url)  # type: ignore[return-value]
