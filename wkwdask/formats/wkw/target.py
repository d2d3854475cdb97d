"""One mag of a WKW layer that is being built in a job's folder: runs are encoded, joined into files, and files published whole.

A part is a box of blocks inside one file. It is stored as a part file: encoded blocks behind each other, then their Morton codes and lengths. A whole file
can also be written straight away, block by block in Morton order.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import FormatError, IncompleteWriteError, MissingError
from wkwdask.formats.part_file import PartFile, close_part, is_whole_part
from wkwdask.formats.wkw.file import format_file_head
from wkwdask.formats.wkw.header import WkwHeader, format_header
from wkwdask.formats.wkw.splice import can_splice, splice_file
from wkwdask.formats.wkw.stored_file import open_if_stored, open_wkw_file
from wkwdask.formats.wkw.volume import HEADER_NAME, WkwVolume, file_path
from wkwdask.geometry import morton
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.kernels.blocks.batch import compress_bound, encode_from, zero_encoding
from wkwdask.model.pieces import Pieces
from wkwdask.model.receipts import Receipt, Stats, merge_receipts
from wkwdask.model.run import RunTable, join_order
from wkwdask.plans.chunks import largest_multiple
from wkwdask.store import files
from wkwdask.store.new_files import NewFile, publish_bytes
from wkwdask.store.paths import dirname

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    import numpy.typing as npt

    from wkwdask.formats.part_file import Run
    from wkwdask.formats.wkw.splice import Stored
    from wkwdask.formats.wkw.stored_file import WkwFile
    from wkwdask.geometry.mag import Vec3

_BATCH_NBYTES = 4 << 20
_buffers = threading.local()


@dataclass(frozen=True, slots=True)
class WkwTarget:
    """One mag of a WKW layer that is being built; small to pickle."""

    folder: str
    """Where its files are published for now."""
    parts_folder: str
    """Where its part files are."""
    header: WkwHeader
    """Header of the new mag."""
    level: int
    """LZ4HC level."""
    box: BoundingBox
    """Where data goes [voxels of the mag]."""
    is_living: bool = False
    """Whether the mag already exists: then each file lasts as soon as it is published."""
    merges: bool = False
    """Whether what the mag holds outside the box stays: files are merged, block by block, with those that are there."""
    reencodes: bool = False
    """Whether stored blocks of other mags are encoded anew."""
    keeps_files: bool = False
    """Whether a file that is taken over from another mag keeps the voxels outside of the box that it may hold."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one channel, in native byte order."""
        return self.header.dtype.newbyteorder("=")

    @property
    def num_channels(self) -> int:
        """Values per voxel."""
        return self.header.num_channels

    @property
    def origin(self) -> Vec3:
        """Absolute voxel at which the mag's coordinates start."""
        return 0, 0, 0

    @property
    def chunk_shape(self) -> Vec3:
        """A block along x, y, z [voxels]."""
        return (self.header.block_len,) * 3

    @property
    def shard_shape(self) -> Vec3:
        """A file along x, y, z [voxels]."""
        return (self.header.file_len_vx,) * 3

    @property
    def scratch_folder(self) -> str:
        """Where scratch files of the job can be."""
        return f"{self.parts_folder}/scratch"

    def part_shape(self, nbytes: int) -> Vec3:
        """Choose the largest aligned cube of blocks inside a file whose voxels take at most so many bytes."""
        return largest_multiple(self.chunk_shape, self.shard_shape, self.header.voxel_nbytes, nbytes)

    def prepare(self) -> None:
        """Make the folders and write ``header.wkw``; doing it again changes nothing."""
        files.makedirs(self.folder)
        files.makedirs(self.parts_folder)
        if not files.exists(f"{self.folder}/{HEADER_NAME}"):
            publish_bytes(f"{self.folder}/{HEADER_NAME}", format_header(self.header))

    def built_in(self, folder: str) -> Self:
        """Give the level as it is built in another folder."""
        return replace(self, folder=folder, parts_folder=f"{folder}.parts")

    def describe(self) -> None:
        """Write ``header.wkw``, in place of another one that may be there."""
        publish_bytes(f"{self.folder}/{HEADER_NAME}", format_header(self.header))

    def as_volume(self) -> WkwVolume:
        """Read what has been published so far."""
        return WkwVolume.open(self.folder, self.box, self.box.mag)

    def open_part(self, shard: Vec3, part: Vec3 | None) -> WkwPartWriter:
        """Start a part of a file, or the whole file where ``part`` is None; blocks of a whole file come in Morton order."""
        return WkwPartWriter(self, shard, part)

    def part_path(self, shard: Vec3, part: Vec3) -> str:
        """Name a part file."""
        return f"{self._parts_of(shard)}/z{part[2]}y{part[1]}x{part[0]}.run"

    def path_of(self, receipt: Receipt) -> str:
        """Say where a file or part is stored."""
        return file_path(self.folder, receipt.shard) if receipt.part is None else self.part_path(receipt.shard, receipt.part)

    def holds(self, receipt: Receipt) -> bool:
        """Tell whether what a receipt says is there and whole: for a file its size, header and table are checked, for a part every byte."""
        path = self.path_of(receipt)
        if not receipt.nbytes:
            return not self.is_living or receipt.part is not None or not files.lexists(path)
        if self.is_living and receipt.part is None and not _has_mtime(path, receipt.mtime_ns):
            return False  # somebody else wrote it since
        if receipt.part is None:
            try:
                file = open_wkw_file(path, self.header, f"{self.folder}/{HEADER_NAME}")
                if file is None or file.nbytes != receipt.nbytes:
                    return False
                file.check_table()
            except (FormatError, MissingError):
                return False
            return True
        return is_whole_part(path, receipt.nbytes, receipt.checksum)

    def encoded_nbytes(self, array: npt.NDArray[Any], topleft: Vec3) -> int:
        """Encode an array (c, x, y, z) of whole blocks inside one file, and give the number of bytes."""
        header = self.header
        step = header.block_len
        low = [t // step for t in topleft]
        high = [-(-(t + n) // step) for t, n in zip(topleft, array.shape[1:], strict=True)]
        _, coordinates = morton.ordered_box(_relative(low, low), _relative(high, low))
        corners = (coordinates + low) * step - topleft
        per_batch = max(1, _BATCH_NBYTES // header.block_nbytes)
        out = _buffer(min(per_batch, len(corners)) * compress_bound(header.block_nbytes))
        batches = (corners[first : first + per_batch] for first in range(0, len(corners), per_batch))
        return sum(encode_from(array, batch, out, block_len=step, block_type=header.block_type, level=self.level, store_zero=True).nbytes for batch in batches)

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate what files take that hold some voxels: these, encoded at a ratio, all other blocks as zeros, and the jump tables."""
        header = self.header
        zeros = max(0, files * header.blocks_per_file - voxel_nbytes // header.block_nbytes)
        zero = zero_encoding(header.block_nbytes, header.block_type, self.level)
        return int(voxel_nbytes * ratio) + zeros * zero.size + files * header.smallest_data_offset

    @staticmethod
    def most_files(shards: int, chunks: int) -> int:
        """Count files: each shard is one."""
        del chunks
        return shards

    def remove_parts(self, shard: Vec3) -> None:
        """Remove the part files of a file that was joined."""
        files.remove_tree(self._parts_of(shard))

    def _parts_of(self, shard: Vec3) -> str:
        return f"{self.parts_folder}/z{shard[2]}y{shard[1]}x{shard[0]}"

    def join_shard(self, shard: Vec3, parts: Sequence[Receipt]) -> Receipt:
        """Join part files into one file, without decoding a block, and publish it."""
        receipt = merge_receipts(shard, parts)
        path = file_path(self.folder, shard)
        try:
            runs: list[Run] = [PartFile(part.path) for part in parts if part.path is not None]
        except FileNotFoundError as error:
            # dask may run a task twice: then the file was published by the first run, which removed the parts
            if open_wkw_file(path, self.header, f"{self.folder}/{HEADER_NAME}") is None:
                raise IncompleteWriteError(f"{error.filename}: part of {path} is gone before they were joined") from None
        else:
            if self.merges:
                runs += self._kept_blocks(shard, [part.box for part in parts])
            if not runs:
                if self.is_living:
                    files.remove_file(path)
                return receipt
            files.make_folders_below(self.folder, dirname(path))
            self._write_joined(path, runs)
        status = files.stat(path)
        return replace(receipt, path=path, nbytes=status.st_size, mtime_ns=status.st_mtime_ns)

    def _kept_blocks(self, shard: Vec3, boxes: Sequence[BoundingBox]) -> list[Run]:
        """Find the blocks of a file that is there which no box touches; none where all of them are zero."""
        file = open_if_stored(file_path(self.folder, shard), self.header)
        if file is None:
            return []
        step, edge = self.header.block_len, self.header.file_len
        is_kept = np.ones(self.header.blocks_per_file, np.bool_)
        for box in boxes:
            blocks = box.aligned((step,) * 3)
            origin = [n * edge for n in shard]
            low, high = ([n // step for n in corner] for corner in (blocks.topleft, blocks.bottomright))
            is_kept[morton.ordered_box(_relative(low, origin), _relative(high, origin))[0]] = False
        codes = np.flatnonzero(is_kept)
        if file.header.is_compressed != self.header.is_compressed:
            return self._encoded_anew(shard, codes)
        kept = _KeptBlocks(file, codes)
        return [] if kept.is_all_zero(zero_encoding(self.header.block_nbytes, self.header.block_type, self.level)) else [kept]

    def _encoded_anew(self, shard: Vec3, codes: npt.NDArray[np.intp]) -> list[Run]:
        """Encode blocks that are stored in another way than header.wkw says, which readers allow."""
        step, edge = self.header.block_len, self.header.file_len
        volume = WkwVolume.open(self.folder, self.box, self.box.mag)
        block = np.empty((self.num_channels, step, step, step), self.dtype, order="F")
        writer = WkwPartWriter(self, shard, (-1, -1, -1))
        try:
            for x, y, z in ((morton.decode(codes.astype(np.uint64)) + np.multiply(shard, edge)) * step).tolist():
                volume.read_into(block, (x, y, z))
                writer.append(block, (x, y, z))
            path = writer.close().path
        except BaseException:
            writer.discard()
            raise
        return [] if path is None else [PartFile(path)]

    def with_borders(self, array: npt.NDArray[Any], topleft: Vec3) -> tuple[npt.NDArray[Any], Vec3]:
        """Complete an array (c, x, y, z) to whole blocks with what the mag holds around it."""
        box = BoundingBox(topleft, array.shape[1:], self.box.mag)
        whole = box.aligned(self.chunk_shape)
        if box == whole or not array.size:
            return array, topleft
        out = np.empty((self.num_channels, *whole.size), self.dtype, order="F")
        WkwVolume.open(self.folder, whole, self.box.mag).read_into(out, whole.topleft)
        x, y, z = (slice(a - t, b - t) for a, b, t in zip(box.topleft, box.bottomright, whole.topleft, strict=True))
        out[:, x, y, z] = array
        return out, whole.topleft

    def can_splice(self, source: Any) -> bool:
        """Tell whether stored blocks of a volume are blocks of this mag."""
        return not self.reencodes and can_splice(source, self)

    def splice_shard(self, source: Stored, shard: Vec3) -> Receipt:
        """Make one file of what a mag with the same blocks has stored in its place, see :func:`wkwdask.formats.wkw.splice.splice_file`."""
        return splice_file(source, self, shard)

    def _write_joined(self, path: str, runs: Sequence[Run]) -> None:
        """Copy the blocks of all runs, in the order of the file, behind the header and table."""
        sizes, segments = join_order([run.table for run in runs], self.header.blocks_per_file)
        zero = zero_encoding(self.header.block_nbytes, self.header.block_type, self.level)
        sizes[sizes == 0] = zero.size
        head = format_file_head(self.header, sizes)
        output = Pieces(lambda: NewFile(path, self.parts_folder), 0)
        try:
            output.append(np.frombuffer(head, np.uint8))
            for segment in segments:
                if segment.run < 0:
                    output.repeat(zero, segment.num_blocks)
                else:
                    runs[segment.run].copy(segment.offset, segment.nbytes, output)
            file = output.close()
        except BaseException:
            output.discard()
            raise
        file.publish(flush_folder=self.is_living, keep_equal=True)


class _KeptBlocks:
    """Some blocks of a file that is there."""

    def __init__(self, file: WkwFile, codes: npt.NDArray[np.intp]) -> None:
        self._file = file
        bounds = file.all_bounds()
        self._starts, self._ends = bounds[codes], bounds[codes + 1]
        self.table = RunTable(codes.astype(np.uint64), self._ends - self._starts, self._starts)

    def copy(self, offset: int, nbytes: int, output: Pieces) -> None:
        """Append stored bytes to a new file."""
        self._file.copy(offset, nbytes, output)

    def is_all_zero(self, zero: npt.NDArray[np.uint8]) -> bool:
        """Tell whether all of them are the encoded block of zeros."""
        starts, ends = self._starts, self._ends
        cuts = [0, *(np.flatnonzero(starts[1:] != ends[:-1]) + 1).tolist(), len(starts)] if len(starts) else [0]
        return all(self._file.is_all_zero(np.append(starts[a:b], ends[b - 1]), zero) for a, b in pairwise(cuts))


class WkwPartWriter:
    """Encodes the blocks of one part, or of one whole file, and stores them as they come."""

    def __init__(self, target: WkwTarget, shard: Vec3, part: Vec3 | None) -> None:
        self._target = target
        self._shard = shard
        self._part = part
        self._codes: list[npt.NDArray[np.uint64]] = []
        self._sizes: list[npt.NDArray[np.int64]] = []
        header = target.header
        self._zero = zero_encoding(header.block_nbytes, header.block_type, target.level)
        self._next_code = 0
        self._output = Pieces(self._open_file, 0 if part is not None else header.smallest_data_offset)
        self._nonzero_blocks = 0
        self._checksum = 0
        self._stats = Stats(target.box.mag)

    @property
    def gathered_nbytes(self) -> int:
        """Encoded blocks that are not written yet."""
        return self._output.gathered_nbytes

    def flush(self) -> None:
        """Write them."""
        self._output.flush()

    def append(self, array: npt.NDArray[Any], topleft: Vec3) -> None:
        """Encode an array and store its blocks."""
        header = self._target.header
        step, edge = header.block_len, header.file_len
        self._stats.add(array, topleft)
        if self._target.merges:
            array, topleft = self._target.with_borders(array, topleft)
        low = [t // step for t in topleft]
        high = [-(-(t + n) // step) for t, n in zip(topleft, array.shape[1:], strict=True)]
        origin = [i * edge for i in self._shard]
        codes, coordinates = morton.ordered_box(_relative(low, origin), _relative(high, origin))
        corners = (coordinates + origin) * step - topleft
        per_batch = max(1, _BATCH_NBYTES // header.block_nbytes)
        for first in range(0, len(codes), per_batch):
            batch = slice(first, first + per_batch)
            self._append_batch(array, codes[batch], corners[batch])

    def skip(self, box: BoundingBox) -> None:
        """Take note of voxels that are all zero, in place of appending them."""
        self._stats.add_zeros(box)

    def _append_batch(self, array: npt.NDArray[Any], codes: npt.NDArray[np.uint64], corners: npt.NDArray[np.int64]) -> None:
        header = self._target.header
        if self._part is None and int(codes[0]) < self._next_code:
            raise ValueError(f"blocks of a whole file must come in Morton order: block {codes[0]} after block {self._next_code - 1}")
        # A box that is no aligned cube has codes with gaps between them: then blocks are stored one stretch at a time.
        stretches = np.split(np.arange(len(codes)), np.flatnonzero(np.diff(codes) != 1) + 1) if self._part is None else [np.arange(len(codes))]
        for stretch in stretches:
            here = slice(int(stretch[0]), int(stretch[-1]) + 1)
            if self._part is None:
                self._fill_gap(int(codes[here][0]))
                self._next_code = int(codes[here][-1]) + 1
            out = self._output.room(len(stretch) * compress_bound(header.block_nbytes))
            encoded = encode_from(
                array, corners[here], out, block_len=header.block_len, block_type=header.block_type, level=self._target.level, store_zero=self._part is None
            )
            self._output.advance(encoded.nbytes)
            if self._part is not None:
                self._checksum = zlib.crc32(out[: encoded.nbytes].data, self._checksum)
            self._codes.append(codes[here])
            self._sizes.append(encoded.sizes)
            self._nonzero_blocks += encoded.nonzero

    def _fill_gap(self, code: int) -> None:
        """Store all-zero blocks up to a code."""
        count = code - self._next_code
        if count > 0:
            self._output.repeat(self._zero, count)
            self._codes.append(np.arange(self._next_code, code, dtype=np.uint64))
            self._sizes.append(np.full(count, self._zero.size, np.int64))
            self._next_code = code

    def _open_file(self) -> NewFile:
        target = self._target
        files.make_folders_below(target.folder if self._part is None else target.parts_folder, dirname(self._path))
        return NewFile(self._path, target.parts_folder, flush=self._part is None)

    @property
    def _path(self) -> str:
        target = self._target
        return file_path(target.folder, self._shard) if self._part is None else target.part_path(self._shard, self._part)

    def close(self) -> Receipt:
        """Publish what was stored; nothing is, where all voxels are zero."""
        receipt = self._stats.receipt(self._shard, self._part)
        if not self._nonzero_blocks:
            self.discard()
            with contextlib.suppress(FileNotFoundError):
                files.unlink(self._path)
            return receipt
        header = self._target.header
        if self._part is None:
            self._fill_gap(header.blocks_per_file)
        codes, sizes = np.concatenate(self._codes), np.concatenate(self._sizes)
        if self._part is not None:
            nbytes, checksum = close_part(self._output, RunTable(codes, sizes), self._checksum)
            return replace(receipt, path=self._path, nbytes=nbytes, checksum=checksum)
        file = self._output.close()
        file.write(format_file_head(header, sizes), 0)
        file.publish(flush_folder=self._target.is_living, keep_equal=True)
        return replace(receipt, path=self._path, nbytes=self._output.end, mtime_ns=files.stat(self._path).st_mtime_ns)

    def discard(self) -> None:
        """Remove what was stored so far."""
        self._output.discard()


def _has_mtime(path: str, mtime_ns: int) -> bool:
    try:
        return files.stat(path).st_mtime_ns == mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return False


def _relative(blocks: Sequence[int], origin: Sequence[int]) -> Vec3:
    x, y, z = (b - o for b, o in zip(blocks, origin, strict=True))
    return x, y, z


def _buffer(nbytes: int) -> npt.NDArray[np.uint8]:
    """Give this thread's write buffer, grown when it must hold more."""
    memory: npt.NDArray[np.uint8] | None = getattr(_buffers, "memory", None)
    if memory is None or memory.size < nbytes:
        memory = np.empty(nbytes, np.uint8)
        _buffers.memory = memory
    return memory[:nbytes]
