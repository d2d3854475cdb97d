"""Remote locations read by fsspec (http, s3, gs and others): read-only, and anonymous without credentials.

A refused file (403) is an error, unless a witness file proves that the server refuses absent files only, see ``store.with_witness``.
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
"""Package that reads each protocol; fsspec itself reads the others."""
_CONTACT_SECONDS = 5.0  # timeout of the first request to a server
_RETRY_PAUSES_SECONDS = (0.2, 1.0)  # before each retry of a remote read [s]


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """Remote location, see :class:`wkwdask.model.store.Store`. Files are assumed not to change while a store is in use."""

    url: str
    opening: str = field(default_factory=lambda: secrets.token_hex(8), compare=False, repr=False)
    """Random key of one opening. Caches of tables contain it, so a later opening reads the tables again."""
    witness: tuple[str, str] | None = None
    """Folder URL and name of a file that must stay readable for refused files to count as absent; None if refusals are errors."""
    is_local: ClassVar = False
    files_at_once: ClassVar = 32
    gap_nbytes: ClassVar = 128 << 10  # reading this many unused bytes costs less than another request
    batch_nbytes: ClassVar = 8 << 20

    def path_of(self, name: str) -> str:
        """Return the URL of a file; ``..`` in a name leads out of the folder, as in any URL."""
        protocol, _, rest = self.url.partition("://")
        if protocol in ("http", "https"):  # "#" and "?" would end the path
            name = name.replace("#", "%23").replace("?", "%3F")
        if ".." not in name.split("/"):
            return f"{self.url}/{name}"
        return f"{protocol}://{posixpath.normpath(f'{rest}/{name}')}"

    def file_system(self) -> Any:
        """Return the fsspec file system, which fsspec caches for each process and thread."""
        fsspec: Any = import_module("fsspec")  # slow to import, and not needed for local files
        protocol = self.url.partition("://")[0]
        if protocol in _DRIVERS:
            import_extra(_DRIVERS[protocol], self.url, "remote")
        try:
            return fsspec.filesystem(protocol, **access_options(protocol))
        except (ImportError, TypeError, ValueError) as error:  # some drivers need more options than a URL holds
            raise UnsupportedError(f"{self.url}: cannot be read: {error}") from None

    def fsspec_arguments(self) -> dict[str, Any]:
        """Return the arguments with which zarr-python opens the location, after checking that the server answers."""
        path = self.path_of("zarr.json")
        failure = self.contact(self.file_system(), path)
        if failure is not None:
            _checked(failure, path)
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
        """List the names in the folder; empty if it cannot be listed."""
        try:
            return sorted({str(path).rstrip("/").rpartition("/")[2] for path in self.file_system().ls(self.url, detail=False)})
        except Exception:  # each driver raises its own error for a location that cannot be listed
            return []

    def entries(self, folder: str = "") -> Iterator[StoredEntry]:
        """Raise UnsupportedError: remote files cannot be listed."""
        raise UnsupportedError(f"{self.path_of(folder)}: remote files cannot be listed")

    def states(self, names: Iterable[str]) -> list[FileState | None]:
        """Raise UnsupportedError: remote files have no reliable state."""
        raise UnsupportedError(f"{self.url}: remote files cannot be inspected")

    def _only_read(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError(f"{self.url}: remote locations are read-only")

    new_file = put = delete = make = new_files = delete_folder = _only_read

    def at(self, url: str) -> RemoteStore:
        return replace(self, url=url, witness=None)

    def below(self, name: str) -> RemoteStore:
        return replace(self, url=self.path_of(name))

    def fetch(self, paths: list[str], starts: Sequence[int | None], stops: Sequence[int | None]) -> list[bytes | None]:
        """Read ranges of files concurrently, with retries; None for each absent file."""
        # The witness is read after the refusal. If it were read before, credentials could expire in between, and existing files would count as absent.
        answers = self._fetch_or_errors(paths, starts, stops)
        refused = [path for path, answer in zip(paths, answers, strict=True) if is_refused(answer)]
        is_absent = bool(refused) and self.witness is not None and self._can_read(*self.witness)
        if is_absent and self.witness is not None:
            warn_of_refused(self.witness[0], refused[0], self.witness[1])
        return [None if is_absent and is_refused(answer) else _checked(answer, path) for path, answer in zip(paths, answers, strict=True)]

    def _fetch_or_errors(self, paths: list[str], starts: Sequence[int | None], stops: Sequence[int | None]) -> list[bytes | Exception]:
        """Read ranges of files concurrently; failed reads are returned as exceptions."""
        fs = self.file_system()
        failure = self.contact(fs, paths[0])
        if failure is not None:
            return [failure] * len(paths)
        if len(paths) > 1:
            answers = fs.cat_ranges(paths, list(starts), list(stops), on_error="return")
        else:
            answers = [_read_or_error(fs.cat_file, paths[0], start=starts[0], end=stops[0])]
        final: list[bytes | Exception] = []
        for path, start, stop, answer in zip(paths, starts, stops, answers, strict=True):
            for pause in _RETRY_PAUSES_SECONDS:
                if not _is_transient(answer):
                    break
                time.sleep(pause)
                answer = _read_or_error(fs.cat_file, path, start=start, end=stop)
            final.append(answer)
        return final

    def contact(self, fs: Any, path: str) -> Exception | None:
        """Check once per process that a server answers; return the error if it does not."""
        # Drivers retry an unreachable server for minutes. The first request therefore has a short timeout.
        server = "/".join(self.url.split("/")[:3])
        if not getattr(fs, "async_impl", False) or _contacted_servers.get(server):
            return None
        end = time.monotonic() + _CONTACT_SECONDS
        for pause in (*_RETRY_PAUSES_SECONDS, 0.0):
            answer = _read_or_error(_cat_within, fs, path, end - time.monotonic())
            if _is_answer(answer):
                _contacted_servers.put(server, True)
                return None
            if time.monotonic() + pause >= end:
                break
            time.sleep(pause)
        if isinstance(answer, TimeoutError):
            return TimeoutError(f"no answer from {server} within {_CONTACT_SECONDS:g} seconds")
        return answer if isinstance(answer, Exception) else None

    def _can_read(self, root: str, name: str) -> bool:
        """Check whether the server still returns a file now, after it has refused another one."""
        return isinstance(self._fetch_or_errors([replace(self, url=root).path_of(name)], [None], [None])[0], bytes)


_contacted_servers: LruCache[bool] = LruCache(256)
"""Servers that have answered in this process."""


def _cat_within(fs: Any, path: str, seconds: float) -> bytes:
    """Read one byte of a file within a time limit."""
    fsspec_asyn: Any = import_module("fsspec.asyn")
    data: bytes = fsspec_asyn.sync(fs.loop, fs._cat_file, path, start=0, end=1, timeout=max(seconds, 0.1))
    return data


def _is_answer(found: bytes | Exception) -> bool:
    """Check whether a server answered, even if only to report an absent file."""
    is_status = any(isinstance(getattr(found, name, None), int) for name in ("status", "code"))
    return not isinstance(found, Exception) or is_status or is_refused(found) or isinstance(found, FileNotFoundError | NotImplementedError | ValueError)


def _read_or_error(read: Callable[..., bytes], *arguments: Any, **options: Any) -> bytes | Exception:
    try:
        return read(*arguments, **options)
    except Exception as error:  # drivers raise errors of many libraries
        return error


def _is_transient(found: object) -> bool:
    """Check whether a retry may succeed."""
    return (
        isinstance(found, Exception)
        and not _is_beyond_end(found)
        and not is_refused(found)
        and not isinstance(found, (FileNotFoundError, NotImplementedError, ModuleNotFoundError))
    )


def _is_beyond_end(error: Exception) -> bool:
    """Check whether a server reports that a range starts beyond the end of the file."""
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
    store: RemoteStore
    name: str

    @property
    def nbytes(self) -> None:
        """None: the size is unknown."""
        return

    @property
    def state(self) -> str:
        """Key of the opening that the file belongs to."""
        return self.store.opening

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Read byte ranges, see :class:`StoredFile`. For a range beyond the end, some servers report an error and some return nothing."""
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        found = self.store.fetch([self.name] * len(ranges), starts, stops)
        out = []
        for (start, stop), data in zip(ranges, found, strict=True):
            if data is None:
                return None
            if len(data) > stop - start:
                what = f"requested {stop - start} bytes at byte {start}, got {len(data)}"
                raise UnsupportedError(f"{self.name}: {what}: the server does not support range requests")
            if len(data) < stop - start:
                raise TruncatedError(f"{self.name}: ends at byte {start + len(data)}, expected {stop - start} bytes from byte {start} on")
            out.append(data)
        return out

    def read_end(self, nbytes: int) -> bytes | None:
        return self.store.fetch([self.name], [-nbytes], [None])[0]

    def read_into(self, memory: npt.NDArray[np.uint8], offset: int) -> bool:
        """Fill memory with the bytes at an offset; False if the file is absent."""
        found = self.read([(offset, offset + memory.nbytes)])
        if found is not None:
            memoryview(memory.data)[:] = found[0]
        return found is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


