"""Writing voxels: arrays as levels of images in any format."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from wkwdask.api.options import PlacedOptions, StorageKeywords, WriteOptions, positive_lengths, storage_options
from wkwdask.formats.n5 import layer as n5_layer
from wkwdask.formats.n5.options import N5Options
from wkwdask.formats.opening import format_of_target, target_for
from wkwdask.formats.precomputed import layer as precomputed_layer
from wkwdask.formats.precomputed.options import PrecomputedOptions
from wkwdask.formats.registry import default_format
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.formats.zarr import layer as zarr_layer
from wkwdask.formats.zarr.options import ZarrOptions
from wkwdask.geometry.bounding_box import BoundingBox, voxel_box
from wkwdask.geometry.mag import Mag
from wkwdask.model.extras import import_extra
from wkwdask.model.options import check
from wkwdask.model.target_image import Destination
from wkwdask.verbs.write import Creation, lay_out_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed
    from xarray import DataArray

    from wkwdask.api.options import Existing, MagLike
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.runs.report import Report

    Url = str | os.PathLike[str]
    Voxels = da.Array | npt.NDArray[Any] | DataArray

Encoding = Literal["raw", "compressed_segmentation", "compresso", "jpeg", "png", "jxl"]
N5Compression = Literal["gzip", "zlib", "bzip2", "xz", "zstd", "blosc", "raw"]
ZarrCompression = Literal["blosc", "zstd", "gzip", "raw"]
Version = Literal["0.5", "0.4"]


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
def to_wkw(array: Voxels, url: Url, *, compute: Literal[True] = True, **options: Unpack[WkwKeywords]) -> Report: ...


@overload
def to_wkw(array: Voxels, url: Url, *, compute: Literal[False], **options: Unpack[WkwKeywords]) -> Delayed: ...


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
        Name of the array's content; a call with another token does not resume the job.
    category : {"color", "segmentation"}, optional
        Category of a layer that the JSON does not list yet; by default integers of 32 bits and more are a segmentation.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    compute : bool
        If False, check everything now and return a dask ``Delayed`` whose last task ends the job.

    Returns
    -------
    Report or Delayed

    Raises
    ------
    BoundsError
        The region reaches outside the layer.
    ExistsError
        The mag exists and ``existing="error"``.
    LockedError
        Another job writes it, or some of the same files.
    MissingError
        There is a region, but no mag.
    ResumeError
        The interrupted job was started with other settings.
    TypeError
        WKW has no voxel type for the array, or the mag has another one.
    ValueError
        Shape, offset or an option is invalid.

    Notes
    -----
    Memory is bounded by the chunks of the array and by parts of files of at most 128 MB. Chunks such as wide sections, of which a part of a file touches more
    than fit into memory, are cut up into scratch files beside the target first; the report says so.
    """
    from wkwdask.api.saving import save

    if format_of_target(url) is not default_format():
        raise ValueError(f"{os.fspath(url)}: is named as {format_of_target(url).options.title}, and to_wkw writes WKW; write() takes any format")
    stored = check(
        WkwOptions, chunk_shape=chunk_shape, shard_shape=shard_shape, compression=compression, level=level, block_len=block_len, file_len=file_len,
        any_length=any_length,
    )  # fmt: skip
    return save(
        "to_wkw", array, _target(url, None, category, allow_external=allow_external), stored, offset=offset, region=region,
        voxel_size=voxel_size, existing=existing, token=token, compute=compute,
    )  # fmt: skip


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
        Category of a layer that the JSON does not list yet; by default integers of 32 bits and more are a segmentation.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    **options
        How the mag is stored.
        {options}

    Returns
    -------
    Report

    Raises
    ------
    ExistsError
        The mag exists and ``existing="error"``.
    LockedError
        Another job is writing it.
    TypeError
        The format has no such type.
    ValueError
        An option is invalid.

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
    from wkwdask.api.saving import no_dataset_note
    from wkwdask.graphs.runners import run_plan
    from wkwdask.runs.staged import ArrayContent

    if existing not in ("error", "overwrite"):
        raise ValueError(f'existing must be "error" or "overwrite", got {existing!r}')
    size = None if voxel_size is None else positive_lengths(voxel_size)
    stored = check(format_of_target(url).options, **options)
    place = target_for(replace(_target(url, mag, category, allow_external=allow_external), voxel_size_nm=size))
    asked = voxel_box(box, place.mag)
    content = ArrayContent((num_channels, *asked.size), np.dtype(dtype), "nothing", in_memory=True)
    staged, _ = lay_out_write(place, asked.topleft, content, stored, existing, "to_wkw")
    if staged.edit is None:
        warnings.warn(no_dataset_note(staged.folders[0]), stacklevel=2)
    return run_plan(Creation(staged))


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
    if format_of_target(url) is default_format():
        report: Report = to_wkw(np.asanyarray(array), url, offset=offset, **options)
        return report
    from wkwdask.api.saving import save

    its_mag, category = options.pop("mag", None), options.pop("category", None)
    saving = {name: options.pop(name) for name in ("region", "voxel_size", "existing", "token") if name in options}
    stored = check(format_of_target(url).options, **options)
    target = _target(url, its_mag, category)
    return save("write", np.asanyarray(array), target, stored, offset=offset, **saving)  # type: ignore[return-value]


