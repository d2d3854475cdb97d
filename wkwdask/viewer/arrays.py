"""Arrays that are not stored, as layers of the viewer: chunks of dask arrays are computed when they
are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wkwdask.api.options import parse_voxel_size
from wkwdask.api.saving import normalize_array
from wkwdask.geometry.bounding_box import BoundingBox, moved
from wkwdask.geometry.vectors import minus
from wkwdask.model.levels import ratio_of
from wkwdask.viewer.layers import shown_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.store.lru import LruCache
    from wkwdask.viewer.layers import ShownLayer

    Cache = LruCache[AnyArray]
_CHUNK = (64, 64, 64)


@dataclass(frozen=True)
class ArrayVolume:
    """A numpy or dask array as a volume of one mag."""

    array: Any
    """Shape (c, x, y, z)."""
    box: BoundingBox
    bounds: tuple[tuple[int, ...], ...]
    """Borders of the chunks along each axis; empty for an array that is not read by whole
    chunks."""
    cache: Cache
    """Computed chunks."""
    chunk_shape: ClassVar[Vec3] = _CHUNK

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.array.dtype
        return dtype

    @property
    def num_channels(self) -> int:
        return int(self.array.shape[0])

    def moved(self, shift: Vec3) -> ArrayVolume:
        return replace(self, box=moved(self.box, shift))

    def read_into(
        self, out: AnyArray, topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True
    ) -> int:
        """Fill an array with voxels inside the box, see
        :meth:`wkwdask.model.volume.Volume.read_into`."""
        del fill_zeros
        lows = (first_channel, *minus(topleft, self.box.topleft))
        wanted = [(low, low + n) for low, n in zip(lows, out.shape, strict=True)]
        if not self.bounds:
            out[...] = self._compute([wanted])[0]
            return int(out.any())
        spans = [
            [span for span in pairwise(bounds) if span[0] < high and span[1] > low]
            for bounds, (low, high) in zip(self.bounds, wanted, strict=True)
        ]
        chunks = list(product(*spans))
        keys = [(id(self.array), chunk) for chunk in chunks]
        for chunk, voxels in zip(
            chunks,
            self.cache.get_or_make(keys, lambda keys: self._compute([key[1] for key in keys])),
            strict=True,
        ):
            common = [
                (max(low, first), min(high, last))
                for (low, high), (first, last) in zip(wanted, chunk, strict=True)
            ]
            out[_slices(common, lows)] = voxels[_slices(common, [first for first, _ in chunk])]
        return int(out.any())

    def _compute(self, boxes: Sequence[Sequence[tuple[int, int]]]) -> list[AnyArray]:
        parts = [self.array[_slices(box, (0,) * len(box))] for box in boxes]
        if isinstance(self.array, np.ndarray):
            return parts
        import dask

        return [np.ascontiguousarray(part) for part in dask.compute(*parts)]


def _slices(box: Sequence[tuple[int, int]], origin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(
        slice(low - first, high - first) for (low, high), first in zip(box, origin, strict=True)
    )


@dataclass(frozen=True)
class ArrayOptions:
    """Position and category of arrays; None where the caller does not know them."""

    mag: Mag
    offset: Sequence[int] | None
    voxel_size: Sequence[float] | None
    default_size: Lengths | None
    """Voxel size of the other layers."""
    category: str | None
    cache_nbytes: int


def layer_of(array: Any, name: str | None, options: ArrayOptions, cache: Cache) -> ShownLayer:
    """Return an array as a layer."""
    voxels, coordinates = normalize_array(array, options.offset, allow_negative=True)
    name = str(
        name or (getattr(array, "name", None) if hasattr(array, "coords") else None) or "array"
    )
    if voxels.dtype.kind not in "biuf" or 0 in voxels.shape:
        raise ValueError(
            f"{name}: expected voxels that are numbers, got shape {voxels.shape} of {voxels.dtype}"
        )
    size = (
        options.default_size
        if coordinates.lengths_nm is None
        else ratio_of(coordinates.lengths_nm, options.mag.factors)
    )
    size = size if options.voxel_size is None else parse_voxel_size(options.voxel_size)
    category = options.category or coordinates.category
    has_labels = (
        category == "segmentation"
        if category
        else voxels.dtype.kind == "b" or (voxels.dtype.kind in "iu" and voxels.dtype.itemsize >= 4)
    )
    chunks = getattr(voxels, "chunks", ())
    is_cached = (
        prod(max(lengths) for lengths in chunks) * voxels.dtype.itemsize <= options.cache_nbytes
    )
    bounds = tuple((0, *accumulate(lengths)) for lengths in chunks) if is_cached else ()
    volume = ArrayVolume(
        voxels, BoundingBox(coordinates.offset, voxels.shape[1:], options.mag), bounds, cache
    )
    return shown_array(name, volume, size, is_segmentation=has_labels)
