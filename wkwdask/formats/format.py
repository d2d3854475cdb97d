"""Base class of formats: how a format recognises, opens, writes, checks and removes the images that
it stores."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from wkwdask.errors import FormatError, UnsupportedError
from wkwdask.formats.container import ImageFolder
from wkwdask.formats.copies import Copies
from wkwdask.formats.inspection import FilesScope, LevelScope, Scope, array_scope, inspect_arrays
from wkwdask.formats.level_folders import LevelFolders
from wkwdask.model.faults import Fault
from wkwdask.model.options import StorageOptions
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.writing.target_array import InPlaceWrite, in_place_target
from wkwdask.store.paths import UrlName, is_remote, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Container, Image, Level, ResolvedUrl
    from wkwdask.model.levels import Lengths
    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.volume import Volume
    from wkwdask.model.writing.target_array import TargetArray
    from wkwdask.model.writing.target_image import (
        Destination,
        LevelSpec,
        NewLevels,
        TargetImage,
    )

    Url = str | os.PathLike[str]
    ChooseAxes = Callable[[Sequence[int], Sequence[str | None]], str]


class Summary(Protocol):
    """Output of ``wkwdask info``."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""


class ViewerFiles(NamedTuple):
    """Stored files of an image that Neuroglancer reads itself."""

    scheme: str
    """Scheme of their URLs in Neuroglancer."""
    documents: dict[str, bytes]
    """Documents that it gets in place of stored ones, by their keys in the folder of the image."""


