"""The accessor ``.wkw`` of DataArrays with coordinates: mag and voxel size, cropping, other mags,
previews and writing."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from wkwdask.errors import BoundsError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag, whole_number
from wkwdask.model.coordinates import VOXEL, spacing_of

if TYPE_CHECKING:
    import os

    import numpy.typing as npt
    from PIL import Image

    from wkwdask.api.options import MagLike
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.coordinates import Spacing
    from wkwdask.runs.report import Report

_ON_GRID = 1e-4  # tolerance of coordinates, as a fraction of a voxel


@xr.register_dataarray_accessor("wkw")  # type: ignore[no-untyped-call]
class WkwAccessor:
    """Methods of DataArrays that were opened from a volume or will be written to one.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import xarray as xr
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(
    ...     f"{folder}/raw/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), voxel_size=(4, 4, 35)
    ... )
    >>> array = xr.open_dataarray(folder, engine="wkw", layer="raw")
    >>> array.wkw.mag, array.wkw.voxel_size, array.wkw.crop_nm(x=(0, 40)).shape
    (Mag(1, 1, 1), (4.0, 4.0, 35.0), (10, 64, 64))
    """

    def __init__(self, array: xr.DataArray) -> None:
        self._array = array

    @property
    def mag(self) -> Mag:
        """Mag of the array, from the spacing of its coordinates."""
        factors = []
        for axis, spacing, size in zip(
            "xyz", self._spacings(), self._lengths_of_mag_1(), strict=True
        ):
            length = spacing.length_nm if spacing.units != VOXEL else spacing.step
            factor = round(length / size) if length is not None else 0
            if length is None or not math.isclose(length / size, factor, rel_tol=_ON_GRID):
                raise ValueError(
                    f"coordinate {axis}: found a spacing of {length}, expected a multiple of "
                    f"{size:g}, the length of a voxel of mag 1"
                )
            factors.append(factor)
        return Mag(*factors)

    @property
    def voxel_size(self) -> tuple[float, float, float]:
        """Edge lengths of a voxel of mag 1 along x, y, z [nm]."""
        if any(self._coordinate(axis).attrs.get("units") == VOXEL for axis in "xyz"):
            raise ValueError("the voxel size is unknown: the coordinates are voxel indices")
        x, y, z = self._lengths_of_mag_1()
        return x, y, z

    def save(self, url: str | os.PathLike[str], **options: Any) -> Report:
        """Write the array as one level of an image in any format, at the position given by its
        coordinates; options as for :func:`wkwdask.save`."""
        from wkwdask.api.writing import save

        report: Report = save(self._array, url, **options)
        return report

    def to_wkw(self, url: str | os.PathLike[str], **options: Any) -> Report:
        """Write the array as one WKW mag, at the position given by its coordinates; options as for
        :func:`wkwdask.to_wkw`."""
        from wkwdask.api.to_wkw import to_wkw

        report: Report = to_wkw(self._array, url, **options)
        return report

    def at_mag(self, mag: MagLike) -> xr.DataArray:
        """Open the same box in another mag of the layer from which the array was opened."""
        from wkwdask.formats.opening import find
        from wkwdask.xarray.variables import open_variables

        source = self._array.encoding.get("source")
        if source is None:
            raise ValueError(
                "the array has no source: at_mag() needs an array that was opened and not "
                "computed; call it there, or coarsen() this array"
            )
        layer = find(source, index=self._array.encoding.get("index")).choose(None)
        volume = layer.volume(Mag.parse(mag))
        (opened,) = open_variables(
            layer, volume, index=self._array.encoding.get("index")
        ).data_vars.values()
        selected = opened.isel({axis: self._overlapping_indices(opened, axis) for axis in "xyz"})
        if "c" in opened.dims and "c" in self._array.coords:
            selected = selected.sel(c=self._array.coords["c"])
        ordered: xr.DataArray = selected.transpose(
            *(dim for dim in self._array.dims if dim in selected.dims)
        )
        return ordered if self._array.chunks is None else ordered.chunk({})

    def crop_nm(
        self,
        x: tuple[float | None, float | None] | None = None,
        y: tuple[float | None, float | None] | None = None,
        z: tuple[float | None, float | None] | None = None,
    ) -> xr.DataArray:
        """Select the voxels with centers in a half-open box [nm]; None leaves a side open."""
        ranges = {axis: pair for axis, pair in (("x", x), ("y", y), ("z", z)) if pair is not None}
        self._check_overlaps(ranges)
        return self._array.isel({axis: self._within(axis, *pair) for axis, pair in ranges.items()})

    def preview(
        self, output: str | os.PathLike[str] | None = None, *, size: int = 640
    ) -> Image.Image:
        """Draw the three slices through the middle of the array. Only these slices are read or
        computed."""
        from wkwdask.viewer.preview import check_output, draw, save_picture

        size = whole_number(size, "size", 1)
        if output is not None:
            check_output(output)
        volume = _ArrayVolume(self._array)
        lengths = [1.0, 1.0, 1.0]
        for n, axis in enumerate("xyz"):
            if axis in self._array.coords:
                lengths[n] = 0.0
                with contextlib.suppress(ValueError):
                    # reversed or unordered coordinates: draw in units of voxels
                    lengths[n] = spacing_of(self._array.coords[axis], axis).length_nm or 0.0
        in_nm = all(lengths) and any(axis in self._array.coords for axis in "xyz")
        is_segmentation = (
            self._array.attrs.get("category", "segmentation" if volume.holds_ids else "color")
            == "segmentation"
        )
        picture = draw(
            None if is_segmentation else volume,
            volume if is_segmentation else None,
            lengths if in_nm else None,
            size,
        )
        if output is not None:
            save_picture(picture, output)
        return picture

    def _coordinate(self, axis: str) -> xr.DataArray:
        if axis not in self._array.coords:
            raise ValueError(f"the array has no coordinate {axis}, so its position is unknown")
        coordinate: xr.DataArray = self._array.coords[axis]
        return coordinate

    def _spacings(self) -> list[Spacing]:
        return [spacing_of(self._coordinate(axis), axis) for axis in "xyz"]

    def _lengths_of_mag_1(self) -> list[float]:
        """Return the edge lengths of a voxel of mag 1 in nanometers, or 1 if coordinates are in
        voxels."""
        lengths = []
        for axis in "xyz":
            attrs = self._coordinate(axis).attrs
            length = 1.0 if attrs.get("units") == VOXEL else attrs.get("voxel_size_nm")
            if length is None:
                raise ValueError(
                    f"coordinate {axis}: no attribute voxel_size_nm; open the array from a dataset "
                    "with a voxel size"
                )
            lengths.append(float(length))
        return lengths

    def _overlapping_indices(self, opened: xr.DataArray, axis: str) -> slice | int:
        """Return the voxels of another mag that touch those of this array along an axis."""
        coordinate, spacing = self._coordinate(axis), spacing_of(opened.coords[axis], axis)
        if not coordinate.size or spacing.step is None:
            return slice(0, opened.sizes[axis] if coordinate.size else 0)
        low, high = float(coordinate.min()), float(coordinate.max())
        corner = spacing.first - spacing.step / 2
        if coordinate.ndim == 0:
            return min(max(math.floor((low - corner) / spacing.step), 0), opened.sizes[axis] - 1)
        # Half a voxel as it was opened: the spacing of the coordinates is larger if the user
        # selected every n-th voxel.
        half = coordinate.attrs["mag"] * coordinate.attrs.get("voxel_size_nm", 1.0) / 2
        start, stop = (
            math.floor((low - half - corner) / spacing.step + _ON_GRID),
            math.ceil((high + half - corner) / spacing.step - _ON_GRID),
        )
        return slice(max(start, 0), min(stop, opened.sizes[axis]))

    def _check_overlaps(self, ranges: dict[str, tuple[float | None, float | None]]) -> None:
        """Raise if a box does not touch the array."""
        extents = {
            axis: self._extent(axis)
            for axis in ranges
            if axis in self._array.dims and self._array.sizes[axis]
        }
        outside = []
        for axis, (start, stop) in extents.items():
            low, high = ranges[axis]
            if (low is not None and low >= stop) or (high is not None and high <= start):
                outside.append(axis)
        if outside:
            requested = ", ".join(
                f"{axis} {_text(low, 'start')} to {_text(high, 'end')}"
                for axis, (low, high) in ranges.items()
            )
            available = ", ".join(
                f"{axis} {start:g} to {stop:g}" for axis, (start, stop) in extents.items()
            )
            raise BoundsError(
                f"the box {requested} does not touch the array along {' and '.join(outside)}; the "
                f"array has {available} [unit of the coordinates]"
            )

    def _extent(self, axis: str) -> tuple[float, float]:
        """Return the start of the first voxel and the end of the last."""
        coordinate = self._coordinate(axis)
        low, high = float(coordinate.min()), float(coordinate.max())
        half = (high - low) / max(coordinate.size - 1, 1) / 2 or coordinate.attrs.get(
            "mag", 1
        ) * coordinate.attrs.get("voxel_size_nm", 1.0) / 2
        return low - half, high + half

    def _within(
        self, axis: str, low: float | None, high: float | None
    ) -> slice | npt.NDArray[np.int64]:
        if axis not in self._array.dims:
            raise ValueError(
                f"the array has no axis {axis} to crop; it holds a single position along it"
            )
        values = np.asarray(self._coordinate(axis).values, np.float64)
        inside = np.ones(values.shape, np.bool_)
        if low is not None:
            inside &= values >= low
        if high is not None:
            inside &= values < high
        indices = np.flatnonzero(inside)
        if len(indices) and indices[-1] - indices[0] + 1 == len(indices):
            return slice(int(indices[0]), int(indices[-1]) + 1)
        return indices


def _text(bound: float | None, without: str) -> str:
    return without if bound is None else f"{bound:g}"


class _ArrayVolume:
    """Adapter that lets the preview read slices of a DataArray; each slice is computed when it is
    read."""

    def __init__(self, array: xr.DataArray) -> None:
        missing = [axis for axis in "cxyz" if axis not in array.dims]
        array = array.drop_vars([axis for axis in missing if axis in array.coords]).expand_dims(
            missing
        )
        if set(array.dims) != set("cxyz"):
            raise ValueError(f"the dimensions must be x, y, z (and c), got {array.dims}")
        if 0 in array.shape:
            raise ValueError(f"the array has no voxels to draw: {dict(array.sizes)}")
        self._array = array.transpose(*"cxyz")
        self.dtype = np.dtype(np.uint8) if array.dtype == np.bool_ else array.dtype
        self.num_channels = array.sizes["c"]
        self.box = BoundingBox((0, 0, 0), (array.sizes["x"], array.sizes["y"], array.sizes["z"]))
        self.holds_ids = array.dtype == np.bool_ or (
            array.dtype.kind in "iu" and array.dtype.itemsize >= 4 and self.num_channels == 1
        )

    def read_into(
        self,
        out: npt.NDArray[Any],
        topleft: Vec3,
        first_channel: int = 0,
        *,
        fill_zeros: bool = True,
    ) -> int:
        """Fill an array with voxels, see :meth:`wkwdask.model.volume.Volume.read_into`."""
        x, y, z = (slice(t, t + n) for t, n in zip(topleft, out.shape[1:], strict=True))
        out[...] = self._array.isel(
            x=x, y=y, z=z, c=slice(first_channel, first_channel + out.shape[0])
        ).values
        return 1
