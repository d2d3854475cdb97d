"""A static file server."""

from __future__ import annotations

import atexit
import tempfile
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from support.nginx import nginx, nginx_program

from .served import Ask, Served, chunk_files

REQUIRES = ("wkwdask",)


class Files(Served):
    """Files of a precomputed volume, served by nginx."""

    def version(self) -> str:
        """Return nothing."""
        return ""

    def start(self) -> tuple[int, int]:
        """Start nginx."""
        if nginx_program() is None:
            raise FileNotFoundError("nginx is not installed: apt-get install nginx-light")
        stack = ExitStack()
        atexit.register(stack.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = urlsplit(stack.enter_context(nginx(Path(self.path), folder)).url).port
        return int((folder / "nginx.pid").read_text()), port

    def requests(self) -> list[Ask]:
        """Return the files of all chunks."""
        return chunk_files("", self.path)