class SingleFile(Protocol):
    """New file that contains a whole image: the image is built in a folder, whose files are then
    packed."""

    @property
    def path(self) -> str:
        """Path of the file."""

    def folder_in(self, scratch: str) -> str:
        """Return the folder below a folder for scratch in which an image is built."""

    def url_of(self, folder: str) -> str:
        """Return the URL of that folder, with the prefix of the format."""

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise MissingError or UnsupportedError if the file cannot be written with some storage
        options."""

    def at(self, path: str) -> SingleFile:
        """Return the same file at another path."""

    def can_pack(self, folder: str) -> bool:
        """Return whether a folder is an image that can be packed unchanged."""

    def pack(self, folder: str, path: str) -> int:
        """Pack an image into a new file, and return the number of its files."""

    def path_inside(self, path: str, folder: str) -> str:
        """Return the path in the file for one in the folder of the image."""


class MeshPlace(NamedTuple):
    """Place of new meshes in an image."""

    edit: MetadataEdit
    """Edit that names them."""
    voxel_size_nm: Lengths | None
    """Edge lengths of a mag-1 voxel of the image [nm]."""
    is_for_webknossos: bool
    """Whether WEBKNOSSOS reads them, which needs shards, and scales of levels that are powers of
    two."""


class ArrayFormat(ABC):
    """Base class of a format; :mod:`wkwdask.formats.registry` lists one instance of each.

    Defaults are those of a read-only format: it must define ``name``, :meth:`recognise` and
    :meth:`find`. A format that writes also defines :meth:`target`, ``options`` and ``edits``.
    ``tests/support/toy_format.py`` is a complete example.
    """

    name: ClassVar[str]
    """Name of the format, and prefix of its URLs (``NAME://``)."""
    url_name: ClassVar[UrlName] = UrlName((), ())
    """Prefixes and suffixes by which a URL names the format."""
    documents: ClassVar[tuple[str, ...]] = ()
    """Files that identify the format in a folder on a web server; one of them suffices."""
    documents_above: ClassVar[int] = 0
    """Number of folders above an image whose documents describe it, too."""
    edits: ClassVar[tuple[type[MetadataEdit], ...]] = ()
    """Metadata edits that jobs of the format use."""
    options: ClassVar[type[StorageOptions]] = StorageOptions
    """Storage options of new arrays."""
    container: ClassVar[Container] = ImageFolder()
    """Container of the images of the format; images that are found have it, or another one."""
    copies: ClassVar[Copies] = Copies()
    """Contents of a copy of a path or URL."""
    level_folders: ClassVar[LevelFolders] = LevelFolders()
    """Rules for the folders of levels."""

    @abstractmethod
    def recognise(self, path: str) -> bool:
        """Return whether a local folder is of the format, by checking for a few files."""

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

    def documents_in(self, folder: str) -> Sequence[str]:
        """Return the names of the documents, existing or missing, that describe an image in a local
        folder."""
        del folder
        return tuple(dict.fromkeys((*self.documents, *self.container.image_files)))

    @abstractmethod
    def find(self, url: Url) -> ResolvedUrl:
        """Resolve a path or URL to images; raises FormatError or MissingError."""

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

    def open_listed(self, folder: str, axes: ChooseAxes) -> StoredArray:
        """Open an array of a layer that a dataset lists; ``axes`` returns a letter for each axis
        from the shape and the names of the axes, which may be empty."""
        del axes
        return self.find(folder).open(None, None)[1]

    def layer_levels(
        self,
        layer: Image,
        data_format: str,
        folders: Sequence[str],
        specs: Sequence[LevelSpec],
        options: Any,
        like: Volume | None,
        existing: str,
    ) -> NewLevels:
        """Lay out levels of a layer that a dataset stores in this format, which it names
        ``data_format``; the edit is that of documents beside the levels. The format may choose
        other folders than the given ones."""
        del folders, specs, options, like, existing
        raise UnsupportedError(
            f"{layer.folder}: layer {layer.name} is stored as {data_format}, in which mags of "
            "layers are not written; convert() stores it as WKW"
        )

    def in_place_target(self, volume: StoredArray, write: InPlaceWrite) -> TargetArray:
        """Return an existing level as an array that is written in place."""
        self.check_writable(volume.name)
        return in_place_target(volume, write)

    def summarize(self, url: Url) -> Summary:
        """Return a summary of a path or URL, for ``wkwdask info``."""
        from wkwdask.model.summary import summarize_arrays

        return summarize_arrays(url, self.find(url).layers)

    # --------------------------------------------------------------------------------------------
    # checking

    def inspect(self, url: Url, layers: Sequence[str] | None, mags: Sequence[Mag] | None) -> Scope:
        """Return the scope of verify, without reading a chunk."""
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

    def level_scopes(
        self, image: Image, level: Level, method: str | None, faults: list[Fault]
    ) -> Sequence[LevelScope]:
        """Return the scopes of verify for a level of an image, or of a layer that a dataset lists;
        none, with a fault, if the level cannot be opened."""
        document = self.level_folders.record_of(level.folder)
        scope = array_scope(image, level, method, document, faults)
        return () if scope is None else (scope,)

    def mesh_place(self, folder: str, *, replaces: bool, has_properties: bool) -> MeshPlace | None:
        """Return the place of new meshes, with properties of segments or not, in the folder of an
        image; None if no image of the format is above it. Raises an error if the image has no
        labels."""
        del folder, replaces, has_properties
        return None

    def mesh_folders(self, image: Image) -> Sequence[str]:
        """Return the folders of meshes of an image in several levels of detail that a document
        names."""
        del image
        return ()

    def mesh_scope(
        self, folder: str, document: str, layer: str
    ) -> tuple[Sequence[FilesScope], list[Fault]]:
        """Return the scope of verify for meshes that a document names, and faults of their
        folder; only Neuroglancer's format has meshes."""
        del folder, document, layer
        return (), []

    def mesh_notes(self, folder: str) -> Iterable[str]:
        """Return notes of ``info`` on meshes that a document names."""
        del folder
        return ()

    def other_folders(self, image: Image) -> Sequence[str]:
        """Return the folders beside the levels of an image that are removed with it, such as that
        of its meshes."""
        del image
        return ()

    def document_faults(self, folder: str) -> Iterable[Fault]:
        """Return the faults of the documents in the folder of an image or group that do not keep
        its levels from being opened."""
        del folder
        return ()

    def viewer_files(
        self, image: Image, volumes: Sequence[StoredArray], *, is_rgb: bool
    ) -> ViewerFiles | None:
        """Return how Neuroglancer reads the stored files of an image and its levels, None if it
        cannot."""
        del image, volumes, is_rgb
        return None
