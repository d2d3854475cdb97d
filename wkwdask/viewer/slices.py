"""Read slices through the middle of volumes, at the resolution of a picture."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from wkwdask.model.stored_array import StoredArray
from wkwdask.store.paths import is_remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image

_WHOLE_VX = 4 << 20  # a slice of at most this many voxels is read at full resolution
_TILE_VX = 2048  # edge of a tile of a larger slice, read at once
_FEW_CHUNKS = 2  # if a pixel covers at most this many chunks, all are read and averaged
_MOST_SAMPLES = 128  # otherwise: pixels along an axis, one chunk is read for each
_MOST_REMOTE_SAMPLES = 64
_REMOTE_READERS = 16


class Sliceable(Protocol):
    """Volume from which slices can be read, such as :class:`wkwdask.model.volume.Volume`."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel."""

    @property
    def num_channels(self) -> int:
        """Number of channels."""

    @property
    def box(self) -> BoundingBox:
        """Box of the data [voxels of its mag]."""

    def read_into(self, out: AnyArray, topleft: Vec3) -> int:
        """Read the voxels from ``topleft`` into an array (c, x, y, z)."""


class _Span(NamedTuple):
    """Range of pixels along an axis, and the voxels to read for them."""

    pixels: slice
    start: int
    """First voxel."""
    stop: int
    """End of the voxels (exclusive)."""
    step: int
    """Voxels per pixel; the last pixel may have fewer."""


def read_slice(
    volume: Sliceable,
    box: BoundingBox,
    columns: str,
    rows: str,
    pixels: tuple[int, int],
    *,
    are_ids: bool,
) -> AnyArray:
    """Read the slice through the middle of a box."""
    mag_box = box.in_mag(volume.box.mag)
    plane = ("xyz".index(columns), "xyz".index(rows))
    normal = 3 - sum(plane)
    middle = mag_box.topleft[normal] + mag_box.size[normal] // 2
    if (
        not isinstance(volume, StoredArray)
        or mag_box.size[plane[0]] * mag_box.size[plane[1]] <= _WHOLE_VX
    ):
        return _read(
            volume,
            [(mag_box.topleft[axis], mag_box.bottomright[axis]) for axis in plane],
            plane,
            middle,
        )
    most = _MOST_REMOTE_SAMPLES if is_remote(volume.name) else _MOST_SAMPLES
    all_spans = [
        _spans(volume, mag_box, axis, length, most)
        for axis, length in zip(plane, pixels, strict=True)
    ]
    width, height = (spans[-1].pixels.stop for spans in all_spans)
    out = np.zeros((volume.num_channels, height, width), volume.dtype if are_ids else np.float64)

    def fill(spans: tuple[_Span, _Span]) -> None:
        voxels = _read(volume, [(span.start, span.stop) for span in spans], plane, middle)
        out[:, spans[1].pixels, spans[0].pixels] = (
            _pick_middle(voxels, spans) if are_ids else _average(voxels, spans)
        )

    with ThreadPoolExecutor(
        _REMOTE_READERS if is_remote(volume.name) else 1, thread_name_prefix="wkwdask-preview"
    ) as threads:
        for _ in threads.map(fill, product(*all_spans)):
            pass
    return out


def _read(
    volume: Sliceable, spans: Sequence[tuple[int, int]], plane: tuple[int, int], middle: int
) -> AnyArray:
    """Read a part of a slice, shape (c, rows, columns)."""
    topleft, size = [middle] * 3, [1] * 3
    for axis, (start, stop) in zip(plane, spans, strict=True):
        topleft[axis], size[axis] = start, stop - start
    voxels = np.zeros((volume.num_channels, *size), volume.dtype)
    volume.read_into(voxels, (topleft[0], topleft[1], topleft[2]))
    flat: AnyArray = voxels.take(0, axis=4 - sum(plane))
    return flat if plane[0] > plane[1] else flat.swapaxes(1, 2)


def _spans(
    volume: StoredArray, mag_box: BoundingBox, axis: int, pixels: int, most: int
) -> list[_Span]:
    """Return the voxels to read along an axis for at least ``pixels`` pixels, or for at most
    ``most`` samples.

    A pixel that covers few chunks is the reduction of all its voxels; neighboring pixels are read
    together as tiles. A pixel that covers many chunks is the reduction of the chunk in its middle,
    so that the work depends on the picture and not on the volume:

        voxels  |--------- step ---------|--------- step ---------|
        read    .        [chunk]         .        [chunk]         .
    """
    first, length, edge = mag_box.topleft[axis], mag_box.size[axis], volume.chunk_shape[axis]
    step = -(-length // (2 * pixels))
    if step <= _FEW_CHUNKS * edge:
        together = max(1, max(_TILE_VX, edge) // step)
        count = -(-length // step)
        cells = [(n, min(n + together, count)) for n in range(0, count, together)]
        return [
            _Span(slice(a, b), first + a * step, min(first + b * step, first + length), step)
            for a, b in cells
        ]
    step = -(-length // min(pixels, most))
    origin = volume.origin[axis]
    spans = []
    for n in range(-(-length // step)):
        start, stop = first + n * step, min(first + (n + 1) * step, first + length)
        # first voxel of the chunk in the middle
        corner = ((start + stop) // 2 - origin) // edge * edge + origin
        spans.append(_Span(slice(n, n + 1), max(start, corner), min(stop, corner + edge), edge))
    return spans


def _pick_middle(voxels: AnyArray, spans: tuple[_Span, _Span]) -> AnyArray:
    """Reduce each pixel to the voxel in its middle; ids cannot be averaged."""
    columns, rows = (
        np.minimum(np.arange(0, n, span.step) + span.step // 2, n - 1)
        for span, n in zip(spans, voxels.shape[:0:-1], strict=True)
    )
    return voxels[:, rows[:, np.newaxis], columns]


def _average(voxels: AnyArray, spans: tuple[_Span, _Span]) -> AnyArray:
    """Reduce each pixel to the mean of its voxels."""
    mean: AnyArray = voxels
    for axis, span in ((2, spans[0]), (1, spans[1])):
        starts = np.arange(0, voxels.shape[axis], span.step)
        counts = np.diff(starts, append=voxels.shape[axis])
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, drawn as 0
            sums = np.add.reduceat(mean, starts, axis=axis, dtype=np.float64)
        mean = sums / (counts if axis == 2 else counts[:, np.newaxis])
    return mean


def is_segmentation(layer: Image, volume: StoredArray) -> bool:
    """Return whether a layer has ids, as its dataset says or its data type suggests."""
    if layer.category is not None:
        return layer.category == "segmentation"
    return volume.dtype.kind in "iu" and volume.dtype.itemsize >= 4
