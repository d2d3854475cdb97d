"""A volume as a dask array.

The array is ``dask.array.from_array`` over a small picklable reader. Only then does dask fuse a
slice into the read, so that a 2-D slice of a large chunk decodes only one layer of blocks.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import dask
import dask.array as da
import numpy as np
from dask.utils import parse_bytes

from wkwdask.geometry.bounding_box import BoundingBox, counted_from, part_of_array
from wkwdask.geometry.mag import vec3, whole_number
from wkwdask.geometry.vectors import minus, plus
from wkwdask.graphs.volume_array import volume_array
from wkwdask.kernels.arrays import empty_aligned
from wkwdask.plans.chunks import MANY_CHUNKS, chunk_lengths, largest_multiple, num_chunks
from wkwdask.streams.reading import MIN_NBYTES, decoded_nbytes, read_on_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.volume import Volume

Chunks: TypeAlias = "str | int | Sequence[int]"
_MOST_PER_AXIS = 1 << 18  # chunks; dask stores the lengths of all chunks of an axis


@dataclass(frozen=True, slots=True)
class BoxReader:
    """Array-like over a box of a volume; indexing it reads."""

    volume: Volume
    extent: BoundingBox
    """Extent of the array along x, y, z [absolute voxels of the mag]."""
    box: BoundingBox
    """Extent of the data; the array is zero outside of it."""
    axes: str
    """Order of the axes ``c``, ``x``, ``y``, ``z``; without ``c``, the array has one channel."""
    channel: int | None
    """Channel of an array without ``c``."""

    @property
    def lengths(self) -> dict[str, int]:
        """Length of each axis."""
        x, y, z = self.extent.size
        return {"c": self.volume.num_channels, "x": x, "y": y, "z": z}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the order of the axes."""
        return tuple(self.lengths[axis] for axis in self.axes)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.axes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.volume.dtype

    @property
    def grid_start(self) -> Vec3:
        """Voxel of element 0 on the grid of stored chunks, which need not start at absolute voxel
        0."""
        return minus(self.extent.topleft, self.volume.origin)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return (*self.volume.token, self.extent, self.box, self.axes, self.channel)

    def __getitem__(self, index: Any) -> AnyArray:
        """Read the selection of a basic index. For any other index, read the whole array and apply
        the index to it."""
        items = index if isinstance(index, tuple) else (index,)
        if len(items) != self.ndim or not all(
            isinstance(item, (slice, int, np.integer)) for item in items
        ):
            everything: Any = self._read([slice(0, n) for n in self.shape])
            selected: AnyArray = everything[index]
            return selected
        return self.read(items)

    def read(self, items: Sequence[slice | int | np.integer[Any]], threads: int = 1) -> AnyArray:
        """Read the selection of a basic index with an item for each axis."""
        spans, rest = zip(
            *(_span(item, n) for item, n in zip(items, self.shape, strict=True)), strict=True
        )
        voxels = self._read(spans, threads)
        return voxels if all(part == slice(None) for part in rest) else voxels[rest]

    def _read(self, spans: Sequence[slice], threads: int = 1) -> AnyArray:
        """Read a box as a C-contiguous array in the order of the axes: dask concatenates chunks of
        another order many times slower."""
        span = dict(zip(self.axes, spans, strict=True))
        out = empty_aligned([s.stop - s.start for s in spans], self.dtype, "C")
        first_channel = span["c"].start if "c" in span else (self.channel or 0)
        view = out if "c" in span else out[np.newaxis]
        order = self.axes if "c" in span else f"c{self.axes}"
        view = view.transpose([order.index(axis) for axis in "cxyz"])
        corner = span["x"].start, span["y"].start, span["z"].start
        low = plus(self.extent.topleft, corner)
        selected = BoundingBox(low, view.shape[1:], self.box.mag)
        inside = selected.intersection(self.box)
        if inside != selected:
            view[...] = 0
        if not inside.is_empty:
            part = part_of_array(view, inside, selected.topleft)
            is_large = decoded_nbytes(self.volume, part, inside.topleft) > MIN_NBYTES
            read_on_threads(
                self.volume, part, inside.topleft, threads if is_large else 1, first_channel
            )
        return out


def _span(item: slice | int | np.integer[Any], length: int) -> tuple[slice, slice | int]:
    """Split an index of one axis into the span to read and the index to apply to it."""
    if not isinstance(item, slice):
        position = range(length)[int(item)]
        return slice(position, position + 1), 0
    selected = range(length)[item]
    if not selected:
        return slice(0, 0), slice(None)
    low, high = min(selected[0], selected[-1]), max(selected[0], selected[-1]) + 1
    if selected.step == 1:
        return slice(low, high), slice(None)
    return slice(low, high), slice(None, None, selected.step)


