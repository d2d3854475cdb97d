"""N5: arrays and mags that are written as datasets, and datasets that are seen as Zarr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from wkwdask.api.options import PlacedOptions, storage_options
from wkwdask.api.saving import Saving, lay_out_save
from wkwdask.formats.n5.layer import PREFIX, stripped
from wkwdask.formats.n5.options import N5Options
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
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.runs.report import Report

Compression = Literal["gzip", "zlib", "bzip2", "xz", "zstd", "blosc", "raw"]


class N5Keywords(PlacedOptions, total=False):
    """What :func:`to_n5` takes."""

    chunk_shape: Sequence[int] | None
    compression: Compression | None
    level: int | None


@overload
def to_n5(
    array: da.Array | npt.NDArray[Any] | DataArray, url: str | os.PathLike[str], *, compute: Literal[True] = True, **options: Unpack[N5Keywords]
) -> Report: ...


@overload
def to_n5(
    array: da.Array | npt.NDArray[Any] | DataArray, url: str | os.PathLike[str], *, compute: Literal[False], **options: Unpack[N5Keywords]
) -> Delayed: ...


@storage_options(N5Options)
def to_n5(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    chunk_shape: Sequence[int] | None = None,
    compression: Compression | None = None,
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
        A name of the array's content: a call with another one does not go on.
    compute : bool
        False checks everything now and gives a dask ``Delayed`` whose last task ends the job.

    Returns
    -------
    Report or Delayed

    Raises
    ------
    ExistsError
        The dataset is there and ``existing="error"``, or something else is.
    LockedError
        Another job writes it.
    ResumeError
        What was interrupted was started with other settings.
    TypeError
        N5 has no such type.
    UnsupportedError
        The URL is remote.
    ValueError
        Shape or an option makes no sense.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_n5(np.ones((100, 80, 60), np.uint16), f"{folder}/v.n5/raw/s0", voxel_size=(4, 4, 40), offset=(-10, 0, 0))
    >>> wkwdask.open(f"n5://{folder}/v.n5/raw").shape, report.files
    ((1, 100, 80, 60), 4)
    """
    from wkwdask.graphs.write import write_now_or_later

    stored = check(N5Options, chunk_shape=chunk_shape, compression=compression, level=level)
    wanted = Destination(PREFIX + stripped(url), mag=None if mag is None else Mag.parse(mag))
    staged, voxels, trusted = lay_out_save(array, offset, wanted, voxel_size, stored, Saving("to_n5", existing, token, region))
    written: Report | Delayed = write_now_or_later(staged, voxels, trusted, compute=compute)
    return written


def n5_as_zarr(
    url: str | os.PathLike[str], *, form: Literal["n5_default", "offset"] = "n5_default", write: bool = False, remove: bool = False
) -> dict[str, dict[str, Any]]:
    """Describe N5 data as Zarr v3, so that zarr-python opens the same files.

    Parameters
    ----------
    url : str or path
        A container, group or dataset, with or without ``n5://`` before it.
    form : {"n5_default", "offset"}
        The registered codec ``n5_default``, which this package brings; or the chain transpose, bytes, compressor and ``offset`` for datasets whose blocks are
        all whole and in one mode, which is looked up.
    write : bool
        Write each ``zarr.json`` beside its ``attributes.json`` (local only); one that somebody else wrote is never replaced.
    remove : bool
        Remove what was written so.

    Returns
    -------
    dict
        The content of every ``zarr.json``, by its name inside of the folder: ``"zarr.json"``, ``"s0/zarr.json"``... The axes of arrays are those of N5, x
        first. Groups with levels are OME-NGFF 0.5 images too, where all axes are spatial.

    Raises
    ------
    ExistsError
        A ``zarr.json`` is there that was not made of N5 attributes.
    FormatError
        An ``attributes.json`` or the header of a block is broken.
    MissingError
        There is no dataset.
    UnsupportedError
        Zarr has no codec for a compression, or the form cannot say how a dataset is stored.
    ValueError
        There is no such form, or both ``write`` and ``remove`` are asked for.

    Examples
    --------
    >>> import numpy as np, wkwdask, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.to_n5(np.ones((100, 80, 60), np.uint16), f"{folder}/v.n5/raw")
    >>> documents = wkwdask.n5_as_zarr(f"{folder}/v.n5")
    >>> sorted(documents), documents["raw/zarr.json"]["codecs"][0]["name"]
    (['raw/zarr.json', 'zarr.json'], 'n5_default')
    """
    from wkwdask.formats.n5.zarr_view import remove_documents, write_documents, zarr_documents

    if write and remove:
        raise ValueError("write and remove exclude each other")
    documents = zarr_documents(url, form)
    if write:
        write_documents(url, documents)
    elif remove:
        remove_documents(url, documents)
    return documents


def n5_store(url: str | os.PathLike[str]) -> Any:
    """Give a read-only Zarr store of N5 data, in which every ``zarr.json`` is made when it is asked for; nothing is written.

    Parameters
    ----------
    url : str or path
        A container, group or dataset, local or remote, with or without ``n5://`` before it.

    Returns
    -------
    zarr.abc.store.Store
        For ``zarr.open_group``, ``zarr.open_array``, ``xarray.open_zarr``...

    Raises
    ------
    ModuleNotFoundError
        zarr-python or a driver is not installed.
    """
    from wkwdask.formats.n5.zarr_store import open_n5_store

    return open_n5_store(url)
