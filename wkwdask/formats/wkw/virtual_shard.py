"""Cubes of blocks as shards of Zarr v3, without decoding: the bytes are composed on request.

An aligned cube of ``2**k`` blocks per edge is one byte range of a WKW file. Each block gets the
header of a Blosc frame, and an index follows all frames::

    WKW file        | header | jump table | ... | block 0 | block 1 | block 2 | ... |
    virtual shard   | frame header, block 0 | frame header, block 1 | ... | index |

Frames are in Morton order, the index is in C order along z, y, x. Blocks of zeros, and blocks
outside of the bounding box, are absent in the index. Specifications: c-blosc,
``README_CHUNK_FORMAT.rst``; Zarr v3, codec ``sharding_indexed``.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import TruncatedError
from wkwdask.formats.wkw.file import decode_block
from wkwdask.formats.wkw.options import DEFAULT_LEVEL
from wkwdask.geometry import morton
from wkwdask.kernels.codecs.blosc_frames import frame_header
from wkwdask.kernels.codecs.blosc_layout import FRAME_NBYTES, STORED_NBYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.array_types import BoolArray
    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.formats.wkw.stored_file import WkwFile

_MAX_CUBE_LEN = 16  # an index of 64 KiB, which a viewer reads before the first of the chunks
_ABSENT = np.uint64((1 << 64) - 1)


def cube_len(header: WkwHeader) -> int:
    """Return the edge of a virtual shard [blocks]."""
    return min(header.file_len, _MAX_CUBE_LEN)


class VirtualShard:
    """A cube of blocks of an open WKW file as the bytes of a shard."""

    encoding = ""

    def __init__(self, file: WkwFile, cube: int, find_inside: Callable[[], BoolArray]) -> None:
        """Prepare the cube with a number, in Morton order; ``find_inside`` returns the mask (z, y,
        x) of the blocks that the bounding box touches."""
        header, count = file.header, cube_len(file.header) ** 3
        self.file = file
        self._first = cube * count
        self._bounds = file.bounds(self._first, count)
        sizes = np.diff(self._bounds)
        self._is_stored = sizes == header.block_nbytes
        heads = np.where(self._is_stored, STORED_NBYTES, FRAME_NBYTES)
        self._starts = np.concatenate([[0], np.cumsum(sizes + heads)])
        self._find_inside = find_inside
        self._data_nbytes = int(self._starts[-1])
        self.nbytes = self._data_nbytes + 16 * count

    @cached_property
    def _index(self) -> bytes:
        """Offset and size of each chunk; it has no checksum, because the bytes never leave the
        memory before they are sent."""
        is_inside = self._find_inside()
        z, y, x = np.indices(is_inside.shape).reshape(3, -1)
        codes = morton.encode(np.stack([x, y, z], axis=1)).astype(np.int64)
        is_stored = is_inside.reshape(-1)
        if self.file.file.descriptor is not None:  # a remote file is not read only to find zeros
            is_stored = is_stored & self.file.are_nonzero(self._bounds, DEFAULT_LEVEL)[codes]
        table = np.full((len(codes), 2), _ABSENT, "<u8")
        table[is_stored, 0] = self._starts[codes[is_stored]]
        table[is_stored, 1] = np.diff(self._starts)[codes[is_stored]]
        return table.tobytes()

    def read(self, start: int, stop: int) -> bytes:
        """Return a range of bytes."""
        if start >= self._data_nbytes:
            return self._index[start - self._data_nbytes : stop - self._data_nbytes]
        end = min(stop, self._data_nbytes)
        first, last = (
            int(self._starts.searchsorted(start, "right")) - 1,
            int(self._starts.searchsorted(end, "left")),
        )
        parts = [
            self._frame(
                n,
                max(start - int(self._starts[n]), 0),
                min(end, int(self._starts[n + 1])) - int(self._starts[n]),
            )
            for n in range(first, last)
        ]
        if stop > end:
            parts.append(self._index[: stop - end])
        return b"".join(parts)

    def _frame(self, n: int, start: int, stop: int) -> bytes:
        """Return a range of bytes of a frame."""
        header, low, high = self.file.header, int(self._bounds[n]), int(self._bounds[n + 1])
        head = frame_header(header.block_nbytes, high - low, header.dtype.itemsize)
        if stop <= len(head):
            return head[start:stop]
        first, end = max(start - len(head), 0), stop - len(head)
        if self._is_stored[n] and header.is_compressed:
            whole = decode_block(
                self._stored(low, high), header, self.file.path, self._first + n, low
            )
            return head[start:] + whole.tobytes(order="F")[first:end]
        return head[start:] + self._stored(low + first, low + end)

    def _stored(self, start: int, stop: int) -> bytes:
        data: Any = self.file.file.read([(start, stop)])
        if data is None:
            raise TruncatedError(f"{self.file.path}: not found, though it existed a moment ago")
        return bytes(data[0])

    def close(self) -> None:
        """Do nothing: the cache of open files closes the file."""


def is_framable(header: WkwHeader) -> bool:
    """Return whether a frame can hold a block: its header has four signed bytes for sizes."""
    return header.block_nbytes < (1 << 31) - FRAME_NBYTES
