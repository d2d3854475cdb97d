"""One scale of a precomputed volume that is being built in a job's folder, in coordinates that count from its ``voxel_offset``.

Sharded, a part is a part file of encoded chunks (``wkwdask.storage.part_file``), and a shard file is joined of parts without decoding, or written straight
away. Unsharded, a shard is a group of chunks that one task writes, each a file under its final name; a part is some of these files, and a join adds up.
Chunks that are all zero are not stored.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import IncompleteWriteError
from wkwdask.formats.precomputed.chunk import ChunkCodec
from wkwdask.formats.precomputed.shard_tables import format_shard_tables
from wkwdask.formats.precomputed.sharding import INDEX_ENTRY_NBYTES, compress_gzip
from wkwdask.formats.run import RunTable, join_order
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cell_range, cells
from wkwdask.plans.chunks import group_shape, largest_multiple
from wkwdask.storage.local import NewFile, make_folders_below, remove_tree
from wkwdask.storage.new_files import NewFiles
from wkwdask.storage.part_file import PartFile, close_part, is_whole_part
from wkwdask.storage.pieces import Pieces
from wkwdask.storage.receipts import Receipt, Stats, merge_receipts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.formats.precomputed.info import Scale
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.storage.part_file import Run
    from wkwdask.storage.volume import PartWriter, Volume

SUFFIXES = {None: "", "gzip": ".gz"}
"""What is appended to the name of a chunk's own file, by the way in which it is compressed."""


def codec_of(scale: Scale, dtype: np.dtype[Any], num_channels: int) -> ChunkCodec:
    """Say how the chunks of a scale are encoded, as its hints for writers say.

    Parameters
    ----------
    scale : Scale
        The scale.
    dtype : dtype
        Type of one channel.
    num_channels : int
        Values per voxel.

    Returns
    -------
    ChunkCodec
    """
    hints = scale.options
    given = {"quality": hints.get("jpeg_quality", hints.get("jxl_quality")), "level": hints.get("png_level", hints.get("jxl_effort"))}
    options = {name: value for name, value in given.items() if value is not None}
    return ChunkCodec(scale.encoding, dtype, num_channels, scale.block_size or (8, 8, 8), **options)


