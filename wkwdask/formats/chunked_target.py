"""One array of chunks that is being built in a job's folder, whatever its format; its coordinates count from element 0.

Sharded, a part is a part file of encoded chunks (``wkwdask.formats.part_file``), and a shard file is joined of parts without decoding, or written straight
away. Unsharded, a shard is a group of chunks that one task writes, each a file under its final name; a part is some of these files, and a join adds up.
Chunks that are all zero are not stored.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.formats.part_file import PartFile, close_part, is_whole_part
from wkwdask.formats.precomputed.shard_output import Unordered
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.kernels.arrays import is_zero
from wkwdask.model.pieces import Pieces
from wkwdask.model.receipts import Receipt, Stats, merge_receipts
from wkwdask.model.run import RunTable
from wkwdask.plans.chunks import largest_multiple
from wkwdask.store import files
from wkwdask.store.new_files import NewFile, NewFiles, publish_bytes
from wkwdask.store.paths import dirname

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    import numpy.typing as npt

    from wkwdask.formats.part_file import Run
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.receipts import Receipt
    from wkwdask.model.volume import PartWriter, Volume


def published(receipt: Receipt, path: str) -> Receipt:
    """Say in a receipt where its shard is, and its state."""
    status = files.stat(path)
    return replace(receipt, path=path, nbytes=status.st_size, mtime_ns=status.st_mtime_ns)


class PartFileWriter:
    """Encodes the chunks of a part of a shard, and stores them in a part file as they come."""

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
        files.make_folders_below(self._target.parts_folder, dirname(self._path))
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
                files.unlink(self._path)
            return receipt
        table = RunTable(np.array(self._codes, np.uint64), np.array(self._sizes, np.int64))
        nbytes, checksum = close_part(self._output, table, self._checksum)
        return replace(receipt, path=self._path, nbytes=nbytes, checksum=checksum)

    def discard(self) -> None:
        """Remove what was stored so far."""
        self._output.discard()


class ShardWriter:
    """Encodes the chunks of a whole shard and stores them as they come; in another order than that of their identifiers, they are copied once more."""

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
                files.unlink(self._path)
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
            with file.open_written() as written:
                self._target.write_shard(self._shard, [Unordered(written, RunTable(codes.astype(np.uint64), sizes, starts))])
        finally:
            file.discard()

    def discard(self) -> None:
        """Remove what was stored so far."""
        self._output.discard()


class ChunkFilesWriter:
    """Encodes the chunks of a group, or of a part of one, and stores each in a file of its own; the files are flushed together."""

    def __init__(self, target: ChunkedTarget, shard: Vec3, part: Vec3 | None) -> None:
        self._target = target
        self._shard = shard
        self._part = part
        self._files = NewFiles(target.folder, target.parts_folder)
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
                self._files.write(self._target.chunk_path(cell)[len(self._target.folder) + 1 :], data)
            else:
                self._remove(cell)

    def skip(self, box: BoundingBox) -> None:
        """Take note of voxels that are all zero, in place of appending them."""
        self._stats.add_zeros(box)
        for cell in cells(box, self._target.chunk_shape):
            self._remove(cell)

    def _remove(self, cell: Vec3) -> None:
        """Remove what an interrupted attempt may have left, which read other voxels."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            files.unlink(self._target.chunk_path(cell))

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


class ShardFile(Protocol):
    """A new shard, to which chunks are appended."""

    pieces: Pieces

    def begin(self, codes: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]) -> None:
        """Take note of chunks whose bytes are appended to ``pieces`` next."""

    def copy_all(self, runs: Sequence[Run], num_codes: int) -> None:
        """Append the chunks of all runs; ``num_codes`` is how many the shard can have."""

    def publish(self) -> None:
        """Let the file appear."""

    def discard(self) -> None:
        """Remove the file."""


