"""Paths of local and memory files: ``/folder/file`` and ``memory://folder/file``, and what URLs of a format begin or end with. Nothing here looks at a file."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass

from wkwdask.errors import UnsupportedError

MEMORY = "memory://"
"""Prefix of paths in the memory of this process."""
_OTHER_FORMATS = ("n5://", "zarr://", "zarr2://", "zarr3://")


def is_memory(path: str) -> bool:
    """Check whether a path names a file in the memory of this process."""
    return path.startswith(MEMORY)


def is_remote(url: str) -> bool:
    """Check whether a path or URL is neither on a local or shared file system nor in memory."""
    return "://" in url and not url.startswith(("file://", MEMORY))


def local_path(url: str | os.PathLike[str]) -> str:
    """Turn what a user names into a path of a file system or of memory."""
    text = os.fspath(url)
    if not text:
        raise ValueError("a path is empty")  # it would mean the current folder
    if not is_valid_path(text):
        raise ValueError(f"{text!r}: not a valid path: it holds a NUL byte or half of a character")
    if text.startswith(_OTHER_FORMATS):
        raise UnsupportedError(f"{text}: this works on WKW; convert() (wkwdask convert) makes WKW of other formats")
    if is_remote(text):
        raise UnsupportedError(
            f"{text}: only local paths and file:// URLs can be opened without the format; of others name it: precomputed://{text}, zarr://{text} or n5://{text}"
        )
    if is_memory(text):
        return normpath(text)
    text = os.path.expanduser(text.removeprefix("file://"))
    path = os.path.abspath(text)
    if ".." in text.split("/"):
        real = os.path.realpath(text)
        return path if real == os.path.realpath(path) else real  # ".." behind a link is the folder above what the link leads to
    return path


def need_file_system(path: str, what: str) -> None:
    """Refuse a path in memory where other processes or libraries must open it."""
    if is_memory(path):
        raise UnsupportedError(f"{path}: {what} needs a path on a file system; {MEMORY} is the memory of one process")


def is_valid_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _cut(path: str) -> tuple[str, str]:
    """Split a path into the prefix of its file system and the path inside."""
    return (MEMORY, path[len(MEMORY) :]) if is_memory(path) else ("", path)


def _inside(path: str) -> str:
    """Return the absolute path inside its file system."""
    root, rest = _cut(path)
    return f"/{rest}" if root else os.path.abspath(path)


def split(path: str) -> tuple[str, str]:
    """Split a path into the folder and the name."""
    root, rest = _cut(path)
    folder, name = posixpath.split(rest)
    return root + folder, name


def dirname(path: str) -> str:
    """Return the folder of a path."""
    return split(path)[0]


def basename(path: str) -> str:
    """Return the last name of a path."""
    return posixpath.basename(_cut(path)[1])


def splitext(path: str) -> tuple[str, str]:
    """Split a path before its last extension."""
    return posixpath.splitext(path)


def join(path: str, name: str) -> str:
    """Join a folder and a path below it; an absolute path stays as it is."""
    return name if is_memory(name) else posixpath.join(path, name)


def normpath(path: str) -> str:
    """Remove empty names, ``.`` and ``..`` from a path."""
    root, rest = _cut(path)
    return root + posixpath.normpath(f"/{rest}").strip("/") if root else posixpath.normpath(path)


def abspath(path: str) -> str:
    """Return the normal absolute form of a path."""
    return normpath(path) if is_memory(path) else os.path.abspath(path)


def anchored(path: str) -> str:
    """Return the absolute form of a path or URL in which ``..`` stays, since it may stand behind a symbolic link."""
    return path if "://" in path else os.path.join(os.getcwd(), path)


def is_absolute(path: str) -> bool:
    """Check whether a path does not depend on the current folder."""
    return is_memory(path) or posixpath.isabs(path)


def relpath(path: str, start: str) -> str:
    """Return a path relative to a folder; the path itself where they are in different file systems."""
    return posixpath.relpath(_inside(path), _inside(start)) if is_memory(path) == is_memory(start) else path


def is_below(path: str, folder: str) -> bool:
    """Check whether a normal path is a folder or lies in it."""
    return path == folder or path.startswith(folder if folder.endswith("/") else f"{folder}/")


@dataclass(frozen=True, slots=True)
class UrlName:
    """How URLs of one format look."""

    prefixes: tuple[str, ...]
    """What they may begin with."""
    endings: tuple[str, ...]
    """What may stand behind their last ``|``, with a colon or without."""

    def is_in(self, url: object) -> bool:
        """Tell whether a URL says itself that it is one of the format."""
        if not isinstance(url, (str, os.PathLike)):
            return False
        text = os.fspath(url)
        return text.startswith(self.prefixes) or self._is_ending(text)

    def stripped(self, url: str | os.PathLike[str]) -> str:
        """Take off what says so.

        Examples
        --------
        >>> name = UrlName(("n5://",), ("n5",))
        >>> name.stripped("n5://https://host/em.n5/"), name.stripped("gs://bucket/em.n5/|n5:"), name.is_in("n5")
        ('https://host/em.n5', 'gs://bucket/em.n5', False)
        """
        text = os.fspath(url)
        for prefix in self.prefixes:
            text = text.removeprefix(prefix)
        if self._is_ending(text):
            text = text.rpartition("|")[0]
        return text.rstrip("/") or text

    def location(self, url: str | os.PathLike[str]) -> str:
        """Give the path or URL of the folder that a user names."""
        text = self.stripped(url)
        return text if is_remote(text) else local_path(text)

    def _is_ending(self, text: str) -> bool:
        _, bar, ending = text.rpartition("|")
        return bool(bar) and ending.removesuffix(":") in self.endings
