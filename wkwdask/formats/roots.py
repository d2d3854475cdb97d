"""Roots of images: the folder that names in documents, and links, must not leave when files are
written, deleted or served.

A document of somebody else can name any folder, and so can a link. Reading follows both. Everything
that changes files asks the root first. The root itself, which the user named, may be a link. Above
it can be other folders of its container, whose documents describe it too: the OME-Zarr image of
labels, the groups of N5. Links between the container and the root must not lead out of the
container.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wkwdask.errors import UnsupportedError
from wkwdask.store.paths import dirname, is_below, is_remote, join, stated_path
from wkwdask.store.store import folders_of, store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wkwdask.model.image import Image, Level

_READ_ONLY = (
    "and is read-only through it; allow_external=True writes there, or name that folder directly"
)
DOCUMENTS = (
    "datasource-properties.json",
    "header.wkw",
    "info",
    "provenance",
    "attributes.json",
    "zarr.json",
    ".zgroup",
    ".zattrs",
    ".zarray",
)
"""Names of all files that describe images and levels."""
OWN_COPY = "replace the link with a copy of that file"
OWN_COPY_OR_EXTERNAL = (
    f"{OWN_COPY}, or pass allow_external=True, which does so for documents that change"
)


@dataclass(frozen=True, slots=True)
class Root:
    """Folder that the files of an image must not leave, unless the user allows it."""

    folder: str | None
    """None for files without a document above them, which have no boundary."""
    document: str = ""
    """Document that names the levels, for errors."""
    allow_external: bool = False
    noun: str = "volume"
    around: str | None = None
    """Outermost folder of the container of the root, None if that is the root."""

    def outside(self, path: str) -> str | None:
        """Return the real path of a file or folder outside of the root, or behind a link out of its
        container; None if it is inside."""
        return None if self.folder is None else external_location(self.boundary(path), path)

    def boundary(self, path: str) -> str:
        """Return the folder that a path must not leave: the root, or its container for paths that
        leave only that."""
        folder = str(self.folder)
        if (
            self.around is None
            or not is_below(path, self.around)
            or external_location(folder, path) is not None
        ):
            return folder
        return self.around

    @property
    def container(self) -> Root:
        """The container as a root, or this root if it has none around it."""
        return self if self.around is None else replace(self, folder=self.around, around=None)

    def check(self, path: str, stated: str | None = None, advice: str = _READ_ONLY) -> None:
        """Raise UnsupportedError for a path that leads outside, unless that is allowed; ``stated``
        is the name of the path in the document."""
        real = None if self.allow_external else self.outside(path)
        if real is not None:
            named = "" if stated is None else f" ({self.document} names it {stated!r})"
            raise UnsupportedError(
                f"{path}: lies outside the {self.noun} {self.boundary(path)}, at {real}{named}, "
                f"{advice}"
            )

    def linked_document(self, folder: str) -> str | None:
        """Return the first document in a folder, or above it inside the container, that is a link
        out of the root; None if there is none."""
        if self.folder is None or is_remote(folder):
            return None
        outermost = str(self.container.folder)
        names = (
            folder[len(outermost) :].strip("/").split("/") if is_below(folder, outermost) else []
        )
        above = list(itertools.accumulate(filter(None, names), join, initial=outermost))
        paths = (f"{each}/{name}" for each in dict.fromkeys((*above, folder)) for name in DOCUMENTS)
        return next(
            (
                path
                for path in paths
                if store_at(path).link_target()
                and self._of_document(path).outside(path) is not None
            ),
            None,
        )

    def _of_document(self, path: str) -> Root:
        """Return the root that a document must not leave: the container for one above the root."""
        return self if is_below(path, str(self.folder)) else self.container

    def check_documents(self, folder: str, advice: str = OWN_COPY_OR_EXTERNAL) -> None:
        """Raise UnsupportedError if a document in a folder, or above it inside the root, is a link
        out of the root, unless that is allowed."""
        path = None if self.allow_external else self.linked_document(folder)
        if path is not None:
            raise UnsupportedError(f"{path}: {self.describe_document(path)}; {advice}")

    def describe_document(self, path: str) -> str:
        """Describe a document that is a link out of the root, for errors."""
        return (
            f"this link leads out of the {self.noun} {self._of_document(path).boundary(path)}, to "
            f"{store_at(path).real()}, which describes other files"
        )

    def real(self, path: str) -> str:
        """Return the folder in which files of a level are changed: the target of links that lead
        outside, or else the folder itself."""
        return self.outside(path) or path

    def level_folder(self, name: str, others: Iterable[str] = ()) -> str:
        """Return the folder of a level that is written whole under a name; raises UnsupportedError
        if it leads outside, or overlaps others that are named."""
        path = stated_path(str(self.folder), name)
        if path == self.folder:
            raise UnsupportedError(
                f"{self.document}: names the level {name!r}, which is the folder of the "
                f"{self.noun} itself and is not replaced"
            )
        self.check(path, name)
        self.check_documents(path)
        real = store_at(path).real()
        for other in others:
            folder = store_at(stated_path(str(self.folder), other)).real()
            if is_below(folder, real) or is_below(real, folder):
                raise UnsupportedError(
                    f"{path}: the level {other!r} in {self.document} is in the same folder, inside "
                    "of it or around it; rename one of them"
                )
        return self.real(path)

    def work_folder(self, image_folder: str, folders: Iterable[str]) -> str:
        """Return the folder in which a job on some levels works: on the same disk, so that finished
        levels can be renamed into their places."""
        folders = list(folders)
        if all(self.outside(folder) is None for folder in folders):
            return image_folder
        parents = list(dict.fromkeys(dirname(folder) for folder in folders))
        disks = {
            folders_of(parent).stat(parent).st_dev
            for parent in parents
            if store_at(parent).is_folder()
        }
        if len(disks) > 1:
            raise UnsupportedError(
                f"{image_folder}: its mags are on several disks, in {', '.join(parents)}; select "
                "those of one disk with mags="
            )
        return parents[0]

    def check_links(self, level_folder: str, names: Iterable[str] | None = None) -> None:
        """Raise UnsupportedError if folders of a level, or those of some file names in it, are
        links that lead outside."""
        if self.folder is None or self.allow_external:
            return
        inside = _folders_below(level_folder, set()) if names is None else _folders_of(names)
        for folder in inside:
            path = f"{level_folder}/{folder}" if names is not None else folder
            if store_at(path).link_target():
                self.check(path)


NO_ROOT = Root(None)
"""Root of files without a document above them."""


def _folders_of(names: Iterable[str]) -> Iterator[str]:
    """Yield the folders of some relative file names, each once, outer ones first."""
    seen: set[str] = set()
    for name in names:
        parts = name.split("/")
        for folder in itertools.islice(itertools.accumulate(parts, "{}/{}".format), len(parts) - 1):
            if folder not in seen:
                seen.add(folder)
                yield folder


def _folders_below(folder: str, seen: set[str]) -> Iterator[str]:
    """Yield the folders below a folder, through links too."""
    for above, names, _ in store_at(folder).walk():
        for path in (f"{above}/{name}" for name in names):
            yield path
            if store_at(path).link_target() and (real := store_at(path).real()) not in seen:
                seen.add(real)
                yield from _folders_below(path, seen)


def root_of(image: Image) -> Root:
    """Return the root of an image: its dataset, or the folder that the user named."""
    container = image.container
    folder = (image.root or image.folder) if container is None else container.root_of(image)
    root = Root(
        folder, image.document, image.allow_external, "dataset" if image.is_layer else "volume"
    )
    if container is None or image.is_layer or folder is None or is_remote(folder):
        return root
    around = container.outermost(image.folder)
    return replace(root, around=around) if is_below(folder, around) and around != folder else root


def check_links_to(
    folder: str, outermost: str, allow_external: bool, document: str = "", stated: str | None = None
) -> None:
    """Raise UnsupportedError if a folder lies behind a link out of the outermost folder of its
    container, or a document on the way is one."""
    root = Root(outermost, document, allow_external)
    root.check(folder, stated)
    root.check_documents(folder)


def checked_folder(image: Image, folder: str, advice: str = _READ_ONLY) -> str:
    """Return the folder in which files of a level are changed.

    Raises UnsupportedError if it, or a document that describes it, lies outside of the root and may
    belong to somebody else.
    """
    root = root_of(image)
    if root.outside(folder) is not None:
        root.check(
            folder,
            next((level.stated for level in image.levels if level.folder == folder), None),
            advice,
        )
    # a level alone has documents, too
    with_folder = (
        root if root.folder is not None else replace(root, folder=image.folder, noun="layer")
    )
    for each in (image.folder, folder):
        with_folder.check_documents(each)
    return root.real(folder)


def check_served(image: Image) -> None:
    """Raise UnsupportedError if a document names levels outside of the root, which are not served.
    Levels behind links are."""
    root = root_of(image)
    for level in () if image.is_layer else image.levels:
        if root.folder is not None and not is_below(level.folder, root.folder):
            root.check(
                level.folder,
                level.stated,
                "and is not served; allow_external=True serves it, or name that folder directly",
            )


def level_job_folders(image: Image, level: Level) -> tuple[str, str]:
    """Return the work folder of a job that changes an existing level, which is above a single
    array, and the folder of that level.

    Raises UnsupportedError for a level outside of the root of the image.
    """
    folder = checked_folder(image, level.folder)
    if image.folder == level.folder:
        return dirname(folder), folder
    return root_of(image).work_folder(image.folder, [folder]), folder


def check_alone(image: Image, folder: str, others: Iterable[Level], what: str) -> None:
    """Raise UnsupportedError if a folder that is removed or replaced contains another level, lies
    in one, or is that of the image itself."""
    real, root = store_at(folder).real(), root_of(image)
    for level in others:
        if is_remote(level.folder):
            continue
        other = store_at(level.folder).real()
        if is_below(other, real) or is_below(real, other):
            how = (
                "is also the folder of"
                if other == real
                else "contains"
                if is_below(other, real)
                else "lies in"
            )
            raise UnsupportedError(
                f"{folder}: {how} the level {level.stated or level.key!r} ({level.folder}) and is "
                f"not {what} without it"
            )
    if (
        image.key != ""
        and not image.is_layer
        and any(
            is_below(store_at(above).real(), real) for above in (image.folder, root.folder) if above
        )
    ):
        raise UnsupportedError(
            f"{folder}: contains the whole {root.noun} {root.folder} and is not {what}; correct "
            f"{image.document or root.folder}"
        )


def external_location(root: str, path: str) -> str | None:
    """Return the real path of a file or folder that lies outside of a root, else None."""
    if is_remote(path):
        return None if is_below(path, root) else path
    names = path.removeprefix(f"{root}/").split("/") if path.startswith(f"{root}/") else [".."]
    below = itertools.accumulate(names, join, initial=root)
    inside = itertools.islice(below, 1, None)
    if ".." not in names and not any(store_at(folder).link_target() for folder in inside):
        return None  # no link below the root: its own path need not be resolved
    real = store_at(path).real()
    return None if is_below(real, store_at(root).real()) else real
