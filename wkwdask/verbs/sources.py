"""What jobs read, whatever its format: how it is opened, which part is meant, by what it is known again, and how a job that makes one level of it begins."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import BoundsError, IncompleteWriteError, ReplacedError, UnsupportedError
from wkwdask.formats.opening import find, format_of_image, open_source, target_for
from wkwdask.formats.pictures.sources import open_sized
from wkwdask.formats.registry import default_format, format_of
from wkwdask.geometry.vectors import divide
from wkwdask.model.converted import converted
from wkwdask.model.states import digest
from wkwdask.model.target_image import Destination
from wkwdask.plans.cells import SparseCells
from wkwdask.runs.staged import finish_interrupted_publication, stage
from wkwdask.store import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.levels import Lengths
    from wkwdask.model.target_array import TargetArray
    from wkwdask.model.target_image import NewLevels, TargetImage
    from wkwdask.model.volume import Volume
    from wkwdask.runs.staged import Draft


@dataclass(frozen=True, slots=True)
class SourceVolume:
    """A volume that a level is computed from."""

    volume: Volume
    """The volume."""
    voxel_size_nm: Lengths | None
    """Edge lengths of a voxel of mag 1 [nm], None where nobody says them."""


def open_source_volume(url: str | os.PathLike[str]) -> SourceVolume:
    """Open what is read, whatever its format."""
    return SourceVolume(*open_sized(url))


@dataclass(frozen=True, slots=True)
class TargetRequest:
    """Where a result goes, and how it is stored."""

    target: str | os.PathLike[str]
    """The level."""
    stored: Any
    """How it is stored, a record of the format."""
    category: str | None = None
    """What a new image is."""
    allow_external: bool = False
    """Whether links of the target may lead out of what holds it."""

    def place(self, read: SourceVolume) -> TargetImage:
        """Find out where a level goes that is made of a volume."""
        wanted = Destination(
            os.fspath(self.target), mag=read.volume.box.mag, category=self.category, source_voxel_size_nm=read.voxel_size_nm, needs_container=False
        )
        return target_for(replace(wanted, allow_external=self.allow_external))

    def place_like(self, read: SourceVolume) -> TargetImage:
        """Find out where a level goes that is made of another one, voxel by voxel."""
        place, source = self.place(read), read.volume
        if place.mag != source.box.mag:
            raise ValueError(f"{os.fspath(self.target)}: is mag {place.mag}, but {source.name} is mag {source.box.mag}; name it {source.box.mag.name}")
        return place


def check_no_overlap(levels: NewLevels, source: Volume) -> NewLevels:
    """Refuse levels that would replace the source that they are made of, or lie inside of it."""
    outer = files.realpath(source.name)
    for folder in levels.folders:
        real = files.realpath(folder)
        if real == outer:
            raise ValueError(f"{folder}: is the source; name another place")
        if real.startswith(f"{outer}/"):
            raise ValueError(f"{folder}: lies inside the source {source.name}; name another place")
    return levels


def open_base_level(
    url: str | os.PathLike[str], name: str | None, mag: Mag | str | None, option: str, default: Callable[[Image], Mag | None] = lambda _: None,
    *, allow_external: bool = False,
) -> tuple[Image, Volume]:  # fmt: skip
    """Open the level that others of its image are made from; what a job that was killed there left half-published is finished first."""
    open_it = partial(open_source, url, name, mag, option, default, allow_external=allow_external)
    try:
        image, volume = open_it()
    except ReplacedError:
        left = find(url).choose(name)
        for level in left.levels:
            finish_interrupted_publication(*format_of_image(left).job_folders(left, level), option)
        image, volume = open_it()
    if image.container is None and (format_of(url) or default_format()) is default_format():
        raise UnsupportedError(
            f"{image.folder}: the layer is stored as {image.format}, only wkw gets mags in a dataset; name it as {image.format}://{image.folder}"
        )
    return image, volume


def source_token(source: Volume) -> str:
    """Name what is read so that something else in its place has another name."""
    return token_of(source.content_token)


def token_of(values: Any) -> str:
    """Name values so that others have another name."""
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def source_fingerprint(source: Volume) -> dict[str, Any]:
    """Say by what a source is known again. Of a regular one, each region of a job and each shard that is made keeps the state of its own files."""
    if source.is_regular:
        return {"source": source.box.mag.name, "input": source_token(source)}
    return {"source": source.name, "input": source_token(source), "states": digest(source.stored_states())}


def box_setting(box: BoundingBox) -> str:
    """Write down a box [voxels of its mag]."""
    return ",".join(map(str, (*box.topleft, *box.size)))


def occupancy_digest(source: Volume, cell_shapes: Iterable[Vec3]) -> str:
    """Name which cells of some grids touch a stored file: a file that appears in an empty cell, or the last one that goes, changes it."""
    state = hashlib.blake2b(digest_size=8)
    for shape in cell_shapes:
        found = source.occupied(shape)
        state.update(found.places().tobytes() if isinstance(found, SparseCells) else np.packbits(found).tobytes())
    return state.hexdigest()


def check_not_replaced(source: Volume) -> None:
    """Make sure that a source that was read is still the one that is there."""
    if not source.is_current():
        raise IncompleteWriteError(f'{source.name}: was replaced while it was read; existing="overwrite" starts anew with what is there now')


@dataclass(frozen=True, slots=True)
class VolumeSelection:
    """What of a volume is converted, where it goes, and as which values."""

    box: BoundingBox | None = None
    """Which part [voxels of mag 1], by default all."""
    offset: Vec3 = (0, 0, 0)
    """By what voxels are moved [voxels of mag 1; of images, of the mag that they become]."""
    channels: tuple[int, ...] | None = None
    """Which channels, by default all."""
    dtype: Any = None
    """Type of the values, by default as it is."""
    value_range: tuple[float, float] | None = None
    """What becomes the least and the greatest value of the type."""

    def converted(self, volume: Any) -> Any:
        """Give the channels and values that are meant."""
        return converted(volume, self.channels, self.dtype, self.value_range)


def where_box(name: str, where: BoundingBox | None, box: BoundingBox) -> BoundingBox | None:
    """Give the part of a box that a user means with ``where=``; None where that is not said."""
    part = None if where is None else where.in_mag(box.mag).intersection(box)
    if part is not None and part.is_empty:
        raise BoundsError(f"{name}: where={where} holds nothing of it, its box is {box}")
    return part


def cropped(volume: Any, wanted: BoundingBox | None, what: str = "the mag") -> Any:
    """Give the part of a volume that a user means."""
    if wanted is None:
        return volume
    box = wanted.in_mag(volume.box.mag).intersection(volume.box)
    if box.is_empty:
        raise BoundsError(f"{volume.name}: the bounding box {wanted} holds nothing of {what}, whose box is {volume.box}")
    return volume.cropped(box)


def translated(volume: Volume, by: Vec3, option: str, done: str) -> Volume:
    """Move a volume by a vector [voxels of mag 1]."""
    mag = volume.box.mag
    if not any(by):
        return volume
    if any(a % n for a, n in zip(by, mag.factors, strict=True)):
        raise ValueError(f"{option} must be a multiple of every mag that is {done}, got {by}, but there is mag {mag}")
    return volume.moved(divide(by, mag.factors))


def stage_level(
    levels: NewLevels, command: str, settings: dict[str, Any], existing: str, fingerprint: dict[str, Any] | None = None
) -> tuple[Draft, TargetArray]:
    """Begin the layout of a job that makes one level."""
    (folder,) = levels.folders
    draft = stage(f"{command} into {folder}", levels.parent, [folder], {**settings, **levels.settings, **(fingerprint or {})}, existing)
    (target,) = levels.staged(draft.root)
    return draft, target
