"""Paths of files on disk (``/folder/file``), in buckets (``s3://bucket/name``) and in zips
(``/folder/em.ozx|zip:/0/zarr.json``), and URL prefixes.

Opens no file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = "memory://"
"""Prefix of the buckets in the memory of this process."""
TEMPORARY_SUFFIX = ".wkwdask-tmp"
"""End of the names of files that are not published yet."""
CLOCK_PREFIX, PROBE_PREFIX = ".wkwdask-clock-", ".wkwdask-probe-"
"""Names of objects by which processes ask a bucket for its time, and whether it honours
conditions."""
ZIP = "|zip:"
"""Separator between the path or URL of a zip and a path in it (Neuroglancer, "Data sources", "URL
syntax")."""
_ZIP_SUFFIXES = (".ozx", ".zip")
_BUCKETS = (
    "s3://",
    "s3a://",
    "gs://",
    "gcs://",
    "az://",
    "abfs://",
    "abfss://",
    MEMORY,
)
_SERVERS = ("http://", "https://", *_BUCKETS)
_OTHER_FORMATS = ("n5://", "zarr://", "zarr2://", "zarr3://")
TRANSIENT_CODES = (
    errno.ESTALE,
    errno.EIO,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EBUSY,
    errno.EINTR,
    errno.ENOLCK,
    errno.ENOTCONN,
    errno.ESHUTDOWN,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.ECONNABORTED,
    errno.EPIPE,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENETRESET,
)
"""Codes of errors of a disk or server that may answer later: they say nothing of what is there."""


def is_zipped(path: str) -> bool:
    """Check whether a path or URL is a zip as a folder, or is in one.

    Examples
    --------
    >>> is_zipped("em.ozx"), is_zipped("https://host/em.zip|zip:em"), is_zipped("em.zarr")
    (True, True, False)
    """
    return ZIP in path or path.lower().endswith(_ZIP_SUFFIXES)


def is_on_disk(path: str) -> bool:
    """Check whether a normal path is one of the operating system."""
    return "://" not in path and ZIP not in path


def is_remote(url: str) -> bool:
    """Check whether a path or URL is neither on a mounted file system nor in a zip."""
    return (
        "://" in url and not url.startswith("file://") and not (is_zipped(url) and is_served(url))
    )


def is_served(url: str) -> bool:
    """Check whether a URL, or the zip that contains it, is on a server; URLs with the prefix of a
    format are not."""
    return url.startswith(_SERVERS)


def is_bucket(url: str) -> bool:
    """Check whether a URL is in a bucket, where files are written without folders."""
    return url.startswith(_BUCKETS) and not is_zipped(url)


def check_has_no_password(url: str) -> None:
    """Raise UnsupportedError for a URL with a password, without repeating it.

    Examples
    --------
    >>> check_has_no_password("https://reader:secret@host/ds")
    Traceback (most recent call last):
    wkwdask.errors.UnsupportedError: https://host/ds: the URL contains a password, which errors, pickles and records of jobs would show; remove it
    """  # noqa: E501
    protocol, _, rest = url.partition("://")
    server, slash, path = rest.partition("/")
    user, at, host = server.rpartition("@")
    if at and ":" in user:
        raise UnsupportedError(
            f"{protocol}://{host}{slash}{path}: the URL contains a password, which errors, pickles "
            "and records of jobs would show; remove it"
        )


def local_path(url: str | os.PathLike[str]) -> str:
    """Return the normal path of a local, memory or zipped file that a user names; a zip is the
    folder of its files."""
    path = _file_path(os.fspath(url))
    is_zip = path.lower().endswith(_ZIP_SUFFIXES) and not (is_on_disk(path) and os.path.isdir(path))
    return f"{path}{ZIP}" if is_zip else path


def _file_path(text: str) -> str:
    """Return the normal path of a file or folder; a zip is a file."""
    archive, bar, inside = text.rpartition(ZIP)
    if bar:
        return normpath(
            f"{archive if is_served(archive) and ZIP not in archive else _file_path(archive)}{ZIP}{inside}"  # noqa: E501
        )
    if not text:
        raise ValueError("empty path")  # os.path.abspath would turn it into the current folder
    if not is_valid_path(text):
        raise ValueError(f"{text!r}: not a valid path: it contains a NUL byte or a lone surrogate")
    if text.startswith(_OTHER_FORMATS):
        raise UnsupportedError(
            f"{text}: only WKW is supported here; convert() (wkwdask convert) converts other "
            "formats to WKW"
        )
    if is_served(text) and is_zipped(text):
        return text
    check_no_bucket(text)
    if is_remote(text):
        raise UnsupportedError(
            f"{text}: a local path is needed here, or a bucket (s3://, gs://, az://) to write to: "
            "other remote locations are read-only, and only volumes are read from them"
        )
    text = os.path.expanduser(text.removeprefix("file://"))
    path = os.path.abspath(text)
    if ".." in text.split("/"):
        real = os.path.realpath(text)
        # "link/.." is the parent of the link's target for the system, but the parent of the link
        # for abspath.
        return path if real == os.path.realpath(path) else real
    return path


def check_no_bucket(url: str) -> None:
    """Raise UnsupportedError for a URL in a bucket, where only levels are written that a document
    names."""
    if is_bucket(url):
        raise UnsupportedError(
            f"{url}: this needs a folder on a file system; what is written to buckets are levels "
            "of images"
        )


def target_path(url: str | os.PathLike[str]) -> str:
    """Return the normal path of a folder to write, or its URL in a bucket."""
    text = os.fspath(url)
    return normpath(text) if is_bucket(text) else local_path(text)


def any_path(url: str | os.PathLike[str]) -> str:
    """Return the normal path of a file that a user names, or its URL if it is remote."""
    text = os.fspath(url)
    return (
        normpath(text)
        if is_remote(text) and not text.startswith(_OTHER_FORMATS)
        else local_path(text)
    )


def stated_path(folder: str, name: str) -> str:
    """Return the normal path or URL that a document in a folder names, relative to the folder or
    absolute; it may lie anywhere.

    Examples
    --------
    >>> (
    ...     stated_path("/data/em", "./8_8_8/"),
    ...     stated_path("/data/em", "../other/8_8_8"),
    ...     stated_path("https://host/em", "/8_8_8"),
    ... )
    ('/data/em/8_8_8', '/data/other/8_8_8', '/8_8_8')
    """
    if is_absolute(name):
        return normpath(name) if is_remote(name) else local_path(name)
    path = f"{folder.rstrip('/')}/{name}" if name else folder
    if not {"", ".", ".."}.intersection(name.split("/")):
        return path
    return normpath(path) if is_remote(path) else _file_path(path)


def need_file_system(path: str, what: str) -> None:
    """Raise UnsupportedError for a path in memory or in a zip where other processes or libraries
    open the file."""
    if ZIP in path:
        raise UnsupportedError(f"{path}: {what} needs a path on a file system, not a path in a zip")
    if path.startswith(MEMORY):
        raise UnsupportedError(
            f"{path}: {what} needs a path on a file system; {MEMORY} is the memory of one process"
        )


def os_error(code: int, path: str) -> OSError:
    """Return the error of the operating system that a code stands for, at a path."""
    return OSError(code, os.strerror(code), path)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Add a path to an OSError without one: errors of a full disk or quota have none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise os_error(error.errno, path) from None


def is_valid_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _split_prefix(path: str) -> tuple[str, str]:
    """Split a path into the prefix of its file system or server and the path inside."""
    archive, bar, inside = path.rpartition(ZIP)
    if bar:
        return archive + bar, inside
    if "://" not in path:
        return "", path
    protocol, _, rest = path.partition("://")
    server, _, inside = rest.partition("/")
    return f"{protocol}://{server}/", inside


def _path_inside(path: str) -> str:
    """Return the absolute path inside its file system."""
    root, rest = _split_prefix(path)
    return f"/{rest.lstrip('/')}" if root else os.path.abspath(path)


def split(path: str) -> tuple[str, str]:
    """Split a path into folder and name; the root of a zip has the name of the zip, and is the
    folder above itself."""
    root, rest = _split_prefix(path)
    folder, name = posixpath.split(rest)
    if root.endswith(ZIP):
        return root + folder.rstrip("/"), name or basename(root.removesuffix(ZIP))
    return (f"{root}{folder}".rstrip("/") if root else folder), name


def dirname(path: str) -> str:
    return split(path)[0]


def basename(path: str) -> str:
    return split(path)[1]


def splitext(path: str) -> tuple[str, str]:
    return posixpath.splitext(path)


def join(path: str, name: str) -> str:
    """Join a folder and a relative path; an absolute path is returned unchanged."""
    if not is_on_disk(name):
        return name
    return f"{path}/{name}" if path.endswith(ZIP) else posixpath.join(path, name)


def normpath(path: str) -> str:
    """Remove empty names, ``.`` and ``..`` from a path."""
    root, rest = _split_prefix(path)
    if not root:
        return posixpath.normpath(path)
    inside = posixpath.normpath(f"/{rest}").strip("/")
    if root.endswith(ZIP):
        return f"{root}/{inside}" if inside else root
    return f"{root}{inside}".rstrip("/")


def abspath(path: str) -> str:
    return os.path.abspath(path) if is_on_disk(path) else normpath(path)


def is_absolute(path: str) -> bool:
    return not is_on_disk(path) or posixpath.isabs(path)


def relpath(path: str, start: str) -> str:
    """Return a path relative to a folder, or the path itself if the two are in different file
    systems."""
    is_same = _split_prefix(path)[0] == _split_prefix(start)[0]
    return posixpath.relpath(_path_inside(path), _path_inside(start)) if is_same else path


def is_below(path: str, folder: str) -> bool:
    """Check whether a normal path is a folder or lies in it."""
    return path == folder or path.startswith(folder if folder.endswith("/") else f"{folder}/")


@dataclass(frozen=True, slots=True)
class UrlName:
    """Prefixes and endings of the URLs of one format."""

    prefixes: tuple[str, ...]
    """Prefixes such as ``zarr://``."""
    endings: tuple[str, ...]
    """Words accepted after the last ``|``, with or without a colon."""
    folder_suffix: str = ""
    """Suffix of folder names that is reserved for the format."""
    target_suffix: str = ""
    """Suffix of a folder name in the path of a target, by which it is of the format."""

    def is_in(self, url: object) -> bool:
        """Check whether a URL names this format."""
        if not isinstance(url, (str, os.PathLike)):
            return False
        text = os.fspath(url)
        return text.startswith(self.prefixes) or self._is_ending(text)

    def names_target(self, url: object) -> bool:
        """Check whether the URL of a target names this format.

        Examples
        --------
        >>> name = UrlName(("zarr://",), ("zarr",), ".zarr", ".ome.zarr")
        >>> urls = "em.ome.zarr/labels/neurons", "zarr://em", "em|zarr:", "em.zarr"
        >>> [*map(name.names_target, urls)]
        [True, True, True, False]
        """
        if not self.target_suffix or not isinstance(url, (str, os.PathLike)):
            return self.is_in(url)
        text = os.fspath(url)
        return (
            text.startswith(self.prefixes[0])
            or self._is_ending(text)
            or any(part.endswith(self.target_suffix) for part in text.lower().split("/"))
        )

    def stripped(self, url: str | os.PathLike[str]) -> str:
        """Return a URL without the prefix and ending of the format.

        Examples
        --------
        >>> name = UrlName(("n5://",), ("n5",))
        >>> (
        ...     name.stripped("n5://https://host/em.n5/"),
        ...     name.stripped("gs://bucket/em.n5/|n5:"),
        ...     name.is_in("n5"),
        ... )
        ('https://host/em.n5', 'gs://bucket/em.n5', False)
        """
        text = os.fspath(url)
        for prefix in self.prefixes:
            text = text.removeprefix(prefix)
        if self._is_ending(text):
            text = text.rpartition("|")[0]
        return text.rstrip("/") or text

    def location(self, url: str | os.PathLike[str]) -> str:
        """Return the path or URL of the folder in a URL of the format."""
        return any_path(self.stripped(url))

    def _is_ending(self, text: str) -> bool:
        _, bar, ending = text.rpartition("|")
        return bool(bar) and ending.removesuffix(":") in self.endings
