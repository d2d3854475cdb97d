"""Read voxels as dask arrays, as numpy arrays or at single points, and summarize a dataset."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from wkwdask.api.reader import cached_reader
from wkwdask.errors import BoundsError, MissingError
from wkwdask.formats.opening import (
    explain_missing,
    find,
    open_stored,
    recognised_url,
    use_storage_options,
)
from wkwdask.formats.registry import opening_format
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.model.image import mag_or_key, parse_box_of
from wkwdask.model.summary import summarize_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import dask.array as da
    import numpy.typing as npt

    from wkwdask.api.options import MagLike
    from wkwdask.formats.webknossos.summary import DatasetSummary
    from wkwdask.model.summary import VolumeSummary


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
    index: Mapping[str, int] | None = None,
    chunk_size: Sequence[int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> da.Array:
    """Open one mag of a layer as a dask array.

    Only the blocks that a selection touches are decoded. Chunk borders are block or file borders.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag in WKW; a Neuroglancer precomputed volume; an N5 container,
        group or dataset; an OME-NGFF image or another Zarr array. A local folder or a URL
        (``https://``, ``s3://``, ``gs://``, ``az://``). The prefix ``"precomputed://"``,
        ``"n5://"`` or ``"zarr://"`` states the format; without it, the format is recognized.
    layer : str, optional
        The layer, or the path of a group in N5 and Zarr; may be omitted if there is only one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag, such as ``"2-2-1"``; by default the mag of the path, else the finest mag that was
        written. Formats other than WKW also accept the key of a scale or the name of an array, such
        as ``"8_8_40"`` or ``"s1"``.
    chunks : str, int or sequence of 3 int
        ``"auto"`` (within dask's ``array.chunk-size``), ``"file"``, ``"block"``, a size such as
        ``"64MiB"``, or voxels along x, y, z.
    bounding_box : BoundingBox, str or sequence, optional
        Part of the layer to open: x, y, z, width, height, depth [voxels of mag 1], extended to
        whole voxels of the mag.
    origin : {"box", "absolute"}
        Meaning of an index: relative to the corner of the box, or the absolute voxel of the mag
        (with zeros before the box).
    axes : str, optional
        Order of the axes, ``"cxyz"`` by default. skimage, napari and OME expect ``"czyx"``.
        ``"xyz"`` and ``"zyx"`` need a single channel.
    channel : int, optional
        Open only this channel, without the axis c.
    index : mapping of str to int, optional
        Index along each further axis of an OME-NGFF image or Zarr array, such as ``{"t": 3}``; only
        axes of length 1 need none.
    chunk_size : sequence of 3 int, optional
        Chunk size to read from a precomputed scale that stores several [voxels]; by default the
        first.
    storage_options : mapping, optional
        Connection to a remote server: ``profile``, ``region``, ``endpoint``, ``account``,
        ``anonymous``, ``requester_pays``, ``single_writer``. They hold for the server or bucket in
        the rest of the process; see ``docs/remote.md``.

    Returns
    -------
    dask.array.Array, shape (c, x, y, z), or in the order of axes

    Raises
    ------
    MissingError
        The dataset, layer or mag does not exist.
    BoundsError
        The bounding box extends beyond the layer, or an index beyond its axis.
    FormatError
        A record or header is broken. Broken data files raise when they are read.
    UnsupportedError
        The array has a further axis, and no index along it is chosen.
    ValueError
        The choice of layer is ambiguous, or an option is invalid.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1)
    >>> array = wkwdask.open(f"{folder}/1", chunks="file")
    >>> array.shape, array.chunksize, int(array.sum())
    ((1, 64, 64, 64), (1, 32, 32, 32), 262144)
    """
    from wkwdask.graphs.read import open_array

    use_storage_options(url, storage_options)
    volume = open_stored(url, layer, mag_or_key(mag), chunk_size, index)[1]
    box = parse_box_of(volume, bounding_box)
    if origin not in ("box", "absolute"):
        raise ValueError(f'origin must be "box" or "absolute", got {origin!r}')
    if origin == "absolute" and min(box.topleft) < 0:
        raise BoundsError(
            f'{volume.name}: the box {box} starts below 0; origin="absolute" cannot index it'
        )
    extent = box if origin == "box" else BoundingBox((0, 0, 0), box.bottomright, box.mag)
    return open_array(volume, chunks=chunks, box=box, extent=extent, axes=axes, channel=channel)


def read(
    url: str | os.PathLike[str],
    box: BoundingBox | Sequence[Sequence[int]] | None = None,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    index: Mapping[str, int] | None = None,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> npt.NDArray[Any]:
    """Read voxels into a numpy array, without dask. Safe to call in threads and forked processes.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag, of any format that :func:`open` opens.
    box : BoundingBox or pair of corners, optional
        Box to read: its lowest corner and the corner beyond its highest voxel, as absolute voxels
        of the mag along x, y, z. By default the whole box of the layer.
    layer : str, optional
        The layer; may be omitted if there is only one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default the mag of the path, else the finest mag that was written.
    index : mapping of str to int, optional
        Index along each further axis, as for :func:`open`.
    threads : int, optional
        Threads that decode. By default as many as cores for boxes whose chunks have more than 16
        MiB, and one for smaller boxes, in other threads than the main one (where tasks of dask run)
        and in forked or spawned processes (such as workers of a data loader). Remote files are
        requested concurrently in any case.
    storage_options : mapping, optional
        Connection to a remote server: ``profile``, ``region``, ``endpoint``, ``account``,
        ``anonymous``, ``requester_pays``, ``single_writer``. They hold for the server or bucket in
        the rest of the process; see ``docs/remote.md``.

    Returns
    -------
    ndarray, shape (c, x, y, z), Fortran order

    Raises
    ------
    MissingError
        The dataset, layer or mag does not exist.
    BoundsError
        The box extends beyond the layer.
    FormatError
        A file is broken; the message names file, block and byte offset.
    ValueError
        ``threads`` is less than 1.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(
    ...     f"{folder}/1",
    ...     (0, 0, 0),
    ...     np.arange(64**3, dtype=np.uint32).reshape(64, 64, 64),
    ...     file_len=1,
    ... )
    >>> wkwdask.read(f"{folder}/1", ((0, 0, 5), (1, 1, 8))).ravel().tolist()
    [5, 6, 7]
    """
    return cached_reader(url, layer, mag, index, storage_options).read(box, threads=threads)


def read_many(
    url: str | os.PathLike[str],
    boxes: Sequence[BoundingBox | Sequence[Sequence[int]]] | npt.NDArray[Any],
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    index: Mapping[str, int] | None = None,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
    """Read many boxes, decoding each block once however many boxes overlap it.

    Safe to call in threads and forked processes.

    Besides the result, memory holds a batch of stored blocks and a table of about 500 bytes for
    each block of each box.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag, of any format that :func:`open` opens.
    boxes : sequence of BoundingBox or pair of corners, or array_like of int, shape (n, 2, 3)
        Boxes to read, each as for :func:`read`.
    layer : str, optional
        The layer; may be omitted if there is only one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default the mag of the path, else the finest mag that was written.
    index : mapping of str to int, optional
        Index along each further axis, as for :func:`open`.
    threads : int, optional
        Threads that decode, as for :func:`read`.
    storage_options : mapping, optional
        Access to a remote server, as for :func:`open`.

    Returns
    -------
    ndarray, shape (n, c, x, y, z), or list of ndarray, shape (c, x, y, z)
        An array if all boxes have the same shape, else a list of arrays. Each box is in Fortran
        order.

    Raises
    ------
    MissingError
        The dataset, layer or mag does not exist.
    BoundsError
        A box extends beyond the layer.
    FormatError
        A file is broken; the message names file, block and byte offset.
    ValueError
        ``threads`` is less than 1, or a box is not a pair of corners.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(
    ...     f"{folder}/1",
    ...     (0, 0, 0),
    ...     np.arange(64**3, dtype=np.uint32).reshape(64, 64, 64),
    ...     file_len=1,
    ... )
    >>> patches = wkwdask.read_many(f"{folder}/1", [((0, 0, 5), (1, 1, 8)), ((0, 0, 6), (1, 1, 9))])
    >>> patches.shape, patches[1].ravel().tolist()
    ((2, 1, 1, 1, 3), [6, 7, 8])
    """
    return cached_reader(url, layer, mag, index, storage_options).read_many(boxes, threads=threads)


def sample(
    url: str | os.PathLike[str],
    points: npt.ArrayLike,
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    index: Mapping[str, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> npt.NDArray[Any]:
    """Read the values at many points, decoding each block once.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag, of any format that :func:`open` opens.
    points : array_like of int, shape (n, 3)
        Absolute voxels of the mag along x, y, z.
    layer : str, optional
        The layer; may be omitted if there is only one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default the mag of the path, else the finest mag that was written.
    index : mapping of str to int, optional
        Index along each further axis, as for :func:`open`.
    storage_options : mapping, optional
        Access to a remote server, as for :func:`open`.

    Returns
    -------
    ndarray, shape (n,) for one channel, else (n, c)

    Raises
    ------
    BoundsError
        A point lies outside the layer.
    MissingError
        The dataset, layer or mag does not exist.
    FormatError
        A file is broken.
    TypeError
        The points are not whole numbers.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(
    ...     f"{folder}/1",
    ...     (0, 0, 0),
    ...     np.arange(64**3, dtype=np.uint32).reshape(64, 64, 64),
    ...     file_len=1,
    ... )
    >>> wkwdask.sample(f"{folder}/1", [(0, 0, 7), (0, 1, 0)]).tolist()
    [7, 64]
    """
    return cached_reader(url, layer, mag, index, storage_options).sample(points)


def info(
    url: str | os.PathLike[str],
    *,
    layer: str | None = None,
    index: Mapping[str, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetSummary | VolumeSummary:
    """Summarize a dataset, layer or mag, or an image of another format, as ``wkwdask info`` does.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag; a precomputed volume; an N5 container, group or dataset; a Zarr
        group or array.
    layer : str, optional
        The layer of a dataset, or the path of a group in N5 and Zarr; by default all.
    index : mapping of str to int, optional
        Index along each further axis, as for :func:`open`.
    storage_options : mapping, optional
        Access to a remote server, as for :func:`open`.

    Returns
    -------
    DatasetSummary or VolumeSummary
        A DatasetSummary for WKW, a VolumeSummary for all other formats.

    Raises
    ------
    MissingError
        The dataset, layer or mag does not exist.
    FormatError
        The JSON is broken.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> dataset = wkwdask.create_dataset(tempfile.mkdtemp() + "/cells", (4, 4, 35))
    >>> _ = wkwdask.write(
    ...     f"{dataset.path}/raw/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1
    ... )
    >>> [
    ...     (layer.name, [mag.files for mag in layer.mags])
    ...     for layer in wkwdask.info(dataset.path).layers
    ... ]
    [('raw', [8])]
    """
    use_storage_options(url, storage_options)
    if layer is not None:
        find(url).choose_listed(layer)
        url = f"{os.fspath(url).rstrip('/')}/{layer}"
    if index is not None:
        return summarize_arrays(url, find(url, index=index).layers)
    try:
        return opening_format(url).summarize(url)  # type: ignore[return-value]
    except MissingError:
        recognised = recognised_url(url)
        if recognised != url:
            return info(recognised)
        explain_missing(url)
        raise
