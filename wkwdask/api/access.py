"""Reading and writing voxels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wkwdask.errors import BoundsError, ReplacedError, UnsupportedError
from wkwdask.formats.opening import check_names_format, open_stored, recent_stored
from wkwdask.formats.registry import fallback, format_of
from wkwdask.geometry.bounding_box import BoundingBox, voxel_box
from wkwdask.model.image import check_inside, mag_or_key, part_of
from wkwdask.streams.points import sample_points

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt

    from wkwdask.api.options import MagLike
    from wkwdask.formats.webknossos.summary import DatasetSummary
    from wkwdask.model.summary import VolumeSummary
    from wkwdask.model.volume import Volume


def open(
    url: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    chunks: str | int | Sequence[int] = "auto",
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    origin: Literal["box", "absolute"] = "box",
    axes: str | None = None,
    channel: int | None = None,
    chunk_size: Sequence[int] | None = None,
) -> da.Array:
    """Open one mag of a layer as a dask array.

    Only the blocks that a selection touches are decoded. Chunk borders lie on block and file borders.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag in WKW; a Neuroglancer precomputed volume; an N5 container, group or dataset; an OME-NGFF image or another Zarr array. A
        local folder, or ``"precomputed://"``, ``"n5://"`` or ``"zarr://"`` and a path or URL (``https://``, ``s3://``, ``gs://``).
    layer : str, optional
        The layer, of N5 and Zarr the path of a group; may be omitted where there is one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag, such as ``"2-2-1"``; by default that of the path, else the finest that has files. Of other formats also the key of a scale or the name of an
        array, such as ``"8_8_40"`` or ``"s1"``.
    chunks : str, int or sequence of 3 int
        ``"auto"`` (within dask's ``array.chunk-size``), ``"file"``, ``"block"``, a size such as ``"64MiB"``, or voxels along x, y, z.
    bounding_box : BoundingBox, str or sequence, optional
        Part of the layer to open: x, y, z, width, height, depth [voxels of mag 1], grown outward to voxels of the mag.
    origin : {"box", "absolute"}
        Whether element 0 is the corner of the box, or the index is the absolute voxel of the mag (zeros before the box).
    axes : str, optional
        Order of the axes, ``"cxyz"`` by default; ``"czyx"`` is what skimage, napari and OME expect. ``"xyz"`` or ``"zyx"`` with one channel.
    channel : int, optional
        Open this channel alone, without the axis c.
    chunk_size : sequence of 3 int, optional
        Which of several chunk sizes of a precomputed scale is read [voxels]; by default the first.

    Returns
    -------
    dask.array.Array, shape (c, x, y, z) or as ``axes`` say

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    BoundsError
        The bounding box reaches outside the layer.
    FormatError
        A record or header is broken; broken data files are errors when they are read.
    ValueError
        Several layers could be meant, or an option makes no sense.
    """
    from wkwdask.graphs.read import open_array

    volume = open_stored(url, layer, mag_or_key(mag), chunk_size)[1]
    box = part_of(volume, bounding_box)
    if origin not in ("box", "absolute"):
        raise ValueError(f'origin must be "box" or "absolute", got {origin!r}')
    if origin == "absolute" and min(box.topleft) < 0:
        raise BoundsError(f'{volume.name}: the box {box} starts below 0; origin="absolute" cannot index it')
    start = box.topleft if origin == "box" else (0, 0, 0)
    return open_array(volume, chunks=chunks, box=box, start=start, axes=axes, channel=channel)


def read(
    url: str | os.PathLike[str],
    box: BoundingBox | Sequence[Sequence[int]] | None = None,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
) -> npt.NDArray[Any]:
    """Read voxels into a numpy array, without dask; safe in threads and forks.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag, of any format that :func:`open` opens.
    box : BoundingBox or pair of corners, optional
        What to read: the lowest corner and the one beyond the highest, absolute voxels of the mag along x, y, z. By default the whole
        box of the layer.
    layer : str, optional
        The layer; may be omitted where there is one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default that of the path, else the finest that has files.

    Returns
    -------
    ndarray, shape (c, x, y, z), Fortran order

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    BoundsError
        The box reaches outside the layer.
    FormatError
        A file is broken; the message names file, block and byte offset.
    """
    parsed_mag = mag_or_key(mag)
    volume = recent_stored(url, layer, parsed_mag)
    if box is None:
        volume = recent_stored(url, layer, parsed_mag, anew=True)
        asked = volume.box
    else:
        asked = voxel_box(box, volume.box.mag)
        if not volume.box.contains(asked):
            volume = recent_stored(url, layer, parsed_mag, anew=True)
            check_inside(volume.name, volume.box, asked)
    try:
        return _read_box(volume, asked)
    except ReplacedError:  # between the opening and the reading
        return _read_box(recent_stored(url, layer, parsed_mag, anew=True), asked)


def _read_box(volume: Volume, box: BoundingBox) -> npt.NDArray[Any]:
    try:
        out = np.empty((volume.num_channels, *box.size), volume.dtype, order="F")
    except (MemoryError, ValueError):
        count = volume.num_channels * box.volume
        raise UnsupportedError(f"{volume.name}: {box} has {count:,} values of {volume.dtype}, which do not fit into memory; name a smaller box") from None
    volume.read_into(out, box.topleft)
    return out


def sample(
    url: str | os.PathLike[str],
    points: npt.ArrayLike,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
) -> npt.NDArray[Any]:
    """Read the values at many points, decoding each block once.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag, of any format that :func:`open` opens.
    points : array_like of int, shape (n, 3)
        Absolute voxels of the mag along x, y, z.
    layer : str, optional
        The layer; may be omitted where there is one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default that of the path, else the finest that has files.

    Returns
    -------
    ndarray, shape (n,) for one channel, else (n, c)

    Raises
    ------
    BoundsError
        A point lies outside the layer.
    MissingError
        There is no such dataset, layer or mag.
    FormatError
        A file is broken.
    TypeError
        The points are no whole numbers.
    """
    array = np.asarray(points)
    if array.size == 0:
        array = array.reshape(0, 3).astype(np.int64)
    if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "iu":
        raise TypeError(f"points are whole numbers of shape (n, 3), got {array.dtype} of shape {array.shape}")
    volume = recent_stored(url, layer, mag_or_key(mag), anew=True)
    values = sample_points(volume, array.astype(np.int64))
    return values[:, 0] if volume.num_channels == 1 else values


def info(url: str | os.PathLike[str]) -> DatasetSummary | VolumeSummary:
    """Summarise a dataset, layer or mag, a precomputed volume, N5 or Zarr: what ``wkwdask info`` prints.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag; a precomputed volume; an N5 container, group or dataset; a Zarr group or array.

    Returns
    -------
    DatasetSummary or VolumeSummary
        The first one of WKW.

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    FormatError
        The JSON is broken.
    """
    found = format_of(url)
    if found is None:
        check_names_format(url)
    return (found or fallback()).summarize(url)  # type: ignore[return-value]
