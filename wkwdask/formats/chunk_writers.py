"""What takes the chunks of an array, whatever its format: writers of part files, of whole shards, and of chunks that are files of their own."""

from __future__ import annotations

import contextlib
import os
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.formats.part_file import close_part
from wkwdask.formats.precomputed.shard_output import Unordered
from wkwdask.geometry.grid import cells
from wkwdask.model.receipts import Stats
from wkwdask.model.run import RunTable
from wkwdask.store.local import NewFile, make_folders_below
from wkwdask.store.new_files import NewFiles
from wkwdask.store.pieces import Pieces

if TYPE_CHECKING:
    import numpy.typing as npt

    from wkwdask.formats.chunked_target import ChunkedTarget, ShardableTarget
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.receipts import Receipt


def published(receipt: Receipt, path: str) -> Receipt:
    """Say in a receipt where its shard is, and its state."""
    status = os.stat(path)
    return replace(receipt, path=path, nbytes=status.st_size, mtime_ns=status.st_mtime_ns)


class PartFileWriter:
    """Encodes the chunks of a part of a shard, and stores them in a part file as they come.

    Parameters
    ----------
    target : ShardableTarget
        What is written.
    shard, part : tuple of 3 int
        Index of the shard along x, y, z, and name of the part.
    """

    def __init__(self, target: ShardableTarget, shard: Vec3, part: Vec3) -> None:
        self._target = target
        self._path = target.part_path(shard, part)
        self._shard, self._part = shard, part
        self._first_id = target.first_id(shard)
        self._codes: list[int] = []
        self._sizes: list[int] = []
        self._output = Pieces(self._open_file, 0)
        self._checksum = 0
        self._stats = Stats(target.mag)

    def _open_file(self) -> NewFile:
        make_folders_below(self._target.parts_folder, os.path.dirname(self._path))
        return NewFile(self._path, self._target.parts_folder, flush=False)

    @property
    def gathered_nbytes(self) -> int:
        """Encoded chunks that are not written yet."""
        return self._output.gathered_nbytes

    def flush(self) -> None:
        """Write them."""
        self._output.flush()

    def append(self, array: npt.NDArray[Any], topleft: Vec3) -> None:
        """Encode an array (c, x, y, z) of whole chunks and store them."""
        voxels = self._target.within(array, topleft)
        self._stats.add(voxels, topleft)
        for _, code, data in self._target.encoded_chunks(voxels, topleft):
            if data:
                self._output.append(np.frombuffer(data, np.uint8))
                self._checksum = zlib.crc32(data, self._checksum)
                self._codes.append(code - self._first_id)
                self._sizes.append(len(data))

    def skip(self, box: BoundingBox) -> None:
        """Take note of voxels that are all zero, in place of appending them."""
        self._stats.add_zeros(box)

    def close(self) -> Receipt:
        """Publish what was stored; nothing is, where all voxels are zero."""
        receipt = self._stats.receipt(self._shard, self._part)
        if not self._codes:
            self.discard()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            return receipt
        table = RunTable(np.array(self._codes, np.uint64), np.array(self._sizes, np.int64))
        nbytes, checksum = close_part(self._output, table, self._checksum)
        return replace(receipt, path=self._path, nbytes=nbytes, checksum=checksum)

    def discard(self) -> None:
        """Remove what was stored so far."""
        self._output.discard()


