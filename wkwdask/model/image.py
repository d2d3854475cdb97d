"""Images at several mags of any format: a layer of a dataset, a precomputed volume, an OME-NGFF
image, or a single array."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from wkwdask.errors import BoundsError, CorruptError, MissingError
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.mag import Mag, mag_order
from wkwdask.model.levels import Lengths, mag_from_ratio, ratio_of
from wkwdask.model.states import FILE_RECORD_NAME, FILE_RECORD_NBYTES, parse_file_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume


_LARGEST_RECORD = 1 << 40  # [bytes]


class Container(Protocol):
    """List of images and their levels: a dataset with layers of any format, a group of Zarr or
    N5, or ``info``. It edits these documents."""

    @property
    def holds_layers(self) -> bool:
        """Whether it is a dataset, which lists its images by name and states their box, category
        and voxel size."""

    @property
    def image_files(self) -> tuple[str, ...]:
        """Files beside the levels that describe the image; they are removed with its last level."""

    def lists(self, path: str) -> bool:
        """Return whether a local folder that another format recognises belongs to an image of this
        container."""

    def outermost(self, folder: str) -> str:
        """Return the outermost local folder whose documents describe the image in a folder: the
        folder itself, or one above it."""

    def around(self, folder: str) -> str | None:
        """Return the folder of the dataset or container around a folder, None if it is in none."""

    def root_of(self, image: Image) -> str | None:
        """Return the folder that the files of an image must not leave; None for files without a
        document above them."""

    def readable(self, image: Image) -> Image:
        """Return the image for reading one that the container lists, which may be stored in another
        format."""

    def with_all_files(self, volume: StoredArray) -> StoredArray:
        """Return a level extended to everything in its files, which can be more than the image
        shows."""

    def partial_write_edit(self, image: Image) -> MetadataEdit | None:
        """Return the edit that follows a write to a part of a level, completed by
        :meth:`MetadataEdit.with_maxima`."""

    def why_not_removable(self, image: Image) -> str:
        """Return why no level of an image can be removed, an empty string if they can."""

    def check_removable(self, image: Image, folder: str) -> str:
        """Raise an error unless a folder contains one level of the image and nothing else; returns
        the folder to remove, with links resolved."""

    def removal_edit(self, image: Image, levels: Sequence[Level]) -> MetadataEdit | None:
        """Return the edit that removes levels from the documents, None if no document lists
        them."""

    def remove_image_files(self, folder: str) -> None:
        """Remove the files that describe an image after its last level, if the folder contains
        nothing else."""


@dataclass(frozen=True, slots=True)
class InvalidLayer:
    """Layer of a dataset with an invalid entry in the JSON; other layers of the dataset remain
    usable."""

    name: str
    """Name, or path in the JSON if it has none."""
    path: str
    """Path in the JSON, such as ``dataLayers[2]``."""
    problem: str
    """File and all problems, each with its path."""
    entry: Any = field(repr=False)
    """Entry in the JSON."""

    def raise_error(self) -> NoReturn:
        """Raise CorruptError with the problem."""
        raise CorruptError(self.problem)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of an image: a mag, scale or array."""

    key: str
    """Name in the image, empty if the image is this array alone."""
    folder: str
    """Folder or URL."""
    opener: Callable[[], StoredArray] | None = None
    """Opens the level in absolute voxels; None if it is unusable."""
    mag: Mag | None = None
    """Mag relative to the finest level, None if it has none."""
    lengths_nm: Lengths | None = None
    """Edge lengths of a voxel [nm], None if unknown."""
    problem: str = ""
    """Reason why the level is unusable, empty if none is known before it is opened."""
    error: type[Exception] = CorruptError
    """Class of the error for ``problem``."""
    details: Any = None
    """Further information for the format."""
    stated: str | None = None
    """Name by which the document of the image lists it, as written; None if no document lists
    it."""

    def at_mag(self, mag: Mag) -> Level:
        """Return the level as another mag."""
        return replace(
            self,
            mag=mag,
            opener=None if self.opener is None else lambda: replace(self.open(), mag=mag),
        )

    def open(self) -> StoredArray:
        """Open the level in absolute voxels; raises ``error`` if it is unusable."""
        if self.opener is None:
            raise self.error(self.problem)
        return self.opener()


