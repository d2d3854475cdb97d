"""A layer whose scales have keys, those of a precomputed volume or arrays of a group of N5 or Zarr: how they are opened, whichever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from wkwdask.geometry.mag import Mag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Keyed(Protocol):
    """What the record of a layer says of one scale."""

    @property
    def key(self) -> str:
        """Its key."""


OneScale = TypeVar("OneScale", bound=Keyed)
Opened = TypeVar("Opened", bound=Any)


class KeyedLayer(ABC, Generic[OneScale, Opened]):
    """A layer that WEBKNOSSOS has no JSON of."""

    datasource: ClassVar[None] = None
    """There is no JSON of WEBKNOSSOS."""
    dataset_folder: ClassVar[None] = None
    """There is no dataset of WEBKNOSSOS."""
    record: ClassVar[None] = None
    """There is no record in such a JSON."""

    @property
    @abstractmethod
    def key(self) -> str | None:
        """The key of the one scale that is meant, where the path is that of one."""

    @property
    @abstractmethod
    def mags(self) -> dict[Mag, str]:
        """The folder of every mag, finest first."""

    @abstractmethod
    def find(self, asked: Mag | str | int | None) -> OneScale:
        """Find the scale that a user names by its mag, or else by its key."""

    @abstractmethod
    def mag_of(self, scale: OneScale) -> Mag | None:
        """Give the mag of a scale, None where it has none."""

    @abstractmethod
    def open_scale(self, scale: OneScale) -> Opened:
        """Open a scale, in absolute voxels."""

    @property
    def mag(self) -> Mag | None:
        """The mag of the one scale that is meant, None where the path is that of the layer, or the scale has none."""
        return None if self.key is None else self.mag_of(self.find(None))

    def volume(self, mag: Mag | str | int | None = None) -> Opened:
        """Open a scale, in absolute voxels."""
        if mag is None and self.key is None:
            mag = self.finest_mag()
        return self.open_scale(self.find(mag))

    def finest_mag(self) -> Mag | str:
        """Find the finest mag that has files, else the first scale, which is then all zero; its key where it has no mag."""
        for mag in self.mags:
            if self.open_scale(self.find(mag)).volume.has_shards():
                return mag
        first = self.find(None)
        return self.mag_of(first) or first.key


def folders_by_mag(found: Iterable[tuple[Mag | None, str]]) -> dict[Mag, str]:
    """List the folders of mags, finest first; of several of the same mag the first one counts, and those without one are left out."""
    folders: dict[Mag, str] = {}
    for mag, folder in found:
        if mag is not None:
            folders.setdefault(mag, folder)
    return {mag: folders[mag] for mag in sorted(folders, key=lambda mag: (mag.maximum, mag.factors))}


def mag_or_key(value: Mag | str | int | Sequence[int] | None) -> Mag | str | None:
    """Parse a mag; text that is none may be the key of a scale or array, and stays text.

    Examples
    --------
    >>> mag_or_key(2), mag_or_key("8_8_40")
    (Mag(2, 2, 2), '8_8_40')
    """
    if value is None:
        return None
    try:
        return Mag.parse(value)
    except ValueError:
        if isinstance(value, str):
            return value
        raise
