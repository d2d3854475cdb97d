"""Files on web servers and in buckets of S3, Google and Azure, read by the package obstore.

Connections and threads of obstore belong to one process. They do not survive a fork: a request in
the child would wait forever, so it is an error.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar
from urllib.parse import quote, unquote, urlsplit

from wkwdask.errors import CorruptError, MissingError, ReplacedError, UnsupportedError, WkwDaskError
from wkwdask.model.extras import import_extra
from wkwdask.model.store import Expected, State
from wkwdask.store.lru import LruCache
from wkwdask.store.objects import redirects
from wkwdask.store.objects.credentials import (
    Credentials,
    amazon_credentials,
    azure_credentials,
    environment,
    google_credentials,
)
from wkwdask.store.objects.writing import Expectation, Found, RefusedPut
from wkwdask.store.paths import TEMPORARY_SUFFIX, os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from wkwdask.store.objects.access import Access

PROTOCOLS = {
    "http": "HTTP",
    "https": "HTTP",
    "s3": "S3",
    "s3a": "S3",
    "gs": "GCS",
    "gcs": "GCS",
    "az": "Azure",
    "abfs": "Azure",
    "abfss": "Azure",
}
"""Kind of store of each protocol."""
IS_CONCURRENT = True
_NO_ANSWER_SECONDS = 8
_REGION_SECONDS = 2
# of a body per second [bytes], on average: slower servers would hold a thread for hours, one byte
# at a time
_SLOWEST_NBYTES = 4 << 10
_PAUSES_SECONDS = (0.2, 1.0)  # before each of the first retries [s]
_MAX_RETRIES = 4
_CLIENT = {
    "allow_http": True,
    "connect_timeout": "3s",
    "timeout": "10m",
    "pool_max_idle_per_host": "64",
}
_STATE_FIELDS = ("e_tag", "version")
_KEPT_FRESH = {"Cache-Control": "no-cache"}  # of documents: proxies ask the server
_KEPT_SECONDS = 60.0  # of the end of redirects, which may have a signature that expires
_STATIC_KEYS = {
    "S3Store": ("AWS_ACCESS_KEY_ID",),
    "AzureStore": tuple(
        f"AZURE_STORAGE_{name}" for name in ("ACCOUNT_KEY", "ACCESS_KEY", "SAS_KEY", "SAS_TOKEN")
    ),
}
"""Variables with keys that are used without asking another server."""
_PROVIDERS = {
    "S3Store": ("https://amazonaws.com", "amazonaws.com,amazonaws.com.cn"),
    "GCSStore": ("https://googleapis.com", "googleapis.com"),
    "AzureStore": ("https://windows.net", "windows.net,fabric.microsoft.com"),
}
"""An address and the hosts of the provider of each kind of bucket; all hosts below them count
too."""
_S3_CONDITIONS = {"conditional_put": "etag", "copy_if_not_exists": "multipart"}
"""Ways in which S3 makes writes conditional; the environment does not change them."""
_EMULATORS = ("GOOGLE_BASE_URL", "AZURE_STORAGE_USE_EMULATOR", "AZURE_USE_EMULATOR")
"""Variables by which obstore itself finds another server."""
_AZURE_HOST = re.compile(r"(?P<container>[^@]+)@(?P<account>[^.]+)\.(dfs|blob)\.core\.windows\.net")


class Answer(NamedTuple):
    """Bytes of a file."""

    data: bytes
    nbytes: int | None = None
    """Size of the whole file, None if unknown."""
    etag: str | None = None
    """Value that changes when the file is replaced."""
    encoding: str | None = None
    """``Content-Encoding``, in which the whole file was sent."""
    state: State = State(None, None)
    """State of an object in a bucket."""


class Connection(NamedTuple):
    """Store of obstore for a server or bucket."""

    store: Any
    server: str
    who: str
    """Source of the credentials, for errors."""
    address: str = ""
    """URL of a bucket at a stated endpoint, empty for others."""


class RedirectedError(Exception):
    """A web server redirects to another host, which
    :mod:`wkwdask.store.objects.redirects` may follow."""


_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_connections: LruCache[Connection] = LruCache(64)
_redirecting: LruCache[bool] = LruCache(1024)
"""Web servers that have redirected to other hosts."""
_ends: LruCache[tuple[str, float]] = LruCache(4096)
"""Addresses at which the redirects of files end, and when they were found [s]."""
_is_in_use = False  # whether threads of obstore run in this process
_is_forked = False  # whether this process was forked after that


def _with_fresh_keys(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Let a function that makes requests make them again when the credentials have expired: a
    profile or a program may have new ones by now."""

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except PermissionError as error:
            if _EXPIRED not in str(error):
                raise
        _connections.clear()
        return function(*args, **kwargs)

    return call


