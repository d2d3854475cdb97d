"""Arrays that are being written, in any format. Coordinates are relative to the first voxel of the
grid.

A shard is a box along x, y, z with all channels. Other software stores channels in several chunks,
or in several files: then a shard is all of these.

Sharded arrays: a part is a part file of encoded chunks (``wkwdask.model.writing.run``). One task
joins the parts of a shard without decoding, or a task writes the whole shard directly.

    parts of a shard (boxes of chunks)      part files              shard, in the order of codes
      +----+----+                            a: 0 1 2 3
      | a  | b  |      encode  ->            b: 4 5 6 7    join ->   header, 0 1 2 3 4 5 6 7, tables
      +----+----+

Unsharded arrays: a shard is a group of chunks that one task writes, each a file with its final
name. A part is some of these files; a join adds up receipts. All-zero chunks are not stored, unless
the layout stores all chunks of a file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wkwdask.errors import BoundsError, CorruptError, IncompleteWriteError, UnsupportedError
from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.geometry.grid import cell_box, cell_range
from wkwdask.geometry.mag import vec3
from wkwdask.geometry.vectors import minus, plus
from wkwdask.kernels.arrays import is_zero
from wkwdask.model.layout import Shards, box_cells
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.volume import relative_to
from wkwdask.model.writing.file_buffer import EncodedBytes, EncodedPieces, FileBuffer
from wkwdask.model.writing.receipts import Receipt, Stats, merge_receipts
from wkwdask.model.writing.run import (
    Run,
    RunTable,
    close_part,
    copy_runs,
    is_whole_part,
    open_run,
    publish_shard,
)
from wkwdask.model.writing.splice import Splice
from wkwdask.plans.chunks import largest_multiple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.chunk_grid import Ranges, Vec4
    from wkwdask.model.layout import ShardFile
    from wkwdask.model.naming import KeyNaming
    from wkwdask.model.store import Store
    from wkwdask.model.volume import Volume

_BATCH_NBYTES = 4 << 20  # of voxels that are encoded in one call


@dataclass(frozen=True, slots=True)
class InPlaceWrite:
    """In-place write to an existing level, file by file."""

    folder: str
    """Folder of the level."""
    parts: str
    """Folder of part files."""
    box: BoundingBox
    """Box to write [absolute voxels of its mag]."""
    merges: bool = False
    """Whether files keep their voxels around the box."""
    level: int | str | None = None
    """Compression level or its word, if the stored array does not state it."""


class Splicer(Protocol):
    """Creates shards from the stored files of arrays of the same format without decoding chunks;
    small to pickle."""

    def can_splice(self, source: Volume, target: TargetArray) -> bool:
        """Return whether that is possible."""

    def splice_shard(self, source: Any, target: TargetArray, shard: Vec3) -> Receipt:
        """Create a shard from the source's files in the same place, and publish it."""