@dataclass(frozen=True)
class Image:
    """Image and its levels, which are listed and opened on first use."""

    format: str
    """Name of the format."""
    folder: str
    """Folder or URL."""
    name: str
    """Layer name, last part of the folder, or path inside a container."""
    list_levels: Callable[[], Iterable[Level]]
    """Lists the levels, finest first, unusable ones last."""
    key: str | None = None
    """Key of the selected level, None if the path names the image."""
    category: str | None = None
    """``"color"`` or ``"segmentation"``, None if unknown."""
    voxel_size_nm: Lengths | None = None
    """Edge lengths of a voxel of mag 1 [nm], None if unknown."""
    noun: str = "array"
    """Word of the format for a level."""
    container: Container | None = None
    """Container that edits the documents of the image; None for images that are only read."""
    details: Any = None
    """Further information for the format."""
    document: str = ""
    """Path of the document that lists the levels."""
    root: str = ""
    """Folder that the user named, if it is above ``folder``, or a document in it names
    ``folder``."""
    allow_external: bool = False
    """Whether files may be written and deleted where names in documents, or links, lead out of the
    root."""
    stated_box: BoundingBox | None = None
    """Bounding box that the dataset states [voxels of mag 1], None if none states it."""
    needs_files: bool = False
    """Whether a level without files was never written; if not, all its voxels are zero."""
    counts_from_finest: bool = False
    """Whether mags count from the finest stored level, so that a finer level changes the mags of
    all others."""
    color_method: str = "median"
    """Downsampling method that users of the format expect for images without ids."""
    in_chunks: Callable[[Sequence[int]], Image] | None = None
    """Returns the image whose levels are read in chunks of a size [voxels], where a level is stored
    in several; None if no level is."""
    at_index: Callable[[Mapping[str, int]], Image] | None = None
    """Returns the image at an index along each named axis other than c, x, y, z; None in formats
    without such axes."""

    @property
    def is_layer(self) -> bool:
        """Whether the image is a layer of a dataset, which may lack its document."""
        return self.container is not None and self.container.holds_layers

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """All levels."""
        return tuple(self.list_levels())

    @cached_property
    def mags(self) -> dict[Mag, str]:
        """Folder of each mag, finest first; the first level of a mag counts, levels without a mag
        are omitted."""
        folders: dict[Mag, str] = {}
        for level in self.levels:
            if level.mag is not None and not level.problem:
                folders.setdefault(level.mag, level.folder)
        return {mag: folders[mag] for mag in sorted(folders, key=mag_order)}

    @property
    def selected(self) -> tuple[Level, ...]:
        """Selected level, or all levels if the path names the image."""
        return tuple(level for level in self.levels if self.key in (None, level.key))

    @property
    def mag(self) -> Mag | None:
        """Mag of the selected level, None if the path names the image or the level has no mag."""
        return None if self.key is None else self.find().mag

    def method_of(self, category: str) -> str:
        """Return the downsampling method that users of the format expect for a category."""
        return {"color": self.color_method, "segmentation": "mode"}[category]

    def counted_from(self, voxel_size_nm: Lengths) -> Image:
        """Return the image with mags that count from another voxel size [nm], which divides its own
        by powers of two."""
        step = (
            None
            if self.voxel_size_nm is None
            else mag_from_ratio(ratio_of(self.voxel_size_nm, voxel_size_nm))
        )
        if step is None or self.voxel_size_nm is None:
            stated = (
                "has no voxel size"
                if self.voxel_size_nm is None
                else f"voxels of mag 1 have {self.voxel_size_nm} nm"
            )
            raise ValueError(
                f"{self.folder}: {stated}; voxel_size must be that divided by powers of two, got "
                f"{voxel_size_nm}"
            )
        if step == MAG_1:
            return self
        levels = tuple(
            level if level.mag is None else level.at_mag(level.mag.times(step))
            for level in self.levels
        )
        # Divisions by powers of two are exact, but the given lengths may be rounded.
        return replace(
            self,
            list_levels=lambda: levels,
            voxel_size_nm=ratio_of(self.voxel_size_nm, step.factors),
        )

    def find(self, level: Mag | str | int | None = None) -> Level:
        """Return the level of a mag or, if no level has it, of a key; by default the first selected
        level."""
        if level is None:
            chosen = next(iter(self.selected), None)
        else:
            mag = mag_or_key(level)
            chosen = next(
                (
                    candidate
                    for candidate in self.levels
                    if candidate.mag == mag and not candidate.problem
                ),
                None,
            )
            # unusable: opening it raises its error
            chosen = chosen or next(
                (candidate for candidate in self.levels if candidate.mag == mag), None
            )
            chosen = chosen or next(
                (candidate for candidate in self.levels if candidate.key == str(level)), None
            )
        if chosen is None:
            what = (
                f"{self.noun} at all"
                if level is None
                else f"mag {level}"
                if self.noun == "mag"
                else f"mag or {self.noun} {level}"
            )
            raise MissingError(
                f"{self.folder}: no {what}; there are "
                f"{', '.join(map(describe_level, self.levels)) or 'none'}"
            )
        if self.key not in (None, chosen.key):
            raise ValueError(
                f"{self.folder}/{self.key} is the {self.noun} {self.key!r}, not {level}; give the "
                "folder above it to choose another one"
            )
        return chosen

    def volume(self, mag: Mag | str | int | None = None) -> StoredArray:
        """Open a level in absolute voxels: by default the selected one, or else the finest that was
        written."""
        return self.find(self.finest_mag() if mag is None and self.key is None else mag).open()

    def check_finest(self) -> None:
        """Raise the error of a level that exists, cannot be opened, and is finer than those that
        can: its voxels must not be taken from a coarser one."""
        finest = next(iter(self.mags), None)
        for level in self.levels:
            if (
                level.problem
                and level.mag is not None
                and not issubclass(level.error, MissingError)
                and (finest is None or mag_order(level.mag) < mag_order(finest))
            ):
                level.open()

    def finest_mag(self) -> Mag | str:
        """Return the finest mag that was written, or its key if it has no mag.

        Without any it is the first level, which is all zero; in a dataset that is an error.
        """
        self.check_finest()
        for mag in self.mags:
            try:
                volume = self.find(mag).open()
            except MissingError:  # a dataset may list more mags than it has
                continue
            if self.is_written(volume):
                return mag
        if self.needs_files:
            raise MissingError(
                f"{self.folder}: no mag of layer {self.name} has data files (mags: "
                f"{', '.join(mag.name for mag in self.mags) or 'none'})"
            )
        first = self.find()
        return first.mag or first.key

    def is_written(self, volume: StoredArray) -> bool:
        """Return whether a level has files, or none because all its voxels are background.

        A dataset may publish a mag with a header alone, and a volume may list scales whose files
        are elsewhere.
        """
        if volume.files.has_shards():
            return True
        with suppress(CorruptError):
            (data,) = volume.store.read_whole([FILE_RECORD_NAME], _LARGEST_RECORD)
            if data is not None:
                # files that are recorded are lost
                return not parse_file_record(data, FILE_RECORD_NAME)[:, FILE_RECORD_NBYTES].any()
        return not self.needs_files and next(iter(volume.store.entries()), None) is not None

    def level_of(self, volume: Volume) -> Level | None:
        """Return the level that a volume was opened from."""
        return next((level for level in self.levels if level.folder == volume.name), None)

    def voxel_size_of(self, volume: Volume) -> Lengths | None:
        """Return the edge lengths of a mag-1 voxel [nm] for a volume; a level's own voxel size has
        precedence."""
        if self.is_layer:
            return self.voxel_size_nm
        level = self.level_of(volume)
        return (
            None
            if level is None or level.lengths_nm is None
            else ratio_of(level.lengths_nm, volume.box.mag.factors)
        )

    def key_without_mag(self, volume: StoredArray) -> str | None:
        """Return the key of a level without a mag, which has no other name; None for all others."""
        level = self.level_of(volume)
        return level.key if level is not None and level.mag is None else None


