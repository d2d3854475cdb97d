"""Shards and files made from the stored chunks of another array without decoding voxels.

The bytes of a chunk are copied, or get or lose a header
(:meth:`wkwdask.model.codec.ChunkCodec.reframe`). If a shard has chunks of a few shards of the
source, compiled loops convert about a megabyte in one call::

    source shards  | head | chunk 0 | chunk 1 | ...    | head | chunk 0 | ...           one read for each stretch
                              |         zeros                     |
    target shard   | frame, chunk 0 | ...              | frame, chunk 0 | ... | index |   one write

A chunk is decoded only if it has voxels outside of the box, if it has no equivalent in the new
encoding, if its file is encoded in another way than its array, or if its bytes do not add up to its
size: then the decoder raises the error.
"""  # noqa: E501

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wkwdask.errors import CorruptError, MissingError
from wkwdask.geometry import compressed_morton
from wkwdask.geometry.bounding_box import part_of_array
from wkwdask.geometry.grid import cell_box
from wkwdask.geometry.vectors import is_multiple
from wkwdask.kernels.arrays import is_zero
from wkwdask.kernels.codecs.blosc_layout import FRAME_NBYTES
from wkwdask.model.layout import Shards
from wkwdask.model.stored_array import BoxLayout, StoredArray
from wkwdask.model.writing.file_buffer import Arena

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray, BoolArray, ByteArray, IntArray, UintArray
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.layout import ShardFile
    from wkwdask.model.store import StoredFile
    from wkwdask.model.volume import Volume

# of copied chunks that are sorted by code in memory, counted by their decoded size
SORT_BUFFER_NBYTES = 32 << 20
# target shards from one stored file: each of them searches the whole file
_MAX_SHARDS_PER_FILE = 1 << 12
# of stored chunks that are converted in one call, while they are in the CPU cache, and written
# without a copy in the buffer
_BATCH_NBYTES = 3 << 19
_BATCHES_AHEAD = 4  # of remote files
# chunks of a file that are checked for voxels outside of the box, where these are kept
_CHECKED = 64


def has_stored_chunks(volume: Volume) -> bool:
    """Return whether the stored chunks of a volume can be read one by one, and missing ones are
    zero."""
    if not isinstance(volume, StoredArray) or volume.fill or volume.channels is not None:
        return False
    return volume.codec.shared_encoding is not None


