"""Levels that are computed from volumes of any format: where they go, how they are stored, and how their job begins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.formats.opening import place_for
from wkwdask.formats.pictures.foreign import open_sized
from wkwdask.model.place import Destination
from wkwdask.runs.staged import stage
from wkwdask.store import files

if TYPE_CHECKING:
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.levels import Lengths
    from wkwdask.model.place import NewLevels, Place
    from wkwdask.model.placement import Placement
    from wkwdask.model.volume import Volume
    from wkwdask.runs.staged import Draft


@dataclass(frozen=True, slots=True)
class Read:
    """A volume that a level is computed from."""

    volume: Volume
    """The volume."""
    voxel_size_nm: Lengths | None
    """Edge lengths of a voxel of mag 1 [nm], None where nobody says them."""


def open_read(url: str | os.PathLike[str]) -> Read:
    """Open what is read, whatever its format."""
    return Read(*open_sized(url))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where a result goes, and how it is stored."""

    target: str | os.PathLike[str]
    """The level."""
    stored: Any
    """How it is stored, a record of the format."""
    category: str | None = None
    """What a new image is."""
    allow_external: bool = False
    """Whether links of the target may lead out of what holds it."""

    def place(self, read: Read) -> Place:
        """Find out where a level goes that is made of a volume."""
        mag: Mag = read.volume.box.mag
        url = os.fspath(self.target)
        found = Destination(
            url, mag=mag, category=self.category, found_nm=read.voxel_size_nm, needs_container=False, allow_external=self.allow_external
        )  # fmt: skip
        return place_for(found)

    def place_like(self, read: Read) -> Place:
        """Find out where a level goes that is made of another one, voxel by voxel."""
        place, source = self.place(read), read.volume
        if place.mag != source.box.mag:
            raise ValueError(f"{os.fspath(self.target)}: is mag {place.mag}, but {source.name} is mag {source.box.mag}; name it {source.box.mag.name}")
        return place


def check_apart(levels: NewLevels, source: Volume) -> NewLevels:
    """Refuse levels that would replace the source that they are made of, or lie inside of it."""
    outer = files.realpath(source.name)
    for folder in levels.folders:
        real = files.realpath(folder)
        if real == outer:
            raise ValueError(f"{folder}: is the source; name another place")
        if real.startswith(f"{outer}/"):
            raise ValueError(f"{folder}: lies inside the source {source.name}; name another place")
    return levels


def begin(levels: NewLevels, command: str, settings: dict[str, Any], existing: str) -> tuple[Draft, Placement]:
    """Begin the layout of a job that makes one level."""
    (folder,) = levels.folders
    draft = stage(f"{command} into {folder}", levels.parent, [folder], {**settings, **levels.settings}, existing)
    (target,) = levels.staged(draft.root)
    return draft, target
