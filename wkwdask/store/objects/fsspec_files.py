"""Files behind the protocols that only fsspec reads, such as ftp, sftp and github. The functions
are those of ``object_store``."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wkwdask.errors import UnsupportedError
from wkwdask.store.objects.object_store import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.store.objects.access import Access
    from wkwdask.store.objects.object_store import Request

IS_CONCURRENT = False  # many of these drivers have one connection
_PAUSES_SECONDS = (0.2, 1.0)  # before each retry [s]
_FINAL = (FileNotFoundError, PermissionError, NotImplementedError, ModuleNotFoundError)


def file_system(url: str, access: Access) -> Any:
    """Return the file system, which fsspec caches for each process and thread; options come from
    fsspec's own configuration."""
    del access
    fsspec: Any = import_module("fsspec")  # slow to import, and not needed for local files
    try:
        return fsspec.filesystem(url.partition("://")[0])
    except (ImportError, OSError, TypeError, ValueError) as error:
        # some drivers need more options than a URL holds
        raise UnsupportedError(f"{url}: cannot be read: {error}") from None


def read(request: Request, access: Access) -> Answer:
    """Read a file or a byte range."""
    url, fs = request.url, file_system(request.url, access)
    for pause in (*_PAUSES_SECONDS, None):
        try:
            return Answer(fs.cat_file(url, start=request.start, end=request.stop))
        except _FINAL:
            raise
        except Exception as error:  # drivers raise errors of many libraries
            if pause is None:
                raise OSError(
                    getattr(error, "errno", None) or 5,
                    f"cannot be read: {error or type(error).__name__}",
                    url,
                ) from error
        time.sleep(pause)
    raise AssertionError


def check(url: str, access: Access) -> None:
    """Raise an error if no package reads the URL."""
    file_system(url, access)


def size(url: str, access: Access) -> int:
    """Return the size of a file."""
    return int(file_system(url, access).size(url))


def walk(url: str, access: Access) -> Iterator[tuple[str, int]]:
    """Yield names and sizes of all files below a URL."""
    fs = file_system(url, access)
    root = fs._strip_protocol(url)
    return (
        (path.removeprefix(f"{root}/"), item["size"])
        for path, item in fs.find(url, detail=True).items()
    )


def names(url: str, access: Access) -> list[tuple[str, int | None]]:
    """List the names in a folder with the sizes of files, None for folders."""
    listed = file_system(url, access).ls(url, detail=True)
    return [
        (
            item["name"].rstrip("/").rpartition("/")[2],
            item["size"] if item["type"] == "file" else None,
        )
        for item in listed
    ]