@dataclass(frozen=True)
class ResolvedUrl:
    """Images that a path or URL refers to."""

    path: str
    """Path or URL."""
    layers: tuple[Image, ...]
    """Candidate images."""
    mag: Mag | None = None
    """Mag, if the path names a mag."""
    invalid_layers: tuple[InvalidLayer, ...] = ()
    """Layers of a dataset with invalid entries in the JSON."""

    def allowing_external(self, *, allow: bool) -> ResolvedUrl:
        """Return the images with the permission to write and delete files outside of their root, or
        without it."""
        layers = (replace(image, allow_external=allow) for image in self.layers)
        return replace(self, layers=tuple(layers))

    def choose(self, layer: str | None) -> Image:
        """Return the image of a layer for reading; ``layer`` may be None if there is only one."""
        return self.readable(self.choose_listed(layer))

    def readable(self, layer: Image) -> Image:
        """Return the image for reading a layer, which its dataset may store in another format."""
        return layer if layer.container is None else layer.container.readable(layer)

    def choose_listed(self, layer: str | None) -> Image:
        """Return the image of a layer as its dataset lists it, see :meth:`choose`."""
        check_layer_name(layer)
        names = ", ".join(
            [
                *(image.name for image in self.layers),
                *(invalid.name for invalid in self.invalid_layers),
            ]
        )
        if layer is None:
            if len(self.layers) + len(self.invalid_layers) == 1:
                return self.layers[0] if self.layers else self.invalid_layers[0].raise_error()
            if not names:
                raise MissingError(f"{self.path}: the dataset has no layers")
            raise ValueError(f"{self.path}: several layers: name one with layer=: {names}")
        for candidate in self.layers:
            if candidate.name in (layer, layer.strip("/")):
                return candidate
        for invalid in self.invalid_layers:
            if invalid.name == layer:
                invalid.raise_error()
        raise MissingError(f"{self.path}: no layer {layer!r}; there are {names or 'none'}")

    def open(self, layer: str | None, mag: Mag | str | None) -> tuple[Image, StoredArray]:
        """Open the level of a layer and a mag."""
        chosen = self.choose(layer)
        if not chosen.is_layer:
            return chosen, chosen.volume(mag)
        wanted = None if mag is None else Mag.parse(mag)
        if self.mag is not None and wanted not in (None, self.mag):
            raise ValueError(
                f"{self.path} is mag {self.mag}, not mag {wanted}; give the layer's folder to "
                "choose a mag"
            )
        return chosen, chosen.volume(wanted or self.mag)


