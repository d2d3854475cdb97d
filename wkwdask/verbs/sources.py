"""Sources and targets of jobs in any format: opening a source, selecting a part, its fingerprint
for resumed jobs, and staging a job that makes one level."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import BoundsError, IncompleteWriteError, ReplacedError
from wkwdask.formats.opening import find, format_of_image, open_source, target_for
from wkwdask.formats.pictures.sources import open_sized
from wkwdask.formats.publication import replaces_folder
from wkwdask.formats.record_paths import job_folders
from wkwdask.formats.roots import level_job_folders
from wkwdask.geometry.bounding_box import voxel_box
from wkwdask.geometry.vectors import divide, is_multiple
from wkwdask.model.states import digest
from wkwdask.model.voxel_type import common_dtype
from wkwdask.model.writing.target_image import Destination
from wkwdask.plans.cells import SparseCells
from wkwdask.runs.staged import finish_interrupted_publication, stage
from wkwdask.store.store import store_at
from wkwdask.streams.converted import converted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wkwdask.formats.opening import SourceSelection
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.levels import Lengths
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.model.writing.target_image import NewLevels, TargetImage
    from wkwdask.plans.cells import CellMap
    from wkwdask.runs.staged import Draft


@dataclass(frozen=True, slots=True)
class SourceVolume:
    """Volume that a level is computed from."""

    volume: Volume
    voxel_size_nm: Lengths | None
    """Edge lengths of a voxel of mag 1 [nm], None where they are unknown."""


def open_source_volume(url: str | os.PathLike[str]) -> SourceVolume:
    return SourceVolume(*open_sized(url))


@dataclass(frozen=True, slots=True)
class TargetRequest:
    """Target of a computed level and its storage options, as the user requests them."""

    target: str | os.PathLike[str]
    stored: Any
    category: str | None = None
    allow_external: bool = False

    def target_image(self, source: SourceVolume) -> TargetImage:
        """Return the image that gets the level computed from a source."""
        destination = Destination(
            os.fspath(self.target),
            mag=source.volume.box.mag,
            category=self.category,
            source_voxel_size_nm=source.voxel_size_nm,
            needs_container=False,
        )
        return target_for(replace(destination, allow_external=self.allow_external))

    def target_image_of_same_mag(self, source: SourceVolume) -> TargetImage:
        """Return the image that gets a level with the mag of its source."""
        image, volume = self.target_image(source), source.volume
        if image.mag != volume.box.mag:
            raise ValueError(
                f"{os.fspath(self.target)}: is mag {image.mag}, but {volume.name} is mag "
                f"{volume.box.mag}; name it {volume.box.mag.name}"
            )
        return image


def check_no_overlap(levels: NewLevels, source: Volume) -> NewLevels:
    """Raise an error for levels that would replace their source or lie inside of it."""
    source_folder = store_at(source.name).real()
    for folder in levels.folders:
        real = store_at(folder).real()
        if real == source_folder:
            raise ValueError(f"{folder}: is the source; name another place")
        if real.startswith(f"{source_folder}/"):
            raise ValueError(f"{folder}: lies inside the source {source.name}; name another place")
    return levels


def open_base_level(
    url: str | os.PathLike[str], selection: SourceSelection
) -> tuple[Image, Volume]:
    """Open the level from which other levels of its image are made. A publication that was killed
    there is completed first."""
    try:
        image, volume = open_source(url, selection)
        is_replaced = store_at(image.folder).can.writes and any(
            replaces_folder(root, volume.name) for root, _ in job_folders(image.folder)
        )
    except ReplacedError:
        is_replaced = True
    if is_replaced:
        interrupted = find(url).choose(selection.layer)
        for level in interrupted.levels:
            finish_interrupted_publication(*level_job_folders(interrupted, level), selection.option)
        image, volume = open_source(url, selection)
    format_of_image(image).check_writable(url)
    return image, volume


def source_token(source: Volume) -> str:
    """Return a token that changes when the source is replaced."""
    return token_of(source.content_token)


def token_of(values: Any) -> str:
    """Return the digest of values, by their ``repr``."""
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def source_fingerprint(source: Volume) -> dict[str, Any]:
    """Return the settings by which a resumed job recognises its source."""
    # Each task result, and each row of a file record, contains the digest of the source files that
    # were read. So a regular source needs no digest of all files here. An irregular source has no
    # shards to which states could belong.
    if source.is_regular:
        return {"source": source.box.mag.name, "input": source_token(source)}
    return {
        "source": source.name,
        "input": source_token(source),
        "states": file_digest(source),
    }


def file_digest(volume: Volume) -> int:
    """Return a digest of the states of all files of a volume."""
    return digest(volume.files.stored_states())


def box_setting(box: BoundingBox) -> str:
    """Format a box as a setting of a job."""
    return ",".join(map(str, (*box.topleft, *box.size)))


def occupancy_digest(source: Volume, cell_shapes: Iterable[Vec3]) -> str:
    """Return a digest of the cells of some grids that touch a stored file."""
    return digest_of_cells(map(source.files.occupied, cell_shapes))


def digest_of_cells(cells: Iterable[CellMap]) -> str:
    """Return a digest of occupied cells."""
    # A region without a stored file has no task, so no task would notice a file that appears there
    # later. This digest does.
    state = hashlib.blake2b(digest_size=8)
    for occupied in cells:
        state.update(
            occupied.indices().tobytes()
            if isinstance(occupied, SparseCells)
            else np.packbits(occupied).tobytes()
        )
    return state.hexdigest()


def check_not_replaced(source: Volume) -> None:
    """Raise an error if a source was replaced while it was read."""
    if not source.is_current():
        raise IncompleteWriteError(
            f'{source.name}: was replaced while it was read; existing="restart" starts over with '
            "the new one"
        )


@dataclass(frozen=True, slots=True)
class VolumeSelection:
    """Part of a volume to convert, its offset in the target, and its channels and values."""

    box: BoundingBox | None = None
    """Box to convert [voxels of mag 1], by default all."""
    offset: Vec3 = (0, 0, 0)
    """Shift of the voxels [voxels of mag 1; for image files, voxels of the mag that they
    become]."""
    channels: tuple[int, ...] | None = None
    """Indices of the channels, by default all."""
    dtype: Any = None
    """Type of the converted values, by default unchanged."""
    value_range: tuple[float, float] | None = None
    """Values that become the lowest and the highest value of the type."""

    def stored_by(
        self, stored_dtype: Callable[[np.dtype[Any]], np.dtype[Any]], dtype: np.dtype[Any]
    ) -> VolumeSelection:
        """Return the selection with the type in which a target stores voxels of a type, unless
        another one is selected."""
        stored = stored_dtype(dtype)
        return (
            self if self.dtype is not None or stored == dtype else replace(self, dtype=stored.name)
        )

    def converted(self, volume: Any) -> Any:
        """Return the selected channels as the selected type."""
        return converted(volume, self.channels, self.dtype, self.value_range)


def cast_note(source: Volume, stored: np.dtype[Any]) -> str:
    """Return a note on voxels that are stored in a wider type, because the format of the target
    lacks theirs; else an empty text."""
    is_cast = source.dtype != stored == common_dtype(source.dtype)
    return (
        f"{source.name}: {source.dtype.name} is stored as {stored.name}, which the format of the "
        "target has"
        if is_cast
        else ""
    )


def where_box(
    name: str, where: BoundingBox | Sequence[Sequence[int]] | None, box: BoundingBox
) -> BoundingBox | None:
    """Return the part of a box that ``where=`` selects, None without ``where=``."""
    part = None if where is None else voxel_box(where, box.mag, "where").intersection(box)
    if part is not None and part.is_empty:
        raise BoundsError(f"{name}: where={where} lies outside of its box {box}")
    return part


def meet(box: BoundingBox, other: BoundingBox) -> bool:
    """Return whether a box, rounded outward to the mag of another one, has voxels in it."""
    return not box.in_mag(other.mag).intersection(other).is_empty


def is_in_box(volume: Any, box: BoundingBox | None) -> bool:
    """Return whether a volume has voxels in a box of any mag. A coarser level may have none: other
    software leaves out incomplete windows."""
    return box is None or meet(box, volume.box)


def cropped(volume: Any, box: BoundingBox | None, what: str = "the mag") -> Any:
    """Return the part of a volume inside a box of any mag, all of it without a box; ``what`` names
    the volume in errors."""
    if box is None:
        return volume
    inside = box.in_mag(volume.box.mag).intersection(volume.box)
    if inside.is_empty:
        raise BoundsError(
            f"{volume.name}: the bounding box {box} lies outside of {what}, whose box is "
            f"{volume.box}"
        )
    return volume.cropped(inside)


def translated(volume: Any, shift: Vec3, option: str, participle: str) -> Any:
    """Move a volume by a vector [voxels of mag 1]; errors name the ``option`` and what is done to
    mags, for example "copied"."""
    mag = volume.box.mag
    if not any(shift):
        return volume
    if not is_multiple(shift, mag.factors):
        raise ValueError(
            f"{option} must be a multiple of every mag that is {participle}, got {shift}, but "
            f"there is mag {mag}"
        )
    return volume.moved(divide(shift, mag.factors))


def stage_level(
    levels: NewLevels,
    command: str,
    settings: dict[str, Any],
    existing: str,
    fingerprint: dict[str, Any] | None = None,
    *,
    settings_are_complete: bool = True,
) -> tuple[Draft, TargetArray]:
    """Stage a job that makes one level; return the draft of the job and the level to write."""
    (folder,) = levels.folders
    all_settings = {**settings, **levels.settings, **(fingerprint or {})}
    draft = stage(
        f"{command} into {folder}",
        levels.parent,
        [folder],
        all_settings,
        existing,
        settings_are_complete=settings_are_complete,
    )
    (target,) = draft.staged_levels(levels)
    return draft, target
