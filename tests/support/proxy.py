"""A proxy in front of a web server, in a thread of the test: it counts requests and bytes, adds
latency, and injects faults."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE_NBYTES = 1 << 18
_ENDLESS = 1 << 50
"""Length of a body that never ends [bytes]."""
_LARGEST_KNOWN_NBYTES = 1 << 20
_EXPECT = re.compile(rb"(?<=\r\n)expect:[^\r]*\r\n", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """An answer of the proxy itself. A header ``Content-Length`` replaces the true one."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """An answer of the server whose connection breaks after so many bytes of the body, and before
    the head if that is None."""

    nbytes: int | None = None


@dataclass(frozen=True)
class Endless:
    """A body of zeros that ends when the client hangs up. It has a ``claimed`` length or comes in
    chunks, and claims to be the requested range."""

    claimed: int | None = None


@dataclass(frozen=True)
class Silence:
    """No answer, while the connection stays open."""


@dataclass(frozen=True)
class Drip:
    """A body sent byte by byte, with a pause before each [s], until the client hangs up."""

    pause: float


@dataclass(frozen=True)
class Held:
    """The server gets the request only after an event."""

    until: threading.Event


@dataclass(frozen=True)
class After:
    """The server does what was asked for; then a function is called, and the client gets another
    answer: None for that of the server to the same request, which it gets twice."""

    answer: Fault | None = None
    then: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Stale:
    """The answer to the same GET before the last one, if it was made twice."""


Fault = Answer | Cut | Endless | Silence | Drip | Held | After | Stale


@dataclass
class Exchange:
    """A request and what was answered."""

    method: str
    path: str
    range: str | None
    headers: dict[str, str] = field(repr=False, default_factory=dict)
    """Headers of the request, with lower-case names."""
    status: int = 0
    nbytes: int = 0
    """Bytes of the answer's body."""


class Proxy:
    """A running proxy: its requests so far, and its next faults.

    Parameters
    ----------
    server : str
        URL of the server behind it.
    latency : float
        Pause before each answer, and before the first request of a connection [s].
    """

    def __init__(self, server: str, latency: float = 0.0) -> None:
        parts = urlsplit(server)
        self._server = (parts.hostname, parts.port)
        self.latency = latency
        self.url = ""
        self.requests: list[Exchange] = []
        self.failures: list[Fault] = []
        """Next answers, the last one first."""
        self.fault: Callable[[Exchange], Fault | None] = lambda request: None
        """Chooses the fault of a request, None for an honest answer."""
        self.most_at_once = 0
        """Largest number of requests that waited for their answers at the same time."""
        self._waiting = 0
        self._known: dict[tuple[str, str | None], list[bytes]] = {}
        """Whole answers to the last two GET requests of the same path and range."""
        self.added: dict[str, str] = {}
        """Headers that answers of the server lack."""

    def clear(self) -> None:
        """Forget the requests, and be honest again."""
        self.requests.clear()
        self.failures.clear()
        self.fault = lambda request: None
        self.most_at_once = 0

    def names(self) -> list[str]:
        """List the last part of each requested path."""
        return [request.path.partition("?")[0].rpartition("/")[2] for request in self.requests]

    def nbytes(self) -> int:
        """Add up the bytes of all answers."""
        return sum(request.nbytes for request in self.requests)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        upstream = None
        try:
            await asyncio.sleep(self.latency)
            while head := await _head(reader):
                request = _parse(head)
                self.requests.append(request)
                if "expect" in request.headers:  # boto3 sends a body after this answer alone
                    head = _EXPECT.sub(b"", head)
                    await asyncio.sleep(self.latency)
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await reader.readexactly(int(request.headers.get("content-length", 0)))
                self._waiting += 1
                self.most_at_once = max(self.most_at_once, self._waiting)
                await asyncio.sleep(self.latency)
                self._waiting -= 1
                fault = self.failures.pop() if self.failures else self.fault(request)
                if isinstance(fault, Held):
                    await asyncio.to_thread(fault.until.wait)
                    fault = None
                if isinstance(fault, After):
                    await self._exchange(request, head + body)
                    fault.then()
                    fault = fault.answer
                if isinstance(fault, Stale):
                    known = self._known.get((request.path, request.range), [])
                    if request.method == "GET" and len(known) == 2:
                        writer.write(known[0])
                        await writer.drain()
                        continue
                    fault = None
                if isinstance(fault, Cut) and fault.nbytes is None:
                    return
                if isinstance(fault, Cut) or fault is None:
                    if upstream is not None and upstream[0].at_eof():  # it was idle for long
                        upstream[1].close()
                        upstream = None
                    upstream = upstream or await asyncio.open_connection(
                        *self._server, limit=_PIECE_NBYTES
                    )
                    upstream[1].write(head + body)
                    stays = await self._relay(
                        request, upstream[0], writer, None if fault is None else fault.nbytes
                    )
                else:
                    stays = await self._answer(request, fault, writer)
                if not stays:
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has hung up, or the proxy ends
        finally:
            for end in (writer, *(upstream or ())[1:]):
                end.close()

    async def _exchange(self, request: Exchange, message: bytes) -> None:
        """Send a request to the server, and wait for its answer, which nobody gets."""
        source, end = await asyncio.open_connection(*self._server, limit=_PIECE_NBYTES)
        end.write(message)
        await _whole(source, request)
        end.close()

    async def _answer(self, request: Exchange, fault: Fault, writer: asyncio.StreamWriter) -> bool:
        if isinstance(fault, Silence):
            await asyncio.sleep(3600)
        if isinstance(fault, Endless):
            return await self._flood(request, fault, writer)
        if isinstance(fault, Drip):
            writer.write(_format(200 if request.range is None else 206, _claimed(request, 1 << 14)))
            while not writer.is_closing():
                await asyncio.sleep(fault.pause)
                writer.write(b" ")
                await writer.drain()
            return False
        headers = {"Content-Length": str(len(fault.body)), **fault.headers}
        request.status, body = fault.status, b"" if request.method == "HEAD" else fault.body
        request.nbytes = len(body)
        writer.write(_format(fault.status, headers) + body)
        await writer.drain()
        return int(headers["Content-Length"]) == len(fault.body)

    async def _flood(self, request: Exchange, fault: Endless, writer: asyncio.StreamWriter) -> bool:
        claimed = _ENDLESS if fault.claimed is None else fault.claimed
        headers = (
            {"Transfer-Encoding": "chunked"}
            if fault.claimed is None
            else {"Content-Length": str(claimed)}
        )
        request.status, piece = 200 if request.range is None else 206, bytes(_PIECE_NBYTES)
        if request.range is not None:
            headers["Content-Range"] = f"{request.range.replace('=', ' ')}/{_ENDLESS}"
        writer.write(_format(request.status, headers))
        for _ in range(claimed // len(piece)):
            request.nbytes += len(piece)
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if fault.claimed is None else piece)
            await writer.drain()
        return False

    async def _relay(
        self,
        request: Exchange,
        source: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        most: int | None,
    ) -> bool:
        """Pass an answer on; returns whether the connection is still of use."""
        if not (head := await _head(source)):
            raise ConnectionResetError
        status, headers = _status(head)
        request.status = status
        writer.write(head[:-2] + _lines(self.added) + b"\r\n")
        if request.method == "HEAD" or status in (204, 304):
            await writer.drain()
            return _stays(head, headers)
        pieces = (
            _chunks(source)
            if headers.get("transfer-encoding") == "chunked"
            else _body(source, headers.get("content-length"))
        )
        whole = [head]
        async for piece, framed in pieces:
            whole.append(framed)
            if most is not None and request.nbytes + len(piece) > most:
                writer.write(framed[: most - request.nbytes])
                await writer.drain()
                return False
            request.nbytes += len(piece)
            writer.write(framed)
            await writer.drain()
        if request.method == "GET" and request.nbytes <= _LARGEST_KNOWN_NBYTES:
            known = self._known.setdefault((request.path, request.range), [])
            known.append(b"".join(whole))
            del known[:-2]
        return _stays(head, headers)


