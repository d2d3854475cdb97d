"""Write arrays as levels of images in any format, and create empty levels."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from wkwdask.api.options import (
    PlacedOptions,
    StorageKeywords,
    level_destination,
    parse_voxel_size,
    storage_options,
)
from wkwdask.formats.opening import format_to_save, options_of_target, target_for
from wkwdask.formats.registry import default_format, storage_records
from wkwdask.geometry.bounding_box import voxel_box
from wkwdask.geometry.mag import whole_number
from wkwdask.model.options import make_options
from wkwdask.model.voxel_type import parse_dtype
from wkwdask.verbs.write import Creation, lay_out_write

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


class SaveKeywords(PlacedOptions, StorageKeywords, total=False):
    """Keyword arguments of :func:`save`."""

    category: Literal["color", "segmentation"] | None
    allow_external: bool


@overload
def save(
    array: Voxels, url: Url, *, compute: Literal[True] = True, **options: Unpack[SaveKeywords]
) -> Report: ...


@overload
def save(
    array: Voxels, url: Url, *, compute: Literal[False], **options: Unpack[SaveKeywords]
) -> Delayed: ...


@storage_options(*storage_records())
def save(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    offset: Sequence[int] | None = None,
    region: BoundingBox | Sequence[Sequence[int]] | None = None,
    voxel_size: Sequence[float] | None = None,
    mag: MagLike | None = None,
    category: Literal["color", "segmentation"] | None = None,
    existing: Existing = "error",
    token: str | None = None,
    allow_external: bool = False,
    force_space: bool = False,
    compute: bool = True,
    **options: Unpack[StorageKeywords],
) -> Report | Delayed:
    """Write an array in parallel: one level of an image, or a region of an existing level.

    The URL chooses the format: by its prefix (``precomputed://``, ``n5://``, ``zarr://``, or that
    of another format), by the suffix of a folder (``.ome.zarr``, ``.zarr``, ``.n5``), or by the
    image that exists there. All other paths are mags of WKW datasets. :func:`to_wkw`,
    :func:`to_precomputed`, :func:`to_n5` and :func:`to_zarr` are this function for one format, and
    describe its options.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        Image or level: ``"dataset/layer/1"``, ``"precomputed://PATH"``, ``"volume.n5/raw/s0"``,
        ``"em.ome.zarr"``.
    offset : sequence of 3 int, optional
        Position of element 0 [absolute voxels of the mag]; by default 0, or the position given by
        the coordinates of a DataArray. Negative only in formats other than WKW.
    region : BoundingBox or pair of corners, optional
        Box of an existing level to overwrite: its lowest corner and the corner beyond its highest
        voxel [absolute voxels of the mag], as for :func:`read`.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm], for a new dataset or image, unless a
        DataArray states them.
    mag : Mag, str or int, optional
        The mag in formats other than WKW, whose folder is the mag; 1 by default.
    category : {"color", "segmentation"}, optional
        Category of a new image; by default integers of 32 bits and more in one channel are a
        segmentation. N5 has none.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if the level exists; ``"overwrite"`` replaces it, and continues an interrupted call
        only with the same ``token``; ``"restart"`` replaces it and starts over. ``"resume"``
        continues an interrupted call with the same settings.
    token : str, optional
        Name of the array's content; a call with another token does not resume the job.
    allow_external : bool
        Allow writing where paths or links lead out of a WKW dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    compute : bool
        If False, check everything now and return a dask ``Delayed`` whose last task ends the job.
    **options
        Storage options of the format.
        {options}

    Returns
    -------
    Report or Delayed

    Raises
    ------
    BoundsError
        The region reaches outside the level.
    ExistsError
        The level exists and ``existing="error"``, or the folder contains other files.
    LockedError
        Another job writes it, or some of the same files.
    MissingError
        ``region`` is given, and the level does not exist.
    ResumeError
        The interrupted job was started with other settings.
    TypeError
        The format has no type for the array, or the existing level has another type.
    UnsupportedError
        The URL is on a web server or in a zip, or the format is read-only.
    ValueError
        The shape, the offset or an option is invalid.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> cells = np.ones((64, 64, 64), np.uint32)
    >>> for url in (
    ...     f"{folder}/dataset/cells/1",
    ...     f"precomputed://{folder}/cells",
    ...     f"{folder}/volume.n5/cells/s0",
    ... ):
    ...     print(wkwdask.save(cells, url, voxel_size=(4, 4, 40)).files)
    1
    1
    1
    """
    from wkwdask.api.saving import save_as

    return save_as(
        format_to_save(url),
        array,
        url,
        offset=offset,
        region=region,
        voxel_size=voxel_size,
        mag=mag,
        category=category,
        existing=existing,
        token=token,
        allow_external=allow_external,
        force_space=force_space,
        compute=compute,
        **options,
    )


@storage_options(*storage_records())
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
        Folder of the mag, such as ``dataset/layer/1``; or an image or level in another format with
        its prefix, such as ``"precomputed://PATH"``.
    box : BoundingBox or pair of corners
        Box of the future data: its lowest corner and the corner beyond its highest voxel [absolute
        voxels of the mag]. The JSON of the dataset stores it.
    dtype : dtype_like
        Type of one channel.
    num_channels : int
        Number of channels.
    mag : Mag, str or int, optional
        The mag in formats other than WKW; 1 by default.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm], for a new dataset or image, as for
        :func:`to_wkw`.
    existing : {"error", "overwrite"}
        Action if the mag exists; ``"overwrite"`` replaces it.
    category : {"color", "segmentation"}, optional
        Category of a layer that the JSON does not list yet; by default integers of 32 bits and more
        are a segmentation.
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
    its_format = format_to_save(url)
    storage = make_options(
        options_of_target(url) if its_format is default_format() else its_format.options, **options
    )
    target_image = target_for(
        replace(
            level_destination(its_format, url, mag, category, allow_external=allow_external),
            voxel_size_nm=size,
        )
    )
    target_box = voxel_box(box, target_image.mag)
    content = ArrayContent(
        (whole_number(num_channels, "num_channels", 1), *target_box.size),
        parse_dtype(dtype),
        "nothing",
        in_memory=True,
    )
    staged, _ = lay_out_write(
        target_image, target_box.topleft, content, storage, existing, "to_wkw"
    )
    if staged.edit is None:
        warnings.warn(no_dataset_note(staged.folders[0]), stacklevel=2)
    return run_plan(Creation(staged), force_space=False)


def write(
    url: str | os.PathLike[str],
    offset: Sequence[int] | None,
    array: npt.NDArray[Any],
    **options: Any,
) -> Report:
    """Write a numpy array as one mag; meant for small regions and tests.

    The format is the one that :func:`save` chooses.

    Parameters
    ----------
    url : str or path
        Folder of the mag; or an image or level in another format with its prefix, such as
        ``"precomputed://PATH"``.
    offset : sequence of 3 int
        Position of element 0 [absolute voxels of the mag]; None with ``region``.
    array : ndarray, shape (x, y, z) or (c, x, y, z)
        The voxels.
    **options
        As for :func:`save`, except ``compute``.

    Returns
    -------
    Report

    Raises
    ------
    ExistsError, LockedError, TypeError, ValueError
        As for :func:`save`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> report = wkwdask.write(
    ...     f"{folder}/raw/1", (10, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1
    ... )
    >>> wkwdask.read(f"{folder}/raw/1", ((10, 0, 0), (12, 1, 1))).ravel().tolist()
    [1, 1]
    """
    from wkwdask.api.saving import save_as

    if "compute" in options:
        raise TypeError("write() always computes; use save(compute=False)")
    report: Report = save_as(
        format_to_save(url), np.asanyarray(array), url, offset=offset, **options
    )  # type: ignore[assignment]
    return report