def _kind(url: str) -> str:
    return PROTOCOLS[url.partition("://")[0]]


def quoted(name: str) -> str:
    """Return a name as a part of the path of a web address."""
    return quote(name, safe="/!$&'()*+,;=:@~")


class Request(NamedTuple):
    """A file, or a byte range of it."""

    url: str
    start: int | None = None
    """First byte; negative without ``stop`` to read the last bytes, None to read the whole file."""
    stop: int | None = None
    etag: str | None = None
    """State of the file; a file that was replaced since then is an error. None for any state."""
    largest: int | None = None
    """Largest size of a whole file [bytes]."""


@_with_fresh_keys
def read(request: Request, access: Access) -> Answer:
    """Read a file or a byte range.

    obstore repeats a request that was not answered, or with the status 408, 429 or 5xx. A body that
    ends too early is requested again here.
    """
    return _redirected(request.url, lambda: _read(request, access))


def _read(request: Request, access: Access) -> Answer:
    url, start, stop, etag, _ = request
    if start is not None and start == stop:
        return Answer(b"")
    connection, key = connect(url, access)
    options: dict[str, Any] = {} if etag is None else {"if_match": etag}
    if start is not None and stop is None and _kind(url) == "Azure":
        # which has no ranges from the end
        stop = size(url, access)
        start = max(0, stop + start)
    if start is not None:
        options["range"] = {"suffix": -start} if stop is None else (start, stop)
    for pause in (*_PAUSES_SECONDS, None):
        try:
            answer = _get(connection, key, options, request)
        except (WkwDaskError, TimeoutError):
            raise
        except Exception as error:  # obstore's own errors, and builtin ones
            if pause is None or not re.search(
                r"IncompleteBody|UnexpectedEof|kind: Body", str(error)
            ):
                if start is not None and "status code: 416" in str(error):  # a range beyond the end
                    return Answer(b"")
                _raise(error, url, connection, access)
        else:
            return answer
        time.sleep(pause)
    raise AssertionError


def _get(connection: Connection, key: str, options: dict[str, Any], request: Request) -> Answer:
    global _is_in_use
    _is_in_use = True
    result = _obstore().get(connection.store, key, options=options)
    if request.largest is not None and result.meta["size"] > request.largest:
        # before it is downloaded
        raise CorruptError(
            f"{request.url}: has {result.meta['size']} bytes, expected at most {request.largest}"
        )
    data, attributes = _body(result, request), result.attributes
    if attributes.get("Content-Type", "").startswith("text/html") and data.lstrip()[:1] == b"<":
        raise UnsupportedError(f"{request.url}: the server sent an HTML page instead of data")
    etag = result.meta["e_tag"]
    if etag is not None and etag.startswith("W/"):  # RFC 9110, 13.1.1: a weak one never matches
        etag = None
    return Answer(
        data,
        result.meta["size"],
        etag,
        attributes.get("Content-Encoding"),
        State(result.meta["e_tag"], result.meta["version"]),
    )


def _body(result: Any, request: Request) -> bytes:
    """Read a body, and stop where it is longer than what was asked for, or far too slow: a server
    may send anything."""
    url, start, stop, *_ = request
    expected: int = (
        result.meta["size"] if start is None else -start if stop is None else stop - start
    )
    pieces, nbytes, began = [], 0, time.monotonic()
    for piece in result.stream(min_chunk_size=1):  # all that has arrived
        pieces.append(piece)
        nbytes += len(piece)
        if nbytes > expected:
            raise CorruptError(f"{url}: requested {expected} bytes, and the server sends more")
        seconds = time.monotonic() - began
        if seconds > _NO_ANSWER_SECONDS + nbytes / _SLOWEST_NBYTES:
            slow = (
                f"{nbytes} of {expected} bytes in {seconds:.0f} seconds, expected at least "
                f"{_SLOWEST_NBYTES} bytes per second"
            )
            raise TimeoutError(errno.ETIMEDOUT, f"the server sent {slow}", url)
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(map(memoryview, pieces))


