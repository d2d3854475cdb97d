"""A slice of a volume, no finer than a picture needs it: what is held at once is bounded, however large the volume is.

Where a pixel stands for several voxels, images are averaged and ids are picked. Where it stands for more than a few chunks, only one chunk of them is read.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from wkwdask.model.volume import StoredVolume
from wkwdask.store.paths import is_remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3

_WHOLE_VX = 4 << 20  # a slice of so many voxels is read as it is
_TILE_VX = 2048  # edge of what is read at once of a larger one
_FEW_CHUNKS = 2  # that a pixel stands for, all of which are read
_MOST_SAMPLES = 128  # along an axis, where one chunk is read for each
_MOST_REMOTE_SAMPLES = 64
_REMOTE_READERS = 16


class Sliceable(Protocol):
    """What slices are taken from, a :class:`wkwdask.model.volume.Volume` for one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel."""

    @property
    def num_channels(self) -> int:
        """Values per voxel."""

    @property
    def box(self) -> BoundingBox:
        """Where it has data [voxels of its mag]."""

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3) -> int:
        """Fill an array (c, x, y, z) with the voxels from ``topleft`` on."""


class _Span(NamedTuple):
    """Some neighbouring pixels along an axis, and the voxels that are read for them."""

    pixels: slice
    """Their places in the picture."""
    start: int
    """The first voxel."""
    stop: int
    """The voxel behind the last one."""
    step: int
    """Voxels for a pixel; the last one may have fewer."""


def read_slice(volume: Sliceable, box: BoundingBox, columns: str, rows: str, pixels: tuple[int, int], *, are_ids: bool) -> npt.NDArray[Any]:
    """Read the slice through the middle of a box."""
    here = box.in_mag(volume.box.mag)
    plane = ("xyz".index(columns), "xyz".index(rows))
    normal = 3 - sum(plane)
    middle = here.topleft[normal] + here.size[normal] // 2
    if not isinstance(volume, StoredVolume) or here.size[plane[0]] * here.size[plane[1]] <= _WHOLE_VX:
        return _read(volume, [(here.topleft[axis], here.bottomright[axis]) for axis in plane], plane, middle)
    most = _MOST_REMOTE_SAMPLES if is_remote(volume.name) else _MOST_SAMPLES
    all_spans = [_spans(volume, here, axis, length, most) for axis, length in zip(plane, pixels, strict=True)]
    width, height = (spans[-1].pixels.stop for spans in all_spans)
    out = np.zeros((volume.num_channels, height, width), volume.dtype if are_ids else np.float64)

    def fill(spans: tuple[_Span, _Span]) -> None:
        voxels = _read(volume, [(span.start, span.stop) for span in spans], plane, middle)
        out[:, spans[1].pixels, spans[0].pixels] = _picked(voxels, spans) if are_ids else _averaged(voxels, spans)

    with ThreadPoolExecutor(_REMOTE_READERS if is_remote(volume.name) else 1, thread_name_prefix="wkwdask-preview") as threads:
        for _ in threads.map(fill, product(*all_spans)):
            pass
    return out


def _read(volume: Sliceable, spans: Sequence[tuple[int, int]], plane: tuple[int, int], middle: int) -> npt.NDArray[Any]:
    """Read a part of a slice, shape (c, rows, columns)."""
    topleft, size = [middle] * 3, [1] * 3
    for axis, (start, stop) in zip(plane, spans, strict=True):
        topleft[axis], size[axis] = start, stop - start
    voxels = np.zeros((volume.num_channels, *size), volume.dtype)
    volume.read_into(voxels, (topleft[0], topleft[1], topleft[2]))
    flat: npt.NDArray[Any] = voxels.take(0, axis=4 - sum(plane))
    return flat if plane[0] > plane[1] else flat.swapaxes(1, 2)


def _spans(volume: StoredVolume, here: BoundingBox, axis: int, pixels: int, most: int) -> list[_Span]:
    """Say what is read along an axis for a picture of at least so many pixels, or of at most so many samples."""
    first, length, edge = here.topleft[axis], here.size[axis], volume.chunk_shape[axis]
    step = -(-length // (2 * pixels))
    if step <= _FEW_CHUNKS * edge:
        together = max(1, max(_TILE_VX, edge) // step)
        count = -(-length // step)
        cells = [(n, min(n + together, count)) for n in range(0, count, together)]
        return [_Span(slice(a, b), first + a * step, min(first + b * step, first + length), step) for a, b in cells]
    step = -(-length // min(pixels, most))
    origin = volume.origin[axis]
    spans = []
    for n in range(-(-length // step)):
        start, stop = first + n * step, min(first + (n + 1) * step, first + length)
        corner = ((start + stop) // 2 - origin) // edge * edge + origin  # of the chunk in the middle
        spans.append(_Span(slice(n, n + 1), max(start, corner), min(stop, corner + edge), edge))
    return spans


def _picked(voxels: npt.NDArray[Any], spans: tuple[_Span, _Span]) -> npt.NDArray[Any]:
    """Take the voxel in the middle of each pixel, the last one at the end."""
    columns, rows = (np.minimum(np.arange(0, n, span.step) + span.step // 2, n - 1) for span, n in zip(spans, voxels.shape[:0:-1], strict=True))
    return voxels[:, rows[:, np.newaxis], columns]


def _averaged(voxels: npt.NDArray[Any], spans: tuple[_Span, _Span]) -> npt.NDArray[Any]:
    """Take the mean of each pixel's voxels."""
    mean: npt.NDArray[Any] = voxels
    for axis, span in ((2, spans[0]), (1, spans[1])):
        places = np.arange(0, voxels.shape[axis], span.step)
        counts = np.diff(places, append=voxels.shape[axis])
        with np.errstate(invalid="ignore"):  # of infinite values, whose mean is none
            sums = np.add.reduceat(mean, places, axis=axis, dtype=np.float64)
        mean = sums / (counts if axis == 2 else counts[:, np.newaxis])
    return mean
