"""An image at several resolutions, whatever its format: a layer of a dataset, a precomputed volume, an OME-NGFF image, or one array."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from wkwdask.errors import BoundsError, CorruptError, MissingError
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.levels import Lengths, ratio_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume


@dataclass(frozen=True, slots=True)
class InvalidLayer:
    """A layer of a dataset of which the JSON says something impossible; the others can be used."""

    name: str
    """Its name, or its place in the JSON where it has none."""
    path: str
    """Its place in the JSON, such as ``dataLayers[2]``."""
    problem: str
    """The file, and all that is wrong, each with its place."""
    entry: Any = field(repr=False)
    """What the JSON says."""

    def raise_error(self) -> NoReturn:
        """Say that it cannot be used."""
        raise CorruptError(self.problem)


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution of an image: a mag, a scale, an array."""

    key: str
    """Its name in the image, empty where the image is this array alone."""
    folder: str
    """Its folder or URL."""
    opener: Callable[[], StoredArray] | None = None
    """How it is opened, in absolute voxels; None where it cannot be used."""
    mag: Mag | None = None
    """Its mag relative to the finest one, None where it has none."""
    lengths_nm: Lengths | None = None
    """Edge lengths of a voxel [nm], None where nobody says it."""
    problem: str = ""
    """Why it cannot be used, empty where that is not known before it is opened."""
    error: type[Exception] = CorruptError
    """Kind of the problem."""
    details: Any = None
    """What the format knows besides."""

    def open(self) -> StoredArray:
        """Open the level in absolute voxels; raises ``error`` where it cannot be used."""
        if self.opener is None:
            raise self.error(self.problem)
        return self.opener()


@dataclass(frozen=True)
class Image:
    """An image: its place, what is known of it, and its levels, which are listed and opened when they are first asked for."""

    format: str
    """Name of its format."""
    folder: str
    """Its folder or URL."""
    name: str
    """Its name: that of the layer, the last part of its folder, or its path inside of what holds several."""
    listing: Callable[[], Iterable[Level]]
    """Lists the levels, finest first and those last that cannot be used."""
    key: str | None = None
    """Key of the one level that is meant, where the path is that of one."""
    category: str | None = None
    """``"color"`` or ``"segmentation"``, None where nobody says it."""
    voxel_size_nm: Lengths | None = None
    """Edge lengths of a voxel of mag 1 [nm], None where nobody says it."""
    noun: str = "array"
    """What the format calls a level."""
    container: Any = None
    """What the dataset knows of the layer, None outside of datasets."""
    details: Any = None
    """What the format knows besides."""

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """All levels."""
        return tuple(self.listing())

    @cached_property
    def mags(self) -> dict[Mag, str]:
        """The folder of every mag, finest first; of levels of the same mag the first one counts, and those without one are left out."""
        folders: dict[Mag, str] = {}
        for level in self.levels:
            if level.mag is not None and not level.problem:
                folders.setdefault(level.mag, level.folder)
        return {mag: folders[mag] for mag in sorted(folders, key=lambda mag: (mag.maximum, mag.factors))}

    @property
    def selected(self) -> tuple[Level, ...]:
        """The levels that are meant: one, where the path is that of one, else all."""
        return tuple(level for level in self.levels if self.key in (None, level.key))

    @property
    def mag(self) -> Mag | None:
        """The mag of the one level that is meant, None where the path is that of the image, or the level has none."""
        return None if self.key is None else self.find().mag

    def find(self, asked: Mag | str | int | None = None) -> Level:
        """Find the level that a user names by its mag, or else by its key; by default the first of those that are meant."""
        if asked is None:
            chosen = next(iter(self.selected), None)
        else:
            mag = mag_or_key(asked)
            chosen = next((level for level in self.levels if level.mag == mag and not level.problem), None)
            chosen = chosen or next((level for level in self.levels if level.key == str(asked)), None)
            chosen = chosen or next((level for level in self.levels if level.mag == mag), None)  # which says why it cannot be used
        if chosen is None:
            what = f"{self.noun} at all" if asked is None else f"mag {asked}" if self.noun == "mag" else f"mag or {self.noun} {asked}"
            raise MissingError(f"{self.folder}: no {what}; there are {', '.join(map(_described, self.levels)) or 'none'}")
        if self.key not in (None, chosen.key):
            raise ValueError(f"{self.folder}/{self.key} is the {self.noun} {self.key!r}, not {asked}; give the folder above it to choose another one")
        return chosen

    def volume(self, mag: Mag | str | int | None = None) -> StoredArray:
        """Open a level in absolute voxels, by default the finest one with files."""
        return self.find(self.finest_mag() if mag is None and self.key is None else mag).open()

    def finest_mag(self) -> Mag | str:
        """Find the finest mag that has files, else the first level, which is then all zero; its key where it has no mag. In a dataset one must have files."""
        for mag in self.mags:
            try:
                volume = self.find(mag).open()
            except MissingError:  # a dataset may list more mags than it has
                continue
            if volume.has_shards():
                return mag
        if self.container is not None:
            raise MissingError(f"{self.folder}: no mag of layer {self.name} has data files (mags: {', '.join(mag.name for mag in self.mags) or 'none'})")
        first = self.find()
        return first.mag or first.key

    def level_of(self, volume: Volume) -> Level | None:
        """Find the level that a volume was opened from."""
        return next((level for level in self.levels if level.folder == volume.name), None)

    def voxel_size_of(self, volume: StoredArray) -> Lengths | None:
        """Give the edge lengths of a voxel of mag 1 by which a volume is measured [nm]: a level tells its own, which needs no mag."""
        if self.container is not None:
            return self.voxel_size_nm
        level = self.level_of(volume)
        return None if level is None or level.lengths_nm is None else ratio_of(level.lengths_nm, volume.box.mag.factors)

    def key_without_mag(self, volume: StoredArray) -> str | None:
        """Give the key of a level that has no mag, by which alone it is named; None for all others."""
        level = self.level_of(volume)
        return level.key if level is not None and level.mag is None else None