_warned_locations: LruCache[bool] = LruCache(1024)
"""Locations for which a warning about refused files was issued."""


def is_refused(found: object) -> bool:
    """Check whether an error says that access is denied; aiohttp, s3fs and gcsfs raise different ones.

    Examples
    --------
    >>> is_refused(PermissionError("Access Denied")), is_refused(OSError("Forbidden: https://...")), is_refused(FileNotFoundError()), is_refused(b"")
    (True, True, False, False)
    """
    if not isinstance(found, Exception):
        return False
    return isinstance(found, PermissionError) or getattr(found, "status", None) == 403 or (isinstance(found, OSError) and str(found).startswith("Forbidden:"))


def warn_of_refused(location: str, path: str, witness: str) -> None:
    """Warn, once per location and process, that refused files are read as absent."""
    if not _warned_locations.get(location):
        _warned_locations.put(location, True)
        note = f"the server refuses files (403 Forbidden), for example {path}, while {witness} is readable: they are treated as absent, and read as zeros"
        warnings.warn(f"{location}: {note}", AccessWarning, stacklevel=2)


_GOOGLE_VARIABLES = ("GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST", "K_SERVICE", "CLOUD_RUN_JOB")
_ACCESS_OPTIONS = {"anon", "key", "secret", "token", "profile", "session"}  # if the user sets one of them in the configuration of fsspec, it decides
_MACHINE = Path("/sys/class/dmi/id/product_name")


def access_options(protocol: str) -> dict[str, Any]:
    """Return the driver options for anonymous access; empty if the user has credentials."""
    fsspec: Any = import_module("fsspec")
    if _ACCESS_OPTIONS & set(fsspec.config.conf.get(protocol, ())):
        return {}
    if protocol in ("gs", "gcs"):
        logging.getLogger("gcsfs").addHandler(logging.NullHandler())  # gcsfs also logs the errors that it raises
        return {} if _has_google_credentials() else {"token": "anon"}
    if protocol in ("s3", "s3a"):
        return {} if _has_amazon_credentials(tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))) else {"anon": True}
    return {}


def _has_google_credentials() -> bool:
    """Check for a key, a gcloud login, or a Google machine. Other machines would wait for Google's metadata server."""
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
