"""Check of the files of a stored array: tables of shards, and every chunk. Never writes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.model.codec import max_file_nbytes
from wkwdask.model.faults import Fault, FaultList, Findings
from wkwdask.model.layout import Shards, SingleFiles, box_cells, read_located

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from wkwdask.array_types import AnyArray, IntArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.chunk_grid import Vec4
    from wkwdask.model.layout import InspectedShard, ShardLayout
    from wkwdask.model.store import StoredFile
    from wkwdask.model.stored_array import StoredArray


class CheckedChunk(NamedTuple):
    """Chunk that a file stores."""

    cell: Vec4
    voxels: AnyArray | None
    """Decoded voxels, None if it cannot be decoded."""
    offset: int
    """First byte in the file."""
    nbytes: int
    """Stored size [bytes]."""


class IntactChunks(NamedTuple):
    """The chunks of a broken file that are certainly the stored ones."""

    cells: IntArray
    """Cell of each intact chunk, shape (n, 4)."""
    places: IntArray
    """First byte and end of each, shape (n, 2)."""
    lost: IntArray
    """Cells of the other chunks that the file should contain, shape (m, 4)."""
    layout: ShardLayout
    """Layout in which the file is written again."""


class BrokenShard(Protocol):
    """Shard with broken chunks."""

    def intact_parts(self, block: Vec3) -> Iterable[tuple[int, AnyArray]]:
        """Read the intact chunks at an index along x, y, z in the level: the first channel of each,
        and its voxels (c, x, y, z)."""


@dataclass(frozen=True)
class ArrayCheck:
    """Check of the files of a stored array; small to pickle."""

    array: StoredArray
    """Array in absolute voxels."""
    decode: bool
    """Whether chunks are decoded."""
    find_largest: bool = False
    """Whether the largest value is determined."""
    lost: frozenset[Vec3] = frozenset()
    """Shards with lost files, counted from the array's first voxel."""

    @property
    def folder(self) -> str:
        return self.array.folder

    def name_of(self, file: Vec4, variant: int) -> str:
        assert self.array.naming is not None
        return self.array.naming.names(file)[variant]

    def opened(self, name: str) -> AbstractContextManager[StoredFile | None]:
        """Open a file of the array, None if it does not exist."""
        (file,) = self.array.store.open_heads([name], self.array.store.gap_nbytes)
        return file or nullcontext()

    def check_files(self, files: Sequence[tuple[Vec4, int]]) -> Findings:
        """Check several files, given as :meth:`LevelScope.files` lists them."""
        return sum((self.check_file(*file) for file in files), Findings())

    def check_file(self, file: Vec4, variant: int) -> Findings:
        """Check the file at an index in the grid of files, under one of the names that it may have.
        A missing file is no fault, because another job may be writing the level."""
        name = self.name_of(file, variant)
        try:
            with self.opened(name) as opened:
                return Findings() if opened is None else self.check_opened(file, opened)
        except (FormatError, OSError) as error:
            return Findings((self.unopened(self.array.store.path_of(name), error),), 1)

    def unopened(self, path: str, error: FormatError | OSError) -> Fault:
        """Return the fault of a file that cannot be opened."""
        if isinstance(error, MissingError):
            return Fault("file.dangling", path, str(error).removeprefix(f"{path}: "))
        if isinstance(error, FormatError):
            return Fault("file.no_file", path, str(error).removeprefix(f"{path}: "), "a file")
        return Fault("file.unreadable", path, error.strerror or str(error))

    def check_opened(self, file: Vec4, opened: StoredFile) -> Findings:
        """Check an open file."""
        faults, blocks, largest = FaultList(), 0, None
        path = opened.name
        try:
            for chunk in self.chunks(file, opened, faults):
                if chunk.voxels is not None:
                    blocks += 1
                    chunk_largest = (
                        self._largest_in(chunk.cell, chunk.voxels) if self.find_largest else 0
                    )
                    largest = chunk_largest if largest is None else max(largest, chunk_largest)
        except (FormatError, OSError) as error:  # the file shrinks meanwhile, or its disk fails
            faults.add(Fault("file.unreadable", path, str(error).removeprefix(f"{path}: ")))
        return Findings(
            faults.to_tuple(), 1, opened.nbytes or 0, blocks, largest if self.find_largest else None
        )

    def _largest_in(self, cell: Vec4, voxels: AnyArray) -> int:
        """Return the largest value of a chunk inside the bounding box."""
        low, box = self._voxel(cell), self.array.box
        inside = voxels[
            (
                slice(None),
                *(
                    slice(max(0, a - n), max(0, b - n))
                    for n, a, b in zip(low, box.topleft, box.bottomright, strict=True)
                ),
            )
        ]
        return int(inside.max()) if inside.size else 0

    def chunks(
        self,
        file: Vec4,
        opened: StoredFile,
        faults: FaultList,
        cells: IntArray | None = None,
    ) -> Iterator[CheckedChunk]:
        """Decode the stored chunks of a file, by default all, and list all faults; without
        ``decode``, read nothing but its tables."""
        array, grid = self.array, self.array.grid
        nbytes, where = opened.nbytes or 0, (file, opened.name, 0)
        if not nbytes and not array.layout.is_sharded:
            faults.add(self.chunk_fault("chunk.empty", *where, "0 bytes", "an encoded chunk"))
        elif array.codec.is_opaque:
            for c, x, y, z in self.cells_of(file).tolist() if self.decode else ():
                yield CheckedChunk(
                    (c, x, y, z), self._read_box((c, x, y, z), opened.name, faults), 0, 0
                )
        elif isinstance(array.layout, Shards):
            cells = self.cells_of(file) if cells is None else cells
            shard = self.inspect_shard(opened, cells)
            faults.add(
                *(
                    replace(fault, voxel=self._voxel(cells[row].tolist())) if row >= 0 else fault
                    for fault, row in shard.faults
                )
            )
            yield from self.decoded(cells, shard.places, opened, faults)
        elif not isinstance(array.layout, SingleFiles):
            try:
                for cell, data, path, offset in (
                    array.layout.chunks_at(array, self.cells_of(file) if cells is None else cells)
                    if self.decode
                    else ()
                ):
                    yield CheckedChunk(
                        cell, self._decode(cell, data, path, offset, faults), offset, len(data)
                    )
            except FormatError as error:
                faults.add(
                    Fault("shard.index", opened.name, str(error).removeprefix(f"{opened.name}: "))
                )
        elif self.decode:
            max_nbytes = max_file_nbytes(array.codec, grid.chunk)
            if nbytes > max_nbytes:
                size = f"{nbytes} bytes", f"at most {max_nbytes}"
                faults.add(self.chunk_fault("chunk.undecodable", *where, *size))
                return
            (data,) = opened.read([(0, nbytes)]) or [b""]
            yield CheckedChunk(file, self._decode(file, data, opened.name, 0, faults), 0, nbytes)
        elif (expected := array.layout.exact_nbytes(array, file, opened.name)) not in (
            None,
            opened.nbytes,
        ):
            size = f"{opened.nbytes} bytes", str(expected)
            faults.add(self.chunk_fault("chunk.undecodable", *where, *size))

    def chunk_fault(
        self,
        kind: str,
        cell: Vec4,
        path: str,
        offset: int | None,
        found: str,
        expected: str = "",
    ) -> Fault:
        """Return a fault of one chunk."""
        return Fault(kind, path, found, expected, voxel=self._voxel(cell), offset=offset)

    def decoded(
        self,
        cells: IntArray,
        places: IntArray,
        opened: StoredFile,
        faults: FaultList,
    ) -> Iterator[CheckedChunk]:
        """Decode the chunks of a shard at some places: start, end and row in ``cells``, shape
        (n, 3)."""
        for row, data, offset in (
            read_located(opened, places, self.array.store) if self.decode else ()
        ):
            c, x, y, z = cells[row].tolist()
            voxels = self._decode((c, x, y, z), data, opened.name, offset, faults)
            yield CheckedChunk((c, x, y, z), voxels, offset, len(data))

    def cells_of(self, file: Vec4) -> IntArray:
        """List the chunks of the array that belong to a shard, shape (n, 4)."""
        grid = self.array.grid
        assert grid.file is not None
        low = [
            n * edge // chunk for n, edge, chunk in zip(file, grid.file, grid.chunk, strict=True)
        ]
        counts = [edge // chunk for edge, chunk in zip(grid.file, grid.chunk, strict=True)]
        return box_cells(
            [range(a, min(a + n, end)) for a, n, end in zip(low, counts, grid.counts, strict=True)]
        )

    def inspect_shard(self, opened: StoredFile, cells: IntArray) -> InspectedShard:
        assert isinstance(self.array.layout, Shards)
        return self.array.layout.inspect(opened, cells)

    def intact_chunks(
        self, file: Vec4, opened: StoredFile, cells: IntArray | None = None
    ) -> Iterator[CheckedChunk]:
        """Yield the chunks of a file, by default all, that are certainly the stored ones."""
        # bytes of another place decode too
        may_mix_up = isinstance(self.array.layout, Shards) and not self.array.codec.is_delimited
        if may_mix_up and not self.inspect_shard(opened, self.cells_of(file)).is_intact:
            return
        yield from (
            chunk
            for chunk in self.chunks(file, opened, FaultList(), cells)
            if chunk.voxels is not None
        )

    def intact(self, file: Vec4, opened: StoredFile, head: Any = None) -> IntactChunks:
        """Find the intact chunks of a file, by its own header or by a given one."""
        del head
        found = [
            (chunk.cell, chunk.offset, chunk.offset + chunk.nbytes)
            for chunk in self.intact_chunks(file, opened)
        ]
        lost = self.stored_cells(file, opened) - {cell for cell, *_ in found}
        return IntactChunks(
            np.array([cell for cell, *_ in found], np.int64).reshape(-1, 4),
            np.array([place for _, *place in found], np.int64).reshape(-1, 2),
            np.array(sorted(lost), np.int64).reshape(-1, 4),
            self.array.layout,
        )

    def no_chunks(self, file: Vec4) -> IntactChunks:
        """Return the intact chunks of a file that cannot be opened: none."""
        none: IntArray = np.zeros((0, 4), np.int64)
        return IntactChunks(none, none[:, :2], self.cells_of(file), self.array.layout)

    def stored_cells(
        self, file: Vec4, opened: StoredFile, cells: IntArray | None = None
    ) -> set[Vec4]:
        """Return the chunks, by default all, that a file should contain."""
        if not isinstance(self.array.layout, Shards):
            return {file}
        cells = self.cells_of(file) if cells is None else cells
        return {
            (c, x, y, z)
            for c, x, y, z in cells[self.inspect_shard(opened, cells).is_stored].tolist()
        }

    def open_damaged(self, shard: Vec3) -> BrokenShard:
        """Return the reader of the chunks of a broken shard."""
        return replace(self, lost=self.lost & {shard})

    def intact_parts(self, block: Vec3) -> Iterator[tuple[int, AnyArray]]:
        """Yield first channel and voxels (c, x, y, z) of each intact chunk at an index along x, y,
        z.

        Absent chunks are intact, unless files of the shard are lost.
        """
        array, grid = self.array, self.array.grid
        assert array.naming is not None
        assert grid.file is not None
        for cell in ((c, *block) for c in range(grid.counts[0])):
            c, x, y, z = (
                n * edge // whole
                for n, edge, whole in zip(cell, grid.chunk, grid.file, strict=True)
            )
            out = np.full(grid.chunk, array.fill, array.dtype, order="F")
            state = next(array.naming.file_states(array.store, (c, x, y, z)), None)
            with (
                nullcontext()
                if state is None
                else self.opened(self.name_of((c, x, y, z), state.variant)) as opened
            ):
                if opened is not None:
                    one = np.array([cell])
                    chunk = next(self.intact_chunks((c, x, y, z), opened, one), None)
                    if chunk is not None and chunk.voxels is not None:
                        out[...] = 0
                        out[tuple(map(slice, chunk.voxels.shape))] = chunk.voxels
                    elif self.stored_cells((c, x, y, z), opened, one):
                        continue
                elif self.lost:
                    continue
            yield cell[0] * grid.chunk[0], out[: grid.size[0] - cell[0] * grid.chunk[0]]

    def _decode(
        self, cell: Vec4, data: bytes, path: str, offset: int, faults: FaultList
    ) -> AnyArray | None:
        """Decode a chunk; None if that is not possible."""
        grid = self.array.grid
        where = cell, path, offset if self.array.layout.is_sharded else None
        try:
            if isinstance(self.array.layout, SingleFiles):
                data = self.array.layout.content(self.array, cell, data, path)
            voxels = self.array.codec.decode(data, grid.shape_at(cell), path, offset)
        except (FormatError, UnsupportedError) as error:
            text = str(error).removeprefix(f"{path}: ").removeprefix(f"byte {offset}: ")
            faults.add(self.chunk_fault("chunk.undecodable", *where, text))
            return None
        expected = grid.clipped_shape_at(cell)
        if any(n < least for n, least in zip(voxels.shape, expected, strict=True)):
            shapes = f"{voxels.shape[1:]} voxels", f"at least {expected[1:]}"
            faults.add(self.chunk_fault("chunk.shape", *where, *shapes))
        return voxels

    def _read_box(self, cell: Vec4, path: str, faults: FaultList) -> AnyArray | None:
        """Read a chunk that only other software can decode."""
        array = self.array
        voxels: AnyArray = np.empty(array.grid.clipped_shape_at(cell), array.dtype, order="F")
        try:
            array.read_into(voxels, self._voxel(cell), cell[0] * array.grid.chunk[0])
        except (FormatError, UnsupportedError) as error:
            faults.add(self.chunk_fault("chunk.undecodable", cell, path, None, str(error)))
            return None
        return voxels

    def _voxel(self, cell: Sequence[int]) -> Vec3:
        """Return the lowest absolute voxel of a chunk."""
        grid = self.array.grid
        x, y, z = (
            n * edge + o for n, edge, o in zip(cell[1:], grid.chunk[1:], grid.origin, strict=True)
        )
        return x, y, z