@dataclass(frozen=True)
class ResolvedUrl:
    """What a path or URL turned out to be."""

    path: str
    """The path or URL."""
    layers: tuple[Image, ...]
    """The images that it can mean."""
    mag: Mag | None = None
    """The mag, where the path is that of one."""
    invalid_layers: tuple[InvalidLayer, ...] = ()
    """Layers of a dataset that cannot be used."""

    def choose(self, layer: str | None) -> Image:
        """Choose the one image that is meant, ready to be read."""
        return self.readable(self.pick(layer))

    def readable(self, layer: Image) -> Image:
        """Give what reads one of the images: a dataset may hold layers of other formats."""
        return layer if layer.container is None else layer.container.readable(layer, self.mag)

    def pick(self, layer: str | None) -> Image:
        """Choose the one image that is meant, as its container describes it."""
        names = ", ".join([*(one.name for one in self.layers), *(one.name for one in self.invalid_layers)])
        if layer is None:
            if len(self.layers) + len(self.invalid_layers) == 1:
                return self.layers[0] if self.layers else self.invalid_layers[0].raise_error()
            if not names:
                raise MissingError(f"{self.path}: the dataset has no layers")
            raise ValueError(f"{self.path}: several layers: name one with layer=: {names}")
        for candidate in self.layers:
            if candidate.name in (layer, layer.strip("/")):
                return candidate
        for odd in self.invalid_layers:
            if odd.name == layer:
                odd.raise_error()
        raise MissingError(f"{self.path}: no layer {layer!r}; there are {names or 'none'}")

    def open(self, layer: str | None, mag: Mag | str | None) -> tuple[Image, StoredArray]:
        """Open the level that is meant."""
        chosen = self.choose(layer)
        if chosen.container is None:
            return chosen, chosen.volume(mag)
        wanted = None if mag is None else Mag.parse(mag)
        if self.mag is not None and wanted not in (None, self.mag):
            raise ValueError(f"{self.path} is mag {self.mag}, not mag {wanted}; give the layer's folder to choose a mag")
        return chosen, chosen.volume(wanted or self.mag)


def _described(level: Level) -> str:
    if level.mag is None:
        return repr(level.key)
    return level.key if level.key == level.mag.name else f"{level.key!r} (mag {level.mag})"


def check_inside(volume_name: str, box: BoundingBox, asked: BoundingBox) -> None:
    """Make sure that a box lies inside a volume."""
    if not box.contains(asked):
        raise BoundsError(f"{volume_name}: box {asked} reaches outside {box}")


def parse_box_of(volume: Volume, bounding_box: BoundingBox | str | Sequence[Any] | None) -> BoundingBox:
    """Give the part of a volume that a user names in voxels of mag 1, in voxels of the volume's mag; by default all of it."""
    if bounding_box is None:
        return volume.box
    part = BoundingBox.parse(bounding_box).in_mag(volume.box.mag)
    check_inside(volume.name, volume.box, part)
    return part


def mag_or_key(value: Mag | str | int | Sequence[int] | None) -> Mag | str | None:
    """Parse a mag; text that is none may be the key of a level, and stays text.

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
