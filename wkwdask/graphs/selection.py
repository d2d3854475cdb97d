"""Orthogonal and pointwise indexing of a volume, read in boxes of bounded size that do not cut
stored chunks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from wkwdask.streams.points import sample_points

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray, IntArray
    from wkwdask.graphs.read import BoxReader

Item: TypeAlias = "int | np.integer[Any] | slice | npt.NDArray[np.integer[Any]]"
"""Index of one axis: an integer, which removes the axis, a slice with any step, or an array of
integers."""

_CELL_VX = 256
"""Longest edge of a box that is read at once, unless stored chunks are longer [voxels]."""
_POINTS = 1 << 21
"""Number of points that are looked up at once."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Selected indices along an axis that are read together."""

    read: slice
    """Indices to read."""
    selected: Any
    """Selected indices, counted from the start of ``read``."""
    target: Any
    """Their positions in the result."""


def read_orthogonal(reader: BoxReader, items: Sequence[Item]) -> AnyArray:
    """Read the product of the indices along each axis, with the meaning of numpy's ``ix_`` and
    xarray's ``isel``."""
    if all(
        not isinstance(item, np.ndarray) and (not isinstance(item, slice) or item.step in (None, 1))
        for item in items
    ):
        return reader[tuple(items)]
    indices = [_indices(item, n) for item, n in zip(items, reader.shape, strict=True)]
    out = np.empty([len(along) for along in indices], reader.dtype)
    starts = dict(zip("xyz", reader.grid_start, strict=True))
    lengths = dict(zip("xyz", reader.volume.chunk_shape, strict=True))
    spans = [
        list(_spans(along, starts.get(axis, 0), lengths.get(axis, 1)))
        for axis, along in zip(reader.axes, indices, strict=True)
    ]
    for box in product(*spans):
        voxels = reader[tuple(span.read for span in box)]
        out[np.ix_(*(span.target for span in box))] = voxels[
            np.ix_(*(span.selected for span in box))
        ]
    removed = tuple(n for n, item in enumerate(items) if isinstance(item, (int, np.integer)))
    return out.squeeze(axis=removed)


def read_points(
    reader: BoxReader, items: Sequence[npt.NDArray[np.integer[Any]] | slice]
) -> AnyArray:
    """Read the values at points, with the meaning of xarray's pointwise (vectorized) indexing."""
    # xarray uses pointwise indexing also to transpose or broadcast a lazy array. Such points fill a
    # box, and reading the box is faster than each point.
    shape = np.broadcast_shapes(*(item.shape for item in items if isinstance(item, np.ndarray)))
    lines = _lines(items, len(shape))
    if lines is not None:
        return _read_product(reader, lines, shape)
    indices = _point_indices(reader, items)
    channels = indices.get("c", np.broadcast_to(np.int64(reader.channel or 0), indices["x"].shape))
    out = np.empty(channels.shape, reader.dtype)
    for first in range(0, out.size, _POINTS):
        part = slice(first, first + _POINTS)
        points = np.stack([indices[axis].flat[part] for axis in "xyz"], axis=1)
        values = _values_at(reader, points + np.array(reader.extent.topleft))
        channel = channels.flat[part][:, np.newaxis]
        out.reshape(-1)[part] = np.take_along_axis(values, channel, axis=1)[:, 0]
    return out


def _point_indices(
    reader: BoxReader, items: Sequence[npt.NDArray[np.integer[Any]] | slice]
) -> dict[str, IntArray]:
    """Return the index along each axis for every value of the result: first come the axes of the
    points, then one axis for each slice."""
    num_slices, num_seen = sum(isinstance(item, slice) for item in items), 0
    full: dict[str, IntArray] = {}
    for axis, item, n in zip(reader.axes, items, reader.shape, strict=True):
        if isinstance(item, np.ndarray):
            indices = np.where(item < 0, item + n, item)
            full[axis] = indices.reshape(*indices.shape, *(1,) * num_slices)
        else:
            num_seen += 1
            full[axis] = _indices(item, n).reshape(-1, *(1,) * (num_slices - num_seen))
    return dict(zip(full, np.broadcast_arrays(*full.values()), strict=True))


