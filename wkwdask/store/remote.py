"""Places that fsspec reads (http, s3, gs...): they are only ever read, anonymously where there are no credentials.

Servers that refuse a file (403) are told apart: those whose readers may not list files also give that answer for absent ones.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import posixpath
import secrets
import time
import warnings
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from wkwdask.errors import AccessWarning, CorruptError, TruncatedError, UnsupportedError
from wkwdask.model.extras import import_extra
from wkwdask.store.lru import LruCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from wkwdask.model.store import FileState, StoredEntry

_DRIVERS = {"http": "aiohttp", "https": "aiohttp", "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
"""Which package reads a protocol; fsspec itself has all others that are tried."""
_CONTACT_SECONDS = 5.0  # within which a server must answer for the first time
_PAUSES = (0.2, 1.0)  # before a remote read is tried once more [s]


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """A place that fsspec reads, see :class:`wkwdask.model.store.Store`. What is read through one store is taken to stay as it is."""

    url: str
    opening: str = field(default_factory=lambda: secrets.token_hex(8), compare=False, repr=False)
    """Another one for each opening, so that tables that were kept of an earlier one are not believed."""
    witness: tuple[str, str] | None = None
    """URL of the folder and name of what must be readable for refused files to count as absent, see :func:`with_witness`; None where they are errors."""
    is_local: ClassVar = False
    files_at_once: ClassVar = 32
    gap_nbytes: ClassVar = 128 << 10  # unread bytes that cost less than another request
    batch_nbytes: ClassVar = 8 << 20

    def path_of(self, name: str) -> str:
        """Say where a file is; ``..`` in a name leads out of the folder as in any URL."""
        protocol, _, rest = self.url.partition("://")
        if protocol in ("http", "https"):  # there these two would end the path
            name = name.replace("#", "%23").replace("?", "%3F")
        if ".." not in name.split("/"):
            return f"{self.url}/{name}"
        return f"{protocol}://{posixpath.normpath(f'{rest}/{name}')}"

    def file_system(self) -> Any:
        """Give fsspec's file system, which fsspec keeps for each process and thread."""
        fsspec: Any = import_module("fsspec")  # it takes a while, and local files do without
        protocol = self.url.partition("://")[0]
        if protocol in _DRIVERS:
            import_extra(_DRIVERS[protocol], self.url, "remote")
        try:
            return fsspec.filesystem(protocol, **access_options(protocol))
        except (ImportError, TypeError, ValueError) as error:  # some drivers want to know more than a URL says
            raise UnsupportedError(f"{self.url}: cannot be read: {error}") from None

    def fsspec_arguments(self) -> dict[str, Any]:
        """Return the arguments by which zarr-python opens the place, after the server has answered."""
        path = self.path_of("zarr.json")
        unreached = self.contact(self.file_system(), path)
        if unreached is not None:
            _checked(unreached, path)
        options = access_options(self.url.partition("://")[0])
        return {"storage_options": options} if options else {}

    def open(self, name: str) -> RemoteFile:
        return RemoteFile(self, self.path_of(name))

    def read_whole(self, names: Sequence[str], largest: int) -> list[bytes | None]:
        paths = [self.path_of(name) for name in names]
        found = self.fetch(paths, [None] * len(paths), [None] * len(paths))
        for path, data in zip(paths, found, strict=True):
            if data is not None and len(data) > largest:
                raise CorruptError(f"{path}: has {len(data)} bytes, expected at most {largest}")
        return found

    def names(self) -> list[str]:
        """List what is in the place, nothing where that cannot be known."""
        try:
            return sorted({str(path).rstrip("/").rpartition("/")[2] for path in self.file_system().ls(self.url, detail=False)})
        except Exception:  # of places that cannot be listed, each raises its own
            return []

    def entries(self, folder: str = "") -> Iterator[StoredEntry]:
        """Files cannot be listed."""
        raise UnsupportedError(f"{self.path_of(folder)}: remote files cannot be listed")

    def states(self, names: Iterable[str]) -> list[FileState | None]:
        """Files cannot be inspected."""
        raise UnsupportedError(f"{self.url}: remote files cannot be inspected")

    def _only_read(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError(f"{self.url}: remote places are only read")

    new_file = put = delete = make = new_files = delete_folder = _only_read

    def at(self, url: str) -> RemoteStore:
        return replace(self, url=url, witness=None)

    def below(self, name: str) -> RemoteStore:
        return replace(self, url=self.path_of(name))

    def fetch(self, paths: list[str], starts: Sequence[int | None], stops: Sequence[int | None]) -> list[bytes | None]:
        """Read ranges of files, all at once, None for each file that is absent; what fails is tried again."""
        found = self._found(paths, starts, stops)
        refused = [path for path, data in zip(paths, found, strict=True) if is_refused(data)]
        is_absent = bool(refused) and self.witness is not None and self._gives(*self.witness)
        if is_absent and self.witness is not None:
            warn_of_refused(self.witness[0], refused[0], self.witness[1])
        return [None if is_absent and is_refused(data) else _checked(data, path) for path, data in zip(paths, found, strict=True)]

    def _found(self, paths: list[str], starts: Sequence[int | None], stops: Sequence[int | None]) -> list[bytes | Exception]:
        """Read ranges of files, all at once, or give the errors."""
        fs = self.file_system()
        unreached = self.contact(fs, paths[0])
        if unreached is not None:
            return [unreached] * len(paths)
        found = (
            fs.cat_ranges(paths, list(starts), list(stops), on_error="return") if len(paths) > 1 else [_caught(lambda: _cat(fs, paths[0], starts[0], stops[0]))]
        )
        out: list[bytes | Exception] = []
        for path, start, stop, data in zip(paths, starts, stops, found, strict=True):
            for pause in _PAUSES:
                if not _is_passing(data):
                    break
                time.sleep(pause)
                data = _caught(lambda path=path, start=start, stop=stop: _cat(fs, path, start, stop))  # type: ignore[misc]
            out.append(data)
        return out

    def contact(self, fs: Any, path: str) -> Exception | None:
        """Make sure, once in each process, that a server answers at all: drivers try for minutes. None where it does, else the error."""
        server = "/".join(self.url.split("/")[:3])
        if not getattr(fs, "async_impl", False) or _reached.get(server):
            return None
        end = time.monotonic() + _CONTACT_SECONDS
        for pause in (*_PAUSES, 0.0):
            found = _caught(lambda: _cat_within(fs, path, end - time.monotonic()))
            if _is_answer(found):
                _reached.put(server, True)
                return None
            if time.monotonic() + pause >= end:
                break
            time.sleep(pause)
        if isinstance(found, TimeoutError):
            return TimeoutError(f"no answer from {server} within {_CONTACT_SECONDS:g} seconds")
        return found if isinstance(found, Exception) else None

    def _gives(self, root: str, name: str) -> bool:
        """Check whether the server gives, now, after it has refused something, what it gave before."""
        return isinstance(self._found([replace(self, url=root).path_of(name)], [None], [None])[0], bytes)


_reached: LruCache[bool] = LruCache(256)
"""Servers that have answered in this process."""


def _cat(fs: Any, path: str, start: int | None, stop: int | None) -> bytes:
    data: bytes = fs.cat_file(path, start=start, end=stop)
    return data


def _cat_within(fs: Any, path: str, seconds: float) -> bytes:
    """Read one byte of a file, or give up."""
    fsspec_asyn: Any = import_module("fsspec.asyn")
    data: bytes = fsspec_asyn.sync(fs.loop, fs._cat_file, path, start=0, end=1, timeout=max(seconds, 0.1))
    return data


def _is_answer(found: bytes | Exception) -> bool:
    """Tell whether a server answered, if only that there is no such file."""
    is_status = any(isinstance(getattr(found, name, None), int) for name in ("status", "code"))
    return not isinstance(found, Exception) or is_status or is_refused(found) or isinstance(found, FileNotFoundError | NotImplementedError | ValueError)


def _caught(read: Callable[[], bytes]) -> bytes | Exception:
    try:
        return read()
    except Exception as error:  # drivers raise errors of many libraries
        return error


def _is_passing(found: object) -> bool:
    """Tell whether trying again may help."""
    return (
        isinstance(found, Exception)
        and not _is_beyond_end(found)
        and not is_refused(found)
        and not isinstance(found, (FileNotFoundError, NotImplementedError, ModuleNotFoundError))
    )


def _is_beyond_end(error: Exception) -> bool:
    """Tell whether a server says that a range begins beyond the end of a file."""
    status = error.status if hasattr(error, "status") else getattr(error, "code", None)
    return status == 416 or "InvalidRange" in str(error)


def _checked(found: bytes | Exception, path: str) -> bytes | None:
    if isinstance(found, FileNotFoundError):
        return None
    if isinstance(found, Exception) and _is_beyond_end(found):
        return b""
    if isinstance(found, Exception):
        code = errno.EACCES if is_refused(found) else getattr(found, "errno", None) or errno.EIO
        raise OSError(code, f"cannot be read: {found or type(found).__name__}", path) from found
    return found


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a remote store."""

    store: RemoteStore
    name: str

    @property
    def nbytes(self) -> None:
        """Nobody has said its size."""
        return

    @property
    def state(self) -> str:
        """The opening that it belongs to."""
        return self.store.opening

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Read byte ranges, see :class:`StoredFile`; where one begins beyond the end, some servers say so and some give nothing."""
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        found = self.store.fetch([self.name] * len(ranges), starts, stops)
        out = []
        for (start, stop), data in zip(ranges, found, strict=True):
            if data is None:
                return None
            if len(data) > stop - start:
                what = f"asked for {stop - start} bytes from byte {start} on, got {len(data)}"
                raise UnsupportedError(f"{self.name}: {what}: the server does not serve ranges of bytes")
            if len(data) < stop - start:
                raise TruncatedError(f"{self.name}: ends at byte {start + len(data)}, expected {stop - start} bytes from byte {start} on")
            out.append(data)
        return out

    def read_end(self, nbytes: int) -> bytes | None:
        return self.store.fetch([self.name], [-nbytes], [None])[0]

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        """Fill memory from a byte on; False where the file is absent."""
        found = self.read([(offset, offset + memory.nbytes)])
        if found is not None:
            memoryview(memory.data)[:] = found[0]
        return found is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to close."""


_warned: LruCache[bool] = LruCache(1024)
"""Places of which it was said that refused files are taken to be absent."""


def is_refused(found: object) -> bool:
    """Tell whether what came in place of a file says that it may not be read: aiohttp, s3fs and gcsfs have different errors for it.

    Examples
    --------
    >>> is_refused(PermissionError("Access Denied")), is_refused(OSError("Forbidden: https://...")), is_refused(FileNotFoundError()), is_refused(b"")
    (True, True, False, False)
    """
    if not isinstance(found, Exception):
        return False
    return isinstance(found, PermissionError) or getattr(found, "status", None) == 403 or (isinstance(found, OSError) and str(found).startswith("Forbidden:"))


def warn_of_refused(place: str, path: str, witness: str) -> None:
    """Say, once of each place in each process, that refused files are taken to be absent."""
    if not _warned.get(place):
        _warned.put(place, True)
        note = f"files are refused (403 Forbidden), such as {path}, while {witness} is readable: they are taken to be absent, and read as zeros"
        warnings.warn(f"{place}: {note}", AccessWarning, stacklevel=2)


_GOOGLE_VARIABLES = ("GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST", "K_SERVICE", "CLOUD_RUN_JOB")
_CHOICES = {"anon", "key", "secret", "token", "profile", "session"}  # in the user's configuration of fsspec
_MACHINE = Path("/sys/class/dmi/id/product_name")


def access_options(protocol: str) -> dict[str, Any]:
    """Return the options that let a driver read anonymously, none where there are credentials."""
    fsspec: Any = import_module("fsspec")
    if _CHOICES & set(fsspec.config.conf.get(protocol, ())):
        return {}
    if protocol in ("gs", "gcs"):
        logging.getLogger("gcsfs").addHandler(logging.NullHandler())  # it logs what it raises
        return {} if _has_google_credentials() else {"token": "anon"}
    if protocol in ("s3", "s3a"):
        return {} if _has_amazon_credentials(tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))) else {"anon": True}
    return {}


def _has_google_credentials() -> bool:
    """Check for a key, for the login of gcloud, and for a machine of Google, whose server for credentials other machines would wait for."""
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser())
    return (
        any(os.environ.get(name) for name in _GOOGLE_VARIABLES)
        or (folder / "application_default_credentials.json").is_file()
        or (_MACHINE.is_file() and _MACHINE.read_text().startswith("Google"))
    )


@functools.cache
def _has_amazon_credentials(_: tuple[tuple[str, str], ...]) -> bool:
    session: Any = import_module("botocore.session")
    try:
        return session.get_session().get_credentials() is not None
    except Exception:  # a broken configuration is reported by the driver
        return True
