"""A layer whose mags are arrays of a group, N5 datasets or Zarr arrays: what opening and jobs need of it, whichever they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import CorruptError, MissingError
from wkwdask.formats.keyed_layer import KeyedLayer, folders_by_mag, mag_or_key
from wkwdask.formats.n5.volume import N5Volume
from wkwdask.formats.zarr.volume import ZarrVolume
from wkwdask.model.levels import ratio_of
from wkwdask.model.translated import TranslatedVolume

if TYPE_CHECKING:
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths

ArrayVolume = TranslatedVolume[N5Volume] | TranslatedVolume[ZarrVolume]
"""One array of a layer, in absolute voxels."""


@dataclass(frozen=True, slots=True)
class Level:
    """One array of a layer."""

    key: str
    """Its name in the group, nothing where the layer is this array alone."""
    volume: N5Volume | ZarrVolume | None
    """The array, which starts at voxel 0; None where it cannot be used."""
    mag: Mag | None = None
    """Its mag relative to the finest one, None where it has none."""
    offset: Vec3 = (0, 0, 0)
    """Absolute voxel of the mag at which it starts."""
    problem: str = ""
    """Why it cannot be used."""
    error: type[Exception] = CorruptError
    """Of which kind that is: CorruptError, MissingError or UnsupportedError."""

    def open(self) -> ArrayVolume:
        """Give the array in absolute voxels."""
        if self.volume is None:
            raise self.error(self.problem)
        return TranslatedVolume(self.volume, self.offset)  # type: ignore[return-value]


@dataclass(frozen=True)
class LeveledLayer(KeyedLayer[Level, ArrayVolume]):
    """A group of arrays of the same voxels, or one array."""

    format: str
    """``"n5"`` or ``"zarr"``."""
    folder: str
    """Its folder or URL."""
    name: str
    """Its name: the last part of its folder, or its path inside of what holds several."""
    levels: tuple[Level, ...]
    """Its arrays, finest first."""
    key: str | None = None
    """The one array that is meant, where the path is that of one."""
    category: str | None = None
    """``"color"`` or ``"segmentation"``, None where nobody says it."""

    @property
    def source(self) -> str:
        """The URL by which it opens again."""
        return f"{self.format}://{self.folder}"

    @property
    def voxel_size_nm(self) -> Lengths | None:
        """Edge lengths of a voxel of mag 1 [nm]."""
        for level in self.levels:
            if level.mag is not None and level.volume is not None and level.volume.lengths_nm is not None:
                return ratio_of(level.volume.lengths_nm, level.mag.factors)
        return None

    @property
    def mags(self) -> dict[Mag, str]:
        """The folder of every mag, finest first; of arrays of the same mag the first one counts, and those without one are left out."""
        return folders_by_mag((level.mag, level.volume.name) for level in self.levels if level.volume is not None)

    def mag_of(self, scale: Level) -> Mag | None:
        """Give the mag of an array, None where it has none."""
        return scale.mag

    def open_scale(self, scale: Level) -> ArrayVolume:
        """Open an array, in absolute voxels; errors as for :meth:`Level.open`."""
        return scale.open()

    def find(self, asked: Mag | str | int | None) -> Level:
        """Find the array that a user names by its mag, or else by its key."""
        if asked is None:
            chosen = next((level for level in self.levels if self.key in (None, level.key)), None)
        else:
            mag = mag_or_key(asked)
            chosen = next((level for level in self.levels if level.mag == mag and level.volume is not None), None)
            chosen = chosen or next((level for level in self.levels if level.key == str(asked)), None)
            chosen = chosen or next((level for level in self.levels if level.mag == mag), None)  # which says why it cannot be used
        if chosen is None:
            known = [f"{level.key!r}" + (f" (mag {level.mag})" if level.mag else "") for level in self.levels]
            raise MissingError(f"{self.folder}: no mag or array {asked!s}; there are {', '.join(known) or 'none'}")
        if self.key not in (None, chosen.key):
            raise ValueError(f"{self.folder}/{self.key} is the array {self.key!r}, not {asked}; give the folder above it to choose another one")
        return chosen
