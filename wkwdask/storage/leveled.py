"""A layer whose mags are arrays of a group, N5 datasets or Zarr arrays: what opening and jobs need of it, whichever they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, MissingError
from wkwdask.geometry.mag import Mag
from wkwdask.storage.n5 import N5Volume
from wkwdask.storage.translated import TranslatedVolume
from wkwdask.storage.zarr_volume import ZarrVolume

if TYPE_CHECKING:
    from wkwdask.geometry.mag import Vec3

    Lengths = tuple[float, float, float]

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
        """Give the array in absolute voxels.

        Raises
        ------
        CorruptError
            Its metadata say something impossible.
        MissingError
            It is not there.
        UnsupportedError
            They say something that is not implemented here.
        """
        if self.volume is None:
            raise self.error(self.problem)
        return TranslatedVolume(self.volume, self.offset)  # type: ignore[return-value]


@dataclass(frozen=True)
class LeveledLayer:
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
    datasource: None = field(default=None, repr=False)
    """There is no JSON of WEBKNOSSOS."""
    dataset_folder: None = field(default=None, repr=False)
    """There is no dataset of WEBKNOSSOS."""
    record: None = field(default=None, repr=False)
    """There is no record in such a JSON."""

    @property
    def source(self) -> str:
        """The URL by which it opens again."""
        return f"{self.format}://{self.folder}"

    @property
    def voxel_size_nm(self) -> Lengths | None:
        """Edge lengths of a voxel of mag 1 [nm]."""
        for level in self.levels:
            if level.mag is not None and level.volume is not None and level.volume.lengths_nm is not None:
                x, y, z = (length / factor for length, factor in zip(level.volume.lengths_nm, level.mag.factors, strict=True))
                return x, y, z
        return None

    @property
    def mags(self) -> dict[Mag, str]:
        """The folder of every mag, finest first; of arrays of the same mag the first one counts, and those without one are left out."""
        found = {level.mag: level.volume.name for level in self.levels[::-1] if level.mag is not None and level.volume is not None}
        return {mag: found[mag] for mag in sorted(found, key=lambda mag: (mag.maximum, mag.factors))}

    @property
    def mag(self) -> Mag | None:
        """The mag of the one array that is meant, None where the path is that of the layer, or the array has none."""
        return None if self.key is None else self.find(None).mag

    def find(self, asked: Mag | str | int | None) -> Level:
        """Find the array that a user names by its mag, or else by its key.

        Raises
        ------
        MissingError
            There is none.
        ValueError
            The path is that of another one.
        """
        if asked is None:
            chosen = next((level for level in self.levels if self.key in (None, level.key)), None)
        else:
            mag = _as_mag(asked)
            chosen = next((level for level in self.levels if mag is not None and level.mag == mag and level.volume is not None), None)
            chosen = chosen or next((level for level in self.levels if level.key == str(asked)), None)
        if chosen is None:
            known = [f"{level.key!r}" + (f" (mag {level.mag})" if level.mag else "") for level in self.levels]
            raise MissingError(f"{self.folder}: no mag or array {asked!s}; there are {', '.join(known) or 'none'}")
        if self.key not in (None, chosen.key):
            raise ValueError(f"{self.folder}/{self.key} is the array {self.key!r}, not {asked}; give the folder above it to choose another one")
        return chosen

    def volume(self, mag: Mag | str | int | None = None) -> ArrayVolume:
        """Open an array, in absolute voxels.

        Parameters
        ----------
        mag : Mag, str or int, optional
            Its mag or key; by default that of the path, else the finest with files.

        Raises
        ------
        CorruptError, UnsupportedError
            It cannot be used.
        MissingError
            There is no such array.
        """
        if mag is None and self.key is None:
            mag = self.finest_mag()
        return self.find(mag).open()

    def finest_mag(self) -> Mag | str:
        """Find the finest mag that has files, else the first array, which is then all zero; its key where it has no mag."""
        for mag in self.mags:
            volume: Any = self.find(mag).volume
            if volume is not None and volume.has_shards():
                return mag
        first = self.find(None)
        return first.key if first.mag is None else first.mag


def _as_mag(asked: Mag | str | int) -> Mag | None:
    """Read a mag, None for what looks like a key."""
    try:
        return Mag.parse(asked)
    except ValueError:
        if isinstance(asked, str):
            return None
        raise