def check_layer_name(layer: object) -> None:
    """Raise TypeError for a value that cannot name a layer."""
    if not isinstance(layer, (str, type(None))):
        raise TypeError(f"layer must be the name of a layer, got {layer!r}")


def describe_level(level: Level) -> str:
    """Name a level for users, with its mag, and the reason if it is unusable."""
    if level.problem:
        return f"{level.key!r} ({level.problem})"
    if level.mag is None:
        return repr(level.key)
    return level.key if level.key == level.mag.name else f"{level.key!r} (mag {level.mag})"


def check_inside(volume_name: str, box: BoundingBox, part: BoundingBox) -> None:
    """Raise BoundsError unless a box lies inside that of a volume."""
    if not box.contains(part):
        raise BoundsError(f"{volume_name}: box {part} reaches outside {box}")


def parse_box_of(
    volume: Volume, bounding_box: BoundingBox | str | Sequence[Any] | None
) -> BoundingBox:
    """Convert a box in voxels of mag 1 to voxels of a volume's mag; by default the box of the
    volume."""
    if bounding_box is None:
        return volume.box
    part = BoundingBox.parse(bounding_box).in_mag(volume.box.mag)
    check_inside(volume.name, volume.box, part)
    return part


def mag_or_key(value: Mag | str | int | Sequence[int] | None) -> Mag | str | None:
    """Parse a mag; text that is no mag is returned unchanged, as the key of a level.

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
