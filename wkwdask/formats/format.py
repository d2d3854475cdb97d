"""Base class of formats: how a format recognises, opens, writes, checks and removes the images that
it stores."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from wkwdask.errors import FormatError, UnsupportedError
from wkwdask.formats.inspection import Scope, inspect_arrays
from wkwdask.formats.repair import DocumentRepair
from wkwdask.formats.roots import checked_folder, root_of
from wkwdask.model.faults import Fault
from wkwdask.model.options import StorageOptions
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.voxel_type import common_dtype, guess_category
from wkwdask.model.writing.target_array import InPlaceWrite, in_place_target
from wkwdask.model.writing.target_image import Destination, LevelCopy, LevelSpec
from wkwdask.store import files
from wkwdask.store.documents import remove_document
from wkwdask.store.paths import UrlName, dirname, is_remote, local_path
from wkwdask.store.store import FolderStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np

    from wkwdask.formats.repair import RepairOptions
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.faults import Findings
    from wkwdask.model.image import Image, Level, ResolvedUrl
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.model.writing.target_image import TargetImage

    Url = str | os.PathLike[str]

# Records and temporary files of wkwdask, files that NFS keeps while a removed file is open, and
# files that desktops create in any folder.
IGNORED_NAMES = re.compile(r"\.wkwdask.*|\..*\.wkwdask-tmp|\.nfs.*|\.DS_Store|\._.*|Thumbs\.db")


class MetadataEdit(Protocol):
    """Change of an image's metadata, made when new levels are published; small and picklable.

    The publish record of a job stores it, so that another process can complete a job that was
    killed.
    """

    kind: ClassVar[str]
    """Name of this kind of edit in publish records."""
    folder_names: ClassVar[tuple[str, ...]]
    """Fields that are paths of folders; records store them relative to the job."""

    def folders(self) -> dict[str, str]:
        """Return the folders by the names of their fields."""
        return {
            name: folder
            for name in self.folder_names
            if (folder := getattr(self, name)) is not None
        }

    def check_writable(self) -> None:
        """Raise PermissionError, before any work is done, if the metadata cannot be changed."""
        for folder in self.folders().values():
            if files.isdir(folder) and not files.is_writable(folder):
                raise PermissionError(
                    errno.EACCES, "the image's metadata could not be updated", folder
                )

    def check_current(self) -> None:
        """Raise ValueError, before anything is published, if the metadata that the edit relies on
        has changed since."""
        return

    @property
    def makes_room(self) -> bool:
        """Whether existing levels are in the folders of new ones until :meth:`make_room` moves
        them."""
        return False

    def make_room(self) -> None:
        """Move existing levels out of the folders of new ones, before these are published;
        repeating it has no effect."""
        return

    def apply(self) -> None:
        """Make the change; applying it twice has the same effect as once."""

    def with_maxima(self, maxima: tuple[int | None, ...], *, is_new_content: bool) -> MetadataEdit:
        """Return the edit that also sets the largest id of each level, if the metadata stores
        it."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Return all fields and ``kind`` as values for a record; this default is for fields that
        JSON can represent."""
        return {"kind": self.kind, **{each.name: getattr(self, each.name) for each in fields(self)}}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Create the edit from the values of a record."""
        return cls(**{name: field for name, field in value.items() if name != "kind"})


@dataclass(frozen=True, slots=True)
class LevelRemoval(MetadataEdit):
    """Removal of levels from the documents of an image."""

    folder_names: ClassVar[tuple[str, ...]] = ("folder",)
    folder: str
    """Folder of the image."""
    keys: Sequence[str]
    """Keys of the levels."""

    def check_writable(self) -> None:
        if files.isdir(self.folder) and not files.is_writable(self.folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.folder)