def _target(url: str | os.PathLike[str], mag: MagLike | None, category: str | None, *, allow_external: bool = False) -> Destination:
    """Say where one level is wanted."""
    is_mag = format_of_target(url) is default_format()
    if is_mag and mag is not None:
        raise ValueError(f"{os.fspath(url)}: a mag in WKW is named by its folder, such as DATASET/LAYER/2-2-1, and not by mag=")
    wanted = None if mag is None else Mag.parse(mag)
    return Destination(os.fspath(url), mag=wanted, category=category, needs_container=not is_mag, allow_external=allow_external)


class PrecomputedKeywords(PlacedOptions, total=False):
    """What :func:`to_precomputed` takes."""

    chunk_shape: Sequence[int] | None
    shard_shape: Sequence[int] | bool | Sharding | None
    encoding: Encoding | None
    quality: int | None
    compression: Literal["gzip", "raw"] | None
    force: bool
    type: Literal["image", "segmentation"] | None


@overload
def to_precomputed(array: Voxels, url: Url, *, compute: Literal[True] = True, **options: Unpack[PrecomputedKeywords]) -> Report: ...


@overload
def to_precomputed(array: Voxels, url: Url, *, compute: Literal[False], **options: Unpack[PrecomputedKeywords]) -> Delayed: ...


