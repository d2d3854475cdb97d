"""Writing OME-NGFF images: Zarr 3 with shards, or Zarr 2."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from wkwdask.api.options import PlacedOptions, storage_options
from wkwdask.api.saving import Saving, lay_out_save
from wkwdask.formats.zarr.options import ZarrOptions
from wkwdask.formats.zarr.place import PREFIX
from wkwdask.geometry.mag import Mag
from wkwdask.model.extras import need
from wkwdask.model.options import check
from wkwdask.model.place import Destination

if TYPE_CHECKING:
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed
    from xarray import DataArray

    from wkwdask.api.options import Existing, MagLike
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.runs.report import Report

Compression = Literal["blosc", "zstd", "gzip", "raw"]
Version = Literal["0.5", "0.4"]


class ZarrKeywords(PlacedOptions, total=False):
    """What :func:`to_zarr` takes."""

    chunk_shape: Sequence[int] | None
    shard_shape: Sequence[int] | bool | None
    compression: Compression | None
    level: int | None
    ngff: Version | None
    category: Literal["color", "segmentation"] | None


@overload
def to_zarr(
    array: da.Array | npt.NDArray[Any] | DataArray, url: str | os.PathLike[str], *, compute: Literal[True] = True, **options: Unpack[ZarrKeywords]
) -> Report: ...


@overload
def to_zarr(
    array: da.Array | npt.NDArray[Any] | DataArray, url: str | os.PathLike[str], *, compute: Literal[False], **options: Unpack[ZarrKeywords]
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
    chunk_shape: Sequence[int] | None = None,
    shard_shape: Sequence[int] | bool | None = None,
    compression: Compression | None = None,
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
        A name of the array's content: a call with another one does not go on.
    compute : bool
        False checks everything now and gives a dask ``Delayed`` whose last task ends the job.

    Returns
    -------
    Report or Delayed

    Raises
    ------
    ExistsError
        The mag is there and ``existing="error"``, or the folder holds something else.
    LockedError
        Another job writes it.
    ModuleNotFoundError
        zarr is not installed: ``pip install 'wkwdask[zarr]'``.
    ResumeError
        What was interrupted was started with other settings.
    UnsupportedError
        The URL is remote.
    ValueError
        Shape or an option makes no sense, or the image there has other axes.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> image = np.ones((100, 80, 60), np.uint8)
    >>> report = wkwdask.to_zarr(image, f"{folder}/em.ome.zarr", voxel_size=(4, 4, 40))  # doctest: +SKIP
    """
    from wkwdask.graphs.write import write_now_or_later

    need("zarr", "to_zarr", "zarr")
    stored = check(ZarrOptions, chunk_shape=chunk_shape, shard_shape=shard_shape, compression=compression, level=level, ngff=ngff)
    wanted = Destination(PREFIX + os.fspath(url).removeprefix(PREFIX), mag=None if mag is None else Mag.parse(mag), category=category)
    staged, voxels, trusted = lay_out_save(array, offset, wanted, voxel_size, stored, Saving("to_zarr", existing, token, region))
    written: Report | Delayed = write_now_or_later(staged, voxels, trusted, compute=compute)
    return written
