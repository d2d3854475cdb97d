"""Images as targets of a job: the user's request, and the levels that a format creates for it.
Opens no file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from wkwdask.errors import BoundsError
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.model.summary import format_nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image, Level
    from wkwdask.model.levels import Lengths
    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray

_MAX_COORDINATE = 1 << 53  # exact as a double, which documents and their readers use


@dataclass(frozen=True, slots=True)
class Destination:
    """User's request for levels of an image."""

    url: str
    """Image, or one of its levels."""
    layer: str | None = None
    """Name of the image if the URL names a container of several."""
    mag: Mag | None = None
    """Mag, if the URL does not state it."""
    levels: tuple[LevelSpec, ...] = ()
    """Levels of another image that are written together, finest first; empty if an array is
    written."""
    category: str | None = None
    """``"color"`` or ``"segmentation"`` for a new image."""
    guessed_category: str = "color"
    """Likely category if none is given; a new image in a container is named after it."""
    voxel_size_nm: Lengths | None = None
    """Voxel size of mag 1 from the user [nm]."""
    coordinate_voxel_size_nm: Lengths | None = None
    """The same from the coordinates of an array."""
    source_voxel_size_nm: Lengths | None = None
    """The same from the source, for a new image."""
    source_layer: str | None = None
    """Name of the layer of a dataset that is converted; a new image in a container has it too,
    unless the URL names another."""
    names_image: bool = False
    """Whether the URL names an image; if not, it may name a level."""
    needs_container: bool = True
    """Whether a level must belong to a dataset or container."""
    is_empty_folder: bool = False
    """Whether the folder that would become a container contains nothing but job folders."""
    image: Image | None = None
    """Image to copy or convert. A copy takes over its metadata."""
    translate: Vec3 = (0, 0, 0)
    """Shift of the copied voxels [voxels of mag 1]."""
    image_box: BoundingBox | None = None
    """Bounding box of the copy of that image [voxels of mag 1]."""
    allow_external: bool = False
    """Whether links may lead out of the container of the image."""
    keeps_files: bool = False
    """Whether copied files and chunks may contain voxels outside the box, which the image does not
    show."""

    @property
    def all_mags(self) -> tuple[Mag, ...]:
        """Mags that are written together, finest first."""
        return tuple(spec.box.mag for spec in self.levels)

    @property
    def required_voxel_size_nm(self) -> Lengths | None:
        """Voxel size that a user or an array states, which an existing image must have."""
        return self.voxel_size_nm or self.coordinate_voxel_size_nm


@dataclass(frozen=True, slots=True)
class LevelSpec:
    """Level to create."""

    box: BoundingBox
    """Bounding box [absolute voxels of its mag]."""
    dtype: np.dtype[Any]
    num_channels: int
    is_copy: bool = False
    """Whether it is a copy of the level that it is stored like: then options that are not given are
    those of that level."""
    source: StoredArray | None = None
    """Array of another image with its voxels: options that are not given should suit its stored
    chunks, so that these are copied without decoding."""
    extent: BoundingBox | None = None
    """Whole array that a copy repeats, if it contains more than the box [absolute voxels of its
    mag]."""

    def __post_init__(self) -> None:
        box = self.box.in_mag(MAG_1)
        if max(map(abs, (*box.topleft, *box.bottomright))) > _MAX_COORDINATE:
            raise BoundsError(f"voxels are stored at positions of at most 2^53, got {box}")

    @classmethod
    def like(
        cls, volume: Volume, box: BoundingBox | None = None, *, is_copy: bool = False
    ) -> LevelSpec:
        """Return the description of a level with values like those of a volume."""
        return cls(volume.box if box is None else box, volume.dtype, volume.num_channels, is_copy)

    @property
    def voxel_nbytes(self) -> int:
        return self.dtype.itemsize * self.num_channels

    @property
    def nbytes(self) -> int:
        return self.box.volume * self.voxel_nbytes


@dataclass(frozen=True, slots=True)
class LevelCopy:
    """Level to store again."""

    image: Image
    level: Level
    destination: Destination | None = None
    """Destination, None if the level is replaced in place."""


@dataclass(frozen=True, slots=True)
class NewLevels:
    """Levels of one image, ready to be built."""

    parent: str
    """Folder in which jobs on the image work."""
    folders: tuple[str, ...]
    """Final folder of each level."""
    targets: tuple[TargetArray, ...]
    """Array of each level."""
    settings: dict[str, Any]
    """Storage settings as JSON values, for the journal."""
    edit: MetadataEdit | None = None
    """Edit of the documents of the image, made when the levels are published."""
    warnings: tuple[Warning, ...] = ()
    """Warnings for users, such as :class:`wkwdask.errors.ViewerWarning`."""
    stored_as: str = ""
    """Description of the storage, for users."""
    placed_as: str = ""
    """Description of the voxels around the box that arrays have, for users; empty if there are
    none."""
    stated: tuple[dict[str, Any], ...] = ()
    """For levels of a layer, the fields of each one that its dataset states."""
    is_unchanged: bool = False
    """Whether a copied level is stored exactly like its source."""
    loss: str | None = None
    """Description of the loss by decoding and encoding chunks; empty if the user asked for it, None
    if nothing is lost."""


def storage_text(compression: str, array: StoredArray) -> str:
    """Describe the storage of an array in one phrase, with the size of a shard if it is a box."""
    chunk, shard = (" x ".join(map(str, shape)) for shape in (array.chunk_shape, array.shard_shape))
    files, file = "each a file", array.grid.file
    if array.layout.is_sharded:
        nbytes = 0 if file is None else math.prod(file) * array.dtype.itemsize
        size = f" of {shard} (up to {format_nbytes(nbytes)} before compression)"
        files = f"in shards{size if nbytes else ''}"
    return f"{compression}, chunks of {chunk} voxels, {files}"


@dataclass(frozen=True, slots=True)
class TargetFolder:
    """Base class of most targets: the image is a folder, and writing a level does not change its
    other levels."""

    prefix: ClassVar[str]
    """URL prefix of the format."""
    folder: str
    """Folder of the levels, or of the only level."""
    destination: Destination

    @property
    def mag(self) -> Mag:
        return self.destination.mag or MAG_1

    def url_of(self, folder: str) -> str:
        return self.prefix + folder

    def unchanged_levels_note(self, existing: str) -> str:
        """Return an empty text: no other levels depend on a new one."""
        del existing
        return ""


class TargetImage(Protocol):
    """Existing or new image to which levels are written."""

    @property
    def destination(self) -> Destination:
        """Request of the user."""

    @property
    def mag(self) -> Mag:
        """Mag that is written."""

    def url_of(self, folder: str) -> str:
        """Return the URL that opens a level of the image."""

    def unchanged_levels_note(self, existing: str) -> str:
        """Return a note on existing coarser levels that do not match a new level, an empty text if
        there are none."""

    def new_levels(
        self,
        specs: Sequence[LevelSpec],
        options: Any,
        like: Volume | None = None,
        existing: str = "error",
    ) -> NewLevels:
        """Lay out new levels.

        Parameters
        ----------
        specs : sequence of LevelSpec
            Levels, finest first.
        options : StorageOptions
            Storage options that the user gave.
        like : Volume, optional
            Level of the same format whose storage is used for options that are not given.
        existing : {"error", "overwrite", "resume"}
            Handling of existing levels.

        Returns
        -------
        NewLevels

        Raises
        ------
        ExistsError
            A level exists, and ``existing`` is ``"error"``.
        UnsupportedError
            The format cannot store such levels.
        """
