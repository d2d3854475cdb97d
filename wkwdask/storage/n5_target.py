"""One N5 dataset that is being built in a job's folder, in coordinates that count from its first voxel.

A shard is a group of blocks that one task writes, each a file under its final name; a part is some of these files, and a join adds up. Blocks at the upper ends
are cut off, as the specification has it, and those that are all zero are not stored.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wkwdask.formats.n5.attribute_edits import format_attributes
from wkwdask.formats.n5.attributes import FILE_NAME
from wkwdask.formats.n5.block import encode_block
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.plans.chunks import group_of_chunks, largest_multiple
from wkwdask.storage.block_files import Files
from wkwdask.storage.local import count_files, make_folders_below, publish_bytes
from wkwdask.storage.n5 import NAMING, N5Volume
from wkwdask.storage.precomputed import is_zero
from wkwdask.storage.precomputed_writers import ChunkFilesWriter
from wkwdask.storage.receipts import Receipt, merge_receipts
from wkwdask.storage.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from wkwdask.formats.n5.attributes import N5Dataset
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.storage.volume import PartWriter


@dataclass(frozen=True, slots=True)
class N5Target:
    """One dataset that is being built; small to pickle."""

    folder: str
    """Where its files are published for now."""
    parts_folder: str
    """Where files are until they appear."""
    dataset: N5Dataset
    """What is made, with all that its ``attributes.json`` is to say."""
    mag: Mag
    """Its mag."""
    origin: Vec3
    """Absolute voxel of the mag at which its coordinates start; may be negative."""

    @property
    def axes(self) -> str:
        """A letter for each axis, x first."""
        return "xyzc"[: len(self.dataset.dimensions)]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""
        return self.dataset.dtype

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.dataset.dimensions[3] if len(self.dataset.dimensions) == 4 else 1

    @property
    def box(self) -> BoundingBox:
        """Where data goes [voxels of the mag, counted from ``origin``]."""
        return BoundingBox((0, 0, 0), self.dataset.dimensions[:3], self.mag)  # type: ignore[arg-type]

    @property
    def chunk_shape(self) -> Vec3:
        """A block along x, y, z [voxels]."""
        x, y, z = self.dataset.block_size[:3]
        return x, y, z

    @property
    def shard_shape(self) -> Vec3:
        """A group of blocks along x, y, z [voxels]."""
        grid = self.dataset.grid
        group = group_of_chunks((grid[0], grid[1], grid[2]), math.prod(self.chunk_shape) * self._voxel_nbytes)
        x, y, z = (n * edge for n, edge in zip(group, self.chunk_shape, strict=True))
        return x, y, z

    @property
    def _voxel_nbytes(self) -> int:
        return self.dtype.itemsize * self.num_channels

    @property
    def scratch_folder(self) -> str:
        """Where scratch files of the job can be."""
        return f"{self.parts_folder}/scratch"

    @property
    def merges(self) -> bool:
        """Nothing is there before."""
        return False

    def part_shape(self, nbytes: int) -> Vec3:
        """Choose the largest box of blocks inside a group whose voxels take at most so many bytes."""
        return largest_multiple(self.chunk_shape, self.shard_shape, self._voxel_nbytes, nbytes)

    def prepare(self) -> None:
        """Make the folders and ``attributes.json``; doing it again changes nothing."""
        os.makedirs(self.folder, exist_ok=True)
        os.makedirs(self.parts_folder, exist_ok=True)
        if not os.path.exists(f"{self.folder}/{FILE_NAME}"):
            publish_bytes(f"{self.folder}/{FILE_NAME}", format_attributes(self.dataset.document).encode())

    def as_volume(self) -> N5Volume:
        """Read what has been published so far."""
        return N5Volume(LocalStore(self.folder), "", self.dataset, self.axes, self.mag)

    def open_part(self, shard: Vec3, part: Vec3 | None) -> PartWriter:
        """Start a part of a group, or the whole group where ``part`` is None."""
        return BlockFilesWriter(self, shard, part)

    def encoded_chunks(self, array: npt.NDArray[Any], topleft: Vec3) -> Iterator[tuple[Vec3, int, bytes]]:
        """Encode whole blocks.

        Parameters
        ----------
        array : ndarray, shape (c, x, y, z)
            Voxels inside the box.
        topleft : tuple of 3 int
            Voxel of element 0.

        Yields
        ------
        cell : tuple of 3 int
            Index of the block along x, y, z.
        number : int
            How many came before it.
        data : bytes
            The file, none where all voxels are zero.
        """
        box = BoundingBox(topleft, array.shape[1:], self.mag)
        for number, cell in enumerate(cells(box, self.chunk_shape)):
            inside = cell_box(cell, self.chunk_shape, box).intersection(box)
            x, y, z = (slice(a - t, b - t) for a, b, t in zip(inside.topleft, inside.bottomright, topleft, strict=True))
            block = array[:, x, y, z]
            if is_zero(block):
                yield cell, number, b""
                continue
            values = block[0] if len(self.axes) == 3 else block.transpose(1, 2, 3, 0)
            yield cell, number, encode_block(values, self.dataset.compression, self.chunk_path(cell))

    def within(self, array: npt.NDArray[Any], topleft: Vec3) -> npt.NDArray[Any]:
        """Leave out voxels beyond the box."""
        x, y, z = (slice(0, high - t) for high, t in zip(self.box.bottomright, topleft, strict=True))
        return array[:, x, y, z]

    def chunk_path(self, cell: Vec3) -> str:
        """Name the file of a block."""
        return f"{self.folder}/{Files('', (), self.axes, NAMING).name(cell)}"

    def shard_path(self, shard: Vec3) -> str:
        """Name the first block of a group."""
        low = [axis.start for axis in self._cells_of(shard, None)]
        return self.chunk_path((low[0], low[1], low[2]))

    def path_of(self, receipt: Receipt) -> str:
        """Say where a group or part is stored: where its first block is, or would be."""
        return self.shard_path(receipt.shard)

    def _cells_of(self, shard: Vec3, box: BoundingBox | None) -> tuple[range, range, range]:
        """Give the blocks of a group, or of that part of it which a box touches."""
        whole = cell_box(shard, self.shard_shape, self.box).intersection(self.box)
        return cell_range(whole if box is None else whole.intersection(box), self.chunk_shape)

    def holds(self, receipt: Receipt) -> bool:
        """Tell whether what a receipt says is there: the number and sizes of files are looked at."""
        if not receipt.nbytes:
            return True
        xs, ys, zs = self._cells_of(receipt.shard, receipt.box)
        paths = (self.chunk_path((x, y, z)) for z in zs for y in ys for x in xs)
        return count_files(paths) == (receipt.files, receipt.nbytes)

    def encoded_nbytes(self, array: npt.NDArray[Any], topleft: Vec3) -> int:
        """Encode an array (c, x, y, z) of whole blocks, and give the number of bytes."""
        return sum(len(data) for _, _, data in self.encoded_chunks(self.within(array, topleft), topleft))

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate what files take that hold some voxels, encoded at a ratio."""
        del files
        return int(voxel_nbytes * ratio)

    def remove_parts(self, shard: Vec3) -> None:
        """Do nothing: parts are files that stay."""

    def join_shard(self, shard: Vec3, parts: Sequence[Receipt]) -> Receipt:
        """Add up the parts of a group, whose files are there already."""
        receipt = merge_receipts(shard, parts)
        stored = [part for part in parts if part.path is not None]
        path = self.shard_path(shard) if stored else None
        return replace(receipt, path=path, nbytes=sum(part.nbytes for part in stored), files=sum(part.files for part in stored) if stored else 1)


class BlockFilesWriter(ChunkFilesWriter):
    """Encodes the blocks of a group, or of a part of one, and stores each in a file of its own, in nested folders."""

    _target: N5Target

    def _store(self, path: str, data: bytes) -> None:
        make_folders_below(self._target.folder, os.path.dirname(path))
        super()._store(path, data)