class ShardWriter:
    """Encodes the chunks of a whole shard and stores them as they come; in another order than that of their identifiers, they are copied once more.

    Parameters
    ----------
    target : ShardableTarget
        What is written.
    shard : tuple of 3 int
        Index of the shard along x, y, z.
    """

    def __init__(self, target: ShardableTarget, shard: Vec3) -> None:
        self._target = target
        self._shard = shard
        self._path = target.shard_path(shard)
        self._first_id = target.first_id(shard)
        self._output = target.open_shard(shard)
        self._chunks: list[tuple[int, int, int]] = []
        self._is_in_order = True
        self._stats = Stats(target.mag)

    @property
    def gathered_nbytes(self) -> int:
        """Encoded chunks that are not written yet."""
        return self._output.pieces.gathered_nbytes

    def flush(self) -> None:
        """Write them."""
        self._output.pieces.flush()

    def append(self, array: npt.NDArray[Any], topleft: Vec3) -> None:
        """Encode an array (c, x, y, z) of whole chunks and store them."""
        voxels = self._target.within(array, topleft)
        self._stats.add(voxels, topleft)
        for _, identifier, data in self._target.encoded_chunks(voxels, topleft):
            if data:
                self._store(identifier - self._first_id, data)

    def _store(self, code: int, data: bytes) -> None:
        self._is_in_order = self._is_in_order and (not self._chunks or code > self._chunks[-1][0])
        if self._is_in_order:
            self._output.begin(np.array([code], np.uint64), np.array([len(data)]))
        self._chunks.append((code, len(data), self._output.pieces.end))
        self._output.pieces.append(np.frombuffer(data, np.uint8))

    def skip(self, box: BoundingBox) -> None:
        """Take note of voxels that are all zero, in place of appending them."""
        self._stats.add_zeros(box)

    def close(self) -> Receipt:
        """Publish what was stored; nothing is, where all voxels are zero."""
        receipt = self._stats.receipt(self._shard, None)
        if not self._chunks:
            self.discard()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            return receipt
        if self._is_in_order:
            self._output.publish()
        else:
            self._put_in_order()
        return published(receipt, self._path)

    def _put_in_order(self) -> None:
        codes, sizes, starts = np.array(self._chunks, np.int64).T
        file = self._output.pieces.close()
        try:
            fd = file.open_written()
            try:
                self._target.write_shard(self._shard, [Unordered(fd, RunTable(codes.astype(np.uint64), sizes, starts), self._path)])
            finally:
                os.close(fd)
        finally:
            file.discard()

    def discard(self) -> None:
        """Remove what was stored so far."""
        self._output.discard()


class ChunkFilesWriter:
    """Encodes the chunks of a group, or of a part of one, and stores each in a file of its own; the files are flushed together.

    Parameters
    ----------
    target : ChunkedTarget
        The scale.
    shard : tuple of 3 int
        Index of the group along x, y, z.
    part : tuple of 3 int, optional
        Name of the part; None for the whole group.
    """

    def __init__(self, target: ChunkedTarget, shard: Vec3, part: Vec3 | None) -> None:
        self._target = target
        self._shard = shard
        self._part = part
        self._files = NewFiles(target.parts_folder)
        self._made = {target.folder}
        self._stats = Stats(target.mag)

    @property
    def gathered_nbytes(self) -> int:
        """Nothing is held: each chunk is written at once."""
        return 0

    def flush(self) -> None:
        """All is written."""

    def append(self, array: npt.NDArray[Any], topleft: Vec3) -> None:
        """Encode an array (c, x, y, z) of whole chunks and store them."""
        voxels = self._target.within(array, topleft)
        self._stats.add(voxels, topleft)
        for cell, _, data in self._target.encoded_chunks(voxels, topleft):
            if data:
                self._store(self._target.chunk_path(cell), data)
            else:
                self._remove(cell)

    def _store(self, path: str, data: bytes) -> None:
        folder = os.path.dirname(path)
        if folder not in self._made:
            make_folders_below(self._target.folder, folder)
            self._made.add(folder)
        self._files.write(path, data)

    def skip(self, box: BoundingBox) -> None:
        """Take note of voxels that are all zero, in place of appending them."""
        self._stats.add_zeros(box)
        for cell in cells(box, self._target.chunk_shape):
            self._remove(cell)

    def _remove(self, cell: Vec3) -> None:
        """Remove what an interrupted attempt may have left, which read other voxels."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._target.chunk_path(cell))

    def close(self) -> Receipt:
        """Flush all files, give them their names, and promise that they are there."""
        receipt = self._stats.receipt(self._shard, self._part)
        self._files.publish()
        if not self._files.count:
            return receipt
        return replace(receipt, path=self._target.shard_path(self._shard), nbytes=self._files.nbytes, files=self._files.count)

    def discard(self) -> None:
        """Remove what has no name yet; the rest is nowhere promised."""
        self._files.discard()
