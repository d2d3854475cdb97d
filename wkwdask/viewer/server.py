"""Web server of the viewer, on the loopback interface: files of the Neuroglancer client, and
layers, below a secret path.

    /TOKEN/               opens the client with the first state
    /TOKEN/v/0/NAME       file NAME of the client; the client takes the end of this path for the name of a viewer
    /TOKEN/events/0       event stream of the client, without events
    /TOKEN/data/N/KEY     file KEY of layer N

Only these are answered, to GET and HEAD, and only for the host names of the loopback interface:
else a page on the internet could let its host name point here and read the answers (DNS rebinding).
Behind a proxy the host name is that of the proxy, and the token alone protects the layers.
"""  # noqa: E501

from __future__ import annotations

import importlib.util
import re
import secrets
import threading
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from wkwdask.errors import MissingError, WkwDaskError
from wkwdask.store.store import store_at
from wkwdask.viewer.http import ADDRESS, Answer, HttpServer, is_closed

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wkwdask.store.content import Content, ContentSource
    from wkwdask.viewer.http import Request

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".wasm": "application/wasm",
    ".map": "application/json",
}
_HOSTS = {ADDRESS, "localhost", "::1"}
_HOST = re.compile(r"[\w.\-\[\]:]+", re.ASCII)
_PIECE_NBYTES = 1 << 20  # read and sent at once
_DECODED_AT_ONCE = 8
_DATA = re.compile(r"data/([0-9]{1,6})/(.*)", re.ASCII)
_COMMON = "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
_NO_STORE = "Cache-Control: no-store\r\n"


def client_files() -> dict[str, str]:
    """Return the files of the Neuroglancer client by their names, from the package
    ``neuroglancer``, which is not imported."""
    spec = importlib.util.find_spec("neuroglancer")
    folder = (
        f"{spec.submodule_search_locations[0]}/static/client"
        if spec is not None and spec.submodule_search_locations
        else ""
    )
    if not folder or not store_at(folder).is_file("index.html"):
        raise ModuleNotFoundError(
            (
                "the viewer needs the package neuroglancer, which is not installed: pip install "
                "'wkwdask[view]'"
            ),
            name="neuroglancer",
        )
    names = (
        name for name in store_at(folder).names() if f".{name.rpartition('.')[2]}" in CONTENT_TYPES
    )
    return {name: f"{folder}/{name}" for name in names if store_at(folder).is_file(name)}