def check(url: str, access: Access) -> None:
    """Raise an error if no package reads the URL, or a profile is missing."""
    connect(url, access)


@_with_fresh_keys
def size(url: str, access: Access) -> int:
    """Return the size of a file."""
    try:
        return int(_call("head", url, access)["size"])
    except OSError as error:
        if "400 Bad Request" in str(error):
            # an answer to HEAD cannot state the cause, such as an expired token
            read(Request(url, 0, 1), access)
        raise


def _check_lists(url: str) -> None:
    if _kind(url) == "HTTP":
        raise UnsupportedError(f"{url}: a web server cannot be listed")


@_with_fresh_keys
def names(url: str, access: Access) -> list[tuple[str, int | None]]:
    """List the names in a folder with the sizes of files, None for folders; raises UnsupportedError
    for web servers, which have no listing."""
    _check_lists(url)
    listed = _call("list_with_delimiter", url, access, "listed")
    files: list[tuple[str, int | None]] = [
        (item["path"].rpartition("/")[2], item["size"]) for item in listed["objects"]
    ]
    return files + [
        (prefix.rstrip("/").rpartition("/")[2], None) for prefix in listed["common_prefixes"]
    ]


@_with_fresh_keys
def walk(url: str, access: Access) -> Iterator[tuple[str, int]]:
    """Return names and sizes of all files below a URL; raises UnsupportedError for web servers,
    which have no listing."""
    _check_lists(url)
    connection, key = connect(url, access)
    try:
        pages = list(_obstore().list(connection.store, f"{key}/"))
    except Exception as error:  # obstore's own errors, and builtin ones
        _raise(error, url, connection, access, "listed")
    return ((each["path"].removeprefix(f"{key}/"), each["size"]) for page in pages for each in page)


# Azure accepts identifiers only, S3 and Google lower case
_WRITER = "wkwdaskwriter"
_CONFLICT = re.compile(r"\b409\b|ConditionalRequestConflict|OperationAborted")
_DELETED_AT_ONCE = 1000
_COMPARED_NBYTES = 8 << 20
LARGEST_NBYTES = 5 << 30
"""Largest object that S3 copies in one step, and with that stores on condition."""


@_with_fresh_keys
def head(url: str, access: Access) -> Found | None:
    """Return an object without its content; None if it is absent."""
    connection, key = connect(url, access)
    try:
        # obstore.head returns no attributes
        result = _obstore().get(connection.store, key, options={"head": True})
    except FileNotFoundError:
        return None
    except Exception as error:  # obstore's own errors, and builtin ones
        _raise(error, url, connection, access)
    meta = result.meta
    writer = {name.lower(): value for name, value in result.attributes.items()}.get(_WRITER, "")
    state = State(meta["e_tag"], meta["version"])
    return Found(state, meta["size"], meta["last_modified"].timestamp(), writer)


@_with_fresh_keys
def put_once(
    url: str, data: bytes | BinaryIO, expect: Expectation, writer: str, access: Access
) -> State:
    """Store an object; raises RefusedPut if it is not as expected, and OSError if the outcome is
    unknown."""
    if not isinstance(data, bytes):
        _check_size(url, data.seek(0, os.SEEK_END), expect)
        data.seek(0)
    if isinstance(expect, State) and not isinstance(data, bytes):
        data = data.read()  # copies by the server have no such condition
    if isinstance(data, bytes):
        return _put(url, data, expect, {_WRITER: writer, **_KEPT_FRESH}, access)
    # too large for one request: parts under a name that nobody reads, copied by the server
    connection, key = connect(url, access)
    scratch = f"{key}.{writer}{TEMPORARY_SUFFIX}"
    data.seek(0)
    try:
        _obstore().put(connection.store, scratch, data, attributes={_WRITER: writer})
        _obstore().copy(connection.store, scratch, key, overwrite=expect is not Expected.ABSENT)
    except Exception as error:  # obstore's own errors, and builtin ones
        # copies of S3 have no token by which they would be known
        if not _has_content(url, data, access):
            if isinstance(error, FileExistsError):
                raise RefusedPut from None
            _raise(error, url, connection, access, "written")
    finally:
        with contextlib.suppress(OSError):  # the object itself is stored, or another error says why
            delete([f"{url}.{writer}{TEMPORARY_SUFFIX}"], access)
    found = head(url, access)
    return State(None, None) if found is None else found.state


