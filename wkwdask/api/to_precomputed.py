"""Write an array as a scale of a Neuroglancer precomputed volume: :func:`wkwdask.save` with the
options of that format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from wkwdask.api.options import PlacedOptions, storage_options
from wkwdask.formats.precomputed.format import FORMAT
from wkwdask.formats.precomputed.options import PrecomputedOptions

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed
    from xarray import DataArray

    from wkwdask.api.options import Existing, MagLike, Url, Voxels
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.runs.report import Report

Encoding = Literal["raw", "compressed_segmentation", "compresso", "jpeg", "png", "jxl"]


class PrecomputedKeywords(PlacedOptions, total=False):
    """Keyword arguments of :func:`to_precomputed`."""

    chunk_shape: int | Sequence[int] | None
    shard_shape: int | Sequence[int] | bool | Sharding | None
    encoding: Encoding | None
    quality: int | None
    compression: Literal["gzip", "raw"] | None
    force: bool
    type: Literal["image", "segmentation"] | None


@overload
def to_precomputed(
    array: Voxels,
    url: Url,
    *,
    compute: Literal[True] = True,
    **options: Unpack[PrecomputedKeywords],
) -> Report: ...


@overload
def to_precomputed(
    array: Voxels, url: Url, *, compute: Literal[False], **options: Unpack[PrecomputedKeywords]
) -> Delayed: ...


@storage_options(PrecomputedOptions)
def to_precomputed(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    chunk_shape: int | Sequence[int] | None = None,
    shard_shape: int | Sequence[int] | bool | Sharding | None = None,
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
    force_space: bool = False,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one scale of a Neuroglancer precomputed volume, in parallel.

    The scale is published atomically once it is complete; then ``info`` is created or updated.
    Chunks that are all zero are not stored: readers see zeros there. ``shard_shape`` also accepts a
    :class:`Sharding`, as returned by :func:`choose_sharding`.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks, of a type that the format supports. A DataArray has the
        dimensions x, y, z (and c) in any order.
    url : str or path
        Folder of the volume, or its URL in a bucket, with or without the prefix
        ``precomputed://``.
    {options}
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of the finest scale along x, y, z [nm]; required for a new volume,
        unless a DataArray states them.
    offset : sequence of 3 int, optional
        Position of element 0 [absolute voxels of the scale]; may be negative. By default 0, or the
        position given by the coordinates of a DataArray.
    region : BoundingBox or pair of corners, optional
        Box of an existing scale to overwrite, as for :func:`to_wkw` [absolute voxels of the scale].
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the scale exists; ``"overwrite"`` replaces it, and continues an interrupted call
        only with the same ``token``; ``"restart"`` replaces it and starts over. ``"resume"``
        continues an interrupted call with the same settings, as for :func:`to_wkw`.
    type : {"image", "segmentation"}, optional
        Type of a new volume; by default integers of 32 bits and more in one channel are a
        segmentation.
    mag : Mag, str or int, optional
        Voxel size of the scale as a multiple of the finest scale's: ``"2-2-1"`` adds a scale to an
        existing volume; by default the finest scale.
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
        The scale exists and ``existing="error"``, or the folder contains other files.
    LockedError
        Another job is writing it.
    ResumeError
        The interrupted job was started with other settings.
    UnsupportedError
        The URL is on a web server or in a zip.
    ValueError
        The encoding, type, shape or an option is invalid, or the existing volume has another type
        or voxel size.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_precomputed(
    ...     np.ones((100, 80, 60), np.uint32),
    ...     f"{folder}/seg",
    ...     voxel_size=(4, 4, 40),
    ...     offset=(-10, 0, 0),
    ... )
    >>> report.files, report.mags[0].nonzero.topleft
    (4, (-10, 0, 0))
    """
    from wkwdask.api.saving import save_as

    return save_as(
        FORMAT,
        array,
        url,
        chunk_shape=chunk_shape,
        shard_shape=shard_shape,
        encoding=encoding,
        quality=quality,
        compression=compression,
        force=force,
        voxel_size=voxel_size,
        offset=offset,
        region=region,
        existing=existing,
        category=type,
        mag=mag,
        token=token,
        force_space=force_space,
        compute=compute,
    )
