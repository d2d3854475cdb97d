"""A web server of a folder that serves byte ranges, in a thread of the test."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from pathlib import Path


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.requests.append((self.path, self.headers.get("Range")))
        path = Path(server.folder) / self.path.lstrip("/")
        if server.failures:
            self._answer(server.failures.pop(), b"")
            return
        if not path.is_file():
            self._answer(server.absent, b"")
            return
        data, span = (
            path.read_bytes(),
            re.fullmatch(r"bytes=(\d*)-(\d+)", self.headers.get("Range") or ""),
        )
        if span is None or not server.serves_ranges:
            self._answer(200, data)
            return
        # the last bytes, without a start
        first, last = (
            (int(span[1]), int(span[2]))
            if span[1]
            else (max(0, len(data) - int(span[2])), len(data) - 1)
        )
        if first >= len(data):
            self._answer(416, b"")
            return
        self._answer(
            206, data[first : last + 1], f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
        )

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status, data, content_range=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args):
        """Say nothing."""


@contextlib.contextmanager
def range_server(folder, *, serves_ranges=True, absent=404):
    """Serve a folder; ``absent`` is the status of files that are not there.

    ``requests`` of what is given lists paths and ranges, ``failures`` are the next answers, and
    ``url`` is where it is.
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.folder, server.serves_ranges, server.absent, server.requests, server.failures = (
        folder,
        serves_ranges,
        absent,
        [],
        [],
    )
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