def open_array(
    volume: Volume,
    *,
    chunks: Chunks,
    box: BoundingBox,
    extent: BoundingBox,
    axes: str | None,
    channel: int | None,
) -> da.Array:
    """Return a dask array over the box of a volume, and zeros in the rest of an extent."""
    reader = box_reader(volume, box, extent, axes, channel)
    ordered = reader_chunks(reader, chunks)
    if num_chunks(ordered) > MANY_CHUNKS:
        largest = dict(zip(reader.axes, map(max, ordered), strict=True))
        warnings.warn(
            f"{volume.name}: {num_chunks(ordered)} chunks of "
            f"{(largest['x'], largest['y'], largest['z'])} voxels; dask takes milliseconds for "
            "each: "
            'choose larger ones (chunks="file" or chunks="1GiB"), or a smaller part with '
            "bounding_box=",
            stacklevel=3,
        )
    array: da.Array = da.from_array(
        reader,
        chunks=ordered,
        # another name after a write, or a cluster would return the voxels that it still holds
        name=f"wkwdask-{dask.base.tokenize(reader, ordered, volume.files.written)}",
        lock=False,
        asarray=False,
        inline_array=True,
        meta=np.empty((0,) * reader.ndim, volume.dtype),
    )
    return volume_array(array, reader)


def box_reader(
    volume: Volume, box: BoundingBox, extent: BoundingBox, axes: str | None, channel: int | None
) -> BoxReader:
    """Return a reader of a volume, with checked axes and channel."""
    axes = _checked_axes(axes, channel, volume.num_channels)
    if channel is not None:
        channel = whole_number(channel, "channel")
        if not -volume.num_channels <= channel < volume.num_channels:
            raise ValueError(f"channel must be in 0..{volume.num_channels - 1}, got {channel}")
    return BoxReader(
        volume,
        extent,
        box.intersection(extent),
        axes,
        channel % volume.num_channels if channel is not None else None,
    )


def reader_chunks(reader: BoxReader, chunks: Chunks) -> tuple[tuple[int, ...], ...]:
    """Return the dask chunks of a reader, with borders on the grid of stored chunks."""
    volume = reader.volume
    nbytes_per_voxel = volume.dtype.itemsize * (volume.num_channels if "c" in reader.axes else 1)
    # the grid of stored chunks need not start at absolute voxel 0
    extent, box = (counted_from(each, volume.origin) for each in (reader.extent, reader.box))
    shape = _chunk_shape(chunks, volume, nbytes_per_voxel)
    counts = [-(-length // step) for length, step in zip(extent.size, shape, strict=True)]
    if max(counts) > _MOST_PER_AXIS and not isinstance(chunks, str):
        raise ValueError(
            f"{volume.name}: chunks of {tuple(shape)} voxels are {max(counts):,} along one axis of "
            f"{box}, expected at most {_MOST_PER_AXIS:,}"
        )
    shape = [
        step * max(1, -(-count // _MOST_PER_AXIS))
        for step, count in zip(shape, counts, strict=True)
    ]
    lengths = dict(zip("xyz", chunk_lengths(extent, box, shape), strict=True))
    lengths["c"] = (volume.num_channels,)
    return tuple(lengths[axis] for axis in reader.axes)


def _checked_axes(axes: str | None, channel: int | None, num_channels: int) -> str:
    if axes is None:
        return "cxyz" if channel is None else "xyz"
    if sorted(axes) == sorted("cxyz") and channel is None:
        return axes
    if sorted(axes) == sorted("xyz") and (channel is not None or num_channels == 1):
        return axes
    if channel is not None:
        raise ValueError(
            f"axes must be an order of x, y and z when channel= is given, got {axes!r}"
        )
    raise ValueError(
        "axes must be an order of c, x, y and z (c may be left out with one channel or channel=), "
        f"got {axes!r}"
    )


def _chunk_shape(chunks: Chunks, volume: Volume, voxel_nbytes: int) -> Sequence[int]:
    """Resolve ``chunks=`` to voxels along x, y, z."""
    if chunks == "file":
        return volume.shard_shape
    if chunks == "block":
        return volume.chunk_shape
    if isinstance(chunks, str):
        size = dask.config.get("array.chunk-size") if chunks == "auto" else chunks
        try:
            nbytes = parse_bytes(size)
        except ValueError:
            raise ValueError(
                'chunks must be "auto", "file", "block", a size such as "64MiB" or voxels along x, '
                f"y, z, got {chunks!r}"
            ) from None
        return largest_multiple(volume.chunk_shape, volume.shard_shape, voxel_nbytes, nbytes)
    edges: Any = [chunks] * 3 if isinstance(chunks, Real) else chunks
    shape: Vec3 | None = None
    with contextlib.suppress(TypeError, ValueError):
        shape = vec3(edges, "chunks")
    if shape is None or min(shape) < 1:
        raise ValueError(
            f"chunks in voxels are one positive number or three (x, y, z), got {chunks!r}"
        )
    return shape
