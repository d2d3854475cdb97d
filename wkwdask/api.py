"""The verbs that people type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from wkwdask.errors import BoundsError
from wkwdask.formats.wkw.block import DEFAULT_LEVEL
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.jobs.estimate import PyramidPlan, estimate_pyramid
from wkwdask.jobs.report import Report, merge_reports
from wkwdask.jobs.wkw_pyramid import PyramidOptions, stage_pyramid
from wkwdask.jobs.wkw_update import stage_update
from wkwdask.jobs.wkw_upsample import UpsampleOptions, stage_upsample
from wkwdask.jobs.wkw_write import WkwEncoding, stage_write
from wkwdask.storage.dataset import check_inside, open_volume, recent_volume
from wkwdask.storage.summary import DatasetSummary, summarize

if TYPE_CHECKING:
    import os

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed

Existing = Literal["error", "overwrite"]
MagLike = Mag | str | int | Sequence[int]


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
) -> da.Array:
    """Open one mag of a layer as a dask array.

    Only the blocks that a selection touches are decoded. Chunk borders lie on block and file borders.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    layer : str, optional
        The layer; may be omitted where there is one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag, such as ``"2-2-1"``; by default that of the path, else the finest that has files.
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

    volume = open_volume(url, layer, None if mag is None else Mag.parse(mag))
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
        A dataset, a layer or a mag.
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
    parsed_mag = None if mag is None else Mag.parse(mag)
    volume = recent_volume(url, layer, parsed_mag)
    if box is None:
        volume = recent_volume(url, layer, parsed_mag, anew=True)
        asked = volume.box
    else:
        asked = _voxel_box(box, volume.box.mag)
        if not volume.box.contains(asked):
            volume = recent_volume(url, layer, parsed_mag, anew=True)
            check_inside(volume.name, volume.box, asked)
    out = np.empty((volume.num_channels, *asked.size), volume.dtype, order="F")
    volume.read_into(out, asked.topleft)
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
        A dataset, a layer or a mag.
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
    volume = recent_volume(url, layer, None if mag is None else Mag.parse(mag), anew=True)
    values = volume.sample(array.astype(np.int64))
    return values[:, 0] if volume.num_channels == 1 else values


@overload
def to_wkw(
    array: da.Array | npt.NDArray[Any],
    url: str | os.PathLike[str],
    *,
    offset: Sequence[int] = (0, 0, 0),
    block_len: int = 32,
    file_len: int = 32,
    compression: str = "lz4hc",
    level: int = DEFAULT_LEVEL,
    any_length: bool = False,
    existing: Existing = "error",
    category: Literal["color", "segmentation"] | None = None,
    compute: Literal[True] = True,
) -> Report: ...


@overload
def to_wkw(
    array: da.Array | npt.NDArray[Any],
    url: str | os.PathLike[str],
    *,
    offset: Sequence[int] = (0, 0, 0),
    block_len: int = 32,
    file_len: int = 32,
    compression: str = "lz4hc",
    level: int = DEFAULT_LEVEL,
    any_length: bool = False,
    existing: Existing = "error",
    category: Literal["color", "segmentation"] | None = None,
    compute: Literal[False],
) -> Delayed: ...


