"""Write an array as a level of an OME-NGFF image: :func:`wkwdask.save` with the options of Zarr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from wkwdask.api.options import PlacedOptions, storage_options
from wkwdask.formats.zarr.format import FORMAT
from wkwdask.formats.zarr.options import ZarrOptions
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed
    from xarray import DataArray

    from wkwdask.api.options import Existing, MagLike, Url, Voxels
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.runs.report import Report

Compression = Literal["blosc", "zstd", "gzip", "raw"]
Version = Literal["0.6", "0.5", "0.4"]


class ZarrKeywords(PlacedOptions, total=False):
    """Keyword arguments of :func:`to_zarr`."""

    chunk_shape: int | Sequence[int] | None
    shard_shape: int | Sequence[int] | bool | None
    compression: Compression | None
    level: int | None
    ngff: Version | None
    category: Literal["color", "segmentation"] | None


@overload
def to_zarr(
    array: Voxels, url: Url, *, compute: Literal[True] = True, **options: Unpack[ZarrKeywords]
) -> Report: ...


@overload
def to_zarr(
    array: Voxels, url: Url, *, compute: Literal[False], **options: Unpack[ZarrKeywords]
) -> Delayed: ...


@storage_options(ZarrOptions)
def to_zarr(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    voxel_size: Sequence[float] | None = None,
    offset: Sequence[int] | None = None,
    region: BoundingBox | Sequence[Sequence[int]] | None = None,
    mag: MagLike | None = None,
    chunk_shape: int | Sequence[int] | None = None,
    shard_shape: int | Sequence[int] | bool | None = None,
    compression: Compression | None = None,
    level: int | None = None,
    ngff: Version | None = None,
    category: Literal["color", "segmentation"] | None = None,
    existing: Existing = "error",
    token: str | None = None,
    force_space: bool = False,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one mag of an OME-NGFF image ("OME-Zarr"), in parallel.

    The Zarr array is published atomically once it is complete; then ``multiscales`` is created or
    updated. Each shard is written once, by one task, independent of the chunks of the input. Chunks
    that are all zero are not stored: readers see zeros there.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        Folder of the image, such as ``"em.ome.zarr"``, or its URL in a bucket, with or without the
        prefix ``zarr://``; ``"em.ome.zarr/labels/NAME"`` is one of its labels.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm]; required for a new image, unless a
        DataArray states them.
    offset : sequence of 3 int, optional
        Position of element 0 [absolute voxels of the mag]; may be negative. By default 0, or the
        position given by the coordinates of a DataArray.
    region : BoundingBox or pair of corners, optional
        Box of an existing mag to overwrite, as for :func:`to_wkw` [absolute voxels of the mag].
    mag : Mag, str or int, optional
        The mag: ``"2-2-1"`` adds an array to an existing image; by default 1.
    {options}
    category : {"color", "segmentation"}, optional
        Category of a new image; by default integers of 32 bits and more in one channel are a
        segmentation.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the mag exists; ``"overwrite"`` replaces it, and continues an interrupted call
        only with the same ``token``; ``"restart"`` replaces it and starts over. ``"resume"``
        continues an interrupted call with the same settings, as for :func:`to_wkw`.
    token : str, optional
        Name of the array's content; a call with another token does not resume the job.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
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
        The URL is on a web server or in a zip.
    ValueError
        The shape or an option is invalid, or the existing image has other axes.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> image = np.ones((100, 80, 60), np.uint8)
    >>> report = wkwdask.to_zarr(
    ...     image, f"{folder}/em.ome.zarr", voxel_size=(4, 4, 40)
    ... )  # doctest: +SKIP
    """
    from wkwdask.api.saving import save_as

    import_extra("zarr", "to_zarr", "zarr")
    return save_as(
        FORMAT,
        array,
        url,
        voxel_size=voxel_size,
        offset=offset,
        region=region,
        mag=mag,
        chunk_shape=chunk_shape,
        shard_shape=shard_shape,
        compression=compression,
        level=level,
        ngff=ngff,
        category=category,
        existing=existing,
        token=token,
        force_space=force_space,
        compute=compute,
    )