def _has_content(url: str, data: BinaryIO, access: Access) -> bool:
    """Check whether an object exists and has the content of a file."""
    nbytes = data.seek(0, os.SEEK_END)
    with contextlib.suppress(OSError):  # absent, or the server does not say
        found = head(url, access)
        if found is None or found.nbytes != nbytes:
            return False
        data.seek(0)
        ranges = (
            (at, min(at + _COMPARED_NBYTES, nbytes)) for at in range(0, nbytes, _COMPARED_NBYTES)
        )
        return all(
            read(Request(url, start, stop), access).data == data.read(stop - start)
            for start, stop in ranges
        )
    return False


def _check_size(url: str, nbytes: int, expect: Expectation) -> None:
    """Raise UnsupportedError for an object that the server cannot store on condition."""
    is_s3 = _kind(url) == "S3"  # which copies at most 5 GiB at once
    if nbytes > LARGEST_NBYTES and (is_s3 or isinstance(expect, State)):
        raise UnsupportedError(
            f"{url}: has {nbytes} bytes, and objects of more than {LARGEST_NBYTES} bytes are not "
            "written in one step; write it to a disk and copy it with the tool of the provider"
        )


def _put(
    url: str, data: bytes, expect: Expectation, attributes: dict[str, str], access: Access
) -> State:
    global _is_in_use
    exceptions: Any = import_extra("obstore.exceptions", url, "remote")
    connection, key = connect(url, access)
    _is_in_use = True
    mode: Any = (
        "overwrite"
        if expect is Expected.ANY
        else "create"
        if expect is Expected.ABSENT
        else {name: value for name, value in zip(_STATE_FIELDS, expect, strict=True) if value}
    )
    try:
        result = _obstore().put(
            connection.store, key, data, mode=mode, use_multipart=False, attributes=attributes
        )
    except (FileExistsError, exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        if _PROTECTED.search(str(error)):
            _raise(error, url, connection, access, "written")
        raise RefusedPut(may_repeat=bool(_CONFLICT.search(str(error)))) from None
    except (FileNotFoundError, exceptions.NotFoundError):
        # S3 answers 404 to a condition on a missing object
        raise RefusedPut from None
    except Exception as error:  # obstore's own errors, and builtin ones
        _raise(error, url, connection, access, "written")
    return State(result["e_tag"], result["version"])


@_with_fresh_keys
def copy_once(source: str, url: str, access: Access) -> None:
    """Copy an object inside of its bucket; raises RefusedPut if the name is taken."""
    exceptions: Any = import_extra("obstore.exceptions", url, "remote")
    connection, key = connect(url, access)
    try:
        _obstore().copy(
            connection.store, connect(source, access)[1], key, overwrite=access.single_writer
        )
    except (FileExistsError, exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise RefusedPut from None
    except Exception as error:  # obstore's own errors, and builtin ones
        _raise(error, url, connection, access, "written")


@_with_fresh_keys
def delete(urls: Sequence[str], access: Access) -> None:
    """Delete objects; absent ones are no error."""
    for first in range(0, len(urls), _DELETED_AT_ONCE):
        batch = urls[first : first + _DELETED_AT_ONCE]
        connection, _ = connect(batch[0], access)
        keys = [connect(url, access)[1] for url in batch]
        try:
            _obstore().delete(connection.store, keys)
        except FileNotFoundError:  # Azure: one of them; the others may still be there
            for url, key in zip(batch, keys, strict=True):
                if head(url, access) is not None:
                    _obstore().delete(connection.store, key)
        except Exception as error:  # obstore's own errors, and builtin ones
            _raise(error, batch[0], connection, access, "deleted")


def _redirected(url: str, call: Callable[[], _Result]) -> _Result:
    """Make a call that connects to a URL; once again if the server redirects to another host."""
    try:
        return call()
    except RedirectedError:
        _redirecting.put(_server_of(url), True)
        _ends.discard(url)  # of another redirect, or of none
    try:
        return call()
    except RedirectedError:
        _ends.discard(url)
        raise OSError(
            errno.EIO,
            (
                f"cannot be read: {_server_of(url)} redirects to another host, but not when it is "
                "asked where to"
            ),
            url,
        ) from None


def _server_of(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])


def _call(function: str, url: str, access: Access, tried: str = "read") -> Any:
    return _redirected(url, lambda: _call_once(function, url, access, tried))


def _call_once(function: str, url: str, access: Access, tried: str) -> Any:
    global _is_in_use
    connection, key = connect(url, access)
    _is_in_use = True
    try:
        return getattr(_obstore(), function)(connection.store, key)
    except Exception as error:  # obstore's own errors, and builtin ones
        _raise(error, url, connection, access, tried)


def _obstore(url: str = "") -> Any:
    return import_extra("obstore", url, "remote")


def connect(url: str, access: Access) -> tuple[Connection, str]:
    """Return the connection to the server of a URL, and the key of the file on that server."""
    if _is_forked:
        raise UnsupportedError(
            f"{url}: this process was forked after remote data were read, and connections do not "
            "survive a fork; start it with spawn or forkserver, for "
            'example multiprocessing.set_start_method("spawn") or DataLoader(..., '
            'multiprocessing_context="forkserver")'
        )
    if _redirecting.get(_server_of(url)):
        return _connect_to(_end_of(url), access, is_exact=True)
    return _connect_to(url, access)


def _connect_to(url: str, access: Access, *, is_exact: bool = False) -> tuple[Connection, str]:
    protocol, _, rest = url.partition("://")
    server, _, key = rest.partition("/")
    key = key.lstrip("/")
    if is_exact and quoted(unquote(key)) != key:
        # with a query, or written in another way than obstore does: a separate store
        server, key = rest, ""
    cache_key = (protocol, server, access, environment())
    connection = _connections.get(cache_key)
    if connection is None:
        connection = _open(protocol, server, access, url)
        _connections.put(cache_key, connection)
    return connection, unquote(key) if PROTOCOLS[protocol] == "HTTP" else key


def _end_of(url: str) -> str:
    """Return the address at which the redirects of a file end."""
    found = _ends.get(url)
    if found is None or time.monotonic() - found[1] > _KEPT_SECONDS:
        found = redirects.resolve(url), time.monotonic()
        _ends.put(url, found)
    return found[0]


def store_of(url: str, access: Access) -> Any:
    """Return a store of obstore whose keys begin at a URL, for other packages."""
    if _redirecting.get(_server_of(url)):
        raise UnsupportedError(
            f"{url}: {_server_of(url)} redirects to another host, and this array needs "
            "zarr-python, which does not follow: download it first"
        )
    connect(url, access)
    protocol, _, rest = url.partition("://")
    server, _, prefix = rest.partition("/")
    return _open(protocol, server, access, url, prefix).store


def _open(protocol: str, server: str, access: Access, url: str, prefix: str = "") -> Connection:
    _obstore(url)
    stores: Any = import_extra("obstore.store", url, "remote")
    place = f"{protocol}://{server}"
    first, longest = (timedelta(seconds=max(seconds, 1e-3)) for seconds in _PAUSES_SECONDS)
    backoff = {"init_backoff": first, "max_backoff": 3 * longest, "base": 3}
    # no retry begins later
    retries = {
        "max_retries": _MAX_RETRIES,
        "backoff": backoff,
        "retry_timeout": timedelta(seconds=_NO_ANSWER_SECONDS),
    }
    client: dict[str, Any] = {**_CLIENT, "read_timeout": f"{_NO_ANSWER_SECONDS}s"}
    common = {"client_options": client, "retry_config": retries}
    try:
        if PROTOCOLS[protocol] == "HTTP":
            client["allow_http"] = protocol == "http"  # for redirects, too
            client.update(redirects.client_options(place))
            address = place if "/" in server else f"{place}/{prefix}"
            return Connection(stores.HTTPStore(address, **common), _server_of(place), "")
        kind, container, credentials = _bucket(protocol, server, access)
        if kind == "S3Store":
            client["allow_http"] = not credentials.options.get("endpoint", "https://").startswith(
                "https://"
            )
        client.update(_no_other_host(kind, credentials))
        conditions = _S3_CONDITIONS if kind == "S3Store" else {}
        store = getattr(stores, kind)(
            container, prefix=prefix or None, **credentials.options, **conditions, **common
        )
        endpoint = credentials.options.get("endpoint")
        return Connection(
            store, place, credentials.who, "" if endpoint is None else f"{endpoint}/{container}"
        )
    except Exception as error:  # obstore's own errors, and builtin ones
        if isinstance(error, (ModuleNotFoundError, MissingError)):
            raise
        raise UnsupportedError(
            f"{url}: cannot be read: {str(error).partition(_DEBUG)[0]}"
        ) from None


def _no_other_host(kind: str, credentials: Credentials) -> dict[str, str]:
    """Return settings under which the client of a bucket reaches only the stated endpoint, or the
    provider, where a redirect may lead elsewhere.

    The network library removes the signature from a redirected request, but neither the session
    token of S3 nor the address, which holds an Azure SAS, as its referrer. Clients that request
    their keys from other hosts need these other hosts.
    """
    endpoint = credentials.options.get("endpoint") or credentials.options.get("base_url")
    is_anonymous = bool(credentials.options.get("skip_signature"))
    has_keys = (
        "access_key_id" in credentials.options
        or "credential_provider" in credentials.options
        or any(map(os.environ.get, _STATIC_KEYS.get(kind, ())))
    )
    if endpoint is not None:
        return redirects.client_options(endpoint) if is_anonymous or has_keys else {}
    if is_anonymous and not any(map(os.environ.get, _EMULATORS)):
        return redirects.client_options(*_PROVIDERS[kind])
    return {}


def _bucket(protocol: str, server: str, access: Access) -> tuple[str, str, Credentials]:
    """Return the name of obstore's class, the name of the bucket, and credentials."""
    if PROTOCOLS[protocol] == "S3":
        return "S3Store", server, amazon_credentials(access)
    if PROTOCOLS[protocol] == "GCS":
        return "GCSStore", server, google_credentials(access)
    named = _AZURE_HOST.fullmatch(server)
    container, account = (server, None) if named is None else (named["container"], named["account"])
    return "AzureStore", container, azure_credentials(access, account)


# ------------------------------------------------------------------------------------------------
# errors

_DEBUG = "\n\nDebug source"
_STATUS = re.compile(r"status code: (\d+ [A-Z][A-Za-z -]+)")
_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
_REFUSED = re.compile(r"status code: 40[13]\b|code: AccessDenied\b")
"""Refusals of listings and of bulk deletions, which obstore reports as any other error."""
_FULL = re.compile(r"status code: 507\b|QuotaExceeded|StorageFull|InsufficientStorage")
_PROTECTED = re.compile(
    r"RetentionPolicyNotMet|ImmutableDueToPolicy|ObjectUnderActiveHold|WORM protected"
)
_EXPIRED = "the credentials have expired: log in again"
_REFUSALS = (
    # Codes of S3, Google and Azure. S3 reports some of them with status 400.
    (
        r"<Code>(ExpiredToken|ExpiredTokenException|RequestExpired|TokenRefreshRequired)<|invalid_grant"
        r"|<Code>(AuthenticationRequired|InvalidAuthenticationInfo)<"  # of Google, and of Azure
        r"|Signature not valid in the specified time frame",  # a SAS of Azure
        _EXPIRED,
    ),
    (
        r"<Code>(InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|InvalidSecurity|AuthenticationFailed)<",
        "the credentials are not valid",
    ),
)
_CAUSES = (
    *_REFUSALS,
    (_FULL, "the bucket or its quota is full"),
    (_PROTECTED, "a retention policy or a lock protects the objects of this bucket"),
    # Words of the network library.
    (
        r"InvalidCertificate|invalid peer certificate|UnknownIssuer",
        "the server's TLS certificate is not valid",
    ),
    (r"dns error|failed to lookup|ResolveError|\"dns\"", "the name of the server is unknown"),
    (r"ConnectionRefused|Connection refused", "the server refuses connections"),
    (r"NetworkUnreachable|HostUnreachable|No route to host", "the server cannot be reached"),
    (
        r"URL scheme is not allowed|BadScheme",
        "the server redirects to an address without encryption (http), which is not followed",
    ),
    (r"MissingContentLength", "the server does not state the size of the file (Content-Length)"),
)
_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound|InvalidBucketName)<")
_OTHER_REGION = re.compile(
    r"redirect without "
    r"LOCATION|<Code>(PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraintException)<"
)
_REGION = re.compile(r"<Region>([\w-]+)</Region>|expecting &apos;([\w-]+)|expecting '([\w-]+)'")
_ELSEWHERE = re.compile(rf"\b{re.escape(redirects.NOWHERE)}\b(?!\d)")
_REQUESTED = re.compile(r"Error performing \w+ (https?://[^\s?]+)")
_TIMEOUT = re.compile(r"TimedOut|kind: Timeout|operation timed out")