class Splice:
    """Copy of stored chunks between two arrays with the same coordinates and boxes."""

    def __init__(
        self, source: StoredArray, target: StoredArray, *, keeps_outside: bool = False
    ) -> None:
        """Prepare the copy; the first voxel of ``target``, the array that is being written, has the
        coordinates 0."""
        self.source, self.target = source, target
        self._reframe, self._conversion = (
            target.codec.reframe(source.codec),
            target.codec.frame_conversion(source.codec),
        )
        ends = zip(
            source.box.bottomright, source.extent.bottomright, target.chunk_shape, strict=True
        )
        self.ends_alike = target.box == target.extent and all(
            end in (last, end // n * n) for end, last, n in ends
        )
        """Whether the box cuts no chunk that both arrays do not cut."""
        self._keeps_outside = keeps_outside and self._conversion is not None and self.reads_files
        """Whether chunks keep their voxels outside of the box; some of those that it cuts are
        checked for such voxels."""
        self.num_outside = 0
        """Number of chunks found with nonzero voxels outside of the box."""

    @property
    def checks_chunks(self) -> bool:
        """Whether copied chunks are read one by one to find those that do not decode: LZ4 blocks
        and uncompressed values show it without decoding."""
        return self._conversion is not None

    def obstacle(self) -> str:
        """Return why chunks must be decoded, an empty text if they can be copied."""
        source, target = self.source, self.target
        if (
            source.dtype != target.dtype
            or source.grid.size[0] != target.grid.size[0]
            or source.channels is not None
        ):
            return "another data type or other channels"
        if source.codec.is_opaque:
            return "its chunks are not decoded one by one"
        if source.grid.chunk[0] != target.grid.chunk[0]:
            return (
                f"chunks of {source.grid.chunk[0]} of {source.grid.size[0]} channels become chunks "
                f"of {target.grid.chunk[0]}"
            )
        if source.grid.chunk != target.grid.chunk:
            return (
                f"chunks of {_text(source.chunk_shape)} voxels become chunks of "
                f"{_text(target.chunk_shape)}"
            )
        if self._reframe is None:
            return "another compression, byte order or order of axes"
        if (
            source.fill
            or source.box != target.box
            or (
                isinstance(source.layout, BoxLayout)
                and not (has_stored_chunks(source) and self.reads_files)
            )
        ):
            return "its chunks are not read one by one"
        if not is_multiple(source.origin, target.chunk_shape):
            return "its chunks begin at other voxels"
        if not self.ends_alike and (source.grid.truncates or target.grid.truncates):
            return "the box cuts chunks"
        if math.prod(source.shard_shape) > _MAX_SHARDS_PER_FILE * math.prod(target.shard_shape):
            return "its shards are much larger"
        return ""

    @property
    def has_same_cells(self) -> bool:
        """Whether both arrays have the same grid of chunks."""
        return (self.source.grid.origin, self.source.grid.chunk) == (
            self.target.grid.origin,
            self.target.grid.chunk,
        )

    @property
    def reads_files(self) -> bool:
        """Whether each shard of the target has chunks of a few shards of the source: of at most two
        along each axis."""
        source, target = self.source, self.target
        if (
            not (isinstance(source.layout, Shards) and isinstance(target.layout, Shards))
            or source.grid.file is None
            or target.grid.file is None
        ):
            return False
        return all(n >= m for n, m in zip(source.grid.file, target.grid.file, strict=True))

    # --------------------------------------------------------------------------------------------
    # cells

    def _places(self, cells: IntArray) -> IntArray:
        """Return the cells of the source at some cells of the target."""
        shift = [
            0,
            *(-o // n for o, n in zip(self.source.origin, self.target.chunk_shape, strict=True)),
        ]
        return cells + np.array(shift, np.int64)

    def _is_cut(self, cells: IntArray) -> BoolArray:
        """Return which chunks must have no voxels outside of the box, but may have some."""
        if self.ends_alike:
            return np.zeros(len(cells), np.bool_)
        return np.asarray(
            (self._boxes_in(cells) != (0, 0, 0, *self.target.chunk_shape)).any(axis=1)
        )

    def _boxes_in(self, cells: IntArray) -> IntArray:
        """Return the part of each chunk that is inside of the box, shape (n, 6): lowest voxel and
        end along x, y, z, counted from the chunk."""
        low, shape, box = (
            cells[:, 1:] * self.target.chunk_shape,
            self.target.chunk_shape,
            self.target.box,
        )
        return np.concatenate(
            [np.clip(end - low, 0, shape) for end in (box.topleft, box.bottomright)], axis=1
        )

    def _codes(self, cells: IntArray) -> UintArray:
        layout = self.target.layout
        return (
            layout.codes(cells)
            if layout.is_sharded
            else compressed_morton.encode(cells[:, 1:], self.target.grid.counts[1:])
        )

    # --------------------------------------------------------------------------------------------
    # chunk by chunk

    def chunks(self, cells: IntArray) -> Iterator[tuple[int, Vec4, bytes]]:
        """Yield code, cell and converted bytes of the stored chunks of a shard in ascending order
        of codes."""
        source, num_found, codes = self.source, 0, self._codes(cells)
        order = np.argsort(codes, kind="stable")
        # The source yields chunks in its own order. Read them batch by batch of consecutive codes,
        # and sort each batch.
        per_batch = 1 << max(
            0, (SORT_BUFFER_NBYTES // _decoded_nbytes(self.target)).bit_length() - 1
        )
        batches = codes[order] // np.uint64(per_batch)
        for members in np.split(order, np.flatnonzero(np.diff(batches)) + 1):
            # 2**k consecutive Morton codes, aligned: these chunks form a box
            places, is_cut = self._places(cells[members]), self._is_cut(cells[members])
            rows = zip(
                codes[members].tolist(),
                map(tuple, cells[members].tolist()),
                is_cut.tolist(),
                strict=True,
            )
            wanted = dict(zip(map(tuple, places.tolist()), rows, strict=True))
            c, x, y, z = (range(int(axis.min()), int(axis.max()) + 1) for axis in places.T)
            chunks = []
            for chunk in source.layout.chunks(source, (c, x, y, z)):
                if chunk.cell not in wanted:
                    continue
                num_found += 1
                code, cell, needs_cut = wanted[chunk.cell]
                data = self._converted(
                    chunk.data,
                    chunk.cell,
                    cell,
                    f"{chunk.path}: chunk {chunk.cell[1:]}",
                    chunk.offset,
                    is_cut=needs_cut,
                )
                if data is not None:
                    chunks.append((code, cell, data))
            yield from sorted(chunks)
        source.identity.check(has_absent=num_found < len(cells))

    def _converted(
        self, data: bytes, place: Vec4, cell: Vec4, name: str, offset: int, *, is_cut: bool
    ) -> bytes | None:
        """Return the bytes of a chunk for the target, None if all voxels are zero; ``place`` is its
        cell in the source."""
        source, target = self.source, self.target
        if not data:
            raise CorruptError(f"{name}: byte {offset}: expected an encoded chunk, found 0 bytes")
        shape = (
            source.grid.clipped_shape_at(place)
            if source.grid.truncates or target.grid.truncates
            else source.grid.chunk
        )
        if is_cut:
            voxels = source.codec.decode(data, shape, name, offset)
            clipped = self._clipped(voxels, cell)
            if clipped is not voxels:
                return None if is_zero(clipped) else target.codec.encode(clipped, name)
        assert self._reframe is not None
        return self._reframe(data, shape, name, offset)

    def _clipped(self, voxels: AnyArray, cell: Vec4) -> AnyArray:
        """Return a chunk with zeros outside of the box: a copy, if it has other voxels there."""
        corner = (cell[1], cell[2], cell[3])
        box = cell_box(corner, self.target.chunk_shape, self.target.box)
        clipped, inside = np.zeros_like(voxels), box.intersection(self.target.box)
        part_of_array(clipped, inside, box.topleft)[...] = part_of_array(
            voxels, inside, box.topleft
        )
        bits = f"u{voxels.itemsize}"  # of NaN and -0.0 too
        if np.array_equal(voxels.view(bits), clipped.view(bits)):
            return voxels
        self.num_outside += 1
        return clipped

    # --------------------------------------------------------------------------------------------
    # shard by shard

    def write(self, output: ShardFile, cells: IntArray) -> int:
        """Append the chunks of a shard, and return how many there are."""
        if not self.reads_files:
            stored = 0
            for code, _, data in self.chunks(cells):
                stored += _append_one(output, code, data)
            return stored
        source, layout, places = self.source, self.source.layout, self._places(cells)
        assert isinstance(layout, Shards)
        assert source.naming is not None
        with ExitStack() as opened:
            files: list[StoredFile] = []
            located = [np.zeros((0, 4), np.int64)]
            for key, members in source.naming.locate(places, source.grid):
                file = opened.enter_context(layout.opened(source.store, key))
                if file is not None:
                    located.append(self._locate(file, len(files), places, members))
                    files.append(file)
            found = np.concatenate(located)
            source.identity.check(has_absent=len(found) < len(cells))
            return self._write_files(output, files, found, cells, places) if files else 0

    def _locate(
        self, file: StoredFile, number: int, places: IntArray, members: npt.NDArray[np.intp]
    ) -> IntArray:
        """Return first byte, end, row in ``places`` and number of the file of each of its chunks;
        no bytes if the file is encoded in another way."""
        layout = self.source.layout
        assert isinstance(layout, Shards)
        if not layout.has_same_encoding(file):
            nothing = np.zeros_like(members)
            return np.stack([nothing, nothing, members, np.full_like(members, number)], axis=1)
        located = layout.locate(file, places[members])
        rows = members[located[:, 2]]
        self._check_sizes(file, located[:, :2], places[rows])
        return np.stack([located[:, 0], located[:, 1], rows, np.full_like(rows, number)], axis=1)

    def _write_files(
        self,
        output: ShardFile,
        files: Sequence[StoredFile],
        located: IntArray,
        cells: IntArray,
        places: IntArray,
    ) -> int:
        """Append the chunks of some files of the source, and return how many are not zero."""
        target_layout = self.target.layout
        assert isinstance(target_layout, Shards)
        codes = self._codes(cells[located[:, 2]])
        order = (
            np.argsort(codes, kind="stable")
            if target_layout.is_ordered
            else np.lexsort((located[:, 0], located[:, 3]))
        )
        located, codes = located[order], codes[order]
        cells, places = cells[located[:, 2]], places[located[:, 2]]
        is_cut, ends = self._is_cut(cells), np.cumsum(located[:, 1] - located[:, 0])
        if self._keeps_outside:
            cut = np.flatnonzero(is_cut)
            is_cut[np.delete(cut, np.s_[:: -(-len(cut) // _CHECKED) or 1])] = False
        store, first, batches = self.source.store, 0, []
        nbytes = store.batch_nbytes if store.is_remote else _BATCH_NBYTES
        while first < len(codes):
            last = max(
                first + 1,
                int(np.searchsorted(ends, (ends[first - 1] if first else 0) + nbytes, "right")),
            )
            batches.append(slice(first, last))
            first = last

        def read_batch(batch: slice) -> _Batch:
            arena = Arena()
            read = _read(files, located[batch], arena, store.gap_nbytes)
            return _Batch(
                codes[batch],
                cells[batch],
                places[batch],
                is_cut[batch],
                located[batch],
                arena,
                *read,
            )

        names = [file.name for file in files]
        return sum(
            self._write_batch(output, names, batch)
            for batch in store.map(read_batch, batches, _BATCHES_AHEAD)
        )

    def _check_sizes(self, file: StoredFile, stretches: IntArray, places: IntArray) -> None:
        """Raise CorruptError for sizes that no chunk has, before memory is allocated for them."""
        sizes, largest = (
            stretches[:, 1] - stretches[:, 0],
            self.source.codec.largest_nbytes(self.source.grid.chunk),
        )
        for row in np.flatnonzero((sizes <= 0) | (sizes > largest))[:1].tolist():
            where = (
                f"{file.name}: chunk {tuple(places[row, 1:].tolist())}: byte {stretches[row, 0]}"
            )
            raise CorruptError(
                f"{where}: expected an encoded chunk of at most {largest} bytes, found "
                f"{sizes[row]} bytes"
            )

    def _encoded(self, cell: Vec4, name: str) -> bytes | None:
        """Return a chunk of a file that is encoded in another way than its array; None if all
        voxels are zero."""
        voxels = np.empty(self.target.grid.chunk, self.target.dtype, order="F")
        self.source.read_into(
            voxels,
            cell_box((cell[1], cell[2], cell[3]), self.target.chunk_shape, self.target.box).topleft,
        )
        clipped = self._clipped(voxels, cell)
        return None if is_zero(clipped) else self.target.codec.encode(clipped, name)

    def _write_batch(self, output: ShardFile, names: Sequence[str], batch: _Batch) -> int:
        """Append some chunks of files with some names, and return how many are not zero; compiled
        loops convert all that need no decoding."""
        conversion, done, stored = self._conversion, 0, 0
        memory, in_memory, codes, cells = batch.memory, batch.in_memory, batch.codes, batch.cells
        out = batch.arena.reserve(int(in_memory[:, 1].sum()) + FRAME_NBYTES * len(codes))
        has_bytes = in_memory[:, 1] > 0
        must_decode, cut = (
            ~has_bytes | (conversion is None),
            np.flatnonzero(batch.is_cut & has_bytes),
        )
        if conversion is not None and len(cut):
            # In most datasets, the voxels around the box are zero: then the chunks that it cuts are
            # copied like the others.
            has_outside = ~conversion.are_zero_outside(
                memory, in_memory[cut], self._boxes_in(cells[cut])
            )
            if self._keeps_outside:
                self.num_outside += int(has_outside.sum())
            else:
                must_decode[cut] = has_outside
        stops = np.append(np.flatnonzero(must_decode), len(codes))
        while done < len(codes):
            stop = int(stops[np.searchsorted(stops, done)])
            if conversion is not None and done < stop:
                sizes = conversion.convert(memory, in_memory[done:stop], out)
                stored += _append(output, codes[done : done + len(sizes)], sizes, out)
                done += len(sizes)
            if done < len(codes) and (done < stop or must_decode[done]):
                (start, nbytes), place, cell = (
                    in_memory[done].tolist(),
                    tuple(batch.places[done].tolist()),
                    tuple(cells[done].tolist()),
                )
                offset, _, _, number = batch.located[done].tolist()
                is_cut = bool(batch.is_cut[done]) and not self._keeps_outside
                if nbytes:
                    data, chunk = (
                        memory[start : start + nbytes].tobytes(),
                        f"{names[number]}: chunk {place[1:]}",
                    )
                    one = self._converted(data, place, cell, chunk, offset, is_cut=is_cut)
                else:
                    one = self._encoded(cell, names[number])
                stored += 0 if one is None else _append_one(output, int(codes[done]), one)
                done += 1
        batch.arena.release()
        return stored


class _Batch(NamedTuple):
    """Chunks that are read together."""

    codes: UintArray
    cells: IntArray
    """Cells in the target, shape (n, 4)."""
    places: IntArray
    """Cells in the source, shape (n, 4)."""
    is_cut: BoolArray
    """Chunks to check for voxels outside of the box."""
    located: IntArray
    """First byte of each chunk in its file, end, row, and number of the file, shape (n, 4)."""
    arena: Arena
    """Owner of the memory."""
    memory: ByteArray
    in_memory: IntArray
    """First byte in the memory, and size, shape (n, 2)."""


def _append(output: ShardFile, codes: UintArray, sizes: IntArray, data: ByteArray) -> int:
    """Append chunks that lie one after another, except those of size 0; return their number."""
    codes, sizes = codes[sizes > 0], sizes[sizes > 0]
    stored = len(codes)
    while len(codes):
        count = output.start_stretch(codes)
        nbytes = int(sizes[:count].sum())
        output.buffer.append(data[:nbytes])
        output.record(codes[:count], sizes[:count])
        codes, sizes, data = codes[count:], sizes[count:], data[nbytes:]
    return stored


def _append_one(output: ShardFile, code: int, data: bytes) -> int:
    return _append(
        output,
        np.array([code], np.uint64),
        np.array([len(data)], np.int64),
        np.frombuffer(data, np.uint8),
    )


def _read(
    files: Sequence[StoredFile], located: IntArray, arena: Arena, gap_nbytes: int
) -> tuple[ByteArray, IntArray]:
    """Read chunks, shape (n, 4) with first byte, end, row and number of the file; return the
    memory, and first byte and size of each chunk in it."""
    in_memory = np.stack([np.zeros(len(located), np.int64), located[:, 1] - located[:, 0]], axis=1)
    ranges, used = [], 0  # of files: first byte, end, and first byte in memory
    for number in np.unique(located[:, 3]).tolist():
        rows = np.flatnonzero((located[:, 3] == number) & (in_memory[:, 1] > 0))
        if not len(rows):
            continue
        rows = rows[np.argsort(located[rows, 0], kind="stable")]
        starts, ends = located[rows, 0], np.maximum.accumulate(located[rows, 1])
        cuts = np.flatnonzero(starts[1:] > ends[:-1] + gap_nbytes) + 1
        firsts, lasts = starts[np.append(0, cuts)], ends[np.append(cuts, len(ends)) - 1]
        at = used + np.cumsum(lasts - firsts) - (lasts - firsts)
        ranges += [
            (files[number], *numbers)
            for numbers in zip(firsts.tolist(), lasts.tolist(), at.tolist(), strict=True)
        ]
        group = np.searchsorted(firsts, starts, "right") - 1
        in_memory[rows, 0] = starts - firsts[group] + at[group]
        used += int((lasts - firsts).sum())
    memory = arena.reserve(used)
    for file, first, last, to in ranges:
        if not file.read_into(memory[to : to + last - first], first):
            raise MissingError(f"{file.name}: not found, though it existed a moment ago")
    return memory, in_memory


def _decoded_nbytes(array: StoredArray) -> int:
    return math.prod(array.grid.chunk) * array.dtype.itemsize


def _text(shape: tuple[int, int, int]) -> str:
    return " x ".join(map(str, shape))