@dataclass(frozen=True, slots=True)
class TargetArray:
    """Array that is being written; small to pickle.

    The unit of work is a part: a box of whole chunks inside one shard, or a whole shard. Only the
    task that joins the parts publishes a shard.
    """

    array: StoredArray
    """Array to write, at its absolute position."""
    parts: Store
    """Folder of part files, and of files before they are published."""
    documents: tuple[tuple[str, bytes], ...] = ()
    """Names and contents of the files in its folder that describe it."""
    merges: bool = False
    """Whether shards keep their stored voxels outside the box; then all shards are joined from
    parts."""
    is_in_place: bool = False
    """Whether the array existed before; then each published file must be durable at once."""
    keeps_files: bool = False
    """Whether files and chunks that are copied from another array keep voxels outside the box."""
    splicer: Splicer | None = None

    def built_in(self, folder: str) -> TargetArray:
        """Return the array to build in another folder."""
        store = self.array.store
        return replace(
            self, array=self.array.at(store.at(folder)), parts=store.at(f"{folder}.parts")
        )

    # --------------------------------------------------------------------------------------------
    # geometry

    @property
    def folder(self) -> str:
        """Folder in which files are published for now."""
        return self.array.store.url

    @property
    def scratch_folder(self) -> str:
        """Folder for scratch files of the job."""
        return f"{self.parts.url}/scratch"

    @property
    def mag(self) -> Mag:
        return self.array.mag

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def num_channels(self) -> int:
        return self.array.num_channels

    @property
    def origin(self) -> Vec3:
        """Absolute voxel of its coordinate 0; can be negative."""
        return self.array.grid.origin

    @property
    def box(self) -> BoundingBox:
        """Box to write [voxels of the mag, relative to ``origin``]."""
        return self.as_volume().box

    @property
    def chunk_shape(self) -> Vec3:
        """Shape (x, y, z) of a chunk [voxels]."""
        return self.array.grid.chunk[1:]

    @property
    def shard_shape(self) -> Vec3:
        """Shape (x, y, z) of a shard or group of chunks [voxels]."""
        return self.array.grid.unit

    @property
    def naming(self) -> KeyNaming:
        assert self.array.naming is not None
        return self.array.naming

    @property
    def is_sharded(self) -> bool:
        """Whether a file contains many chunks."""
        return self.array.layout.is_sharded

    @property
    def shards(self) -> Shards:
        """Layout of files with many chunks."""
        assert isinstance(self.array.layout, Shards)
        return self.array.layout

    @property
    def has_morton_order(self) -> bool:
        """Whether chunks lie in a file in Morton order."""
        return self.is_sharded and self.shards.is_ordered

    @property
    def voxel_nbytes(self) -> int:
        return self.dtype.itemsize * self.num_channels

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of the decoded voxels of a chunk."""
        return math.prod(self.chunk_shape) * self.voxel_nbytes

    def part_shape(self, nbytes: int) -> Vec3:
        """Return the largest box of chunks inside a shard whose voxels have at most ``nbytes``
        bytes."""
        return largest_multiple(self.chunk_shape, self.shard_shape, self.voxel_nbytes, nbytes)

    def max_files(self, shards: int, chunks: int) -> int:
        """Return the largest number of files for some shards with some chunks of all channels."""
        grid = self.array.grid
        return shards * grid.file_counts[0] if self.is_sharded else chunks * grid.counts[0]

    # --------------------------------------------------------------------------------------------
    # chunks

    def as_volume(self) -> StoredArray:
        """Return the published part of the array for reading."""
        return relative_to(self.array, self.array.grid.origin)

    def clip_to_box(self, array: npt.NDArray[Any], topleft: Vec3) -> npt.NDArray[Any]:
        """Cut off voxels beyond the box."""
        x, y, z = (
            slice(0, max(0, high - t))
            for high, t in zip(self.box.bottomright, topleft, strict=True)
        )
        return array[:, x, y, z]

    def with_borders(self, array: npt.NDArray[Any], topleft: Vec3) -> tuple[npt.NDArray[Any], Vec3]:
        """Extend an array (c, x, y, z) to whole chunks with the stored voxels around it."""
        box = BoundingBox(topleft, array.shape[1:], self.mag)
        whole = box.aligned(self.chunk_shape).intersection(self.as_volume().extent)
        if box == whole or not array.size:
            return array, topleft
        out = np.empty((self.num_channels, *whole.size), self.dtype, order="F")
        for border in self._borders(box, whole):
            # chunks that are replaced whole are not read: they may be damaged
            part = np.empty((self.num_channels, *border.size), self.dtype, order="F")
            self.as_volume().read_into(part, border.topleft)
            part_of_array(out, border, whole.topleft)[...] = part
        part_of_array(out, box, whole.topleft)[...] = array
        return out, whole.topleft

    def _from_chunk_corner(
        self, array: npt.NDArray[Any], topleft: Vec3
    ) -> tuple[npt.NDArray[Any], Vec3]:
        """Extend an array (c, x, y, z) by zeros to the corner of a chunk: a box may begin inside of
        one."""
        before = vec3([n % edge for n, edge in zip(topleft, self.chunk_shape, strict=True)])
        if before == (0, 0, 0):
            return array, topleft
        x, y, z = before
        out = np.zeros((len(array), *plus(before, vec3(array.shape[1:]))), array.dtype, order="F")
        out[:, x:, y:, z:] = array
        return out, minus(topleft, before)

    def _borders(self, box: BoundingBox, whole: BoundingBox) -> Iterator[BoundingBox]:
        """Cut the chunks that a box cuts from those that it touches, into at most 6 boxes."""
        low, high = list(whole.topleft), list(whole.bottomright)
        for axis, edge in enumerate(self.chunk_shape):
            start, stop = -(-box.topleft[axis] // edge) * edge, box.bottomright[axis]
            stop = stop if stop == high[axis] else stop // edge * edge
            start = min(start, high[axis])
            stop = max(start, stop)
            for first, last in ((low[axis], start), (stop, high[axis])):
                if first < last:
                    yield BoundingBox.from_corners(
                        (*low[:axis], first, *low[axis + 1 :]),
                        (*high[:axis], last, *high[axis + 1 :]),
                        self.mag,
                    )
            low[axis], high[axis] = start, stop

    def _cells(self, box: BoundingBox) -> npt.NDArray[np.int64]:
        """List the chunks that a box touches, with all channels, shape (n, 4)."""
        return box_cells((range(self.array.grid.counts[0]), *cell_range(box, self.chunk_shape)))

    def files_of(self, shard: Vec3, box: BoundingBox) -> Ranges:
        """Return the indices of the files of a shard, or of those files of a group that a box
        touches."""
        grid = self.array.grid
        if self.is_sharded:
            x, y, z = (range(n, n + 1) for n in shard)
            return range(grid.file_counts[0]), x, y, z
        inside = (
            cell_box(shard, self.shard_shape, self.box).intersection(self.box).intersection(box)
        )
        return range(grid.counts[0]), *cell_range(inside, self.chunk_shape)

    def _codes(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the codes of chunks, shape (n, 4), in their shard: those of its files along c
        follow each other."""
        return self.shards.codes(cells) + self._first_codes(cells[:, 0])

    def _first_codes(self, c: npt.NDArray[np.int64] | int) -> npt.NDArray[np.uint64]:
        """Return the code at which the file of the chunks at an index along c begins."""
        return np.asarray(
            c // self._channel_chunks_per_file * self.shards.codes_per_file(self.array.grid),
            np.uint64,
        )

    @property
    def _channel_chunks_per_file(self) -> int:
        grid = self.array.grid
        return -(-(grid.file or grid.size)[0] // grid.chunk[0])

    def ordered_chunks(
        self, size: Sequence[int], topleft: Vec3, c: int = 0
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return codes and first voxels, in the array, of the chunks of an array of whole chunks,
        in ascending order of codes.

        ``c`` is the index of the chunks along the channels.
        """
        low = [t // edge for t, edge in zip(topleft, self.chunk_shape, strict=True)]
        high = [
            -(-(t + n) // edge) for t, n, edge in zip(topleft, size, self.chunk_shape, strict=True)
        ]
        codes, places = self.array.layout.ordered_cells(
            (c, low[0], low[1], low[2]), (c + 1, high[0], high[1], high[2])
        )
        return codes + self._first_codes(c) if self.is_sharded else codes, places[
            :, 1:
        ] * self.chunk_shape - topleft

    def remove_file(self, file: Vec4, *, others: bool = False) -> None:
        """Remove a file that an interrupted attempt may have left; with ``others``, only its
        variants with other names."""
        key = self.naming.key(file)
        for name in self.naming.names(file) if self.is_in_place else (key,):
            if not (others and name == key):
                self.array.store.delete(name)

    def encoded_nbytes(self, array: npt.NDArray[Any], topleft: Vec3) -> int:
        """Encode an array (c, x, y, z) of whole chunks without storing it, and return the size."""
        voxels, topleft = self._from_chunk_corner(self.clip_to_box(array, topleft), topleft)
        sink = FileBuffer(None)
        _, sizes, _ = self._encode_into(
            sink, voxels, topleft, stores_zeros=self.array.layout.is_dense
        )
        sink.discard()
        return int(sizes.sum())

    def expected_nbytes(self, files: int, voxel_nbytes: int, ratio: float) -> int:
        """Estimate the size of files with some voxels at a compression ratio."""
        tables = (
            self.shards.expected_nbytes(files, voxel_nbytes // self.chunk_nbytes)
            if self.is_sharded
            else 0
        )
        return int(voxel_nbytes * ratio) + tables

    # --------------------------------------------------------------------------------------------
    # writing

    def prepare(self) -> None:
        """Create folders and documents; repeating it changes nothing."""
        self.array.store.make()
        self.parts.make()
        for name, document in self.documents:
            if self.array.store.states([name]) == [None]:
                self.array.store.put(name, document)

    def describe(self) -> None:
        """Write the documents of the array, replacing existing ones."""
        for name, document in self.documents:
            self.array.store.put(name, document)

    def why_decoded(self, source: Volume) -> str:
        """Return why chunks of a volume must be decoded, an empty text if shards can be created
        from its stored bytes."""
        if self.splicer is not None and self.splicer.can_splice(source, self):
            return ""
        if not isinstance(source, StoredArray):
            return "its voxels are converted"
        return (
            "stored voxels around the box are kept"
            if self.merges
            else self._splice(source).obstacle()
        )

    def _splice(self, source: StoredArray) -> Splice:
        return Splice(source, self.as_volume(), keeps_outside=self.keeps_files)

    def splice_shard(self, source: Any, shard: Vec3) -> Receipt:
        """Create a shard from the stored bytes of a volume in the same place, and publish it."""
        if self.splicer is not None and self.splicer.can_splice(source, self):
            return self.splicer.splice_shard(source, self, shard)
        box = cell_box(shard, self.shard_shape, self.box).intersection(self.box)
        receipt, splice, places = (
            Receipt(shard, box, voxels=box.volume),
            self._splice(source),
            self._cells(box),
        )
        if not self.is_sharded:
            return replace(
                self._spliced_files(receipt, splice.chunks(places)), outside=splice.num_outside
            )
        is_copy = (
            isinstance(source.layout, Shards)
            and source.codec == self.array.codec
            and not source.store.is_remote
        )
        if is_copy and not splice.checks_chunks and splice.ends_alike and splice.has_same_cells:
            return self._copied_shard(receipt, source, places)
        return replace(self._spliced_shard(receipt, splice, places), outside=splice.num_outside)

    def _copied_shard(
        self, receipt: Receipt, source: StoredArray, cells: npt.NDArray[np.int64]
    ) -> Receipt:
        """Copy the stored chunks of other shards, whole stretches of a file at a time."""
        layout, runs, num_found = source.layout, [], 0
        assert isinstance(layout, Shards)
        assert source.naming is not None
        with ExitStack() as opened:
            for key, members in source.naming.locate(cells, source.grid):
                file = opened.enter_context(layout.opened(source.store, key))
                if file is None:
                    continue
                located = layout.locate(file, cells[members])
                sizes, found = located[:, 1] - located[:, 0], cells[members][located[:, 2]]
                for row in np.flatnonzero(sizes == 0)[:1].tolist():
                    place = tuple(found[row, 1:].tolist())
                    raise CorruptError(
                        f"{file.name}: chunk {place}: byte {located[row, 0]}: expected an encoded "
                        "chunk, found 0 bytes"
                    )
                num_found += len(found)
                runs.append(Run(RunTable(self._codes(found), sizes, located[:, 0]), file))
            source.identity.check(has_absent=num_found < len(cells))
            if not num_found:
                return receipt
            self.write_shard(receipt.shard, runs)
        return self.published_receipt(receipt)

    def _spliced_files(
        self, receipt: Receipt, chunks: Iterator[tuple[int, Vec4, bytes]]
    ) -> Receipt:
        files = self.array.store.new_files(self.parts.url)
        try:
            for _, cell, data in chunks:
                files.write(self.naming.key(cell), data)
            files.publish()
        except BaseException:
            files.discard()
            raise
        return (
            replace(
                receipt, path=self.shard_path(receipt.shard), nbytes=files.nbytes, files=files.count
            )
            if files.count
            else receipt
        )

    def _spliced_shard(
        self, receipt: Receipt, splice: Splice, cells: npt.NDArray[np.int64]
    ) -> Receipt:
        output = self.new_shard((0, *receipt.shard))
        try:
            if not splice.write(output, cells):
                output.buffer.discard()
                return receipt
            publish_shard(output, is_in_place=self.is_in_place)
        except BaseException:
            output.buffer.discard()
            raise
        return self.published_receipt(receipt)

    def encode_box(
        self, array: npt.NDArray[Any], topleft: Vec3, *, is_part: bool = False
    ) -> EncodedBox:
        """Encode an array (c, x, y, z) of whole chunks, which may extend beyond the box, for a
        writer of a part or a whole shard; any thread can do it."""
        voxels, stats = self.clip_to_box(array, topleft), Stats(self.mag)
        stats.add(voxels, topleft)
        voxels, topleft = (
            self.with_borders(voxels, topleft)
            if self.merges
            else self._from_chunk_corner(voxels, topleft)
        )
        return (
            self._encoded_chunks(voxels, topleft, stats, is_part=is_part)
            if self.is_sharded
            else self._encoded_files(voxels, topleft, stats)
        )

    def _encoded_chunks(
        self, voxels: npt.NDArray[Any], topleft: Vec3, stats: Stats, *, is_part: bool
    ) -> EncodedBox:
        output = EncodedBytes()
        codes, sizes, num_nonzero = self._encode_into(
            output, voxels, topleft, stores_zeros=self.array.layout.is_dense and not is_part
        )
        is_stored = sizes > 0
        return EncodedBox(stats, codes[is_stored], sizes[is_stored], num_nonzero, output)

    def _encode_into(
        self, output: FileBuffer, voxels: npt.NDArray[Any], topleft: Vec3, *, stores_zeros: bool
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], int]:
        """Append the chunks of an array to a file; return their codes, their sizes, and how many
        are not all zero."""
        grid, encode, num_nonzero = self.array.grid, self.array.codec.encode_batch, 0
        all_codes, all_sizes = [], []
        for c in range(grid.counts[0]):
            channels = voxels[c * grid.chunk[0] : (c + 1) * grid.chunk[0]]
            codes, corners = self.ordered_chunks(voxels.shape[1:], topleft, c)
            all_codes.append(codes)
            for batch in _batches(len(codes), self.chunk_nbytes):
                sizes, nonzero = encode(
                    channels,
                    corners[batch],
                    self.chunk_shape,
                    output,
                    self.folder,
                    stores_zeros=stores_zeros,
                )
                all_sizes.append(sizes)
                num_nonzero += nonzero
        return (
            np.concatenate(all_codes),
            np.concatenate(all_sizes or [np.zeros(0, np.int64)]),
            num_nonzero,
        )

    def _encoded_files(self, voxels: npt.NDArray[Any], topleft: Vec3, stats: Stats) -> EncodedBox:
        edges = self.array.grid.chunk
        files: list[tuple[Vec4, bytes | memoryview | None]] = []
        pieces = EncodedPieces()
        for c, x, y, z in self._cells(BoundingBox(topleft, voxels.shape[1:], self.mag)).tolist():
            cell, corner = (
                (c, x, y, z),
                [
                    n * edge - t
                    for n, edge, t in zip((c, x, y, z), edges, (0, *topleft), strict=True)
                ],
            )
            chunk = voxels[
                tuple(slice(low, low + edge) for low, edge in zip(corner, edges, strict=True))
            ]
            path = self.array.store.path_of(self.naming.key(cell))
            files.append(
                (
                    cell,
                    None if is_zero(chunk) else self.array.codec.encode_piece(chunk, pieces, path),
                )
            )
        return EncodedBox(stats, files=files, pieces=pieces)

    def open_part(self, shard: Vec3, part: Vec3 | None) -> Writer:
        """Start a part of a shard, or a whole shard if ``part`` is None."""
        if not self.is_sharded:
            return FilesWriter(self, shard, part)
        return ShardWriter(self, shard) if part is None else PartWriter(self, shard, part)

    def shard_key(self, shard: Vec3) -> str:
        """Return the name of the first file of a shard, or of a group."""
        return self.naming.key((0, *shard) if self.is_sharded else (0, *self._first_chunk(shard)))

    def _first_chunk(self, shard: Vec3) -> Vec3:
        x, y, z = (
            n * edge // chunk
            for n, edge, chunk in zip(shard, self.shard_shape, self.chunk_shape, strict=True)
        )
        return x, y, z

    def shard_path(self, shard: Vec3) -> str:
        return self.array.store.path_of(self.shard_key(shard))

    @staticmethod
    def _parts_of(shard: Vec3) -> str:
        return f"z{shard[2]}y{shard[1]}x{shard[0]}"

    def part_name(self, shard: Vec3, part: Vec3) -> str:
        """Return the name of a part file."""
        return f"{self._parts_of(shard)}/z{part[2]}y{part[1]}x{part[0]}.run"

    def path_of(self, receipt: Receipt) -> str:
        if receipt.part is None or not self.is_sharded:
            return self.shard_path(receipt.shard)
        return self.parts.path_of(self.part_name(receipt.shard, receipt.part))

    def new_shard(self, file: Vec4) -> ShardFile:
        """Start a file of many chunks, given by its index."""
        layout, store = self.shards, self.array.store
        buffer = FileBuffer(
            lambda: store.new_file(self.naming.key(file), self.parts.url), layout.head_nbytes
        )
        first = (file[0] * self._channel_chunks_per_file, *self._first_chunk(file[1:]))
        return layout.new_shard(first, self.array.grid, buffer)

    def write_shard(self, shard: Vec3, runs: Sequence[Run]) -> None:
        """Write the files of a shard from runs; remove those without chunks."""
        num_codes = self.shards.codes_per_file(self.array.grid)
        for n, (file, _) in enumerate(self.naming.keys(self.files_of(shard, self.box))):
            inside = [
                Run(table, run.file)
                for run in runs
                if len((table := run.table.between(n * num_codes, (n + 1) * num_codes)).codes)
            ]
            if not inside:
                self.remove_file(file)
                continue
            output = self.new_shard(file)
            try:
                copy_runs(output, inside, num_codes)
                publish_shard(output, is_in_place=self.is_in_place)
            except BaseException:
                output.buffer.discard()
                raise
            self.remove_file(file, others=True)

    def published_receipt(self, receipt: Receipt) -> Receipt:
        """Complete a receipt with path, size and state of its shard, or of its group of files."""
        if self.array.grid.file is None or self.array.files.has_single_file_shards:
            (state,) = self.array.store.states([self.shard_key(receipt.shard)])
            count, nbytes, stamp = (0, 0, 0) if state is None else (1, *state)
        else:
            count, nbytes, stamp = self.as_volume().files.group_state(receipt.shard)
        return replace(
            receipt,
            path=self.shard_path(receipt.shard) if count else None,
            nbytes=nbytes,
            mtime_ns=stamp,
            files=count or 1,
        )

    def join_shard(self, shard: Vec3, parts: Sequence[Receipt]) -> Receipt:
        """Join part files into a shard without decoding chunks, and publish it; single-chunk files
        are published already."""
        receipt = merge_receipts(shard, parts)
        stored = [part for part in parts if part.path is not None]
        if not self.is_sharded:
            return self.published_receipt(receipt)
        with ExitStack() as opened:
            runs = []
            for part in stored:
                assert part.part is not None
                file = self.parts.open(self.part_name(shard, part.part))
                if file is None:
                    # dask can run a task twice: the first run published the shard and removed its
                    # parts
                    if not self._stored_sizes(receipt):
                        raise IncompleteWriteError(
                            f"{part.path}: a part of {self.shard_path(shard)} is missing, though "
                            "the shard is not joined yet"
                        )
                    return self.published_receipt(receipt)
                runs.append(open_run(opened.enter_context(file)))
            if self.merges:
                runs += self._untouched_runs(shard, [part.box for part in parts], opened)
            self.write_shard(shard, runs)
        return self.published_receipt(receipt) if runs else receipt

    def _untouched_runs(
        self, shard: Vec3, boxes: Sequence[BoundingBox], opened: ExitStack
    ) -> list[Run]:
        """Return the chunks of a stored shard that no box touches."""
        layout, runs = self.shards, []
        places = self._cells(
            cell_box(shard, self.shard_shape, self.box).intersection(self.as_volume().extent)
        )
        # A chunk that any box touches was merged with its stored voxels before it was encoded, see
        # with_borders.
        is_kept = np.ones(len(places), np.bool_)
        for low, high in ((written.topleft, written.bottomright) for written in boxes):
            corner = places[:, 1:] * self.chunk_shape
            is_kept &= ~(
                (corner < high).all(axis=1) & (corner + self.chunk_shape > low).all(axis=1)
            )
        if not is_kept.any():  # files that are covered whole may be damaged
            return []
        places = places[is_kept]
        for key, members in self.naming.locate(places, self.array.grid):
            file = opened.enter_context(layout.opened(self.array.store, key))
            if file is None:
                continue
            if not layout.has_same_encoding(file):
                # another block type: stored bytes cannot be mixed with new ones
                return self._reencoded(shard, places[places[:, 0] == 0, 1:], opened)
            located = layout.without_zeros(file, layout.locate(file, places[members]))
            codes = self._codes(places[members[located[:, 2]]])
            runs.append(Run(RunTable(codes, located[:, 1] - located[:, 0], located[:, 0]), file))
        return runs

    def _reencoded(
        self, shard: Vec3, places: npt.NDArray[np.int64], opened: ExitStack
    ) -> list[Run]:
        """Encode stored chunks (x, y, z) that are encoded differently from new ones, which readers
        allow."""
        writer, volume = PartWriter(self, shard, (-1, -1, -1)), self.as_volume()
        chunk = np.empty((self.num_channels, *self.chunk_shape), self.dtype, order="F")
        try:
            for x, y, z in (places * self.chunk_shape).tolist():
                volume.read_into(chunk, (x, y, z))
                writer.add(self._encoded_chunks(chunk, (x, y, z), Stats(self.mag), is_part=True))
            name = self.part_name(shard, (-1, -1, -1))
            file = None if writer.close().path is None else self.parts.open(name)
        except BaseException:
            writer.discard()
            raise
        return [] if file is None else [open_run(opened.enter_context(file))]

    def remove_parts(self, shard: Vec3) -> None:
        """Remove the part files of a joined shard."""
        if self.is_sharded:
            self.parts.delete_folder(self._parts_of(shard))

    def has_files_of(self, receipt: Receipt) -> bool:
        """Return whether the files of a receipt exist and are complete.

        Compares state and tables of a shard, sizes of single files, and all bytes of a part file.
        """
        is_part_file = receipt.part is not None and self.is_sharded
        if not receipt.nbytes:
            # all voxels are zero: in place, no file of an earlier state may remain
            return not self.is_in_place or is_part_file or not self._stored_sizes(receipt)
        if is_part_file:
            assert receipt.part is not None
            return is_whole_part(
                self.parts,
                self.part_name(receipt.shard, receipt.part),
                receipt.nbytes,
                receipt.checksum,
            )
        if not self.is_sharded and (receipt.part is not None or not self.is_in_place):
            sizes = self._stored_sizes(receipt)
            return (len(sizes), sum(sizes)) == (receipt.files, receipt.nbytes)
        if self.is_in_place:
            current = self.published_receipt(receipt)
            if (current.nbytes, current.mtime_ns) != (receipt.nbytes, receipt.mtime_ns):
                return False  # another program has written it since
        return not self.is_sharded or self._is_whole_shard(receipt)

    def _is_whole_shard(self, receipt: Receipt) -> bool:
        sizes = self._stored_sizes(receipt)
        if (len(sizes), sum(sizes)) != (receipt.files, receipt.nbytes):
            return False
        return all(
            self._is_whole_file(key)
            for _, key in self.naming.keys(self.files_of(receipt.shard, receipt.box))
        )

    def _is_whole_file(self, key: str) -> bool:
        """Return whether a file of many chunks has valid tables; an absent one has no chunks."""
        file = self.array.store.open(key)
        if file is None:
            return True
        with file:
            return self.shards.is_whole(file)

    def _stored_sizes(self, receipt: Receipt) -> list[int]:
        """Return the sizes of the files of a shard, or of a part of a group."""
        keys = (key for _, key in self.naming.keys(self.files_of(receipt.shard, receipt.box)))
        return [state.nbytes for state in self.array.store.states(keys) if state is not None]


@dataclass(slots=True)
class EncodedBox:
    """Encoded chunks of a box that a writer can add."""

    stats: Stats
    codes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    """Codes of the stored chunks in a shard, ascending."""
    sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Encoded size of each [bytes]."""
    num_nonzero: int = 0
    """Number of chunks that are not all zero."""
    output: EncodedBytes | None = None
    """Bytes of these chunks, one after another."""
    files: list[tuple[Vec4, bytes | memoryview | None]] = field(default_factory=list)
    """Chunks that are each a file, None for chunks of zeros."""
    pieces: EncodedPieces | None = None
    """Memory of these chunks."""

    def take(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield all bytes, and release their memory afterwards."""
        if self.output is not None:
            yield self.output.data
            self.output.release()


class Writer(ABC):
    """Base class of writers: takes the voxels of one part box by box, and returns its receipt."""

    def __init__(self, target: TargetArray, shard: Vec3, part: Vec3 | None) -> None:
        self._target = target
        self._shard, self._part = shard, part
        self._stats = Stats(target.box.mag)
        self._buffer: FileBuffer | None = None

    def skip(self, box: BoundingBox) -> None:
        """Count all-zero voxels instead of appending them."""
        target = self._target
        if target.merges:
            self.append(
                np.broadcast_to(np.zeros((), target.dtype), (target.num_channels, *box.size)),
                box.topleft,
            )
        else:
            self._skip(box)

    def _skip(self, box: BoundingBox) -> None:
        self._stats.add_zeros(box)

    @property
    def buffered_nbytes(self) -> int:
        """Number of encoded bytes in memory."""
        return 0 if self._buffer is None else self._buffer.buffered_nbytes

    def flush(self) -> None:
        """Write the encoded bytes in memory."""
        if self._buffer is not None:
            self._buffer.flush()

    def append(self, array: npt.NDArray[Any], topleft: Vec3) -> None:
        """Encode and store an array (c, x, y, z) of whole chunks, which may extend beyond the
        box."""
        self.add(self._target.encode_box(array, topleft, is_part=self._part is not None))

    def add(self, encoded: EncodedBox) -> None:
        """Store a box of chunks encoded by ``encode_box``."""
        self._stats.merge(encoded.stats)
        self._store(encoded)

    @abstractmethod
    def _store(self, encoded: EncodedBox) -> None: ...

    @abstractmethod
    def close(self) -> Receipt:
        """Publish the part and return its receipt."""

    def discard(self) -> None:
        """Discard everything that was appended."""
        if self._buffer is not None:
            self._buffer.discard()


class PartWriter(Writer):
    """Writes the chunks of a part of a shard to a part file."""

    def __init__(self, target: TargetArray, shard: Vec3, part: Vec3) -> None:
        super().__init__(target, shard, part)
        self._name = target.part_name(shard, part)
        self._codes: list[npt.NDArray[np.uint64]] = []
        self._sizes: list[npt.NDArray[np.int64]] = []
        self._output = self._buffer = FileBuffer(
            lambda: target.parts.new_file(self._name, flush=False), has_checksum=True
        )

    def _store(self, encoded: EncodedBox) -> None:
        self._codes.append(encoded.codes)
        self._sizes.append(encoded.sizes)
        for data in encoded.take():
            self._output.append(data)

    def close(self) -> Receipt:
        """Publish the part file; without nonzero voxels there is none."""
        receipt = self._stats.receipt(self._shard, self._part)
        if not any(map(len, self._codes)):
            self.discard()
            self._target.parts.delete(self._name)
            return receipt
        nbytes, checksum = close_part(
            self._output, RunTable(np.concatenate(self._codes), np.concatenate(self._sizes))
        )
        return replace(
            receipt, path=self._target.parts.path_of(self._name), nbytes=nbytes, checksum=checksum
        )


class ShardWriter(Writer):
    """Writes the chunks of a whole shard.

    Chunks that arrive in another order than that of their codes are copied once more, and those of
    shards with several files too.
    """

    def __init__(self, target: TargetArray, shard: Vec3) -> None:
        super().__init__(target, shard, None)
        self._shard_file = target.new_shard((0, *shard))
        self._buffer = self._shard_file.buffer
        self._codes: list[npt.NDArray[np.uint64]] = []
        self._sizes: list[npt.NDArray[np.int64]] = []
        self._starts: list[npt.NDArray[np.int64]] = []
        self._last = -1
        self._nonzero = 0
        self._is_in_order = target.array.grid.file_counts[0] == 1

    def _store(self, encoded: EncodedBox) -> None:
        codes, sizes, buffer = encoded.codes, encoded.sizes, self._shard_file.buffer
        if not len(codes):
            return
        if int(codes[0]) <= self._last:
            if self._target.shards.is_ordered:
                raise ValueError(
                    f"blocks of a whole file must be in Morton order, got block {codes[0]} after "
                    f"block {self._last}"
                )
            self._is_in_order = False
        self._last = int(codes[-1])
        self._nonzero += encoded.num_nonzero
        for data in encoded.take():
            done = 0
            while len(codes):
                count = self._shard_file.start_stretch(codes) if self._is_in_order else len(codes)
                stretch, sizes_in = codes[:count], sizes[:count]
                nbytes = int(sizes_in.sum())
                self._codes.append(stretch)
                self._sizes.append(sizes_in)
                self._starts.append(buffer.end + np.cumsum(sizes_in) - sizes_in)
                buffer.append(data[done : done + nbytes])
                if self._is_in_order:
                    self._shard_file.record(stretch, sizes_in)
                codes, sizes, done = codes[count:], sizes[count:], done + nbytes

    def close(self) -> Receipt:
        """Publish the shard; without nonzero voxels there is none."""
        receipt = self._stats.receipt(self._shard, None)
        target = self._target
        if not self._nonzero:
            self.discard()
            target.write_shard(self._shard, [])
            return receipt
        if self._is_in_order:
            publish_shard(self._shard_file, is_in_place=target.is_in_place)
            target.remove_file((0, *self._shard), others=True)
        else:
            self._sort_chunks()
        return target.published_receipt(receipt)

    def _sort_chunks(self) -> None:
        table = RunTable(
            np.concatenate(self._codes), np.concatenate(self._sizes), np.concatenate(self._starts)
        )
        # The unsorted file serves as a run, from which the files are joined; it is never published.
        file = self._shard_file.buffer.close()
        try:
            with file.open_written() as written:
                self._target.write_shard(self._shard, [Run(table, written)])
        finally:
            file.discard()


class FilesWriter(Writer):
    """Writes each chunk of a group, or of a part of a group, to a file; all files are flushed
    together."""

    def __init__(self, target: TargetArray, shard: Vec3, part: Vec3 | None) -> None:
        super().__init__(target, shard, part)
        self._files = target.array.store.new_files(target.parts.url)
        self._written: list[Vec4] = []

    def _store(self, encoded: EncodedBox) -> None:
        target = self._target
        for cell, data in encoded.files:
            key = target.naming.key(cell)
            if data is None:
                target.remove_file(cell)
                continue
            if not (target.is_in_place and self._is_stored(key, data)):
                # equal files keep their time, so that nothing above is rebuilt
                self._files.write(key, data)
            self._written.append(cell)
        if encoded.pieces is not None:
            encoded.pieces.release()

    def _is_stored(self, key: str, data: bytes | memoryview) -> bool:
        """Return whether a file has this content already; then it is not written, and keeps its
        time."""
        store = self._target.array.store
        (state,) = store.states([key])
        return (
            state is not None
            and state.nbytes == len(data)
            and store.read_whole([key], len(data))[0] == data
        )

    def _skip(self, box: BoundingBox) -> None:
        """Count all-zero voxels, and remove their files."""
        super()._skip(box)
        target = self._target
        for file, _ in target.naming.keys(target.files_of(self._shard, box)):
            target.remove_file(file)

    def close(self) -> Receipt:
        receipt = self._stats.receipt(self._shard, self._part)
        self._files.publish()
        for cell in self._written:
            # only now: a file of another name holds the voxels until the new one is published
            self._target.remove_file(cell, others=True)
        if self._part is None:
            return self._target.published_receipt(receipt)
        if not self._files.count:
            return receipt
        return replace(
            receipt,
            path=self._target.shard_path(self._shard),
            nbytes=self._files.nbytes,
            files=self._files.count,
        )

    def discard(self) -> None:
        """Remove unpublished files; no receipt lists the published ones."""
        self._files.discard()


def in_place_target(array: StoredArray, write: InPlaceWrite) -> TargetArray:
    """Return an existing array as the target of an in-place write."""
    name, layout, grid = array.name, array.layout, array.grid
    if (
        not array.store.can.writes
        or array.naming is None
        or array.codec.is_opaque
        or grid.file is None
    ):
        raise UnsupportedError(
            f"{name}: only local arrays whose files contain boxes of chunks can be written in place"
        )
    if array.fill:
        raise UnsupportedError(
            f"{name}: missing chunks read as {array.fill}; only arrays with fill value 0 can be "
            "written in place"
        )
    if array.channels is not None:
        raise UnsupportedError(
            f"{name}: the layer shows {array.num_channels} of the array's {grid.size[0]} channels; "
            "such layers are read-only"
        )
    if not array.extent.contains(write.box):
        raise BoundsError(f"{name}: box {write.box} reaches outside {array.extent}")
    unit = grid.file[1:] if layout.is_sharded else grid.unit
    target = replace(
        array.at(array.store.at(write.folder)), grid=replace(grid, unit=unit), crop=write.box
    )
    return TargetArray(target, target.store.at(write.parts), merges=write.merges, is_in_place=True)


def _batches(count: int, nbytes: int) -> Iterator[slice]:
    """Split chunks into batches that are encoded at once."""
    step = max(1, _BATCH_NBYTES // nbytes)
    return (slice(first, first + step) for first in range(0, count, step))
