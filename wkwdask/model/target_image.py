"""Where levels of an image are written, whatever the format: what a user says, and what a format makes of it. Opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from wkwdask.geometry.bounding_box import MAG_1

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image, Level
    from wkwdask.model.levels import Lengths
    from wkwdask.model.target_array import TargetArray
    from wkwdask.model.volume import Volume


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a user wants levels of an image."""

    url: str
    """The image, or one of its levels."""
    layer: str | None = None
    """The image, where the URL is that of what holds several."""
    mag: Mag | None = None
    """The mag, where the URL does not say it."""
    all_mags: tuple[Mag, ...] = ()
    """The mags of another image that are written together, the finest first; none where an array is written."""
    category: str | None = None
    """What a new image is, ``"color"`` or ``"segmentation"``."""
    guess: str = "color"
    """What it is likely to be, where nobody says it: a new image in a container is named so."""
    voxel_size_nm: Lengths | None = None
    """Edge lengths of a voxel of mag 1 [nm], as a user says."""
    coordinate_voxel_size_nm: Lengths | None = None
    """The same as the coordinates of an array say."""
    source_voxel_size_nm: Lengths | None = None
    """The same as the source says: for a new image."""
    names_image: bool = False
    """Whether the URL is that of an image, in which levels get names of their own; else it may be that of a level."""
    needs_container: bool = True
    """Whether a level cannot be by itself, in a folder that belongs to nothing."""
    is_empty_folder: bool = False
    """Whether nothing but what jobs make is in the folder that would become a container."""
    image: Any = None
    """The image that is copied, where a new one is to say of itself what that one says."""
    image_box: BoundingBox | None = None
    """Where the copy of that image has data [voxels of mag 1]."""
    allow_external: bool = False
    """Whether links may lead out of what holds the image."""
    keeps_files: bool = False
    """Whether files that are taken over as they are may keep what lies outside of the box, as long as the image does not show it."""

    @property
    def required_voxel_size_nm(self) -> Lengths | None:
        """The lengths that a user or an array states, and that must be those of an image that is there."""
        return self.voxel_size_nm or self.coordinate_voxel_size_nm


@dataclass(frozen=True, slots=True)
class LevelSpec:
    """One level that is to be made."""

    box: BoundingBox
    """Where it has data [absolute voxels of its mag]."""
    dtype: np.dtype[Any]
    """Type of one channel."""
    num_channels: int
    """Values per voxel."""
    is_copy: bool = False
    """Whether it holds the voxels of the level that it is stored like: then all that the options leave open stays as there."""

    @classmethod
    def like(cls, volume: Volume, box: BoundingBox | None = None, *, is_copy: bool = False) -> LevelSpec:
        """Describe a level that holds values like those of a volume."""
        return cls(volume.box if box is None else box, volume.dtype, volume.num_channels, is_copy)

    @property
    def voxel_nbytes(self) -> int:
        """Bytes of a voxel with all channels."""
        return self.dtype.itemsize * self.num_channels

    @property
    def nbytes(self) -> int:
        """Bytes of all voxels."""
        return self.box.volume * self.voxel_nbytes


@dataclass(frozen=True, slots=True)
class LevelCopy:
    """A level that is stored anew."""

    image: Image
    """Its image."""
    level: Level
    """The level."""
    wanted: Destination | None = None
    """Where it goes; None where it takes its own place."""


@dataclass(frozen=True, slots=True)
class NewLevels:
    """Levels of one image that can be built."""

    parent: str
    """The folder in which jobs on the image work."""
    folders: tuple[str, ...]
    """Where each level is to appear."""
    targets: tuple[TargetArray, ...]
    """How each is stored."""
    settings: dict[str, Any]
    """The same for a journal, in values that JSON keeps."""
    edit: Any = None
    """What the documents of the image say then, a MetadataEdit."""
    warnings: tuple[str, ...] = ()
    """What is written right, but shown wrong by a viewer."""
    stored_as: str = ""
    """How levels are stored, for people."""
    is_unchanged: bool = False
    """Whether a level is described as the one that it is the copy of."""
    loss: str | None = None
    """What is lost where its chunks are decoded and encoded; empty where a user asked for another encoding that loses something, None where nothing is."""

    def staged(self, job_folder: str) -> tuple[TargetArray, ...]:
        """Give the levels as they are built in the folder of a job."""
        names = (f"{job_folder}/{target.box.mag.long_name}" for target in self.targets)
        return tuple(target.built_in(name) for target, name in zip(self.targets, names, strict=True))


@dataclass(frozen=True, slots=True)
class TargetFolder:
    """What most places say: an image is a folder, and levels beside those that are written stay as they are."""

    prefix: ClassVar[str]
    """What URLs of the format begin with."""
    folder: str
    """The folder in which levels are or will be, or the only level."""
    wanted: Destination
    """What a user says of the levels."""

    @property
    def mag(self) -> Mag:
        """The mag that is meant."""
        return self.wanted.mag or MAG_1

    def url_of(self, folder: str) -> str:
        """Give the URL of a level."""
        return self.prefix + folder

    def unchanged_levels(self, existing: str) -> str:
        """Nothing is said of other levels."""
        del existing
        return ""


class TargetImage(Protocol):
    """An image that is there or will be, in which levels are written."""

    @property
    def wanted(self) -> Destination:
        """What a user says of the levels."""

    @property
    def mag(self) -> Mag:
        """The mag that is meant."""

    def url_of(self, folder: str) -> str:
        """Give the URL by which a level of the image opens."""

    def unchanged_levels(self, existing: str) -> str:
        """Say which coarser levels that are there a new one does not change; an empty text where there are none."""

    def new_levels(self, specs: Sequence[LevelSpec], options: Any, like: Volume | None = None, existing: str = "error") -> NewLevels:
        """Lay out levels; with ``like``, a level of the same format, what the options leave open is stored as there."""
