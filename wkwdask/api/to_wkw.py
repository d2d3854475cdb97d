"""Write an array as a WKW mag: :func:`wkwdask.save` with the options of WKW."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from wkwdask.api.options import WriteOptions, storage_options
from wkwdask.formats.opening import format_of_target, options_of_target
from wkwdask.formats.registry import default_format
from wkwdask.formats.wkw.options import WkwOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed
    from xarray import DataArray

    from wkwdask.api.options import Existing, Url, Voxels
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.runs.report import Report


class WkwKeywords(WriteOptions, total=False):
    """Keyword arguments of :func:`to_wkw`."""

    voxel_size: Sequence[float] | None
    chunk_shape: int | Sequence[int] | None
    shard_shape: int | Sequence[int] | None
    compression: str | None
    level: int | Literal["auto"] | None
    block_len: int | None
    file_len: int | None
    any_length: bool
    category: Literal["color", "segmentation"] | None
    allow_external: bool


@overload
def to_wkw(
    array: Voxels, url: Url, *, compute: Literal[True] = True, **options: Unpack[WkwKeywords]
) -> Report: ...


@overload
def to_wkw(
    array: Voxels, url: Url, *, compute: Literal[False], **options: Unpack[WkwKeywords]
) -> Delayed: ...


@storage_options(WkwOptions)
def to_wkw(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    offset: Sequence[int] | None = None,
    region: BoundingBox | Sequence[Sequence[int]] | None = None,
    voxel_size: Sequence[float] | None = None,
    chunk_shape: int | Sequence[int] | None = None,
    shard_shape: int | Sequence[int] | None = None,
    compression: str | None = None,
    level: int | Literal["auto"] | None = None,
    block_len: int | None = None,
    file_len: int | None = None,
    any_length: bool = False,
    existing: Existing = "error",
    token: str | None = None,
    category: Literal["color", "segmentation"] | None = None,
    allow_external: bool = False,
    force_space: bool = False,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one WKW mag, or into a region of an existing mag, in parallel.

    A new mag is published atomically once it is complete. With ``region``, the files of the mag are
    replaced one by one, each atomically. Files that the region covers in part keep their other
    voxels, and encoded blocks that it does not touch are copied without decoding.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks, of a type that WKW supports. A DataArray has the dimensions x, y,
        z (and c) in any order.
    url : str or path
        Folder of the mag, such as ``dataset/layer/1``. The ``datasource-properties.json`` of the
        dataset is updated. If it does not exist, ``voxel_size`` creates it; without ``voxel_size``,
        a warning is issued and only the mag itself stores its box.
    offset : sequence of 3 int, optional
        Position of element 0 [absolute voxels of the mag]; by default 0, or the position given by
        the coordinates x, y, z of a DataArray. Coordinates are voxel indices, or with ``units``
        lengths of the corners or centers of voxels.
    region : BoundingBox or pair of corners, optional
        Box of an existing mag to overwrite: its lowest corner and the corner beyond its highest
        voxel [absolute voxels of the mag], as for :func:`read`. Other jobs can write other files of
        the mag at the same time; a job that needs the same files is refused.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm], for a new
        ``datasource-properties.json``; an existing one must state the same.
    {options}
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the mag exists; ``"overwrite"`` replaces it, and continues an interrupted call
        only with the same ``token``; ``"restart"`` replaces it and starts over. The same call
        resumes an interrupted one: its finished files are kept after a check of their size, header
        and jump table. The same call means the same settings and the same array: equal voxels in
        memory, a dask graph of the same name, or the same ``token``. With ``"resume"``, a dask
        array is compared by position, shape and type only; its content must be the same.
    token : str, optional
        Name of the array's content; a call with another token does not resume the job.
    category : {"color", "segmentation"}, optional
        Category of a layer that the JSON does not list yet; by default integers of 32 bits and more
        are a segmentation.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
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
    Memory is bounded by the chunks of the array and by parts of files of at most 128 MB. If a part
    of a file touches more chunks than fit into memory, such as wide sections, chunks are first
    split into scratch files beside the target; the report mentions it.

    Examples
    --------
    >>> import tempfile
    >>> import dask.array as da
    >>> import wkwdask
    >>> dataset = tempfile.mkdtemp() + "/cells"
    >>> report = wkwdask.to_wkw(
    ...     da.ones((64, 64, 64), dtype="uint8", chunks=32),
    ...     f"{dataset}/raw/1",
    ...     voxel_size=(4, 4, 35),
    ... )
    >>> wkwdask.open_dataset(dataset)["raw"]
    Layer 'raw': color, uint8, (0, 0, 0) + (64, 64, 64), mags 1
    """
    from wkwdask.api.saving import save_as

    its_format = format_of_target(url)
    if its_format is not default_format():
        raise ValueError(
            f"{os.fspath(url)}: named as {its_format.options.title}, but to_wkw() writes WKW; use "
            "save() for other formats"
        )
    if options_of_target(url) is not its_format.options:
        raise ValueError(
            f"{os.fspath(url)}: lies in a layer that is stored as "
            f"{options_of_target(url).title}, but to_wkw() writes WKW; use save()"
        )
    return save_as(
        its_format,
        array,
        url,
        offset=offset,
        region=region,
        voxel_size=voxel_size,
        chunk_shape=chunk_shape,
        shard_shape=shard_shape,
        compression=compression,
        level=level,
        block_len=block_len,
        file_len=file_len,
        any_length=any_length,
        existing=existing,
        token=token,
        category=category,
        allow_external=allow_external,
        force_space=force_space,
        compute=compute,
    )