def to_wkw(
    array: da.Array | npt.NDArray[Any],
    url: str | os.PathLike[str],
    *,
    offset: Sequence[int] = (0, 0, 0),
    block_len: int = 32,
    file_len: int = 32,
    compression: str = "lz4hc",
    level: int = DEFAULT_LEVEL,
    any_length: bool = False,
    existing: Existing = "error",
    category: Literal["color", "segmentation"] | None = None,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one mag, in parallel and whole: it appears when it is complete, or not at all.

    Parameters
    ----------
    array : dask.array.Array or ndarray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks, of a type that WKW has.
    url : str or path
        The mag's folder, such as ``dataset/layer/1``. A ``datasource-properties.json`` in the dataset is brought up to date; without one the
        mag keeps no box and opens as whole files.
    offset : sequence of 3 int
        Absolute voxel of the mag that element 0 goes to.
    block_len : int
        Edge of a block [voxels], a power of two up to 128.
    file_len : int
        Edge of a file [blocks], a power of two up to 128.
    compression : {"lz4hc", "lz4", "raw"}
        How blocks are encoded.
    level : int
        LZ4HC level, 1..12.
    any_length : bool
        Allow ``block_len`` and ``file_len`` up to 32768, which the reference library cannot read.
    existing : {"error", "overwrite"}
        What to do where the mag is there already; ``"overwrite"`` replaces it whole.
    category : {"color", "segmentation"}, optional
        What a layer is that the JSON does not know yet; by default integers of 32 bits and more are a segmentation.
    compute : bool
        False checks everything now and gives a dask ``Delayed`` whose last task lets the mag appear.

    Returns
    -------
    Report or Delayed

    Raises
    ------
    ExistsError
        The mag is there and ``existing="error"``.
    LockedError
        Another job writes it.
    TypeError
        WKW has no voxel type for the array.
    ValueError
        Shape, offset or an option makes no sense.
    """
    if not hasattr(array, "ndim") or isinstance(array, np.ma.MaskedArray) or hasattr(array, "dims"):
        raise TypeError(f"the array must be a dask or numpy array (fill a masked one, take .data of one with named axes), got {type(array).__name__}")
    if array.ndim not in (3, 4):
        raise ValueError(f"the array must have the shape (x, y, z) or (c, x, y, z), got {array.shape}")
    if array.ndim == 3:
        array = array[np.newaxis]
    if any(n != n for n in array.shape):
        raise ValueError("the array's shape is not known; call its compute_chunk_sizes() first")
    topleft = vec3(offset, "offset")
    if min(topleft) < 0:
        raise ValueError(f"offset must not be negative, got {topleft}")
    from wkwdask.graphs.build import write_array, write_array_later

    encoding = WkwEncoding(block_len, file_len, compression, level, any_length)
    staged = stage_write(url, topleft, array.shape, array.dtype, encoding, existing, category)
    if compute:
        return write_array(staged, array)
    delayed: Delayed = write_array_later(staged, array)
    return delayed


def write(url: str | os.PathLike[str], offset: Sequence[int], array: npt.NDArray[Any], **options: Any) -> Report:
    """Write a numpy array as one mag.

    Parameters
    ----------
    url : str or path
        The mag's folder.
    offset : sequence of 3 int
        Absolute voxel of the mag that element 0 goes to.
    array : ndarray, shape (x, y, z) or (c, x, y, z)
        The voxels.
    **options
        As for :func:`to_wkw`, but ``compute``.

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
    report: Report = to_wkw(np.asanyarray(array), url, offset=offset, **options)
    return report


def build_pyramid(
    url: str | os.PathLike[str],
    layer: str | Sequence[str] | None = None,
    *,
    finest: MagLike | None = None,
    mags: Sequence[MagLike] | None = None,
    coarsest: MagLike | None = None,
    sampling: Literal["anisotropic", "isotropic", "constant_z"] | None = None,
    align_with: str | bool = True,
    method: str = "default",
    ignore_zero: bool = False,
    compression: str | None = None,
    level: int | None = None,
    block_len: int | None = None,
    file_len: int | None = None,
    existing: Literal["error", "resume", "overwrite"] = "error",
    update: bool | Literal["content"] = False,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
) -> Report:
    """Make all coarser mags of a layer from its finest mag, in one pass over it.

    Runs on threads, or on the active dask Client; the result is the same. The mags appear whole, then the JSON lists them. What an interrupted
    call finished is kept: the same call goes on from there. :func:`plan_pyramid` tells beforehand what would be done.

    Parameters
    ----------
    url : str or path
        A dataset or a layer; also a layer's folder without any JSON, for which ``method`` must be given. A mag's folder makes that mag the finest.
    layer : str or sequence of str, optional
        The layer, or several, one after the other; may be omitted where there is one.
    finest : Mag, str, int or sequence of 3 int, optional
        The mag to start from; by default the finest that has files.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags to make. Each is made from the one before it and may jump, such as from 1 to 4-4-1.
    coarsest : Mag, str, int or sequence of 3 int, optional
        Where the ladder ends; by default WEBKNOSSOS's choice.
    sampling : {"anisotropic", "isotropic", "constant_z"}, optional
        Rule of the ladder: towards cubic voxels (the default), all axes doubled, or all but z (the default for a single section).
    align_with : str or bool
        The ladder follows the mags of this layer, of all other layers (True), or of none (False).
    method : {"default", "median", "mode", "mean", "min", "max", "nearest"}
        How a window becomes a voxel; by default median for color and mode for segmentation.
    ignore_zero : bool
        Zeros do not count, for mode, mean and median: a voxel is zero only where all of its window is.
    compression : {"lz4hc", "lz4", "raw"}, optional
        How blocks are encoded; by default as in the finest mag, LZ4HC if that is raw.
    level : int, optional
        LZ4HC level, 1..12; 5 by default.
    block_len, file_len : int, optional
        Edge of a block [voxels] and of a file [blocks] of the new mags, powers of two up to 128; by default as in the finest mag, but where that has a
        file for each block, as WEBKNOSSOS exports annotations, files of 8 blocks along an edge.
    existing : {"error", "resume", "overwrite"}
        What to do where one of the mags is there already. ``"resume"`` goes on with an interrupted job (as every value but ``"overwrite"`` does) and does
        nothing where the job was finished; ``"overwrite"`` replaces the mags whole, and starts anew.
    update : bool or "content"
        Make anew only files that lie above files that have changed (by size and time) since, or that have changed themselves, file by file in place,
        in the mags that were built from the finest one. ``"content"`` trusts no times: all files are made anew, and those that differ are replaced.
    bounding_box : BoundingBox, str or sequence, optional
        Make anew, in place, what lies above this part of the layer [voxels of mag 1].

    Returns
    -------
    Report

    Raises
    ------
    ExistsError
        A mag is there and ``existing="error"``.
    LockedError
        Another job writes one of the mags.
    ResumeError
        What is there, or was interrupted, was made with other settings or from other data.
    MissingError
        There is no such layer, it has no files, or a mag to update is not there.
    UnsupportedError
        A mag's path leaves the dataset.
    FormatError
        A source file is broken.
    ValueError
        An option makes no sense.

    Notes
    -----
    NaN propagates in mean, median, min and max, and is no value for mode (a window of nothing but NaN has the mode NaN).
    """
    from wkwdask.graphs import build
    from wkwdask.graphs.runners import num_workers

    options = _pyramid_options(
        finest=finest, mags=mags, coarsest=coarsest, sampling=sampling, align_with=align_with, method=method, ignore_zero=ignore_zero,
        compression=compression, level=level, block_len=block_len, file_len=file_len,
    )  # fmt: skip
    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    names = [layer] if layer is None or isinstance(layer, str) else list(layer)
    if not names:
        raise ValueError("layer= names no layer")
    if update not in (True, False, "content"):
        raise ValueError(f'update must be True, False or "content", got {update!r}')
    if not update and box is None:
        pyramids = [stage_pyramid(url, name, options, existing, num_workers()) for name in names]
        if len(pyramids) > 1:  # before the first one is built
            for pyramid in pyramids:
                pyramid.staged.check_free()
        return merge_reports([build.build_pyramid(pyramid) for pyramid in pyramids])
    if existing != "error":
        raise ValueError(f"existing={existing!r} is about building; update= and bounding_box= change what is there: give one or the other")
    if update == "content" and box is not None:
        raise ValueError('update="content" makes everything anew, bounding_box= a part: give one or the other')
    return merge_reports([build.update_pyramid(stage_update(url, name, options, by_content=update == "content", box=box)) for name in names])


def plan_pyramid(url: str | os.PathLike[str], layer: str | None = None, **options: Any) -> PyramidPlan:
    """Tell what :func:`build_pyramid` would do with the same arguments, without writing anything: what ``wkwdask pyramid --dry-run`` prints.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    layer : str, optional
        The layer; may be omitted where there is one.
    **options
        As for :func:`build_pyramid`, but ``update`` and ``bounding_box``.

    Returns
    -------
    PyramidPlan
        Tasks, files, bytes, memory and time; its ``str()`` is for people.

    Raises
    ------
    MissingError, ResumeError, UnsupportedError, ValueError
        As for :func:`build_pyramid`.
    """
    from wkwdask.graphs.runners import num_workers

    if layer is not None and not isinstance(layer, str):
        raise TypeError(f"a plan is of one layer, got {layer!r}")
    existing = options.pop("existing", "error")
    workers = num_workers()
    return estimate_pyramid(stage_pyramid(url, layer, _pyramid_options(**options), existing, workers), workers)


def upsample(
    url: str | os.PathLike[str],
    layer: str | None = None,
    *,
    source: MagLike | None = None,
    finest: MagLike | None = None,
    mags: Sequence[MagLike] | None = None,
    compression: str | None = None,
    level: int = DEFAULT_LEVEL,
    block_len: int | None = None,
    file_len: int | None = None,
    existing: Literal["error", "resume", "overwrite"] = "error",
) -> Report:
    """Make finer mags of a layer from a coarse one: each voxel becomes a block of equal voxels.

    Runs on threads, or on the active dask Client; the result is the same. The mags appear whole, then the JSON lists them. What an interrupted
    call finished is kept: the same call goes on from there.

    Parameters
    ----------
    url : str or path
        A dataset or a layer. A mag's folder makes that mag the source.
    layer : str, optional
        The layer; may be omitted where there is one.
    source : Mag, str, int or sequence of 3 int, optional
        The coarse mag to start from; by default the finest that has files.
    finest : Mag, str, int or sequence of 3 int, optional
        The finest mag to make, 1 by default. Between it and the source, the mags of WEBKNOSSOS's ladder (or those that other layers have) are made too; a
        mag that has data is left alone, unless it was made from the source by this function and ``existing`` is not ``"error"``.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags to make, in place of that ladder. Each is made from the source directly, by any factor on each axis.
    compression : {"lz4hc", "lz4", "raw"}, optional
        How blocks are encoded; by default as in the source, LZ4HC if that is raw.
    level : int
        LZ4HC level, 1..12.
    block_len, file_len : int, optional
        Edge of a block [voxels] and of a file [blocks] of the new mags, powers of two up to 128; by default as in the source, but where that has a file
        for each block, files of 8 blocks along an edge.
    existing : {"error", "resume", "overwrite"}
        What to do where one of the mags is there already. ``"resume"`` goes on with an interrupted job (as every value but ``"overwrite"`` does) and does
        nothing where the job was finished; ``"overwrite"`` replaces the mags whole, and starts anew.

    Returns
    -------
    Report

    Raises
    ------
    ExistsError
        A mag is there and ``existing="error"``.
    LockedError
        Another job writes one of the mags.
    ResumeError
        What is there, or was interrupted, was made with other settings or from other data.
    MissingError
        There is no such layer, or the source has no files.
    UnsupportedError
        A mag's path leaves the dataset.
    FormatError
        A source file is broken.
    ValueError
        An option makes no sense, or a mag is not finer than the source.

    Notes
    -----
    Voxel (x, y, z) of a new mag is voxel (x // fx, y // fy, z // fz) of the source, counted from the dataset's origin. A new mag's box is the layer's box in
    that mag: what the source holds beyond it is cut off.
    """
    from wkwdask.graphs import build
    from wkwdask.graphs.runners import num_workers

    mags_of = _parsed_mags({"source": source, "finest": finest, "mags": mags})
    options = UpsampleOptions(**mags_of, compression=compression, level=level, block_len=block_len, file_len=file_len)
    return build.upsample(stage_upsample(url, layer, options, existing, num_workers()))


def _pyramid_options(**values: Any) -> PyramidOptions:
    """Turn what a user gives into options."""
    unknown = sorted(set(values) - {field.name for field in fields(PyramidOptions)})
    if unknown:
        raise TypeError(f"no such option here: {', '.join(unknown)}")
    return PyramidOptions(**_parsed_mags(values))


def _parsed_mags(values: dict[str, Any]) -> dict[str, Any]:
    """Parse the mags among options; they may come in any form."""
    for name in ("source", "finest", "coarsest"):
        if values.get(name) is not None:
            values[name] = Mag.parse(values[name])
    mags = values.get("mags")
    if mags is not None:
        if isinstance(mags, (Mag, int)):
            raise TypeError(f"mags must be a sequence of mags, got {mags!r}")
        values["mags"] = tuple(Mag.parse(mag) for mag in (mags.split(",") if isinstance(mags, str) else mags))
    return values


def info(url: str | os.PathLike[str]) -> DatasetSummary:
    """Summarise a dataset, layer or mag: what ``wkwdask info`` prints.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.

    Returns
    -------
    DatasetSummary

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    FormatError
        The JSON is broken.
    """
    return summarize(url)


def _voxel_box(box: BoundingBox | Sequence[Sequence[int]], mag: Mag) -> BoundingBox:
    """Turn a pair of corners into a box of a mag."""
    if isinstance(box, BoundingBox):
        return box.in_mag(mag)
    if len(box) != 2:
        raise ValueError(f"box is a pair of corners ((x, y, z), (x, y, z)), got {box!r}")
    return BoundingBox.from_corners(box[0], box[1], mag)
