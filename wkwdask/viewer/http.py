"""A small web server on the loopback interface: one thread for each connection, requests without a
body.

A thread that waits for a disk or a bucket delays no other request, and no request changes the
thread: this takes a third of the CPU time of an event loop with a pool of threads. A client that is
slow to ask or to read is disconnected, and so is the one that has been idle longest when there are
too many. Specification: RFC 9112.
"""

from __future__ import annotations

import re
import socket
import socketserver
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ADDRESS = "127.0.0.1"
_MOST_CONNECTIONS = 512
_HEAD_NBYTES = 16 << 10
_HEAD_SECONDS = 30.0  # in which a client must send a request
_SEND_SECONDS = 60.0  # in which a client must take a piece of an answer
_POLL_SECONDS = 0.05
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110, section 5.6.2
_REQUEST_LINE = re.compile(rf"({_TOKEN}) (/[!-~]*) HTTP/1\.([01])")
_FIELD = re.compile(rf"({_TOKEN}):[ \t]*([^\0\r\n]*?)[ \t]*")
_REASONS = {
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    416: "Range Not Satisfiable",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}


@dataclass(frozen=True, slots=True)
class Request:
    """Head of a request."""

    method: str
    path: str
    """Path as it was sent, with its escapes, without the query."""
    fields: Mapping[str, str]
    """Header fields by their names in lower case."""
    is_last: bool
    """Whether the client closes the connection after the answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request."""

    status: int
    fields: str = ""
    """Lines of the header, each with its end."""
    body: bytes = b""
    rest: Iterable[bytes] = ()
    """Pieces after the body, made while they are sent."""
    nbytes: int | None = None
    """Size of body and rest, by default that of the body."""
    is_endless: bool = False
    """Whether the connection stays open after the body, until the client closes it."""


class RequestError(Exception):
    """A request that is refused with a status; the connection is closed, because the end of the
    request is unknown."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def parse_request(head: bytes) -> Request:
    """Parse a request without its empty last line.

    Examples
    --------
    >>> parse_request(b"GET /a%20b?c HTTP/1.1\\r\\nHost: localhost:80\\r\\nRange: bytes=0-4 ")
    Request(method='GET', path='/a%20b', fields={'host': 'localhost:80', 'range': 'bytes=0-4'}, is_last=False)
    """  # noqa: E501
    first, *lines = head.decode("latin-1").split("\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise RequestError(400, "not a request of HTTP/1.1 for a path")
    fields: dict[str, str] = {}
    for text in lines:
        field = _FIELD.fullmatch(text)
        if field is None:
            raise RequestError(400, "not a header field")
        name = field[1].lower()
        if name in fields and name in ("host", "content-length"):
            raise RequestError(400, f"more than one field {name}")
        fields[name] = f"{fields[name]}, {field[2]}" if name in fields else field[2]
    if "host" not in fields and line[3] == "1":
        raise RequestError(400, "no field host")
    if "transfer-encoding" in fields or fields.get("content-length", "0") != "0":
        raise RequestError(
            405 if line[1] not in ("GET", "HEAD") else 413, "requests have no body here"
        )
    tokens = fields.get("connection", "").lower().replace(" ", "").split(",")
    return Request(line[1], line[2].partition("?")[0], fields, line[3] == "0" or "close" in tokens)


class HttpServer(socketserver.ThreadingTCPServer):
    """Server that answers requests by a function, in separate threads."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, answer: Callable[[Request, socket.socket], Answer], port: int = 0) -> None:
        """Begin to listen; port 0 is any free one."""
        self.answer = answer
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._idle: dict[socket.socket, None] = {}
        """Connections that wait for a request, the one that waits longest first."""
        super().__init__((ADDRESS, port), _Connection)
        self.port = int(self.server_address[1])
        threading.Thread(
            target=self.serve_forever, args=(_POLL_SECONDS,), name="wkwdask-view", daemon=True
        ).start()

    def close(self) -> None:
        """Stop listening and close all connections."""
        self.shutdown()
        self.server_close()
        with self._lock:
            for connection in self._connections:
                _disconnect(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
            if len(self._connections) > _MOST_CONNECTIONS:
                _disconnect(next(iter(self._idle), request))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
            self._idle.pop(request, None)
        super().shutdown_request(request)

    def set_idle(self, connection: socket.socket, is_idle: bool) -> None:
        """Note whether a connection waits for a request."""
        with self._lock:
            if is_idle:
                self._idle[connection] = None
            else:
                self._idle.pop(connection, None)


def _disconnect(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the client has closed its connection."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Connection(socketserver.BaseRequestHandler):
    request: socket.socket
    server: HttpServer

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A timeout of Python would be one more system call for each piece, in which threads wait
        # for each other.
        self._set_timeout(socket.SO_RCVTIMEO, _HEAD_SECONDS)
        self._set_timeout(socket.SO_SNDTIMEO, _SEND_SECONDS)
        self._received = b""

    def handle(self) -> None:
        with suppress(OSError):  # the client is gone or too slow, or the server stops
            try:
                while (request := self._read()) is not None and self._send(
                    request, self.server.answer(request, self.request)
                ):
                    pass
            except RequestError as error:
                self._send(
                    Request("GET", "", {}, is_last=True),
                    Answer(error.status, "Content-Type: text/plain\r\n", f"{error}\n".encode()),
                )

    def _set_timeout(self, option: int, seconds: float) -> None:
        self.request.setsockopt(
            socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        )

    def _read(self) -> Request | None:
        """Return the next request, None if the client has closed the connection."""
        self.server.set_idle(self.request, True)
        end = time.monotonic() + _HEAD_SECONDS
        while (length := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > _HEAD_NBYTES:
                raise RequestError(431, "the header is too long")
            data = self.request.recv(_HEAD_NBYTES)
            if not data or time.monotonic() > end:
                return None
            self._received += data
        head, self._received = self._received[:length], self._received[length + 4 :]
        self.server.set_idle(self.request, False)
        return parse_request(head)

    def _send(self, request: Request, answer: Answer) -> bool:
        """Send an answer and return whether another request may follow."""
        is_last = request.is_last or answer.is_endless
        length = (
            ""
            if answer.is_endless or answer.status == 204
            else (
                "Content-Length: "
                f"{len(answer.body) if answer.nbytes is None else answer.nbytes}\r\n"
            )
        )
        end = "Connection: close\r\n\r\n" if is_last else "\r\n"
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n{answer.fields}{length}{end}"
        ).encode("latin-1")
        if request.method == "HEAD":
            self.request.sendall(head)
            return not is_last
        self.request.sendall(head + answer.body)
        for piece in answer.rest:
            self.request.sendall(piece)
        if answer.is_endless:
            self._set_timeout(socket.SO_RCVTIMEO, 0)
            while self.request.recv(_HEAD_NBYTES):
                pass
        return not is_last