def _raise(
    error: Exception, url: str, connection: Connection, access: Access, tried: str = "read"
) -> NoReturn:
    """Raise the builtin error, or one of this package, that an error of obstore means."""
    exceptions: Any = import_extra("obstore.exceptions", url, "remote")
    text = str(error)
    is_web = _kind(url) == "HTTP"
    if _ELSEWHERE.search(text):
        if is_web:
            raise RedirectedError from None
        raise OSError(
            errno.EIO,
            f"cannot be {tried}: {_elsewhere(text, connection)}, which is not followed for a "
            "bucket",
            url,
        ) from None
    is_redirected = is_web and connection.server != _server_of(url)
    via = (
        f", from {connection.server}, to which {_server_of(url)} redirects" if is_redirected else ""
    )
    if _NO_BUCKET.search(text):
        raise MissingError(f"{url}: no such bucket: {connection.server}") from None
    if isinstance(error, FileNotFoundError):
        raise os_error(errno.ENOENT, url) from None
    if not is_web and _OTHER_REGION.search(text):
        told = _REGION.search(text)
        region = next(filter(None, told.groups())) if told else _region_of(connection, access)
        where = (
            f"{connection.server} is in {f'the region {region}' if region else 'another region'}, "
            f"not in {access.region or 'the default one'}"
        )
        raise OSError(
            errno.EIO, f"cannot be {tried}: {where}; state its region (docs/remote.md)", url
        ) from None
    if _FULL.search(text):
        raise OSError(errno.ENOSPC, f"cannot be {tried}: {_reason(text)}", url) from None
    if isinstance(error, exceptions.PreconditionError):
        raise ReplacedError(f"{url}: was replaced since it was opened; open it again") from None
    if isinstance(error, exceptions.NotSupportedError) and tried == "read":
        raise UnsupportedError(f"{url}: the server does not support range requests") from None
    if isinstance(error, (exceptions.InvalidPathError, ValueError)):
        raise UnsupportedError(f"{url}: cannot be read: {text.partition(_DEBUG)[0]}") from None
    if (
        isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
        or _REFUSED.search(text)
        or _PROTECTED.search(text)
        or any(re.search(pattern, text) for pattern, _ in _REFUSALS)
    ):
        who = f"; this was {connection.who}" if connection.who else ""
        raise PermissionError(
            errno.EACCES, f"cannot be {tried}: {_reason(text)}{who}{via}", url
        ) from None
    if _TIMEOUT.search(text):
        raise TimeoutError(
            errno.ETIMEDOUT,
            f"no answer from {connection.server} within {_NO_ANSWER_SECONDS} seconds",
            url,
        ) from None
    if isinstance(error, exceptions.BaseError):
        raise OSError(errno.EIO, f"cannot be {tried}: {_reason(text)}{via}", url) from None
    raise error