class Summary(Protocol):
    """Output of ``wkwdask info``."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""


class SingleFile(Protocol):
    """New file that contains a whole image: the image is built in a folder, whose files are then
    packed."""

    @property
    def path(self) -> str:
        """Path of the file."""

    @property
    def folder(self) -> str:
        """Folder in which an image is built. The folder above it is hidden and contains nothing
        else."""

    @property
    def folder_url(self) -> str:
        """URL of that folder, with the prefix of the format."""

    def check(self, existing: str, options: Mapping[str, Any]) -> None:
        """Raise ExistsError, MissingError or UnsupportedError, before any work is done, if the file
        cannot be written with some storage options."""

    def can_pack(self, folder: str) -> bool:
        """Return whether a folder is an image that can be packed unchanged."""

    def pack(self, folder: str) -> tuple[int, int]:
        """Pack an image, and return the number of its files and the size of the new file."""

    def pack_built(self, call: str) -> None:
        """Pack the image in :attr:`folder` and remove the folder above it; ``call`` tells the calls
        that can be interrupted apart."""

    def finish(self, call: str) -> bool:
        """Publish the files that interrupted calls had completed, and return whether this call was
        one of them."""

    def path_inside(self, path: str) -> str:
        """Return the path in the file for one in :attr:`folder`."""


class ArrayFormat:
    """Base class of a format; :mod:`wkwdask.formats.registry` lists one instance of each.

    Defaults are those of a read-only format: it must define ``name``, :meth:`recognise` and
    :meth:`find`. A format that writes also defines :meth:`target`, ``options`` and ``edits``.
    ``tests/support/toy_format.py`` is a complete example.
    """

    name: ClassVar[str]
    """Name of the format, and prefix of its URLs (``NAME://``)."""
    data_format: ClassVar[str] = ""
    """Value of ``dataFormat`` in ``datasource-properties.json`` if it differs from ``name``."""
    url_name: ClassVar[UrlName] = UrlName((), ())
    """Prefixes and suffixes by which a URL names the format."""
    documents: ClassVar[tuple[str, ...]] = ()
    """Files that identify the format in a folder on a web server; one of them suffices."""
    edits: ClassVar[tuple[type[MetadataEdit], ...]] = ()
    """Metadata edits that jobs of the format use."""
    removal: ClassVar[type[LevelRemoval] | None] = None
    """Edit that removes levels from the documents of an image, None if no document lists them."""
    image_files: ClassVar[tuple[str, ...]] = ()
    """Files beside the levels that describe the image; they are removed with its last level."""
    has_chunk_sizes: ClassVar[bool] = False
    """Whether a level can be stored in several chunk sizes, from which a reader chooses."""
    options: ClassVar[type[StorageOptions]] = StorageOptions
    """Storage options of new arrays."""
    counts_from_finest: ClassVar[bool] = False
    """Whether mags count from the finest stored level, so that a finer level changes the mags of
    all others."""
    why_no_zarr_files: ClassVar[str] = "its chunks have no codec in Zarr"
    """Why ``zarr.json`` files beside the data cannot describe it, empty if they can."""
    has_plain_arrays: ClassVar[bool] = False
    """Whether the format also stores arrays without a position in space, like HDF5 files do."""
    takes_axes: ClassVar[bool] = False
    """Whether one array can be converted with axes that the user states."""
    level_record: ClassVar[str] = ""
    """File that describes a level, if each level has one."""
    level_entries: ClassVar[str] = ""
    """Regular expression for the names of all other files and folders of a level."""
    reserved_suffix: ClassVar[str] = ""
    """Suffix of folder names that is reserved for the format."""
    unlisting: ClassVar[str] = "correct the document to keep its files"
    """What removes a level from the document alone, for errors."""
    unsupported_options: ClassVar[tuple[str, ...]] = ()
    """Options that a conversion into the format rejects: ``category``, ``pyramid``."""

    def recognise(self, path: str) -> bool:
        """Return whether a local folder is of the format, by checking for a few files."""
        raise NotImplementedError

    def guess_can_open(self, url: object) -> bool:
        """Return whether a path or URL is of the format, for software that asks several libraries
        (xarray's engines)."""
        if self.url_name.is_in(url):
            return True
        if (
            not isinstance(url, (str, os.PathLike))
            or not os.fspath(url)
            or is_remote(os.fspath(url))
        ):
            return False
        return self.recognise(local_path(url))

    def claims(self, path: str) -> bool:
        """Return whether a local folder that another format recognises belongs to an image of this
        format."""
        return False

    def find(self, url: Url, chunk_size: Sequence[int] | None = None) -> ResolvedUrl:
        """Resolve a path or URL to images; raises FormatError or MissingError."""
        raise NotImplementedError

    def names_target(self, url: object) -> bool:
        """Return whether the URL of a target names the format."""
        return self.url_name.is_in(url)

    def check_writable(self, url: Url) -> None:
        """Raise UnsupportedError if the format cannot write; all verbs that change an image of the
        format ask first."""
        if type(self).target is ArrayFormat.target:
            raise self._read_only(url)

    def _read_only(self, url: Url) -> UnsupportedError:
        return UnsupportedError(
            f"{os.fspath(url)}: the format {self.name} is read-only; convert() writes the data in "
            "another format, such as WKW"
        )

    def single_file(self, url: object) -> SingleFile | None:
        """Return the new file that a target names, if it shall contain a whole image; None for
        other targets."""
        del url
        return None

    def target(self, destination: Destination) -> TargetImage:
        """Return the image at a destination, new or existing; raises ExistsError, FormatError or
        MissingError."""
        raise self._read_only(destination.url)

    def target_in(self, image: Image, *, allow_external: bool) -> TargetImage:
        """Return an existing image as the target of levels that are computed from one of its
        levels."""
        raise UnsupportedError(
            f"{image.folder}: levels of {self.options.title} cannot be computed from each other "
            "yet; convert() it to WKW or precomputed"
        )

    def level_copies(
        self,
        url: Url,
        target: Url | None,
        layers: Sequence[str] | None,
        levels: Sequence[Mag | str] | None,
        *,
        allow_external: bool = False,
    ) -> list[LevelCopy]:
        """Return the levels to copy or to store again, with their destinations in an image of the
        same format; by default all selected levels."""
        image = replace(
            self.find(url).choose(None if layers is None else layers[0]),
            allow_external=allow_external,
        )
        selected = image.selected if levels is None else tuple(map(image.find, levels))
        if levels is None:
            for level in image.levels:
                if level.problem:
                    level.open()  # raises the error
        folder = None if target is None else self.url_name.location(target)
        if folder is None or files.realpath(folder) == files.realpath(image.folder):
            return [LevelCopy(image, level) for level in selected]
        arrays = [level.open() for level in selected if level.mag is not None]
        specs = tuple(
            replace(LevelSpec.like(array, is_copy=True), source=array) for array in arrays
        )
        destination = Destination(
            f"{self.name}://{folder}",
            levels=specs,
            category=image.category,
            source_voxel_size_nm=image.voxel_size_nm,
            names_image=True,
            image=image,
        )
        return [LevelCopy(image, level, replace(destination, mag=level.mag)) for level in selected]

    def layers_to_copy(self, url: Url) -> list[str] | None:
        """Return the names of the layers that are copied by default, None for all."""
        del url
        return None

    def copy_warnings(
        self, url: Url, level_copies: Sequence[LevelCopy], layers: Sequence[str] | None
    ) -> list[str]:
        """Return notes on files that are not copied, and on differences from the target."""
        del url, level_copies, layers
        return []

    def prepare_copy(self, url: Url, target: Url | None) -> AbstractContextManager[None]:
        """Create the container of the copied levels if writing them does not create it. One that is
        still empty after an error is removed."""
        del url, target
        return contextlib.nullcontext()

    def job_folders(self, image: Image, level: Level) -> tuple[str, str]:
        """Return the work folder of a job that changes an existing level, which is above a single
        array, and the folder of that level.

        Raises UnsupportedError for a level outside of the root of the image.
        """
        folder = checked_folder(image, level.folder)
        return dirname(folder) if image.folder == level.folder else root_of(image).work_folder(
            image.folder, [folder]
        ), folder

    def in_place_target(self, volume: StoredArray, write: InPlaceWrite) -> TargetArray:
        """Return an existing level as an array that is written in place."""
        self.check_writable(volume.name)
        return in_place_target(volume, write)

    def partial_write_edit(self, image: Image) -> MetadataEdit | None:
        """Return the edit that follows a write to a part of a level, completed by
        :meth:`MetadataEdit.with_maxima`."""
        return None

    def with_all_files(self, volume: StoredArray) -> StoredArray:
        """Return the level extended to everything in its files, which can be more than the image
        shows."""
        return volume

    def is_uniform(self, volume: StoredArray) -> bool:
        """Return whether all files of a level are encoded as the level states; files of other
        software may differ."""
        del volume
        return True

    def is_image(self, url: Url) -> bool:
        """Return whether the documents at a path describe an image and the axes of its arrays."""
        return True

    def is_placed(self, url: Url) -> bool:
        """Return whether the arrays at a path are levels of an image with a position in space."""
        return True

    def summarize(self, url: Url) -> Summary:
        """Return a summary of a path or URL, for ``wkwdask info``."""
        from wkwdask.model.summary import summarize_arrays

        return summarize_arrays(url, self.find(url).layers)

    def category_of(self, image: Image, volume: Volume) -> str | None:
        """Return the category of an image, guessed from one of its levels if the image does not
        state it."""
        return image.category or guess_category(volume.dtype, volume.num_channels)

    def stored_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type in which new levels store voxels of a type: the same, or a wider one
        where the format lacks it."""
        return common_dtype(dtype)

    def default_method(self, category: str) -> str:
        """Return the downsampling method that users of the format expect for a category."""
        return {"color": "median", "segmentation": "mode"}[category]

    def is_level_folder(self, folder: str) -> bool:
        """Return whether a folder contains one level and nothing else, so that a job may replace
        it."""
        if self.record_of(folder) is None:
            return False
        with files.scandir(folder) as entries:
            names = (entry.name for entry in entries if entry.name != self.level_record)
            return all(
                re.fullmatch(self.level_entries, name) or IGNORED_NAMES.fullmatch(name)
                for name in names
            )

    def record_of(self, folder: str) -> str | None:
        """Return the file that marks a folder as a level, None if there is none; all files of the
        level are assumed to have its mode."""
        path = f"{folder}/{self.level_record}"
        return path if self.level_record and files.isfile(path) else None

    def why_not_replaceable(self, folder: str) -> str:
        """Return why a folder is not replaced, and what to do, for an error."""
        return (
            f"contains other files than one array of {self.name} and is not replaced; move it away"
        )

    def container_around(self, folder: str) -> str | None:
        """Return the dataset or container of a folder, None if it is in none."""
        return None

    def outermost(self, folder: str) -> str:
        """Return the outermost local folder whose documents describe the image in a folder: the
        folder itself, or one above it."""
        return folder

    # --------------------------------------------------------------------------------------------
    # checking

    def inspect(
        self, url: Url, layers: Sequence[str] | None, mags: Sequence[Mag] | None, *, pyramid: bool
    ) -> Scope:
        """Return the scope of verify, without reading a chunk; with ``pyramid``, coarser levels are
        compared with finer ones."""
        del pyramid
        location = self.url_name.location(url)
        try:
            resolved = self.find(url)
        except FormatError as error:
            return Scope(
                location,
                (),
                [Fault("level.broken", location, str(error).removeprefix(f"{location}: "))],
            )
        if layers is not None:
            resolved = replace(resolved, layers=tuple(map(resolved.choose_listed, layers)))
        return inspect_arrays(location, resolved, mags, self)

    def document_faults(self, folder: str) -> Iterable[Fault]:
        """Return the faults of the documents in the folder of an image or group that do not keep
        its levels from being opened."""
        del folder
        return ()

    def document_repair(
        self, scope: Scope, findings: Mapping[str, Findings], options: RepairOptions
    ) -> DocumentRepair:
        """Return the repair of the documents of a scope; ``findings`` are those of the files, by
        the keys of their levels."""
        del scope, findings, options
        return DocumentRepair()

    # --------------------------------------------------------------------------------------------
    # removing

    def find_removable(self, url: Url, *, allow_external: bool) -> ResolvedUrl:
        """Resolve a path or URL to the images whose levels can be removed; raises FormatError or
        MissingError."""
        self.check_writable(url)
        resolved = self.find(url)
        return replace(
            resolved,
            layers=tuple(
                replace(image, allow_external=allow_external) for image in resolved.layers
            ),
        )

    def viewer_scheme(self, image: Image, volumes: Sequence[StoredArray]) -> str | None:
        """Return the scheme of URLs by which Neuroglancer reads the stored files of an image and
        its levels, None if it cannot."""
        del image, volumes
        return None

    def viewer_documents(self, image: Image, *, is_rgb: bool) -> dict[str, bytes]:
        """Return documents that Neuroglancer gets in place of stored ones, by their keys in the
        folder of the image."""
        del image, is_rgb
        return {}

    def why_not_removable(self, image: Image) -> str:
        """Return why no level of an image can be removed, an empty string if they can."""
        del image
        return ""

    def check_removable(self, image: Image, folder: str) -> str:
        """Raise an error unless a folder contains one level of the image and nothing else; returns
        the folder to remove, with links resolved."""
        folder = checked_folder(
            image,
            folder,
            (
                f"and may belong to somebody else; {self.unlisting}, allow_external=True deletes "
                "them there"
            ),
        )
        above = dirname(folder)
        if files.isdir(above) and not files.is_writable(above):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), above)
        for path in (above, folder):
            if files.islink(path):
                raise UnsupportedError(
                    f"{path}: is a symbolic link; remove the link itself or its target"
                )
        if files.lexists(folder) and not (files.isdir(folder) and self.is_level_folder(folder)):
            raise UnsupportedError(f"{folder}: {self.why_not_level(folder)} and is not removed")
        return folder

    def why_not_level(self, folder: str) -> str:
        """Return why a folder is not a level alone, for an error."""
        del folder
        return "is not a level of an image, or contains other files too"

    def removal_edit(self, image: Image, levels: Sequence[Level]) -> MetadataEdit | None:
        """Return the edit that removes levels from the documents, None if no document lists
        them."""
        keys = tuple(level.key for level in levels if level.key)
        return None if self.removal is None or not keys else self.removal(image.folder, keys)

    def remove_image_files(self, folder: str) -> None:
        """Remove the files that describe an image after its last level, if the folder contains
        nothing else."""
        for name in self.image_files if self.is_bare(folder) else ():
            what = f"removal of {folder}/{name}"
            remove_document(FolderStore(folder), name, lambda: self.is_bare(folder), what)

    def is_bare(self, folder: str) -> bool:
        """Return whether a folder contains nothing but documents of the image and leftovers of
        jobs."""
        return files.isdir(folder) and all(
            name in self.image_files or name.startswith(".") for name in files.listdir(folder)
        )
