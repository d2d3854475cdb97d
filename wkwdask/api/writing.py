"""Write arrays as levels of images in any format, and create empty levels."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from wkwdask.api.options import PlacedOptions, StorageKeywords, WriteOptions, parse_voxel_size, storage_options
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
from wkwdask.model.options import make_options
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
Version = Literal["0.6", "0.5", "0.4"]


class WkwKeywords(WriteOptions, total=False):
    """Keyword arguments of :func:`to_wkw`."""

    voxel_size: Sequence[float] | None
    chunk_shape: Sequence[int] | None
    shard_shape: Sequence[int] | None
    compression: str | None
    level: int | Literal["auto"] | None
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
    level: int | Literal["auto"] | None = None,
    block_len: int | None = None,
    file_len: int | None = None,
    any_length: bool = False,
    existing: Existing = "error",
    token: str | None = None,
    category: Literal["color", "segmentation"] | None = None,
    allow_external: bool = False,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one WKW mag, or into a region of an existing mag, in parallel.

    A new mag is published atomically once it is complete. With ``region``, the files of the mag are replaced one by one, each atomically. Files that the
    region covers in part keep their other voxels, and encoded blocks that it does not touch are copied without decoding.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks, of a type that WKW supports. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        Folder of the mag, such as ``dataset/layer/1``. The ``datasource-properties.json`` of the dataset is updated. If it does not exist, ``voxel_size``
        creates it; without ``voxel_size``, a warning is issued and only the mag itself stores its box.
    offset : sequence of 3 int, optional
        Position of element 0 [absolute voxels of the mag]; by default 0, or the position given by the coordinates x, y, z of a DataArray. Coordinates are
        voxel indices, or with ``units`` lengths of the corners or centers of voxels.
    region : BoundingBox or pair of corners, optional
        Box of an existing mag to overwrite: its lowest corner and the corner beyond its highest voxel [absolute voxels of the mag], as for :func:`read`.
        Other jobs can write other files of the mag at the same time; a job that needs the same files is refused.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm], for a new ``datasource-properties.json``; an existing one must state the same.
    {options}
    existing : {"error", "resume", "overwrite"}
        Action if the mag exists; ``"overwrite"`` replaces it. The same call resumes an interrupted one: its finished files are kept after a check of their
        size, header and jump table. The same call means the same settings and the same array: equal voxels in memory, a dask graph of the same name, or the
        same ``token``. With ``"resume"``, a dask array is compared by position, shape and type only; its content must be the same.
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
        ``region`` is given, and the mag does not exist.
    ResumeError
        The interrupted job was started with other settings.
    TypeError
        WKW has no voxel type for the array, or the existing mag has another type.
    ValueError
        The shape, the offset or an option is invalid.

    Notes
    -----
    Memory is bounded by the chunks of the array and by parts of files of at most 128 MB. If a part of a file touches more chunks than fit into memory, such as
    wide sections, chunks are first split into scratch files beside the target; the report mentions it.

    Examples
    --------
    >>> import tempfile
    >>> import dask.array as da
    >>> import wkwdask
    >>> dataset = tempfile.mkdtemp() + "/cells"
    >>> report = wkwdask.to_wkw(da.ones((64, 64, 64), dtype="uint8", chunks=32), f"{dataset}/raw/1", voxel_size=(4, 4, 35))
    >>> wkwdask.open_dataset(dataset)["raw"]
    Layer 'raw': color, uint8, (0, 0, 0) + (64, 64, 64), mags 1
    """
    from wkwdask.api.saving import save

    if format_of_target(url) is not default_format():
        raise ValueError(f"{os.fspath(url)}: named as {format_of_target(url).options.title}, but to_wkw() writes WKW; use write() for other formats")
    storage = make_options(
        WkwOptions, chunk_shape=chunk_shape, shard_shape=shard_shape, compression=compression, level=level, block_len=block_len, file_len=file_len,
        any_length=any_length,
    )  # fmt: skip
    return save(
        "to_wkw", array, _target(url, None, category, allow_external=allow_external), storage, offset=offset, region=region,
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
    """Create a mag without voxels, for jobs that each write a region of it.

    Parameters
    ----------
    url : str or path
        Folder of the mag, such as ``dataset/layer/1``; or an image or level in another format with its prefix, such as ``"precomputed://PATH"``.
    box : BoundingBox or pair of corners
        Box of the future data: its lowest corner and the corner beyond its highest voxel [absolute voxels of the mag]. The JSON of the dataset stores it.
    dtype : dtype_like
        Type of one channel.
    num_channels : int
        Number of channels.
    mag : Mag, str or int, optional
        The mag in formats other than WKW; 1 by default.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm], for a new dataset or image, as for :func:`to_wkw`.
    existing : {"error", "overwrite"}
        Action if the mag exists; ``"overwrite"`` replaces it.
    category : {"color", "segmentation"}, optional
        Category of a layer that the JSON does not list yet; by default integers of 32 bits and more are a segmentation.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    **options
        Storage options of the mag.
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
        The format does not support the dtype.
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
    size = None if voxel_size is None else parse_voxel_size(voxel_size)
    storage = make_options(format_of_target(url).options, **options)
    target_image = target_for(replace(_target(url, mag, category, allow_external=allow_external), voxel_size_nm=size))
    target_box = voxel_box(box, target_image.mag)
    content = ArrayContent((num_channels, *target_box.size), np.dtype(dtype), "nothing", in_memory=True)
    staged, _ = lay_out_write(target_image, target_box.topleft, content, storage, existing, "to_wkw")
    if staged.edit is None:
        warnings.warn(no_dataset_note(staged.folders[0]), stacklevel=2)
    return run_plan(Creation(staged))


def write(url: str | os.PathLike[str], offset: Sequence[int] | None, array: npt.NDArray[Any], **options: Any) -> Report:
    """Write a numpy array as one mag, in the format that the URL names.

    Parameters
    ----------
    url : str or path
        Folder of the mag; or an image or level in another format with its prefix, such as ``"precomputed://PATH"``.
    offset : sequence of 3 int
        Position of element 0 [absolute voxels of the mag]; None with ``region``.
    array : ndarray, shape (x, y, z) or (c, x, y, z)
        The voxels.
    **options
        As for :func:`to_wkw`, except ``compute``. Formats other than WKW accept ``mag``, ``region``, ``voxel_size``, ``category``, ``existing``, ``token`` and
        their storage options.

    Returns
    -------
    Report

    Raises
    ------
    ExistsError, LockedError, TypeError, ValueError
        As for :func:`to_wkw`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.write(f"{folder}/raw/1", (10, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1)
    >>> wkwdask.read(f"{folder}/raw/1", ((10, 0, 0), (12, 1, 1))).ravel().tolist()
    [1, 1]
    """
    if "compute" in options:
        raise TypeError("write() always computes; use to_wkw(compute=False)")
    if format_of_target(url) is default_format():
        report: Report = to_wkw(np.asanyarray(array), url, offset=offset, **options)
        return report
    from wkwdask.api.saving import save

    mag, category = options.pop("mag", None), options.pop("category", None)
    saving = {name: options.pop(name) for name in ("region", "voxel_size", "existing", "token") if name in options}
    storage = make_options(format_of_target(url).options, **options)
    target = _target(url, mag, category)
    return save("write", np.asanyarray(array), target, storage, offset=offset, **saving)  # type: ignore[return-value]


def _target(url: str | os.PathLike[str], mag: MagLike | None, category: str | None, *, allow_external: bool = False) -> Destination:
    """Return the target of one level."""
    is_wkw = format_of_target(url) is default_format()
    if is_wkw and mag is not None:
        raise ValueError(f"{os.fspath(url)}: mag= does not apply to WKW; name the mag by its folder, such as DATASET/LAYER/2-2-1")
    parsed_mag = None if mag is None else Mag.parse(mag)
    return Destination(os.fspath(url), mag=parsed_mag, category=category, needs_container=not is_wkw, allow_external=allow_external)


class PrecomputedKeywords(PlacedOptions, total=False):
    """Keyword arguments of :func:`to_precomputed`."""

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
    """Write an array as one scale of a Neuroglancer precomputed volume, in parallel.

    The scale is published atomically once it is complete; then ``info`` is created or updated. Chunks that are all zero are not stored: readers see zeros
    there. ``shard_shape`` also accepts a :class:`Sharding`, as returned by :func:`choose_sharding`.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks, of a type that the format supports. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        Folder of the volume, with or without the prefix ``precomputed://``. Remote volumes cannot be written.
    {options}
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of the finest scale along x, y, z [nm]; required for a new volume, unless a DataArray states them.
    offset : sequence of 3 int, optional
        Position of element 0 [absolute voxels of the scale]; may be negative. By default 0, or the position given by the coordinates of a DataArray.
    region : BoundingBox or pair of corners, optional
        Box of an existing scale to overwrite, as for :func:`to_wkw` [absolute voxels of the scale].
    existing : {"error", "resume", "overwrite"}
        Action if the scale exists; ``"overwrite"`` replaces it. ``"resume"`` continues an interrupted call with the same settings, as for :func:`to_wkw`.
    type : {"image", "segmentation"}, optional
        Type of a new volume; by default integers of 32 bits and more in one channel are a segmentation.
    mag : Mag, str or int, optional
        Voxel size of the scale as a multiple of the finest scale's: ``"2-2-1"`` adds a scale to an existing volume; by default the finest scale.
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
        The scale exists and ``existing="error"``, or the folder contains other files.
    LockedError
        Another job is writing it.
    ResumeError
        The interrupted job was started with other settings.
    UnsupportedError
        The URL is remote.
    ValueError
        The encoding, type, shape or an option is invalid, or the existing volume has another type or voxel size.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_precomputed(np.ones((100, 80, 60), np.uint32), f"{folder}/seg", voxel_size=(4, 4, 40), offset=(-10, 0, 0))
    >>> report.files, report.mags[0].nonzero.topleft
    (4, (-10, 0, 0))
    """
    from wkwdask.api.saving import save

    storage = make_options(
        PrecomputedOptions, chunk_shape=chunk_shape, shard_shape=shard_shape, encoding=encoding, quality=quality, compression=compression, force=force
    )  # fmt: skip
    return save(
        "to_precomputed", array, _target(precomputed_layer.PREFIX + precomputed_layer.stripped(url), mag, type), storage, offset=offset, region=region,
        voxel_size=voxel_size, existing=existing, token=token, compute=compute,
    )  # fmt: skip


class ZarrKeywords(PlacedOptions, total=False):
    """Keyword arguments of :func:`to_zarr`."""

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
    """Write an array as one mag of an OME-NGFF image ("OME-Zarr"), in parallel.

    The Zarr array is published atomically once it is complete; then ``multiscales`` is created or updated. Each shard is written once, by one task,
    independent of the chunks of the input. Chunks that are all zero are not stored: readers see zeros there.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        Folder of the image, such as ``"em.ome.zarr"``, with or without the prefix ``zarr://``; ``"em.ome.zarr/labels/NAME"`` is one of its labels. Remote
        images cannot be written.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm]; required for a new image, unless a DataArray states them.
    offset : sequence of 3 int, optional
        Position of element 0 [absolute voxels of the mag]; may be negative. By default 0, or the position given by the coordinates of a DataArray.
    region : BoundingBox or pair of corners, optional
        Box of an existing mag to overwrite, as for :func:`to_wkw` [absolute voxels of the mag].
    mag : Mag, str or int, optional
        The mag: ``"2-2-1"`` adds an array to an existing image; by default 1.
    {options}
    category : {"color", "segmentation"}, optional
        Category of a new image; by default integers of 32 bits and more in one channel are a segmentation.
    existing : {"error", "resume", "overwrite"}
        Action if the mag exists; ``"overwrite"`` replaces it. ``"resume"`` continues an interrupted call with the same settings, as for :func:`to_wkw`.
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
        The mag exists and ``existing="error"``, or the folder contains other files.
    LockedError
        Another job is writing it.
    ModuleNotFoundError
        zarr is not installed: ``pip install 'wkwdask[zarr]'``.
    ResumeError
        The interrupted job was started with other settings.
    UnsupportedError
        The URL is remote.
    ValueError
        The shape or an option is invalid, or the existing image has other axes.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> image = np.ones((100, 80, 60), np.uint8)
    >>> report = wkwdask.to_zarr(image, f"{folder}/em.ome.zarr", voxel_size=(4, 4, 40))  # doctest: +SKIP
    """
    from wkwdask.api.saving import save

    import_extra("zarr", "to_zarr", "zarr")
    storage = make_options(ZarrOptions, chunk_shape=chunk_shape, shard_shape=shard_shape, compression=compression, level=level, ngff=ngff)
    return save(
        "to_zarr", array, _target(zarr_layer.PREFIX + os.fspath(url).removeprefix(zarr_layer.PREFIX), mag, category), storage, offset=offset, region=region,
        voxel_size=voxel_size, existing=existing, token=token, compute=compute,
    )  # fmt: skip


class N5Keywords(PlacedOptions, total=False):
    """Keyword arguments of :func:`to_n5`."""

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
    """Write an array as one N5 dataset, in parallel.

    The dataset is published atomically once it is complete; then the attributes of its group are created or updated. Blocks at the upper border are
    truncated, as the N5 specification requires. Blocks that are all zero are not stored: readers see zeros there.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        Folder of the dataset, such as ``volume.n5/raw`` or ``volume.n5/raw/s0``, with or without the prefix ``n5://``. A name like ``s0`` makes it a level
        of the group above. Remote containers cannot be written.
    {options}
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm]; by default those of a DataArray or of the group.
    offset : sequence of 3 int, optional
        Position of element 0 [absolute voxels of the mag]; may be negative. By default 0, or the position given by the coordinates of a DataArray. N5 arrays
        begin at 0; the position is stored as ``transform``.
    region : BoundingBox or pair of corners, optional
        Box of an existing dataset to overwrite, as for :func:`to_wkw` [absolute voxels of the mag].
    mag : Mag, str or int, optional
        Voxel size of the dataset as a multiple of that of ``s0``, such as ``"2-2-1"`` for ``s1``; 1 by default.
    existing : {"error", "resume", "overwrite"}
        Action if the dataset exists; ``"overwrite"`` replaces it. ``"resume"`` continues an interrupted call with the same settings, as for
        :func:`to_wkw`.
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
        The dataset exists and ``existing="error"``, or the folder contains other files.
    LockedError
        Another job is writing it.
    ResumeError
        The interrupted job was started with other settings.
    TypeError
        N5 does not support the type.
    UnsupportedError
        The URL is remote.
    ValueError
        The shape or an option is invalid.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_n5(np.ones((100, 80, 60), np.uint16), f"{folder}/v.n5/raw/s0", voxel_size=(4, 4, 40), offset=(-10, 0, 0))
    >>> wkwdask.open(f"n5://{folder}/v.n5/raw").shape, report.files
    ((1, 100, 80, 60), 4)
    """
    from wkwdask.api.saving import save

    storage = make_options(N5Options, chunk_shape=chunk_shape, compression=compression, level=level)
    return save(
        "to_n5", array, _target(n5_layer.PREFIX + n5_layer.stripped(url), mag, None), storage, offset=offset, region=region,
        voxel_size=voxel_size, existing=existing, token=token, compute=compute,
    )  # fmt: skip
