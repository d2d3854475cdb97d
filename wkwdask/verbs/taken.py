"""What of a layer a conversion takes over: which mags, which part, moved by how much, which channels and values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.errors import BoundsError, MissingError, UnsupportedError
from wkwdask.model.converted import converted
from wkwdask.runs.staged import settings_of
from wkwdask.verbs.rechunk import Copy
from wkwdask.verbs.sources import check_not_replaced, known_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume


@dataclass(frozen=True, slots=True)
class Taken:
    """What of a source is converted."""

    mags: tuple[Mag, ...] | None = None
    """Which mags, by default all."""
    finest_only: bool = False
    """Whether of all mags only the finest is taken."""
    box: BoundingBox | None = None
    """Which part [voxels of mag 1]."""
    offset: Vec3 = (0, 0, 0)
    """By what voxels are moved [voxels of mag 1]."""
    channels: tuple[int, ...] | None = None
    """Which channels, by default all."""
    dtype: Any = None
    """Type of the values, by default as it is."""
    value_range: tuple[float, float] | None = None
    """What becomes the least and the greatest value of the type."""

    def of(self, volume: StoredArray) -> Volume:
        """Give what is converted of a mag, at the place that it goes to."""
        taken: Volume = volume
        mag = volume.box.mag
        if self.box is not None:
            box = self.box.in_mag(mag).intersection(volume.box)
            if box.is_empty:
                raise BoundsError(f"{volume.name}: the bounding box {self.box} holds nothing of it; its box is {volume.box}")
            taken = volume.cropped(box)
        if any(self.offset):
            if any(a % n for a, n in zip(self.offset, mag.factors, strict=True)):
                raise ValueError(f"offset must be a multiple of every mag that is converted, got {self.offset}, but there is mag {mag}")
            x, y, z = (a // n for a, n in zip(self.offset, mag.factors, strict=True))
            taken = taken.moved((x, y, z))
        changed: Volume = converted(taken, self.channels, self.dtype, self.value_range)
        return changed

    def copy_of(self, volume: StoredArray) -> Copy:
        """Give what is converted of a mag, and by what it is known again; errors as for :meth:`of`."""
        source = self.of(volume)
        return Copy(source, {**self.settings, **known_by(volume)}, partial(check_not_replaced, volume))

    def mags_of(self, name: str, there: Sequence[Mag]) -> list[Mag]:
        """Choose among the mags that are there, finest first."""
        missing = [mag for mag in self.mags or () if mag not in there]
        if missing or not there:
            raise MissingError(f"{name}: has no mag {missing[0] if missing else ''}; there are {', '.join(map(str, there)) or 'none'}")
        chosen = sorted(there if self.mags is None else self.mags, key=lambda mag: (mag.maximum, mag.factors))
        return chosen[:1] if self.finest_only else chosen

    def only(self, mag: Mag | None, source: Any) -> Taken:
        """Take one mag alone, where a path is that of one; all as before, where that is None."""
        if mag is not None and self.mags is not None and self.mags != (mag,):
            raise ValueError(f"{source}: is mag {mag}, but mag= says {self.mags[0]}; give the layer's folder to choose a mag")
        return self if mag is None else replace(self, mags=(mag,))

    @property
    def settings(self) -> dict[str, Any]:
        """What a journal keeps about it."""
        return settings_of("convert", box=self.box, offset=self.offset, channels=self.channels, dtype=self.dtype, value_range=self.value_range)


def check_alike(copies: Sequence[Copy]) -> None:
    """Make sure, before the first mag of a layer is made, that all of them have values of one type."""
    first = copies[0].source
    for volume in (copy.source for copy in copies[1:]):
        if (volume.dtype, volume.num_channels) != (first.dtype, first.num_channels):
            raise UnsupportedError(
                f"{volume.name}: has {volume.num_channels} x {volume.dtype.name}, but {first.name} {first.num_channels} x {first.dtype.name}; "
                "mags of a layer have one type: convert them one by one, with mag= and dtype="
            )
