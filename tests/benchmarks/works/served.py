"""Servers of chunks in a separate process, and a client with as many connections as a browser has.
Only the CPU time of the server is counted."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from .base import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONNECTIONS = 6
SCALE = "8_8_8"

Ask = tuple[str, dict[str, str]]
"""Path and header fields of a request."""


class Served(Work):
    """All chunks of a volume, each requested once.

    Parameters
    ----------
    path : str
        The volume.
    chunk_nbytes : int
        Bytes of the voxels of a chunk.
    """

    program = ""
    """Python program that serves a path, writes its port or URL, and ends with its input."""

    def __init__(self, path: str, chunk_nbytes: int) -> None:
        self.path = path
        self.pid, self.port = self.start()
        self.asked = self.requests()
        self.nbytes = len(self.asked) * chunk_nbytes

    def start(self) -> tuple[int, int]:
        """Start the server, and return its process and port."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.program, self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer = self._process.stdout.readline().strip()
        return self._process.pid, int(self.answer.rpartition(":")[2].partition("/")[0])

    def requests(self) -> list[Ask]:
        """Return the request of each chunk."""
        raise NotImplementedError

    def get(self, connection: HTTPConnection, ask: Ask) -> bytes:
        """Send a request."""
        connection.request("GET", ask[0], headers=ask[1])
        answer = connection.getresponse()
        assert answer.status in (200, 206), f"{ask}: {answer.status}"
        return answer.read()

    def run(self) -> dict[str, float]:
        """Request all chunks."""
        process = psutil.Process(self.pid)
        before = process.cpu_times()
        with ThreadPoolExecutor(_CONNECTIONS) as threads:
            list(
                threads.map(
                    self._get_some, [self.asked[n::_CONNECTIONS] for n in range(_CONNECTIONS)]
                )
            )
        after = process.cpu_times()
        return {"server": after.user + after.system - before.user - before.system}

    def _get_some(self, asked: Sequence[Ask]) -> None:
        connection = HTTPConnection("127.0.0.1", self.port)
        for ask in asked:
            self.get(connection, ask)
        connection.close()

    def digests(self) -> list[str]:
        """Return nothing: chunks have the encodings of their formats."""
        return []


def chunk_files(base: str, folder: str) -> list[Ask]:
    """Return requests for the files of the chunks of a scale of a precomputed volume, in no
    order."""
    return [(f"{base}/{SCALE}/{file.name}", {}) for file in Path(folder, SCALE).glob("[0-9]*")]
