"""A level of any format that is opened once and read many times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from wkwdask.errors import BoundsError, ReplacedError, UnsupportedError
from wkwdask.formats.axes import parse_index
from wkwdask.formats.open_level import open_again
from wkwdask.formats.opening import use_storage_options
from wkwdask.formats.registry import absolute_url, location_of
from wkwdask.geometry.bounding_box import BoundingBox, voxel_box
from wkwdask.geometry.mag import whole_number
from wkwdask.kernels.arrays import empty_aligned
from wkwdask.model.image import check_inside, check_layer_name, mag_or_key
from wkwdask.model.stored_array import BoxLayout
from wkwdask.store.cores import reading_threads
from wkwdask.store.lru import LruCache
from wkwdask.store.objects.access import access_of
from wkwdask.store.paths import is_remote
from wkwdask.streams.boxes import read_boxes
from wkwdask.streams.points import sample_points
from wkwdask.streams.reading import MIN_NBYTES, decoded_nbytes, read_on_threads

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from wkwdask.api.options import MagLike
    from wkwdask.formats.open_level import OpenLevel
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume

_MOST = 2**63 - 1  # largest int64
_REMOTE_THREADS = 8  # that decode; each holds files that were read ahead
_Result = TypeVar("_Result")


class Reader:
    """Level of an image that is opened once and read many times, see :func:`reader`.

    It is safe in threads and in forked processes, and small to pickle: another process opens the
    level again. It holds no open file.
    """

    __slots__ = ("_index", "_layer", "_level", "_mag", "_options", "url")

    url: str
    """Absolute path or URL, as it was given."""

    def __init__(
        self,
        url: str,
        layer: str | None,
        mag: Mag | str | None,
        index: Mapping[str, int] | None,
        options: Mapping[str, Any] | None,
        level: OpenLevel | None = None,
    ) -> None:
        self.url, self._layer, self._mag = url, layer, mag
        # a copy: the caller may change the mapping before the level is opened again
        self._index = None if index is None else dict(index)
        self._options, self._level = options, level

    def __reduce__(self) -> tuple[Any, ...]:
        return Reader, (self.url, self._layer, self._mag, self._index, self._options)

    def __repr__(self) -> str:
        return f"<Reader {self._volume.name}: {self.dtype} {self.box}>"

    def _open(self, *, refresh: bool = False) -> StoredArray:
        """Return the current level."""
        if self._level is None:
            use_storage_options(self.url, self._options)
        level = open_again(
            self.url, self._layer, self._mag, self._index, self._level, refresh=refresh
        )
        self._level = level
        return level.volume

    @property
    def _volume(self) -> StoredArray:
        return self._open()

    @property
    def box(self) -> BoundingBox:
        """Bounding box [voxels of the mag]."""
        return self._volume.box

    @property
    def mag(self) -> Mag:
        """Mag, or mag 1 of an array without one."""
        return self.box.mag

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the voxels."""
        return self._volume.dtype

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape (c, x, y, z) of the whole box."""
        volume = self._volume
        return (volume.num_channels, *volume.box.size)

    @property
    def chunk_shape(self) -> tuple[int, int, int]:
        """Shape (x, y, z) of a stored chunk, or block [voxels]."""
        return self._volume.chunk_shape

    def read(
        self,
        box: BoundingBox | Sequence[Sequence[int]] | None = None,
        *,
        threads: int | None = None,
    ) -> npt.NDArray[Any]:
        """Read voxels, see :func:`wkwdask.read`.

        Parameters
        ----------
        box : BoundingBox or pair of corners, optional
            Box to read, as for :func:`wkwdask.read`; by default the whole box.
        threads : int, optional
            Threads that decode, as for :func:`wkwdask.read`.

        Returns
        -------
        ndarray, shape (c, x, y, z), Fortran order
        """
        volume = self._open(refresh=box is None)
        selected = volume.box if box is None else voxel_box(box, volume.box.mag)
        if not volume.box.contains(selected):
            volume = self._open(refresh=True)  # it may have grown, unnoticed if it is remote
            check_inside(volume.name, volume.box, selected)
        return self._retry(volume, lambda volume: _read_box(volume, selected, threads))

    def read_many(
        self,
        boxes: Sequence[BoundingBox | Sequence[Sequence[int]]] | npt.NDArray[Any],
        *,
        threads: int | None = None,
    ) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
        """Read many boxes, decoding each chunk once, see :func:`wkwdask.read_many`.

        Parameters
        ----------
        boxes : sequence of BoundingBox or pair of corners, or array_like of int, shape (n, 2, 3)
            Boxes to read, each as for :func:`wkwdask.read`.
        threads : int, optional
            Threads that decode, as for :func:`wkwdask.read`.

        Returns
        -------
        ndarray, shape (n, c, x, y, z), or list of ndarray, shape (c, x, y, z)
            An array if all boxes have the same shape, else a list.
        """
        volume = self._open()
        corners = _parse_boxes(boxes, volume)
        if not _are_inside(corners, volume.box):
            volume = self._open(refresh=True)
            if not _are_inside(corners, volume.box):
                for low, high in corners.tolist():
                    check_inside(
                        volume.name, volume.box, BoundingBox.from_corners(low, high, volume.box.mag)
                    )
        return self._retry(volume, lambda volume: _read_boxes(volume, corners, threads))

    def sample(self, points: npt.ArrayLike) -> npt.NDArray[Any]:
        """Read the values at many points, decoding each chunk once, see :func:`wkwdask.sample`.

        Parameters
        ----------
        points : array_like of int, shape (n, 3)
            Absolute voxels of the mag along x, y, z.

        Returns
        -------
        ndarray, shape (n,) for one channel, else (n, c)
        """
        array = np.asarray(points)
        if array.size == 0:
            array = array.reshape(0, 3).astype(np.int64)
        if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "iu":
            raise TypeError(
                f"points must be whole numbers of shape (n, 3), got {array.dtype} of shape "
                f"{array.shape}"
            )
        if array.dtype.kind == "u" and array.size and array.max() > _MOST:
            beyond = next(point for point in array.tolist() if max(point) > _MOST)
            raise BoundsError(
                f"{self._volume.name}: point {beyond} lies outside the box {self.box}"
            )
        corners = np.stack([array, array + 1], axis=1)
        volume = self._open()
        if not _are_inside(corners, volume.box):
            volume = self._open(refresh=True)
        values = self._retry(volume, lambda volume: sample_points(volume, array.astype(np.int64)))
        return values[:, 0] if values.shape[1] == 1 else values

    def _retry(self, volume: StoredArray, read: Callable[[StoredArray], _Result]) -> _Result:
        try:
            return read(volume)
        except ReplacedError:  # another job replaced the level after it was opened
            return read(self._open(refresh=True))


def reader(
    url: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    index: Mapping[str, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Reader:
    """Open one mag of a layer, of any format, to read many parts of it.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag, of any format that :func:`open` opens.
    layer : str, optional
        The layer; may be omitted if there is only one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default the mag of the path, else the finest mag that was written. The reader
        stays at this mag.
    index : mapping of str to int, optional
        Index along each further axis, as for :func:`open`.
    storage_options : mapping, optional
        Access to a remote server, as for :func:`open`.

    Returns
    -------
    Reader

    Raises
    ------
    MissingError
        The dataset, layer or mag does not exist.
    FormatError
        A record or header is broken.
    ValueError
        The choice of layer is ambiguous.

    Notes
    -----
    Each call asks the file system for the states of the few documents that describe the level
    (inode, time, size). If one has changed, the level is opened again: the box, the type and the
    voxels are those of the present array. Documents that changed less than two seconds
    ago are read for each call, since a file system may give two changes the same time. Documents of
    remote levels are read again after a minute, or when a box lies outside the known one.

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
    >>> cells = wkwdask.reader(f"{folder}/1")
    >>> cells.shape, cells.dtype
    ((1, 64, 64, 64), dtype('uint32'))
    >>> cells.read(((0, 0, 5), (1, 1, 8))).ravel().tolist(), cells.sample([(0, 1, 0)]).tolist()
    ([5, 6, 7], [64])
    """
    use_storage_options(url, storage_options)
    check_layer_name(layer)
    text = absolute_url(url)
    level = open_again(text, layer, mag_or_key(mag), index, None)
    return Reader(text, layer, level.name, index, storage_options, level)


_readers: LruCache[Reader] = LruCache(128)


def cached_reader(
    url: str | os.PathLike[str],
    layer: str | None,
    mag: MagLike | None,
    index: Mapping[str, int] | None,
    storage_options: Mapping[str, Any] | None,
) -> Reader:
    """Return the reader of the level that a path names now: without a mag, another level may become
    the finest."""
    use_storage_options(url, storage_options)
    check_layer_name(layer)
    text, parsed_mag = absolute_url(url), mag_or_key(mag)
    location = location_of(text)
    chosen = None if index is None else tuple(sorted(parse_index(index).items()))
    access = access_of(location) if is_remote(location) else None
    key = (text, layer, parsed_mag, chosen, access)
    cached = _readers.get(key)
    if cached is None:
        cached = Reader(text, layer, parsed_mag, index, storage_options)
        _readers.put(key, cached)
    return cached


def _read_box(volume: StoredArray, box: BoundingBox, threads: int | None) -> npt.NDArray[Any]:
    try:
        out = empty_aligned((volume.num_channels, *box.size), volume.dtype, "F")
    except (MemoryError, ValueError):
        count = volume.num_channels * box.volume
        raise UnsupportedError(
            f"{volume.name}: {box} has {count:,} values of {volume.dtype}, which do not fit into "
            "memory; choose a smaller box"
        ) from None
    decoded = decoded_nbytes(volume, out, box.topleft)
    read_on_threads(volume, out, box.topleft, _num_threads(volume, threads, decoded))
    return out


def _parse_boxes(
    boxes: Sequence[BoundingBox | Sequence[Sequence[int]]] | npt.NDArray[Any], volume: Volume
) -> npt.NDArray[np.int64]:
    """Return the corners of boxes in voxels of a volume, shape (n, 2, 3)."""
    try:
        corners = np.asarray(boxes)
        if (
            corners.dtype.kind in "iu"
            and corners.shape[1:] == (2, 3)
            and (corners <= _MOST).all()
            and (corners[:, 0] <= corners[:, 1]).all()
        ):
            return corners.astype(np.int64)
    except ValueError:  # not all are pairs of corners
        pass
    if isinstance(boxes, BoundingBox) or not hasattr(boxes, "__iter__"):
        raise ValueError(f"boxes is a list of boxes, got {boxes!r}")
    parsed = [voxel_box(box, volume.box.mag) for box in boxes]
    try:
        return np.array([(box.topleft, box.bottomright) for box in parsed], np.int64).reshape(
            -1, 2, 3
        )
    except OverflowError:
        raise BoundsError(
            f"{volume.name}: a box has more than 63 bits and reaches outside {volume.box}"
        ) from None


def _are_inside(corners: npt.NDArray[np.int64], box: BoundingBox) -> bool:
    return bool((corners[:, 0] >= box.topleft).all() and (corners[:, 1] <= box.bottomright).all())


def _read_boxes(
    volume: StoredArray, corners: npt.NDArray[np.int64], threads: int | None
) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
    if len(corners) == 1:
        low, high = corners[0].tolist()
        return _read_box(volume, BoundingBox.from_corners(low, high, volume.box.mag), threads)[
            np.newaxis
        ]
    shapes = (corners[:, 1] - corners[:, 0]).tolist() or [[0, 0, 0]]
    out: npt.NDArray[Any] | list[npt.NDArray[Any]]
    try:
        if all(shape == shapes[0] for shape in shapes):
            x, y, z = shapes[0]
            out = np.zeros((len(corners), z, y, x, volume.num_channels), volume.dtype).transpose(
                0, 4, 3, 2, 1
            )
        else:
            out = [
                np.zeros((volume.num_channels, *shape), volume.dtype, order="F") for shape in shapes
            ]
    except (MemoryError, ValueError):
        count = volume.num_channels * sum(map(math.prod, shapes))
        raise UnsupportedError(
            f"{volume.name}: {len(corners)} boxes have {count:,} values of {volume.dtype}, which "
            "do not fit into memory; read fewer"
        ) from None
    parts = list(out)
    read_boxes(
        volume,
        corners[:, 0],
        parts,
        _num_threads(
            volume,
            threads,
            sum(
                decoded_nbytes(volume, part, corner)
                for part, corner in zip(parts, corners[:, 0].tolist(), strict=True)
            ),
        ),
    )
    return out


def _max_threads(volume: StoredArray) -> int:
    """Return the largest useful number of threads for one read. Remote files are read ahead on
    other threads, and layouts that read boxes decode on these too."""
    if not volume.store.is_remote:
        return 1 << 10
    return 1 if isinstance(volume.layout, BoxLayout) else _REMOTE_THREADS


def _num_threads(volume: StoredArray, threads: int | None, nbytes: int) -> int:
    """Return the number of threads to decode so many bytes."""
    if threads is None:
        return min(_max_threads(volume), reading_threads()) if nbytes > MIN_NBYTES else 1
    return whole_number(threads, "threads", 1)
