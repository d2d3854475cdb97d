"""Limits of the machine: pure compute on threads, the parts of a pyramid timed alone, and boxes of
a volume that is opened once."""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np

from wkwdask.formats.opening import open_stored
from wkwdask.formats.wkw.file import parse_jump_table, table_range
from wkwdask.formats.wkw.folder import file_path, read_header
from wkwdask.formats.wkw.header import BlockType
from wkwdask.kernels.blocks.batch import compress_bound, decode_into, encode_from
from wkwdask.kernels.blocks.layout import OFFSET, START
from wkwdask.kernels.blocks.locate import locate_blocks
from wkwdask.kernels.window.reduce import reduce_windows

from ..measure import FILE_PARTS
from .base import NUM_MAGS, Work
from .ours import Read

REQUIRES = ("wkwdask",)
_PIECE_NBYTES = 1 << 18
_BRICK_VX = 128
_FILE_PIECE_NBYTES = 8 << 20


class Compress(Work):
    """LZ4HC over pieces of memory that fit the cache, without the GIL and without shared data: how
    threads scale here at best.

    Parameters
    ----------
    threads : int
        Number of threads.
    pieces : int
        How many pieces.
    """

    def __init__(self, threads: int, pieces: int) -> None:
        self._threads, self._pieces = threads, pieces
        steps = np.random.default_rng(3).integers(-3, 4, _PIECE_NBYTES)
        self._piece = np.cumsum(steps).astype(np.uint8).tobytes()
        self._pool = ThreadPoolExecutor(threads)
        self.nbytes = pieces * _PIECE_NBYTES

    def _compress(self, count: int) -> None:
        for _ in range(count):
            lz4.block.compress(
                self._piece, mode="high_compression", compression=9, store_size=False
            )

    def run(self) -> None:
        """Compress."""
        if self._threads == 1:
            self._compress(self._pieces)
        else:
            list(self._pool.map(self._compress, [self._pieces // self._threads] * self._threads))

    def digests(self) -> list[str]:
        """Return nothing: there are no voxels."""
        return []


class Limit(Work):
    """Decode all source blocks, reduce all windows and encode all target blocks of a pyramid, each
    timed alone on bricks that fit the cache.

    Beside these, and not counted with them: to read as many bytes from a file and to write as many
    to new ones.

    Parameters
    ----------
    path : str
        The source mag: one file.
    size : int
        Edge of the volume [voxels].
    method, compression : str
        As for ``build_pyramid``.
    level : int
        LZ4HC level.
    """

    def __init__(self, path: str, size: int, method: str, compression: str, level: int) -> None:
        self._header = read_header(path)
        self._path = file_path(path, (0, 0, 0))
        self._raw = np.fromfile(self._path, np.uint8)
        self._piece = memoryview(self._raw[:_FILE_PIECE_NBYTES].copy())
        name = Path(path).name
        offset, nbytes = table_range(0, self._header.blocks_per_file)
        table = self._raw[offset : offset + nbytes].tobytes()
        self._bounds = parse_jump_table(
            table, self._header, 0, self._header.blocks_per_file, self._raw.size, name
        )
        self._dtype = self._header.dtype.newbyteorder("=")
        self._size, self._method, self._level = size, method, level
        self._block_type = BlockType.parse(compression)
        self.nbytes = size**3 * self._dtype.itemsize

    def run(self) -> dict[str, float]:
        """Return the seconds of each part; the coarser mags are held in memory, the source is
        not."""
        seconds = dict.fromkeys(("decode", "reduce", "encode", *FILE_PARTS), 0.0)
        _timed(seconds, "read", lambda: self._read)
        size = self._size // 2
        coarser = self._empty(size)
        for box in _bricks(self._size):
            brick = _timed(seconds, "decode", self._decode, box)
            coarser[_halved(box)] = _timed(seconds, "reduce", self._reduce, brick)
        self._encode_all(seconds, coarser)
        for _ in range(NUM_MAGS - 1):
            size //= 2
            finer, coarser = coarser, self._empty(size)
            for box in _bricks(2 * size):
                coarser[_halved(box)] = _timed(
                    seconds, "reduce", self._reduce, np.asfortranarray(finer[box])
                )
            self._encode_all(seconds, coarser)
        return seconds

    def _encode_all(self, seconds: dict[str, float], mag: np.ndarray) -> None:
        nbytes = sum(
            _timed(seconds, "encode", self._encode, np.asfortranarray(mag[box]))
            for box in _bricks(mag.shape[0])
        )
        _timed(seconds, "write", lambda: lambda: self._write(nbytes))

    def _empty(self, size: int) -> np.ndarray:
        return np.empty((size,) * 3, self._dtype, order="F")

    def _decode(self, box: tuple[slice, ...]) -> Any:
        """Lay out the decoding of a brick."""
        step = self._header.block_len
        low = tuple(part.start // step for part in box)
        high = tuple(-(-part.stop // step) for part in box)
        origin = tuple(-part.start for part in box)
        table = locate_blocks(self._bounds, low, high, step, origin, 0, 1 << 40).blocks
        table[:, START] = table[:, OFFSET]
        out = np.zeros((1, *(part.stop - part.start for part in box)), self._dtype, order="F")

        def work() -> np.ndarray:
            decode_into(
                self._raw,
                table,
                out,
                block_len=step,
                num_channels=1,
                block_type=self._header.block_type,
            )
            return out[0]

        return work

    def _reduce(self, brick: np.ndarray) -> Any:
        """Lay out the reduction of a brick."""
        out = np.zeros([n // 2 for n in brick.shape], self._dtype, order="F")

        def work() -> np.ndarray:
            reduce_windows(brick, (2, 2, 2), self._method, out)
            return out

        return work

    def _encode(self, brick: np.ndarray) -> Any:
        """Lay out the encoding of a brick."""
        step = self._header.block_len
        corners = np.array(list(product(range(0, brick.shape[0], step), repeat=3)), np.int64)
        out = np.zeros(len(corners) * compress_bound(self._header.block_nbytes), np.uint8)

        def work() -> int:
            return encode_from(
                brick[None],
                corners,
                out,
                block_len=step,
                block_type=self._block_type,
                level=self._level,
                store_zero=True,
            ).nbytes

        return work

    def _read(self) -> None:
        """Read all stored bytes."""
        with open(self._path, "rb", buffering=0) as file:
            while file.readinto(self._piece):
                pass

    def _write(self, nbytes: int) -> None:
        """Write a new file of so many bytes, and flush it."""
        with tempfile.TemporaryFile(dir=Path(self._path).parents[4], buffering=0) as file:
            while nbytes:
                nbytes -= file.write(self._piece[:nbytes])
            os.fsync(file)

    def digests(self) -> list[str]:
        """Return nothing: the pyramid itself is compared elsewhere."""
        return []


def _bricks(size: int) -> list[tuple[slice, ...]]:
    """Cut a cube into bricks."""
    edge = min(_BRICK_VX, size)
    return [
        tuple(slice(at, at + edge) for at in corner)
        for corner in product(range(0, size, edge), repeat=3)
    ]


def _halved(box: tuple[slice, ...]) -> tuple[slice, ...]:
    return tuple(slice(part.start // 2, part.stop // 2) for part in box)


def _timed(seconds: dict[str, float], part: str, lay_out: Any, *arguments: Any) -> Any:
    """Lay a step out, then time it."""
    work = lay_out(*arguments)
    started = time.process_time()
    result = work()
    seconds[part] += time.process_time() - started
    return result


class ReadOpened(Read):
    """The same boxes from a volume that is opened once."""

    def __init__(self, path: str, *arguments: Any, **options: Any) -> None:
        self._volume = open_stored(path)[1]
        super().__init__(path, *arguments, **options)

    def read(self, box: Any) -> np.ndarray:
        """Read a box."""
        low, high = box
        out = np.empty(
            (self._volume.num_channels, *np.subtract(high, low)), self._volume.dtype, order="F"
        )
        self._volume.read_into(out, low)
        return out
