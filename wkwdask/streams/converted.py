"""Volumes with other channels or another data type: values are cast or scaled, never wrapped
around."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import BoundsError
from wkwdask.model.volume import delegate_to
from wkwdask.model.voxel_type import by_dtype, common_dtype, parse_dtype
from wkwdask.plans.cells import cell_map

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.array_types import AnyArray, BoolArray
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.plans.cells import CellMap


@dataclass(frozen=True, slots=True)
class ConvertedVolume:
    """View of a volume with some of its channels and another data type, converted while it is
    read."""

    source: Any
    """Original volume."""
    channels: tuple[int, ...]
    """Channels of the source, in the order of the result."""
    dtype: np.dtype[Any]
    value_range: tuple[float, float] | None = None
    """Values mapped to the smallest and largest value of the type (0 and 1 for floats); None if
    values are cast unchanged."""

    box = delegate_to("source", "box")
    chunk_shape = delegate_to("source", "chunk_shape")
    origin = delegate_to("source", "origin")
    unit_shape = delegate_to("source", "unit_shape")
    shard_shape = delegate_to("source", "shard_shape")
    name = delegate_to("source", "name")
    lengths_nm = delegate_to("source", "lengths_nm")
    is_regular = delegate_to("source", "is_regular")
    is_current = delegate_to("source", "is_current")

    @property
    def num_channels(self) -> int:
        return len(self.channels)

    @property
    def files(self) -> Any:
        """Files of the source. If zero becomes another value, missing files are not zero either."""
        zero = convert_values(np.zeros(1, self.source.dtype), self.dtype, self.value_range)
        return _FilesWithoutZeros(self) if zero.any() else self.source.files

    @property
    def token(self) -> tuple[Any, ...]:
        return "converted", self.channels, self.dtype.name, self.value_range, *self.source.token

    @property
    def content_token(self) -> tuple[Any, ...]:
        return (
            "converted",
            self.channels,
            self.dtype.name,
            self.value_range,
            *self.source.content_token,
        )

    def moved(self, shift: Vec3) -> ConvertedVolume:
        return replace(self, source=self.source.moved(shift))

    def cropped(self, box: BoundingBox) -> ConvertedVolume:
        return replace(self, source=self.source.cropped(box))

    @contextmanager
    def cached(self, reading_shape: Vec3, scratch: str) -> Iterator[ConvertedVolume]:
        with self.source.cached(reading_shape, scratch) as source:
            yield replace(self, source=source)

    def read_into(
        self, out: AnyArray, topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True
    ) -> int:
        wanted = self.channels[first_channel : first_channel + out.shape[0]]
        first, last = min(wanted), max(wanted)
        planes = np.empty((last - first + 1, *out.shape[:0:-1]), self.source.dtype).transpose(
            0, 3, 2, 1
        )
        self.source.read_into(planes, topleft, first)
        for n, channel in enumerate(wanted):
            for z in range(out.shape[3]):
                plane = planes[channel - first, :, :, z]
                try:
                    out[n, :, :, z] = convert_values(plane, self.dtype, self.value_range)
                except BoundsError as error:
                    x, y = (int(i) for i in np.argwhere(~_fits(plane, self.dtype))[0])
                    place = (topleft[0] + x, topleft[1] + y, topleft[2] + z)
                    raise BoundsError(
                        f"{self.name}: voxel {place} of channel {channel}: {error}"
                    ) from None
        return 1


@dataclass(frozen=True, slots=True)
class _FilesWithoutZeros:
    """Files of a volume in which no voxel is known to be zero."""

    volume: ConvertedVolume

    shard_path = delegate_to("volume.source.files", "shard_path")
    shard_states = delegate_to("volume.source.files", "shard_states")
    stored_states = delegate_to("volume.source.files", "stored_states")
    written = delegate_to("volume.source.files", "written")
    count = delegate_to("volume.source.files", "count")

    def occupied(self, cell_shape: Vec3) -> CellMap:
        return cell_map(self.volume.box, cell_shape, self.volume.name, fill=True)


def converted(
    volume: Any, channels: Sequence[int] | None, dtype: Any, value_range: tuple[float, float] | None
) -> Any:
    """Select channels of a volume and convert its values; returns the volume itself if nothing
    changes."""
    all_channels = tuple(range(volume.num_channels))
    selected = all_channels if channels is None else tuple(channels)
    if not selected or not set(selected) <= set(all_channels):
        raise ValueError(
            f"channels must be some of 0..{volume.num_channels - 1}, got "
            f"{', '.join(map(str, selected)) or 'none'}"
        )
    stored = parse_dtype(volume.dtype if dtype is None else dtype).newbyteorder("=")
    by_dtype(common_dtype(stored))  # raises TypeError for a type that no format stores
    if value_range is not None and not (
        value_range[0] < value_range[1] and math.isfinite(value_range[1] - value_range[0])
    ):
        raise ValueError(
            "the range of values must be a lower and a higher number, both finite, got "
            f"{value_range}"
        )
    is_unchanged = (selected, stored, value_range) == (all_channels, volume.dtype, None)
    return volume if is_unchanged else ConvertedVolume(volume, selected, stored, value_range)


def countable(volume: Any) -> Any:
    """Return a volume with values that compiled loops count: bool as uint8, half floats as float32;
    other volumes themselves."""
    return converted(volume, None, common_dtype(volume.dtype), None)


def exact_values(values: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
    """Return values in a narrower type; raises BoundsError for a value that the type does not have.

    Examples
    --------
    >>> exact_values(np.array([0, 1], np.uint8), np.dtype(bool)).tolist()
    [False, True]
    """
    with np.errstate(over="ignore"):
        cast = values.astype(dtype)
    same = (cast == values) | ((cast != cast) & (values != values))
    if not same.all():
        raise BoundsError(
            f"{values[~same][0]} is no value of {dtype}: round the array first, with "
            f".astype({dtype.name!r})"
        )
    return cast


def convert_values(
    values: AnyArray, dtype: np.dtype[Any], value_range: tuple[float, float] | None
) -> AnyArray:
    """Convert values to another type, scaled if there is a range.

    Examples
    --------
    >>> convert_values(np.array([0, 100, 65535], np.uint16), np.dtype("uint8"), (0, 200)).tolist()
    [0, 128, 255]
    """
    if value_range is None:
        # numpy calls a cast of 64-bit integers to floats safe, though floats hold only integers up
        # to 2**53 exactly.
        is_wide = values.dtype.kind in "iu" and values.dtype.itemsize == 8 and dtype.kind == "f"
        if is_wide or not np.can_cast(values.dtype, dtype, "safe"):
            fits = _fits(values, dtype)
            if not fits.all():
                raise BoundsError(
                    f"{values[~fits][0]} does not fit into {dtype}; scale the values with "
                    "value_range="
                )
        return values.astype(dtype)
    low, high = value_range
    if dtype.kind == "f":
        scaled = (np.clip(values.astype(np.float64), low, high) - low) / (high - low)
        return np.nan_to_num(scaled, nan=0.0).astype(dtype)
    limits = _limits(dtype)
    if values.dtype.kind in "iu" and (low, high) == limits:
        # clip only, in integers: floats cannot hold 64 bits
        own = _limits(values.dtype)
        clipped: AnyArray = np.clip(values, max(own[0], limits[0]), min(own[1], limits[1])).astype(
            dtype
        )
        return clipped
    scaled = np.clip(values.astype(np.float64), low, high)
    scaled -= low
    # multiply before dividing, so that halves are exact and rint rounds them to even
    scaled *= float(limits[1]) - float(limits[0])
    scaled /= high - low
    np.rint(scaled, out=scaled)
    scaled = np.nan_to_num(scaled, copy=False, nan=0.0)
    if dtype.itemsize < 8:
        scaled += limits[0]
        return scaled.astype(dtype)
    # The largest integer of 64 bits is no float: count steps from the smallest value in unsigned
    # integers, and add with wrap-around.
    steps = np.where(
        scaled >= 2.0**64,
        np.uint64(2**64 - 1),
        np.minimum(scaled, np.nextafter(2.0**64, 0)).astype(np.uint64),
    )
    return (
        (steps + np.uint64(limits[0] % 2**64)).view(dtype)
        if dtype.kind == "i"
        else steps.astype(dtype)
    )


def _fits(values: AnyArray, dtype: np.dtype[Any]) -> BoolArray:
    """Return which values survive a cast: integers exactly, floats to floats if they stay
    finite."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            cast = values.astype(dtype)
        if values.dtype.kind == "f":
            # float64 to float32 may round, but not overflow
            same: BoolArray = np.isnan(values) | (np.isfinite(cast) == np.isfinite(values))
            return same
        inside = cast.astype(np.float64) < float(_limits(values.dtype)[1]) + 1
        exact: BoolArray = inside & (np.where(inside, cast, 0).astype(values.dtype) == values)
        return exact
    lowest, highest = _limits(dtype)
    if values.dtype.kind == "f":
        whole: BoolArray = (
            (values >= float(lowest))
            & (values < float(highest) + (1 if dtype.itemsize < 8 else 0))
            & (np.floor(values) == values)
        )
        return whole
    own = _limits(values.dtype)
    return (values >= max(own[0], lowest)) & (values <= min(own[1], highest))


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the greatest value of bool or an integer type."""
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
