"""Writing OME-NGFF images: Zarr 3 with shards, or Zarr 2."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from wkwdask.api.options import PlacedOptions, storage_options
from wkwdask.errors import ViewerWarning
from wkwdask.formats.zarr.options import ZarrOptions
from wkwdask.geometry.mag import Mag
from wkwdask.model.extras import need
from wkwdask.model.options import check
from wkwdask.verbs.others.zarr_places import image_place, labels_note
from wkwdask.verbs.others.zarr_write import ArrayCopy, is_ids, lay_out_copy, lay_out_image_array
from wkwdask.verbs.taken import check_alike

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed
    from xarray import DataArray

    from wkwdask.api.options import Existing, MagLike
    from wkwdask.model.image import Image
    from wkwdask.model.levels import Lengths
    from wkwdask.runs.report import Report
    from wkwdask.verbs.rechunk import Copy
    from wkwdask.verbs.taken import Taken

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
    from wkwdask.api.array_input import content_of, given_size, plain_array
    from wkwdask.graphs.write import write_now_or_later

    need("zarr", "to_zarr", "zarr")
    voxels, named = plain_array(array, offset, allow_negative=True)
    content = content_of(voxels, token)
    wanted = Mag(1, 1, 1) if mag is None else Mag.parse(mag)
    size = given_size(voxel_size, named, wanted)
    if category not in (None, "color", "segmentation"):
        raise ValueError(f'category must be "color" or "segmentation", got {category!r}')
    known = category or named.category
    stored = check(ZarrOptions, chunk_shape=chunk_shape, shard_shape=shard_shape, compression=compression, level=level, ngff=ngff)
    staged = lay_out_image_array(url, named.offset, content, stored, existing, wanted, size, is_label=None if known is None else known == "segmentation")
    written: Report | Delayed = write_now_or_later(staged, voxels, content.trusted, compute=compute)
    return written


def convert_to_image(layer: Image, target: str | os.PathLike[str], taken: Taken, stored: ZarrOptions, voxel_size: Lengths | None, existing: str) -> Report:
    """Convert mags of a layer of any format to an OME-NGFF image; see :func:`wkwdask.api.conversion.convert`."""
    from wkwdask.graphs.runners import make_all, num_workers

    need("zarr", "an OME-NGFF image", "zarr")
    size = voxel_size or layer.voxel_size_nm
    if size is None:
        raise ValueError(f"{layer.folder}: nothing says how large its voxels are; give voxel_size= in nm")
    mags = taken.mags_of(layer.folder, list(layer.mags))
    image_place(target).check_voxel_size(size, mags)
    copies = [taken.copy_of(layer.volume(mag)) for mag in mags]
    check_alike(copies)
    stage = partial(lay_out_copy, target, options=stored, workers=num_workers())
    report = make_all([partial(stage, _as_array(copy, layer, size)) for copy in copies], existing)
    note = labels_note(target)
    if note:
        warnings.warn(note, ViewerWarning, stacklevel=3)
    return report


def _as_array(copy: Copy, layer: Image, voxel_size: Lengths) -> ArrayCopy:
    source = copy.source
    is_label = layer.category == "segmentation" if layer.category is not None else is_ids(source.dtype, source.num_channels)
    return ArrayCopy(source, copy.input, copy.check_unchanged, voxel_size, is_label)
