"""The viewer server of cloud-volume."""

from __future__ import annotations

from .served import Ask, Served, chunk_files

REQUIRES = ("cloudvolume",)


class Files(Served):
    """Files of a precomputed volume."""

    package = "cloud-volume"
    program = """
import sys, threading
from cloudvolume import server
from http.server import HTTPServer
class Announced(HTTPServer):
    def __init__(self, address, handler):
        super().__init__(("127.0.0.1", 0), handler)
        print(self.server_port, file=sys.__stdout__, flush=True)
server.HTTPServer = Announced
server.ViewerServerHandler.log_message = lambda *_: None
sys.stdout = sys.stderr
threading.Thread(target=server.view, args=("file://" + sys.argv[1],), daemon=True).start()
sys.stdin.read()
"""

    def requests(self) -> list[Ask]:
        """Return the files of all chunks."""
        return chunk_files("", self.path)
