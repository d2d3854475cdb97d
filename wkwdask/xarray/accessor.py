"""The accessor ``.wkw`` of arrays that lie in space: where they are, the same place in another mag, a picture, and writing."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from wkwdask.errors import BoundsError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.coordinates import VOXEL, spacing_of

if TYPE_CHECKING:
    import os

    import numpy.typing as npt
    from PIL import Image

    from wkwdask.api.options import MagLike
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.coordinates import Spacing
    from wkwdask.runs.report import Report

_ON_GRID = 1e-4  # of a voxel


@xr.register_dataarray_accessor("wkw")  # type: ignore[no-untyped-call]
class WkwAccessor:
    """What arrays that came from WKW, or go there, can do."""

    def __init__(self, array: xr.DataArray) -> None:
        self._array = array

    @property
    def mag(self) -> Mag:
        """The mag whose voxels these are, by the spacing of the coordinates."""
        factors = []
        for axis, spacing, size in zip("xyz", self._spacings(), self._lengths_of_mag_1(), strict=True):
            length = spacing.length_nm if spacing.units != VOXEL else spacing.step
            factor = round(length / size) if length is not None else 0
            if length is None or not math.isclose(length / size, factor, rel_tol=_ON_GRID):
                raise ValueError(f"coordinate {axis}: a spacing of {length} is that of no mag, whose voxels of mag 1 are {size:g}")
            factors.append(factor)
        return Mag(factors[0], factors[1], factors[2])

    @property
    def voxel_size(self) -> tuple[float, float, float]:
        """Edge lengths of a voxel of mag 1 along x, y, z [nm]."""
        if any(self._coordinate(axis).attrs.get("units") == VOXEL for axis in "xyz"):
            raise ValueError("the voxel size is not known: the coordinates are numbers of voxels")
        x, y, z = self._lengths_of_mag_1()
        return x, y, z

    def to_wkw(self, url: str | os.PathLike[str], **options: Any) -> Report:
        """Write the array as one mag; its coordinates say where it goes."""
        from wkwdask.api.writing import to_wkw

        report: Report = to_wkw(self._array, url, **options)
        return report

    def at_mag(self, mag: MagLike) -> xr.DataArray:
        """Open the same place in another mag of the layer that this was opened from."""
        from wkwdask.formats.opening import find
        from wkwdask.xarray.variables import open_variables

        source = self._array.encoding.get("source")
        if source is None:
            raise ValueError("the array was computed: at_mag() opens what is stored; call it on an array that was opened, or coarsen() this one")
        layer = find(source).choose(None)
        volume = layer.volume(Mag.parse(mag))
        (opened,) = open_variables(layer, volume).data_vars.values()
        taken = opened.isel({axis: self._places(opened, axis) for axis in "xyz"})
        if "c" in opened.dims and "c" in self._array.coords:
            taken = taken.sel(c=self._array.coords["c"])
        ordered: xr.DataArray = taken.transpose(*(dim for dim in self._array.dims if dim in taken.dims))
        return ordered if self._array.chunks is None else ordered.chunk({})

    def crop_nm(
        self,
        x: tuple[float | None, float | None] | None = None,
        y: tuple[float | None, float | None] | None = None,
        z: tuple[float | None, float | None] | None = None,
    ) -> xr.DataArray:
        """Select the voxels whose centres lie in a box of space."""
        ranges = {axis: pair for axis, pair in (("x", x), ("y", y), ("z", z)) if pair is not None}
        self._check_touches(ranges)
        return self._array.isel({axis: self._within(axis, *pair) for axis, pair in ranges.items()})

    def preview(self, output: str | os.PathLike[str] | None = None, *, size: int = 640) -> Image.Image:
        """Draw the slices through the middle of the array; nothing else of it is read or computed."""
        from wkwdask.viewer.preview import draw

        volume = _Shown(self._array)
        lengths = [1.0, 1.0, 1.0]
        for n, axis in enumerate("xyz"):
            if axis in self._array.coords:
                lengths[n] = 0.0
                with contextlib.suppress(ValueError):  # reversed, or out of order: drawn in voxels
                    lengths[n] = spacing_of(self._array.coords[axis], axis).length_nm or 0.0
        in_nm = all(lengths) and any(axis in self._array.coords for axis in "xyz")
        is_segmentation = self._array.attrs.get("category", "segmentation" if volume.holds_ids else "color") == "segmentation"
        picture = draw(None if is_segmentation else volume, volume if is_segmentation else None, lengths if in_nm else None, size)
        if output is not None:
            picture.save(output)
        return picture

    def _coordinate(self, axis: str) -> xr.DataArray:
        if axis not in self._array.coords:
            raise ValueError(f"the array has no coordinate {axis}, which says where it is")
        coordinate: xr.DataArray = self._array.coords[axis]
        return coordinate

    def _spacings(self) -> list[Spacing]:
        return [spacing_of(self._coordinate(axis), axis) for axis in "xyz"]

    def _lengths_of_mag_1(self) -> list[float]:
        """Give the edge lengths of a voxel of mag 1: in nanometers, or 1 where nobody knows them."""
        lengths = []
        for axis in "xyz":
            attrs = self._coordinate(axis).attrs
            length = 1.0 if attrs.get("units") == VOXEL else attrs.get("voxel_size_nm")
            if length is None:
                raise ValueError(f"coordinate {axis}: has no attribute voxel_size_nm, which arrays have that were opened from a dataset with a voxel size")
            lengths.append(float(length))
        return lengths

    def _places(self, opened: xr.DataArray, axis: str) -> slice | int:
        """Find the voxels of another array that touch those of this one along an axis."""
        coordinate, there = self._coordinate(axis), spacing_of(opened.coords[axis], axis)
        if not coordinate.size or there.step is None:
            return slice(0, opened.sizes[axis] if coordinate.size else 0)
        low, high = float(coordinate.min()), float(coordinate.max())
        corner = there.first - there.step / 2
        if coordinate.ndim == 0:
            return min(max(math.floor((low - corner) / there.step), 0), opened.sizes[axis] - 1)
        half = coordinate.attrs["mag"] * coordinate.attrs.get("voxel_size_nm", 1.0) / 2  # the voxels are those that were opened, whichever were taken of them
        start, stop = math.floor((low - half - corner) / there.step + _ON_GRID), math.ceil((high + half - corner) / there.step - _ON_GRID)
        return slice(max(start, 0), min(stop, opened.sizes[axis]))

    def _check_touches(self, ranges: dict[str, tuple[float | None, float | None]]) -> None:
        """Make sure that a box touches the voxels of the array."""
        extents = {axis: self._extent(axis) for axis in ranges if axis in self._array.dims and self._array.sizes[axis]}
        outside = []
        for axis, (start, stop) in extents.items():
            low, high = ranges[axis]
            if (low is not None and low >= stop) or (high is not None and high <= start):
                outside.append(axis)
        if outside:
            asked = ", ".join(f"{axis} {_text(low)} to {_text(high)}" for axis, (low, high) in ranges.items())
            there = ", ".join(f"{axis} {start:g} to {stop:g}" for axis, (start, stop) in extents.items())
            raise BoundsError(f"the box {asked} holds nothing of the array, whose box is {there}, along {' and '.join(outside)} [unit of the coordinates]")

    def _extent(self, axis: str) -> tuple[float, float]:
        """Return where the first voxel begins and the last one ends."""
        coordinate = self._coordinate(axis)
        low, high = float(coordinate.min()), float(coordinate.max())
        half = (high - low) / max(coordinate.size - 1, 1) / 2 or coordinate.attrs.get("mag", 1) * coordinate.attrs.get("voxel_size_nm", 1.0) / 2
        return low - half, high + half

    def _within(self, axis: str, low: float | None, high: float | None) -> slice | npt.NDArray[np.int64]:
        if axis not in self._array.dims:
            raise ValueError(f"the array has no axis {axis} to crop: it was taken at one place")
        values = np.asarray(self._coordinate(axis).values, np.float64)
        inside = np.ones(values.shape, np.bool_)
        if low is not None:
            inside &= values >= low
        if high is not None:
            inside &= values < high
        places = np.flatnonzero(inside)
        if len(places) and places[-1] - places[0] + 1 == len(places):
            return slice(int(places[0]), int(places[-1]) + 1)
        return places


def _text(bound: float | None) -> str:
    return "the end" if bound is None else f"{bound:g}"


class _Shown:
    """An array as the volume that a picture is drawn of: slices of it are computed when they are read."""

    def __init__(self, array: xr.DataArray) -> None:
        missing = [axis for axis in "cxyz" if axis not in array.dims]
        array = array.drop_vars([axis for axis in missing if axis in array.coords]).expand_dims(missing)
        if set(array.dims) != set("cxyz"):
            raise ValueError(f"the dimensions must be x, y, z (and c), got {array.dims}")
        if 0 in array.shape:
            raise ValueError(f"the array has no voxels that could be drawn: {dict(array.sizes)}")
        self._array = array.transpose(*"cxyz")
        self.dtype = np.dtype(np.uint8) if array.dtype == np.bool_ else array.dtype
        self.num_channels = array.sizes["c"]
        self.box = BoundingBox((0, 0, 0), (array.sizes["x"], array.sizes["y"], array.sizes["z"]))
        self.holds_ids = array.dtype == np.bool_ or (array.dtype.kind in "iu" and array.dtype.itemsize >= 4 and self.num_channels == 1)

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array with voxels, see :meth:`wkwdask.model.volume.Volume.read_into`."""
        x, y, z = (slice(t, t + n) for t, n in zip(topleft, out.shape[1:], strict=True))
        out[...] = self._array.isel(x=x, y=y, z=z, c=slice(first_channel, first_channel + out.shape[0])).values
        return 1