def _elsewhere(text: str, connection: Connection) -> str:
    """Name the hosts of a redirect that an error reports."""
    requested = _REQUESTED.search(text)  # without a query; a URL with a SAS is left out of the text
    url = requested[1] if requested is not None else connection.address
    if not url:
        return "the server redirects to another host"
    return f"{_server_of(url)} redirects to {redirects.next_server(url) or 'another host'}"


def _region_of(connection: Connection, access: Access) -> str | None:
    """Ask S3 for the region of a bucket; None if it does not say."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection  # slow to import

    endpoint = urlsplit(
        amazon_credentials(access).options.get("endpoint", "https://s3.us-east-1.amazonaws.com")
    )
    server = (HTTPSConnection if endpoint.scheme == "https" else HTTPConnection)(
        endpoint.netloc, timeout=_REGION_SECONDS
    )
    try:
        server.request("HEAD", f"{endpoint.path}/{connection.server.partition('://')[2]}")
        return server.getresponse().headers.get("x-amz-bucket-region")  # of any status
    except (HTTPException, OSError):
        return None
    finally:
        server.close()


def _reason(text: str) -> str:
    """Return the cause in the text of an error of obstore."""
    status, code = _STATUS.search(text), _CODE.search(text)
    cause = next((what for pattern, what in _CAUSES if re.search(pattern, text)), None)
    known = [
        *([status[1].strip()] if status else []),
        *([code[1] or code[2]] if code else []),
        *([cause] if cause else []),
    ]
    return ", ".join(known) or text.partition(_DEBUG)[0].rpartition(" - ")[2]


def _mark_forked() -> None:
    global _is_forked
    _is_forked = _is_forked or _is_in_use


os.register_at_fork(after_in_child=_mark_forked)