@storage_options(PrecomputedOptions)
def to_precomputed(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    chunk_shape: Sequence[int] | None = None,
    shard_shape: Sequence[int] | bool | Sharding | None = None,
    encoding: Encoding | None = None,
    quality: int | None = None,
    compression: Literal["gzip", "raw"] | None = None,
    force: bool = False,
    voxel_size: Sequence[float] | None = None,
    offset: Sequence[int] | None = None,
    region: BoundingBox | Sequence[Sequence[int]] | None = None,
    existing: Existing = "error",
    type: Literal["image", "segmentation"] | None = None,
    mag: MagLike | None = None,
    token: str | None = None,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one scale of a Neuroglancer precomputed volume, in parallel and safely.

    The scale appears when it is complete, or not at all, and ``info`` follows at once; a volume without ``info`` gets one. Chunks that are all zero are not
    stored: readers see zeros there. ``shard_shape`` also takes a :class:`Sharding`, such as :func:`choose_sharding` returns.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks, of a type that the format has. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        The volume's folder, with or without ``precomputed://`` before it. Remote volumes cannot be written.
    {options}
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of the finest scale [nm]; needed for a new volume, unless a DataArray says it.
    offset : sequence of 3 int, optional
        Absolute voxel of the scale that element 0 goes to; may be negative. By default 0, or what the coordinates of a DataArray say.
    region : BoundingBox or pair of corners, optional
        Write into the scale that is there, as :func:`to_wkw` does: the lowest corner and the one beyond the highest, absolute voxels of the mag.
    existing : {"error", "resume", "overwrite"}
        What to do where the scale already exists; ``"overwrite"`` replaces it whole. ``"resume"`` goes on with an interrupted call of the same settings,
        as for :func:`to_wkw`.
    type : {"image", "segmentation"}, optional
        What a new volume is; by default integers of 32 bits and more in one channel are a segmentation.
    mag : Mag, str or int, optional
        Which scale: ``"2-2-1"`` adds one to a volume that is there, whose voxels are so many times as long; by default the finest.
    token : str, optional
        Name of the array's content; a call with another token does not resume the job.
    compute : bool
        If False, check everything now and return a dask ``Delayed`` whose last task ends the job.

    Returns
    -------
    Report or Delayed

    Raises
    ------
    ExistsError
        The scale is there and ``existing="error"``, or the folder holds something else.
    LockedError
        Another job is writing it.
    ResumeError
        The interrupted job was started with other settings.
    UnsupportedError
        The URL is remote.
    ValueError
        Encoding, type, shape or an option is invalid, or the volume there has another type or voxel size.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_precomputed(np.ones((100, 80, 60), np.uint32), f"{folder}/seg", voxel_size=(4, 4, 40), offset=(-10, 0, 0))
    >>> report.files, report.mags[0].nonzero.topleft
    (4, (-10, 0, 0))
    """
    from wkwdask.api.saving import save

    stored = check(
        PrecomputedOptions, chunk_shape=chunk_shape, shard_shape=shard_shape, encoding=encoding, quality=quality, compression=compression, force=force
    )  # fmt: skip
    return save(
        "to_precomputed", array, _target(precomputed_layer.PREFIX + precomputed_layer.stripped(url), mag, type), stored, offset=offset, region=region,
        voxel_size=voxel_size, existing=existing, token=token, compute=compute,
    )  # fmt: skip


class ZarrKeywords(PlacedOptions, total=False):
    """What :func:`to_zarr` takes."""

    chunk_shape: Sequence[int] | None
    shard_shape: Sequence[int] | bool | None
    compression: ZarrCompression | None
    level: int | None
    ngff: Version | None
    category: Literal["color", "segmentation"] | None


@overload
def to_zarr(array: Voxels, url: Url, *, compute: Literal[True] = True, **options: Unpack[ZarrKeywords]) -> Report: ...


@overload
def to_zarr(array: Voxels, url: Url, *, compute: Literal[False], **options: Unpack[ZarrKeywords]) -> Delayed: ...


@storage_options(ZarrOptions)
def to_zarr(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    voxel_size: Sequence[float] | None = None,
    offset: Sequence[int] | None = None,
    region: BoundingBox | Sequence[Sequence[int]] | None = None,
    mag: MagLike | None = None,
    chunk_shape: Sequence[int] | None = None,
    shard_shape: Sequence[int] | bool | None = None,
    compression: ZarrCompression | None = None,
    level: int | None = None,
    ngff: Version | None = None,
    category: Literal["color", "segmentation"] | None = None,
    existing: Existing = "error",
    token: str | None = None,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one mag of an OME-NGFF image ("OME-Zarr"), in parallel and safely.

    The array appears when it is complete, or not at all, and ``multiscales`` follows at once; an image without it gets one. A shard is published once, by one
    task, in whatever chunks the array comes. Chunks that are all zero are not stored: readers see zeros there.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        The image's folder, such as ``"em.ome.zarr"``, with or without ``zarr://`` before it; ``"em.ome.zarr/labels/NAME"`` is one of its labels. Remote images
        cannot be written.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 [nm]; needed for a new image, unless a DataArray says it.
    offset : sequence of 3 int, optional
        Absolute voxel of the mag that element 0 is; may be negative. By default 0, or what the coordinates of a DataArray say.
    region : BoundingBox or pair of corners, optional
        Write into the array that is there, as :func:`to_wkw` does: the lowest corner and the one beyond the highest, absolute voxels of the mag.
    mag : Mag, str or int, optional
        Which mag: ``"2-2-1"`` adds an array to an image that is there; by default 1.
    {options}
    category : {"color", "segmentation"}, optional
        Whether voxels are ids; by default integers of 32 bits and more in one channel are.
    existing : {"error", "resume", "overwrite"}
        What to do where the mag already exists; ``"overwrite"`` replaces it whole. ``"resume"`` goes on with an interrupted call of the same settings, as
        for :func:`to_wkw`.
    token : str, optional
        Name of the array's content; a call with another token does not resume the job.
    compute : bool
        If False, check everything now and return a dask ``Delayed`` whose last task ends the job.

    Returns
    -------
    Report or Delayed

    Raises
    ------
    ExistsError
        The mag is there and ``existing="error"``, or the folder holds something else.
    LockedError
        Another job is writing it.
    ModuleNotFoundError
        zarr is not installed: ``pip install 'wkwdask[zarr]'``.
    ResumeError
        The interrupted job was started with other settings.
    UnsupportedError
        The URL is remote.
    ValueError
        Shape or an option is invalid, or the image there has other axes.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> image = np.ones((100, 80, 60), np.uint8)
    >>> report = wkwdask.to_zarr(image, f"{folder}/em.ome.zarr", voxel_size=(4, 4, 40))  # doctest: +SKIP
    """
    from wkwdask.api.saving import save

    import_extra("zarr", "to_zarr", "zarr")
    stored = check(ZarrOptions, chunk_shape=chunk_shape, shard_shape=shard_shape, compression=compression, level=level, ngff=ngff)
    return save(
        "to_zarr", array, _target(zarr_layer.PREFIX + os.fspath(url).removeprefix(zarr_layer.PREFIX), mag, category), stored, offset=offset, region=region,
        voxel_size=voxel_size, existing=existing, token=token, compute=compute,
    )  # fmt: skip


class N5Keywords(PlacedOptions, total=False):
    """What :func:`to_n5` takes."""

    chunk_shape: Sequence[int] | None
    compression: N5Compression | None
    level: int | None


@overload
def to_n5(array: Voxels, url: Url, *, compute: Literal[True] = True, **options: Unpack[N5Keywords]) -> Report: ...


@overload
def to_n5(array: Voxels, url: Url, *, compute: Literal[False], **options: Unpack[N5Keywords]) -> Delayed: ...


@storage_options(N5Options)
def to_n5(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    chunk_shape: Sequence[int] | None = None,
    compression: N5Compression | None = None,
    level: int | None = None,
    voxel_size: Sequence[float] | None = None,
    offset: Sequence[int] | None = None,
    region: BoundingBox | Sequence[Sequence[int]] | None = None,
    mag: MagLike | None = None,
    existing: Existing = "error",
    token: str | None = None,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one N5 dataset, in parallel and safely.

    The dataset appears when it is complete, or not at all, and the attributes of its group follow at once. Blocks at the upper ends are cut off, as the
    specification has it, and blocks that are all zero are not stored: readers see zeros there.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        The dataset's folder, such as ``volume.n5/raw`` or ``volume.n5/raw/s0``, with or without ``n5://`` before it. A name like ``s0`` makes it a level of
        the group above. Remote containers cannot be written.
    {options}
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 [nm]; by default what a DataArray or the group says.
    offset : sequence of 3 int, optional
        Absolute voxel of the mag that element 0 is; may be negative. N5 stores from 0 on, and the place is written as ``transform``. By default 0, or what the
        coordinates of a DataArray say.
    region : BoundingBox or pair of corners, optional
        Write into the dataset that is there, as :func:`to_wkw` does: the lowest corner and the one beyond the highest, absolute voxels of the mag.
    mag : Mag, str or int, optional
        How many voxels of ``s0`` one spans, such as ``"2-2-1"`` for ``s1``; 1 by default.
    existing : {"error", "resume", "overwrite"}
        What to do where the dataset already exists; ``"overwrite"`` replaces it whole. ``"resume"`` goes on with an interrupted call of the same settings,
        as for :func:`to_wkw`.
    token : str, optional
        Name of the array's content; a call with another token does not resume the job.
    compute : bool
        If False, check everything now and return a dask ``Delayed`` whose last task ends the job.

    Returns
    -------
    Report or Delayed

    Raises
    ------
    ExistsError
        The dataset is there and ``existing="error"``, or something else is.
    LockedError
        Another job is writing it.
    ResumeError
        The interrupted job was started with other settings.
    TypeError
        N5 has no such type.
    UnsupportedError
        The URL is remote.
    ValueError
        Shape or an option is invalid.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_n5(np.ones((100, 80, 60), np.uint16), f"{folder}/v.n5/raw/s0", voxel_size=(4, 4, 40), offset=(-10, 0, 0))
    >>> wkwdask.open(f"n5://{folder}/v.n5/raw").shape, report.files
    ((1, 100, 80, 60), 4)
    """
    from wkwdask.api.saving import save

    stored = check(N5Options, chunk_shape=chunk_shape, compression=compression, level=level)
    return save(
        "to_n5", array, _target(n5_layer.PREFIX + n5_layer.stripped(url), mag, None), stored, offset=offset, region=region,
        voxel_size=voxel_size, existing=existing, token=token, compute=compute,
    )  # fmt: skip
