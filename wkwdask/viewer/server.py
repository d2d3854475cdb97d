"""Web server of the viewer, on the loopback interface: files of the Neuroglancer client, and layers, below a secret path.

    /TOKEN/               redirects to the client with the first state
    /TOKEN/v/0/NAME       file NAME of the client; the client takes the end of this path for the name of a viewer
    /TOKEN/events/0       event stream of the client, without events
    /TOKEN/data/N/KEY     file KEY of layer N

Only these are answered, to GET and HEAD, and only for the host names of the loopback interface: else a page on the internet could let its host name point
here and read the answers (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from wkwdask.errors import FormatError, MissingError, WkwDaskError
from wkwdask.store import files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wkwdask.store.content import Content, ContentSource

CONTENT_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm", ".map": "application/json"}
_ADDRESS = "127.0.0.1"
_HOSTS = {_ADDRESS, "localhost", "::1"}
_PIECE_NBYTES = 1 << 20  # read and sent at once
_HEADER_SECONDS = 30  # in which a client must send a request
_SEND_SECONDS = 60  # in which a client must take a piece
_THREADS = 8


def client_files() -> dict[str, str]:
    """Return the files of the Neuroglancer client by their names, from the package ``neuroglancer``, which is not imported."""
    spec = importlib.util.find_spec("neuroglancer")
    folder = f"{spec.submodule_search_locations[0]}/static/client" if spec is not None and spec.submodule_search_locations else ""
    if not folder or not files.isfile(f"{folder}/index.html"):
        raise ModuleNotFoundError("the viewer needs the package neuroglancer, which is not installed: pip install 'wkwdask[view]'", name="neuroglancer")
    names = (name for name in files.listdir(folder) if f".{name.rpartition('.')[2]}" in CONTENT_TYPES)
    return {name: f"{folder}/{name}" for name in names if files.isfile(f"{folder}/{name}")}


class ViewerServer:
    """Server of some layers; :meth:`start` begins to listen in the running event loop."""

    def __init__(
        self, sources: Sequence[ContentSource], fragment: Callable[[str], str], client: Mapping[str, str], *, port: int = 0, cors: str | None = None
    ) -> None:
        """Prepare the server; ``fragment`` returns the fragment of the first page for the URL below which the layers are."""
        self.sources, self.fragment, self.client, self.cors = sources, fragment, client, cors
        self.token = secrets.token_urlsafe(24)
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="wkwdask-view")
        options = {"server": self}
        prefix = f"/{re.escape(self.token)}"
        application = Application(
            [
                ("/favicon.ico", _NoIcon, options),  # every browser asks for it
                (f"{prefix}/", _FirstPage, options),
                (f"{prefix}/v/0/(.*)", _ClientFile, options),
                (f"{prefix}/events/0", _Events, options),
                (f"{prefix}/data/([0-9]{{1,6}})/(.*)", _LayerFile, options),
            ],
            default_handler_class=_Nothing,
            default_handler_args=options,
            log_function=lambda _: None,
        )
        self._server = HTTPServer(application, idle_connection_timeout=_HEADER_SECONDS, max_header_size=16 << 10, max_body_size=1, max_buffer_size=4 << 20)
        self.port = port
        """Port on the loopback interface; 0 becomes a free one when the server starts."""

    @property
    def url(self) -> str:
        """URL of the first page; who has it may read the layers."""
        return f"http://{_ADDRESS}:{self.port}/{self.token}/"

    def start(self) -> None:
        """Begin to answer requests."""
        sockets = bind_sockets(self.port, _ADDRESS)
        self.port = int(sockets[0].getsockname()[1])
        self._server.add_sockets(sockets)

    async def stop(self) -> None:
        """Close all connections."""
        self._server.stop()
        await self._server.close_all_connections()
        self.threads.shutdown(wait=False, cancel_futures=True)


class _Handler(RequestHandler):
    """Base of all pages."""

    SUPPORTED_METHODS = ("GET", "HEAD")

    def initialize(self, server: ViewerServer) -> None:
        self.owner = server
        self.set_default_headers()  # once more, now that the server is known

    def prepare(self) -> None:
        host = urlsplit(f"//{self.request.host}").hostname if re.fullmatch(r"[\w.\-\[\]:]+", self.request.host) else None
        if host not in _HOSTS:
            self._refuse(403, "this server answers to the names of the loopback interface only")

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        owner = self.owner if hasattr(self, "owner") else None
        if owner is not None and owner.cors is not None:
            self.set_header("Access-Control-Allow-Origin", owner.cors)
            self.set_header("Access-Control-Expose-Headers", "Content-Range")
        else:
            self.set_header("Cross-Origin-Resource-Policy", "same-origin")

    def compute_etag(self) -> None:
        """Return nothing: the hash of each chunk costs more than sending it."""

    def write_error(self, status_code: int, **_: Any) -> None:
        self.finish(f"{status_code}\n")

    def log_exception(self, *_: Any) -> None:
        """Report errors to the browser only."""

    def _refuse(self, status: int, message: str) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{message}\n")


class _Nothing(_Handler):
    def get(self) -> None:
        self._refuse(404, "not found")

    head = get


class _NoIcon(_Handler):
    def get(self) -> None:
        self.set_status(204)
        self.finish()

    head = get


class _FirstPage(_Handler):
    def get(self) -> None:
        base = f"http://{self.request.host}/{self.owner.token}/data"
        self.set_status(302)
        self.set_header("Location", f"v/0/#{self.owner.fragment(base)}")
        self.finish()

    head = get


class _ClientFile(_Handler):
    def get(self, name: str) -> None:
        name = name or "index.html"
        path = self.owner.client.get(name)
        if path is None:
            self._refuse(404, "not found")
            return
        self.set_header("Content-Type", CONTENT_TYPES[f".{name.rpartition('.')[2]}"])
        self.set_header("Cache-Control", "private, max-age=3600")
        self.finish(files.read_bytes(path))

    head = get


class _Events(_Handler):
    async def get(self) -> None:
        """Stay open: the client shows a warning if this stream ends."""
        self.set_header("Content-Type", "text/event-stream")
        self.write(": \n\n")
        await self.flush()
        if self.request.method == "GET" and self.request.connection is not None:
            self._closed = asyncio.Event()
            await self._closed.wait()

    head = get

    def on_connection_close(self) -> None:
        if hasattr(self, "_closed"):
            self._closed.set()


class _LayerFile(_Handler):
    async def get(self, number: str, path: str) -> None:
        # The path was not decoded before, so that an encoded slash is no slash.
        key, loop = unquote(path), asyncio.get_running_loop()
        if int(number) >= len(self.owner.sources) or "\\" in key or "\0" in key or key.count("/") != path.count("/"):
            self._refuse(404, "not found")
            return
        content: Content | None = None
        try:
            content = await loop.run_in_executor(self.owner.threads, self.owner.sources[int(number)].open, key)
            if content is None:
                self._refuse(404, "not found")
            else:
                await self._send(content)
        except MissingError as error:
            self._refuse(404, str(error))
        except (WkwDaskError, FormatError, OSError) as error:
            if not self._headers_written:
                self._refuse(500, str(error))
            else:
                self.request.connection.close()  # type: ignore[union-attr]
        finally:
            if content is not None:
                content.close()

    head = get

    async def _send(self, content: Content) -> None:
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("Accept-Ranges", "bytes")
        start, stop = 0, content.nbytes
        header = self.request.headers.get("Range")
        if content.encoding:
            self.set_header("Content-Encoding", content.encoding)  # a range would be one of the compressed bytes, so all are sent
        elif header is not None:
            wanted = parse_range(header, content.nbytes)
            if wanted is None:
                self.set_header("Content-Range", f"bytes */{content.nbytes}")
                self._refuse(416, f"not one range of {content.nbytes} bytes: {header[:100]}")
                return
            start, stop = wanted
            self.set_status(206)
            self.set_header("Content-Range", f"bytes {start}-{stop - 1}/{content.nbytes}")
        self.set_header("Content-Length", str(stop - start))
        if self.request.method == "HEAD":
            self.finish()
            return
        loop = asyncio.get_running_loop()
        for first in range(start, stop, _PIECE_NBYTES):
            self.write(await loop.run_in_executor(self.owner.threads, content.read, first, min(stop, first + _PIECE_NBYTES)))
            try:
                await asyncio.wait_for(self.flush(), _SEND_SECONDS)
            except (TimeoutError, StreamClosedError):
                self.request.connection.close()  # type: ignore[union-attr]
                return
        self.finish()


def parse_range(header: str, nbytes: int) -> tuple[int, int] | None:
    """Parse a ``Range`` header with one range; None if it has none inside a file of ``nbytes`` bytes.

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