async def _whole(source: asyncio.StreamReader, request: Exchange) -> None:
    """Read an answer to its end."""
    status, headers = _status(await _head(source))
    if request.method == "HEAD" or status in (204, 304):
        return
    if headers.get("transfer-encoding") == "chunked":
        async for _ in _chunks(source):
            pass
    else:
        async for _ in _body(source, headers.get("content-length")):
            pass


def _claimed(request: Exchange, nbytes: int) -> dict[str, str]:
    """Return headers of a body of as many bytes as were asked for, or of the whole file of that
    many."""
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.range or "")
    if found is None:
        return {"Content-Length": str(nbytes)}
    first, last = int(found[1]), int(found[2])
    return {
        "Content-Length": str(last + 1 - first),
        "Content-Range": f"bytes {first}-{last}/{last + 1}",
    }


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Read up to the empty line; nothing where the connection ended."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return b""


async def _body(source: asyncio.StreamReader, length: str | None):
    """Go through a body of a known length, or up to the end of the connection: each piece twice."""
    left = _ENDLESS if length is None else int(length)
    while left:
        piece = await source.read(min(left, _PIECE_NBYTES))
        if not piece:
            return
        left -= len(piece)
        yield piece, piece


async def _chunks(source: asyncio.StreamReader):
    """Go through a chunked body: the bytes of each chunk, and the chunk as it was sent."""
    while True:
        line = await source.readuntil(b"\r\n")
        data = await source.readexactly(int(line.partition(b";")[0], 16) + 2)
        yield data[:-2], line + data
        if len(data) == 2:
            return


def _parse(head: bytes) -> Exchange:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    return Exchange(method, path, headers.get("range"), headers)


def _status(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip().lower()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    return int(first.split(" ")[1]), headers


def _stays(head: bytes, headers: dict[str, str]) -> bool:
    is_delimited = (
        "content-length" in headers
        or headers.get("transfer-encoding") == "chunked"
        or re.match(rb"HTTP/1.1 (204|304)", head)
    )
    return (
        bool(is_delimited) and head.startswith(b"HTTP/1.1") and headers.get("connection") != "close"
    )


def _format(status: int, headers: dict[str, str]) -> bytes:
    return b"HTTP/1.1 %d Told\r\n%s\r\n" % (status, _lines(headers))


def _lines(headers: dict[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


@contextlib.contextmanager
def proxy(server: str, latency: float = 0.0):
    """Run a proxy in front of the server at a URL; its own URL is ``url``."""
    known = Proxy(server, latency)
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(
        asyncio.start_server(known.serve, "127.0.0.1", 0, limit=_PIECE_NBYTES)
    )
    known.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield known
    finally:
        asyncio.run_coroutine_threadsafe(_end(listening), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(listening: asyncio.Server) -> None:
    """Stop listening, and drop the connections that are open."""
    listening.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