class ViewerServer:
    """Server of some layers."""

    def __init__(
        self,
        sources: Sequence[ContentSource],
        make_page: Callable[[], bytes],
        client: Mapping[str, str],
        *,
        port: int = 0,
        cors: str | None = None,
        is_proxied: bool = False,
    ) -> None:
        """Begin to listen; ``make_page`` returns the first page, which is made when it is first
        asked for."""
        self.sources, self.client, self.cors, self.is_proxied = sources, client, cors, is_proxied
        self.token = secrets.token_urlsafe(24)
        self._make_page, self._lock = make_page, threading.Lock()
        self._first_page: bytes | None = None
        self._decoding = threading.Semaphore(_DECODED_AT_ONCE)
        origin = "Cross-Origin-Resource-Policy: same-origin\r\n"
        if cors is not None:
            origin = (
                f"Access-Control-Allow-Origin: {cors}\r\nAccess-Control-Expose-Headers: "
                "Content-Range\r\nVary: Origin\r\n"
            )
        self._common = _COMMON + origin
        self._fields = _NO_STORE + self._common
        self._data_fields = (
            f"Content-Type: application/octet-stream\r\nAccept-Ranges: bytes\r\n{self._fields}"
        )
        self._server = HttpServer(self._answer, port)
        self.port = self._server.port
        """Port on the loopback interface."""

    @property
    def url(self) -> str:
        """URL of the first page; who has it may read the layers."""
        return f"http://{ADDRESS}:{self.port}/{self.token}/"

    def close(self) -> None:
        """Stop the server."""
        self._server.close()

    def _answer(self, request: Request, connection: socket.socket) -> Answer:
        if request.method == "OPTIONS" and self.cors is not None:
            allowed = (
                "Access-Control-Allow-Methods: GET, HEAD\r\nAccess-Control-Allow-Headers: Range\r\n"
                "Access-Control-Allow-Private-Network: true\r\n"
            )
            return Answer(204, f"{allowed}Access-Control-Max-Age: 3600\r\n{self._fields}")
        if request.method not in ("GET", "HEAD"):
            return self._text(405, "only GET and HEAD are answered", "Allow: GET, HEAD\r\n")
        if not self.is_proxied and not _is_loopback(request.fields.get("host", "")):
            return self._text(
                403, "this server answers to the names of the loopback interface only"
            )
        if request.path == "/favicon.ico":  # every browser asks for it
            return Answer(204, self._fields)
        start, _, path = request.path[1:].partition("/")
        if (
            not secrets.compare_digest(start.encode("latin-1"), self.token.encode())
            or "/" not in request.path[1:]
        ):
            return self._text(404, "not found")
        data = _DATA.fullmatch(path)
        if data is not None:
            return self._data(int(data[1]), data[2], request, connection)
        if path == "":
            return Answer(
                200, f"Content-Type: text/html; charset=utf-8\r\n{self._fields}", self._page()
            )
        if path == "events/0":  # the client shows a warning if this stream ends
            return Answer(
                200,
                f"Content-Type: text/event-stream\r\n{self._fields}",
                b": \n\n",
                is_endless=True,
            )
        name = path.removeprefix("v/0/") or "index.html"
        file = self.client.get(name) if path.startswith("v/0/") else None
        if file is None:
            return self._text(404, "not found")
        kind = CONTENT_TYPES[f".{name.rpartition('.')[2]}"]
        with store_at(file).open_stream() as stream:
            content = stream.read()
        return Answer(
            200,
            f"Content-Type: {kind}\r\nCache-Control: private, max-age=3600\r\n{self._common}",
            content,
        )

    def _text(self, status: int, message: str, fields: str = "") -> Answer:
        return Answer(
            status,
            f"{fields}Content-Type: text/plain; charset=utf-8\r\n{self._fields}",
            f"{message}\n".encode(),
        )

    def _page(self) -> bytes:
        with self._lock:
            if self._first_page is None:
                self._first_page = self._make_page()
            return self._first_page

    def _data(self, number: int, path: str, request: Request, connection: socket.socket) -> Answer:
        # the path was not decoded before, so that an encoded slash is no slash
        key = path if "%" not in path else unquote(path)
        if (
            number >= len(self.sources)
            or "\\" in key
            or "\0" in key
            or key.count("/") != path.count("/")
        ):
            return self._text(404, "not found")
        source = self.sources[number]
        try:
            if not source.is_decoded:
                return self._read(source, key, request)
            with self._decoding:
                if is_closed(connection):
                    raise ConnectionAbortedError(
                        "the reader has moved on, and what it asked for may be slow to make"
                    )
                return self._read(source, key, request)
        except MissingError as error:
            return self._text(404, str(error))
        except ConnectionAbortedError:
            raise
        except (WkwDaskError, OSError) as error:
            return self._text(500, str(error))

    def _read(self, source: ContentSource, key: str, request: Request) -> Answer:
        content = source.open(key)
        if content is None:
            return self._text(404, "not found")
        answer = None
        try:
            answer = self._content(content, request)
        finally:
            if answer is None or not answer.rest:
                content.close()
        return answer

    def _content(self, content: Content, request: Request) -> Answer:
        status, fields, start, stop = 200, self._data_fields, 0, content.nbytes
        header = request.fields.get("range")
        if content.encoding:
            # a range would be one of the compressed bytes, so all are sent
            fields = f"Content-Encoding: {content.encoding}\r\n{fields}"
        elif header is not None:
            wanted = parse_range(header, content.nbytes)
            if wanted is None:
                return self._text(
                    416,
                    f"not one range of {content.nbytes} bytes: {header[:100]}",
                    f"Content-Range: bytes */{content.nbytes}\r\n",
                )
            start, stop = wanted
            status, fields = (
                206,
                f"Content-Range: bytes {start}-{stop - 1}/{content.nbytes}\r\n{fields}",
            )
        if request.method == "HEAD":
            return Answer(status, fields, nbytes=stop - start)
        first = min(stop, start + _PIECE_NBYTES)
        return Answer(
            status,
            fields,
            content.read(start, first),
            _pieces(content, first, stop) if first < stop else (),
            stop - start,
        )


def _pieces(content: Content, start: int, stop: int) -> Iterator[bytes]:
    try:
        for first in range(start, stop, _PIECE_NBYTES):
            yield content.read(first, min(stop, first + _PIECE_NBYTES))
    except (WkwDaskError, OSError) as error:
        # the client notices that bytes are missing
        raise ConnectionAbortedError(str(error)) from error
    finally:
        content.close()


def _is_loopback(host: str) -> bool:
    try:
        return _HOST.fullmatch(host) is not None and urlsplit(f"//{host}").hostname in _HOSTS
    except ValueError:  # brackets that are no address
        return False


def parse_range(header: str, nbytes: int) -> tuple[int, int] | None:
    """Parse a ``Range`` header with one range; None if it has none inside a file of ``nbytes``
    bytes.

    Examples
    --------
    >>> parse_range("bytes=10-19", 15), parse_range("bytes=-4", 15), parse_range("bytes=15-", 15)
    ((10, 15), (11, 15), None)
    """
    match = re.fullmatch(r"bytes=(\d{0,19})-(\d{0,19})", header.strip(), re.ASCII)
    if match is None or not any(match.groups()):
        return None
    if not match[1]:
        start, stop = max(0, nbytes - int(match[2])), nbytes
    else:
        start, stop = int(match[1]), min(int(match[2]) + 1 if match[2] else nbytes, nbytes)
    return (start, stop) if start < stop else None
