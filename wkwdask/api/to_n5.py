"""Write an array as an N5 dataset: :func:`wkwdask.save` with the options of N5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from wkwdask.api.options import PlacedOptions, storage_options
from wkwdask.formats.n5.format import FORMAT
from wkwdask.formats.n5.options import N5Options

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

Compression = Literal["gzip", "zlib", "bzip2", "xz", "zstd", "blosc", "raw"]


class N5Keywords(PlacedOptions, total=False):
    """Keyword arguments of :func:`to_n5`."""

    chunk_shape: int | Sequence[int] | None
    compression: Compression | None
    level: int | None


@overload
def to_n5(
    array: Voxels, url: Url, *, compute: Literal[True] = True, **options: Unpack[N5Keywords]
) -> Report: ...


@overload
def to_n5(
    array: Voxels, url: Url, *, compute: Literal[False], **options: Unpack[N5Keywords]
) -> Delayed: ...


@storage_options(N5Options)
def to_n5(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    chunk_shape: int | Sequence[int] | None = None,
    compression: Compression | None = None,
    level: int | None = None,
    voxel_size: Sequence[float] | None = None,
    offset: Sequence[int] | None = None,
    region: BoundingBox | Sequence[Sequence[int]] | None = None,
    mag: MagLike | None = None,
    existing: Existing = "error",
    token: str | None = None,
    force_space: bool = False,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one N5 dataset, in parallel.

    The dataset is published atomically once it is complete; then the attributes of its group are
    created or updated. Blocks at the upper border are truncated, as the N5 specification requires.
    Blocks that are all zero are not stored: readers see zeros there.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        Folder of the dataset, such as ``volume.n5/raw`` or ``volume.n5/raw/s0``, or its URL in a
        bucket, with or without the prefix ``n5://``. A name like ``s0`` makes it a level of the
        group above. Datasets in a bucket are created, and never replaced.
    {options}
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm]; by default those of a DataArray or of
        the group.
    offset : sequence of 3 int, optional
        Position of element 0 [absolute voxels of the mag]; may be negative. By default 0, or the
        position given by the coordinates of a DataArray. N5 arrays begin at 0; the position is
        stored as ``transform``.
    region : BoundingBox or pair of corners, optional
        Box of an existing dataset to overwrite, as for :func:`to_wkw` [absolute voxels of the mag].
    mag : Mag, str or int, optional
        Voxel size of the dataset as a multiple of that of ``s0``, such as ``"2-2-1"`` for ``s1``; 1
        by default.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the dataset exists; ``"overwrite"`` replaces it, and continues an interrupted call
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
        The dataset exists and ``existing="error"``, or the folder contains other files.
    LockedError
        Another job is writing it.
    ResumeError
        The interrupted job was started with other settings.
    TypeError
        N5 does not support the type.
    UnsupportedError
        The URL is on a web server or in a zip.
    ValueError
        The shape or an option is invalid.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_n5(
    ...     np.ones((100, 80, 60), np.uint16),
    ...     f"{folder}/v.n5/raw/s0",
    ...     voxel_size=(4, 4, 40),
    ...     offset=(-10, 0, 0),
    ... )
    >>> wkwdask.open(f"n5://{folder}/v.n5/raw").shape, report.files
    ((1, 100, 80, 60), 4)
    """
    from wkwdask.api.saving import save_as

    return save_as(
        FORMAT,
        array,
        url,
        chunk_shape=chunk_shape,
        compression=compression,
        level=level,
        voxel_size=voxel_size,
        offset=offset,
        region=region,
        mag=mag,
        existing=existing,
        token=token,
        force_space=force_space,
        compute=compute,
    )
