"""Stand-in for Google Cloud Storage: its XML API with generations, in memory.

Objects may be read and written by everybody. A test can answer single requests otherwise, or let
the server ignore conditions.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_PAGE = 1000
_META = "x-goog-meta-"


@dataclass(frozen=True)
class StoredObject:
    """One generation of an object."""

    data: bytes
    generation: int
    attributes: dict[str, str]
    time: float

    def headers(self):
        return {
            "ETag": f'"{md5(self.data).hexdigest()}"',
            "x-goog-generation": str(self.generation),
            "Last-Modified": formatdate(self.time, usegmt=True),
            "Accept-Ranges": "bytes",
            **self.attributes,
        }


@dataclass
class GoogleStorage:
    """Objects by ``/bucket/name``, and what goes wrong."""

    objects: dict[str, StoredObject] = field(default_factory=dict)
    honours_conditions: bool = True
    before: object = lambda _number, _method, _path: None
    """Called with the number, method and path of a request; a status that it returns, or a status
    and an error code, is the answer, and nothing is done."""
    after: object = lambda _number, _method, _path: None
    """As ``before``, but the request takes effect; 0 drops the connection."""
    url: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _numbers: itertools.count = field(default_factory=itertools.count)
    _uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def put(self, path, data, attributes=None):
        """Store the next generation of an object."""
        stored = StoredObject(data, next(self._numbers) + 1, attributes or {}, time.time())
        self.objects[path] = stored
        return stored

    def is_as_expected(self, path, headers):
        wanted = headers.get("x-goog-if-generation-match")
        if wanted is None or not self.honours_conditions:
            return True
        found = self.objects.get(path)
        return int(wanted) == (0 if found is None else found.generation)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer takes 40 ms
    storage: GoogleStorage

    def log_message(self, *_args):
        pass

    def do(self):
        storage, url = self.storage, urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query, keep_blank_values=True)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with storage.lock:
            number = next(storage._numbers)
            status = storage.before(number, self.command, path)
            if status is not None:
                status, code = status if isinstance(status, tuple) else (status, "Injected")
                self._answer(status, _error(code))
                return
            status, body, headers = self._done(path, query, data)
            instead = storage.after(number, self.command, path)
        if instead == 0:
            self.close_connection = True
            self.connection.close()
        elif instead is not None:
            self._answer(instead, _error("Injected"))
        else:
            self._answer(status, body, headers)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do  # noqa: N815

    def _done(self, path, query, data):
        """Do what a request asks for; return status, body and headers."""
        storage = self.storage
        if path.count("/") == 1 and self.command == "GET":
            return 200, self._listing(path, query), {}
        if self.command == "POST" and "uploads" in query:
            upload = f"upload-{next(storage._numbers)}"
            storage._uploads[upload] = {}
            text = f"<UploadId>{upload}</UploadId>"
            return 200, _xml("InitiateMultipartUploadResult", text), {}
        if self.command == "PUT" and "uploadId" in query:
            storage._uploads[query["uploadId"][0]][int(query["partNumber"][0])] = data
            return 200, b"", {"ETag": f'"{md5(data).hexdigest()}"'}
        if self.command == "POST" and "uploadId" in query:
            parts = storage._uploads.pop(query["uploadId"][0])
            stored = storage.put(path, b"".join(parts[n] for n in sorted(parts)))
            tag = f"<ETag>{stored.headers()['ETag']}</ETag>"
            return 200, _xml("CompleteMultipartUploadResult", tag), stored.headers()
        found = storage.objects.get(path)
        if self.command == "PUT":
            if not storage.is_as_expected(path, self.headers):
                return 412, _error("PreconditionFailed"), {}
            source = self.headers.get("x-goog-copy-source")
            attributes = {
                name: value
                for name, value in self.headers.items()
                if name.lower().startswith(_META)
            }
            if source is not None:
                copied = storage.objects.get("/" + unquote(source).lstrip("/"))
                if copied is None:
                    return 404, _error("NoSuchKey"), {}
                data, attributes = copied.data, copied.attributes
            return 200, b"", storage.put(path, data, attributes).headers()
        if found is None:
            return 404, _error("NoSuchKey"), {}
        if self.command == "DELETE":
            del storage.objects[path]
            return 204, b"", {}
        return self._read(found)

    def _read(self, found):
        size, headers = len(found.data), found.headers()
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            return 200, found.data, headers
        first, last = wanted.groups()
        begin = int(first) if first else max(0, size - int(last))
        end = size if not last or not first else min(size, int(last) + 1)
        if begin >= size:
            return 416, _error("InvalidRange"), {}
        return (
            206,
            found.data[begin:end],
            {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{size}"},
        )

    def _listing(self, bucket, query):
        prefix, delimiter = (query.get(name, [""])[0] for name in ("prefix", "delimiter"))
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        rows, folders, last = [], [], ""
        names = sorted(path.removeprefix(f"{bucket}/") for path in self.storage.objects)
        for name in names:
            if not name.startswith(prefix) or name <= after:
                continue
            if len(rows) + len(folders) == _PAGE:
                rows.append(f"<NextContinuationToken>{escape(last)}</NextContinuationToken>")
                break
            last, stored = name, self.storage.objects[f"{bucket}/{name}"]
            below = name[len(prefix) :]
            if delimiter and delimiter in below:
                folder = prefix + below.partition(delimiter)[0] + delimiter
                if folder not in folders:
                    folders.append(folder)
                continue
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.time))
            rows.append(
                f"<Contents><Key>{escape(name)}</Key><LastModified>{when}</LastModified>"
                f"<Size>{len(stored.data)}</Size><ETag>{stored.headers()['ETag']}</ETag></Contents>"
            )
        rows += [
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            for folder in folders
        ]
        return _xml("ListBucketResult", "".join(rows))

    def _answer(self, status, body=b"", headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _xml(name, text):
    return f'<?xml version="1.0" encoding="UTF-8"?><{name}>{text}</{name}>'.encode()


def _error(code):
    return _xml("Error", f"<Code>{code}</Code><Message>{code}</Message>")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of 5, further clients would wait for a second


@contextlib.contextmanager
def google_storage():
    """Run the stand-in in a thread; yield :class:`GoogleStorage`."""
    storage = GoogleStorage()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"storage": storage}))
    storage.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield storage
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
