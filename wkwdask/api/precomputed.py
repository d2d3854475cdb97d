"""Writing Neuroglancer precomputed volumes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from wkwdask.api.options import PlacedOptions
from wkwdask.errors import ViewerWarning
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.model.levels import lengths_in
from wkwdask.verbs.others.precomputed_write import ScaleEncoding, lay_out_scale

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed
    from xarray import DataArray

    from wkwdask.api.options import Existing, MagLike
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.runs.report import Report

Encoding = Literal["raw", "compressed_segmentation", "compresso", "jpeg", "png", "jxl"]


class PrecomputedOptions(PlacedOptions, total=False):
    """What :func:`to_precomputed` takes."""

    encoding: Encoding | None
    sharded: bool | Sharding
    chunk_size: Sequence[int]
    type: Literal["image", "segmentation"] | None
    quality: int | None
    compress: Literal["gzip"] | None
    force: bool


@overload
def to_precomputed(
    array: da.Array | npt.NDArray[Any] | DataArray, url: str | os.PathLike[str], *, compute: Literal[True] = True, **options: Unpack[PrecomputedOptions]
) -> Report: ...


@overload
def to_precomputed(
    array: da.Array | npt.NDArray[Any] | DataArray, url: str | os.PathLike[str], *, compute: Literal[False], **options: Unpack[PrecomputedOptions]
) -> Delayed: ...


def to_precomputed(
    array: da.Array | npt.NDArray[Any] | DataArray,
    url: str | os.PathLike[str],
    *,
    encoding: Encoding | None = None,
    sharded: bool | Sharding = False,
    chunk_size: Sequence[int] = (64, 64, 64),
    voxel_size: Sequence[float] | None = None,
    offset: Sequence[int] | None = None,
    existing: Existing = "error",
    type: Literal["image", "segmentation"] | None = None,
    mag: MagLike | None = None,
    quality: int | None = None,
    compress: Literal["gzip"] | None = None,
    force: bool = False,
    token: str | None = None,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one scale of a Neuroglancer precomputed volume, in parallel and safely.

    The scale appears when it is complete, or not at all, and ``info`` follows at once; a volume without ``info`` gets one. Chunks that are all zero are not
    stored: readers see zeros there.

    Parameters
    ----------
    array : dask.array.Array, ndarray or xarray.DataArray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks, of a type that the format has. A DataArray has the dimensions x, y, z (and c) in any order.
    url : str or path
        The volume's folder, with or without ``precomputed://`` before it. Remote volumes cannot be written.
    encoding : {"raw", "compressed_segmentation", "compresso", "jpeg", "png", "jxl"}, optional
        How chunks are encoded; by default compressed_segmentation for segmentations of uint32 and uint64, else raw.
    sharded : bool or Sharding
        Whether chunks are put into shards of about 1 GiB (before compression), or how; else each is a file.
    chunk_size : sequence of 3 int
        A chunk [voxels].
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of the finest scale [nm]; needed for a new volume, unless a DataArray says it.
    offset : sequence of 3 int, optional
        Absolute voxel of the scale that element 0 goes to; may be negative. By default 0, or what the coordinates of a DataArray say.
    existing : {"error", "resume", "overwrite"}
        What to do where the scale already exists; ``"overwrite"`` replaces it whole. ``"resume"`` goes on with an interrupted call of the same settings,
        as for :func:`to_wkw`.
    type : {"image", "segmentation"}, optional
        What a new volume is; by default integers of 32 bits and more in one channel are a segmentation.
    mag : Mag, str or int, optional
        Which scale: ``"2-2-1"`` adds one to a volume that is there, whose voxels are so many times as long; by default the finest.
    quality : int, optional
        Of jpeg and jxl, 0..100; jxl without it is lossless.
    compress : {"gzip"}, optional
        Compress chunks that are files of their own, which then have names that end with ``.gz``: cloud-volume and Neuroglancer behind a server that knows such
        names can read them, tensorstore cannot. Chunks in shards are compressed as the sharding says.
    force : bool
        Allow a lossy encoding of a segmentation, which changes its ids.
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
    from wkwdask.api.array_input import content_of, plain_array, positive_lengths
    from wkwdask.graphs.write import write_now_or_later

    voxels, named = plain_array(array, offset, allow_negative=True)
    content = content_of(voxels, token)
    wanted = None if mag is None else Mag.parse(mag)
    lengths = named.lengths_nm if voxel_size is None else lengths_in(wanted or MAG_1, positive_lengths(voxel_size))
    stored = ScaleEncoding(encoding, sharded, vec3(chunk_size, "chunk_size"), quality, compress)
    kind = type or (named.category and {"color": "image"}.get(named.category, named.category))
    staged, notes = lay_out_scale(url, named.offset, content, stored, existing, kind, wanted, lengths, force=force)
    for note in notes:
        warnings.warn(note, ViewerWarning, stacklevel=2)
    written: Report | Delayed = write_now_or_later(staged, voxels, content.trusted, compute=compute)
    return written
