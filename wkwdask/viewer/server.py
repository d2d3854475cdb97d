"""Web server of the viewer, on the loopback interface: files of the Neuroglancer client, and
layers, below a secret path.

    /TOKEN/               opens the client with the first state
    /TOKEN/v/0/NAME       file NAME of the client; the client takes the end of this path for the name of a viewer
    /TOKEN/events/0       event stream of the client, without events
    /TOKEN/data/N/KEY     file KEY of layer N

Only these are answered, to GET and HEAD, and only for the host names of the loopback interface:
else a page on the internet could let its host name point here and read the answers (DNS rebinding).
Behind a proxy the host name is that of the proxy, and the token alone protects the layers.

Tornado speaks HTTP, in one thread. Files are read in others, so that one that waits for a disk or a
bucket delays no other request.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from wkwdask.errors import MissingError, WkwDaskError
from wkwdask.store.daemon_threads import DaemonThreads
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wkwdask.store.content import Content, ContentSource

ADDRESS = "127.0.0.1"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".wasm": "application/wasm",
    ".map": "application/json",
}
_HOSTS = {ADDRESS, "localhost", "::1"}
_HOST = re.compile(r"[\w.\-\[\]:]+", re.ASCII)
_DATA = re.compile(r"data/([0-9]{1,6})/(.*)", re.ASCII)
_TEXT = "text/plain; charset=utf-8"
_PIECE_NBYTES = 1 << 20  # read and sent at once
_READ_AT_ONCE = 32
_DECODED_AT_ONCE = 8
_WAITING_CONNECTIONS = 512
_HEAD_NBYTES = 16 << 10
_HEAD_SECONDS = 30.0  # in which a client must send a request
_SEND_SECONDS = 60.0  # in which a client must take a piece of an answer


def client_files() -> dict[str, str]:
    """Return the files of the Neuroglancer client by their names, from the package
    ``neuroglancer``, which is not imported."""
    spec = importlib.util.find_spec("neuroglancer")
    folder = (
        f"{spec.submodule_search_locations[0]}/static/client"
        if spec is not None and spec.submodule_search_locations
        else ""
    )
    store = store_at(folder)
    if not folder or not store.is_file("index.html"):
        raise ModuleNotFoundError(
            (
                "the viewer needs the package neuroglancer, which is not installed: pip install "
                "'wkwdask[view]'"
            ),
            name="neuroglancer",
        )
    names = (name for name in store.names() if f".{name.rpartition('.')[2]}" in CONTENT_TYPES)
    return {name: store.path_of(name) for name in names if store.is_file(name)}


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
        """Begin to listen; port 0 is any free one. ``make_page`` returns the first page, which is
        made when it is first asked for."""
        self.sources, self.client, self.cors, self.is_proxied = sources, client, cors, is_proxied
        self.token = secrets.token_urlsafe(24)
        self._make_page, self._lock = make_page, threading.Lock()
        self._first_page: bytes | None = None
        self.threads = {  # by whether they decode voxels
            False: DaemonThreads("wkwdask-view", _READ_AT_ONCE),
            True: DaemonThreads("wkwdask-view-decode", _DECODED_AT_ONCE),
        }
        try:
            listening = socket.create_server((ADDRESS, port), backlog=_WAITING_CONNECTIONS)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(f"port {port}: {why}; port=0 takes any free one") from None
        listening.setblocking(False)
        self.port = int(listening.getsockname()[1])
        """Port on the loopback interface."""
        self._loop, self._closing = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, args=[listening], name="wkwdask-view", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """URL of the first page; who has it may read the layers."""
        return f"http://{ADDRESS}:{self.port}/{self.token}/"

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._loop.call_soon_threadsafe(self._closing.set)
        if self._thread is not threading.current_thread():  # which may have collected the view
            self._thread.join()

    def _run(self, listening: socket.socket) -> None:
        try:
            self._loop.run_until_complete(self._serve(listening))
        finally:  # here, since a forked process has a copy of the loop that never ends
            self._loop.close()
            for threads in self.threads.values():
                threads.close()

    async def _serve(self, listening: socket.socket) -> None:
        server = HTTPServer(
            # the log of tornado would show each file that is absent
            Application([(".*", _Handler)], viewer=self, log_function=lambda _: None),
            max_header_size=_HEAD_NBYTES,
            max_body_size=0,
            idle_connection_timeout=_HEAD_SECONDS,
        )
        server.add_socket(listening)
        await self._closing.wait()
        server.stop()
        await server.close_all_connections()

    def page(self) -> bytes:
        """Return the first page."""
        with self._lock:
            if self._first_page is None:
                self._first_page = self._make_page()
            return self._first_page


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes
    start: int = 0
    stop: int = 0
    """Range of the content that follows the body."""
    content: Content | None = None
    """Content after the body, to be closed."""

    def read(self) -> bytes:
        """Read the content after the body."""
        return b"" if self.content is None else self.content.read(self.start, self.stop)


def _text(status: int, message: str, **headers: str) -> _Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return _Answer(status, {"Content-Type": _TEXT, **named}, f"{message}\n".encode())


class _Handler(RequestHandler):
    def initialize(self) -> None:
        self._is_gone = asyncio.Event()

    @property
    def _server(self) -> ViewerServer:
        server: ViewerServer = self.settings["viewer"]
        return server

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        if self._server.cors is None:
            self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        else:
            self.set_header("Access-Control-Allow-Origin", self._server.cors)
            self.set_header("Access-Control-Expose-Headers", "Content-Range")
            self.set_header("Vary", "Origin")

    def compute_etag(self) -> None:
        """State none: files are not kept by the browser."""

    def on_connection_close(self) -> None:
        self._is_gone.set()

    def write_error(self, status_code: int, **_: Any) -> None:
        if status_code == 405:
            self.set_header("Allow", "GET, HEAD")
        self.set_header("Content-Type", _TEXT)
        self.finish("only GET and HEAD are answered\n" if status_code == 405 else "failed\n")

    def options(self) -> None:
        if self._server.cors is None:
            self.send_error(405)
            return
        self.set_status(204)
        self.set_header("Access-Control-Allow-Methods", "GET, HEAD")
        self.set_header("Access-Control-Allow-Headers", "Range")
        self.set_header("Access-Control-Allow-Private-Network", "true")
        self.set_header("Access-Control-Max-Age", "3600")

    async def get(self) -> None:
        path = self.request.path
        hosts = self.request.headers.get_list("Host")
        start, bar, rest = path[1:].partition("/")
        if not self._server.is_proxied and not (len(hosts) == 1 and _is_loopback(hosts[0])):
            await self._send(
                _text(403, "this server answers to the names of the loopback interface only")
            )
        elif path == "/favicon.ico":  # every browser asks for it
            self.set_status(204)
        elif not bar or not secrets.compare_digest(
            start.encode("latin-1"), self._server.token.encode()
        ):
            await self._send(_text(404, "not found"))
        elif rest == "events/0":
            await self._send_no_events()
        else:
            data = _DATA.fullmatch(rest)
            source = None if data is None else self._source(int(data[1]), data[2])
            threads = self._server.threads[source is not None and source.is_decoded]
            await self._send(
                await asyncio.wrap_future(
                    threads.submit(self._client_file, rest)
                    if data is None
                    else threads.submit(self._read, (source, data[2]))
                )
            )

    head = get

    async def _send(self, answer: _Answer) -> None:
        """Send an answer piece by piece; a client that is slow to take one is disconnected."""
        self.set_status(answer.status)
        for name, value in answer.headers.items():
            self.set_header(name, value)
        self.set_header("Content-Length", str(len(answer.body) + answer.stop - answer.start))
        try:
            await self._send_piece(answer.body)
            for first in range(answer.start, answer.stop, _PIECE_NBYTES) if answer.content else ():
                rest = answer._replace(start=first, stop=min(answer.stop, first + _PIECE_NBYTES))
                reading = self._server.threads[False].submit(_Answer.read, rest)
                await self._send_piece(await asyncio.wrap_future(reading))
        except (OSError, WkwDaskError):  # the client notices that bytes are missing
            self.detach().close()
        finally:
            if answer.content is not None:
                answer.content.close()

    async def _send_piece(self, data: bytes) -> None:
        self.write(data)
        await asyncio.wait_for(self.flush(), _SEND_SECONDS)

    async def _send_no_events(self) -> None:
        """Leave the stream of events open: the client shows a warning when it ends."""
        self.set_header("Content-Type", "text/event-stream")
        await self._send_piece(b": \n\n")
        if self.request.method == "GET":
            await self._is_gone.wait()

    def _client_file(self, path: str) -> _Answer:
        if path == "":
            return _Answer(200, {"Content-Type": CONTENT_TYPES[".html"]}, self._server.page())
        name = path.removeprefix("v/0/") or "index.html"
        file = self._server.client.get(name) if path.startswith("v/0/") else None
        if file is None:
            return _text(404, "not found")
        headers = {
            "Content-Type": CONTENT_TYPES[f".{name.rpartition('.')[2]}"],
            "Cache-Control": "private, max-age=3600",
        }
        with store_at(file).open_stream() as stream:
            return _Answer(200, headers, stream.read())

    def _source(self, number: int, path: str) -> ContentSource | None:
        """Return a layer; None if there is none, or the path is that of no file."""
        # the path was not decoded before, so that an encoded slash is no slash
        key = unquote(path)
        is_valid = "\\" not in key and "\0" not in key and key.count("/") == path.count("/")
        sources = self._server.sources
        return sources[number] if number < len(sources) and is_valid else None

    def _read(self, wanted: tuple[ContentSource | None, str]) -> _Answer:
        source, path = wanted
        if self._is_gone.is_set():  # the reader has moved on, and this may be slow to make
            return _text(404, "not found")
        try:
            content = None if source is None else source.open(unquote(path))
            if content is None:
                return _text(404, "not found")
            answer = None
            try:
                answer = self._content(content)
            finally:
                if answer is None or answer.content is None:
                    content.close()
        except MissingError as error:
            return _text(404, str(error))
        except (WkwDaskError, OSError) as error:
            return _text(500, str(error))
        return answer

    def _content(self, content: Content) -> _Answer:
        headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        status, start, stop = 200, 0, content.nbytes
        header = self.request.headers.get("Range")
        if content.encoding:
            # a range would be one of the compressed bytes, so all are sent
            headers["Content-Encoding"] = content.encoding
        elif header is not None:
            wanted = parse_range(header, content.nbytes)
            if wanted is None:
                return _text(
                    416,
                    f"not one range of {content.nbytes} bytes: {header[:100]}",
                    Content_Range=f"bytes */{content.nbytes}",
                )
            status, (start, stop) = 206, wanted
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{content.nbytes}"
        if self.request.method == "HEAD":
            return _Answer(status, headers, b"", start, stop)
        first = min(stop, start + _PIECE_NBYTES)
        rest = content if first < stop else None
        return _Answer(status, headers, content.read(start, first), first, stop, rest)


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
