"""Images in folders: the container of most formats, whose documents lie beside the levels."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from wkwdask.errors import UnsupportedError
from wkwdask.formats.level_folders import LevelFolders
from wkwdask.formats.roots import checked_folder
from wkwdask.model.stored_array import StoredArray
from wkwdask.store.documents import remove_document
from wkwdask.store.paths import dirname, is_bucket, os_error
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.formats.edits import LevelRemoval
    from wkwdask.model.image import Container, Image, Level
    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.volume import Volume


_NO_FOLDERS = LevelFolders()


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """Folder with the levels of one image and its documents; a :class:`Container`."""

    holds_layers: ClassVar[bool] = False
    level_folders: LevelFolders = _NO_FOLDERS
    image_files: tuple[str, ...] = ()
    removal: type[LevelRemoval] | None = None
    """Edit that removes levels from the documents of an image, None if no document lists them."""

    def lists(self, path: str) -> bool:
        del path
        return False

    def outermost(self, folder: str) -> str:
        return folder

    def around(self, folder: str) -> str | None:
        del folder
        return None

    def root_of(self, image: Image) -> str | None:
        return image.root or image.folder

    def readable(self, image: Image) -> Image:
        return image

    def with_all_files(self, volume: StoredArray) -> StoredArray:
        return volume

    def partial_write_edit(self, image: Image) -> MetadataEdit | None:
        del image
        return None

    def why_not_removable(self, image: Image) -> str:
        del image
        return ""

    def check_removable(self, image: Image, folder: str) -> str:
        return check_level_alone(
            image, folder, self.level_folders, "correct the document to keep its files"
        )

    def removal_edit(self, image: Image, levels: Sequence[Level]) -> MetadataEdit | None:
        keys = tuple(level.key for level in levels if level.key)
        return None if self.removal is None or not keys else self.removal(image.folder, keys)

    def remove_image_files(self, folder: str) -> None:
        if is_bucket(folder):  # where nothing is deleted on condition; it lists no level any more
            return
        for name in self.image_files if is_bare(folder, self.image_files) else ():
            remove_document(
                store_at(folder),
                name,
                lambda: is_bare(folder, self.image_files),
                f"removal of {folder}/{name}",
            )


def container_of(image: Image) -> Container:
    """Return the container of an image of a format that can be written."""
    assert image.container is not None
    return image.container


def patterns(image: Image, like: Volume | None) -> Iterator[StoredArray]:
    """Yield the arrays that new levels may be stored like: a given one, then those of the image
    from the finest."""
    if isinstance(like, StoredArray):
        yield like
    yield from (level.open() for level in image.levels if not level.problem)


def check_level_alone(
    image: Image, folder: str, level_folders: LevelFolders, unlisting: str
) -> str:
    """Raise an error unless a folder contains one level of the image and nothing else; returns the
    folder to remove, with links resolved. ``unlisting`` is what removes a level from the document
    alone."""
    folder = checked_folder(
        image,
        folder,
        (f"and may belong to somebody else; {unlisting}, allow_external=True deletes them there"),
    )
    above = dirname(folder)
    if store_at(above).is_folder() and not store_at(above).is_writable():
        raise os_error(errno.EACCES, above)
    for path in (above, folder):
        if store_at(path).link_target():
            raise UnsupportedError(
                f"{path}: is a symbolic link; remove the link itself or its target"
            )
    if store_at(folder).is_taken() and not (
        store_at(folder).is_folder() and level_folders.is_level(folder)
    ):
        raise UnsupportedError(
            f"{folder}: {level_folders.why_not_level(folder)} and is not removed"
        )
    return folder


def check_same_mags(layer: Image, image: Image) -> None:
    """Raise UnsupportedError if the documents of an image state another mag for a level than the
    dataset that lists it as a layer."""
    stated = {level.folder: level.mag for level in layer.levels}
    for level in image.levels:
        mag = stated.get(level.folder)
        if mag is not None and level.mag is not None and mag != level.mag:
            raise UnsupportedError(
                f"{level.folder}: is mag {mag} of layer {layer.name}, but mag {level.mag} by the "
                f"metadata of {image.folder}; correct one of them"
            )


def is_bare(folder: str, documents: Sequence[str]) -> bool:
    """Return whether a folder contains nothing but some documents and leftovers of jobs."""
    return store_at(folder).is_folder() and all(
        name in documents or name.startswith(".") for name in store_at(folder).names()
    )