def _values_at(reader: BoxReader, points: IntArray) -> AnyArray:
    """Return the values at absolute voxels, shape (n, c). The array is zero outside the box."""
    inside = (points >= reader.box.topleft).all(axis=1) & (points < reader.box.bottomright).all(
        axis=1
    )
    values = np.zeros((len(points), reader.volume.num_channels), reader.dtype)
    values[inside] = sample_points(reader.volume, points[inside])
    return values


def _lines(
    items: Sequence[npt.NDArray[np.integer[Any]] | slice], ndim: int
) -> list[tuple[int, npt.NDArray[np.integer[Any]]]] | None:
    """Return the axis along which each index array varies, or -1, and its values there; None if two
    share an axis or one varies along several."""
    lines = []
    for item in items:
        if isinstance(item, slice) or item.size == 0:
            return None
        at = item.reshape((1,) * (ndim - item.ndim) + item.shape)
        for axis in sorted(range(ndim), key=lambda n: -at.shape[n]):
            line = at[tuple(slice(None) if n == axis else slice(0, 1) for n in range(ndim))]
            if at.size == line.size or (at == line).all():
                break
        else:
            return None
        is_one = bool((line == line.flat[0]).all())
        lines.append((-1, line.reshape(-1)[:1]) if is_one else (axis, line.reshape(-1)))
    used = [axis for axis, _ in lines if axis >= 0]
    return lines if len(used) == len(set(used)) else None


def _read_product(
    reader: BoxReader,
    lines: Sequence[tuple[int, npt.NDArray[np.integer[Any]]]],
    shape: tuple[int, ...],
) -> AnyArray:
    """Read the product of lines, each along one axis of the result and of the reader."""
    voxels = np.asarray(
        read_orthogonal(
            reader, [_as_slice(line) if axis >= 0 else int(line[0]) for axis, line in lines]
        )
    )
    kept = [axis for axis, _ in lines if axis >= 0]
    ordered = voxels.transpose(sorted(range(len(kept)), key=kept.__getitem__))
    values = ordered.reshape([n if axis in kept else 1 for axis, n in enumerate(shape)])
    return values if values.shape == shape else np.broadcast_to(values, shape).copy()


def _as_slice(line: npt.NDArray[np.integer[Any]]) -> slice | npt.NDArray[np.integer[Any]]:
    """Return consecutive indices as a slice, which is read at once."""
    return (
        slice(int(line[0]), int(line[-1]) + 1)
        if line[0] >= 0 and (np.diff(line) == 1).all()
        else line
    )


def _indices(item: Item, length: int) -> IntArray:
    """Return the indices that an index selects along an axis, none negative."""
    if isinstance(item, slice):
        return np.arange(*item.indices(length), dtype=np.int64)
    indices = np.atleast_1d(np.asarray(item, np.int64))
    outside = indices[(indices < -length) | (indices >= length)]
    if outside.size:
        raise IndexError(f"index {outside[0]} is out of bounds for an axis of {length} voxels")
    return np.where(indices < 0, indices + length, indices)


def _spans(indices: IntArray, start: int, chunk_len: int) -> Iterator[_Span]:
    """Group the selected indices that are read together: they lie in one cell of the grid, and at
    most a chunk apart."""
    # A cell is at least 256 voxels long, a whole number of chunks. A gap longer than a chunk starts
    # a new span, since it may skip a whole chunk:
    #
    #   cells     |                |                |
    #   selected   x x  x         x|x             x |
    #   spans      [----]         [] []            []
    order = np.argsort(indices, kind="stable")
    ascending = indices[order]
    cells = (ascending + start) // (-(-_CELL_VX // chunk_len) * chunk_len)
    cuts = np.flatnonzero((np.diff(cells) != 0) | (np.diff(ascending) > chunk_len)) + 1
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(ascending)], strict=True):
        if high > low:
            first = int(ascending[low])
            yield _Span(
                slice(first, int(ascending[high - 1]) + 1),
                ascending[low:high] - first,
                order[low:high],
            )
