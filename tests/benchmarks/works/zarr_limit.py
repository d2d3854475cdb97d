"""The parts of a pyramid of sharded Zarr, each timed alone: the limit of the machine."""

from __future__ import annotations

import os
import secrets
import time
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.opening import open_stored
from wkwdask.kernels.window.reduce import reduce_windows
from wkwdask.model.decompression import compress_zstd, decompress

from . import zarr_pyramids
from .base import NUM_MAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REQUIRES = ("wkwdask", "numcodecs", "imagecodecs")
_CODECS = {
    "zstd": {"id": "zstd", "level": 3},
    "blosc-lz4": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
}
_PIECE_NBYTES = 8 << 20


class Limit(zarr_pyramids.Pyramid):
    """Read all shards, decode all chunks, reduce all windows, encode all chunks of the coarser
    levels, and write as many bytes."""

    package = "wkwdask"

    def __init__(self, **options: Any) -> None:
        import numcodecs

        super().__init__(**options)
        self._codec = numcodecs.get_codec(_CODECS[self.compression])
        self._memory = np.empty(self.chunk**3, self.dtype)
        self._kind = _CODECS[self.compression]["id"]
        array = open_stored(f"zarr://{self.source}/1")[1]
        count = self.size // self.chunk
        self._chunks = {
            cell[1:]: data
            for cell, data, _, _ in array.layout.chunks(array, (range(1), *[range(count)] * 3))
        }
        self._files = [path for path in (self.source / "1").rglob("*") if path.is_file()]
        self._piece = memoryview(bytearray(_PIECE_NBYTES))

    def prepare(self) -> None:
        """Nothing is changed."""

    def run(self) -> dict[str, float]:
        """Return the seconds of each part; the coarser levels are held in memory."""
        seconds = dict.fromkeys(("decode", "reduce", "encode", "read", "write"), 0.0)

        def timed(part: str, work: Callable[[], Any]) -> Any:
            started = time.process_time()
            result = work()
            seconds[part] += time.process_time() - started
            return result

        timed("read", self._read)
        finer: np.ndarray | None = None
        size = self.size
        for _ in range(NUM_MAGS):
            coarser = np.empty((size // 2,) * 3, self.dtype, order="F")
            for box in _bricks(size, min(2 * self.chunk, size)):
                if finer is None:
                    brick = self._decoded(box, timed)
                else:
                    brick = np.asfortranarray(finer[box])
                out = np.empty([n // 2 for n in brick.shape], self.dtype, order="F")
                timed("reduce", lambda: reduce_windows(brick, (2, 2, 2), self.method, out))  # noqa: B023
                coarser[tuple(slice(part.start // 2, part.stop // 2) for part in box)] = out
            size //= 2
            nbytes = 0
            for box in _bricks(size, min(self.chunk, size)):
                chunk = np.ascontiguousarray(coarser[box].T)
                nbytes += len(timed("encode", lambda: self._encode(chunk)))  # noqa: B023
            timed("write", lambda: self._write(nbytes))  # noqa: B023
            finer = coarser
        return seconds

    def _decoded(self, box: tuple[slice, ...], timed: Callable[..., Any]) -> np.ndarray:
        """Decode the chunks of a brick; only decoding is timed."""
        brick = np.zeros([part.stop - part.start for part in box], self.dtype, order="F")
        first = [part.start // self.chunk for part in box]
        for offset in product(range(brick.shape[0] // self.chunk), repeat=3):
            x, y, z = (a + b for a, b in zip(first, offset, strict=True))
            data = self._chunks.get((x, y, z))
            if data is not None:
                values = timed("decode", lambda: self._decode(data))  # noqa: B023
                where = tuple(slice(n * self.chunk, (n + 1) * self.chunk) for n in offset)
                brick[where] = values.reshape((self.chunk,) * 3).T
        return brick

    def _decode(self, data: bytes) -> np.ndarray:
        values = decompress(self._kind, data, self._memory.view(np.uint8))
        return values.view(self.dtype)

    def _encode(self, chunk: np.ndarray) -> bytes:
        if self._kind == "zstd":
            return compress_zstd(chunk.reshape(-1).view(np.uint8), 3, has_checksum=False)
        return self._codec.encode(chunk)

    def _read(self) -> None:
        for path in self._files:
            with path.open("rb", buffering=0) as file:
                while file.readinto(self._piece):
                    pass

    def _write(self, nbytes: int) -> None:
        """Write a new file of so many bytes, and flush it.

        The file stays, as those of the pyramid do. Pages of a removed file are used again at once,
        and on virtual machines writing to other pages may take ten times as long.
        """
        self.folder.mkdir(exist_ok=True)
        with (self.folder / secrets.token_hex(8)).open("xb", buffering=0) as file:
            while nbytes:
                nbytes -= file.write(self._piece[:nbytes])
            os.fsync(file)

    def written(self) -> int:
        """Nothing stays."""
        return 0

    def digests(self) -> list[str]:
        """Return nothing: the pyramid itself is compared elsewhere."""
        return []


def _bricks(size: int, edge: int) -> Iterator[tuple[slice, ...]]:
    """Cut a cube into bricks."""
    for corner in product(range(0, size, edge), repeat=3):
        yield tuple(slice(at, at + edge) for at in corner)