@dataclass(frozen=True, slots=True)
class ChunkedTarget(ABC):
    """An array whose chunks are files of their own; small to pickle."""

    folder: str
    """Where its files are published for now."""
    parts_folder: str
    """Where part files are, and files until they appear."""
    mag: Mag
    """Its mag."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""

    @property
    @abstractmethod
    def num_channels(self) -> int:
        """Values per voxel."""

    @property
    @abstractmethod
    def box(self) -> BoundingBox:
        """Where data goes [voxels of the mag, counted from ``origin``]."""

    @property
    @abstractmethod
    def chunk_shape(self) -> Vec3:
        """A chunk along x, y, z [voxels]."""

    @property
    @abstractmethod
    def shard_shape(self) -> Vec3:
        """A shard file, or a group of chunks, along x, y, z [voxels]."""

    @property
    def documents(self) -> dict[str, bytes]:
        """The files in its folder that describe it, by their names."""
        return {}

    @property
    def scratch_folder(self) -> str:
        """Where scratch files of the job can be."""
        return f"{self.parts_folder}/scratch"

    @property
    def merges(self) -> bool:
        """Nothing is there before."""
        return False

    @property
    def voxel_nbytes(self) -> int:
        """Bytes of a voxel with all channels."""
        return self.dtype.itemsize * self.num_channels

    def part_shape(self, nbytes: int) -> Vec3:
        """Choose the largest box of chunks inside a shard whose voxels take at most so many bytes."""
        return largest_multiple(self.chunk_shape, self.shard_shape, self.voxel_nbytes, nbytes)

    def prepare(self) -> None:
        """Make the folders, and describe the array; doing it again changes nothing."""
        files.makedirs(self.folder)
        files.makedirs(self.parts_folder)
        for name, document in self.documents.items():
            if not files.exists(f"{self.folder}/{name}"):
                publish_bytes(f"{self.folder}/{name}", document)

    def built_in(self, folder: str) -> Self:
        """Give the level as it is built in another folder."""
        return replace(self, folder=folder, parts_folder=f"{folder}.parts")

    def describe(self) -> None:
        """Write the documents of the array, in place of others that may be there."""
        for name, document in self.documents.items():
            publish_bytes(f"{self.folder}/{name}", document)

    @abstractmethod
    def as_volume(self) -> Volume:
        """Read what has been published so far."""

    def open_part(self, shard: Vec3, part: Vec3 | None) -> PartWriter:
        """Start a part of a shard, or the whole shard where ``part`` is None; chunks come in any order, but in that of their codes they are written once."""
        return ChunkFilesWriter(self, shard, part)

    def encoded_chunks(self, array: npt.NDArray[Any], topleft: Vec3) -> Iterator[tuple[Vec3, int, bytes]]:
        """Encode whole chunks, of one shard where there are shard files, in the order of their codes."""
        shape = self.chunk_shape
        box = BoundingBox(topleft, array.shape[1:], self.mag)
        places = list(cells(box, shape))
        codes = self.codes(places)
        for n in np.argsort(codes).tolist():
            inside = cell_box(places[n], shape, box).intersection(box)
            x, y, z = (slice(a - t, b - t) for a, b, t in zip(inside.topleft, inside.bottomright, topleft, strict=True))
            voxels = array[:, x, y, z]
            yield places[n], int(codes[n]), b"" if is_zero(voxels) else self.encode_chunk(voxels, places[n])

    def codes(self, places: Sequence[Vec3]) -> npt.NDArray[Any]:
        """Give the codes of chunks, by whose order they are stored: here that in which they are listed."""
        return np.arange(len(places))

    @abstractmethod
    def encode_chunk(self, voxels: npt.NDArray[Any], cell: Vec3) -> bytes:
        """Encode one chunk (c, x, y, z), which is cut off at the upper ends of the box."""

    def encoded_nbytes(self, array: npt.NDArray[Any], topleft: Vec3) -> int:
        """Encode an array (c, x, y, z) of whole chunks, and give the number of bytes."""
        return sum(len(data) for _, _, data in self.encoded_chunks(self.within(array, topleft), topleft))

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate what files take that hold some voxels, encoded at a ratio."""
        del files
        return int(voxel_nbytes * ratio)

    def within(self, array: npt.NDArray[Any], topleft: Vec3) -> npt.NDArray[Any]:
        """Leave out voxels beyond the box."""
        x, y, z = (slice(0, high - t) for high, t in zip(self.box.bottomright, topleft, strict=True))
        return array[:, x, y, z]

    @abstractmethod
    def chunk_path(self, cell: Vec3) -> str:
        """Name the file of a chunk that is stored by itself."""

    def shard_path(self, shard: Vec3) -> str:
        """Name the first chunk of a group."""
        x, y, z = self._cells_of(shard, None)
        return self.chunk_path((x.start, y.start, z.start))

    def path_of(self, receipt: Receipt) -> str:
        """Say where a group or a part of it is stored: where its first chunk is, or would be."""
        return self.shard_path(receipt.shard)

    def _cells_of(self, shard: Vec3, box: BoundingBox | None) -> tuple[range, range, range]:
        """Give the chunks of a shard, or of that part of it which a box touches."""
        whole = cell_box(shard, self.shard_shape, self.box).intersection(self.box)
        return cell_range(whole if box is None else whole.intersection(box), self.chunk_shape)

    def holds(self, receipt: Receipt) -> bool:
        """Tell whether what a receipt says is there: the number and sizes of files are looked at."""
        if not receipt.nbytes:
            return True
        xs, ys, zs = self._cells_of(receipt.shard, receipt.box)
        paths = (self.chunk_path((x, y, z)) for z in zs for y in ys for x in xs)
        return files.count_files(paths) == (receipt.files, receipt.nbytes)

    def can_splice(self, source: Volume) -> bool:
        """Chunks are decoded and encoded."""
        del source
        return False

    def splice_shard(self, source: Any, shard: Vec3) -> Receipt:
        """Make a shard of what a volume has stored in its place."""
        raise NotImplementedError(f"{self.folder}: shard {shard} of {source.name}")

    def remove_parts(self, shard: Vec3) -> None:
        """Do nothing: parts are files that stay."""
        del shard

    def join_shard(self, shard: Vec3, parts: Sequence[Receipt]) -> Receipt:
        """Add up the parts of a group, whose files are there already."""
        receipt = merge_receipts(shard, parts)
        stored = [part for part in parts if part.path is not None]
        if not stored:
            return replace(receipt, path=None, nbytes=0, files=1)
        return replace(receipt, path=self.shard_path(shard), nbytes=sum(part.nbytes for part in stored), files=sum(part.files for part in stored))