@dataclass(frozen=True, slots=True)
class PrecomputedTarget:
    """One scale that is being built; small to pickle."""

    folder: str
    """Where its files are published for now."""
    parts_folder: str
    """Where its part files are."""
    scale: Scale
    """What is made."""
    codec: ChunkCodec
    """How its chunks are encoded."""
    mag: Mag
    """Its mag."""
    compress: str | None = None
    """How chunks that are files of their own are compressed, None or ``"gzip"``."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""
        return self.codec.dtype

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.codec.num_channels

    @property
    def box(self) -> BoundingBox:
        """Where data goes [voxels of the scale, counted from ``origin``]."""
        return BoundingBox((0, 0, 0), self.scale.size, self.mag)

    @property
    def origin(self) -> Vec3:
        """Absolute voxel of the scale at which its coordinates start."""
        return self.scale.voxel_offset

    @property
    def chunk_shape(self) -> Vec3:
        """A chunk along x, y, z [voxels]."""
        return self.scale.chunk_size

    @property
    def shard_shape(self) -> Vec3:
        """A shard file, or a group of chunks, along x, y, z [voxels]."""
        shard_cells = self.scale.shard_cells
        if self.scale.sharding is None or shard_cells is None:
            return group_shape(self.chunk_shape, self.scale.size, self._voxel_nbytes)
        x, y, z = (n * edge for n, edge in zip(shard_cells, self.chunk_shape, strict=True))
        return x, y, z

    @property
    def scratch_folder(self) -> str:
        """Where scratch files of the job can be."""
        return f"{self.parts_folder}/scratch"

    @property
    def merges(self) -> bool:
        """Nothing is there before."""
        return False

    @property
    def _voxel_nbytes(self) -> int:
        return self.dtype.itemsize * self.num_channels

    def part_shape(self, nbytes: int) -> Vec3:
        """Choose the largest box of chunks inside a shard whose voxels take at most so many bytes."""
        return largest_multiple(self.chunk_shape, self.shard_shape, self._voxel_nbytes, nbytes)

    def prepare(self) -> None:
        """Make the folders; doing it again changes nothing."""
        os.makedirs(self.folder, exist_ok=True)
        os.makedirs(self.parts_folder, exist_ok=True)

    def as_volume(self) -> Volume:
        """Read what has been published so far."""
        from wkwdask.storage.precomputed import PrecomputedVolume

        return PrecomputedVolume.of_folder(self.folder, self.scale, self.codec, self.mag)

    def open_part(self, shard: Vec3, part: Vec3 | None) -> PartWriter:
        """Start a part of a shard, or the whole shard where ``part`` is None; chunks come in any order, but in that of identifiers they are written once."""
        return ChunkFilesWriter(self, shard, part) if self.scale.sharding is None else ShardPartWriter(self, self.scale.sharding, shard, part)

    def encoded_chunks(self, array: npt.NDArray[Any], topleft: Vec3) -> Iterator[tuple[Vec3, int, bytes]]:
        """Encode whole chunks, in the order of their identifiers.

        Parameters
        ----------
        array : ndarray, shape (c, x, y, z)
            Voxels inside the box.
        topleft : tuple of 3 int
            Voxel of element 0.

        Yields
        ------
        cell : tuple of 3 int
            Index of the chunk along x, y, z.
        code : int
            Its identifier.
        data : bytes
            The encoded chunk, none where all voxels are zero.
        """
        box = BoundingBox(topleft, array.shape[1:], self.mag)
        places = list(cells(box, self.chunk_shape))
        codes = compressed_morton.encode(places, self.scale.grid)
        for n in np.argsort(codes).tolist():
            inside = cell_box(places[n], self.chunk_shape, box).intersection(box)
            x, y, z = (slice(a - t, b - t) for a, b, t in zip(inside.topleft, inside.bottomright, topleft, strict=True))
            yield places[n], int(codes[n]), self._encoded(array[:, x, y, z], places[n])

    def _encoded(self, chunk: npt.NDArray[Any], cell: Vec3) -> bytes:
        if not chunk.view(f"u{chunk.dtype.itemsize}").any():  # minus zero is not zero
            return b""
        data = self.codec.encode(chunk, self.chunk_path(cell))
        gzips = self.compress == "gzip" if self.scale.sharding is None else self.scale.sharding.data_encoding == "gzip"
        return compress_gzip(data) if gzips else data

    def within(self, array: npt.NDArray[Any], topleft: Vec3) -> npt.NDArray[Any]:
        """Leave out voxels beyond the box."""
        x, y, z = (slice(0, high - t) for high, t in zip(self.box.bottomright, topleft, strict=True))
        return array[:, x, y, z]

    def chunk_path(self, cell: Vec3) -> str:
        """Name the file of a chunk that is stored by itself."""
        return f"{self.folder}/{self.scale.chunk_name(cell)}{SUFFIXES[self.compress]}"

    def first_id(self, shard: Vec3) -> int:
        """Give the lowest identifier of the chunks in a shard."""
        x, y, z = (n * edge // step for n, edge, step in zip(shard, self.shard_shape, self.chunk_shape, strict=True))
        return self.scale.chunk_id((x, y, z))

    def shard_path(self, shard: Vec3) -> str:
        """Name a shard file, or the first chunk of a group."""
        sharding = self.scale.sharding
        if sharding is None:
            low = [axis.start for axis in self._cells_of(shard, None)]
            return self.chunk_path((low[0], low[1], low[2]))
        return f"{self.folder}/{sharding.shard_name(self.first_id(shard) >> (sharding.preshift_bits + sharding.minishard_bits))}"

    def part_path(self, shard: Vec3, part: Vec3) -> str:
        """Name a part file."""
        return f"{self._parts_of(shard)}/z{part[2]}y{part[1]}x{part[0]}.run"

    def path_of(self, receipt: Receipt) -> str:
        """Say where a shard or part is stored; of a group of files, where the first one is, or would be."""
        if receipt.part is None or self.scale.sharding is None:
            return self.shard_path(receipt.shard)
        return self.part_path(receipt.shard, receipt.part)

    def _parts_of(self, shard: Vec3) -> str:
        return f"{self.parts_folder}/z{shard[2]}y{shard[1]}x{shard[0]}"

    def _cells_of(self, shard: Vec3, box: BoundingBox | None) -> tuple[range, range, range]:
        """Give the chunks of a shard, or of that part of it which a box touches."""
        whole = cell_box(shard, self.shard_shape, self.box).intersection(self.box)
        return cell_range(whole if box is None else whole.intersection(box), self.chunk_shape)

    def holds(self, receipt: Receipt) -> bool:
        """Tell whether what a receipt says is there and whole: of a shard its size and index are checked, of files their sizes, of a part every byte."""
        if not receipt.nbytes:
            return True
        if self.scale.sharding is None:
            return self._holds_files(receipt)
        if receipt.part is not None:
            return is_whole_part(self.path_of(receipt), receipt.nbytes, receipt.checksum)
        return _is_whole_shard(self.path_of(receipt), receipt.nbytes, self.scale.sharding)

    def _holds_files(self, receipt: Receipt) -> bool:
        files = nbytes = 0
        xs, ys, zs = self._cells_of(receipt.shard, receipt.box)
        for cell in ((x, y, z) for z in zs for y in ys for x in xs):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                nbytes += os.stat(self.chunk_path(cell)).st_size
                files += 1
        return (files, nbytes) == (receipt.files, receipt.nbytes)

    def encoded_nbytes(self, array: npt.NDArray[Any], topleft: Vec3) -> int:
        """Encode an array (c, x, y, z) of whole chunks, and give the number of bytes."""
        return sum(len(data) for _, _, data in self.encoded_chunks(self.within(array, topleft), topleft))

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate what files take that hold some voxels, encoded at a ratio."""
        tables = 0
        if self.scale.sharding is not None:
            x, y, z = self.chunk_shape
            tables = files * self.scale.sharding.index_nbytes + 24 * (voxel_nbytes // (x * y * z * self._voxel_nbytes))
        return int(voxel_nbytes * ratio) + tables

    def remove_parts(self, shard: Vec3) -> None:
        """Remove the part files of a shard that was joined."""
        if self.scale.sharding is not None:
            remove_tree(self._parts_of(shard))

    def join_shard(self, shard: Vec3, parts: Sequence[Receipt]) -> Receipt:
        """Join part files into one shard, without decoding a chunk, and publish it; chunks that are files of their own are there already.

        Raises
        ------
        IncompleteWriteError
            A part file is gone, and the shard that it was joined into is not there either.
        FormatError
            A part file is damaged.
        """
        receipt = merge_receipts(shard, parts)
        sharding = self.scale.sharding
        stored = [part for part in parts if part.path is not None]
        if sharding is None:
            path = self.shard_path(shard) if stored else None
            return replace(receipt, path=path, nbytes=sum(part.nbytes for part in stored), files=sum(part.files for part in stored) if stored else 1)
        path = self.shard_path(shard)
        try:
            runs: list[Run] = [PartFile(part.path) for part in stored if part.path is not None]
        except FileNotFoundError as error:
            # dask may run a task twice: then the shard was published by the first run, which removed the parts
            if not os.path.exists(path):
                raise IncompleteWriteError(f"{error.filename}: part of {path} is gone before they were joined") from None
            return _published(receipt, path)
        if not runs:
            return receipt
        self.write_shard(shard, sharding, runs)
        return _published(receipt, path)

    def write_shard(self, shard: Vec3, sharding: Sharding, runs: Sequence[Run]) -> None:
        """Copy the chunks of all runs into a shard file, in the order of their identifiers."""
        num_codes = 1 << min(sharding.preshift_bits + sharding.minishard_bits, len(compressed_morton.bit_axes(self.scale.grid)))
        sizes, segments = join_order([run.table for run in runs], num_codes)
        output = Pieces(lambda: NewFile(self.shard_path(shard), self.parts_folder), sharding.index_nbytes)
        try:
            for segment in segments:
                if segment.run >= 0:
                    runs[segment.run].copy(segment.offset, segment.nbytes, output)
            self.finish_shard(shard, sharding, sizes, output)
        except BaseException:
            output.discard()
            raise

    def finish_shard(self, shard: Vec3, sharding: Sharding, sizes: npt.NDArray[np.int64], output: Pieces) -> None:
        """Write the tables of a shard whose chunks are written, and publish it."""
        index, tail = format_shard_tables(sharding, self.first_id(shard), sizes)
        output.append(np.frombuffer(tail, np.uint8))
        file = output.close()
        file.write(index, 0)
        file.publish(flush_folder=False, keep_equal=True)


def _published(receipt: Receipt, path: str) -> Receipt:
    status = os.stat(path)
    return replace(receipt, path=path, nbytes=status.st_size, mtime_ns=status.st_mtime_ns)


def _is_whole_shard(path: str, nbytes: int, sharding: Sharding) -> bool:
    """Tell whether a shard file is there, has its size, and an index that ends where the file does, as all do that are written here."""
    try:
        with open(path, "rb") as file:
            raw = file.read(sharding.index_nbytes)
            size = os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        return False
    if size != nbytes or len(raw) != sharding.index_nbytes:
        return False
    index = np.frombuffer(raw, "<u8").reshape(-1, INDEX_ENTRY_NBYTES // 8)
    return bool((index[:, 0] <= index[:, 1]).all()) and int(index.max()) == size - sharding.index_nbytes


class ShardPartWriter:
    """Encodes the chunks of one part, or of one whole shard, and stores them as they come.

    Parameters
    ----------
    target : PrecomputedTarget
        The scale.
    sharding : Sharding
        Its sharding.
    shard : tuple of 3 int
        Index of the shard along x, y, z.
    part : tuple of 3 int, optional
        Name of the part; None writes the shard itself.
    """

    def __init__(self, target: PrecomputedTarget, sharding: Sharding, shard: Vec3, part: Vec3 | None) -> None:
        self._target = target
        self._sharding = sharding
        self._shard = shard
        self._part = part
        self._first_id = target.first_id(shard)
        self._codes: list[int] = []
        self._sizes: list[int] = []
        self._output = Pieces(self._open_file, 0 if part is not None else sharding.index_nbytes)
        self._checksum = 0
        self._stats = Stats(target.mag)

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
                if self._part is not None:
                    self._checksum = zlib.crc32(data, self._checksum)
                self._codes.append(code - self._first_id)
                self._sizes.append(len(data))

    def skip(self, box: BoundingBox) -> None:
        """Take note of voxels that are all zero, in place of appending them."""
        self._stats.add_zeros(box)

    @property
    def _path(self) -> str:
        return self._target.shard_path(self._shard) if self._part is None else self._target.part_path(self._shard, self._part)

    def _open_file(self) -> NewFile:
        target = self._target
        make_folders_below(target.folder if self._part is None else target.parts_folder, os.path.dirname(self._path))
        return NewFile(self._path, target.parts_folder)

    def close(self) -> Receipt:
        """Publish what was stored; nothing is, where all voxels are zero."""
        receipt = self._stats.receipt(self._shard, self._part)
        if not self._codes:
            self.discard()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            return receipt
        table = RunTable(np.array(self._codes, np.uint64), np.array(self._sizes, np.int64))
        if self._part is not None:
            nbytes, checksum = close_part(self._output, table, self._checksum)
            return replace(receipt, path=self._path, nbytes=nbytes, checksum=checksum)
        if self._codes == sorted(self._codes):
            sizes = np.zeros(self._codes[-1] + 1, np.int64)
            sizes[self._codes] = self._sizes
            self._target.finish_shard(self._shard, self._sharding, sizes, self._output)
        else:
            self._put_in_order(table)
        return _published(receipt, self._path)

    def _put_in_order(self, table: RunTable) -> None:
        """Write the shard once more, from chunks that came in another order than that of their identifiers."""
        file = self._output.close()
        try:
            fd = file.open_written()
            try:
                self._target.write_shard(self._shard, self._sharding, [_Unordered(fd, table, self._sharding.index_nbytes, self._path)])
            finally:
                os.close(fd)
        finally:
            file.discard()

    def discard(self) -> None:
        """Remove what was stored so far."""
        self._output.discard()


class _Unordered:
    """Chunks behind each other in an open file.

    Parameters
    ----------
    fd : int
        The file.
    table : RunTable
        What it holds.
    offset : int
        Where the first one starts.
    source : str
        The file's name, for errors.
    """

    def __init__(self, fd: int, table: RunTable, offset: int, source: str) -> None:
        self.table = table
        self._fd, self._offset, self._source = fd, offset, source

    def copy(self, offset: int, nbytes: int, output: Pieces) -> None:
        """Append bytes of the payload to a new file."""
        output.copy(self._fd, self._offset + offset, nbytes, self._source)


class ChunkFilesWriter:
    """Encodes the chunks of a group, or of a part of one, and stores each in a file of its own; the files are flushed together.

    Parameters
    ----------
    target : PrecomputedTarget
        The scale.
    shard : tuple of 3 int
        Index of the group along x, y, z.
    part : tuple of 3 int, optional
        Name of the part; None for the whole group.
    """

    def __init__(self, target: PrecomputedTarget, shard: Vec3, part: Vec3 | None) -> None:
        self._target = target
        self._shard = shard
        self._part = part
        self._files = NewFiles(target.parts_folder)
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
                self._files.write(self._target.chunk_path(cell), data)
            else:
                self._remove(cell)

    def skip(self, box: BoundingBox) -> None:
        """Take note of voxels that are all zero, in place of appending them."""
        self._stats.add_zeros(box)
        for cell in cells(box, self._target.chunk_shape):
            self._remove(cell)

    def _remove(self, cell: Vec3) -> None:
        """Remove what an interrupted attempt may have left, which read other voxels."""
        with contextlib.suppress(FileNotFoundError):
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
