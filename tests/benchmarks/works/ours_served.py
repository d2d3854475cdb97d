"""The server of ``wkwdask.view``."""

from __future__ import annotations

import itertools
import json
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np

from .served import Ask, Served, chunk_files

REQUIRES = ("wkwdask", "neuroglancer")


class Wkw(Served):
    """Blocks of WKW as chunks of Zarr."""

    program = (
        "import sys, wkwdask; view = wkwdask.view(sys.argv[1]); print(view.url, flush=True); "
        "sys.stdin.read()"
    )

    @property
    def base(self) -> str:
        """Path of the layer on the server."""
        return f"{urlsplit(self.answer).path}data/0"

    def requests(self) -> list[Ask]:
        """Return the ranges of all chunks, from the indexes of the shards."""
        connection = HTTPConnection("127.0.0.1", self.port)
        document = json.loads(self.get(connection, (f"{self.base}/1/zarr.json", {})))
        shard = document["chunk_grid"]["configuration"]["chunk_shape"]
        inner = document["codecs"][0]["configuration"]["chunk_shape"]
        nbytes = 16 * int(np.prod(np.floor_divide(shard, inner)))
        asked = []
        for index in itertools.product(
            *(
                range(-(-length // edge))
                for length, edge in zip(document["shape"], shard, strict=True)
            )
        ):
            path = f"{self.base}/1/c/{'/'.join(map(str, index))}"
            table = np.frombuffer(
                self.get(connection, (path, {"Range": f"bytes=-{nbytes}"})), "<u8"
            ).reshape(-1, 2)
            asked += [
                (path, {"Range": f"bytes={start}-{start + size - 1}"})
                for start, size in table.tolist()
                if start < 1 << 63
            ]
        connection.close()
        return asked


class Files(Wkw):
    """Unchanged files of a precomputed volume."""

    program = Wkw.program.replace("sys.argv[1]", "'precomputed://' + sys.argv[1]")

    def requests(self) -> list[Ask]:
        """Return the files of all chunks."""
        return chunk_files(self.base, self.path)
