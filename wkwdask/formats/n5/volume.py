"""One N5 dataset, open for reading, on a local disk or remote: a volume that starts at voxel 0.

Blocks may be whole at the upper ends or cut off, in default or varlength mode, all in one dataset. An absent block is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import FormatError, UnsupportedError
from wkwdask.formats.block_files import Files, Naming
from wkwdask.formats.blocked import Blocked, in_order
from wkwdask.formats.n5.attributes import FILE_NAME, parse_attributes, parse_dataset
from wkwdask.formats.n5.block import decode_block, header_nbytes
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox
from wkwdask.geometry.grid import cells
from wkwdask.kernels.arrays import copy_into, is_zero

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.formats.blocked import Opened
    from wkwdask.formats.n5.attributes import N5Dataset
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.store import Store

NAMING = Naming()
_HELD_NBYTES = 64 << 20  # of remote files that are read at once
_LARGEST_ATTRIBUTES = 64 << 20


@dataclass(frozen=True, slots=True)
class N5Volume(Blocked):
    """One dataset. Holds no open file and is small to pickle."""

    store: Store
    """Its folder, or that of its group."""
    key: str
    """Its folder inside of that, nothing for the same."""
    dataset: N5Dataset
    """How it is stored."""
    axes: str
    """A letter for each axis: ``x``, ``y``, ``z``, ``c``, or ``-`` for another one of length 1."""
    mag: Mag = MAG_1
    """Its mag; mag 1 where it has none."""
    lengths_nm: Lengths | None = None
    """Edge lengths of a voxel [nm]."""
    opened: Opened | None = None
    """What was there when it was opened; None where nobody looks, as for a volume that is being written, or a remote one."""
    part: BoundingBox | None = None
    """The part of it that counts; None for all."""
    channels: tuple[int, int] | None = None
    """The first channel that counts, and their number; None for all."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""
        return self.dataset.dtype

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.dataset.dimensions

    @property
    def chunk_lengths(self) -> tuple[int, ...]:
        """A block, along all axes."""
        return self.dataset.block_size

    @property
    def name(self) -> str:
        """The dataset's folder or URL."""
        return self.store.path_of(self.key) if self.key else self.store.url

    @property
    def record(self) -> str:
        """Its ``attributes.json``."""
        return f"{self.name}/{FILE_NAME}"

    @property
    def files(self) -> Files | None:
        """Its blocks, None where it is remote."""
        return Files(self.name, self.grid, self.axes, NAMING) if self.store.is_local else None

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when the dataset is another one; of a remote one, when ``attributes.json`` says so."""
        place = None if self.opened is None else self.opened.folder
        return ("n5", self.store.url, self.key, self.dataset, repr(self.dataset.document), self.axes, self.box, self.channels, place)

    def is_still_described(self) -> bool:
        """Tell whether ``attributes.json`` still says the same of how the dataset is stored."""
        try:
            document = read_attributes(self.store, self.key)
            return document is not None and parse_dataset(document, self.record) == self.dataset
        except (FormatError, UnsupportedError):
            return False

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array with voxels, each block decoded once."""
        asked = BoundingBox(topleft, (out.shape[1], out.shape[2], out.shape[3]), self.mag)
        first_channel += self.first_channel
        channels = range(first_channel, first_channel + len(out))
        nonzero, is_absent = 0, False
        for cell, block, data in self._blocks(asked.intersection(self.extent), channels):
            if data is None:
                is_absent = True
                continue
            voxels, where = self._decoded(cell, block, data, asked, channels)
            if is_zero(voxels):
                continue
            if not nonzero:
                out[...] = 0
            nonzero += 1
            copy_into(voxels.astype(self.dtype, order="K", copy=False), out[where])
        if is_absent:
            self.check_absence()
        if fill_zeros and not nonzero:
            out[...] = 0
        return nonzero

    def _blocks(self, inside: BoundingBox, channels: range) -> Iterator[tuple[Vec3, int, bytes | None]]:
        """Read the blocks of a box, several at once where that is better: place along x, y, z, along c, and bytes."""
        edge = self.along(self.dataset.block_size, "c")
        blocks = range(channels.start // edge, -(-channels.stop // edge))
        every = ((cell, block) for cell in cells(inside, self.chunk_shape) for block in blocks)
        largest = self.dataset.block_nbytes + header_nbytes(len(self.axes), 1)
        largest += largest // 8 + 4096  # compressing what cannot be compressed makes it a little larger
        at_once = max(1, min(self.store.files_at_once, _HELD_NBYTES // largest))
        while some := list(islice(every, at_once)):
            for (cell, block), data in zip(some, self.store.read_whole([self._file_name(*one) for one in some], largest), strict=True):
                yield cell, block, data

    def _file_name(self, cell: Vec3, channel_block: int) -> str:
        """Name the file of a block inside of ``store``."""
        name = Files("", (), self.axes, NAMING).name(cell, channel_block)
        return f"{self.key}/{name}" if self.key else name

    def _decoded(self, cell: Vec3, channel_block: int, data: bytes, asked: BoundingBox, channels: range) -> tuple[npt.NDArray[Any], tuple[slice, ...]]:
        """Decode a block, and give what was asked for of it, shape (c, x, y, z), and its place."""
        path = self.store.path_of(self._file_name(cell, channel_block))
        block = decode_block(data, self.dtype, self.dataset.compression, path, num_axes=len(self.axes), largest=self.dataset.block_size)
        block = in_order(block, self.axes) if block.size else np.zeros((0, 0, 0, 0), self.dtype)
        low = [channel_block * self.along(self.dataset.block_size, "c"), *(n * edge for n, edge in zip(cell, self.chunk_shape, strict=True))]
        starts, sizes = (channels.start, *asked.topleft), (len(channels), *asked.size)
        where, part = [], []
        for first, length, end, start, size in zip(low, block.shape, (self.along(self.lengths, "c"), *self.extent.size), starts, sizes, strict=True):
            begin = max(first, start)
            stop = max(begin, min(first + length, end, start + size))
            where.append(slice(begin - start, stop - start))
            part.append(slice(begin - first, stop - first))
        return block[tuple(part)], tuple(where)


def read_attributes(store: Store, key: str = "") -> dict[str, Any] | None:
    """Read the ``attributes.json`` of a group or dataset, None where there is none."""
    name = f"{key}/{FILE_NAME}" if key else FILE_NAME
    (raw,) = store.read_whole([name], _LARGEST_ATTRIBUTES)
    if raw is None:
        return None
    return parse_attributes(raw, store.path_of(name))
