"""Writing Neuroglancer precomputed volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from wkwdask.api.options import PlacedOptions, storage_options
from wkwdask.api.saving import Saving, lay_out_save
from wkwdask.formats.precomputed.layer import PREFIX, stripped
from wkwdask.formats.precomputed.options import PrecomputedOptions
from wkwdask.geometry.mag import Mag
from wkwdask.model.options import check
from wkwdask.model.place import Destination

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed
    from xarray import DataArray

    from wkwdask.api.options import Existing, MagLike
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.runs.report import Report

Encoding = Literal["raw", "compressed_segmentation", "compresso", "jpeg", "png", "jxl"]


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
def to_precomputed(
    array: da.Array | npt.NDArray[Any] | DataArray, url: str | os.PathLike[str], *, compute: Literal[True] = True, **options: Unpack[PrecomputedKeywords]
) -> Report: ...


@overload
def to_precomputed(
    array: da.Array | npt.NDArray[Any] | DataArray, url: str | os.PathLike[str], *, compute: Literal[False], **options: Unpack[PrecomputedKeywords]
) -> Delayed: ...


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
        A name of the array's content: a call with another one does not go on.
    compute : bool
        False checks everything now and gives a dask ``Delayed`` whose last task ends the job.

    Returns
    -------
    Report or Delayed

    Raises
    ------
    ExistsError
        The scale is there and ``existing="error"``, or the folder holds something else.
    LockedError
        Another job writes it.
    ResumeError
        What was interrupted was started with other settings.
    UnsupportedError
        The URL is remote.
    ValueError
        Encoding, type, shape or an option makes no sense, or the volume there has another type or voxel size.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_precomputed(np.ones((100, 80, 60), np.uint32), f"{folder}/seg", voxel_size=(4, 4, 40), offset=(-10, 0, 0))
    >>> report.files, report.mags[0].nonzero.topleft
    (4, (-10, 0, 0))
    """
    from wkwdask.graphs.write import write_now_or_later

    stored = check(
        PrecomputedOptions, chunk_shape=chunk_shape, shard_shape=shard_shape, encoding=encoding, quality=quality, compression=compression, force=force
    )  # fmt: skip
    wanted = Destination(PREFIX + stripped(url), mag=None if mag is None else Mag.parse(mag), category=type)
    staged, voxels, trusted = lay_out_save(array, offset, wanted, voxel_size, stored, Saving("to_precomputed", existing, token, region))
    written: Report | Delayed = write_now_or_later(staged, voxels, trusted, compute=compute)
    return written
