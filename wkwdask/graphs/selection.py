"""Reading what any orthogonal index selects, in boxes of bounded size that do not cut blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from wkwdask.streams.points import sample_points

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.graphs.read import BoxReader

Item: TypeAlias = "int | np.integer[Any] | slice | npt.NDArray[np.integer[Any]]"
"""What selects along one axis: a whole number, which removes the axis, a slice with any step, or an array of whole numbers."""

_CELL = 256
"""Longest edge of a box that is read at once, unless blocks are longer [voxels]."""
_POINTS = 1 << 21
"""How many points are looked up at once."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbours among the selected places along an axis."""

    span: slice
    """The places that are read."""
    taken: Any
    """Which of them are wanted, counted from the start of the span."""
    put: Any
    """Where they go in the result."""


def read_orthogonal(reader: BoxReader, items: Sequence[Item]) -> npt.NDArray[Any]:
    """Read the product of what selects along each axis, as numpy's ``ix_`` and xarray's ``isel`` understand it."""
    if all(not isinstance(item, np.ndarray) and (not isinstance(item, slice) or item.step in (None, 1)) for item in items):
        return reader[tuple(items)]
    places = [_places(item, n) for item, n in zip(items, reader.shape, strict=True)]
    out = np.empty([len(wanted) for wanted in places], reader.dtype)
    starts = dict(zip("xyz", reader.grid_start, strict=True))
    lengths = dict(zip("xyz", reader.volume.chunk_shape, strict=True))
    pieces = [list(_pieces(wanted, starts.get(axis, 0), lengths.get(axis, 1))) for axis, wanted in zip(reader.axes, places, strict=True)]
    for combination in product(*pieces):
        voxels = reader[tuple(piece.span for piece in combination)]
        out[np.ix_(*(piece.put for piece in combination))] = voxels[np.ix_(*(piece.taken for piece in combination))]
    removed = tuple(n for n, item in enumerate(items) if isinstance(item, (int, np.integer)))
    return out.squeeze(axis=removed)


def read_points(reader: BoxReader, items: Sequence[npt.NDArray[np.integer[Any]] | slice]) -> npt.NDArray[Any]:
    """Read the values at points, as xarray's pointwise indexing understands it: also where it transposes an array that was not read yet."""
    shape = np.broadcast_shapes(*(item.shape for item in items if isinstance(item, np.ndarray)))
    lines = _lines(items, len(shape))
    if lines is not None:
        return _read_product(reader, lines, shape)
    spans = [_places(item, n) for item, n in zip(items, reader.shape, strict=True) if isinstance(item, slice)]
    whole = (*shape, *(len(span) for span in spans))
    full: dict[str, Any] = {"c": np.int64(reader.channel or 0)}
    for axis, item, n in zip(reader.axes, items, reader.shape, strict=True):
        if isinstance(item, np.ndarray):
            at = np.where(item < 0, item + n, item)
            full[axis] = at.reshape(*at.shape, *(1,) * len(spans))
        else:
            rank = sum(isinstance(other, slice) for other in items[: reader.axes.index(axis)])
            full[axis] = spans[rank].reshape(-1, *(1,) * (len(spans) - rank - 1))
    order = {axis: np.broadcast_to(places, whole) for axis, places in full.items()}
    out = np.empty(whole, reader.dtype)
    for first in range(0, out.size, _POINTS):
        part = slice(first, first + _POINTS)
        points = np.stack([order[axis].flat[part] + start for axis, start in zip("xyz", reader.start, strict=True)], axis=1)
        inside = (points >= reader.box.topleft).all(axis=1) & (points < reader.box.bottomright).all(axis=1)  # zeros before the box of absolute indices
        values = np.zeros((len(points), reader.volume.num_channels), reader.dtype)
        values[inside] = sample_points(reader.volume, points[inside])
        out.reshape(-1)[part] = np.take_along_axis(values, order["c"].flat[part][:, np.newaxis], axis=1)[:, 0]
    return out


def _lines(items: Sequence[npt.NDArray[np.integer[Any]] | slice], ndim: int) -> list[tuple[int, npt.NDArray[np.integer[Any]]]] | None:
    """Find the axis along which each array varies, and its values there; None where two vary along the same axis, or one along several.

    Such points are all those of a box, or what is selected of one along each axis.
    """
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


def _read_product(reader: BoxReader, lines: Sequence[tuple[int, npt.NDArray[np.integer[Any]]]], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Read what lies on lines along axes of the result, each of which is that of one axis of the reader."""
    voxels = np.asarray(read_orthogonal(reader, [_span(line) if axis >= 0 else int(line[0]) for axis, line in lines]))
    kept = [axis for axis, _ in lines if axis >= 0]
    ordered = voxels.transpose(sorted(range(len(kept)), key=kept.__getitem__))
    found = ordered.reshape([n if axis in kept else 1 for axis, n in enumerate(shape)])
    return found if found.shape == shape else np.broadcast_to(found, shape).copy()


def _span(line: npt.NDArray[np.integer[Any]]) -> slice | npt.NDArray[np.integer[Any]]:
    """Write neighbours as a slice, which is read at once."""
    return slice(int(line[0]), int(line[-1]) + 1) if line[0] >= 0 and (np.diff(line) == 1).all() else line


def _places(item: Item, length: int) -> npt.NDArray[np.int64]:
    """List the places that an index selects along an axis."""
    if isinstance(item, slice):
        return np.arange(*item.indices(length), dtype=np.int64)
    at = np.atleast_1d(np.asarray(item, np.int64))
    outside = at[(at < -length) | (at >= length)]
    if outside.size:
        raise IndexError(f"index {outside[0]} is out of bounds for an axis of {length} voxels")
    return np.where(at < 0, at + length, at)


def _pieces(places: npt.NDArray[np.int64], start: int, block_len: int) -> Iterator[_Piece]:
    """Part selected places into neighbours: of one cell of the grid, and no more than a block apart."""
    order = np.argsort(places, kind="stable")
    rising = places[order]
    cells = (rising + start) // (-(-_CELL // block_len) * block_len)
    cuts = np.flatnonzero((np.diff(cells) != 0) | (np.diff(rising) > block_len)) + 1
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rising)], strict=True):
        if high > low:
            first = int(rising[low])
            yield _Piece(slice(first, int(rising[high - 1]) + 1), rising[low:high] - first, order[low:high])
