"""What a format is to the rest of the package: how it is recognised, what images it holds, and which of its folders a job may replace."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from wkwdask.errors import UnsupportedError
from wkwdask.formats.inspection import inspect_arrays
from wkwdask.formats.repair import DocumentRepair
from wkwdask.model.options import StorageOptions
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.target_array import InPlace, in_place_target
from wkwdask.model.target_image import Destination, LevelCopy
from wkwdask.model.voxel_type import holds_ids
from wkwdask.store import files
from wkwdask.store.locks import locked_file
from wkwdask.store.paths import UrlName, dirname, is_remote, local_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wkwdask.formats.inspection import Scope
    from wkwdask.formats.repair import RepairOptions
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.faults import Findings
    from wkwdask.model.image import Image, Level, ResolvedUrl
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.target_array import TargetArray
    from wkwdask.model.target_image import TargetImage
    from wkwdask.model.volume import Volume
    from wkwdask.store.locks import ShardBox

    Url = str | os.PathLike[str]

# our records and temporary files, what NFS keeps of files that were removed while open, and what desktops strew
IGNORED_NAMES = re.compile(r"\.wkwdask.*|\..*\.wkwdask-tmp|\.nfs.*|\.DS_Store|\._.*|Thumbs\.db")


class MetadataEdit(Protocol):
    """A change of metadata, small and picklable; a publish record keeps it, so that whoever finishes a dead job can make it."""

    kind: ClassVar[str]
    """What a record calls this kind of edit."""
    folder_names: ClassVar[tuple[str, ...]]
    """Values of :meth:`to_json` that are folders."""

    def folders(self) -> dict[str, str]:
        """Give the folders by the names of their values."""
        return {name: folder for name in self.folder_names if (folder := getattr(self, name)) is not None}

    def check_writable(self) -> None:
        """Make sure, before any work, that the metadata can be changed after it; raises PermissionError."""
        for folder in self.folders().values():
            if files.isdir(folder) and not files.is_writable(folder):
                raise PermissionError(errno.EACCES, "the image's metadata could not be updated", folder)

    def check_current(self) -> None:
        """Make sure, before what was built appears, that nobody changed meanwhile what it counts on; raises ValueError."""
        return

    def apply(self) -> None:
        """Make the change; making it again changes nothing."""

    def with_maxima(self, maxima: tuple[int | None, ...], *, is_new_content: bool) -> MetadataEdit:
        """Return the edit that also states the largest id of each level, where the metadata has a place for it."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Give what a record keeps: all values, and ``kind``; here where JSON keeps them as they are."""
        return {"kind": self.kind, **{each.name: getattr(self, each.name) for each in fields(self)}}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read what a record keeps."""
        return cls(**{name: one for name, one in value.items() if name != "kind"})


@dataclass(frozen=True, slots=True)
class LevelRemoval(MetadataEdit):
    """Levels that the documents of an image are to forget."""

    folder_names: ClassVar[tuple[str, ...]] = ("folder",)
    """Values of :meth:`to_json` that are folders."""
    folder: str
    """The image."""
    keys: Sequence[str]
    """The levels."""

    def check_writable(self) -> None:
        """Make sure that the documents can be changed."""
        if files.isdir(self.folder) and not files.is_writable(self.folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.folder)


class Summary(Protocol):
    """What ``wkwdask info`` shows."""

    def to_json(self) -> dict[str, Any]:
        """Give plain values for ``json.dumps``."""


class ArrayFormat:
    """A format; :mod:`wkwdask.formats.registry` lists an instance of each. What a format does not define holds for one that is only read."""

    name: ClassVar[str]
    """Its name, which is also the prefix of its URLs: ``NAME://``."""
    data_format: ClassVar[str] = ""
    """What WEBKNOSSOS calls it, where that is another name."""
    url_name: ClassVar[UrlName] = UrlName((), ())
    """How URLs say that they are of the format."""
    documents: ClassVar[tuple[str, ...]] = ()
    """Files by any of which a folder on a web server is known to be of the format."""
    edits: ClassVar[tuple[type[MetadataEdit], ...]] = ()
    """The changes of its metadata that jobs make."""
    removal: ClassVar[type[LevelRemoval] | None] = None
    """The change by which the documents of an image forget levels, None where they list none."""
    image_files: ClassVar[tuple[str, ...]] = ()
    """Files beside the levels of an image that describe it; they go with its last level."""
    has_chunk_sizes: ClassVar[bool] = False
    """Whether a level can be stored in several chunk sizes, among which a reader chooses."""
    options: ClassVar[type[StorageOptions]] = StorageOptions
    """What it can be told when an array is stored in it."""
    has_plain_arrays: ClassVar[bool] = False
    """Whether it is also a format of arrays that have no place, as those in HDF5 files."""
    level_record: ClassVar[str] = ""
    """The file that describes a level, where each has one."""
    level_entries: ClassVar[str] = ""
    """Names of the other files and folders in a level, as a regular expression."""
    ending: ClassVar[str] = ""
    """How names of its folders end, where nothing else may be written to a folder of such a name."""
    unsupported_options: ClassVar[tuple[str, ...]] = ()
    """What cannot be asked of a conversion into it: ``category``, ``pyramid``."""

    def recognise(self, path: str) -> bool:
        """Tell whether a local folder is of the format, by looking for few files."""
        raise NotImplementedError

    def guess(self, url: object) -> bool:
        """Tell whether a path or URL is of the format, where other software is asked, too."""
        if self.url_name.is_in(url):
            return True
        if not isinstance(url, (str, os.PathLike)) or not os.fspath(url) or is_remote(os.fspath(url)):
            return False
        return self.recognise(local_path(url))

    def claims(self, path: str) -> bool:
        """Tell whether a local folder that another format recognises belongs to an image of this one."""
        return False

    def find(self, url: Url, chunk_size: Sequence[int] | None = None) -> ResolvedUrl:
        """Find the images that a path or URL can mean; raises FormatError or MissingError."""
        raise NotImplementedError

    def names_target(self, url: object) -> bool:
        """Tell whether what is to be written is named as of the format."""
        return self.url_name.is_in(url)

    def place(self, wanted: Destination) -> TargetImage:
        """Find out what is where a user wants levels; raises ExistsError, FormatError or MissingError."""
        raise UnsupportedError(f"{wanted.url}: {self.name} is not written")

    def target_in(self, image: Image, *, allow_external: bool) -> TargetImage:
        """Give the place where levels of an image that is there are made from one of its levels."""
        raise UnsupportedError(f"{image.folder}: levels of {self.options.title} are not made from each other yet; convert() it to WKW or precomputed")

    def moves(
        self, url: Url, target: Url | None, layers: Sequence[str] | None, levels: Sequence[Mag | str] | None, *, allow_external: bool = False
    ) -> list[LevelCopy]:
        """List the levels that a user means, and where they are stored anew: in an image of the same format, by default in their place."""
        del allow_external
        found = self.find(url)
        image = found.choose(None if layers is None else layers[0])
        chosen = image.selected if levels is None else tuple(map(image.find, levels))
        if levels is None:
            for level in image.levels:
                if level.problem:
                    level.open()  # says it
        folder = None if target is None else files.realpath(self.url_name.location(target))
        if folder is None or folder == files.realpath(image.folder):
            return [LevelCopy(image, level) for level in chosen]
        together = tuple(level.mag for level in chosen if level.mag is not None)
        wanted = Destination(
            f"{self.name}://{folder}", all_mags=together, category=image.category, source_voxel_size_nm=image.voxel_size_nm, names_image=True
        )  # fmt: skip
        return [LevelCopy(image, level, replace(wanted, mag=level.mag)) for level in chosen]

    def layers_to_copy(self, url: Url) -> list[str] | None:
        """Name the layers that a copy takes where none are named; None for all."""
        del url
        return None

    def copy_warnings(self, url: Url, moves: Sequence[LevelCopy], layers: Sequence[str] | None) -> list[str]:
        """Say what a copy leaves behind, and what else a user should know of it."""
        del url, moves, layers
        return []

    def prepare_copy(self, url: Url, target: Url | None) -> None:
        """Make what levels of a copy are put into, where they cannot do so themselves."""

    def job_folders(self, image: Image, level: Level) -> tuple[str, str]:
        """Give the folder in which a job on a level that is there works, and the level's own."""
        return image.folder, level.folder

    def work_folder(self, image: Image, folders: Sequence[str]) -> str:
        """Give the folder in which a job on some levels works, from which files can be moved to them."""
        del folders
        return image.folder

    def in_place_target(self, volume: StoredArray, how: InPlace) -> TargetArray:
        """Give a level that is there as what is written in its place."""
        return in_place_target(volume, how)

    def check_links(self, image: Image, folder: str, shards: ShardBox | None = None) -> None:
        """Refuse to change files of a level, all or some shards, where links in it lead to files of somebody else."""

    def partial_write_edit(self, image: Image) -> MetadataEdit | None:
        """Give what changes in the documents of an image when a part of a level is written, by :meth:`MetadataEdit.with_maxima`."""
        return None

    def with_all_files(self, volume: StoredArray) -> StoredArray:
        """Give a level with all that its files hold, which may be more than its image shows."""
        return volume

    def is_uniform(self, volume: StoredArray) -> bool:
        """Tell whether all files of a level are stored as it says; those of other software need not be."""
        del volume
        return True

    def is_image(self, url: Url) -> bool:
        """Tell whether what a path holds says that it is an image, and along which axes its arrays lie."""
        return True

    def is_placed(self, url: Url) -> bool:
        """Tell whether the arrays at a path have a place and are levels of an image."""
        return True

    def summarize(self, url: Url) -> Summary:
        """Summarise what a path or URL holds."""
        from wkwdask.model.summary import summarize_arrays

        return summarize_arrays(url, self.find(url).layers)

    def source_of(self, image: Image) -> str:
        """Give the URL by which an image opens again."""
        return f"{self.name}://{image.folder}"

    def category_of(self, image: Image, volume: Volume) -> str | None:
        """Give what an image is; where it does not say so, it is guessed of one of its levels."""
        return image.category or ("segmentation" if holds_ids(volume.dtype, volume.num_channels) else "color")

    def default_method(self, category: str) -> str:
        """Choose how a window becomes a voxel, by what users of the format are used to."""
        return {"color": "median", "segmentation": "mode"}[category]

    def is_level_folder(self, folder: str) -> bool:
        """Tell whether a folder is a level and nothing else, so that a job may replace it: its record, files of chunks, and what software leaves anywhere."""
        if self.record_of(folder) is None:
            return False
        with files.scandir(folder) as entries:
            names = (entry.name for entry in entries if entry.name != self.level_record)
            return all(re.fullmatch(self.level_entries, name) or IGNORED_NAMES.fullmatch(name) for name in names)

    def record_of(self, folder: str) -> str | None:
        """Name the file that says that a folder is a level, None where it is none; its mode stands for those of all."""
        path = f"{folder}/{self.level_record}"
        return path if self.level_record and files.isfile(path) else None

    def why_not_replaceable(self, folder: str) -> str:
        """Say what else a folder holds than one level, and what to do."""
        return f"holds something else than one array of {self.name}, and is not replaced; move it away"

    def container_around(self, folder: str) -> str | None:
        """Name the dataset or container that a folder belongs to, None where nothing says that there is one."""
        return None

    # -------------------------------------------------------------------------------------------- checking

    def inspect(self, url: Url, layers: Sequence[str] | None, mags: Sequence[Mag] | None, *, pyramid: bool) -> Scope:
        """Find out what is to be checked, without reading a chunk; ``pyramid`` tells that coarser levels are to be compared with finer ones."""
        del pyramid
        found = self.find(url)
        if layers is not None:
            found = replace(found, layers=tuple(map(found.pick, layers)))
        return inspect_arrays(found, mags, self.default_method, (*self.image_files, *self.documents), self.record_of)

    def document_repair(self, scope: Scope, found: Mapping[str, Findings], options: RepairOptions) -> DocumentRepair:
        """Give what mends the documents of what was checked, given what the files of levels, by their keys, were found to hold."""
        del scope, found, options
        return DocumentRepair()

    # -------------------------------------------------------------------------------------------- removing

    def find_removable(self, url: Url, *, allow_external: bool) -> ResolvedUrl:
        """Find the images whose levels can be removed; raises FormatError or MissingError."""
        del allow_external
        return self.find(url)

    def why_not_removable(self, image: Image) -> str:
        """Say why no level of an image is removed, an empty text where they are."""
        del image
        return ""

    def check_removable(self, image: Image, folder: str) -> str:
        """Make sure that a folder is a level of an image and nothing else, and may be removed; gives the folder that is removed in its place."""
        del image
        above = dirname(folder)
        if files.isdir(above) and not files.is_writable(above):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), above)
        for path in (above, folder):
            if files.islink(path):
                raise UnsupportedError(f"{path}: is a symbolic link; remove the link itself, or what it points to")
        if files.lexists(folder) and not (files.isdir(folder) and self.is_level_folder(folder)):
            raise UnsupportedError(f"{folder}: {self.why_not_level(folder)}, and is not removed")
        return folder

    def why_not_level(self, folder: str) -> str:
        """Say that a folder is not a level alone."""
        del folder
        return "is not a level of an image, or holds other files too"

    def removal_of(self, image: Image, levels: Sequence[Level]) -> MetadataEdit | None:
        """Give the change by which documents forget levels, None where none lists them."""
        keys = tuple(level.key for level in levels if level.key)
        return None if self.removal is None or not keys else self.removal(image.folder, keys)

    def clear(self, folder: str) -> None:
        """Remove the files that describe an image without levels, if nothing else is in its folder."""
        for name in self.image_files if self.is_bare(folder) else ():
            path = f"{folder}/{name}"
            if files.lexists(path):
                with locked_file(files.realpath(path), f"removal of {path}"):
                    if self.is_bare(folder):
                        files.unlink(path)

    def is_bare(self, folder: str) -> bool:
        """Tell whether nothing is in a folder but what describes an image, and what jobs left."""
        return files.isdir(folder) and all(name in self.image_files or name.startswith(".") for name in files.listdir(folder))