class ShardableTarget(ChunkedTarget):
    """An array whose chunks are put into shard files, or are files of their own."""

    __slots__ = ()

    @property
    @abstractmethod
    def index_nbytes(self) -> int | None:
        """Bytes of the index of a shard file; None where chunks are files of their own."""

    @abstractmethod
    def shard_file(self, shard: Vec3) -> str:
        """Name a shard file."""

    @abstractmethod
    def open_shard(self, shard: Vec3) -> ShardFile:
        """Start a shard file."""

    @abstractmethod
    def is_whole_shard(self, path: str, nbytes: int) -> bool:
        """Tell whether a shard file is there, has its size, and an index as one that is written here has."""

    @property
    def _has_files_of_chunks(self) -> bool:
        return self.index_nbytes is None

    def open_part(self, shard: Vec3, part: Vec3 | None) -> PartWriter:
        """Start a part of a shard, or the whole shard where ``part`` is None; chunks come in any order, but in that of their codes they are written once."""
        if self._has_files_of_chunks:
            return super().open_part(shard, part)
        return ShardWriter(self, shard) if part is None else PartFileWriter(self, shard, part)

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate what files take that hold some voxels, encoded at a ratio."""
        return super().expected_nbytes(files, voxel_nbytes, ratio) + files * (self.index_nbytes or 0)

    def first_id(self, shard: Vec3) -> int:
        """Give the lowest code of the chunks in a shard: they count anew in each."""
        del shard
        return 0

    def shard_path(self, shard: Vec3) -> str:
        """Name a shard file, or the first chunk of a group."""
        return super().shard_path(shard) if self._has_files_of_chunks else self.shard_file(shard)

    def part_path(self, shard: Vec3, part: Vec3) -> str:
        """Name a part file."""
        return f"{self._parts_of(shard)}/z{part[2]}y{part[1]}x{part[0]}.run"

    def _parts_of(self, shard: Vec3) -> str:
        return f"{self.parts_folder}/z{shard[2]}y{shard[1]}x{shard[0]}"

    def path_of(self, receipt: Receipt) -> str:
        """Say where a shard or part is stored; of a group of files, where the first one is, or would be."""
        if receipt.part is None or self._has_files_of_chunks:
            return self.shard_path(receipt.shard)
        return self.part_path(receipt.shard, receipt.part)

    def holds(self, receipt: Receipt) -> bool:
        """Tell whether what a receipt says is there and whole: of a shard its size and index are checked, of files their sizes, of a part every byte."""
        if not receipt.nbytes or self._has_files_of_chunks:
            return super().holds(receipt)
        if receipt.part is not None:
            return is_whole_part(self.path_of(receipt), receipt.nbytes, receipt.checksum)
        return self.is_whole_shard(self.path_of(receipt), receipt.nbytes)

    def remove_parts(self, shard: Vec3) -> None:
        """Remove the part files of a shard that was joined."""
        if not self._has_files_of_chunks:
            files.remove_tree(self._parts_of(shard))

    def join_shard(self, shard: Vec3, parts: Sequence[Receipt]) -> Receipt:
        """Join part files into one shard, without decoding a chunk, and publish it; chunks that are files of their own are there already."""
        if self._has_files_of_chunks:
            return super().join_shard(shard, parts)
        receipt = merge_receipts(shard, parts)
        path = self.shard_path(shard)
        try:
            runs: list[Run] = [PartFile(part.path) for part in parts if part.path is not None]
        except FileNotFoundError as error:
            # dask may run a task twice: then the shard was published by the first run, which removed the parts
            if not files.exists(path):
                raise IncompleteWriteError(f"{error.filename}: part of {path} is gone before they were joined") from None
            return published(receipt, path)
        if not runs:
            return receipt
        self.write_shard(shard, runs)
        return published(receipt, path)

    def write_shard(self, shard: Vec3, runs: Sequence[Run]) -> None:
        """Copy the chunks of all runs into a shard file, in the order of their codes."""
        output = self.open_shard(shard)
        try:
            output.copy_all(runs, math.prod(self.shard_shape) // math.prod(self.chunk_shape))
            output.publish()
        except BaseException:
            output.discard()
            raise
